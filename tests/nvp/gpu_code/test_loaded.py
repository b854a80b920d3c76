"""`doctor` reads only the parts of a library whose data a program passes to CUDA."""

from __future__ import annotations

import itertools
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.containers import (
    BINARIES,
    binaries,
    container,
    entry,
    inspect_bytes,
    inspect_on_disk,
)

from nvidia_variant_provider.strict_json import open_regular
from nvp.gpu_code import dynamic, library
from nvp.gpu_code.dynamic import read_other_parts
from nvp.gpu_code.library import inspect_local
from nvp.gpu_code.ranges import read_all
from nvp.gpu_code.report import LibraryReport

PROGBITS, SYMTAB, STRTAB, RELA, NOBITS = 1, 2, 3, 4, 8
WRITE, ALLOC, EXEC = 1, 2, 4
LONG = 256 * 1024

Part = tuple[int, int, bytes]
"""The type and flags of a section, and its bytes."""


def elf(*parts: Part, wide: bool = True, order: str = "<") -> bytes:
    """Return an ELF file whose sections follow each other, without names."""
    head = 64 if wide else 52
    places = itertools.accumulate((len(item[2]) for item in parts), initial=head)
    row = order + ("IIQQQQIIQQ" if wide else "IIIIIIIIII")
    table = b"".join(
        struct.pack(row, 0, kind, flags, 0, place, len(data), 0, 0, 1, 0)
        for place, (kind, flags, data) in zip(places, parts, strict=False)
    )
    body = b"".join(item[2] for item in parts)
    header = struct.pack(
        order + ("16sHHIQQQIHHHHHH" if wide else "16sHHIIIIIHHHHHH"),
        b"\x7fELF" + bytes([2 if wide else 1, 1 if order == "<" else 2, 1]),
        *(3, 62, 1, 0, 0, head + len(body), 0, head, 0, 0),
        *(struct.calcsize(row), len(parts), 0xFFFF),
    )
    return header + body + table


def inspect(
    data: bytes, folder: Path, *, loaded_only: bool = True
) -> LibraryReport | None:
    place = folder / "lib.so"
    place.write_bytes(data)
    return inspect_local("lib.so", len(data), str(place), loaded_only=loaded_only)


CODE = container(entry(arch=90))


@pytest.mark.parametrize(
    ("kind", "flags", "counts"),
    [
        (PROGBITS, ALLOC, True),
        (PROGBITS, ALLOC | WRITE, True),
        (0x70000001, ALLOC, True),  # a kind of one processor
        (PROGBITS, ALLOC | EXEC, False),
        (PROGBITS, 0, False),  # such as .debug_info, which is not loaded
        (SYMTAB, 0, False),
        (STRTAB, ALLOC, False),
        (RELA, ALLOC, False),
    ],
)
def test_where_gpu_code_counts(
    kind: int, flags: int, counts: bool, tmp_path: Path
) -> None:
    data = elf((kind, flags, bytes(LONG) + CODE + bytes(LONG)))
    report = inspect(data, tmp_path)
    assert report is not None
    assert report.targets == ({"90_real": 1} if counts else {})
    whole = inspect(data, tmp_path, loaded_only=False)
    assert whole is not None
    assert whole.targets == {"90_real": 1}


@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("order", ["<", ">"])
def test_what_is_left_out_is_not_read(
    *, wide: bool, order: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (PROGBITS, ALLOC | EXEC, bytes(16 * LONG))
    rodata = (PROGBITS, ALLOC, CODE)
    symbols = (SYMTAB, 0, bytes(16 * LONG))
    data = elf(text, rodata, text, text, rodata, symbols, wide=wide, order=order)
    opened: list[_Counting] = []

    def counting(path: str) -> _Counting:
        file = _Counting(open_regular(path))
        opened.append(file)
        return file

    monkeypatch.setattr(library, "open_regular", counting)
    report = inspect(data, tmp_path)
    assert report is not None
    assert report.targets == {"90_real": 2}
    (file,) = opened
    assert file.bytes_read < 128 * 1024


class _Counting:
    """A file that counts the bytes which are read of it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.bytes_read = 0

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        self.bytes_read += len(data)
        return data

    def seek(self, *place: int) -> int:
        return self._file.seek(*place)

    def __enter__(self) -> _Counting:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def test_a_container_that_begins_before_such_a_part_is_read_to_its_end(
    tmp_path: Path,
) -> None:
    first, second = entry(arch=80, payload=bytes(LONG)), entry(arch=90)
    whole = container(first, second)
    rodata = (PROGBITS, ALLOC, whole[:100])
    data = elf(rodata, (PROGBITS, ALLOC | EXEC, whole[100:] + bytes(LONG)))
    report = inspect(data, tmp_path)
    assert report is not None
    assert report.targets == {"80_real": 1, "90_real": 1}


@pytest.mark.parametrize("path", binaries(), ids=lambda path: path.name)
def test_real_binaries_have_the_same_report(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dynamic, "_WORTHWHILE", 1)
    data = path.read_bytes()
    assert inspect(data, tmp_path) == inspect(data, tmp_path, loaded_only=False)


def test_parts_of_a_real_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dynamic, "_WORTHWHILE", 1)
    data = (BINARIES / "plain.so").read_bytes()
    parts = read_all(read_other_parts(), data)
    assert parts
    assert all(0 < start < end <= len(data) for start, end in parts)


class _Model:
    """A simple model: whether GPU code counts at each byte of a small file."""

    def __init__(self, rows: Sequence[tuple[int, int, int, int]]) -> None:
        self.rows = rows

    def is_left_out(self, place: int) -> bool:
        inside = [
            (kind, flags)
            for kind, flags, offset, size in self.rows
            if kind not in (0, NOBITS) and offset <= place < offset + size
        ]
        counts = any(
            flags & ALLOC and not flags & EXEC and kind == PROGBITS
            for kind, flags in inside
        )
        return bool(inside) and not counts


@given(
    st.lists(
        st.tuples(
            st.sampled_from([0, PROGBITS, STRTAB, NOBITS]),
            st.integers(0, 7),
            st.integers(0, 40),
            st.integers(0, 40),
        ),
        max_size=8,
    )
)
def test_sections_that_overlap(rows: list[tuple[int, int, int, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dynamic, "_WORTHWHILE", 1)
        parts = tuple(dynamic._parts(rows))
    model = _Model(rows)
    left_out = {place for start, end in parts for place in range(start, end)}
    assert left_out == set(filter(model.is_left_out, range(100)))
    assert list(parts) == sorted(parts)


@pytest.mark.parametrize("offset", [0, 1 << 40, (1 << 64) - LONG])
def test_sections_that_cannot_be_right(offset: int, tmp_path: Path) -> None:
    data = elf((PROGBITS, ALLOC, bytes(LONG) + CODE), (PROGBITS, 0, b""))
    row = len(data) - 64
    fields = struct.pack("<IIQQQQ", 0, PROGBITS, 0, 0, offset, (1 << 64) - 1)
    broken = data[:row] + fields + data[row + len(fields) :]
    report = inspect(broken, tmp_path)
    assert report is not None
    # If two sections overlap, the one that counts has priority.
    assert report.targets == {"90_real": 1}


def test_other_files_are_read_as_ever(tmp_path: Path) -> None:
    for data in (b"\x7fELF" + bytes(9), bytes(LONG) + CODE, os.urandom(64) + CODE):
        report = inspect(data, tmp_path)
        assert report == inspect(data, tmp_path, loaded_only=False)


@pytest.mark.parametrize("name", ["a.ptx", "a.so", "a.cubin"])
def test_an_empty_file_is_the_same_in_a_stream_and_on_disk(name: str) -> None:
    report = inspect_bytes(b"", name)
    assert report == inspect_on_disk(b"", name)
    assert (report is not None) == name.endswith(".ptx")
