"""Extract one piece of machine code from a library, for a driver to load."""

from __future__ import annotations

import contextlib
import mmap
import re
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

_RELOCATABLE = 1
"""``ET_REL``: the input of a linker, which a driver cannot load directly."""


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


def extract_cubin(path: str, fits: Callable[[str], bool]) -> Cubin | None:
    """Extract one cubin with a kernel, without running the library.

    :param path: a library, a container (``.fatbin``) or a loose cubin.
    :param fits: returns whether a target is wanted.
    :returns: ``None`` if no loadable cubin of the file is wanted.
    :raises ExtractionError: the wanted cubins cannot be extracted.
    :raises OSError, ValueError: the file cannot be read.
    """
    with (
        open_regular(path) as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        if data[:4] == elf.MAGIC and data[18:20] == elf.CUDA.to_bytes(2, "little"):
            content = data[:]
            target = read_all(read_cubin(), content).target
            fitting = fits(target) and _is_loadable(content)
            return Cubin(target, content) if fitting else None
        return _first(data, fits)


def _first(data: mmap.mmap, fits: Callable[[str], bool]) -> Cubin | None:
    problem = ""
    budget = Budget()
    for packed in _fitting(data, fits):
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


def _fitting(data: mmap.mmap, fits: Callable[[str], bool]) -> Iterator[_Packed]:
    """Yield the wanted cubins, and the large ones at the end, in ascending order."""
    large: list[_Packed] = []
    for packed in _packed(data):
        if fits(packed.target):
            if packed.size <= _ENOUGH:
                yield packed
            else:
                large.append(packed)
    yield from sorted(large, key=lambda item: item.size)


def _is_loadable(content: bytes) -> bool:
    if not content.startswith(elf.MAGIC) or len(content) < 64:
        return False
    kind = int.from_bytes(content[16:18], "little")
    return kind != _RELOCATABLE and has_kernels(content)


def _unpacked(data: mmap.mmap, packed: _Packed, budget: Budget) -> bytes | None:
    stored = data[packed.start : packed.start + packed.length]
    end = packed.skipped + packed.size
    budget.checked -= 1
    budget.unpacked -= len(stored)
    content = decompress(packed.compression, stored, end, budget)
    if content is None or len(content) < end:
        return None
    return content[packed.skipped :]


def _packed(data: mmap.mmap) -> Iterator[_Packed]:
    """Yield the cubins of all containers that are not damaged."""
    at = 0
    while match := _SEARCH(data, at):
        start = match.start()
        at = start + 1
        if len(data) - start < CONTAINER.size:
            return
        _, version, header, size = CONTAINER.unpack_from(data, start)
        body = start + CONTAINER.size
        if version == 1 and header == CONTAINER.size and size <= len(data) - body:
            yield from _entries(data, body, body + size)
            at = body + size


def _entries(data: mmap.mmap, at: int, end: int) -> Iterator[_Packed]:
    while end - at >= ENTRY.size:
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
            yield from _members(data[at : at + header], fields, start, length)
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
