"""The dynamic section of ELF files: what the loader has to know.

Generic ABI: https://gabi.xinuos.com, chapter 8.
"""

from __future__ import annotations

from dataclasses import dataclass

from .elf import HEAD, MAX_NAME, PT_LOAD, Header, parse_header, text_of
from .ranges import Reader

__all__ = ["Dynamic", "read_dynamic", "read_needed"]

_PT_DYNAMIC = 2
_DT_NEEDED, _DT_STRTAB = 1, 5
_DT_SONAME, _DT_RPATH, _DT_RUNPATH, _DT_FLAGS_1 = 14, 15, 29, 0x6FFFFFFB
_DF_1_NODEFLIB = 0x800

MAX_DYNAMIC = 64 * 1024
MAX_NEEDED = 512
MAX_PATHS = 16 * 1024
"""The most bytes of an RPATH; that of torch has 200."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Dynamic:
    """What the dynamic section of an ELF file tells the loader.

    :param machine: the processor.
    :param wide: whether the file has 64 bits.
    :param soname: the name under which other files are linked with it, or empty.
    :param needed: the libraries that it is linked with.
    :param rpath: ``DT_RPATH``; ``None`` where there is none.
    :param runpath: ``DT_RUNPATH``; ``None`` where there is none.
    :param nodeflib: whether it was linked with ``-z nodeflib``.
    """

    machine: str
    wide: bool = True
    soname: str = ""
    needed: tuple[str, ...] = ()
    rpath: str | None = None
    runpath: str | None = None
    nodeflib: bool = False


def read_needed() -> Reader[tuple[str, ...]]:
    """Read which libraries an ELF file is linked with.

    This is another reader than `read_sections`, since the sections stand at the other
    end of most files: side by side, both need one pass over a stream.

    :raises ValueError: it is not an ELF file, or the names cannot be read.
    """
    _, pairs, names = yield from _read_table()
    return (yield from _read_names(pairs, names))


def read_dynamic() -> Reader[Dynamic]:
    """Read what the loader has to know of an ELF file.

    :raises ValueError: it is not an ELF file, or its tables cannot be read.
    """
    header, pairs, names = yield from _read_table()
    needed = yield from _read_names(pairs, names)
    single: dict[int, str] = {}
    for tag, value in pairs:
        if tag in (_DT_SONAME, _DT_RPATH, _DT_RUNPATH) and tag not in single:
            (text,) = yield ((_known(names) + value, MAX_PATHS),)
            single[tag] = text_of(text)
    flags = next((value for tag, value in pairs if tag == _DT_FLAGS_1), 0)
    return Dynamic(
        machine=header.machine_name,
        wide=header.layout.wide,
        soname=single.get(_DT_SONAME, ""),
        needed=needed,
        rpath=single.get(_DT_RPATH),
        runpath=single.get(_DT_RUNPATH),
        nodeflib=bool(flags & _DF_1_NODEFLIB),
    )


def _read_table() -> Reader[tuple[Header, list[tuple[int, int]], int | None]]:
    """Read the entries of the dynamic section, and where their texts are.

    A file without a dynamic section, such as a static program, has no entries.
    """
    (head,) = yield (HEAD,)
    header = parse_header(head)
    (programs,) = yield (header.programs,)
    segments = list(header.layout.segments(programs, header.program_size))
    where = next(((s[1], s[3]) for s in segments if s[0] == _PT_DYNAMIC), (0, 0))
    (dynamic,) = yield ((where[0], min(where[1], MAX_DYNAMIC)),)
    pairs = list(header.layout.dynamic(dynamic))
    address = next((value for tag, value in pairs if tag == _DT_STRTAB), -1)
    return header, pairs, _in_file(segments, address)


def _known(names: int | None) -> int:
    if names is None:
        raise ValueError("the names of the libraries that it needs are not in the file")
    return names


def _read_names(
    pairs: list[tuple[int, int]], names: int | None
) -> Reader[tuple[str, ...]]:
    wanted = [value for tag, value in pairs if tag == _DT_NEEDED][:MAX_NEEDED]
    if not wanted:
        return ()
    start = _known(names)
    texts = yield tuple((start + value, MAX_NAME) for value in wanted)
    needed = tuple(filter(None, map(text_of, texts)))
    if len(needed) < len(wanted):
        raise ValueError("the names of the libraries that it needs are cut off")
    return needed


def _in_file(segments: list[tuple[int, int, int, int]], address: int) -> int | None:
    for kind, offset, start, size in segments:
        if kind == PT_LOAD and start <= address < start + size:
            return offset + address - start
    return None
