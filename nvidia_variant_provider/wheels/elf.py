"""ELF files: machine, sections, linked libraries, read in the order of a stream.

pyelftools wants a file that it can seek in; the members of a wheel are streams, and
to make files of them would take their size in memory or on disk. So the reader is
own, and small: three tables. It is a generator that asks for ranges of bytes and is
sent them; `ranges` answers it from a stream, or from a file.

Generic ABI: https://gabi.xinuos.com, chapters 2, 5 and 8.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from .ranges import Reader

__all__ = ["CUDA", "MAGIC", "Image", "Section", "read_elf"]

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
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NULL, _DT_NEEDED, _DT_STRTAB = 0, 1, 5
_SHT_NOBITS = 8

MAX_SECTIONS = 4096
"""Headers of sections that are read. A relocatable object has one for each of its
functions; in what wheels have, some forty."""

MAX_SEGMENTS = 256
MAX_DYNAMIC = 64 * 1024
MAX_NAMES = 256 * 1024
"""Bytes of the names of sections that are read."""

MAX_NEEDED = 512
MAX_NAME = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """A part of the file.

    :param offset: in the file, with ``size`` in bytes.
    """

    name: str
    offset: int
    size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Image:
    """What the tables of an ELF or PE file say.

    :param machine: the processor.
    :param needed: libraries that it is linked with.
    :param defects: sentences about tables that cannot be read.
    """

    format: str
    machine: str
    sections: tuple[Section, ...] = ()
    needed: tuple[str, ...] = ()
    flags: int = 0
    osabi: int = 0
    defects: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where things are in the header, by class and byte order."""

    order: str
    wide: bool

    def header(self, data: bytes) -> tuple[int, ...]:
        return struct.unpack_from(
            self.order + ("HHIQQQIHHHHHH" if self.wide else "HHIIIIIHHHHHH"), data, 16
        )

    def segments(self, data: bytes, size: int) -> Iterator[tuple[int, int, int, int]]:
        """Type, offset, address, size in the file."""
        for at in range(0, len(data) - size + 1, size):
            if self.wide:
                kind, _, offset, address, _, length = struct.unpack_from(
                    self.order + "IIQQQQ", data, at
                )
            else:
                kind, offset, address, _, length = struct.unpack_from(
                    self.order + "IIIII", data, at
                )
            yield kind, offset, address, length

    def sections(self, data: bytes, size: int) -> Iterator[tuple[int, int, int, int]]:
        """Offset of the name, type, offset, size."""
        form = self.order + ("IIQQQQ" if self.wide else "IIIIII")
        for at in range(0, len(data) - size + 1, size):
            name, kind, _, _, offset, length = struct.unpack_from(form, data, at)
            yield name, kind, offset, length

    def dynamic(self, data: bytes) -> Iterator[tuple[int, int]]:
        form = struct.Struct(self.order + ("qQ" if self.wide else "iI"))
        for at in range(0, len(data) - form.size + 1, form.size):
            tag, value = form.unpack_from(data, at)
            if tag == _DT_NULL:
                return
            yield tag, value


def read_elf() -> Reader[Image]:
    """Machine, sections and linked libraries of an ELF file.

    :raises ValueError: it is none; tables that cannot be read are defects.
    """
    (head,) = yield ((0, 64),)
    if len(head) < 52 or head[:4] != MAGIC or head[4] not in (1, 2):
        raise ValueError("not an ELF file")
    layout = _Layout(">" if head[5] == 2 else "<", wide=head[4] == 2)
    if layout.wide and len(head) < 64:
        raise ValueError("not an ELF file")
    _, machine, _, _, phoff, shoff, flags, _, *counts = layout.header(head)
    phentsize, phnum, shentsize, shnum, shstrndx = counts
    defects: list[str] = []
    small, large = (56, 64) if layout.wide else (32, 40)
    if phnum and phentsize < small:
        defects.append("its program headers are too short")
        phnum = 0
    if shnum and shentsize < large:
        defects.append("its section headers are too short")
        shnum = 0
    if shnum > MAX_SECTIONS:
        defects.append(f"it has {shnum} sections: {MAX_SECTIONS} are read")
        shnum = MAX_SECTIONS
    programs, headers = yield (
        (phoff, min(phnum, MAX_SEGMENTS) * phentsize),
        (shoff, shnum * shentsize),
    )
    if len(headers) < shnum * shentsize:
        defects.append("its section headers are cut off")
    found = list(layout.sections(headers, shentsize)) if shnum else []
    segments = list(layout.segments(programs, phentsize)) if phnum else []
    table = found[shstrndx] if shstrndx < len(found) else (0, 0, 0, 0)
    where = next(((s[1], s[3]) for s in segments if s[0] == _PT_DYNAMIC), (0, 0))
    names, dynamic = yield (
        (table[2], min(table[3], MAX_NAMES)),
        (where[0], min(where[1], MAX_DYNAMIC)),
    )
    pairs = list(layout.dynamic(dynamic))
    wanted = [value for tag, value in pairs if tag == _DT_NEEDED][:MAX_NEEDED]
    address = next((value for tag, value in pairs if tag == _DT_STRTAB), None)
    strings = None if address is None else _in_file(segments, address)
    needed: tuple[str, ...] = ()
    if wanted and strings is None:
        defects.append("the names of the libraries it needs are not in the file")
    elif wanted and strings is not None:
        texts = yield tuple((strings + value, MAX_NAME) for value in wanted)
        needed = tuple(filter(None, map(_name, texts)))
        if len(needed) < len(wanted):
            defects.append("the names of the libraries it needs are cut off")
    return Image(
        format="elf",
        machine=_MACHINES.get(machine, f"machine {machine}"),
        sections=tuple(
            Section(name=_name(names[name : name + MAX_NAME]), offset=offset, size=size)
            for name, kind, offset, size in found
            if kind not in (0, _SHT_NOBITS)
        ),
        needed=needed,
        flags=flags,
        osabi=head[7],
        defects=tuple(defects),
    )


def _in_file(segments: list[tuple[int, int, int, int]], address: int) -> int | None:
    for kind, offset, start, size in segments:
        if kind == _PT_LOAD and start <= address < start + size:
            return offset + address - start
    return None


def _name(data: bytes) -> str:
    return data.partition(b"\0")[0].decode("utf-8", "replace")
