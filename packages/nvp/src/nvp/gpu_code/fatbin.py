"""Find fatbin containers in a stream of bytes, and read their entries.

NVIDIA does not fully document the format; this module follows the output of the tools
of CUDA 11.8 to 13.5. All numbers are little-endian, whatever the host.

A container is a header of 16 bytes (magic, version, size of the header, size of the
rest) and a chain of entries. An entry is a header of 64 bytes or more and a payload.
Most payloads are skipped. Some containers are outside the sections that ``cuobjdump``
searches. Therefore the whole file is searched, and a valid chain of entries
distinguishes a container from similar bytes.
"""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from .compression import LZ4, NONE, ZSTD, Budget, decompress
from .elf import has_kernels, names_kernels

MAGIC = b"\x50\xed\x55\xba"
_RARE = 1
"""The index of 0xed in the magic: the byte that is the rarest in machine code."""

_PER_TRY = 16 * 1024
"""The number of bytes in a piece for each allowed search for the rarest byte. This
search is fastest in texts and zeros. If the byte is more frequent, a regular
expression is faster."""

_SEARCH = re.compile(re.escape(MAGIC)).search
"""In machine code, a regular expression is twice as fast as `bytes.find`, except for a
single byte, for which `bytes.find` uses ``memchr``."""

CONTAINER = struct.Struct("<4sHHQ")
"""Magic, version, size of this header, and size of the rest."""

_VERSION = 1

# The header of an entry: kind, version, size of the header, size of the payload,
# compressed size, offset of the extension, minor, major, arch, identifier (offset,
# length), flags, (unknown), decompressed size
ENTRY = struct.Struct("<HHIQIIHHIIIQQQ")
_ENTRY_VERSION = 0x0101
PTX, CUBIN, LTO_IR, GROUP = 1, 2, 8, 0x100

_LZ4, _ZSTD = 0x2000, 0x8000
_ARCH_SPECIFIC, _FAMILY_SPECIFIC = 0x100000, 0x200000

SMALL = 16 * 1024
"""The largest decompressed size of cubins to search for kernels. Cubins without a
kernel have 616 to 6,752 bytes. The limit allows longer names and more sections; most
cubins with kernels are larger and are not decompressed."""

_NAMES = 2048
"""The number of bytes of a cubin to decompress first, for the names of its sections."""

_MAX_HEADER = 64 * 1024
"""The longest header of an entry, in bytes. The longest known one has 120 bytes. The
header of a group has 64 bytes, and more for each entry of the group."""

_MAX_GROUP = 1024 * 1024
"""The largest decompressed size of groups to search for empty cubins."""

_MAX_ARCH, _MAX_VERSION = 9999, 999

_NEW_CUBIN = (1, 8)
"""The format version of all cubins from CUDA 13, and of cubins for Blackwell GPUs."""
_BLACKWELL = 100
_WITH_ZSTD = 12, 0
"""The oldest possible CUDA with Zstandard: CUDA 11 never uses it, 12.8 and newer do."""
_WITH_GROUPS = 13, 4

_TOO_MANY = "not everything was read: there are too many containers of GPU code"
_TOO_DEAR = "not everything was read: there is too much GPU code to decompress"


class Entry(NamedTuple):
    """An entry of a container: one piece of GPU code.

    :param kind: `PTX`, `CUBIN`, `LTO_IR` or an unknown number.
    :param target: number and letter of the GPU, such as ``90``, ``90a`` or ``100f``.
    :param isa: the version of the PTX language, such as ``8.7``; empty for other kinds.
    :param compression: ``none``, ``lz4`` or ``zstd``.
    :param stub: whether it is a cubin without a kernel; ``None`` if unknown.
    :param toolkit: the first CUDA version with this form of entry; ``None`` if unknown.
    """

    kind: int
    target: str
    isa: str
    compression: str
    stub: bool | None
    toolkit: tuple[int, int] | None = None


class Scanner:
    """A scanner that finds containers in a file, which it receives in pieces.

    Memory does not grow with the input: the scanner keeps only headers that span two
    pieces, and small payloads.

    :param size: the length of the file in bytes.
    :param budget: the budget to charge; exceeding it is a defect.
    :param on_container: called with the offset of each container.
    :param on_entry: called with each entry, including those before a broken one.
    :param on_defect: called with the offset of a defect, and a clause about the defect.
    :param texts: texts to search for outside of containers, for `texts_found`.
    """

    def __init__(
        self,
        size: int,
        *,
        texts: Sequence[bytes] = (),
        budget: Budget,
        on_container: Callable[[int], None],
        on_entry: Callable[[Entry], None],
        on_defect: Callable[[int, str], None],
    ) -> None:
        self._size = size
        self._budget = budget
        self._on_container = on_container
        self._on_entry = on_entry
        self._on_defect = on_defect
        self._rest = b""
        # All offsets are relative to the start of the file.
        self._base = 0  # the offset of the first byte of _rest
        self._next = 0  # the offset to read next
        self._start = 0  # the start of the current container
        self._end: int | None = None  # its end; None outside of containers
        self._tries = 0  # the remaining searches for the rarest byte of the magic
        self._texts = list(texts)
        self._longest = max(map(len, texts), default=1) - 1
        self._before = b""  # the last bytes of the previous search for texts
        self.texts_found: list[bytes] = []

    @property
    def position(self) -> int:
        """The number of bytes that have been fed or skipped."""
        return self._base + len(self._rest)

    @property
    def wanted(self) -> int:
        """The offset of the next byte to read; earlier bytes may be skipped."""
        if self._budget.steps <= 0:
            return self._size
        return min(max(self._next, self.position), self._size)

    @property
    def is_searching(self) -> bool:
        """Whether the scanner is looking for the start of a container."""
        return self._end is None

    def leave_out(self, offset: int) -> None:
        """Skip to an offset after `position`; allowed only if `is_searching`."""
        self._rest, self._base, self._next = b"", offset, offset
        self._before = b""

    def skip(self, offset: int) -> None:
        """Skip to an offset that is at most `wanted`."""
        if offset > self.position:
            self._rest, self._base = b"", offset

    def feed(self, data: bytes) -> None:
        """Scan the next piece of the file."""
        end = self.position + len(data)
        if self._next > end or self._budget.steps <= 0:  # the whole piece is skipped
            self._rest, self._base = b"", end
            return
        self._tries = len(data) // _PER_TRY
        data = self._rest + data if self._rest else data
        while (step := self._advance(data)) is not None:
            self._next = step
            self._budget.steps -= 1
            if self._budget.steps <= 0:
                self._tell(step, _TOO_MANY)
                self._end = None
                break
        self._rest = data[max(0, self._next - self._base) :]
        self._base = end - len(self._rest)

    def finish(self) -> None:
        """Report a container that the end of the file cuts off."""
        # If the last payload was skipped up to the end of the file, the end of its
        # container has not been processed yet.
        self.feed(b"")
        if self._end is not None and self.position < self._end:
            message = "a container of GPU code is cut off by the end of the file"
            self._on_defect(self._start, message)
            self._end = None

    def _advance(self, data: bytes) -> int | None:
        """Take one step; return the next offset, or ``None`` to wait for data."""
        at = self._next - self._base
        if at > len(data):
            return None
        if self._end is None:
            return self._find(data, at)
        if self._next >= self._end:
            self._end = None
            return self._next
        return self._take(data, at, self._end)

    def _find(self, data: bytes, at: int) -> int | None:
        """Search for a container; return the next offset, or ``None`` to wait."""
        place = self._find_magic(data, at)
        if self._texts:
            self._find_texts(data, at, len(data) if place is None else place)
        if place is None:
            # Keep the last bytes of the piece if a magic may begin with them.
            kept = len(data) - next(
                (n for n in (3, 2, 1) if data.endswith(MAGIC[:n])), 0
            )
            kept = max(at, kept)
            self._next = self._base + kept
            self._before = data[max(at, kept - self._longest) : kept]
            return None
        if len(data) - place < CONTAINER.size:
            self._next = self._base + place
            return None
        _, version, header, size = CONTAINER.unpack_from(data, place)
        start = self._base + place
        body = start + CONTAINER.size
        if version != _VERSION or header != CONTAINER.size:
            return start + 1
        if size > self._size - body:
            # If an entry follows, the end of the file cuts off a container; otherwise,
            # the bytes only look like a container.
            if len(data) - place < CONTAINER.size + 4 and body + 4 <= self._size:
                self._next = start
                return None
            mark = data[place + CONTAINER.size + 2 : place + CONTAINER.size + 4]
            if int.from_bytes(mark, "little") != _ENTRY_VERSION:
                return start + 1
        self._on_container(start)
        self._start, self._end = start, body + size
        return body

    def _find_texts(self, data: bytes, start: int, end: int) -> None:
        """Search a range for the texts, which may also begin in the previous piece."""
        joint = self._before + data[start : min(end, start + self._longest)]
        self._before = b""
        for text in self._texts[:]:
            if data.find(text, start, end) >= 0 or text in joint:
                self._texts.remove(text)
                self.texts_found.append(text)

    def _find_magic(self, data: bytes, at: int) -> int | None:
        """Return the offset of the first magic at or after ``at``."""
        if data.startswith(MAGIC, at):  # most containers directly follow the last one
            return at
        find, rare = data.find, MAGIC[_RARE : _RARE + 1]
        place = at + _RARE
        while self._tries > 0:
            self._tries -= 1
            place = find(rare, place)
            if place < 0:
                return None
            if data.startswith(MAGIC, place - _RARE):
                return place - _RARE
            place += 1
        match = _SEARCH(data, place - _RARE)
        return match.start() if match else None

    def _take(self, data: bytes, at: int, end: int) -> int | None:
        """Read the entry at ``at``; return the offset after it, or ``None`` to wait."""
        left = end - self._next
        if left < ENTRY.size:
            return self._broken("its last bytes are too few for an entry")
        if len(data) - at < ENTRY.size:
            return None
        fields: tuple[int, ...] = ENTRY.unpack_from(data, at)
        kind, _, header, payload, packed = fields[:5]
        size = fields[13] or payload
        if not ENTRY.size <= header <= _MAX_HEADER or header + payload > left:
            return self._broken("an entry does not fit into it")
        if kind == GROUP:
            wanted = header + (payload if size <= _MAX_GROUP >= payload else 0)
        elif kind == CUBIN and size <= SMALL >= payload:
            wanted = header + payload
        else:
            self._report(fields, b"", size)
            return self._next + header + payload
        # If the file ends within the entry, read only its parts before the end: the
        # header without the payload, or the header without the list of a group.
        limits = (wanted, header, ENTRY.size)
        wanted = next((n for n in limits if self._next + n <= self._size), 0)
        if len(data) - at < wanted:
            return None
        body = data[at + header : at + wanted][: packed or None]
        if kind == GROUP:
            self._take_group(data[at : at + min(header, wanted)], fields, body)
        else:
            self._report(fields, body, size)
        return self._next + header + payload

    def _take_group(
        self, header: bytes, group: tuple[int, ...], payload: bytes
    ) -> None:
        """Read the entries of a group; the group's header contains their headers."""
        stream: bytes | None = None
        try:
            for fields in group_entries(header):
                self._budget.steps -= 1
                offset, size = fields[2:4]
                body = b""
                if fields[0] == CUBIN and size <= SMALL:
                    # Decompress the payload only if an entry needs it.
                    if stream is None:
                        stream = self._unpacked(group, payload)
                    body = stream[offset : offset + size]
                self._report(fields, body, size, group)
        except ValueError as error:
            self._on_defect(self._next, str(error))

    def _unpacked(self, group: tuple[int, ...], payload: bytes) -> bytes:
        if not payload:
            return b""
        if not self._budget.may_unpack:
            self._tell(self._next, _TOO_DEAR)
            return b""
        form = compression_of(group[11])
        return decompress(form, payload, _MAX_GROUP, self._budget) or b""

    def _report(
        self,
        fields: tuple[int, ...],
        body: bytes,
        size: int,
        group: tuple[int, ...] | None = None,
    ) -> None:
        kind, minor, major, arch = fields[0], *fields[6:9]
        if arch > _MAX_ARCH or major > _MAX_VERSION or minor > _MAX_VERSION:
            self._on_defect(self._next, "an entry is for a GPU that cannot exist")
            return
        packing = (group or fields)[11]
        stub: bool | None = False
        if kind == CUBIN and size <= SMALL:
            stored = NONE if group else compression_of(packing)
            stub = self._is_stub(stored, body) if body else None
        gpu, version = (arch, fields[11]), (major, minor)
        entry = _entry(kind, gpu, version, packing, stub)
        if group and kind == CUBIN:
            entry = entry._replace(toolkit=_WITH_GROUPS)
        self._on_entry(entry)

    def _is_stub(self, compression: str, body: bytes) -> bool | None:
        """Return whether a cubin has no kernel; ``None`` if it cannot be decoded."""
        if not self._budget.may_unpack:
            self._tell(self._next, _TOO_DEAR)
            return None
        self._budget.checked -= 1
        # Try the beginning first: most cubins name kernels there, and LZ4 is slow.
        head = decompress(compression, body, _NAMES, self._budget)
        if head is None:
            return None
        if names_kernels(head):
            return False
        plain = decompress(compression, body, SMALL, self._budget)
        return None if plain is None else not has_kernels(plain)

    def _tell(self, place: int, message: str) -> None:
        if self._budget.is_news(message):
            self._on_defect(place, message)

    def _broken(self, why: str) -> int:
        """Report a damaged container; return the offset to resume the search at."""
        self._on_defect(self._next, f"a container of GPU code is damaged: {why}")
        self._end = None
        return self._next + (self._next == self._start)


def group_entries(header: bytes) -> Iterator[tuple[int, ...]]:
    """Yield the fields of each entry of a group.

    :param header: the header of the group, with the headers of its entries.
    :raises ValueError: the list of the entries is missing, or ends too early.
    """
    place = ENTRY.size
    if len(header) < place + 8:
        raise ValueError("a group has no list of its entries")
    count, length = struct.unpack_from("<II", header, place)
    end = min(place + length, len(header))
    place += 8
    for _ in range(count):
        if place + ENTRY.size > end:
            raise ValueError("the list of a group is cut off")
        fields: tuple[int, ...] = ENTRY.unpack_from(header, place)
        place += ENTRY.size
        if fields[5]:  # an extension follows: two numbers, a text and padding
            if place + 8 > end:
                raise ValueError("the list of a group is cut off")
            (text,) = struct.unpack_from("<I", header, place + 4)
            place += 8 + (text + 8 & ~7)
        yield fields


# Cache the result: a library can have thousands of entries, and most are equal.
@functools.lru_cache(maxsize=1024)
def _entry(
    kind: int,
    gpu: tuple[int, int],
    version: tuple[int, int],
    packing: int,
    stub: bool | None,
) -> Entry:
    """Return the entry with these fields.

    :param gpu: the number of the target, and the flags of the entry.
    :param version: the version of the PTX language, or of the format of a cubin.
    :param packing: the flags of the compression.
    """
    compression = compression_of(packing)
    toolkit = _WITH_ZSTD if compression == ZSTD else None
    if kind == CUBIN and version >= _NEW_CUBIN and gpu[0] < _BLACKWELL:
        toolkit = 13, 0
    return Entry(
        kind=kind,
        target=target_of(*gpu),
        isa=f"{version[0]}.{version[1]}" if kind == PTX else "",
        compression=compression,
        stub=stub,
        toolkit=toolkit,
    )


def target_of(arch: int, flags: int) -> str:
    """Return the target of an entry, such as ``90``, ``90a`` or ``100f``."""
    letter = "a" if flags & _ARCH_SPECIFIC else ""
    return f"{arch}{letter or ('f' if flags & _FAMILY_SPECIFIC else '')}"


def compression_of(flags: int) -> str:
    """Return the compression of an entry's payload."""
    if flags & _ZSTD:
        return ZSTD
    return LZ4 if flags & _LZ4 else NONE
