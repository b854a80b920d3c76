"""Remote files that are read in parts, so that looking into a wheel is cheap."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping
from typing import Any

from .retrying import PassingError
from .urls import NoRangesError, redacted

__all__ = ["RangeFile", "RangeRequest"]

RangeRequest = Callable[[str, int], "tuple[bytes, Mapping[str, str]]"]
"""Requests a range of a file.

Takes the value of the ``Range`` header and the most bytes that the range can have.
Returns the bytes and the response headers, their names in small letters.
"""

_TAIL = 64 * 1024
"""Bytes at the end of a file that the first request asks for."""

_BLOCK = 256 * 1024
"""Bytes of one block; blocks are what is requested and kept."""

_MOST_BLOCKS = 16
"""Blocks that one request may ask for while a file is read from start to end."""

_KEPT_BLOCKS = 32


class RangeFile(io.RawIOBase):
    """A remote file that is read in parts, where its reader asks for them.

    Every read raises `NoRangesError` when the server does not serve ranges.

    :param url: where the file is; errors show it redacted.
    :param request: requests a range of that URL.
    """

    def __init__(self, url: str, request: RangeRequest) -> None:
        super().__init__()
        self._shown_url = redacted(url)
        self._request = request
        self._position = 0
        self._blocks: dict[int, bytes] = {}
        # The block after the last request, and how many blocks that had.
        self._following, self._count = -1, 0
        self._size, self._tail = self._read_tail()

    def readable(self) -> bool:
        """Return true."""
        return True

    def seekable(self) -> bool:
        """Return true: a read may start anywhere."""
        return True

    def tell(self) -> int:
        """Return the position at which the next read starts."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the position at which the next read starts."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}
        self._position = max(0, base[whence] + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Fill ``buffer``; fill less of it only at the end of the file."""
        end = min(self._position + len(buffer), self._size)
        start = self._position
        tail = self._size - len(self._tail)
        while self._position < end:
            if self._position >= tail:
                piece = self._tail[self._position - tail : end - tail]
            else:
                block, skip = divmod(self._position, _BLOCK)
                piece = self._read_block(block)[skip : skip + end - self._position]
            at = self._position - start
            buffer[at : at + len(piece)] = piece
            self._position += len(piece)
        return self._position - start

    def _read_tail(self) -> tuple[int, bytes]:
        """Return the size of the file, and its last bytes."""
        # The list of a zip file is at its end, so the first request asks for that.
        data, headers = self._request(f"bytes=-{_TAIL}", _TAIL)
        match = re.fullmatch(
            r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})", headers.get("content-range", "")
        )
        if match is None:
            raise self._error("the server does not say how long the file is")
        self._version = _version(headers)
        first, last, size = map(int, match.groups())
        is_tail = last == size - 1 and first == size - len(data)
        return size, data if is_tail else b""

    def _read_block(self, number: int) -> bytes:
        if number not in self._blocks:
            # The list of a zip file is read here and there, a large member from
            # start to end: ask for twice as much while the reads are consecutive.
            ahead = 2 * self._count if number == self._following else 1
            self._count = min(ahead, _MOST_BLOCKS)
            self._following = number + self._count
            start = number * _BLOCK
            end = min(self._following * _BLOCK, self._size - len(self._tail)) - 1
            data, headers = self._request(f"bytes={start}-{end}", end - start + 1)
            if _differs(self._version, _version(headers)):
                message = "it has changed while it was read"
                raise PassingError(message, path=self._shown_url, hint="try again")
            if len(data) != end - start + 1:
                raise self._error("the server sent a range that was not requested")
            if len(self._blocks) > _KEPT_BLOCKS:
                self._blocks.clear()
            for index in range(self._count):
                piece = data[index * _BLOCK : (index + 1) * _BLOCK]
                self._blocks[number + index] = piece
        return self._blocks[number]

    def _error(self, message: str) -> NoRangesError:
        return NoRangesError(message, path=self._shown_url, hint="download it first")


def _version(headers: Mapping[str, str]) -> tuple[str, str]:
    """Return what tells a version of a file from another one, as far as it is known.

    A weak validator (``W/``) tells nothing.
    """
    tag = headers.get("etag", "")
    size = headers.get("content-range", "").rpartition("/")[2]
    return "" if tag.startswith("W/") else tag, size.replace("*", "")


def _differs(first: tuple[str, str], second: tuple[str, str]) -> bool:
    """Return whether two parts belong to different versions of a file.

    RFC 9110, section 15.3.7.3: "These ranges can only be safely combined if they all
    have in common the same strong validator".
    """
    return any(a and b and a != b for a, b in zip(first, second, strict=True))
