"""Where tags would overrule the order of variants.

Installers compare the tags of wheels (interpreter, ABI, platform) before their
build tags. A lower-ranked build that is tagged more closely, as manylinux_2_34
beside manylinux_2_28, would be taken before the best one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

from packaging.tags import Tag, compatible_tags, cpython_tags

__all__ = ["find_outranking"]

_LEGACY = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}
_VERSIONED = re.compile(r"(manylinux|musllinux|macosx)_(\d+)_(\d+)_(\w+)")
_OLD = re.compile(rf"({'|'.join(_LEGACY)})_(\w+)")
_INTERPRETER = re.compile(r"(?:cp|py)3(\d+)")

_NEWEST = 14
"""The minor version of Python that stands for those that no tag names."""

Tags = frozenset[Tag]


def find_outranking(groups: Sequence[Sequence[Tags]]) -> list[tuple[int, int]]:
    """The wheels that some machine would take although it can have a better group.

    :param groups: the tags of the wheels of each variant, best variant first.
    :returns: (group, wheel) pairs of places.
    """
    wheels = [tags for group in groups for tags in group]
    if len(set(wheels)) < 2:
        return []
    found: set[tuple[int, int]] = set()
    for client in _clients(frozenset().union(*wheels)):
        unusable = len(client)
        best = unusable  # the rank of the best group's best wheel
        for number, group in enumerate(groups):
            own = [min(client.get(tag, unusable) for tag in tags) for tags in group]
            if best == unusable:
                best = min(own, default=unusable)
            else:
                found.update((number, i) for i, rank in enumerate(own) if rank < best)
    return sorted(found)


def _clients(tags: Tags) -> Iterator[dict[Tag, int]]:
    """Machines to compare the tags for: their tags, each with its rank.

    One for each version of Python and each kind of platform. The newest platform
    of a kind will do: it takes all older wheels as well.
    """
    minors = {int(m[1]) for t in tags if (m := _INTERPRETER.fullmatch(t.interpreter))}
    kinds: dict[str, set[str]] = {}
    for tag in tags:
        if tag.platform != "any":
            kinds.setdefault(_kind(tag.platform), set()).add(tag.platform)
    for platforms in kinds.values() or [set()]:
        ordered = tuple(sorted(platforms, key=_platform_key, reverse=True))
        for minor in sorted(minors | {_NEWEST}):
            yield _ranks(minor, ordered)


@lru_cache(maxsize=1024)
def _ranks(minor: int, platforms: tuple[str, ...]) -> dict[Tag, int]:
    version = (3, minor)
    ordered = [
        *cpython_tags(version, platforms=platforms),
        *compatible_tags(version, f"cp3{minor}", platforms),
    ]
    return {tag: rank for rank, tag in reversed(list(enumerate(ordered)))}


def _kind(platform: str) -> str:
    """What a machine has one of: ``manylinux`` and ``x86_64``, say."""
    if match := _VERSIONED.fullmatch(platform):
        return f"{match[1]} {match[4]}"
    if match := _OLD.fullmatch(platform):
        return f"manylinux {match[2]}"
    if platform.startswith("linux_"):
        return f"manylinux {platform.removeprefix('linux_')}"
    return platform


def _platform_key(platform: str) -> tuple[int, int, bool]:
    """The order in which machines prefer platforms of one kind, worst first."""
    if match := _VERSIONED.fullmatch(platform):
        return int(match[2]), int(match[3]), True
    if match := _OLD.fullmatch(platform):
        return *_LEGACY[match[1]], False
    return 0, 0, False
