"""The members of wheels as streams, which are never completely in memory.

`zipfile` lists the members, and this module reads their data. It never inflates more
than one piece of a zip bomb at a time, and several threads can read members of one
archive. The package ``isal`` binds Intel's library of that name, which inflates two to
three times as fast as zlib; zlib is used if isal is not installed.
"""

from __future__ import annotations

import errno
import functools
import os
import struct
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import IO, TYPE_CHECKING

from nvidia_variant_provider.strict_json import open_regular

from ..wheels.archive import open_wheel
from .report import BrokenError, Defect

if TYPE_CHECKING:
    from types import ModuleType

_LOCAL = struct.Struct("<4sHHHHHIIIHH")
_SIGNATURE = b"PK\x03\x04"
_ENCRYPTED = 0x1
_UTF_8 = 0x800

MAX_TOTAL = 8 * 1024**3
"""The maximum total of the claimed sizes of members, in bytes; further members are not
read. The largest wheels have about five GiB."""

PACKED = 64 * 1024
"""The number of compressed bytes to read at once."""

PIECE = 256 * 1024
"""The number of bytes to inflate at once, small enough for the CPU cache."""

AHEAD = 8 * 1024 * 1024
"""The maximum number of bytes of a file to inflate before they are inspected."""

_DAMAGED = "it cannot be decompressed: its data is damaged"


class Source:
    """An archive, given as a path or an open file, that several threads may read."""

    def __init__(self, source: str | IO[bytes]) -> None:
        self._source = source
        self._own: IO[bytes] | None = None
        self._lock = threading.Lock()
        self._closed = False

    def read(self, offset: int, length: int) -> bytes:
        """Read at most ``length`` bytes from an offset, fewer at the end of the file.

        Threads take turns, which is cheap, because most time is spent on inflating.

        :raises OSError: the archive cannot be opened or read.
        """
        with self._lock:
            if self._closed:  # a thread that reads ahead has not stopped yet
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
            if not isinstance(self._source, str):
                file = self._source
            elif self._own is None:
                file = self._own = open_regular(self._source)
            else:
                file = self._own
            file.seek(offset)
            return file.read(length)

    def close(self) -> None:
        """Close the file if this object opened it."""
        with self._lock:
            self._closed = True
            if self._own is not None:
                self._own.close()


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """A file of an archive.

    :param name: the path of the file, with ``/`` between directories.
    :param raw_name: the expected name in the local header.
    :param size: the claimed size in bytes.
    :param offset: the offset of the local header.
    :param packed: the compressed size in bytes.
    :param method: the compression method, a constant of `zipfile`.
    :param crc: the claimed checksum.
    """

    name: str
    raw_name: bytes
    size: int
    offset: int
    packed: int
    method: int
    crc: int

    def pieces(self, source: Source) -> Iterator[bytes]:
        """Yield the content in pieces, and verify the checksum at the end.

        :raises BrokenError: the member is unreadable or invalid. If it is longer than
            claimed, only the claimed number of bytes is yielded.
        """
        try:
            data = self._data(source.read)
            if self.method == zipfile.ZIP_STORED:
                yield from self._checked(iter(partial(data, PIECE), b""))
            elif self.size <= PIECE and self.packed <= PACKED:
                # Extra header fields can leave data for a second read: join the reads.
                yield from self._short(b"".join(iter(partial(data, PACKED), b"")))
            else:
                yield from self._checked(_inflate(data))
        except OSError as error:
            message = f"cannot be read: {error.strerror or error}"
            raise BrokenError(message) from None

    def _short(self, packed: bytes) -> Iterator[bytes]:
        """Yield the content in one piece: a wheel can have 10,000 small members."""
        contents = _inflate_whole(packed, self.size)
        if contents is not None and _crc32(contents, 0) == self.crc:
            if contents:
                yield contents
            return
        # Inflate the content again, in pieces, to get the exact error.
        rest = iter([packed])
        yield from self._checked(_inflate(lambda _: next(rest, b"")))

    def _checked(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        crc = length = 0
        for piece in pieces:
            left = self.size - length
            length += len(piece)
            if length > self.size:
                if left:
                    yield piece[:left]
                message = f"it is longer than the {self.size} bytes that it claims"
                raise BrokenError(message)
            crc = _crc32(piece, crc)
            yield piece
        if length < self.size:
            message = f"it ends after {length} of the {self.size} bytes that it claims"
            raise BrokenError(message)
        if crc != self.crc:
            raise BrokenError("its checksum is wrong")

    def _data(self, read: Callable[[int, int], bytes]) -> Callable[[int], bytes]:
        """Return a function that reads at most a given number of compressed bytes."""
        # Read the data together with the header: a small member needs only one call.
        least = _LOCAL.size + len(self.raw_name)
        data = read(self.offset, least + min(PACKED, self.packed))
        if len(data) < _LOCAL.size or not data.startswith(_SIGNATURE):
            raise BrokenError("its local header is not where the archive's list says")
        lengths: tuple[int, int] = _LOCAL.unpack_from(data)[-2:]
        name, extra = lengths
        if data[_LOCAL.size : _LOCAL.size + name] != self.raw_name:
            raise BrokenError(
                "its local header has another name than the archive's list"
            )
        first = _LOCAL.size + name + extra
        start = self.offset + first
        end = start + self.packed
        rest = data[first : first + self.packed]

        def read_next(length: int) -> bytes:
            nonlocal start, rest
            if rest:
                data, rest = rest[:length], rest[length:]
            elif start < end:
                data = read(start, min(length, end - start))
            else:
                data = b""
            start += len(data)
            return data

        return read_next


class ReadAhead:
    """The pieces of a file, which a thread starts to read before they are needed.

    The first call returns these pieces; every further call reads the file again.

    :param pieces: a function that reads the file.
    """

    def __init__(self, pieces: Callable[[], Iterator[bytes]]) -> None:
        self._pieces = pieces
        self._queue: SimpleQueue[bytes | BaseException | None] = SimpleQueue()
        self._room = threading.Semaphore(AHEAD // PIECE)
        self._stopped = False
        self._thread: threading.Thread | None = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        end: BaseException | None = None
        try:
            for piece in self._pieces():
                self._room.acquire()
                if self._stopped:
                    break
                self._queue.put(piece)
        except BaseException as error:  # noqa: BLE001  # `_taken` raises it again
            end = error
        self._queue.put(end)

    def __call__(self) -> Iterator[bytes]:
        """Return an iterator over the pieces."""
        thread, self._thread = self._thread, None
        return self._pieces() if thread is None else self._taken()

    def _taken(self) -> Iterator[bytes]:
        while isinstance(piece := self._queue.get(), bytes):
            self._room.release()
            yield piece
        if piece is not None:
            raise piece

    def stop(self) -> None:
        """End the thread; the object must not be used afterwards."""
        self._stopped = True
        self._room.release()


def list_members(
    source: str | IO[bytes], look: Callable[[zipfile.ZipFile], object] | None = None
) -> tuple[list[Member], list[Defect]]:
    """Return the readable files of an archive, and the defects of the other files.

    :param look: called with the open archive, because opening it again would be slow.
    :raises InputError: the archive cannot be read.
    """
    with open_wheel(source) as archive:
        if look is not None:
            look(archive)
        infos = [info for info in archive.infolist() if not info.is_dir()]
        end = archive.start_dir
    del archive  # frees the two lists of all members that `zipfile` keeps
    infos.sort(key=lambda info: -info.header_offset)
    members, defects = [], []
    seen: set[str] = set()
    total = 0
    while infos:
        info = infos.pop()
        following = infos[-1].header_offset if infos else end
        name = info.orig_filename
        utf_8 = info.flag_bits & _UTF_8 or name.isascii()
        raw_name = name.encode("utf-8" if utf_8 else "cp437", "replace")
        least = info.header_offset + _LOCAL.size + len(raw_name) + info.compress_size
        overlaps = info.header_offset < 0 or least > following
        defect = _defect(info, overlaps=overlaps)
        total += info.file_size
        if defect is None and total > MAX_TOTAL:
            defect = (
                f"not read: the members claim more than {MAX_TOTAL >> 30} GiB in total"
            )
        if defect is not None:
            defects.append(Defect(path=info.filename, message=defect))
            continue
        if info.filename in seen:
            message = "several members of the archive have this name"
            defects.append(Defect(path=info.filename, message=message))
        seen.add(info.filename)
        members.append(
            Member(
                name=info.filename,
                raw_name=raw_name,
                size=info.file_size,
                offset=info.header_offset,
                packed=info.compress_size,
                method=info.compress_type,
                crc=info.CRC,
            )
        )
    return members, defects


def _defect(info: zipfile.ZipInfo, *, overlaps: bool) -> str | None:
    if info.flag_bits & _ENCRYPTED:
        return "not read: it is encrypted"
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return f"not read: wheels do not use compression method {info.compress_type}"
    if overlaps:
        return "not read: it overlaps another member of the archive"
    # Data that inflates to nothing could be endless.
    if info.compress_size > 2 * info.file_size + PACKED:
        return "not read: its data is longer than its content needs"
    return None


def _inflate(read: Callable[[int], bytes]) -> Iterator[bytes]:
    """Inflate a raw deflate stream, and yield the bytes in pieces.

    A truncated stream ends without an error.

    :param read: returns at most the given number of the next compressed bytes.
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


def _inflate_whole(packed: bytes, size: int) -> bytes | None:
    """Inflate ``packed`` in one step.

    :returns: ``None`` if the data is damaged, or its inflated size is not ``size``.
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


def _crc32(data: bytes, value: int) -> int:
    """Continue a checksum with isal if it is installed, otherwise with zlib."""
    checksum: int = _module().crc32(data, value)
    return checksum


def inflater_name() -> str:
    """Return the name of the inflating library, ``isal`` or ``zlib``."""
    return _module().__name__.partition(".")[0].removesuffix("_zlib")


@functools.cache
def _module() -> ModuleType:
    try:
        from isal import isal_zlib
    except ImportError:
        return zlib
    return isal_zlib
