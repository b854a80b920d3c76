"""Resolve the variant markers of a wheel while streaming the wheel.

Only METADATA and RECORD change; every other member is copied byte for byte.
`plan_rewrite` reads these two files and the central directory (the list of members),
and plans the parts of the new wheel. `Rewriting` then has only one chunk of the stream
in memory. For a wheel with four members, the plan is::

    copy 0-40960         local header and data of demo/_C.so
    write 1204 bytes     local header and data of METADATA
    copy 42170-42460     local header and data of WHEEL
    write 388 bytes      local header and data of RECORD
    write 260 bytes      the central directory, with the new offsets
"""

from __future__ import annotations

import base64
import hashlib
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import IO

from nvidia_variant_provider.errors import InputError

from ..metadata.requirements import SelectedVariant, evaluate_requirement
from .archive import only, open_wheel, read_dist_info
from .variant_json import MAX_LINES

_REQUIRES = re.compile(rb"Requires-Dist[ \t]*:", re.IGNORECASE)
_FOLD = re.compile(rb"\r?\n[ \t]+")
_FIELD = re.compile(rb"(?<=\n)(?![ \t])")
_BLANK = re.compile(rb"^\r*(?:\n|\Z)", re.MULTILINE)

_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_LOCATOR = struct.Struct("<4sIQI")
_IN_ZIP64 = 0xFFFFFFFF
_ZIP64 = 1
_DESCRIPTOR = 0x8
_MAX_LIST = 8 * 1024 * 1024
_MOST_MARKED = 100_000
"""The maximum length of all requirements with variant markers in characters, which take
150 times their size in memory while they are evaluated. A wheel has about twenty, of
200 characters."""

_MOST_MEMBERS, _MOST_LINES = 20_000, 50_000
"""The maximum numbers of members of a rewritten wheel, and of ends of lines in RECORD.
The list of members takes 20 MB while the server sends METADATA and RECORD. The largest
known wheels have 16,000."""

_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
"""The characters at which `str.splitlines` ends a line, as when pip reads RECORD."""


@dataclass(frozen=True, slots=True)
class Copy:
    """The bytes of the original from ``start`` up to, but not including, ``end``."""

    start: int
    end: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RewritePlan:
    """The parts of a rewritten wheel.

    :param parts: the parts in the same order as in the original.
    :param size: the size of the new wheel in bytes.
    :param original: the size of the original in bytes.
    :param metadata: the METADATA of the new wheel.
    """

    parts: tuple[Copy | bytes, ...]
    size: int
    original: int
    metadata: bytes

    @property
    def unchanged(self) -> int:
        """The number of bytes at the start of the wheel that do not change."""
        end = 0
        for part in self.parts:
            if not isinstance(part, Copy) or part.start != end:
                break
            end = part.end
        return end


def plan_rewrite(
    file: IO[bytes], evaluate: Callable[[bytes], bytes]
) -> RewritePlan | None:
    """Plan the rewrite of a wheel whose METADATA is transformed by ``evaluate``.

    :param file: the wheel; only its list of members, METADATA and RECORD are read.
    :returns: ``None`` if METADATA does not change.
    :raises InputError: the archive cannot be read, or its layout cannot be rewritten.
    """
    with open_wheel(file, only("METADATA")) as archive:
        metadata = read_dist_info(archive, "METADATA") or b""
    evaluated = evaluate(metadata)
    if evaluated == metadata:
        return None
    with open_wheel(file, _in_order) as archive:
        infos, start = archive.infolist(), archive.start_dir
        record = read_dist_info(archive, "RECORD")
        path = _dist_info_path(infos, "METADATA")
        changed = {path: evaluated}
        if record is not None:
            new_record = _update_record(record, path, evaluated)
            changed[_dist_info_path(infos, "RECORD")] = new_record
        file.seek(start)
        listed = file.read(_MAX_LIST + 1)
        if len(listed) > _MAX_LIST:
            raise _refused("its list of members is too long")
        entries, tail = _parse_list(listed)
        if {entry.offset for entry in entries} != {i.header_offset for i in infos}:
            raise _refused("something stands before its first member")
        parts, offsets, sizes = _plan_members(file, infos, start, changed)
        position = sum(map(_length, parts))
        new_list = b"".join(
            entry.moved(offsets[entry.offset], sizes.get(entry.offset))
            for entry in entries
        )
        # If possible, pad the new wheel to the length of the original, so a server can
        # send the length before reading METADATA.
        room = start + len(listed) - position - len(new_list) - len(tail)
        end = _moved_end(tail, position, len(new_list), room)
    parts.append(new_list + end)
    return RewritePlan(
        parts=tuple(parts),
        size=position + len(new_list) + len(end),
        original=start + len(listed),
        metadata=evaluated,
    )


class Rewriting:
    """A builder of the new wheel, which receives the original in chunks.

    Pass every chunk of the original to ``feed``. ``finish`` returns the end of the new
    wheel. Verify the hash of the original before sending this end: installers reject a
    wheel without its end.
    """

    def __init__(self, plan: RewritePlan) -> None:
        self._plan = plan
        self._position = 0
        self._next = 0

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Yield the bytes that the next chunk of the original adds to the new wheel."""
        start, self._position = self._position, self._position + len(piece)
        parts = self._plan.parts
        while self._next < len(parts) - 1:
            part = parts[self._next]
            if isinstance(part, bytes):
                yield part
            else:
                if part.start < self._position and part.end > start:
                    yield piece[max(0, part.start - start) : part.end - start]
                if part.end > self._position:
                    return
            self._next += 1

    def finish(self) -> bytes:
        """Return the end of the new wheel.

        :raises InputError: the length of the original differs from the plan.
        """
        if self._position != self._plan.original:
            raise _refused(f"it has {self._position} bytes, not {self._plan.original}")
        # The central directory is the last part: `feed` has yielded all other parts.
        last = self._plan.parts[-1]
        return last if isinstance(last, bytes) else b""


def _in_order(members: list[zipfile.ZipInfo]) -> list[zipfile.ZipInfo]:
    if len(members) > _MOST_MEMBERS:
        raise _refused(f"it has more than {_MOST_MEMBERS:,} files")
    return sorted(members, key=lambda info: info.header_offset)


def _refused(message: str) -> InputError:
    return InputError(
        f"the wheel cannot be rewritten: {message}", hint="build the wheel again"
    )


def _length(part: Copy | bytes) -> int:
    return part.end - part.start if isinstance(part, Copy) else len(part)


def _dist_info_path(infos: Iterable[zipfile.ZipInfo], name: str) -> str:
    # The file exists, because `read_dist_info` has returned its content.
    return next(
        info.filename
        for info in infos
        if info.filename[1:].endswith(f".dist-info/{name}")
        and info.filename.count("/") == 1
    )


def _update_record(record: bytes, path: str, content: bytes) -> bytes:
    """Return RECORD with the hash and the size of one file replaced."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
    row = f"sha256={digest.decode()},{len(content)}"
    text = record.decode("utf-8", "surrogateescape")
    if sum(map(text.count, _ENDS)) > _MOST_LINES:
        raise _refused(f"its RECORD has over {_MOST_LINES:,} lines")
    lines, starts = text.splitlines(keepends=True), (f"{path},", f'"{path}",')
    for number, line in enumerate(lines):
        if line.startswith(starts):
            name = line[: line.index(",", len(path))]
            end = line[len(line.rstrip("\r\n")) :]
            lines[number] = f"{name},{row}{end}"
    return "".join(lines).encode("utf-8", "surrogateescape")


@dataclass(frozen=True, slots=True)
class _Sizes:
    """The checksum and the sizes of a replaced member."""

    crc: int
    packed: int
    size: int


@dataclass(frozen=True, slots=True)
class _Entry:
    """A record in the original's central directory.

    :param place: the position of the offset in ``raw``.
    :param wide: whether the offset has eight bytes (ZIP64).
    """

    raw: bytes
    offset: int
    place: int
    wide: bool

    def moved(self, offset: int, sizes: _Sizes | None) -> bytes:
        """Return the record with a new offset, and with new sizes if given."""
        if sizes is not None:
            return self._replaced(offset, sizes)
        if not self.wide and offset >= _IN_ZIP64:
            raise _refused("a member would begin beyond 4 GiB")
        packed = struct.pack("<Q" if self.wide else "<I", offset)
        return self.raw[: self.place] + packed + self.raw[self.place + len(packed) :]

    def _replaced(self, offset: int, sizes: _Sizes) -> bytes:
        if offset >= _IN_ZIP64:
            raise _refused("its METADATA lies beyond 4 GiB")
        fields = list(_CENTRAL.unpack_from(self.raw))
        name, extra, comment = fields[10:13]
        start = _CENTRAL.size
        kept = b"".join(
            block
            for kind, block in _extras(self.raw[start + name : start + name + extra])
            if kind != _ZIP64
        )
        fields[3] &= ~_DESCRIPTOR
        fields[7:10] = sizes.crc, sizes.packed, sizes.size
        fields[11] = len(kept)
        fields[16] = offset
        rest = self.raw[start + name + extra :][:comment]
        return _CENTRAL.pack(*fields) + self.raw[start : start + name] + kept + rest


def _extras(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= 4:
        kind, length = struct.unpack_from("<2H", data)
        yield kind, data[: 4 + length]
        data = data[4 + length :]


def _parse_list(data: bytes) -> tuple[list[_Entry], bytes]:
    """Return the records of a central directory, and the bytes after the records."""
    entries = []
    position = 0
    while data[position : position + 4] == b"PK\x01\x02":
        fields = _CENTRAL.unpack_from(data, position)
        name, extra, comment = fields[10:13]
        end = position + _CENTRAL.size + name + extra + comment
        raw = data[position:end]
        entries.append(_entry(raw, fields, _CENTRAL.size + name, extra))
        position = end
    return entries, data[position:]


def _entry(raw: bytes, fields: tuple[int, ...], start: int, extra: int) -> _Entry:
    offset: int = fields[16]
    if offset != _IN_ZIP64:
        return _Entry(raw, offset, _CENTRAL.size - 4, wide=False)
    place = start
    for kind, block in _extras(raw[start : start + extra]):
        if kind == _ZIP64:
            # APPNOTE 4.5.3: the size, the compressed size and the offset have this
            # order. Each is present only if the record has the maximum value for it.
            before = 8 * sum(fields[index] == _IN_ZIP64 for index in (9, 8))
            place += 4 + before
            (offset,) = struct.unpack_from("<Q", block, 4 + before)
            return _Entry(raw, offset, place, wide=True)
        place += len(block)
    raise _refused("a record of its list of members is not complete")


def _plan_members(
    file: IO[bytes],
    infos: list[zipfile.ZipInfo],
    start: int,
    changed: dict[str, bytes],
) -> tuple[list[Copy | bytes], dict[int, int], dict[int, _Sizes]]:
    """Plan the members of the new wheel.

    :returns: the parts for the members, ``{old offset: new offset}`` and, for replaced
        members, ``{old offset: new sizes}``.
    """
    parts: list[Copy | bytes] = []
    offsets: dict[int, int] = {}
    sizes: dict[int, _Sizes] = {}
    position = 0
    ends = [*(info.header_offset for info in infos[1:]), start]
    for info, end in zip(infos, ends, strict=True):
        if not 0 <= info.header_offset + _LOCAL.size + info.compress_size <= end:
            raise _refused("its members overlap")
        offsets[info.header_offset] = position
        content = changed.get(info.filename)
        part: Copy | bytes
        if content is None:
            part = Copy(info.header_offset, end)
        else:
            # The new part also replaces the data descriptor after the content, if any.
            part, sizes[info.header_offset] = _new_member(file, info, content)
        parts.append(part)
        position += _length(part)
    return parts, offsets, sizes


def _new_member(
    file: IO[bytes], info: zipfile.ZipInfo, content: bytes
) -> tuple[bytes, _Sizes]:
    file.seek(info.header_offset)
    header = file.read(_LOCAL.size)
    fields = list(_LOCAL.unpack(header))
    name = file.read(fields[9])
    packed = content
    if info.compress_type == zipfile.ZIP_DEFLATED:
        deflate = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
        packed = deflate.compress(content) + deflate.flush()
    sizes = _Sizes(zlib.crc32(content), len(packed), len(content))
    fields[2] &= ~_DESCRIPTOR
    fields[6:9] = sizes.crc, sizes.packed, sizes.size
    fields[10] = 0  # drop extra fields: they hold sizes and optional times
    return _LOCAL.pack(*fields) + name + packed, sizes


def _moved_end(tail: bytes, offset: int, size: int, room: int) -> bytes:
    """Return the end records of an archive whose list of members has moved.

    :param room: the number of spaces to add to the archive's comment, if possible.
    """
    end = bytearray(tail)
    position = 0
    if end.startswith(b"PK\x06\x06"):
        struct.pack_into("<2Q", end, 40, size, offset)
        (length,) = struct.unpack_from("<Q", end, 4)
        position = 12 + length
        struct.pack_into("<Q", end, position + 8, offset + size)
        position += _LOCATOR.size
    if end[position : position + 4] != b"PK\x05\x06":
        raise _refused("its list of members does not end as it should")
    old_size, old_offset = struct.unpack_from("<2I", end, position + 12)
    if old_size != _IN_ZIP64:
        struct.pack_into("<I", end, position + 12, size)
    if old_offset != _IN_ZIP64:
        if offset >= _IN_ZIP64:
            raise _refused("its list of members would begin beyond 4 GiB")
        struct.pack_into("<I", end, position + 16, offset)
    comment = len(end) - position - 22
    if 0 < room <= 0xFFFF - comment:
        struct.pack_into("<H", end, position + 20, comment + room)
        end += b" " * room
    return bytes(end)


def evaluate_core_metadata(data: bytes, variant: SelectedVariant) -> bytes:
    """Resolve the variant markers of each ``Requires-Dist`` field.

    All other bytes stay the same, including the description.

    :param data: the bytes of METADATA.
    :raises InputError: a variant marker is used in a way that PEP 825 does not define.
    """
    return b"".join(_settled_fields(data, variant))


def _settled_fields(data: bytes, variant: SelectedVariant) -> Iterator[bytes]:
    fields, description = _split_fields(data)
    left = _MOST_MARKED
    for field in fields:
        match = _REQUIRES.match(field)
        if match is None:
            yield field
            continue
        value = field[match.end() :]
        folded = _FOLD.sub(b" ", value.rstrip(b"\r\n"))
        text = folded.decode("utf-8", "surrogateescape").strip()
        left -= len(text) if "variant_" in text else 0
        if left < 0:
            message = f"over {_MOST_MARKED:,} characters of requirements have markers"
            raise InputError(message, hint="report it to the index")
        settled = evaluate_requirement(text, variant)
        if settled == text:
            yield field
        elif settled is not None:
            end = value[len(value.rstrip(b"\r\n")) :]
            encoded = settled.encode("utf-8", "surrogateescape")
            yield match.group() + b" " + encoded + end
    yield description


def _split_fields(data: bytes) -> tuple[list[bytes], bytes]:
    """Return the header fields with their continuation lines, and the other bytes."""
    end = _BLANK.search(data)
    position = end.start() if end else len(data)
    if max(data.count(sign, 0, position) for sign in (b"\n", b"\r")) > MAX_LINES:
        message = f"it has over {MAX_LINES:,} lines before its description"
        raise InputError(message, hint="report it to the index")
    return _FIELD.split(data[:position]), data[position:]
