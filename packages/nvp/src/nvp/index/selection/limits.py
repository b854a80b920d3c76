"""What is required of projects, where that leaves nothing that runs.

A user who pins ``torch==2.12.1`` gets it on a machine that cannot run it, and with it
what it requires and what requires it. An installer would find no solution if these were
yanked: it takes yanked files for an exact pin alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from ...builds.page import Build, Visibility
from ...builds.verdicts import Judgement
from ...metadata.requirements import parse_requirement

_LABELS = re.compile(r"\+[^,]*")


class Limits:
    """The versions that are required of projects; more are noted while pip runs.

    :param asked: what the user requires, by normalized project.
    """

    def __init__(self, asked: Mapping[str, SpecifierSet] | None = None) -> None:
        self._known = {name: [each] for name, each in (asked or {}).items()}

    def note(self, requires: Iterable[str]) -> None:
        """Note what a build requires that is taken although it cannot run.

        :param requires: its ``Requires-Dist`` fields. Those of extras count too, since
            what they name may be required with the extra.
        """
        for text in requires:
            requirement = parse_requirement(text)
            if requirement is None or not requirement.specifier:
                continue
            known = self._known.setdefault(canonicalize_name(requirement.name), [])
            if requirement.specifier not in known:
                known.append(requirement.specifier)

    def find_fit(
        self,
        project: str,
        requirement: str,
        judged: Mapping[Version, Sequence[Judgement]],
    ) -> bool | None:
        """Return whether a requirement on a project fits what else is required of it.

        :param judged: by release, the judgement of each build of the project.
        :returns: ``None`` where something that runs is left of the project.
        """
        parsed = parse_requirement(requirement)
        if parsed is None:
            return None
        allowed = {*parsed.specifier.filter(judged, prereleases=True)}
        if any(judgement.fits for release in allowed for judgement in judged[release]):
            return True
        fits = None
        for limit in self._known.get(project, ()):
            public = SpecifierSet(_LABELS.sub("", str(limit)))
            left = [*public.filter(judged, prereleases=True)]
            if left and all(j.verdict == "cannot" for r in left for j in judged[r]):
                fits = fits or not allowed.isdisjoint(left)
        return fits

    def find_left(
        self,
        project: str,
        builds: Sequence[Build],
        files: Mapping[str, Visibility],
        decide: Callable[[Sequence[Build]], Mapping[str, Visibility]],
    ) -> tuple[dict[str, Visibility], Build | None]:
        """Find what an installer has to see, since nothing that runs is left.

        :param builds: those of a page.
        :param files: what becomes of them.
        :param decide: decides what becomes of some of them alone.
        :returns: what becomes of builds that were yanked, and the build that cannot run
            and that the installer will take, if there is one.
        """
        changed: dict[str, Visibility] = {}
        taken = [b for b in builds if b.installable and _is_shown(b, files)]
        limits: list[SpecifierSet | None] = [None, *self._known.get(project, ())]
        for limit in limits:
            left = [
                build
                for build in builds
                if build.installable
                and (
                    build.judgement.fits
                    if limit is None
                    else limit.contains(build.version, prereleases=True)
                )
            ]
            if not left or any(_is_shown(build, files) for build in left):
                continue
            taken += left
            refused = all(build.judgement.verdict == "cannot" for build in left)
            # An exact pin admits yanked files, and then installers print the reason.
            if limit is None or not (refused and _is_exact(limit)):
                changed |= decide(left)
        refused_last = [b for b in taken if b.judgement.verdict == "cannot"]
        return changed, max(refused_last, key=lambda b: b.version, default=None)


def _is_shown(build: Build, files: Mapping[str, Visibility]) -> bool:
    return files[build.file].action == "show"


def _is_exact(limit: SpecifierSet) -> bool:
    return any(
        item.operator == "===" or (item.operator == "==" and "*" not in item.version)
        for item in limit
    )
