"""Cubins: machine code for one target, in an ELF file with its own conventions.

NVIDIA documents neither the flags of the ELF header nor the sections; what is used here
was compared with what ``cuobjdump`` and ``readelf`` say of cubins of 11.8 to 13.x.
"""

from __future__ import annotations

import re

from .elf import MAGIC, Image, read_sections
from .ranges import read_all

__all__ = ["cubin_target", "has_kernels", "names_kernels"]

_TEXT = b".text."
"""What the names of sections with code begin with; each function has its own."""

_HEADER = 64
_NAMES = b"\0.shstrtab\0"
"""The length of the ELF header, and how the names of sections begin."""

_OLD_ABI = 0x33
"""``EI_OSABI`` up to toolkit 12.x and sm_90; later cubins have 0x41 and other flags."""

_FAMILY = re.compile(rb"-arch[= ]+sm_[0-9]+f\b")


def has_kernels(data: bytes) -> bool:
    """Return whether a cubin has code; bytes that are not a cubin count as code."""
    # A quick way out: a section with code needs a name.
    if _TEXT not in data:
        return not data.startswith(MAGIC)
    try:
        image = read_all(read_sections(), data)
    except ValueError:
        return True
    return image.sections.any_begins(_TEXT)


def names_kernels(head: bytes) -> bool:
    """Return whether the first bytes of a cubin show that it has code.

    The assembler writes the names of the sections right after the header. An empty
    name ends them, so that the search goes no further.
    """
    if not head.startswith(_NAMES, _HEADER):
        return False
    end = head.find(b"\0\0", _HEADER + len(_NAMES))
    return head.find(b"\0" + _TEXT, _HEADER, end if end > 0 else None) > 0


def cubin_target(image: Image, compat: bytes, tkinfo: bytes) -> str:
    """Return the target of a loose cubin, such as ``90``, ``90a`` or ``100f``.

    :param compat: what is in the section ``.nv.compat``.
    :param tkinfo: what is in the section ``.note.nv.tkinfo``.
    """
    if image.osabi == _OLD_ABI:
        return f"{image.flags & 0xFF}{'a' if image.flags & 0x800 else ''}"
    number = image.flags >> 8 & 0xFF
    # For the letter "a", 12.8 and 12.9 set a flag, and 13.x writes the first attribute
    # of .nv.compat.
    if image.flags & 0x8 or (compat[:2] == b"\x02\x09" and compat[2:3] == b"\x01"):
        return f"{number}a"
    # Only the options of the assembler tell that a cubin is for a family.
    family = _FAMILY.search(tkinfo)
    return f"{number}f" if family else f"{number}"
