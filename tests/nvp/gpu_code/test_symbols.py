"""The symbols of ELF files, compared with the compiled source."""

from __future__ import annotations

import contextlib
import io
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cxx_libraries import compile_library, needs_cxx, torch_library

from nvp.gpu_code.dynamic import read_symbols

SOURCE = """
extern int wanted();
extern int optional() __attribute__((weak));
int own() { return wanted() + (optional ? optional() : 0); }
int __attribute__((weak)) replaceable() { return 2; }
static int local() { return 3; }
int use() { return local(); }
int __attribute__((visibility("hidden"))) hidden() { return 4; }
int variable = 5;
"""


def symbols(data: bytes) -> dict[bytes, tuple[bool, bool]]:
    return {
        symbol.name: (symbol.is_defined, symbol.is_weak)
        for symbol in read_symbols(io.BytesIO(data))
    }


@needs_cxx
def test_what_a_library_defines_and_wants() -> None:
    table = symbols(compile_library(SOURCE))
    expected = {
        b"_Z6wantedv": (False, False),
        b"_Z8optionalv": (False, True),
        b"_Z3ownv": (True, False),
        b"_Z11replaceablev": (True, True),
        b"variable": (True, False),
    }
    assert {name: table.get(name) for name in expected} == expected
    assert not any(b"hidden" in name or b"local" in name for name in table)


@needs_cxx
def test_only_the_tables_are_read() -> None:
    class Counting(io.BytesIO):
        read_bytes = 0

        def read(self, size: int | None = -1) -> bytes:
            data = super().read(size)
            self.read_bytes += len(data)
            return data

    data = compile_library(SOURCE + "char large[1 << 20] = {1};")
    file = Counting(data)
    assert any(symbol.name == b"large" for symbol in read_symbols(file))
    assert len(data) > 1 << 20 > 64 * file.read_bytes


@pytest.mark.skipif(sys.platform != "linux", reason="reads an ELF file of this machine")
def test_the_running_interpreter() -> None:
    with Path(sys.executable).open("rb") as file:
        names = [symbol.name for symbol in read_symbols(file)]
    assert names


Row = tuple[int, int, int, int, int, int]


def with_32_bits(order: str, names: bytes, rows: Sequence[Row]) -> bytes:
    at = len(names)
    names += b"\0.dynsym\0.dynstr\0"
    table = b"".join(struct.pack(f"{order}IIIBBH", *row) for row in rows)
    sections = [(0, 0, 0, 0), (at + 1, 11, 52, len(table))]
    sections.append((at + 9, 3, 52 + len(table), len(names)))
    headers = b"".join(
        struct.pack(f"{order}IIIIIIIIII", name, kind, 0, 0, at, size, 0, 0, 0, 0)
        for name, kind, at, size in sections
    )
    ident = b"\x7fELF" + bytes([1, 1 if order == "<" else 2]) + bytes(10)
    header = struct.pack(
        f"{order}HHIIIIIHHHHHH",
        *(3, 40, 1, 0, 0, 52 + len(table) + len(names), 0, 52, 32, 0, 40, 3, 2),
    )
    return ident + header + table + names + headers


@pytest.mark.parametrize("order", ["<", ">"])
def test_files_with_32_bits(order: str) -> None:
    rows = [(0, 0, 0, 0, 0, 0), (1, 0x1000, 4, 0x12, 0, 1), (9, 0, 0, 0x20, 0, 0)]
    data = with_32_bits(order, b"\0defined\0wanted", rows)
    assert symbols(data) == {b"defined": (True, False), b"wanted": (False, True)}


def test_long_names_count_by_their_memory() -> None:
    # In four small libraries, 4,000 names that share their bytes took 240 MB.
    rows = [(at, 0, 0, 0x12, 0, 0) for at in range(100)]
    data = with_32_bits("<", b"x" * 60_000, rows)
    taken: list[int] = []

    def take(cost: int) -> bool:
        taken.append(cost)
        return True

    found = list(read_symbols(io.BytesIO(data), take=take))
    assert len(found) == 100
    assert sum(taken) >= sum(len(symbol.name) for symbol in found) / 16


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"MZ" + bytes(100), bytes(64)])
def test_what_is_no_elf_file(data: bytes) -> None:
    with pytest.raises(ValueError, match="not an ELF file"):
        symbols(data)


@needs_cxx
@settings(deadline=None)  # the first example compiles the library
@given(st.data())
def test_damage_is_an_error_and_nothing_else(draw: st.DataObject) -> None:
    data = bytearray(torch_library())
    table = draw.draw(st.sampled_from([64, len(data)]))
    for _ in range(draw.draw(st.integers(1, 8))):
        data[draw.draw(st.integers(4, table - 1))] = draw.draw(st.integers(0, 255))
    end = draw.draw(st.sampled_from([len(data), len(data) - 1, len(data) // 2, 100]))
    with contextlib.suppress(ValueError):
        # A damaged table may have names that are empty.
        assert symbols(bytes(data[:end])) is not None
