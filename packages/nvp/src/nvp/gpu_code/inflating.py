"""Inflating members of archives: with `isal` where it is installed, else with `zlib`.

The package ``isal`` of the extra ``wheels`` binds Intel's library of that name, which
inflates two to three times as fast as zlib. It only ever says that a member is whole:
it goes on where zlib finds the damage already. So where anything is wrong, zlib reads
the member again, and what was read before does not count. A damaged archive gives the
same report whatever is installed, with all that stands before the damage.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from .library import BrokenError

if TYPE_CHECKING:
    from types import ModuleType

__all__ = [
    "PACKED",
    "PIECE",
    "crc32",
    "inflate",
    "inflate_slowly",
    "inflate_whole",
    "inflater_name",
]

PACKED = 64 * 1024
"""The most compressed bytes that are read at once."""

PIECE = 256 * 1024
"""The longest piece that is inflated at once, in bytes. What is done with a piece finds
it in the cache of the processor."""

_DAMAGED = "it cannot be decompressed: its data is damaged"

Read = Callable[[int], bytes]
"""Reads at most so many compressed bytes, which come after those of the last call."""


def inflate(read: Read) -> Iterator[bytes]:
    """Yield what a stream of raw deflate inflates to, in pieces.

    A stream that is cut off just ends.

    :raises BrokenError: the stream is damaged; some bytes before the damage are lost.
    """
    module = _module()
    inflater = module.decompressobj(-zlib.MAX_WBITS)
    try:
        while not inflater.eof and (packed := read(PACKED)):
            while packed and not inflater.eof:
                if piece := inflater.decompress(packed, PIECE):
                    yield piece
                packed = inflater.unconsumed_tail
        # The decompressor may still hold back some output.
        while not inflater.eof and (piece := inflater.decompress(b"", PIECE)):
            yield piece
    except module.error:
        raise BrokenError(_DAMAGED) from None


def inflate_whole(packed: bytes, size: int) -> bytes | None:
    """Return what ``packed`` inflates to, as `inflate` yields it.

    :returns: ``None`` unless it is undamaged and of that size.
    """
    module = _module()
    inflater = module.decompressobj(-zlib.MAX_WBITS)
    try:
        data: bytes = inflater.decompress(packed, size + 1)
        if not inflater.eof and len(data) <= size:
            # The decompressor may still hold back some output.
            data += inflater.decompress(inflater.unconsumed_tail, 1)
    except module.error:
        return None
    return data if len(data) == size else None


def inflate_slowly(read: Read) -> Iterator[bytes]:
    """Yield the same as `inflate`, by zlib, with all bytes before the damage.

    :raises BrokenError: the stream is damaged.
    """
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    while not inflater.eof and (packed := read(PACKED)):
        while packed and not inflater.eof:
            before = inflater.copy()
            try:
                piece = inflater.decompress(packed, PIECE)
            except zlib.error:
                yield from _up_to_the_damage(before, packed)
                raise BrokenError(_DAMAGED) from None
            if piece:
                yield piece
            packed = inflater.unconsumed_tail
    while not inflater.eof and (piece := inflater.decompress(b"", PIECE)):
        yield piece


def _up_to_the_damage(inflater: Any, packed: bytes) -> Iterator[bytes]:
    """Yield what comes of each byte before the one that cannot be inflated."""
    for at in range(len(packed)):
        try:
            piece = inflater.decompress(packed[at : at + 1])
        except zlib.error:
            return
        if piece:
            yield piece


def crc32(data: bytes, value: int) -> int:
    """Continue a checksum, by the faster of the two libraries."""
    checksum: int = _module().crc32(data, value)
    return checksum


def inflater_name() -> str:
    """Return ``isal`` or ``zlib``, whichever inflates the members of archives."""
    return _module().__name__.partition(".")[0].removesuffix("_zlib")


@functools.cache
def _module() -> ModuleType:
    try:
        from isal import isal_zlib
    except ImportError:
        return zlib
    return isal_zlib
