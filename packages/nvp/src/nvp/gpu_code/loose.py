"""Loose files of GPU code, and what the name or the first bytes of a file tell."""

from __future__ import annotations

import re
from dataclasses import dataclass

from . import elf, fatbin, pe
from .elf import Image, read_sections
from .ranges import Reader

_VERSION = re.compile(rb"^\s*\.version\s+([0-9]{1,3}\.[0-9]{1,3})", re.MULTILINE)
_TARGET = re.compile(rb"^\s*\.target\s+sm_([0-9]{1,4}[af]?)\b", re.MULTILINE)
_HEAD = 64 * 1024
"""Bytes of a PTX file that are searched for its first two directives; only comments may
stand before these."""

_TEXT = re.compile(
    r".*\.(?:c|cc|cfg|cmake|cpp|css|csv|cuh?|cxx|f90|h|hpp|html?|hxx|in|inc|ini|inl|"
    r"ipynb|js|json|lock|map|md|pc|po|proto|pxd|pxi|py|pyi|pyx|rst|sh|svg|toml|ts|txt|"
    r"typed|xml|ya?ml)|AUTHORS|COPYING|INSTALLER|LICENSE|METADATA|NOTICE|RECORD|"
    r"REQUESTED|WHEEL",
    re.IGNORECASE | re.DOTALL,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Code:
    """What a loose file is for.

    :param target: number and letter of the GPU, such as ``90``, ``90a`` or ``100f``.
    :param isa: the version of the PTX language; empty for a cubin.
    :param image: the tables of a cubin.
    :param stub: whether it is a cubin without a kernel.
    """

    target: str
    isa: str = ""
    image: Image | None = None
    stub: bool = False


def is_text(path: str) -> bool:
    """Return whether a file is text by its name, so that it has no containers."""
    return _TEXT.fullmatch(path.rpartition("/")[2]) is not None


def guess_format(path: str, head: bytes) -> str:
    """Return the ``format`` of a file, as `report.LibraryReport` names it.

    :param head: at least the first 20 bytes, or the whole file.
    """
    if head.startswith(elf.MAGIC):
        # Cubins are little-endian, whatever the byte order of the host.
        cuda = head[18:20] == elf.CUDA.to_bytes(2, "little")
        return "cubin" if cuda else "elf"
    if head.startswith(pe.MAGIC):
        return "pe"
    if head.startswith(fatbin.MAGIC):
        return "fatbin"
    if head.startswith((b"!<arch>\n", b"!<thin>\n")):
        return "archive"
    if path.lower().endswith(".ptx"):
        return "ptx"
    return "data"


def read_ptx() -> Reader[Code]:
    """Read what a PTX file is for.

    :raises ValueError: it lacks one of the two directives.
    """
    (head,) = yield ((0, _HEAD),)
    version, target = _VERSION.search(head), _TARGET.search(head)
    if version is None or target is None:
        raise ValueError("a PTX file without .version or .target")
    return Code(target=target[1].decode(), isa=version[1].decode())


def read_cubin() -> Reader[Code]:
    """Read what a cubin is for.

    :raises ValueError: it is not an ELF file.
    """
    image = yield from read_sections()
    names = (b".nv.compat", b".note.nv.tkinfo")
    places = map(image.sections.place, names)
    contents = yield tuple((at, min(size, _HEAD)) for at, size in places)
    return Code(
        target=elf.cubin_target(image, *contents),
        image=image,
        stub=not image.sections.any_begins(b".text."),
    )
