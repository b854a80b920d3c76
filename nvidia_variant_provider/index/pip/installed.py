"""Variants that are installed, and whether they are those a machine should have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions

from packaging.utils import canonicalize_name

from ...errors import InputError
from ...metadata import VariantsMetadata, read_metadata

__all__ = ["InstalledVariant", "find_installed"]


@dataclass(frozen=True, kw_only=True, slots=True)
class InstalledVariant:
    """A distribution that was installed from a variant wheel.

    :param project: its normalized name.
    :param metadata: what its ``variant.json`` says; it has one label.
    """

    project: str
    version: str
    label: str
    metadata: VariantsMetadata


def find_installed(paths: Sequence[str]) -> Iterator[InstalledVariant]:
    """The variants below ``paths``, as an interpreter with that path sees them.

    What cannot be read is passed over: its installer is the one to ask.
    """
    seen: set[str] = set()
    for distribution in distributions(path=list(paths)):
        name = distribution.metadata["Name"]
        if not name or canonicalize_name(name) in seen:
            continue
        project = canonicalize_name(name)
        seen.add(project)  # the first on the path is the one that is imported
        found = _read(distribution, project)
        if found is not None:
            yield found


def _read(distribution: Distribution, project: str) -> InstalledVariant | None:
    try:
        text = distribution.read_text("variant.json")
        if text is None:
            return None
        metadata = read_metadata(text.encode())
    except (InputError, OSError, UnicodeDecodeError):
        return None
    if len(metadata.variants) != 1:
        return None
    (label,) = metadata.variants
    return InstalledVariant(
        project=project,
        version=distribution.version,
        label=label,
        metadata=metadata,
    )
