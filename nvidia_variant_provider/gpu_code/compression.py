"""Decompressing pieces of GPU code, never beyond a bound.

LZ4 blocks are what nvcc up to 12.x writes: decoded here, after
https://github.com/lz4/lz4/blob/dev/doc/lz4_Block_format.md, since only cubins of a
few kilobytes ever are. Zstandard comes with Python 3.14, or with the package
``zstandard`` of the extra ``wheels``.
"""

from __future__ import annotations

import functools
import importlib
from types import ModuleType
from typing import Any

from .budget import Budget

__all__ = ["LZ4", "NONE", "ZSTD", "decode_lz4", "decompress", "has_zstd"]

NONE, LZ4, ZSTD = "none", "lz4", "zstd"


def decompress(
    compression: str, data: bytes, limit: int, budget: Budget | None = None
) -> bytes | None:
    """The bytes that ``data`` stands for, ``limit`` of them at most.

    ``None`` when they cannot be had: ``data`` is damaged, or nothing is installed
    that decompresses it.

    :param budget: is charged for it.
    """
    if compression == NONE:
        return data[:limit]
    budget = budget or Budget()
    # In full, also where less comes out, or nothing: a decoder takes its time first.
    budget.unpacked -= limit
    if compression == LZ4:
        try:
            return decode_lz4(data, limit, budget)
        except ValueError:
            return None
    return _decode_zstd(data, limit)


def decode_lz4(data: bytes, limit: int, budget: Budget | None = None) -> bytes:
    """The bytes that an LZ4 block stands for, ``limit`` of them at most.

    :raises ValueError: not an LZ4 block.
    """
    budget = budget or Budget()
    out = bytearray()
    at, end = 0, len(data)
    while at < end and len(out) < limit:
        budget.sequences -= 1
        token = data[at]
        length, at = _length(data, token >> 4, at + 1)
        if at + length > end:
            raise ValueError("literals beyond the end")
        out += data[at : at + length]
        at += length
        if at == end:  # the last sequence has no match
            break
        if at + 2 > end:
            raise ValueError("an offset beyond the end")
        offset = data[at] | data[at + 1] << 8
        length, at = _length(data, token & 15, at + 2)
        start = len(out) - offset
        if offset == 0 or start < 0:
            raise ValueError("a match before the start")
        length = min(length + 4, limit)
        if offset >= length:
            out += out[start : start + length]
        else:  # the match overlaps what it makes
            piece = bytes(out[start:])
            out += (piece * (length // offset + 1))[:length]
    return bytes(out[:limit])


def _length(data: bytes, length: int, at: int) -> tuple[int, int]:
    """A length that may go on in further bytes, and where they end."""
    if length < 15:
        return length, at
    while at < len(data):
        length += data[at]
        at += 1
        if data[at - 1] != 255:
            return length, at
    raise ValueError("a length beyond the end")


def has_zstd() -> bool:
    """Is there anything that decompresses Zstandard."""
    return _zstd() is not None


def _decode_zstd(data: bytes, limit: int) -> bytes | None:
    module = _zstd()
    if module is None:
        return None
    # A window of this many bytes at most: frames may ask for gigabytes.
    try:
        if hasattr(module, "DecompressionParameter"):  # compression.zstd
            largest = {module.DecompressionParameter.window_log_max: 23}
            decoder = module.ZstdDecompressor(options=largest)
            found: bytes = decoder.decompress(data, max_length=limit)
            return found
        decoder = module.ZstdDecompressor(max_window_size=1 << 23)
        with decoder.stream_reader(data) as reader:
            return bytes(reader.read(limit))
    except (module.ZstdError, ValueError, MemoryError):
        return None


@functools.cache
def _zstd() -> Any:
    # compression.zstd came with Python 3.14; type checkers find one of the two.
    names = ("compression.zstd", "zstandard")
    return next(filter(None, map(_load, names)), None)


def _load(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None
