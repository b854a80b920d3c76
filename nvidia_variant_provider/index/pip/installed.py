"""Finding the variants that are installed in an environment."""

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

    :param project: the normalized name of the project.
    :param metadata: the content of its ``variant.json``, which has one label.
    """

    project: str
    version: str
    label: str
    metadata: VariantsMetadata


def find_installed(paths: Sequence[str]) -> Iterator[InstalledVariant]:
    """Find the variants in ``paths``, as an interpreter with that path sees them.

    A distribution that cannot be read is ignored: its installer has to repair it.
    """
    seen: set[str] = set()
    for distribution in distributions(path=list(paths)):
        name = distribution.metadata["Name"]
        if not name or canonicalize_name(name) in seen:
            continue
        project = canonicalize_name(name)
        seen.add(project)  # Python imports the first one on the path.
        variant = _read(distribution, project)
        if variant is not None:
            yield variant


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
