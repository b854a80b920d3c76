"""The tags of machines in `packaging`, and the wheels that installers select."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from unittest.mock import patch

import packaging._manylinux
from packaging.tags import Tag, compatible_tags, cpython_tags, mac_platforms
from packaging.utils import parse_wheel_filename

__all__ = ["CLIENTS", "MINORS", "choose", "manylinux"]

MINORS = range(8, 16)

Client = dict[Tag, int]
"""The tags that a machine supports, each with its rank; 0 is the best."""


def manylinux(glibc: int, arch: str) -> list[str]:
    """Return the platform tags of a machine with glibc 2.``glibc``, best first."""
    name = "_get_glibc_version"
    with patch.object(packaging._manylinux, name, lambda: (2, glibc)):
        return [*packaging._manylinux.platform_tags([arch]), f"linux_{arch}"]


def _musllinux(minor: int, arch: str) -> list[str]:
    return [*(f"musllinux_1_{n}_{arch}" for n in range(minor, -1, -1)), f"linux_{arch}"]


def _clients() -> Iterator[Client]:
    platforms = [
        *(manylinux(glibc, "x86_64") for glibc in (5, 12, 17, 24, 28, 34, 39)),
        *(manylinux(glibc, "aarch64") for glibc in (17, 28, 39)),
        *(_musllinux(minor, "x86_64") for minor in (0, 1, 2)),
        *(list(mac_platforms((major, 0), "arm64")) for major in (11, 14)),
        *(list(mac_platforms((major, 0), "x86_64")) for major in (11, 14)),
        list(mac_platforms((10, 9), "x86_64")),
        list(mac_platforms((10, 12), "i386")),
        ["win_amd64"],
        ["win_arm64"],
        ["freebsd_14_amd64"],
    ]
    for minor in MINORS:
        abis = [f"cp3{minor}", f"cp3{minor}t"] if minor >= 13 else [f"cp3{minor}"]
        for abi in abis:
            for names in platforms:
                tags = [
                    *cpython_tags((3, minor), abis=[abi], platforms=names),
                    *compatible_tags((3, minor), f"cp3{minor}", names),
                ]
                yield _ranks(tags)
        for names in platforms:
            pypy = f"pp3{minor}"
            tags = [
                *(Tag(pypy, f"pypy3{minor}_pp73", name) for name in names),
                *compatible_tags((3, minor), pypy, names),
            ]
            yield _ranks(tags)


def _ranks(tags: Sequence[Tag]) -> Client:
    return {tag: rank for rank, tag in reversed(list(enumerate(tags)))}


CLIENTS: Sequence[Client] = tuple(_clients())
"""CPython with and without GIL, on glibc, musl, macOS, Windows and FreeBSD; PyPy."""


@lru_cache(maxsize=65536)
def _parse(name: str) -> tuple[frozenset[Tag], tuple[()] | tuple[int, str]]:
    _, _, build, tags = parse_wheel_filename(name)
    return tags, build


def choose(names: Sequence[str], client: Client) -> str | None:
    """Return the wheel that pip takes: the best tag, then the highest build tag."""
    best: tuple[int, tuple[()] | tuple[int, str]] | None = None
    chosen = None
    for name in names:
        tags, build = _parse(name)
        rank = min((client[tag] for tag in tags if tag in client), default=None)
        if rank is not None and (best is None or (-rank, build) > best):
            best, chosen = (-rank, build), name
    return chosen
