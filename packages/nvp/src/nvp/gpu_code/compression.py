"""Decompress pieces of GPU code, within limits for each piece and each report.

nvcc up to 12.x writes LZ4 blocks. This module implements
https://github.com/lz4/lz4/blob/dev/doc/lz4_Block_format.md. The package ``lz4`` decodes
only whole blocks into a large enough buffer, but the first 2 KiB of a block usually
suffice, and a malicious block must be abandoned at a limit. Only cubins of at most 16
KiB and groups of at most 1 MiB are decoded, so Python is fast enough.

Zstandard comes with Python 3.14, or with the package ``zstandard``.
"""

from __future__ import annotations

import functools
import importlib
import math
import re
import threading
import time
from types import ModuleType
from typing import Any

NONE, LZ4, ZSTD = "none", "lz4", "zstd"

_own = threading.local()
_END = re.compile(rb"[^\xff]").search

STEPS = 1_000_000
"""The maximum number of scanner steps: entries, starts and ends of containers. cuFFT
needs 73,000."""

CHECKED = 20_000
"""The maximum number of cubins to search for kernels. cuFFT has 1,086."""

UNPACKED = 256 * 1024 * 1024
"""The maximum bytes to decompress while searching cubins. cuSPARSELt needs 14 MiB."""

SEQUENCES = 4_000_000
"""The maximum number of LZ4 sequences to decode in Python. cuSPARSELt has 219,000."""

NAMES = 200_000
"""The maximum number of names of linked libraries; each target of a file counts as
`PER_TARGET` names. A wheel with 1,000 libraries needs 20,000 names."""

PER_TARGET = 4

LONG = 64
"""Each such number of bytes of a name counts as another name, for its memory. A byte
takes four if the name has a wide character. Results repeat a path for each target."""

TABLES = 512 * 1024 * 1024
"""The maximum bytes of tables, such as section headers, in all files. 16,000 cubins
need less than 200 MiB."""


class Budget:
    """The remaining work for a report, shared by its files in all threads.

    A malicious archive of a few kilobytes can require a lot of work. The whole budget
    takes about 15 seconds. Real wheels stay far below the limits, whose docstrings give
    the largest known use.

    There is no lock: with two simultaneous threads, a count is off by at most one step.

    ``until`` is the processor time of this process at which the search of files ends,
    infinite by default.

    :param parts: divide all limits but that of `NAMES` by this number. The wheels of an
        environment have few names, but one of them may have 16,000 cubins.
    """

    __slots__ = (
        "_told",
        "checked",
        "names",
        "sequences",
        "steps",
        "tables",
        "unpacked",
        "until",
    )

    def __init__(self, parts: int = 1) -> None:
        self.steps = STEPS // parts
        self.checked = CHECKED // parts
        self.unpacked = UNPACKED // parts
        self.sequences = SEQUENCES // parts
        self.names = NAMES
        self.tables = TABLES // parts
        self.until = math.inf
        self._told: set[str] = set()

    @property
    def is_late(self) -> bool:
        """Whether no further file, or part of a file, may be searched."""
        return self.until < math.inf and time.process_time() >= self.until

    @property
    def may_unpack(self) -> bool:
        """Whether the budget allows decompressing another piece."""
        left = self.checked > 0 and self.unpacked > 0 and self.sequences > 0
        return left and not self.is_late

    def is_news(self, message: str) -> bool:
        """Return whether ``message`` is new in this report, and remember it."""
        if message in self._told:
            return False
        self._told.add(message)
        return True


def decompress(
    compression: str, data: bytes, limit: int, budget: Budget | None = None
) -> bytes | None:
    """Decompress ``data``; return at most the first ``limit`` bytes of the output.

    The result is ``None`` if ``data`` is damaged or no installed package can decompress
    it.

    :param compression: `NONE`, `LZ4` or `ZSTD`.
    :param budget: the budget to charge.
    """
    if compression == NONE:
        return data[:limit]
    budget = budget or Budget()
    # Charge the full limit even for less output, because the work is the same.
    budget.unpacked -= limit
    if compression == LZ4:
        try:
            return decode_lz4(data, limit, budget)
        except ValueError:
            return None
    return _decode_zstd(data, limit)


def decode_lz4(data: bytes, limit: int, budget: Budget | None = None) -> bytes:
    """Decode an LZ4 block; return at most the first ``limit`` bytes of the output.

    :param budget: the budget to charge for each sequence.
    :raises ValueError: ``data`` is not an LZ4 block.
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
        if at == end:  # the last sequence has literals only, and no match
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
        else:  # the match overlaps its own output, so its bytes repeat
            piece = bytes(out[start:])
            out += (piece * (length // offset + 1))[:length]
    return bytes(out[:limit])


def _length(data: bytes, length: int, at: int) -> tuple[int, int]:
    """Return ``length`` plus its further bytes at ``at``, and the offset after them."""
    if length < 15:
        return length, at
    # Search for the end of the length: adding the bytes one by one would be slow, and
    # the budget does not count them.
    end = _END(data, at)
    if end is None:
        raise ValueError("a length beyond the end")
    last = end.start()
    return length + 255 * (last - at) + data[last], last + 1


def has_zstd() -> bool:
    """Return whether a Zstandard decoder is installed."""
    return _zstd() is not None


def _decode_zstd(data: bytes, limit: int) -> bytes | None:
    module = _zstd()
    if module is None:
        return None
    # The window of a frame may need gigabytes of memory: allow only the 8 MiB that RFC
    # 8878 recommends for decoders.
    try:
        if hasattr(module, "DecompressionParameter"):  # only in compression.zstd
            largest = {module.DecompressionParameter.window_log_max: 23}
            decoder = module.ZstdDecompressor(options=largest)
            plain: bytes = decoder.decompress(data, max_length=limit)
            return plain
        with _decoder(module).stream_reader(data) as reader:
            return bytes(reader.read(limit))
    except (module.ZstdError, ValueError, MemoryError):
        return None


def _decoder(module: Any) -> Any:
    """Return this thread's decoder, because creating one is slow."""
    decoder = getattr(_own, "decoder", None)
    if decoder is None:
        decoder = _own.decoder = module.ZstdDecompressor(max_window_size=1 << 23)
    return decoder


@functools.cache
def _zstd() -> Any:
    # compression.zstd is new in Python 3.14. The result has the type Any, because type
    # checkers find only one of the two modules.
    names = ("compression.zstd", "zstandard")
    return next(filter(None, map(_load, names)), None)


def _load(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None
