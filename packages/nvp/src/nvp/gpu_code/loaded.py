"""The parts of an ELF file that hold no data which a program gives to CUDA.

GPU code is data: a program hands its address to the driver, or the CUDA runtime does.
So it lies in a section that is loaded into memory (``SHF_ALLOC``), that has no
instructions of the processor (``SHF_EXECINSTR``), and that is no table of the linker.
In an environment with torch, half of the bytes that are not GPU code lie elsewhere.

Generic ABI: https://gabi.xinuos.com, chapter 4, "Sections".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from .elf import HEAD, parse_header
from .ranges import Range, Reader

__all__ = ["read_other_parts"]

_NULL, _NOBITS = 0, 8
_TABLES = frozenset({2, 3, 4, 5, 6, 9, 11, 0x6FFFFFF6})
"""``SHT_SYMTAB``, ``STRTAB``, ``RELA``, ``HASH``, ``DYNAMIC``, ``REL``, ``DYNSYM`` and
``GNU_HASH``."""

_ALLOC, _EXECINSTR = 0x2, 0x4

_WORTHWHILE = 64 * 1024
"""The shortest part that is worth to be left out, in bytes: reading is faster than that
many calls."""


def read_other_parts() -> Reader[tuple[Range, ...]]:
    """Read where an ELF file has no data that a program could give to CUDA.

    Bytes that belong to no section, or to several with one that counts, are not part
    of the result. A file without section headers has no such parts.

    :returns: start and end of each part, in ascending order.
    :raises ValueError: it is not an ELF file.
    """
    (head,) = yield (HEAD,)
    header = parse_header(head)
    (table,) = yield (header.sections,)
    rows = header.layout.flags(table, header.section_size)
    return tuple(_parts(rows))


def _parts(rows: Iterable[tuple[int, int, int, int]]) -> Iterator[Range]:
    # Where sections begin (-1) and end (1), so that of two at one place the one that
    # begins comes first.
    edges: list[tuple[int, int, bool]] = []
    for kind, flags, offset, size in rows:
        if kind not in (_NULL, _NOBITS) and size:
            counts = _counts(kind, flags)
            edges += ((offset, -1, counts), (offset + size, 1, counts))
    # How many sections of either sort reach over the place that is looked at.
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
    """Return whether a section may have GPU code that a program uses."""
    return flags & _ALLOC != 0 and not flags & _EXECINSTR and kind not in _TABLES
