"""Why an installer did not take the newest release: what to tell people.

The verdicts are about wheels; people ask about releases. Releases in a row that cannot
be taken for the same reason are therefore told of together.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from packaging.version import Version

from .page import Build, Visibility

_REQUIRES = re.compile(r"it requires ([A-Za-z0-9._-]*[A-Za-z0-9])[^,]*, and none of ")


@dataclass(frozen=True, kw_only=True, slots=True)
class PassedOver:
    """Releases in a row that are not shown, for one reason.

    :param versions: newest first.
    :param reason: a sentence without a full stop, such as ``it needs a driver for
        CUDA 13, but this one is for CUDA 12.8``.
    """

    versions: tuple[Version, ...]
    reason: str

    def to_dict(self) -> dict[str, object]:
        """Keys: ``versions``, ``reason``."""
        return {"versions": list(map(str, self.versions)), "reason": self.reason}


def find_passed_over(
    visibilities: Iterable[tuple[Build, Visibility]],
    taken: Build | None,
    *,
    pythons: Collection[int] = (),
    allows: Callable[[Version], bool] = lambda _: True,
) -> tuple[PassedOver, ...]:
    """Find the releases that are newer than ``taken``, and why none was taken.

    Where nothing was, all releases count of which nothing is shown.

    Releases count that have a wheel for its Pythons and its platform. Pre-releases do
    not count, unless a pre-release was taken.

    :param visibilities: each wheel of the project, of all indexes, and its visibility.
    :param pythons: those that count, as in `Build`; by default, those of ``taken``.
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
            fits = build.platform == taken.platform or build.file.endswith("-any.whl")
            newer = bool(own) and fits
        if newer:
            releases.setdefault(release, []).append((build, each))
    groups: list[PassedOver] = []
    for release in sorted(releases, reverse=True):
        group = releases[release]
        if not allows(release) or any(d.action == "show" for _, d in group):
            continue
        reason = _reason(group)
        if groups and groups[-1].reason == reason:
            versions = (*groups[-1].versions, release)
            groups[-1] = PassedOver(versions=versions, reason=reason)
        else:
            groups.append(PassedOver(versions=(release,), reason=reason))
    return tuple(groups)


def nearest_refusal(builds: Iterable[Build]) -> tuple[Build, str] | None:
    """Return the build that is nearest to running, and why it does not run.

    Of several builds that cannot run, the one for the oldest CUDA requires the
    smallest change of the machine.
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
    """Return a reason without the place in parentheses that it was read from."""
    start, bracket, _ = reason.rpartition(" (")
    return start if bracket and reason.endswith(")") else reason


def _reason(group: Sequence[tuple[Build, Visibility]]) -> str:
    nearest = nearest_refusal(build for build, _ in group)
    if nearest is not None:
        # Each release may require another version: what they have in common is short.
        required = _REQUIRES.match(nearest[1])
        if required:
            return f"it requires a {required[1]} that does not run here"
        return nearest[1]
    yanked = [each for _, each in group if each.action == "yank"]
    return without_source((yanked or [group[0][1]])[0].reason)
