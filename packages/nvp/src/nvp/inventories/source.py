"""The bytes of an inventory: as UTF-8, and never more than memory can hold."""

from __future__ import annotations

import codecs
import io
from typing import Any, BinaryIO

from nvidia_variant_provider.errors import InputError

__all__ = ["HEAD", "SPACE", "Source"]

HEAD = 4 * 1024 * 1024
"""Bytes by which the form of an inventory is told, and up to which JSON is read as a
whole. A document of one object of Kubernetes fits, with the blanks of kubectl."""

SPACE = b"\xef\xbb\xbf \t\r\n"
"""Bytes that may stand before a document: a byte-order mark and blanks."""

_LONGEST = 512 * 1024 * 1024
"""The most bytes of an inventory. 20,000 nodes with all fields have some 300 MB."""

_LONGEST_ELEMENT = 64 * 1024 * 1024
"""The most bytes of one element of a list. An object of Kubernetes has at most 1.5 MiB,
the limit of etcd."""

_CHUNK = 1024 * 1024
_MARKS = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}


class Source(io.RawIOBase):
    """A stream of UTF-8 that refuses to go on for ever.

    Windows PowerShell redirects the output of a program as UTF-16, which is recognised
    by its byte-order mark and decoded.

    :ivar is_decoded: whether the bytes were UTF-16.
    """

    def __init__(self, source: BinaryIO) -> None:
        self._source = source
        self._total = 0
        self._element = 0
        self._ready = source.read(_CHUNK)
        encoding = _MARKS.get(self._ready[:2])
        self.is_decoded = encoding is not None
        self._decoder: Any = None
        if encoding is not None:
            self._decoder = codecs.getincrementaldecoder(encoding)()
            self._ready = self._decode(self._ready[2:])

    def readable(self) -> bool:
        """Return that this is a stream to read from."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read as many bytes as fit, or up to the end."""
        size = 0
        while size < len(buffer):
            if not self._ready:
                data = self._source.read(_CHUNK)
                self._ready = self._decode(data) if self._decoder else data
                if not self._ready:
                    break
            taken = self._ready[: len(buffer) - size]
            self._ready = self._ready[len(taken) :]
            buffer[size : size + len(taken)] = taken
            size += len(taken)
        self._count(size)
        return size

    def start_element(self) -> None:
        """Say that the next element of a list begins."""
        self._element = 0

    def close(self) -> None:
        """Close the file."""
        self._source.close()
        super().close()

    def _decode(self, data: bytes) -> bytes:
        try:
            text: str = self._decoder.decode(data, not data)
            return text.encode()
        except UnicodeError:
            message = "it is not UTF-16, although it begins like that"
            raise InputError(message, hint="save it as UTF-8") from None

    def _count(self, size: int) -> None:
        self._total += size
        self._element += size
        if self._total > _LONGEST:
            message = f"it is larger than {_LONGEST >> 20} MiB"
            raise InputError(message, hint="select fewer machines")
        if self._element > _LONGEST_ELEMENT:
            message = f"one of its objects is larger than {_LONGEST_ELEMENT >> 20} MiB"
            raise InputError(message, hint="make the file again")
