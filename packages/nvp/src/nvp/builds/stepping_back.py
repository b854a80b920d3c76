"""Step back: select an older release instead of the newest, and explain why.

`follow` finds the backend for the builds of a companion such as torchvision. A
companion requires another project, its leader, whose wheels have the same kind of
labels.

`Limits` handles requirements that leave no build that runs. A user who pins
``torch==2.12.1`` gets it even on a machine that cannot run it, with its dependencies
and dependents. If the dependencies or dependents were yanked, an installer would find
no solution, because it selects yanked files only for an exact pin.

`find_passed_over` explains why an installer did not select the newest release. Verdicts
are about wheels, but users ask about releases, so consecutive releases with the same
reason are described together.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, groupby
from typing import TypeVar

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from nvidia_variant_provider.machine.environment import CudaVersion

from ..metadata.requirements import Work, parse_requirement
from .needs import Backend
from .page import RUNNING, Build, PageVisibility, Visibility
from .verdicts import Judgement

_T = TypeVar("_T")

_REQUIRES = re.compile(r"it requires ([A-Za-z0-9._-]*[A-Za-z0-9])")

_NONE = ", and none of "
_HERE = re.compile(r", and none of these runs here: [^ ]+: ")

REQUIRED = re.compile(r"it requires a (\S+) that does not run here")
"""The form that `common_reason` gives to a reason with `_REQUIRES` and `_NONE`."""

_LACKS = re.compile(r"\S+ (has no code for compute capability [0-9.]+)")
_LABELS = re.compile(r"\+[^,]*")

_FOR_DECISION = 40
"""The steps of `Work` to decide on the visibility of a build."""


def follow(
    builds: Iterable[Build],
    requirements: Mapping[Version, str],
    leader: Sequence[Build],
    visibility: PageVisibility,
) -> dict[Version, Backend]:
    """Find the required backend of each release of a companion.

    torchvision for CUDA 12.6 breaks at import with torch for CUDA 13.0, and an
    installer that compares only versions cannot detect that.

    The backend is that of the newest release of the leader that an installer may select
    with the companion, on each Python if there is such a release. Without one that has
    a label, the companion has no required backend. If the requirements are unknown, the
    companion was most likely built for a release of the leader with builds for the same
    backends.

    :param builds: the builds of the companion.
    :param requirements: for each release of the companion, its requirement on the
        leader, such as ``torch==2.10.0``.
    :param leader: the builds of the leader.
    :param visibility: the visibility of the leader's builds.
    """
    newest = visibility.newest
    backends = [
        (version, visibility.backends[version])
        for version in sorted(visibility.backends, reverse=True)
        if newest is None or version <= newest
    ]
    followed: dict[Version, Backend] = {}
    own: dict[Version, list[Backend]] = {}
    for build in builds:
        if build.backend is not None and build.judgement.verdict != "cannot":
            own.setdefault(build.release, []).append(build.backend)
    running = _cuda_of_running(leader, visibility)
    for release, mine in own.items():
        if (named := _for_torch(mine, running)) is not None:
            followed[release] = named
    if not backends:
        return followed

    shown = {x.release for x in leader if visibility.files[x.file].action == "show"}
    releases = [
        version
        for version in sorted(shown, reverse=True)
        if newest is None or version <= newest
    ]
    work, theirs = Work(len(leader)), _labels(leader)
    by_labels = {theirs[version]: backend for version, backend in reversed(backends)}
    theirs_for, mine_for = _pythons(leader), _pythons(builds)
    for release, labels in _labels(builds).items():
        if release in followed:
            continue
        parsed = parse_requirement(requirements.get(release, ""))
        if parsed is None or not work.parses(parsed.specifier, len(releases)):
            wanted = by_labels.get(labels, backends[0][1])
        else:
            allows = partial(parsed.specifier.contains, prereleases=True)
            fitting = [version for version in releases if allows(version)]
            pythons = mine_for[release]
            all_take = (x for x in fitting if theirs_for[x] >= pythons)
            best = next(chain(all_take, fitting), None)
            if best is None or best not in visibility.backends:
                continue
            wanted = visibility.backends[best]
        same = (mine for mine in own.get(release, ()) if mine.agrees(wanted))
        followed[release] = next(same, wanted)
    return followed


def _for_torch(
    own: Iterable[Backend], running: Mapping[tuple[int, int], Iterable[CudaVersion]]
) -> Backend | None:
    """Return the companion's backend for torch, trying the newest runnable torch first.

    The backend must match the CUDA version of that torch, at least its major version.
    """
    by_torch: dict[tuple[int, int], list[Backend]] = {}
    for backend in own:
        if backend.torch is not None:
            by_torch.setdefault(backend.torch, []).append(backend)
    for torch in sorted((x for x in by_torch if x in running), reverse=True):
        for cuda in running[torch]:
            for digits in (2, 1):
                for mine in by_torch[torch]:
                    if mine.cuda and mine.cuda[:digits] == cuda[:digits]:
                        return mine
    return None


def _cuda_of_running(
    leader: Iterable[Build], visibility: PageVisibility
) -> Mapping[tuple[int, int], Iterable[CudaVersion]]:
    """Return the CUDA versions of each runnable minor release, newest release first."""
    releases = {
        build.release: build.judgement.cuda
        for build in leader
        if build.judgement.verdict in RUNNING
        and visibility.files[build.file].action == "show"
    }
    # A dictionary is an ordered set: most releases have the same few versions.
    running: dict[tuple[int, int], dict[CudaVersion, None]] = {}
    for version in sorted(releases, reverse=True):
        backend = visibility.backends.get(version)
        if cuda := backend.cuda if backend else releases[version]:
            running.setdefault((version.major, version.minor), {})[cuda] = None
    return running


def find_strays(
    visibility: PageVisibility, followed: Mapping[Version, Backend]
) -> dict[Version, tuple[Backend, Backend]]:
    """Find the releases that are shown with a backend other than the required one.

    :returns: for each of these releases, the shown and the required backend.
    """
    return {
        release: (backend, followed[release])
        for release, backend in visibility.backends.items()
        if release in followed and followed[release].label != backend.label
    }


def _pythons(builds: Iterable[Build]) -> dict[Version, frozenset[int]]:
    pythons: dict[Version, frozenset[int]] = {}
    for build in builds:
        known = pythons.get(build.release, frozenset())
        pythons[build.release] = known | build.pythons
    return pythons


def _labels(builds: Iterable[Build]) -> dict[Version, frozenset[str]]:
    labels: dict[Version, set[str]] = {}
    for build in builds:
        of_release = labels.setdefault(build.release, set())
        if build.backend is not None and build.backend.kind == "cuda":
            of_release.add(build.backend.label)
    return {release: frozenset(of_release) for release, of_release in labels.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class PassedOver:
    """Consecutive releases that are yanked or hidden for the same reason.

    :param versions: newest first.
    :param reason: a sentence without a period, such as ``it needs a driver for
        CUDA 13, but this one is for CUDA 12.8``.
    """

    versions: tuple[Version, ...]
    reason: str

    def to_dict(self) -> dict[str, object]:
        """Return the keys ``versions`` and ``reason``."""
        return {"versions": list(map(str, self.versions)), "reason": self.reason}


def find_passed_over(
    visibilities: Iterable[tuple[Build, Visibility]],
    taken: Build | None,
    *,
    pythons: Collection[int] = (),
    allows: Callable[[Version], bool] = lambda _: True,
) -> tuple[PassedOver, ...]:
    """Find the releases that are newer than ``taken``, and why none was selected.

    If no release was selected, return all releases without shown wheels.

    Releases without a wheel for the same Python and platform are left out, and so are
    pre-releases, unless a pre-release was selected.

    :param visibilities: each wheel of the project on any index, with its visibility.
    :param pythons: the versions of Python, as in `Build`; by default those of
        ``taken``.
    :param allows: whether the user and the other requirements allow a release.
    """
    releases: dict[Version, list[tuple[Build, Visibility]]] = {}
    for build, each in visibilities:
        release = build.release
        if release.is_prerelease and not (taken and taken.release.is_prerelease):
            continue
        newer = taken is None and bool(build.pythons)
        if taken is not None and release > taken.release:
            own = build.pythons.intersection(pythons or taken.pythons or build.pythons)
            # A newer platform-independent wheel also fits the platform of ``taken``.
            fits = taken.platform in (None, build.platform)
            fits = fits or build.file.endswith("-any.whl")
            newer = bool(own) and fits
        if newer:
            releases.setdefault(release, []).append((build, each))
    reasons = [
        (release, _reason(releases[release]))
        for release in sorted(releases, reverse=True)
        if allows(release) and all(d.action != "show" for _, d in releases[release])
    ]
    groups = fold(reasons)
    return tuple(PassedOver(versions=v, reason=reason) for v, reason in groups)


def fold(said: Iterable[tuple[Version, _T]]) -> list[tuple[tuple[Version, ...], _T]]:
    """Group consecutive releases with the same value, as ``(versions, value)``."""
    groups = groupby(said, key=lambda pair: pair[1])
    return [(tuple(version for version, _ in same), what) for what, same in groups]


def say_range(versions: Sequence[Version]) -> str:
    """Return ``2.15.0 to 2.11.0`` for consecutive releases, newest first."""
    first, last = versions[0], versions[-1]
    return str(first) if first == last else f"{first} to {last}"


def common_reason(reason: str) -> str:
    """Return a reason without its details, for comparison with adjacent releases."""
    reason = without_source(reason)
    # Remove versions and GPUs, which differ between releases.
    *_, cause = _HERE.split(reason)
    cause = f"it {lacks[1]}" if (lacks := _LACKS.match(cause)) else cause
    # A pattern with a gap before `_NONE` would take quadratic time.
    head, none, _ = reason.partition(_NONE)
    if none and (required := _REQUIRES.match(head)):
        return f"it requires a {required[1]} that does not run here: {cause}"
    return cause


def nearest_refusal(builds: Iterable[Build]) -> tuple[Build, str] | None:
    """Return the build that is nearest to running, and why it does not run.

    Among builds that cannot run, the one for the lowest CUDA version requires the
    smallest change to the machine.
    """
    refused = [
        build
        for build in builds
        if build.judgement.verdict == "cannot"
        and build.judgement.reasons
        and not (build.backend and build.backend.is_foreign)
    ]
    if not refused:
        return None
    nearest = min(refused, key=lambda build: build.judgement.cuda or (0, 0))
    return nearest, without_source(nearest.judgement.reasons[0])


def without_source(reason: str) -> str:
    """Return a reason without its source in parentheses."""
    start, bracket, _ = reason.rpartition(" (")
    return start if bracket and reason.endswith(")") else reason


def _reason(group: Sequence[tuple[Build, Visibility]]) -> str:
    nearest = nearest_refusal(build for build, _ in group)
    if nearest is not None:
        return common_reason(nearest[1])
    yanked = [each for _, each in group if each.action == "yank"]
    return without_source((yanked or [group[0][1]])[0].reason)


class Limits:
    """The version requirements on projects; `note` adds more while pip runs.

    :param asked: the user's requirements, keyed by normalized project name.
    """

    def __init__(self, asked: Mapping[str, SpecifierSet] | None = None) -> None:
        # The user's own limit is the first one of a project.
        self._known = {name: {each: None} for name, each in (asked or {}).items()}
        self._work = Work()

    def note(self, requires: Iterable[str]) -> None:
        """Add the requirements of a build that is selected although it cannot run.

        :param requires: the ``Requires-Dist`` fields of the build, including those of
            extras, because an extra may be requested.
        """
        # Few extras are requested, so note them last.
        for text in sorted(requires, key=lambda text: "extra" in text):
            requirement = self._work.take(len(text)) and parse_requirement(text)
            if not requirement or not (limit := requirement.specifier):
                continue
            name = canonicalize_name(requirement.name)
            if not self._work.parses(limit, len(name)):
                break
            self._known.setdefault(name, {})[limit] = None

    def find_fit(
        self,
        project: str,
        requirement: str,
        judged: Mapping[Version, Sequence[Judgement]],
        work: Work,
    ) -> bool | None:
        """Return whether a requirement allows a build that fits, or a forced release.

        A limit on the project forces its releases if none of their builds can run.

        :param judged: for each release, the judgement of each build of the project.
        :returns: ``True`` if the requirement allows a build whose ``fits`` is true, or
            a forced release; ``False`` if it allows neither; ``None`` if it allows no
            such build and no release is forced, or if it is malformed.
        """
        parsed = parse_requirement(requirement)
        if parsed is None:
            return None
        allowed = {*parsed.specifier.filter(judged, prereleases=True)}
        if any(judgement.fits for release in allowed for judgement in judged[release]):
            return True
        fits = None
        for limit in tuple(self._known.get(project, ())):  # `note` may add some
            if not work.parses(limit, len(judged)):
                break
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
        decide: Callable[[Sequence[Build]], PageVisibility],
    ) -> tuple[dict[str, Visibility], Build | None]:
        """Find files to show because the requirements leave no build that runs.

        :param builds: the builds of a page.
        :param files: the visibility of these builds, keyed by file name.
        :param decide: returns the visibility of a subset of the builds.
        :returns: the new visibility of yanked builds, and the build that the installer
            will select although it cannot run, if any.
        """
        changed: dict[str, Visibility] = {}
        taken = [b for b in builds if b.pythons and _is_shown(b, files)]
        ours = [build for build in builds if build.pythons]
        fitting = [build for build in ours if build.judgement.fits]
        if not fitting and all(
            build.judgement.fits is False or build.judgement.verdict == "cannot"
            for build in ours
        ):
            # The requirements exclude every build that runs: show the builds that the
            # requirements do not concern, if there are any.
            others = [build for build in ours if build.judgement.fits is None]
            fitting = others if len(others) < len(ours) else []
        limits: list[SpecifierSet | None] = [None, *self._known.get(project, ())]
        work = Work(len(builds))
        for limit in limits:
            left = fitting
            if limit is not None:
                if not work.parses(limit, len(ours)):
                    break
                left = [b for b in ours if limit.contains(b.version, prereleases=True)]
            if not left or any(_is_shown(build, files) for build in left):
                continue
            taken += left
            refused = all(build.judgement.verdict == "cannot" for build in left)
            # If an exact pin has no build that can run, leave its files yanked:
            # installers select them anyway, and print the reason.
            is_forced = limit is not None and refused and _is_exact(limit)
            if not is_forced and work.take(_FOR_DECISION * len(left)):
                changed |= decide(left).files
        refused_last = [b for b in taken if b.judgement.verdict == "cannot"]
        return changed, max(refused_last, key=lambda b: b.version, default=None)


def _is_shown(build: Build, files: Mapping[str, Visibility]) -> bool:
    return files[build.file].action == "show"


def _is_exact(limit: SpecifierSet) -> bool:
    return any(
        item.operator == "===" or (item.operator == "==" and "*" not in item.version)
        for item in limit
    )
