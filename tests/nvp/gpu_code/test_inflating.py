"""A comparison of the two inflaters, and the number of times that a library is
inflated."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.containers import BINARIES, container, entry, in_pieces, write_wheel

from nvp import api
from nvp.gpu_code import zip_members
from nvp.gpu_code.library import inspect_library
from nvp.gpu_code.report import BrokenError
from nvp.gpu_code.zip_members import Member, Source

isal_zlib = pytest.importorskip("isal.isal_zlib")

PLAIN = (BINARIES / "plain.so").read_bytes()
NAME = b"demo/a.so"


def archive(packed: bytes) -> bytes:
    header = struct.pack("<4sHHHHHIIIHH", b"PK\3\4", *(0,) * 8, len(NAME), 0)
    return header + NAME + packed


def read(
    module: ModuleType, packed: bytes, crc: int, size: int
) -> tuple[bytes, str | None]:
    """Read a member, and return its bytes and its defect."""
    member = Member(
        name=NAME.decode(),
        raw_name=NAME,
        size=size,
        offset=0,
        packed=len(packed),
        method=zipfile.ZIP_DEFLATED,
        crc=crc,
    )
    source = Source(io.BytesIO(archive(packed)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zip_members, "_module", lambda: module)
        out = b""
        try:
            for piece in member.pieces(source):
                out += piece
        except BrokenError as error:
            return out, str(error)
        return out, None


def squeeze(data: bytes, level: int = 6) -> bytes:
    packer = zlib.compressobj(level, zlib.DEFLATED, -15)
    return packer.compress(data) + packer.flush()


CONTENTS = st.one_of(
    st.binary(max_size=3000),
    st.builds(bytes.__mul__, st.binary(max_size=40), st.integers(0, 20_000)),
    st.integers(0, len(PLAIN)).map(lambda kept: PLAIN[:kept]),
)


@given(CONTENTS, st.integers(0, 9))
def test_both_inflate_the_same(data: bytes, level: int) -> None:
    packed = squeeze(data, level)
    for module in (isal_zlib, zlib):
        assert read(module, packed, zlib.crc32(data), len(data)) == (data, None)


@given(
    CONTENTS,
    st.integers(0, 9),
    st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(1, 255)), max_size=3),
    st.none() | st.integers(0, 1 << 20),
    st.integers(-3, 3),
)
def test_both_find_the_same_damage(
    data: bytes,
    level: int,
    changes: list[tuple[int, int]],
    cut: int | None,
    longer: int,
) -> None:
    packed = bytearray(squeeze(data, level))
    for at, mask in changes:
        packed[at % len(packed)] ^= mask
    if cut is not None:
        del packed[cut % len(packed) :]
    claims = max(0, len(data) + longer)
    (out, message), (other, same) = (
        read(module, bytes(packed), zlib.crc32(data), claims)
        for module in (isal_zlib, zlib)
    )
    # Their texts and what they inflate before the damage may differ.
    assert (message is None) == (same is None)
    assert max(len(out), len(other)) <= claims
    if message is None:
        assert out == other


@pytest.mark.parametrize("claims", [1000, 1 << 22])
def test_a_bomb_is_read_as_far_as_it_may_be(claims: int) -> None:
    packed = squeeze(bytes(1 << 22), 9)
    results = {read(module, packed, 0, claims) for module in (isal_zlib, zlib)}
    ((out, message),) = results
    assert len(out) == claims
    assert message == (
        "its checksum is wrong"
        if claims == 1 << 22
        else "it is longer than the 1000 bytes that it claims"
    )


def test_reports_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    members = {
        f"demo/{path.name}": path.read_bytes()
        for path in sorted(BINARIES.iterdir())
        if path.is_file()
    }
    path = write_wheel(tmp_path / "demo-1.0-py3-none-any.whl", members)
    assert zip_members.inflater_name() == "isal"
    with_isal = api.inspect(path, jobs=2)
    monkeypatch.setattr(zip_members, "_module", lambda: zlib)
    assert zip_members.inflater_name() == "zlib"
    assert api.inspect(path, jobs=2) == with_isal
    assert any(library.targets for library in with_isal.libraries)


MIB = 1 << 20


def library_of_lld(
    *, with_code: bool, loaded: int = MIB, symbols: int = 8 * MIB, names_at: int = 100
) -> bytes:
    """Make a library as lld lays it out: names of sections, symbols, headers.

    :param loaded: bytes of the loaded part, which may have GPU code.
    :param symbols: bytes between the names of the sections and the section headers.
    """
    fat = container(entry()) if with_code else b""
    names = b"\0.nv_fatbin\0.strtab\0.shstrtab\0"
    start = loaded + names_at
    headers = start + len(names) + symbols
    head = bytearray(loaded)
    numbers = (3, 62, 1, 0, 64, headers, 0, 64, 56, 1, 64, 4, 3)
    struct.pack_into("<16sHHIQQQIHHHHHH", head, 0, b"\x7fELF\x02\x01\x01", *numbers)
    struct.pack_into("<IIQQQQQQ", head, 64, 1, 4, 0, 0, 0, loaded, loaded, 0)
    head[4096 : 4096 + len(fat)] = fat
    rows = [
        (0, 0, 0, 0),
        (1, 1, 4096, max(8, len(fat))),
        (12, 3, start + len(names), symbols),
        (20, 3, start, len(names)),
    ]
    table = b"".join(
        struct.pack("<IIQQQQIIQQ", name, kind, 0, 0, at, size, 0, 0, 1, 0)
        for name, kind, at, size in rows
    )
    return bytes(head) + bytes(names_at) + names + b"s" * symbols + table


class Stream:
    """Pieces of a file, which counts the bytes that it gives."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.given = 0

    def __call__(self) -> Iterator[bytes]:
        for piece in in_pieces(self.data, list(range(0, len(self.data), 200_000))):
            self.given += len(piece)
            yield piece


@pytest.mark.parametrize("with_code", [True, False])
def test_a_library_of_lld_is_read_once(*, with_code: bool) -> None:
    """The names of its sections, which are far before the headers, are not needed."""
    data = library_of_lld(with_code=with_code)
    stream = Stream(data)
    report = inspect_library("demo.so", len(data), stream)
    assert report is not None
    assert report.has_gpu_code == with_code
    assert report.defects == ()
    assert stream.given == len(data)
