"""The dynamic section, read from files on disk and from damaged ones."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.gpu_wheels import binary

from nvp.gpu_code.dynamic import Dynamic, read_dynamic, read_needed
from nvp.gpu_code.ranges import read_all, read_seekable

PLAIN = binary("plain.so")


def test_a_library_that_nvcc_has_linked() -> None:
    dynamic = read_seekable(read_dynamic(), io.BytesIO(PLAIN))
    assert dynamic.machine == "x86_64"
    assert dynamic.wide
    assert dynamic.needed == ("libcudart.so.13",)
    assert (dynamic.soname, dynamic.rpath, dynamic.runpath) == ("", None, None)
    assert read_all(read_dynamic(), PLAIN) == dynamic
    assert read_all(read_needed(), PLAIN) == dynamic.needed


@pytest.mark.skipif(sys.platform == "win32", reason="sparse files of Linux")
def test_a_library_of_3_gb_is_read_by_its_tables_alone(tmp_path: Path) -> None:
    path = tmp_path / "large.so"
    path.write_bytes(PLAIN)
    with path.open("r+b") as file:
        file.truncate(3 << 30)
    with _Counted(path) as file:
        assert read_seekable(read_dynamic(), file).needed == ("libcudart.so.13",)
        assert file.count < 64 * 1024


class _Counted(io.FileIO):
    """A file that counts the bytes that are read."""

    count = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size) or b""
        self.count += len(data)
        return data


@given(st.data())
def test_any_bytes_are_read_or_refused(data: st.DataObject) -> None:
    damaged = bytearray(PLAIN)
    # The reader follows addresses in the headers and in the dynamic section.
    for _ in range(data.draw(st.integers(1, 12))):
        place = data.draw(
            st.one_of(
                st.integers(0, 1023),
                st.integers(0x3E98, 0x3E98 + 271),
                st.integers(0, len(damaged) - 1),
            )
        )
        damaged[place] = data.draw(st.integers(0, 255))
    cut = bytes(damaged[: data.draw(st.integers(0, len(damaged)))])
    for item in (bytes(damaged), cut):
        assert _outcome(item, seekable=True) == _outcome(item, seekable=False)


def _outcome(data: bytes, *, seekable: bool) -> Dynamic | str:
    try:
        if seekable:
            return read_seekable(read_dynamic(), io.BytesIO(data))
        return read_all(read_dynamic(), data)
    except ValueError as error:
        return str(error)
