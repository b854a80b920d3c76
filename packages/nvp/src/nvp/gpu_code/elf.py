"""Read the machine and the sections of ELF files, such as cubins, which are for GPUs.

pyelftools needs a seekable file. The members of a wheel are streams, and writing each
of them to a file would take memory or disk space. This reader needs only three tables;
`ranges` explains how a reader works on a stream.

Generic ABI: https://gabi.xinuos.com, chapters 2, 5 and 8. NVIDIA documents neither the
flags of a cubin's header nor its sections: this module was checked against the output
of ``cuobjdump`` and ``readelf`` for cubins of CUDA 11.8 to 13.x.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from .ranges import Range, Reader, read_all

MAGIC = b"\x7fELF"
CUDA = 190
"""``e_machine`` of a cubin."""

_MACHINES = {
    3: "x86",
    21: "ppc64",
    22: "s390x",
    40: "arm",
    62: "x86_64",
    183: "aarch64",
    CUDA: "cuda",
    243: "riscv",
}
HEAD = (0, 64)
PT_LOAD = 1
_DT_NULL = 0
_SHT_NOBITS = 8

MAX_SECTIONS = 4096
"""The maximum number of section headers. Libraries in wheels have about forty; a
relocatable object has a section for each of its functions."""

MAX_SEGMENTS = 256
MAX_NAMES = 256 * 1024
"""The maximum length of all section names together, in bytes."""

MAX_NAME = 256

_TEXT = b".text."
"""The prefix of the names of a cubin's code sections, one for each function."""

_CUBIN_HEADER = 64
_CUBIN_NAMES = b"\0.shstrtab\0"
"""The length of a cubin's ELF header, and the start of its section names."""

_OLD_ABI = 0x33
"""``EI_OSABI`` of cubins up to CUDA 12.x and sm_90; later ones have other flags too."""

_BLACKWELL = 100
_RELEASE = re.compile(rb"Cuda compilation tools, release ([0-9]{1,3})\.([0-9]{1,3}),")
_FAMILY = re.compile(rb"-arch[= ]+sm_[0-9]+f\b")


class Sections:
    """The sections of a file.

    Names are searched on demand: a wheel can have 10,000 cubins with many sections.

    :param rows: ``(offset of the name, type, offset, size)`` for each section.
    :param names: the bytes of all names, each with a zero byte at its end; empty if the
        names could not be read.
    """

    __slots__ = ("_names", "_rows")

    def __init__(self, rows: Iterable[tuple[int, int, int, int]], names: bytes) -> None:
        self._rows = [row for row in rows if row[1] not in (0, _SHT_NOBITS)]
        self._names = names

    def place(self, name: bytes) -> Range:
        """Return the range of the last section named ``name``, or an empty range."""
        names, wanted = self._names, name + b"\0"
        if wanted not in names:
            return 0, 0
        # A name may be stored as the end of a longer name, so it can begin anywhere.
        places, at = set(), names.find(wanted)
        while at >= 0:
            places.add(at)
            at = names.find(wanted, at + 1)
        for at, _, offset, size in reversed(self._rows):
            if at in places:
                return offset, size
        return 0, 0

    def any_begins(self, prefix: bytes) -> bool:
        """Return whether the name of any section begins with ``prefix``."""
        begins = self._names.startswith
        return any(begins(prefix, row[0]) for row in self._rows)


@dataclass(frozen=True, kw_only=True, slots=True)
class Image:
    """The content of the tables of an ELF or PE file.

    :param machine: the processor.
    :param sections: the sections of an ELF file; empty for a PE file.
    :param needed: the libraries that the file is linked with.
    :param flags: ``e_flags`` of an ELF file.
    :param osabi: ``EI_OSABI`` of an ELF file.
    :param defects: clauses about unreadable tables.
    """

    machine: str
    sections: Sections
    needed: tuple[str, ...] = ()
    flags: int = 0
    osabi: int = 0
    defects: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Layout:
    """The layout of the tables, which depends on the class and the byte order.

    :param order: the byte order, as `struct` spells it.
    :param wide: whether the file has 64 bits.
    """

    order: str
    wide: bool

    def header(self, data: bytes) -> tuple[int, ...]:
        """Return the fields of the header after ``e_ident``."""
        return struct.unpack_from(
            self.order + ("HHIQQQIHHHHHH" if self.wide else "HHIIIIIHHHHHH"), data, 16
        )

    def segments(self, data: bytes, size: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield ``(type, offset, address, size in the file)`` for each segment."""
        return self._rows("I4xQQ8xQ" if self.wide else "III4xI", data, size)

    def sections(self, data: bytes, size: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield ``(offset of the name, type, offset, size)`` for each section."""
        return self._rows("II16xQQ" if self.wide else "II8xII", data, size)

    def flags(self, data: bytes, size: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield ``(type, flags, offset, size)`` for each section."""
        return self._rows("4xIQ8xQQ" if self.wide else "4xII4xII", data, size)

    def _rows(
        self, fields: str, data: bytes, size: int
    ) -> Iterator[tuple[int, int, int, int]]:
        """Yield the given fields of each row of a table, which may have more fields."""
        form = struct.Struct(self.order + fields)
        padded = struct.Struct(f"{form.format}{size - form.size}x")
        return padded.iter_unpack(memoryview(data)[: len(data) - len(data) % size])

    def dynamic(self, data: bytes) -> Iterator[tuple[int, int]]:
        """Yield ``(tag, value)`` for each entry of the dynamic section."""
        form = struct.Struct(self.order + ("qQ" if self.wide else "iI"))
        for at in range(0, len(data) - form.size + 1, form.size):
            tag, value = form.unpack_from(data, at)
            if tag == _DT_NULL:
                return
            yield tag, value


@dataclass(frozen=True, slots=True)
class Header:
    """The fields of the ELF header that locate the tables.

    :param programs: offset and length of the program headers.
    :param sections: offset and length of the section headers.
    :param names: the index of the section with the names of the sections.
    :param defects: clauses about invalid fields.
    """

    layout: _Layout
    machine: int
    flags: int
    osabi: int
    programs: Range
    program_size: int
    sections: Range
    section_size: int
    names: int
    defects: tuple[str, ...]

    @property
    def machine_name(self) -> str:
        """The processor, such as ``x86_64``."""
        return _MACHINES.get(self.machine, f"machine {self.machine}")


def read_sections(*, named: bool = True) -> Reader[Image]:
    """Read the machine and the sections of an ELF file.

    :param named: whether to also read the names of the sections. The linker lld writes
        them up to a hundred megabytes before the section headers.
    :raises ValueError: the file is not ELF. Unreadable tables are defects.
    """
    (head,) = yield (HEAD,)
    header = parse_header(head)
    (table,) = yield (header.sections,)
    defects = list(header.defects)
    if len(table) < header.sections[1]:
        defects.append("its section headers are cut off")
    rows = list(header.layout.sections(table, header.section_size))
    names = b""
    if named and header.names < len(rows):
        _, _, start, length = rows[header.names]
        (names,) = yield ((start, min(length, MAX_NAMES)),)
    return Image(
        machine=header.machine_name,
        sections=Sections(rows, names),
        flags=header.flags,
        osabi=header.osabi,
        defects=tuple(defects),
    )


def parse_header(head: bytes) -> Header:
    """Parse the first 64 bytes of an ELF file, or the first 52 of a 32-bit file.

    :raises ValueError: the file is not ELF.
    """
    if len(head) < 52 or head[:4] != MAGIC or head[4] not in (1, 2):
        raise ValueError("not an ELF file")
    layout = _Layout(">" if head[5] == 2 else "<", wide=head[4] == 2)
    if layout.wide and len(head) < 64:
        raise ValueError("not an ELF file")
    _, machine, _, _, phoff, shoff, flags, _, *counts = layout.header(head)
    phentsize, phnum, shentsize, shnum, names = counts
    defects: list[str] = []
    small, large = (56, 64) if layout.wide else (32, 40)
    if phnum and phentsize < small:
        defects.append("its program headers are too short")
    if shnum and shentsize < large:
        defects.append("its section headers are too short")
    if shnum > MAX_SECTIONS:
        defects.append(f"it has {shnum} sections, of which {MAX_SECTIONS} are read")
    programs = min(phnum, MAX_SEGMENTS) if phentsize >= small else 0
    sections = min(shnum, MAX_SECTIONS) if shentsize >= large else 0
    return Header(
        layout=layout,
        machine=machine,
        flags=flags,
        osabi=head[7],
        programs=(phoff, programs * phentsize),
        program_size=max(phentsize, small),
        sections=(shoff, sections * shentsize),
        section_size=max(shentsize, large),
        names=names,
        defects=tuple(defects),
    )


def text_of(data: bytes) -> str:
    """Return the text before the first zero byte."""
    return data.partition(b"\0")[0].decode("utf-8", "replace")


def has_kernels(data: bytes) -> bool:
    """Return whether a cubin has code; ``True`` also for bytes that are not a cubin."""
    # Without this prefix of section names, there is no code, so return early.
    if _TEXT not in data:
        return not data.startswith(MAGIC)
    try:
        image = read_all(read_sections(), data)
    except ValueError:
        return True
    return image.sections.any_begins(_TEXT)


def names_kernels(head: bytes) -> bool:
    """Return whether the first bytes of a cubin show that it has code.

    The assembler writes the names of the sections right after the header, terminated by
    an empty name.
    """
    if not head.startswith(_CUBIN_NAMES, _CUBIN_HEADER):
        return False
    end = head.find(b"\0\0", _CUBIN_HEADER + len(_CUBIN_NAMES))
    return head.find(b"\0" + _TEXT, _CUBIN_HEADER, end if end > 0 else None) > 0


def cubin_target(image: Image, compat: bytes, tkinfo: bytes) -> str:
    """Return the target of a loose cubin, such as ``90``, ``90a`` or ``100f``.

    :param compat: the content of the section ``.nv.compat``.
    :param tkinfo: the content of the section ``.note.nv.tkinfo``.
    """
    if image.osabi == _OLD_ABI:
        return f"{image.flags & 0xFF}{'a' if image.flags & 0x800 else ''}"
    number = image.flags >> 8 & 0xFF
    # For the letter "a", CUDA 12.8 and 12.9 set a flag, and 13.x writes an attribute at
    # the start of .nv.compat.
    if image.flags & 0x8 or (compat[:2] == b"\x02\x09" and compat[2:3] == b"\x01"):
        return f"{number}a"
    # Only the assembler options show that a cubin is for a family.
    family = _FAMILY.search(tkinfo)
    return f"{number}f" if family else f"{number}"


def cubin_toolkit(image: Image, tkinfo: bytes) -> tuple[int, int] | None:
    """Return the CUDA version that built a loose cubin, if it is known.

    :param tkinfo: the content of the section ``.note.nv.tkinfo``.
    :returns: the version in ``tkinfo``, else 13.0 for the form of CUDA 13, or ``None``.
    """
    if release := _RELEASE.search(tkinfo):
        return int(release[1]), int(release[2])
    old_form = image.osabi == _OLD_ABI or image.flags >> 8 & 0xFF >= _BLACKWELL
    return None if old_form else (13, 0)
