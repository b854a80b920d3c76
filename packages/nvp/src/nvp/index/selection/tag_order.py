"""Finding the wheels whose tags would overrule the order of variants.

Installers compare the tags of wheels (interpreter, ABI, platform) before their build
tags. They would prefer a lower-ranked build to the best one if its tags are closer to
the machine, such as manylinux_2_34 where the best build has manylinux_2_28.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from functools import lru_cache

from packaging.tags import Tag, compatible_tags, cpython_tags, mac_platforms

__all__ = ["find_outranking"]

_LEGACY = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}
_VERSIONED = re.compile(r"(manylinux|musllinux)_(\d+)_(\d+)_(\w+)")
_OLD = re.compile(rf"({'|'.join(_LEGACY)})_(\w+)")
_MAC = re.compile(r"macosx_(\d+)_(\d+)_\w+")
_INTERPRETER = re.compile(r"(?:cp|py)3(\d{1,3})")

_NEWEST = 14
"""The minor version of Python that represents those that no tag names."""

_FREE_THREADED = 13
"""The first minor version of Python that is also built without the GIL."""

_MOST_TAGS = 20_000
"""The most tags that are compared for a release; torch 2.9 needs 1,700."""

_OTHER_PLATFORM = "unnamed"
"""A platform that no tag names."""

_UNUSABLE = sys.maxsize
"""The rank of a wheel that a machine cannot use."""

Tags = frozenset[Tag]


def find_outranking(groups: Sequence[Sequence[Tags]]) -> list[tuple[int, int]]:
    """Find the wheels that some machine would prefer to those of a better group.

    Only CPython is considered, with and without the GIL.

    :param groups: the tags of the wheels of each variant, best variant first.
    :returns: pairs of indexes: of the group, and of the wheel in its group.
    """
    if len({frozenset(group) for group in groups if group}) < 2:
        # All variants are built for the same platforms, as is usual.
        return []
    wheels = {tags for group in groups for tags in group}
    clients = _clients(frozenset().union(*wheels))
    if clients is None:
        return []
    ranks = {
        tags: [min(client.get(tag, _UNUSABLE) for tag in tags) for client in clients]
        for tags in wheels
    }
    # For each machine, the rank of the wheel that it uses from the best group.
    best = [_UNUSABLE] * len(clients)
    outranking: list[tuple[int, int]] = []
    for number, group in enumerate(groups):
        seen = [_UNUSABLE] * len(clients)
        for place, tags in enumerate(group):
            own = ranks[tags]
            if any(mine < b < _UNUSABLE for mine, b in zip(own, best, strict=True)):
                outranking.append((number, place))
            else:
                seen = list(map(min, seen, own))
        best = [s if b == _UNUSABLE else b for b, s in zip(best, seen, strict=True)]
    return outranking


def _clients(tags: Tags) -> list[dict[Tag, int]] | None:
    """Return the machines to compare for: the tags of each, with their ranks.

    There is one machine for each platform and each version of Python that makes a
    difference: a newer machine may be able to use a wheel of the best group that an
    older one cannot use.

    :returns: ``None`` when there are more machines than any release is built for.
    """
    named = {int(m[1]) for t in tags if (m := _INTERPRETER.fullmatch(t.interpreter))}
    # The versions before and after cannot use what is for one version only.
    minors = {near for m in named for near in (m - 1, m, m + 1)} | {_NEWEST}
    platforms = sorted(_machines({t.platform for t in tags} - {"any"}))
    if sum(minors) * sum(len(names) + 1 for names in platforms) > _MOST_TAGS:
        return None
    return [
        {tag: rank for tag, rank in _ranks(minor, abi, names) if tag in tags}
        for minor in sorted(minors)
        for names in platforms
        for abi in (f"cp3{minor}", f"cp3{minor}t")
        if minor >= _FREE_THREADED or not abi.endswith("t")
    ]


def _machines(platforms: set[str]) -> set[tuple[str, ...]]:
    """Return which of ``platforms`` each kind of machine accepts, best first."""
    kinds: dict[str, list[str]] = {}
    versions: set[tuple[int, int]] = set()
    for platform in platforms:
        if match := _MAC.fullmatch(platform):
            versions.add((int(match[1]), int(match[2])))
        else:
            for kind in _kinds(platform):
                kinds.setdefault(kind, []).append(platform)
    machines: set[tuple[str, ...]] = {()}
    for names in kinds.values():
        ordered = sorted(names, key=_platform_key, reverse=True)
        machines.update(tuple(ordered[start:]) for start in range(len(ordered)))
    for version in versions:
        for arch in ("arm64", "x86_64"):
            order = mac_platforms(version, arch)
            machines.add(tuple(name for name in order if name in platforms))
    return machines


@lru_cache(maxsize=256)
def _ranks(
    minor: int, abi: str, platforms: tuple[str, ...]
) -> tuple[tuple[Tag, int], ...]:
    version = (3, minor)
    names = platforms or (_OTHER_PLATFORM,)
    ordered = [
        *cpython_tags(version, abis=[abi], platforms=names),
        *compatible_tags(version, f"cp3{minor}", names),
    ]
    return tuple((tag, rank) for rank, tag in reversed(list(enumerate(ordered))))


def _kinds(platform: str) -> list[str]:
    """Return the kinds of machines that a platform is for: ``manylinux x86_64``."""
    if match := _VERSIONED.fullmatch(platform):
        return [f"{match[1]} {match[4]}"]
    if match := _OLD.fullmatch(platform):
        return [f"manylinux {match[2]}"]
    if platform.startswith("linux_"):
        arch = platform.removeprefix("linux_")
        return [f"manylinux {arch}", f"musllinux {arch}"]
    return [platform]


def _platform_key(platform: str) -> tuple[int, int, bool]:
    """Return the sort key of platforms of one kind; machines prefer higher ones."""
    if match := _VERSIONED.fullmatch(platform):
        return int(match[2]), int(match[3]), True
    if match := _OLD.fullmatch(platform):
        return *_LEGACY[match[1]], False
    return 0, 0, False
