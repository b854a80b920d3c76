"""Readers that ask for ranges of bytes, and what answers them.

A table at the end of a file says what lies at its start, and the other way round;
in a stream one of them has passed. A reader is a generator: it yields the ranges that
it needs next, all at once, and is sent their bytes, shorter where the file ends.
`Answers` serves it while the stream goes by, from what it keeps of the first and the
last bytes, and says how far the stream has to be read once more for the rest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from typing import Generic, TypeVar

__all__ = ["MAX_RANGE", "Answers", "Range", "Reader", "answer"]

T = TypeVar("T")

Range = tuple[int, int]
"""Offset and length."""

Reader = Generator[tuple[Range, ...], tuple[bytes, ...], T]

MAX_RANGE = 1024 * 1024
"""Bytes that one request may ask for; the tables that are read are shorter."""

_HEAD = 512 * 1024
_TAIL = 2 * 1024 * 1024
"""Bytes that stay at hand: the first, and the last. The names of sections are just
before the headers of sections, or half a megabyte where `patchelf` has moved those."""


def answer(reader: Reader[T], data: bytes) -> T:
    """What ``reader`` finds in ``data``, a whole file.

    :raises ValueError: as the reader does.
    """
    try:
        wanted = next(reader)
        while True:
            wanted = reader.send(
                tuple(data[start : start + length] for start, length in wanted)
            )
    except StopIteration as stop:
        found: T = stop.value
        return found


class Answers(Generic[T]):
    """Runs a reader over a stream.

    :param size: bytes of the stream.
    """

    def __init__(self, reader: Reader[T], size: int) -> None:
        self._reader = reader
        self._size = size
        self._head = b""
        self._tail: deque[tuple[int, bytes]] = deque()
        self._position = 0
        self._wanted: list[Range] = []
        self._found: list[bytes | None] = []
        self._open: dict[int, bytearray] = {}
        self.result: T | None = None
        self.error: ValueError | None = None
        self._ask(None)

    @property
    def done(self) -> bool:
        """The reader wants no more."""
        return self.result is not None or self.error is not None

    @property
    def end(self) -> int:
        """How far the stream has to be read from its start to serve what is open."""
        return max(
            (self._wanted[i][0] + self._wanted[i][1] for i in self._open), default=0
        )

    def restart(self) -> None:
        """The stream starts anew."""
        self._position = 0
        self._tail.clear()
        for index in self._open:
            self._open[index] = bytearray()

    def feed(self, data: bytes) -> None:
        """Take the next piece."""
        if self.done:
            return
        if self._position < _HEAD and len(self._head) == self._position:
            self._head += data[: _HEAD - self._position]
        self._tail.append((self._position, data))
        self._position += len(data)
        while self._position - self._tail[0][0] - len(self._tail[0][1]) > _TAIL:
            self._tail.popleft()
        self._fill(data, self._position - len(data))
        while not self._open and not self.done:
            self._ask(tuple(found or b"" for found in self._found))
            # What is wanted now may have passed already.
            self._fill(self._head, 0)
            for start, piece in self._tail:
                self._fill(piece, start)

    def finish(self) -> None:
        """Nothing more comes: what is open gets the bytes that there were."""
        while not self.done:
            for index, buffer in self._open.items():
                self._found[index] = bytes(buffer)
            self._ask(tuple(found or b"" for found in self._found))

    def _fill(self, data: bytes, start: int) -> None:
        """Take what ``data`` has of the ranges that are wanted."""
        for index, buffer in list(self._open.items()):
            offset, length = self._wanted[index]
            at = offset + len(buffer) - start
            if 0 <= at < len(data):
                buffer.extend(data[at : at + length - len(buffer)])
            if len(buffer) == length:
                self._found[index] = bytes(buffer)
                del self._open[index]

    def _ask(self, sent: tuple[bytes, ...] | None) -> None:
        try:
            wanted = next(self._reader) if sent is None else self._reader.send(sent)
        except StopIteration as stop:
            self.result = stop.value
            return
        except ValueError as error:
            self.error = error
            return
        # Nothing lies beyond the end, and no table is longer than the bound.
        self._wanted = [
            (start, max(0, min(length, self._size - start, MAX_RANGE)))
            for start, length in wanted
        ]
        self._found = [b"" if not length else None for _, length in self._wanted]
        self._open = {
            index: bytearray()
            for index, (_, length) in enumerate(self._wanted)
            if length
        }
