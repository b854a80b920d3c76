"""The symbols of an ELF file that the loader looks at: its table ``.dynsym``.

The libraries of an installation can be seeked in, so that of a library with 520 MB only
the tables are read: 7 MB of torch's largest one.

Generic ABI: https://gabi.xinuos.com, chapter 5, "Symbol Table".
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from .elf import MAGIC, read_sections
from .ranges import read_seekable

__all__ = ["Symbol", "read_symbols"]

MAX_SYMBOLS = 4_000_000
"""Symbols that are read of one file; libtorch_cpu has 75,000."""

MAX_NAMES = 256 * 1024 * 1024
"""The most bytes of names, in the file and added up: two symbols can share a name."""

MAX_NAME = 64 * 1024
"""The most bytes of one name. Templates of C++ have names of several thousand."""

_AT_ONCE = 1024
"""Symbols that are unpacked at a time."""

_ANY = re.compile(b"")
_SHN_UNDEF = 0
_STB_LOCAL, _STB_WEAK = 0, 2
_STV_INTERNAL, _STV_HIDDEN = 1, 2


class Symbol(NamedTuple):
    """A name that other files can use, or that the file wants from them.

    Torch has 120,000 of them, so that this is a named tuple, which is made quickly.

    :param is_defined: whether the file has it; otherwise the file wants it.
    :param is_weak: whether the file can be loaded when nobody has it.
    """

    name: bytes
    is_defined: bool
    is_weak: bool = False


def read_symbols(
    file: BinaryIO, beginning: re.Pattern[bytes] = _ANY
) -> Iterator[Symbol]:
    """Yield the symbols of an ELF file that other files can see, in its order.

    :param file: it can be seeked in, and stays where the last read has left it.
    :param beginning: what the names begin with that are wanted; it matches no zero
        byte.
    :raises ValueError: it is not an ELF file, or its tables are cut off or too large.
    """
    sections = read_seekable(read_sections(), file).sections
    start, length = sections.place(b".dynsym")
    names_at, names_length = sections.place(b".dynstr")
    order, wide = _class(file)
    # The fields stand in another order in files with 32 bits.
    form = struct.Struct(order + ("IBBHQQ" if wide else "IIIBBH"))
    if length > MAX_SYMBOLS * form.size or names_length > MAX_NAMES:
        raise ValueError("its symbol table is too large")
    names = _read(file, names_at, names_length)
    left = MAX_NAMES
    match = beginning.match
    while length >= form.size:
        size = min(length - length % form.size, _AT_ONCE * form.size)
        for row in form.iter_unpack(_read(file, start, size)):
            at, info, other, section = row[:4] if wide else (row[0], *row[3:])
            if info >> 4 == _STB_LOCAL or other & 3 in (_STV_INTERNAL, _STV_HIDDEN):
                continue
            if match(names, at, at + MAX_NAME) is None:
                continue
            end = names.find(b"\0", at, at + MAX_NAME)
            if end < 0:
                raise ValueError("the name of a symbol is cut off")
            left -= end - at
            if left < 0:
                raise ValueError("the names of its symbols are too long")
            yield Symbol(names[at:end], section != _SHN_UNDEF, info >> 4 == _STB_WEAK)
        start, length = start + size, length - size


def _class(file: BinaryIO) -> tuple[str, bool]:
    """Return the byte order, as `struct` spells it, and whether it has 64 bits."""
    ident = _read(file, 0, len(MAGIC) + 2)
    return (">" if ident[5] == 2 else "<"), ident[4] == 2


def _read(file: BinaryIO, start: int, length: int) -> bytes:
    data = b""
    if length:
        try:
            file.seek(start)
        except OverflowError as error:
            raise ValueError("its symbol table is cut off") from error
        data = file.read(length)
    if len(data) < length:
        raise ValueError("its symbol table is cut off")
    return data
