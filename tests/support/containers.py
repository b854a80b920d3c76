"""Containers of GPU code and archives, made byte by byte."""

from __future__ import annotations

import itertools
import struct
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest.mock import patch

from support.paths import FIXTURES

from nvp.gpu_code import library as library_module
from nvp.gpu_code.library import inspect_library, inspect_local
from nvp.gpu_code.report import LibraryReport

__all__ = [
    "BINARIES",
    "binaries",
    "container",
    "entry",
    "in_pieces",
    "inspect_bytes",
    "inspect_on_disk",
    "library",
    "linked",
    "plain_target",
    "write_wheel",
]

BINARIES = FIXTURES / "binaries"


def binaries() -> list[Path]:
    """Return the paths of the small real binaries."""
    return [
        path
        for path in sorted(BINARIES.iterdir())
        if path.suffix not in (".json", ".py") and path.is_file()
    ]


def entry(
    kind: int = 2,
    arch: int = 90,
    *,
    payload: bytes = bytes(32 * 1024),
    flags: int = 0x11,
    version: tuple[int, int] = (1, 7),
    header: int = 64,
    size: int = 0,
) -> bytes:
    """Return one entry with its payload.

    :param version: the version of the PTX language, or of the cubin.
    :param size: the decompressed size of a compressed payload.
    """
    major, minor = version
    packed = len(payload) if size else 0
    padded = payload + bytes(-len(payload) % 8)
    fields = struct.pack(
        "<HHIQIIHHIIIQQQ",
        *(kind, 0x0101, header, len(padded), packed, 0, minor, major, arch),
        *(0, 0, flags, 0, size),
    )
    return fields + bytes(header - 64) + padded


def container(*entries: bytes, size: int | None = None) -> bytes:
    """Return a container of ``entries``, whose header may claim another size."""
    body = b"".join(entries)
    length = len(body) if size is None else size
    return struct.pack("<4sHHQ", b"\x50\xed\x55\xba", 1, 16, length) + body


def library(*targets: str, isa: tuple[int, int] = (9, 0)) -> bytes:
    """Return an ELF library without sections, with code for ``targets``.

    :param isa: the version of its PTX.
    """
    kinds = {"real": 2, "virtual": 1}
    letters = {"": 0x11, "a": 0x100011, "f": 0x200011}
    entries = []
    for target in targets:
        number, _, kind = target.partition("_")
        letter = number.lstrip("0123456789")
        entries.append(
            entry(
                kinds[kind],
                int(number.removesuffix(letter)),
                flags=letters[letter],
                version=isa if kind == "virtual" else (1, 7),
            )
        )
    header = struct.pack(
        "<16sHHIQQQIHHHHHH",
        b"\x7fELF\x02\x01\x01",
        *(3, 62, 1, 0, 0, 0, 0, 64, 0, 0, 0, 0, 0),
    )
    return header + (container(*entries) if entries else b"")


def linked(
    *needed: str, runpath: str = "", soname: str = "", names: int | None = None
) -> bytes:
    """Return an ELF library without sections, which is linked with others.

    :param names: the address of the string table in the dynamic section.
    """
    texts = [*needed, soname, runpath]
    starts = [sum(len(text) + 1 for text in texts[:at]) for at in range(len(texts))]
    tags = [
        *(1 for _ in needed),
        *([14] if soname else [0]),
        *([29] if runpath else [0]),
    ]
    pairs = [(tag, start) for tag, start in zip(tags, starts, strict=True) if tag]
    dynamic_at = 64 + 2 * 56
    names_at = dynamic_at + 16 * (len(pairs) + 2)
    pairs += [(5, names_at if names is None else names), (0, 0)]
    dynamic = b"".join(struct.pack("<QQ", *pair) for pair in pairs)
    strings = b"".join(text.encode() + b"\0" for text in texts)
    size = names_at + len(strings)
    header = b"\x7fELF\2\1\1".ljust(16, b"\0") + struct.pack(
        "<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, 2, 0, 0, 0
    )
    load = struct.pack("<IIQQQQQQ", 1, 4, 0, 0, 0, size, size, 4096)
    place = (dynamic_at, dynamic_at, dynamic_at, len(dynamic), len(dynamic))
    return header + load + struct.pack("<IIQQQQQQ", 2, 4, *place, 8) + dynamic + strings


def in_pieces(data: bytes, borders: Sequence[int]) -> Iterator[bytes]:
    """Yield ``data`` in pieces, cut at ``borders``."""
    places = sorted({0, len(data), *(b % (len(data) + 1) for b in borders)})
    for start, end in itertools.pairwise(places):
        yield data[start:end]


def inspect_bytes(
    data: bytes, path: str = "lib.so", borders: Sequence[int] = ()
) -> LibraryReport | None:
    return inspect_library(path, len(data), lambda: in_pieces(data, borders))


def inspect_on_disk(
    data: bytes, path: str = "lib.so", step: int = 128
) -> LibraryReport | None:
    """Inspect a file on disk, of which parts are skipped.

    :param step: the number of bytes that are read between two skipped parts.
    """
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, "file")
        place.write_bytes(data)
        with patch.multiple(library_module, _STEP=4 * step, _SHORT=step):
            return inspect_local(path, len(data), str(place))


def plain_target(target: str) -> str:
    """Return the name under which ``cuobjdump`` lists a target.

    The name of SASS for a family has no letter, because ``100f_real`` runs wherever
    ``100_real`` does. The name of PTX keeps the letter, because such PTX compiles only
    for its family.
    """
    number, _, kind = target.partition("_")
    return f"{number.removesuffix('f')}_real" if kind == "real" else target


def write_wheel(
    path: Path, members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED
) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path
