"""Why an installer did not take the newest release: what to tell people.

The verdicts are about wheels; people ask about releases. Releases in a row that cannot
be taken for the same reason are therefore told of together.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeVar

from packaging.version import Version

from nvidia_variant_provider.machine.environment import ComputeCapability, Environment

from .page import Build, Visibility

_T = TypeVar("_T")

_REQUIRES = re.compile(r"it requires ([A-Za-z0-9._-]*[A-Za-z0-9])[^,]*, and none of ")

_LACKS = re.compile(r"\S+ (has no code for compute capability [0-9.]+)")


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
            # What runs anywhere was taken in place of wheels for this platform.
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
    """Join the releases in a row of which the same is said."""
    groups = groupby(said, key=lambda pair: pair[1])
    return [(tuple(version for version, _ in same), what) for what, same in groups]


def say_range(versions: Sequence[Version]) -> str:
    """Return ``2.15.0 to 2.11.0`` for releases in a row, newest first."""
    first, last = versions[0], versions[-1]
    return str(first) if first == last else f"{first} to {last}"


def common_reason(reason: str) -> str:
    """Return what a reason has in common with those of the releases next to it."""
    reason = without_source(reason)
    # Each release may require another version, and have code for other GPUs.
    if required := _REQUIRES.match(reason):
        return f"it requires a {required[1]} that does not run here"
    return f"it {lacks[1]}" if (lacks := _LACKS.match(reason)) else reason


def newest_for_all(builds: Iterable[Build]) -> Version | None:
    """Return the newest release with a build that runs on each GPU of the machine."""
    running = [
        build.release
        for build in builds
        if build.installable
        and build.judgement.verdict in ("runs", "partly")
        and not build.judgement.lacking
    ]
    return max(running, default=None)


def say_lacking(
    name: str,
    lacking: Iterable[ComputeCapability],
    environment: Environment,
    newest: Version | str | None,
) -> str:
    """Say which GPUs of a machine are left out, and which release leaves out none.

    :param name: the build that has no code for them, such as ``torch 2.15.0``.
    :param newest: the newest release that runs on each GPU.
    """
    from ..knowledge.tables import gpu_models

    gpus = []
    for capability in lacking:
        names = {g.name for g in environment.gpus if g.compute_capability == capability}
        model = gpu_models().get(capability)
        name_of_gpu = " and ".join(sorted(filter(None, names)))
        if not name_of_gpu and model is not None:
            name_of_gpu = f"GPU such as {model.products.partition(',')[0]}"
        gpus.append(f"the {name_of_gpu or 'GPU'} (compute capability {capability})")
    project = name.partition(" ")[0]
    all_run = f"{project} {newest} is the newest release that runs on all its GPUs"
    if newest is None:
        all_run = "no release is known to run on all its GPUs"
    return f"{name} has no code for {' and '.join(gpus)} of this machine; {all_run}"


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
        return common_reason(nearest[1])
    yanked = [each for _, each in group if each.action == "yank"]
    return without_source((yanked or [group[0][1]])[0].reason)
