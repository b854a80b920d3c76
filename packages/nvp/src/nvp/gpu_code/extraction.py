"""Extract one piece of machine code from a library, for a driver to load."""

from __future__ import annotations

import contextlib
import mmap
import re
from bisect import insort
from collections.abc import Callable, Iterator
from typing import NamedTuple

from nvidia_variant_provider.strict_json import open_regular

from . import elf
from .compression import ZSTD, Budget, decompress, has_zstd
from .elf import has_kernels
from .fatbin import (
    CONTAINER,
    CUBIN,
    ENTRY,
    GROUP,
    MAGIC,
    compression_of,
    group_entries,
    target_of,
)
from .formats import read_cubin
from .ranges import read_all

_SEARCH = re.compile(re.escape(MAGIC)).search

_ENOUGH = 1024 * 1024
"""The preferred maximum size of a cubin; larger ones take longer to decompress."""

_LARGEST = 16 * 1024 * 1024

_PIECE = 64 * 1024 * 1024
"""The number of bytes that are searched between two looks at the budget."""

_MOST_LARGE = 100
"""The maximum number of large cubins to remember while a file is searched."""

_RELOCATABLE = 1
"""``ET_REL``: the input of a linker, which a driver cannot load directly."""


_TOO_MUCH = "there is too much code to search"


class ExtractionError(Exception):
    """The machine code cannot be extracted; the text is the reason."""


class Cubin(NamedTuple):
    """Machine code for one target.

    :param target: the target, such as ``90``, ``90a`` or ``100f``.
    """

    target: str
    data: bytes


class _Packed(NamedTuple):
    """A compressed cubin in a container.

    :param size: the decompressed size of the cubin.
    :param start: the offset of the compressed bytes in the file.
    :param length: the number of compressed bytes.
    :param skipped: the number of decompressed bytes before the cubin.
    """

    target: str
    size: int
    compression: str
    start: int
    length: int
    skipped: int = 0


def extract_cubin(
    path: str, fits: Callable[[str], bool], budget: Budget | None = None
) -> Cubin | None:
    """Extract one cubin with a kernel, without running the library.

    :param path: a library, a container (``.fatbin``) or a loose cubin.
    :param fits: returns whether a target is wanted.
    :param budget: the remaining work, which several files may share.
    :returns: ``None`` if no loadable cubin of the file is wanted.
    :raises ExtractionError: the wanted cubins cannot be extracted.
    :raises OSError, ValueError: the file cannot be read.
    """
    budget = budget or Budget()
    with (
        open_regular(path) as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        if data[:4] == elf.MAGIC and data[18:20] == elf.CUDA.to_bytes(2, "little"):
            budget.unpacked -= len(data)
            if not budget.may_unpack:
                raise ExtractionError(_TOO_MUCH)
            content = data[:]
            target = read_all(read_cubin(), content).target
            fitting = fits(target) and _is_loadable(content)
            return Cubin(target, content) if fitting else None
        return _first(data, fits, budget)


def _first(
    data: mmap.mmap, fits: Callable[[str], bool], budget: Budget
) -> Cubin | None:
    problem = ""
    for packed in _fitting(data, fits, budget):
        if not budget.may_unpack:
            raise ExtractionError("too many of its cubins cannot be loaded")
        if packed.skipped + packed.size > _LARGEST:
            problem = problem or f"its smallest cubin has {packed.size >> 20} MiB"
            continue
        if packed.compression == ZSTD and not has_zstd():
            raise ExtractionError(
                "its code is compressed with Zstandard: install zstandard"
            )
        content = _unpacked(data, packed, budget)
        if content is None:
            problem = "a cubin cannot be decompressed"
        elif _is_loadable(content):
            return Cubin(packed.target, content)
    if problem:
        raise ExtractionError(problem)
    return None


def _fitting(
    data: mmap.mmap, fits: Callable[[str], bool], budget: Budget
) -> Iterator[_Packed]:
    """Yield the wanted cubins, and the large ones at the end, in ascending order."""
    large: list[_Packed] = []
    for packed in _packed(data, budget):
        if fits(packed.target):
            if packed.size <= _ENOUGH:
                yield packed
            else:
                insort(large, packed, key=lambda item: item.size)
                del large[_MOST_LARGE:]
    yield from large


def _is_loadable(content: bytes) -> bool:
    if not content.startswith(elf.MAGIC) or len(content) < 64:
        return False
    kind = int.from_bytes(content[16:18], "little")
    return kind != _RELOCATABLE and has_kernels(content)


def _unpacked(data: mmap.mmap, packed: _Packed, budget: Budget) -> bytes | None:
    stored = data[packed.start : packed.start + min(packed.length, _LARGEST)]
    end = packed.skipped + packed.size
    budget.checked -= 1
    budget.unpacked -= len(stored)
    content = decompress(packed.compression, stored, end, budget)
    if content is None or len(content) < end:
        return None
    return content[packed.skipped :]


def _packed(data: mmap.mmap, budget: Budget) -> Iterator[_Packed]:
    """Yield the cubins of all containers that are not damaged."""
    at = 0
    while at < len(data):
        if budget.is_late:
            raise ExtractionError(_TOO_MUCH)
        match = _SEARCH(data, at, at + _PIECE)
        if match is None:
            at += _PIECE - len(MAGIC) + 1  # which may lie in two pieces
            continue
        start = match.start()
        at = start + 1
        if len(data) - start < CONTAINER.size:
            return
        _, version, header, size = CONTAINER.unpack_from(data, start)
        body = start + CONTAINER.size
        if version == 1 and header == CONTAINER.size and size <= len(data) - body:
            yield from _entries(data, body, body + size, budget)
            at = body + size


def _entries(data: mmap.mmap, at: int, end: int, budget: Budget) -> Iterator[_Packed]:
    while end - at >= ENTRY.size:
        if budget.is_late:
            raise ExtractionError(_TOO_MUCH)
        fields: tuple[int, ...] = ENTRY.unpack_from(data, at)
        kind, _, header, payload, packed = fields[:5]
        if header < ENTRY.size or header + payload > end - at:
            return
        start, length = at + header, packed or payload
        if kind == CUBIN:
            size = fields[13] or payload
            form = compression_of(fields[11])
            yield _Packed(target_of(fields[8], fields[11]), size, form, start, length)
        elif kind == GROUP:
            listed = data[at : at + min(header, _ENOUGH)]
            yield from _members(listed, fields, start, length)
        at = start + payload


def _members(
    header: bytes, group: tuple[int, ...], start: int, length: int
) -> Iterator[_Packed]:
    """Yield the cubins of a group, which are compressed as one stream."""
    form = compression_of(group[11])
    with contextlib.suppress(ValueError):
        for fields in group_entries(header):
            offset, size = fields[2:4]
            if fields[0] == CUBIN:
                target = target_of(fields[8], fields[11])
                yield _Packed(target, size, form, start, length, offset)
