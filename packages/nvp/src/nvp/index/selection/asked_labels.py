"""The label that a user asks for, among the labels of a page."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from packaging.version import Version
from simple_repository import model
from simple_repository.components.core import SimpleRepository

from nvidia_variant_provider.errors import InputError

from ...builds.backends import parse_backend
from .builds import BuildRepository
from .choice import Choice
from .file_labels import find_labels
from .files import UNAVAILABLE
from .options import Pins

__all__ = ["AskedLabels", "is_needed", "read_names"]


class AskedLabels:
    """Finds out whether a project has the label that the user asks for.

    :param source: the repository whose pages are changed.
    :param others: repositories that the installer reads as well.
    """

    def __init__(
        self,
        pins: Pins,
        source: SimpleRepository,
        others: Sequence[SimpleRepository],
        warn: Callable[[str], None],
    ) -> None:
        self._pins = pins
        self._source = source
        self._others = tuple(others)
        self._warn = warn
        self.labels: dict[str, frozenset[str]] = {}
        """The labels of each project for which the user asked for one."""

    async def find(self, project: str, files: Iterable[model.File]) -> str | None:
        """Return the label that all wheels of a page must have, if there is one."""
        pinned = self._pins.get(project)
        if pinned is None:
            return None
        pages = await read_names(self._others, project)
        labels = find_labels(
            [*(file.filename for file in files), *(name for p in pages for name in p)]
        )
        if isinstance(self._source, BuildRepository):
            builds = self._source.judged(project).builds
            labels |= {build.version.local for build in builds if build.version.local}
            labels |= {build.backend.label for build in builds if build.backend}
        self.labels[project] = labels
        if pinned in labels:
            return pinned
        if not is_needed(pinned, labels, alone=project in self._pins.projects):
            return None
        has = f"it has {', '.join(sorted(labels))}" if labels else "it has no labels"
        self._warn(f"no release of {project} has the label {pinned}: {has}")
        return pinned

    def find_builds(self, project: str) -> frozenset[str]:
        """Return the ordinary wheels that the user means by the label."""
        pinned = self._pins.get(project)
        if pinned is None or not isinstance(self._source, BuildRepository):
            return frozenset()
        builds = self._source.judged(project).builds
        return frozenset(build.file for build in builds if build.has_label(pinned))

    def warn_of_refused(self, project: str, choices: Iterable[Choice]) -> None:
        """Warn that no build with the label fits; say why of the newest one."""
        pinned = self._pins.get(project) or ""
        refused: list[tuple[Version, str]] = []
        for choice in choices:
            rejected = choice.resolution.rejected if choice.resolution else {}
            if pinned in rejected:
                reasons = "; ".join(reason.sentence for reason in rejected[pinned])
                refused.append((Version(choice.version), reasons))
        if isinstance(self._source, BuildRepository):
            page = self._source.judged(project)
            for build in page.builds:
                if build.has_label(pinned) and build.judgement.verdict == "cannot":
                    reasons = "; ".join(build.judgement.reasons)
                    refused.append((build.release, reasons))
        if refused:
            version, reasons = max(refused, key=lambda item: item[0])
            release = f"{project}=={version}"
            self._warn(f"{release}: {pinned} does not fit this machine: {reasons}")


def is_needed(label: str, labels: Iterable[str], *, alone: bool) -> bool:
    """Return whether a project without the label must not be installed.

    A label for all projects is for those that have it. Builds for another CUDA than
    the one that was asked for must not come in all the same.

    :param labels: those that the project has.
    :param alone: the user asks for the label of this project alone.
    """
    if alone:
        return True
    return parse_backend(label) is not None and any(map(parse_backend, labels))


async def read_names(
    repositories: Sequence[SimpleRepository], project: str
) -> list[list[str]]:
    """Read the file names of a project; none where the project cannot be read."""

    async def read(repository: SimpleRepository) -> list[str]:
        try:
            page = await repository.get_project_page(project)
        except (InputError, *UNAVAILABLE):
            return []
        return [file.filename for file in page.files]

    return await asyncio.gather(*map(read, repositories))
