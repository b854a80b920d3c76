"""The parts of an ELF file that loaders use: libraries, symbols, and data sections.

Installed libraries allow seeking, so only the tables are read: for the symbols of
torch's largest library, 7 MB of 520 MB.

Generic ABI: https://gabi.xinuos.com, chapters 4, 5 ("Symbol Table") and 8.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple

from .elf import (
    HEAD,
    MAGIC,
    MAX_NAME,
    PT_LOAD,
    Header,
    parse_header,
    read_sections,
    text_of,
)
from .ranges import Range, Reader, read_seekable

_PT_DYNAMIC = 2
_DT_NEEDED, _DT_STRTAB = 1, 5
_DT_SONAME, _DT_RPATH, _DT_RUNPATH, _DT_FLAGS_1 = 14, 15, 29, 0x6FFFFFFB
_DF_1_NODEFLIB = 0x800

MAX_DYNAMIC = 64 * 1024
MAX_NEEDED = 512
MAX_PATHS = 16 * 1024
"""The longest RPATH in bytes; the RPATH of torch has 200."""

_SHT_NULL, _SHT_NOBITS = 0, 8
_LINKER_TABLES = frozenset({2, 3, 4, 5, 6, 9, 11, 0x6FFFFFF6})
"""The types of sections for the linker: ``SHT_SYMTAB``, ``STRTAB``, ``RELA``, ``HASH``,
``DYNAMIC``, ``REL``, ``DYNSYM`` and ``GNU_HASH``."""

_SHF_ALLOC, _SHF_EXECINSTR = 0x2, 0x4

_WORTHWHILE = 64 * 1024
"""The shortest part to skip, in bytes: reading a shorter part is faster than the extra
calls."""

MAX_SYMBOLS = 1_000_000
"""The maximum number of symbols of a file; libtorch_cpu has 75,000."""

MAX_NAMES = 64 * 1024 * 1024
"""The maximum number of bytes in the table of names. It also limits all returned names
together, because symbols can share the bytes of a name."""

MAX_SYMBOL = 64 * 1024
"""The longest name in bytes. C++ templates have names of several thousand bytes."""

_AS_ENTRY = 64
"""The number of bytes of names that take as long to read as one entry."""

_AS_STORED = 16
"""The number of bytes of returned names that count as one entry, for their memory."""

_AT_ONCE = 1024
"""The number of symbols unpacked at a time."""

_ANY = re.compile(b"")
_SHN_UNDEF = 0
_STB_LOCAL, _STB_WEAK = 0, 2
_STV_INTERNAL, _STV_HIDDEN = 1, 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Dynamic:
    """The content of the dynamic section of an ELF file.

    :param machine: the processor.
    :param wide: whether the file has 64 bits.
    :param soname: the name under which other files are linked with the file, or empty.
    :param needed: the names of the libraries that the file is linked with.
    :param rpath: ``DT_RPATH``, or ``None``.
    :param runpath: ``DT_RUNPATH``, or ``None``.
    :param nodeflib: whether the file was linked with ``-z nodeflib``.
    """

    machine: str
    wide: bool = True
    soname: str = ""
    needed: tuple[str, ...] = ()
    rpath: str | None = None
    runpath: str | None = None
    nodeflib: bool = False


def read_needed() -> Reader[tuple[str, ...]]:
    """Read the names of the libraries that an ELF file is linked with.

    This reader is separate from `read_sections`, because the sections are at the other
    end of most files: in parallel, the two readers need only one pass over a stream.

    :raises ValueError: the file is not ELF, or the names cannot be read.
    """
    _, pairs, names = yield from _read_table()
    return (yield from _read_names(pairs, names))


def read_dynamic() -> Reader[Dynamic]:
    """Read the dynamic section of an ELF file, which a loader uses.

    :raises ValueError: the file is not ELF, or its tables cannot be read.
    """
    header, pairs, names = yield from _read_table()
    needed = yield from _read_names(pairs, names)
    single: dict[int, str] = {}
    for tag, value in pairs:
        if tag in (_DT_SONAME, _DT_RPATH, _DT_RUNPATH) and tag not in single:
            (text,) = yield ((_known(names) + value, MAX_PATHS),)
            single[tag] = text_of(text)
    flags = next((value for tag, value in pairs if tag == _DT_FLAGS_1), 0)
    return Dynamic(
        machine=header.machine_name,
        wide=header.layout.wide,
        soname=single.get(_DT_SONAME, ""),
        needed=needed,
        rpath=single.get(_DT_RPATH),
        runpath=single.get(_DT_RUNPATH),
        nodeflib=bool(flags & _DF_1_NODEFLIB),
    )


def _read_table() -> Reader[tuple[Header, list[tuple[int, int]], int | None]]:
    """Read the ELF header, dynamic section entries, and the offset of their strings.

    A file without a dynamic section, such as a static program, has no entries.
    """
    (head,) = yield (HEAD,)
    header = parse_header(head)
    (programs,) = yield (header.programs,)
    segments = list(header.layout.segments(programs, header.program_size))
    where = next(((s[1], s[3]) for s in segments if s[0] == _PT_DYNAMIC), (0, 0))
    (dynamic,) = yield ((where[0], min(where[1], MAX_DYNAMIC)),)
    pairs = list(header.layout.dynamic(dynamic))
    address = next((value for tag, value in pairs if tag == _DT_STRTAB), -1)
    return header, pairs, _in_file(segments, address)


def _known(names: int | None) -> int:
    if names is None:
        raise ValueError("the names of the libraries that it needs are not in the file")
    return names


def _read_names(
    pairs: list[tuple[int, int]], names: int | None
) -> Reader[tuple[str, ...]]:
    wanted = [value for tag, value in pairs if tag == _DT_NEEDED][:MAX_NEEDED]
    if not wanted:
        return ()
    start = _known(names)
    texts = yield tuple((start + value, MAX_NAME) for value in wanted)
    needed = tuple(filter(None, map(text_of, texts)))
    if len(needed) < len(wanted):
        raise ValueError("the names of the libraries that it needs are cut off")
    return needed


def _in_file(segments: list[tuple[int, int, int, int]], address: int) -> int | None:
    for kind, offset, start, size in segments:
        if kind == PT_LOAD and start <= address < start + size:
            return offset + address - start
    return None


def read_other_parts() -> Reader[tuple[Range, ...]]:
    """Locate the parts of an ELF file that cannot contain data for CUDA.

    GPU code is data whose address a program or the CUDA runtime passes to the driver.
    It is in a section that is loaded into memory (``SHF_ALLOC``), has no CPU
    instructions (``SHF_EXECINSTR``), and is not a table of the linker. In an
    environment with torch, all other sections have half of the bytes without GPU code.

    Bytes outside of all sections, or in any section that may contain GPU code, are not
    part of the result. A file without section headers has no such parts.

    :returns: the start and the end of each part, in ascending order.
    :raises ValueError: the file is not ELF.
    """
    (head,) = yield (HEAD,)
    header = parse_header(head)
    (table,) = yield (header.sections,)
    rows = header.layout.flags(table, header.section_size)
    return tuple(_parts(rows))


def _parts(rows: Iterable[tuple[int, int, int, int]]) -> Iterator[Range]:
    # Starts (-1) and ends (1) of sections, so a start sorts before an end at the same
    # offset.
    edges: list[tuple[int, int, bool]] = []
    for kind, flags, offset, size in rows:
        if kind not in (_SHT_NULL, _SHT_NOBITS) and size:
            counts = _counts(kind, flags)
            edges += ((offset, -1, counts), (offset + size, 1, counts))
    # The number of sections at the current offset, with and without possible GPU code.
    depth = {False: 0, True: 0}
    start: int | None = None
    for place, step, counts in sorted(edges):
        depth[counts] -= step
        is_other = depth[False] > 0 and depth[True] == 0
        if is_other and start is None:
            start = place
        elif not is_other and start is not None:
            if place - start >= _WORTHWHILE:
                yield start, place
            start = None


def _counts(kind: int, flags: int) -> bool:
    """Return whether a section may contain GPU code that a program uses."""
    is_data = flags & _SHF_ALLOC and not flags & _SHF_EXECINSTR
    return bool(is_data) and kind not in _LINKER_TABLES


class Symbol(NamedTuple):
    """A symbol that a file provides to other files or needs from them.

    Torch has 120,000 symbols, so the class is a named tuple, which is fast to create.

    :param is_defined: whether the file provides the symbol, instead of needing it.
    :param is_weak: whether the file can be loaded if no library has the symbol.
    """

    name: bytes
    is_defined: bool
    is_weak: bool = False


def read_symbols(
    file: BinaryIO,
    beginning: re.Pattern[bytes] = _ANY,
    *,
    take: Callable[[int], bool] = lambda _: True,
) -> Iterator[Symbol]:
    """Yield the symbols of an ELF file that other files can see, in file order.

    :param file: a seekable file; its position changes.
    :param beginning: matches the beginning of the wanted names, but no zero byte.
    :param take: called with the cost of the next read, in table entries; returns
        whether to go on.
    :raises ValueError: the file is not ELF, or its tables are cut off or too large.
    """
    sections = read_seekable(read_sections(), file).sections
    start, length = sections.place(b".dynsym")
    names_at, names_length = sections.place(b".dynstr")
    ident = _read(file, 0, len(MAGIC) + 2)
    order, wide = (">" if ident[5] == 2 else "<"), ident[4] == 2
    # The fields have a different order in 32-bit files.
    form = struct.Struct(order + ("IBBHQQ" if wide else "IIIBBH"))
    if length > MAX_SYMBOLS * form.size or names_length > MAX_NAMES:
        raise ValueError("its symbol table is too large")
    if not take(length // form.size + names_length // _AS_ENTRY):
        raise ValueError("its symbols are not read: there are too many")
    names = _read(file, names_at, names_length)
    left = MAX_NAMES
    match = beginning.match
    while length >= form.size:
        size = min(length - length % form.size, _AT_ONCE * form.size)
        for row in form.iter_unpack(_read(file, start, size)):
            at, info, other, section = row[:4] if wide else (row[0], *row[3:])
            if info >> 4 == _STB_LOCAL or other & 3 in (_STV_INTERNAL, _STV_HIDDEN):
                continue
            if match(names, at, at + MAX_SYMBOL) is None:
                continue
            end = names.find(b"\0", at, at + MAX_SYMBOL)
            if end < 0:
                raise ValueError("the name of a symbol is cut off")
            left -= end - at
            if left < 0 or not take(4 + (end - at) // _AS_STORED):
                raise ValueError("the names of its symbols are too long")
            yield Symbol(names[at:end], section != _SHN_UNDEF, info >> 4 == _STB_WEAK)
        start, length = start + size, length - size


def _read(file: BinaryIO, start: int, length: int) -> bytes:
    data = b""
    # Check the offset from the file first: seeking to an impossible offset fails.
    if length and start < file.seek(0, os.SEEK_END):
        file.seek(start)
        data = file.read(length)
    if len(data) < length:
        raise ValueError("its symbol table is cut off")
    return data
