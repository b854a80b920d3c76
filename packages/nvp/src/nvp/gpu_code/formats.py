"""Recognize the format of a file, and read PTX, cubins and PE files.

Microsoft describes the format of PE files, which are the programs and the libraries of
Windows: https://learn.microsoft.com/windows/win32/debug/pe-format. `ranges` explains
how a reader works on a stream.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from . import elf, fatbin
from .elf import Image, Sections, read_sections
from .ranges import Range, Reader

_VERSION = re.compile(rb"^[^\S\n]*\.version\s+([0-9]{1,3}\.[0-9]{1,3})", re.MULTILINE)
_TARGET = re.compile(rb"^[^\S\n]*\.target\s+sm_([0-9]{1,4}[af]?)\b", re.MULTILINE)
_HEAD = 64 * 1024
"""The number of bytes of a PTX file to search for its first two directives, which only
comments may precede."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Code:
    """The target of a loose PTX file or cubin.

    :param target: number and letter of the GPU, such as ``90``, ``90a`` or ``100f``.
    :param isa: the version of the PTX language; empty for a cubin.
    :param image: the tables of a cubin.
    :param stub: whether it is a cubin without a kernel.
    :param toolkit: the CUDA version of a cubin, as `elf.cubin_toolkit` returns it.
    """

    target: str
    isa: str = ""
    image: Image | None = None
    stub: bool = False
    toolkit: tuple[int, int] | None = None


def guess_format(path: str, head: bytes) -> str:
    """Return the ``format`` of a file, as `report.LibraryReport` names it.

    :param head: at least the first 20 bytes, or the whole file.
    """
    if head.startswith(elf.MAGIC):
        # Cubins are little-endian, whatever the byte order of the host.
        cuda = head[18:20] == elf.CUDA.to_bytes(2, "little")
        return "cubin" if cuda else "elf"
    if head.startswith(_PE_MAGIC):
        return "pe"
    if head.startswith(fatbin.MAGIC):
        return "fatbin"
    if head.startswith((b"!<arch>\n", b"!<thin>\n")):
        return "archive"
    if path.lower().endswith(".ptx"):
        return "ptx"
    return "data"


def read_ptx() -> Reader[Code]:
    """Read the target of a PTX file.

    :raises ValueError: the directive ``.version`` or ``.target`` is missing.
    """
    (head,) = yield ((0, _HEAD),)
    version, target = _VERSION.search(head), _TARGET.search(head)
    if version is None or target is None:
        raise ValueError("a PTX file without .version or .target")
    return Code(target=target[1].decode(), isa=version[1].decode())


def read_cubin() -> Reader[Code]:
    """Read the target of a cubin.

    :raises ValueError: the file is not ELF.
    """
    image = yield from read_sections()
    names = (b".nv.compat", b".note.nv.tkinfo")
    places = map(image.sections.place, names)
    contents = yield tuple((at, min(size, _HEAD)) for at, size in places)
    return Code(
        target=elf.cubin_target(image, *contents),
        image=image,
        stub=not image.sections.any_begins(b".text."),
        toolkit=elf.cubin_toolkit(image, contents[1]),
    )


_PE_MAGIC = b"MZ"
_PE_MACHINES = {0x14C: "x86", 0x1C4: "arm", 0x8664: "x86_64", 0xAA64: "aarch64"}
_SECTION = struct.Struct("<8sIIII16x")
_IMPORTS, _DELAYED = 1, 13
"""The indexes of the data directories for imported DLLs and for delay-loaded DLLs."""

_DESCRIPTORS = (struct.Struct("<12xI4x"), struct.Struct("<4xI24x"))
"""The forms of a descriptor in the two directories; only an address is unpacked."""

MAX_SECTIONS = 96
"""The maximum number of sections that Windows accepts."""

MAX_NEEDED = 512
MAX_NAME = 256

_Span = tuple[int, int, int]
"""The address of a section, its offset in the file, and its size in the file."""


def read_pe() -> Reader[Image]:
    """Read the machine and the imported DLLs of a PE file.

    :raises ValueError: the file is not PE. Unreadable tables are defects.
    """
    (head,) = yield ((0, 64),)
    if len(head) < 64 or not head.startswith(_PE_MAGIC):
        raise ValueError("not a PE file")
    (start,) = struct.unpack_from("<I", head, 60)
    # The optional header has at most 240 bytes, with all of its 16 directories.
    (head,) = yield ((start, 24 + 240),)
    if len(head) < 24 + 96 or head[:4] != b"PE\0\0":
        raise ValueError("not a PE file")
    machine, count, _, _, _, optional, _ = struct.unpack_from("<HHIIIHH", head, 4)
    (magic,) = struct.unpack_from("<H", head, 24)
    directories = 24 + (112 if magic == 0x20B else 96)
    defects = []
    if count > MAX_SECTIONS:
        defects.append(f"it has {count} sections, of which {MAX_SECTIONS} are read")
        count = MAX_SECTIONS
    (table,) = yield ((start + 24 + optional, count * _SECTION.size),)
    if len(table) < count * _SECTION.size:
        defects.append("its section headers are cut off")
    spans = []
    for at in range(0, len(table) - _SECTION.size + 1, _SECTION.size):
        _, _, address, size, offset = _SECTION.unpack_from(table, at)
        if size:
            spans.append((address, offset, size))
    tables = yield tuple(_tables(head, optional, directories, spans))
    names = []
    for data, form in zip(tables, _DESCRIPTORS, strict=True):
        for address in _addresses(data, form):
            place = _in_file(spans, address)
            if place is None:
                defects.append("the name of a DLL that it needs is not in the file")
                break
            names.append((place, MAX_NAME))
    texts = yield tuple(names)
    needed = [text.partition(b"\0")[0].decode("utf-8", "replace") for text in texts]
    return Image(
        machine=_PE_MACHINES.get(machine, f"machine {machine:#x}"),
        sections=Sections((), b""),
        needed=tuple(filter(None, needed)),
        defects=tuple(defects),
    )


def _tables(
    head: bytes, optional: int, directories: int, spans: list[_Span]
) -> Iterator[Range]:
    """Yield the ranges of the import table and the delay-load import table.

    The range of a missing table is empty.
    """
    for number, form in zip((_IMPORTS, _DELAYED), _DESCRIPTORS, strict=True):
        place = directories + 8 * number
        address = size = 0
        if place + 8 <= min(len(head), 24 + optional):
            address, size = struct.unpack_from("<II", head, place)
        at = _in_file(spans, address)
        yield (0, 0) if at is None else (at, min(size, form.size * MAX_NEEDED))


def _addresses(data: bytes, form: struct.Struct) -> Iterator[int]:
    """Yield the address of each DLL's name in the descriptors of a table."""
    for at in range(0, len(data) - form.size + 1, form.size):
        (address,) = form.unpack_from(data, at)
        if not address:
            return
        yield address


def _in_file(spans: list[_Span], address: int) -> int | None:
    places = (
        at + address - start for start, at, size in spans if 0 <= address - start < size
    )
    return next(places, None)
