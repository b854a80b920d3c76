"""Files ``ld.so.cache``, as ``ldconfig`` writes them."""

from __future__ import annotations

import struct
from collections.abc import Mapping

__all__ = ["cache_file"]


def cache_file(
    libraries: Mapping[str, str], *, flags: int = 0x0303, old: bool = False
) -> bytes:
    """Return a cache of libraries of 64 bits.

    :param libraries: the paths by name.
    :param flags: the processor; by default x86_64.
    :param old: whether the file begins with the format of glibc before 2.2.
    """
    count = len(libraries)
    place = 48 + 24 * count
    entries, texts = b"", b""
    for name, path in libraries.items():
        at = place + len(texts)
        entries += struct.pack("<iIIIQ", flags, at, at + len(name) + 1, 0, 0)
        texts += f"{name}\0{path}\0".encode()
    header = b"glibc-ld.so.cache1.1" + struct.pack("<II", count, len(texts))
    new = header + bytes([2]) + bytes(19) + entries + texts
    if not old:
        return new
    first = b"ld.so-1.7.0\0" + struct.pack("<I", count) + bytes(12 * count)
    return first + bytes(-len(first) % 8) + new
