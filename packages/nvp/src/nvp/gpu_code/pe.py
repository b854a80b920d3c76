"""PE files of Windows: the machine, the sections and the imported DLLs.

The format is described at https://learn.microsoft.com/windows/win32/debug/pe-format;
`ranges` explains how the reader works on a stream.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from .elf import Image, Sections
from .ranges import Range, Reader

MAGIC = b"MZ"
_MACHINES = {0x14C: "x86", 0x1C4: "arm", 0x8664: "x86_64", 0xAA64: "aarch64"}
_SECTION = struct.Struct("<8sIIII16x")
_IMPORTS, _DELAYED = 1, 13
"""Directories of the DLLs that are loaded at once, and at the first call of each."""

_DESCRIPTORS = (struct.Struct("<12xI4x"), struct.Struct("<4xI24x"))
"""Where the address of a DLL's name is in a descriptor of either directory."""

MAX_SECTIONS = 96
"""The most sections with which Windows loads a file."""

MAX_NEEDED = 512
MAX_NAME = 256

_Span = tuple[int, int, int]
"""Address, offset in the file, size in the file."""


def read_pe() -> Reader[Image]:
    """Read machine, sections and imported DLLs of a PE file.

    :raises ValueError: it is not a PE file. Tables that cannot be read are defects.
    """
    (head,) = yield ((0, 64),)
    if len(head) < 64 or not head.startswith(MAGIC):
        raise ValueError("not a PE file")
    (start,) = struct.unpack_from("<I", head, 60)
    # With all of its 16 directories, the optional header has 240 bytes.
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
        machine=_MACHINES.get(machine, f"machine {machine:#x}"),
        sections=Sections((), b""),
        needed=tuple(filter(None, needed)),
        defects=tuple(defects),
    )


def _tables(
    head: bytes, optional: int, directories: int, spans: list[_Span]
) -> Iterator[Range]:
    """Yield where the tables of both directories are; one that is missing is empty."""
    for number, form in zip((_IMPORTS, _DELAYED), _DESCRIPTORS, strict=True):
        place = directories + 8 * number
        address = size = 0
        if place + 8 <= min(len(head), 24 + optional):
            address, size = struct.unpack_from("<II", head, place)
        at = _in_file(spans, address)
        yield (0, 0) if at is None else (at, min(size, form.size * MAX_NEEDED))


def _addresses(data: bytes, form: struct.Struct) -> Iterator[int]:
    """Yield the address of each name, up to the descriptor that ends the table."""
    for at in range(0, len(data) - form.size + 1, form.size):
        (address,) = form.unpack_from(data, at)
        if not address:
            return
        yield address


def _in_file(spans: list[_Span], address: int) -> int | None:
    for start, offset, size in spans:
        if start <= address < start + size:
            return offset + address - start
    return None
