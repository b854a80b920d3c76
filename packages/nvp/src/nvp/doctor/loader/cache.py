"""The file ``ld.so.cache``: the libraries that ``ldconfig`` has found.

Its format is that of glibc's ``sysdeps/generic/dl-cache.h``. Since glibc 2.2 the
file is ``struct cache_file_new``; until glibc 2.32, ``ldconfig`` put the older
``struct cache_file`` before it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from nvidia_variant_provider.strict_json import open_regular

__all__ = ["parse_cache", "read_cache"]

_OLD = b"ld.so-1.7.0"
_NEW = b"glibc-ld.so.cache1.1"
_OLD_HEADER = struct.Struct("<11sxI")
_OLD_ENTRY = 12
_HEADER = struct.Struct("<20sIIB3xI12x")
_ENTRY = struct.Struct("<iIIIQ")
"""Flags, the offset of the name, the offset of the path, OS version and features."""

_LITTLE_ENDIAN = (0, 2)
"""``cache_file_new.flags``: 0 stands in files from before glibc 2.33."""

_FLAGS = {"x86_64": 0x0303, "aarch64": 0x0A03, "ppc64": 0x0503}
"""``FLAG_ELF_LIBC6`` with the processor, of files of 64 bits."""

_NAMED = 1 << 62
"""``DL_CACHE_HWCAP_EXTENSION``: the lower bits of the features are the place of a name
in the extension of the file, that of a folder in ``glibc-hwcaps``."""

_EXTENSION = struct.Struct("<II")
_EXTENSION_MAGIC = 0xEAA42174
_SECTION = struct.Struct("<IIII")
_HWCAPS = 1
"""``cache_extension_tag_glibc_hwcaps``: the offset of each name, of 4 bytes."""

_OFFSET = struct.Struct("<I")
_MOST_SECTIONS, _MOST_NAMES = 16, 256

_LONGEST = 16 * 1024 * 1024
_MOST = 100_000
"""Entries that are read. A desktop has some 5,000."""

_LONGEST_PATH = 4096


def read_cache(
    path: str, machine: str, levels: Sequence[str] = ()
) -> dict[str, tuple[str, ...]]:
    """Read the cache of a system; without one there is nothing in it.

    :param machine: the processor whose libraries are looked for, such as ``x86_64``.
    :param levels: the folders of ``glibc-hwcaps`` for the processor, the preferred one
        first.
    :returns: the paths of the libraries of each name, the preferred one first.
    :raises ValueError: the file is damaged, or cannot be read.
    """
    try:
        with open_regular(path) as file:
            data = file.read(_LONGEST + 1)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise ValueError(str(error.strerror or error)) from None
    if len(data) > _LONGEST:
        raise ValueError(f"it is larger than {_LONGEST >> 20} MiB")
    return parse_cache(data, machine, levels)


def parse_cache(
    data: bytes, machine: str, levels: Sequence[str] = ()
) -> dict[str, tuple[str, ...]]:
    """Read the contents of a cache.

    Copies for the processor, in folders ``glibc-hwcaps``, come before the plain ones;
    those for other processors are left out. What glibc before 2.33 has marked as for
    certain processors comes last.

    :raises ValueError: it is damaged, or of an unknown format.
    """
    libraries: dict[str, list[tuple[int, str]]] = {}
    wanted = _FLAGS.get(machine)
    folders = _folder_names(data)
    for flags, name, path, features in _entries(data):
        if wanted is not None and flags != wanted:
            continue
        rank = len(levels) + bool(features)
        if features & _NAMED:
            index = features & 0xFFFFFFFF
            folder = folders[index] if index < len(folders) else ""
            if folder not in levels:
                continue
            rank = levels.index(folder)
        libraries.setdefault(name, []).append((rank, path))
    return {
        # Sorting is stable: of equal entries the loader takes the first.
        name: tuple(path for _, path in sorted(paths, key=lambda item: item[0]))
        for name, paths in libraries.items()
    }


def _entries(data: bytes) -> Iterator[tuple[int, str, str, int]]:
    start = _start(data)
    header = _unpack(_HEADER, data, start)
    _, count, _, flags, _ = header
    if flags & 3 not in _LITTLE_ENDIAN:
        raise ValueError("it is for a machine of another byte order")
    if count > _MOST:
        raise ValueError(f"it claims to have {count} entries")
    for index in range(count):
        place = start + _HEADER.size + index * _ENTRY.size
        kind, name, path, _, features = _unpack(_ENTRY, data, place)
        yield kind, _text(data, start + name), _text(data, start + path), features


def _folder_names(data: bytes) -> list[str]:
    """Return the names of the folders in ``glibc-hwcaps`` that entries refer to."""
    start = _start(data)
    # The flags are those of glibc 2.33, from which on there is an extension.
    *_, place = _unpack(_HEADER, data, start)
    if not place:
        return []
    magic, count = _unpack(_EXTENSION, data, start + place)
    if magic != _EXTENSION_MAGIC:
        return []
    names = []
    for index in range(min(count, _MOST_SECTIONS)):
        at = start + place + _EXTENSION.size + index * _SECTION.size
        tag, _, offset, size = _unpack(_SECTION, data, at)
        if tag == _HWCAPS:
            for item in range(min(size // 4, _MOST_NAMES)):
                (name,) = _unpack(_OFFSET, data, start + offset + 4 * item)
                names.append(_text(data, start + name))
    return names


def _start(data: bytes) -> int:
    """Return where ``struct cache_file_new`` begins; its offsets count from there."""
    if data.startswith(_NEW):
        return 0
    if not data.startswith(_OLD):
        raise ValueError("it is not a cache of the loader")
    _, count = _unpack(_OLD_HEADER, data, 0)
    end = _OLD_HEADER.size + count * _OLD_ENTRY
    # ALIGN_CACHE: the new part begins at a multiple of its alignment, which is 8.
    start = (end + 7) // 8 * 8
    if not data.startswith(_NEW, start):
        raise ValueError("it is from before glibc 2.2")
    return int(start)


def _unpack(form: struct.Struct, data: bytes, place: int) -> tuple[int, ...]:
    if place + form.size > len(data):
        raise ValueError("it is cut off")
    return form.unpack_from(data, place)


def _text(data: bytes, place: int) -> str:
    end = data.find(b"\0", place, place + _LONGEST_PATH)
    if place > len(data) or end < 0:
        raise ValueError("it is cut off")
    return data[place:end].decode("utf-8", "surrogateescape")
