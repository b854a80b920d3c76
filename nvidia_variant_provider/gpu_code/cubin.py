"""Cubins: machine code for one target, an ELF file of its own kind."""

from __future__ import annotations

import re
from collections.abc import Mapping

from .elf import MAGIC, Image, read_sections
from .ranges import read_all

__all__ = ["cubin_target", "has_kernels", "names_kernels"]

_TEXT = ".text."
"""Kernels and device functions have a section each, named after them."""

_HEADER = 64
_NAMES = b"\0.shstrtab\0"
"""Bytes of the header, and what the names of sections start with."""

_OLD_ABI = 0x33
"""Up to toolkit 12.x and sm_90; 0x41 after."""

_FAMILY = re.compile(rb"-arch[= ]+sm_[0-9]+f\b")


def has_kernels(data: bytes) -> bool:
    """Is there code in a cubin; what is none counts as code."""
    # Without the name of such a section there is none.
    if _TEXT.encode() not in data:
        return not data.startswith(MAGIC)
    try:
        image = read_all(read_sections(), data)
    except ValueError:
        return True
    return any(section.name.startswith(_TEXT) for section in image.sections)


def names_kernels(head: bytes) -> bool:
    """Do the first bytes of a cubin tell that there is code in it.

    The assembler puts the names of sections first; they end with an empty one.
    """
    if not head.startswith(_NAMES, _HEADER):
        return False
    end = head.find(b"\0\0", _HEADER + len(_NAMES))
    return head.find(b"\0" + _TEXT.encode(), _HEADER, end if end > 0 else None) > 0


def cubin_target(image: Image, contents: Mapping[str, bytes]) -> str:
    """The target of a loose cubin: ``90``, ``90a``, ``100f``.

    :param contents: of the sections ``.nv.compat`` and ``.note.nv.tkinfo``.
    """
    if image.osabi == _OLD_ABI:
        return f"{image.flags & 0xFF}{'a' if image.flags & 0x800 else ''}"
    number = image.flags >> 8 & 0xFF
    # 12.8 and 12.9 have a flag; 13.x says it in the first attribute of .nv.compat.
    compat = contents.get(".nv.compat", b"")
    if image.flags & 0x8 or (compat[:2] == b"\x02\x09" and compat[2:3] == b"\x01"):
        return f"{number}a"
    # That it is for a family stands nowhere but in the options of the assembler.
    family = _FAMILY.search(contents.get(".note.nv.tkinfo", b""))
    return f"{number}f" if family else f"{number}"
