"""The variants that are installed in an environment, and whether they are the best."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions

from packaging.utils import canonicalize_name

from nvidia_variant_provider.errors import InputError
from nvidia_variant_provider.metadata import VariantsMetadata, read_metadata

from ..selection.choice import Choice
from .command import PipCommand
from .reports import Installed

__all__ = ["InstalledVariant", "Stale", "find_installed", "find_stale"]


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Stale:
    """A variant that stays installed although another one is better.

    :param best: the better label; ``None`` for the non-variant wheel.
    """

    installed: InstalledVariant
    best: str | None

    def to_dict(self) -> dict[str, object]:
        """Keys: ``name``, ``version``, ``label``, ``best``."""
        return {
            "name": self.installed.project,
            "version": self.installed.version,
            "label": self.installed.label,
            "best": self.best,
        }


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


def find_stale(
    command: PipCommand,
    installed: Sequence[Installed],
    paths: Sequence[str],
    find_choices: Callable[[str], Mapping[str, Choice]],
) -> tuple[Stale, ...]:
    """Find what was asked for and is installed already, but not as the best build."""
    asked = {
        name for text in command.positional if (name := _project_of(text)) is not None
    }
    fresh = {item.project for item in installed}
    stale = []
    for item in find_installed(paths):
        if item.project in fresh or item.project not in asked:
            continue
        choice = find_choices(item.project).get(item.version)
        if choice is None or choice.resolution is None:
            continue
        best = choice.labels[0] if choice.labels else None
        if best != item.label and (best is not None or choice.plain):
            stale.append(Stale(installed=item, best=best))
    return tuple(stale)


def _project_of(text: str) -> str | None:
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        return canonicalize_name(Requirement(text).name)
    except InvalidRequirement:
        return None
