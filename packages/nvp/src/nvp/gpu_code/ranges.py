"""Read the tables of a file from a stream, which cannot seek.

Tables near the end of a file refer to its start, and vice versa. In a stream, such as a
member of an archive, the bytes that a table refers to may have passed. A reader of
tables is therefore a generator: it yields all byte ranges that it needs next, and
receives their bytes, which may be fewer at the end of the file.

The following reader follows two references: the first two bytes are the offset of a
table, and the table is the offset of a name.

>>> def read_name():
...     (table_at,) = yield ((0, 2),)
...     (name_at,) = yield ((int(table_at), 2),)
...     (name,) = yield ((int(name_at), 4),)
...     return name

In the following data, the table is at 10, after the name at 4. With all bytes in
memory, the reader runs directly:

>>> data = b"10..name..04"
>>> read_all(read_name(), data)
b'name'

`RangeFeeder` runs the reader on a stream. This feeder keeps only the first two and the
last two bytes (or the whole last piece, if it is longer):

>>> feeder = RangeFeeder(read_name(), len(data), head=2, tail=2)
>>> feeder.feed(b"10..")

The reader requested 2 bytes at 0, got ``10``, and requested 2 bytes at 10, which are
still to come.

>>> feeder.feed(b"name")
>>> feeder.feed(b"..04")

The reader got ``04`` and requested 4 bytes at 4, which have passed. The feeder no
longer has them: the stream must be read again up to ``end``.

>>> feeder.done, feeder.end
(False, 8)
>>> feeder.restart()
>>> feeder.feed(b"10..")
>>> feeder.feed(b"name")
>>> feeder.done, feeder.result
(True, b'name')

By default, a feeder keeps enough bytes to read most libraries only once.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator
from typing import IO, Generic, TypeVar

from .compression import LONG, Budget

T = TypeVar("T")

Range = tuple[int, int]
"""Offset and length."""

Reader = Generator[tuple[Range, ...], tuple[bytes, ...], T]
"""A generator that yields ranges, receives their bytes, and returns a result."""

MAX_RANGE = 1024 * 1024
"""The longest range in bytes; all tables of real libraries are shorter."""

HEAD = 512 * 1024
TAIL = 2 * 1024 * 1024
"""The number of bytes that a feeder keeps from the start and from the end. The section
names are usually next to the section headers at the end of a file. If `patchelf` has
moved the headers, the names are half a megabyte before them."""


def read_all(reader: Reader[T], data: bytes) -> T:
    """Run a reader on ``data``, a whole file, and return its result.

    :raises ValueError: the reader raised it.
    """
    # A length computed from a damaged file can be negative.
    return _run(reader, lambda at, size: data[at : at + max(0, size)])


def _run(reader: Reader[T], read: Callable[[int, int], bytes]) -> T:
    try:
        wanted = next(reader)
        while True:
            wanted = reader.send(tuple(read(*place) for place in wanted))
    except StopIteration as stop:
        result: T = stop.value
        return result


def read_seekable(reader: Reader[T], file: IO[bytes]) -> T:
    """Run a reader on a seekable file, reading only the bytes that it requests.

    :raises ValueError: the reader raised it.
    :raises OSError: the file cannot be read.
    """
    end = file.seek(0, os.SEEK_END)

    def read(start: int, length: int) -> bytes:
        # A damaged file may contain an impossible offset, and seeking to it would fail.
        if length <= 0 or start >= end:
            return b""
        file.seek(start)
        return file.read(min(length, MAX_RANGE))

    return _run(reader, read)


def charged(reader: Reader[T], budget: Budget) -> Reader[T]:
    """Charge a budget for the ranges that a reader requests, and for their bytes.

    :raises ValueError: the budget is used up.
    """
    wanted = next(reader)
    try:
        while True:
            # Only the names of linked libraries take more than two ranges at once.
            budget.names -= max(0, len(wanted) - 2)
            data: tuple[bytes, ...] = ()
            if budget.names > 0:
                data = yield wanted
            budget.tables -= sum(map(len, data))
            if len(data) > 2:
                lengths = (len(item.partition(b"\0")[0]) for item in data)
                budget.names -= sum(length // LONG for length in lengths)
            if budget.names <= 0 or budget.tables <= 0:
                raise ValueError("its tables are not read: there are too many")
            wanted = reader.send(data)
    except StopIteration as stop:
        result: T = stop.value
        return result


class RangeFeeder(Generic[T]):
    """A feeder that runs a reader on a stream; see the example of the module.

    The reader is `done` when it has returned its `result` or failed with an `error`.

    :param size: the length of the stream in bytes.
    :param head: the number of bytes to keep from the start.
    :param tail: the number of bytes to keep from the end.
    """

    def __init__(
        self,
        reader: Reader[T],
        size: int,
        *,
        head: int = HEAD,
        tail: int = TAIL,
    ) -> None:
        self._reader = reader
        self._size = size
        self._head_size = head
        self._tail_size = tail
        self._head = b""
        self._tail: deque[tuple[int, bytes]] = deque()
        self._position = 0
        # The requested ranges, the bytes of each complete range, and the partial bytes
        # of each open range (the key is the index of the range).
        self._wanted: list[Range] = []
        self._complete: list[bytes] = []
        self._open: dict[int, bytearray] = {}
        self._next = 0  # the start of the first open range
        self.done = False
        self.result: T | None = None
        self.error: ValueError | None = None
        self._is_started = False

    @property
    def end(self) -> int:
        """The offset at which the last open range ends; 0 if no range is open."""
        return max(
            (self._wanted[i][0] + self._wanted[i][1] for i in self._open), default=0
        )

    def restart(self) -> None:
        """Prepare for the stream to be fed from its start again."""
        self._position = 0
        self._tail.clear()
        for index in self._open:
            self._open[index] = bytearray()

    def feed(self, data: bytes) -> None:
        """Process the next piece of the stream."""
        if self.done:
            return
        if not self._is_started:
            self._is_started = True
            if len(data) == self._size:  # the whole stream came in one piece
                try:
                    self.result = read_all(self._reader, data)
                except ValueError as error:
                    self.error = error
                self.done = True
                return
            self._advance(None)
        if self._position < self._head_size and len(self._head) == self._position:
            self._head += data[: self._head_size - self._position]
        self._tail.append((self._position, data))
        self._position += len(data)
        # Drop bytes far before the next range, so the memory of a piece is reused while
        # it is in the CPU cache.
        first = max(self._position, self._next) - self._tail_size
        first = min(first, self._position)
        while self._tail[0][0] + len(self._tail[0][1]) < first:
            self._tail.popleft()
        self._fill(data, self._position - len(data))
        while not self._open and not self.done:
            self._advance(tuple(self._complete))
            # The new ranges may have passed already: search the bytes that were kept.
            self._fill(self._head, 0)
            for start, piece in self._tail:
                self._fill(piece, start)

    def finish(self) -> None:
        """End the stream: the reader gets the partial bytes, then empty bytes."""
        if not self._is_started:
            self._is_started = True
            self._advance(None)
        while not self.done:
            for index, buffer in self._open.items():
                self._complete[index] = bytes(buffer)
            self._advance(tuple(self._complete))

    def _fill(self, data: bytes, start: int) -> None:
        """Copy the bytes of open ranges from ``data``, which begins at ``start``."""
        for index, buffer in list(self._open.items()):
            offset, length = self._wanted[index]
            at = offset + len(buffer) - start
            if 0 <= at < len(data):
                buffer.extend(data[at : at + length - len(buffer)])
            if len(buffer) == length:
                self._complete[index] = bytes(buffer)
                del self._open[index]

    def _advance(self, sent: tuple[bytes, ...] | None) -> None:
        """Run the reader until its next request, or until it returns."""
        try:
            wanted = next(self._reader) if sent is None else self._reader.send(sent)
        except StopIteration as stop:
            self.done, self.result = True, stop.value
            wanted = ()
        except ValueError as error:
            self.done, self.error = True, error
            wanted = ()
        # Offsets and lengths come from the file and may be wrong: clip ranges to the
        # file, and limit the memory of a request.
        self._wanted = [
            (start, max(0, min(length, self._size - start, MAX_RANGE)))
            for start, length in wanted
        ]
        self._complete = [b""] * len(wanted)
        self._open = {
            index: bytearray()
            for index, (_, length) in enumerate(self._wanted)
            if length
        }
        starts = (self._wanted[index][0] for index in self._open)
        self._next = min(starts, default=0)
