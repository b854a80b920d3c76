"""Hostile and damaged wheels: each causes a defect, and none an exception."""

from __future__ import annotations

import io
import struct
import threading
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from support.containers import BINARIES, container, entry, write_wheel

from nvidia_variant_provider.errors import InputError
from nvp import api
from nvp.gpu_code import zip_members
from nvp.gpu_code.fatbin import MAGIC
from nvp.gpu_code.report import BrokenError, WheelReport
from nvp.gpu_code.zip_members import AHEAD, PIECE, ReadAhead
from nvp.wheels.archive import open_wheel, read_dist_info

PLAIN = (BINARIES / "plain.so").read_bytes()
MEMBERS = {"demo/a.so": PLAIN, "demo/b.so": PLAIN}


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    return write_wheel(tmp_path / "demo-1.0-py3-none-any.whl", MEMBERS)


def patched(wheel: Path, change: Callable[[bytearray], None]) -> WheelReport:
    data = bytearray(wheel.read_bytes())
    change(data)
    wheel.write_bytes(data)
    return api.inspect(wheel)


def central(data: bytes | bytearray, number: int) -> int:
    """Return the position of a member's entry in the central directory."""
    at = -1
    for _ in range(number + 1):
        at = data.index(b"PK\1\2", at + 1)
    return at


def messages(report: WheelReport) -> list[tuple[str, str]]:
    return [(defect.path, defect.message) for defect in report.all_defects]


def others_are_read(report: WheelReport, lost: str = "demo/a.so") -> bool:
    whole = {item.path for item in report.libraries if item.targets.get("75_real")}
    return {"demo/a.so", "demo/b.so"} - whole <= {lost}


def test_encrypted(wheel: Path) -> None:
    def change(data: bytearray) -> None:
        data[central(data, 0) + 8] |= 1

    report = patched(wheel, change)
    assert messages(report) == [("demo/a.so", "not read: it is encrypted")]
    assert [item.path for item in report.libraries] == ["demo/b.so"]
    assert report.members == 2


def test_unknown_compression(wheel: Path) -> None:
    def change(data: bytearray) -> None:
        struct.pack_into("<H", data, central(data, 1) + 10, 14)

    report = patched(wheel, change)
    message = "not read: wheels do not use compression method 14"
    assert messages(report) == [("demo/b.so", message)]


def test_wrong_checksum(wheel: Path) -> None:
    def change(data: bytearray) -> None:
        data[central(data, 0) + 16] ^= 1

    report = patched(wheel, change)
    assert messages(report) == [("demo/a.so", "its checksum is wrong")]
    # The report has both the code and the defect.
    assert [len(item.targets) for item in report.libraries] == [4, 4]


def test_overlapping_members(wheel: Path) -> None:
    def change(data: bytearray) -> None:
        struct.pack_into("<I", data, central(data, 1) + 42, 100)

    report = patched(wheel, change)
    assert others_are_read(report, "demo/b.so") or not report.libraries
    assert ("demo/a.so", "not read: it overlaps another member of the archive") in (
        messages(report)
    )


@pytest.mark.parametrize("name", ["demo/a.so", "demo-1.0.dist-info/METADATA"])
def test_data_that_inflates_to_nothing(name: str, tmp_path: Path) -> None:
    """A server can send such data forever."""
    path = tmp_path / "demo-1.0-py3-none-any.whl"
    empty = b"\0\0\0\xff\xff" * 900_000  # stored blocks
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, empty)
    data = bytearray(path.read_bytes())
    for at in (8, central(data, 0) + 10):
        struct.pack_into("<H", data, at, zipfile.ZIP_DEFLATED)
    struct.pack_into("<I", data, central(data, 0) + 24, 9)
    path.write_bytes(data)
    with open_wheel(str(path)) as archive:
        if name.endswith("METADATA"):
            with pytest.raises(InputError, match="larger than 4 MiB"):
                read_dist_info(archive, "METADATA")
    wanted = "not read: its data is longer than its content needs"
    assert messages(api.inspect(path)) == [(name, wanted)]


@pytest.mark.parametrize("size", [10, len(PLAIN) - 1, len(PLAIN) + 1, 1 << 31])
def test_another_size_than_claimed(wheel: Path, size: int) -> None:
    def change(data: bytearray) -> None:
        struct.pack_into("<I", data, central(data, 0) + 24, size)

    report = patched(wheel, change)
    longer = f"it is longer than the {size} bytes that it claims"
    shorter = f"it ends after {len(PLAIN)} of the {size} bytes that it claims"
    wanted = longer if size < len(PLAIN) else shorter
    assert ("demo/a.so", wanted) in messages(report)
    assert others_are_read(report)


def test_damaged_data(wheel: Path) -> None:
    def change(data: bytearray) -> None:
        data[200:260] = b"\xff" * 60

    report = patched(wheel, change)
    assert [path for path, _ in messages(report)][:1] == ["demo/a.so"]
    assert "cannot be decompressed" in messages(report)[0][1]
    assert others_are_read(report)


def test_local_header_elsewhere(wheel: Path) -> None:
    report = patched(wheel, lambda data: data.__setitem__(0, 0))
    message = "its local header is not where the archive's list says"
    assert ("demo/a.so", message) in messages(report)
    assert others_are_read(report)


def test_local_header_with_another_name(wheel: Path) -> None:
    report = patched(wheel, lambda data: data.__setitem__(30, ord("x")))
    message = "its local header has another name than the archive's list"
    assert ("demo/a.so", message) in messages(report)
    assert others_are_read(report)


def test_the_same_name_twice(tmp_path: Path) -> None:
    path = tmp_path / "demo-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("demo/a.so", PLAIN)
        with pytest.warns(UserWarning, match="Duplicate"):
            file.writestr("demo/a.so", PLAIN)
    report = api.inspect(path)
    message = "several members of the archive have this name"
    assert messages(report) == [("demo/a.so", message)]
    assert len(report.libraries) == 2


@pytest.mark.parametrize("kept", [0, 3, 22, 1000])
def test_an_archive_that_is_cut_off(wheel: Path, kept: int) -> None:
    wheel.write_bytes(wheel.read_bytes()[:kept])
    report = api.inspect(wheel)
    assert (report.kind, report.libraries) == ("wheel", ())
    (defect,) = report.defects
    assert defect.message.startswith("not a readable archive")


def test_members_beyond_the_total_are_not_read(
    wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zip_members, "MAX_TOTAL", len(PLAIN) + 1)
    report = api.inspect(wheel)
    assert [item.path for item in report.libraries] == ["demo/a.so"]
    ((path, message),) = messages(report)
    assert path == "demo/b.so"
    assert message.startswith("not read: the members claim more than")


def deflated(pieces: Iterable[bytes]) -> tuple[bytes, int, int]:
    """Compress the data of a member; return them with checksum and size."""
    squeeze = zlib.compressobj(9, zlib.DEFLATED, -15)
    out, crc, size = [], 0, 0
    for piece in pieces:
        out.append(squeeze.compress(piece))
        crc, size = zlib.crc32(piece, crc), size + len(piece)
    return b"".join([*out, squeeze.flush()]), crc, size


def raw_wheel(
    data: bytes, crc: int, size: int, name: bytes = b"demo/a.so", extra: bytes = b""
) -> bytes:
    """Make an archive of one member, which may lie about checksum and size.

    :param extra: fields of the local header, such as the time that Info-ZIP puts there.
    """
    common = (20, 0, 8, 0, 0, crc, len(data), size, len(name))
    local = struct.pack("<4sHHHHHIIIHH", b"PK\3\4", *common, len(extra)) + name + extra
    listed = struct.pack(
        "<4sHHHHHHIIIHHHHHII", b"PK\1\2", 20, *common, 0, 0, 0, 0, 0, 0
    )
    listed += name
    end = struct.pack(
        "<4sHHHHIIH", b"PK\5\6", 0, 0, 1, 1, len(listed), len(local) + len(data), 0
    )
    return local + data + listed + end


@pytest.mark.parametrize("length", [0, 5, 28, 65_535])
@pytest.mark.parametrize("zeros", [0, zip_members.PIECE])
def test_fields_of_a_local_header(length: int, zeros: int) -> None:
    data, crc, size = deflated([PLAIN, bytes(zeros)])
    report = api.inspect(io.BytesIO(raw_wheel(data, crc, size, extra=bytes(length))))
    assert report.complete
    assert [item.path for item in report.libraries] == ["demo/a.so"]
    assert report.libraries[0].targets["75_real"]


LARGE = 128 * 1024 * 1024
"""Bytes of a member, eight times the memory that reading it may take."""


@pytest.mark.parametrize(
    "claims",
    [LARGE, pytest.param(1 << 17, marks=pytest.mark.slow)],
    ids=["honest", "lying"],
)
@pytest.mark.parametrize(
    "head",
    [b"", PLAIN, container(entry(payload=b""), size=1 << 26)],
    ids=["zeros", "library", "container"],
)
def test_memory_does_not_grow_with_a_member(head: bytes, claims: int) -> None:
    zeros = bytes(1 << 20)
    pieces = [head, *[zeros] * (LARGE // len(zeros) - 1), zeros[len(head) :]]
    data, crc, size = deflated(pieces)
    assert size == LARGE
    file = io.BytesIO(raw_wheel(data, crc, claims))
    tracemalloc.start()
    report = api.inspect(file)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 * 1024 * 1024
    if claims == LARGE:
        assert [item.place for item in report.all_defects] == (
            ["0x50"] if head.startswith(MAGIC) else []
        )
    else:
        # Only the allowed number of bytes is read.
        texts = [defect.message for defect in report.all_defects]
        assert "it is longer than the 131072 bytes that it claims" in texts


@pytest.mark.parametrize("jobs", [1, 2])
def test_one_wrong_bit_in_the_headers(wheel: Path, jobs: int) -> None:
    """Each wrong bit results in a report, with or without a defect."""
    whole = wheel.read_bytes()
    start = central(whole, 0)
    places = [*range(40), *range(start, len(whole))]
    with_defects = 0
    for place in places[:: jobs * 3]:
        data = bytearray(whole)
        data[place] ^= 1 << place % 8
        report = api.inspect(io.BytesIO(data), jobs=jobs)
        with_defects += bool(report.all_defects)
    assert with_defects > 10


def test_a_file_that_is_read_ahead() -> None:
    """The thread waits for room, passes on an error, and ends when it is stopped."""
    counts = []
    error = BrokenError("its data is damaged")

    def pieces() -> Iterator[bytes]:
        counts.append(0)
        for number in range(2 * AHEAD // PIECE):
            counts[-1] += 1
            yield bytes([number])
        raise error

    ahead = ReadAhead(pieces)
    read = ahead()
    assert next(read) == b"\0"
    assert counts[0] <= AHEAD // PIECE + 3
    with pytest.raises(BrokenError, match="damaged"):
        list(read)
    with pytest.raises(BrokenError, match="damaged"):
        list(ahead())
    assert counts == [2 * AHEAD // PIECE] * 2

    others = set(threading.enumerate())
    abandoned = ReadAhead(pieces)
    assert next(abandoned()) == b"\0"
    abandoned.stop()
    for thread in set(threading.enumerate()) - others:
        thread.join(60)
        assert not thread.is_alive()
    assert counts[2] < counts[0]
