"""Containers: real ones, bytes that only look like one, and broken ones."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.containers import (
    BINARIES,
    container,
    entry,
    inspect_bytes,
    inspect_on_disk,
    library,
    write_wheel,
)

from nvp import api
from nvp.gpu_code import compression, fatbin
from nvp.gpu_code.fatbin import MAGIC
from nvp.gpu_code.report import LibraryReport

PLAIN = container(entry(arch=80), entry(1, 90, version=(8, 7)))


def report(data: bytes, path: str = "kernels.bin") -> LibraryReport:
    library = inspect_bytes(data, path)
    assert library is not None
    return library


def test_containers_are_found_anywhere_in_a_file() -> None:
    result = report(b"x" * 13 + PLAIN + bytes(3) + PLAIN + b"end")
    assert result.format == "data"
    assert result.targets == {"80_real": 2, "90_virtual": 2}
    assert result.ptx_isa == {"90_virtual": ("8.7",)}
    assert result.defects == ()


@pytest.mark.parametrize(
    "data",
    [
        MAGIC,
        MAGIC * 40,
        MAGIC + bytes(200),
        MAGIC + b"\1\0\x11\0" + bytes(200),
        # The container claims to be longer than the file, and has no entry.
        container(size=1 << 40) + b"\xff" * 200,
        b"text without any",
        b"",
    ],
)
def test_bytes_that_only_look_like_a_container_are_skipped(data: bytes) -> None:
    assert inspect_bytes(data, "data.bin") is None
    # Such bytes do not hide a following container.
    assert report(data + PLAIN).targets == {"80_real": 1, "90_virtual": 1}
    assert report(data + PLAIN).defects == ()


def test_the_container_of_a_ptx_only_link_is_empty() -> None:
    result = report(container())
    assert (result.format, result.targets, result.defects) == ("fatbin", {}, ())
    assert not result.has_gpu_code


def test_versions_of_ptx_are_sorted_as_numbers() -> None:
    versions = [(9, 0), (8, 10), (8, 7), (9, 0)]
    entries = [entry(1, 90, version=version) for version in versions]
    assert report(container(*entries)).ptx_isa == {"90_virtual": ("8.7", "8.10", "9.0")}


def test_the_letters_of_targets_are_read_from_the_flags() -> None:
    entries = [
        entry(flags=0x100011),
        entry(flags=0x200011),
        entry(1, flags=0x200011),
        entry(8, flags=0x110011),
        entry(arch=100),
    ]
    result = report(container(*entries))
    assert list(result.targets) == ["90a_real", "90f_real", "100_real", "90f_virtual"]
    assert result.lto == {"90a": 1}


def test_unknown_kinds_are_listed() -> None:
    result = report(container(entry(), entry(0x20), entry(0x20), entry(4)))
    assert result.targets == {"90_real": 1}
    assert result.unknown == {"kind 0x20": 2, "kind 0x4": 1}
    assert result.has_gpu_code
    assert result.defects == ()


@pytest.mark.parametrize("lost", [1, 100, 32 * 1024, 33 * 1024])
def test_a_container_that_is_cut_off(lost: int) -> None:
    whole = container(entry(arch=80), entry(arch=90))
    result = report(whole[:-lost])
    assert result.targets["80_real"] == 1
    (defect,) = result.defects
    assert defect.place == "0x0"
    assert "cut off" in defect.message


@pytest.mark.parametrize(
    "broken",
    [
        entry(header=64)[:4] + b"\x08\0\0\0" + entry()[8:],
        entry()[:8] + b"\xff" * 8 + entry()[16:],
        b"\1" * 32,
    ],
)
def test_a_damaged_entry_ends_its_container_only(broken: bytes) -> None:
    result = report(container(entry(arch=80), broken) + PLAIN)
    assert result.targets["80_real"] == 2
    few = len(broken) < 64
    why = (
        "its last bytes are too few for an entry"
        if few
        else "an entry does not fit into it"
    )
    messages = [item.message for item in result.defects]
    assert messages == [f"a container of GPU code is damaged: {why}"]
    assert int(result.defects[0].place, 16) == 16 + len(entry())


def test_a_target_with_an_impossible_number() -> None:
    result = report(container(entry(arch=1 << 31)))
    assert result.targets == {}
    assert [item.message for item in result.defects] == [
        "an entry is for a GPU that cannot exist"
    ]


class TestStubs:
    stub = (BINARIES / "old-stub-75.cubin").read_bytes()
    full = (BINARIES / "old-75.cubin").read_bytes()

    def test_a_stub_has_no_section_with_code(self) -> None:
        result = report(container(entry(payload=self.stub), entry(payload=self.full)))
        assert (result.targets, result.stubs) == ({"90_real": 2}, {"90_real": 1})
        assert result.kernels == {"90_real": 1}

    def test_large_cubins_are_not_searched(self) -> None:
        large = self.stub + bytes(20_000)
        result = report(container(entry(payload=large)))
        assert (result.stubs, result.unchecked) == ({}, 0)

    def test_a_stub_that_lz4_compressed(self) -> None:
        packed = lz4_literals(self.stub)
        whole = entry(payload=packed, flags=0x2011, size=len(self.stub))
        result = report(container(whole))
        assert (result.stubs, result.compression) == ({"90_real": 1}, {"lz4": 1})

    def test_cubins_that_cannot_be_decompressed_are_unchecked(self) -> None:
        for flags in (0x2011, 0x8011):
            whole = entry(payload=b"\xff" * 64, flags=flags, size=900)
            result = report(container(whole))
            assert (result.targets, result.stubs) == ({"90_real": 1}, {})
            assert result.unchecked == 1


def lz4_literals(data: bytes) -> bytes:
    """Return an LZ4 block of literals, without a match."""
    rest = len(data) - 15
    return b"\xf0" + b"\xff" * (rest // 255) + bytes([rest % 255]) + data


def test_groups_with_a_broken_list() -> None:
    data = (BINARIES / "concatenated.fatbin").read_bytes()
    place = data.index(b"\x00\x01\x01\x01") + 64
    many = data[:place] + b"\xff\xff\xff\xff" + data[place + 4 :]
    result = report(many)
    assert sum(result.targets.values()) == 3
    assert [item.message for item in result.defects] == [
        "the list of a group is cut off"
    ]


def test_defects_beyond_the_limit_are_not_listed() -> None:
    broken = container(b"\1" * 32)
    result = report(broken * 100)
    assert len(result.defects) == 21
    assert result.defects[-1].message == "there are more defects"


def test_targets_beyond_the_limit_are_not_listed() -> None:
    entries = [entry(1, arch, payload=b"") for arch in range(1, 3001)]
    result = report(container(*entries))
    assert len(result.targets) < 3000
    (defect,) = result.defects
    assert "not all of its targets" in defect.message


def test_the_number_of_containers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "STEPS", 50)
    data = container(entry()) * 1000
    result = report(data)
    assert sum(result.targets.values()) <= 50
    (defect,) = result.defects
    assert "too many containers" in defect.message
    borders = range(0, len(data), 100)
    assert inspect_bytes(data, "kernels.bin", borders) == result


def test_the_number_of_cubins_looked_at_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compression, "CHECKED", 3)
    result = report(container(*[entry(payload=TestStubs.stub)] * 5))
    assert (result.stubs, result.unchecked) == ({"90_real": 3}, 2)
    # The report has one defect for all remaining cubins.
    (defect,) = result.defects
    assert "not everything was read" in defect.message


def group(*listed: bytes, payload: bytes, flags: int) -> bytes:
    """Return a group: a list of entries of 64 bytes, and their payloads together."""
    names = b"".join(listed)
    names = struct.pack("<II", len(listed), 8 + len(names)) + names
    made = entry(0x100, payload=payload, flags=flags, size=1 << 20)
    header = struct.pack("<I", 64 + len(names))
    return made[:4] + header + made[8:64] + names + made[64:]


LZ4_BOMB = b"\x1fA\x01\0" + b"\xff" * 4110 + b"\0"
"""A block of 4 KiB that stands for a megabyte of the letter A."""

SMALL_CUBIN = entry(payload=b"")[:8] + struct.pack("<Q", 900) + entry(payload=b"")[16:]
LARGE_CUBIN = entry(payload=b"")[:8] + struct.pack("<Q", 1 << 19) + SMALL_CUBIN[16:]


@pytest.mark.parametrize(
    ("listed", "calls"), [((), 0), ((LARGE_CUBIN,), 0), ((SMALL_CUBIN,) * 3, 1)]
)
def test_groups_are_decompressed_for_small_cubins_alone(
    listed: tuple[bytes, ...], calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    def decompress(form: str, _data: bytes, limit: int, _: object) -> bytes:
        if form == "lz4":
            sizes.append(limit)
        return b""

    monkeypatch.setattr(fatbin, "decompress", decompress)
    result = report(container(group(*listed, payload=LZ4_BOMB, flags=0x2000)))
    assert sum(result.targets.values()) == len(listed)
    assert len(sizes) == calls


@pytest.mark.parametrize(
    ("limit", "value"), [("UNPACKED", 3 << 20), ("SEQUENCES", 3), ("STEPS", 8)]
)
def test_the_files_of_a_wheel_share_one_budget(
    limit: str, value: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compression, limit, value)
    one = container(group(SMALL_CUBIN, payload=LZ4_BOMB, flags=0x2000))
    members = {f"demo/{index}.so": one for index in range(40)}
    path = write_wheel(tmp_path / "demo-1.0-py3-none-any.whl", members)
    (defect,) = api.inspect(path).all_defects
    assert "not everything was read" in defect.message


MESSAGE = b"\0CUDA driver version is insufficient for CUDA runtime version\0"
CUDART = MESSAGE + b"\0cuStreamWaitEvent_ptsz\0"
TWELVE = b"\0cuKernelSetCacheConfig\0"
THIRTEEN = b"\0cuMemDiscardAndPrefetchBatchAsync\0"


@pytest.mark.parametrize(
    ("texts", "major"),
    [
        (CUDART, 11),
        (CUDART + TWELVE, 12),
        (TWELVE + bytes(5000) + CUDART + THIRTEEN, 13),
        # A program that queries the driver for a function has no runtime.
        (TWELVE + THIRTEEN, 0),
        (CUDART[:-1], 0),
        # The device runtime has the messages too.
        (MESSAGE + TWELVE, 0),
    ],
)
@given(borders=st.lists(st.integers(0, 40_000), max_size=8))
@settings(max_examples=20)
def test_a_static_runtime_is_found_however_the_file_is_cut(
    borders: list[int], texts: bytes, major: int
) -> None:
    code = library("80_real")
    for data in (code + texts, code + texts + container(entry()), code + bytes(9)):
        expected = major if texts in data else 0
        report = inspect_bytes(data, borders=borders)
        assert report is not None
        assert report.static_cudart == expected
        assert report.cuda_runtime == ((expected,) if expected else ())
        on_disk = inspect_on_disk(data)
        assert on_disk is not None
        assert on_disk.static_cudart == expected


def test_a_text_inside_of_gpu_code_is_no_runtime() -> None:
    inside = entry(payload=CUDART + TWELVE + bytes(32 * 1024))
    report = inspect_bytes(library() + container(inside))
    assert report is not None
    assert report.static_cudart == 0


@pytest.mark.parametrize(
    ("pieces", "toolkit"),
    [
        ([entry(arch=80)], ""),
        ([entry(arch=80, version=(1, 8))], "13.0"),
        # CUDA 12.8 writes this form for Blackwell too.
        ([entry(arch=100, version=(1, 8)), entry(arch=90)], ""),
        ([entry(1, 80, version=(8, 7))], ""),
        ([entry(arch=80, flags=0x8011, size=40_000)], "12.0"),
    ],
)
def test_the_form_of_an_entry_tells_its_toolkit(
    pieces: list[bytes], toolkit: str
) -> None:
    report = inspect_bytes(library() + container(*pieces))
    assert report is not None
    assert report.toolkit == toolkit


@pytest.mark.parametrize(
    ("name", "toolkit"),
    [
        ("new-80.cubin", "13.5"),
        ("old-100.cubin", "12.9"),
        ("concatenated.so", "13.4"),
        ("plain.so", "13.0"),
        ("plain.dll", "13.0"),
        # The SASS of this library has no kernels.
        ("host-only.so", ""),
    ],
)
def test_real_binaries_tell_their_toolkit(name: str, toolkit: str) -> None:
    (report,) = api.inspect(BINARIES / name).libraries
    assert report.toolkit == toolkit
