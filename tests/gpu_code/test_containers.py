"""Chains of entries: real ones, others that only look like one, broken ones."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from support.containers import (
    BINARIES,
    container,
    entry,
    inspect_bytes,
    write_wheel,
)

from nvidia_variant_provider import api
from nvidia_variant_provider.gpu_code import budget, fatbin
from nvidia_variant_provider.gpu_code.fatbin import MAGIC
from nvidia_variant_provider.gpu_code.report import LibraryReport

PLAIN = container(entry(arch=80), entry(1, 90, version=(8, 7)))


def report(data: bytes, path: str = "kernels.bin") -> LibraryReport:
    found = inspect_bytes(data, path)
    assert found is not None
    return found


def test_containers_stand_anywhere() -> None:
    found = report(b"x" * 13 + PLAIN + bytes(3) + PLAIN + b"end")
    assert found.format == "data"
    assert found.targets == {"80_real": 2, "90_virtual": 2}
    assert found.ptx_isa == {"90_virtual": ("8.7",)}
    assert found.sections == {"": 2}
    assert found.defects == ()


@pytest.mark.parametrize(
    "data",
    [
        MAGIC,
        MAGIC * 40,
        MAGIC + bytes(200),
        MAGIC + b"\1\0\x11\0" + bytes(200),
        # Longer than the file, and nothing like an entry in it.
        container(size=1 << 40) + b"\xff" * 200,
        b"text without any",
        b"",
    ],
)
def test_what_only_looks_like_one_is_passed_over(data: bytes) -> None:
    assert inspect_bytes(data, "data.bin") is None
    # And does not hide what follows.
    assert report(data + PLAIN).targets == {"80_real": 1, "90_virtual": 1}
    assert report(data + PLAIN).defects == ()


def test_the_container_of_a_ptx_only_link_is_empty() -> None:
    found = report(container())
    assert (found.format, found.targets, found.defects) == ("fatbin", {}, ())
    assert not found.has_gpu_code


def test_versions_of_ptx_are_sorted_as_numbers() -> None:
    versions = [(9, 0), (8, 10), (8, 7), (9, 0)]
    entries = [entry(1, 90, version=version) for version in versions]
    assert report(container(*entries)).ptx_isa == {"90_virtual": ("8.7", "8.10", "9.0")}


def test_letters_are_flags() -> None:
    entries = [
        entry(flags=0x100011),
        entry(flags=0x200011),
        entry(1, flags=0x200011),
        entry(8, flags=0x110011),
        entry(arch=100),
    ]
    found = report(container(*entries))
    assert (
        list(found.targets)
        == [
            "90_real",
            "90a_real",
            "90f_real",
            "100_real",
            "90f_virtual",
        ][1:]
    )
    assert found.lto == {"90a": 1}


def test_unknown_kinds_are_listed() -> None:
    found = report(container(entry(), entry(0x20), entry(0x20), entry(4)))
    assert found.targets == {"90_real": 1}
    assert found.unknown == {"kind 0x20": 2, "kind 0x4": 1}
    assert found.has_gpu_code
    assert found.defects == ()


@pytest.mark.parametrize("lost", [1, 100, 32 * 1024, 33 * 1024])
def test_a_container_that_is_cut_off(lost: int) -> None:
    whole = container(entry(arch=80), entry(arch=90))
    found = report(whole[:-lost])
    assert found.targets["80_real"] == 1
    (defect,) = found.defects
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
def test_a_chain_that_breaks(broken: bytes) -> None:
    found = report(container(entry(arch=80), broken) + PLAIN)
    assert found.targets["80_real"] == 2
    few = len(broken) < 64
    why = "too few bytes for another entry" if few else "an entry that does not fit"
    messages = [item.message for item in found.defects]
    assert messages == [f"a container of GPU code is damaged: {why}"]
    assert int(found.defects[0].place, 16) == 16 + len(entry())


def test_a_target_that_cannot_be() -> None:
    found = report(container(entry(arch=1 << 31)))
    assert found.targets == {}
    assert [item.message for item in found.defects] == [
        "an entry for a GPU that cannot be"
    ]


class TestStubs:
    stub = (BINARIES / "old-stub-75.cubin").read_bytes()
    full = (BINARIES / "old-75.cubin").read_bytes()

    def test_by_their_sections(self) -> None:
        found = report(container(entry(payload=self.stub), entry(payload=self.full)))
        assert (found.targets, found.stubs) == ({"90_real": 2}, {"90_real": 1})
        assert found.kernels == {"90_real": 1}

    def test_large_ones_are_not_looked_at(self) -> None:
        large = self.stub + bytes(20_000)
        found = report(container(entry(payload=large)))
        assert (found.stubs, found.unchecked) == ({}, 0)

    def test_lz4(self) -> None:
        packed = lz4_literals(self.stub)
        whole = entry(payload=packed, flags=0x2011, size=len(self.stub))
        found = report(container(whole))
        assert (found.stubs, found.compression) == ({"90_real": 1}, {"lz4": 1})

    def test_what_cannot_be_decompressed(self) -> None:
        for flags in (0x2011, 0x8011):
            whole = entry(payload=b"\xff" * 64, flags=flags, size=900)
            found = report(container(whole))
            assert (found.targets, found.stubs) == ({"90_real": 1}, {})
            assert found.unchecked == 1


def lz4_literals(data: bytes) -> bytes:
    """An LZ4 block without a match."""
    rest = len(data) - 15
    return b"\xf0" + b"\xff" * (rest // 255) + bytes([rest % 255]) + data


def test_groups_with_a_broken_list() -> None:
    data = (BINARIES / "concatenated.fatbin").read_bytes()
    place = data.index(b"\x00\x01\x01\x01") + 64
    many = data[:place] + b"\xff\xff\xff\xff" + data[place + 4 :]
    found = report(many)
    assert sum(found.targets.values()) == 3
    assert [item.message for item in found.defects] == [
        "the list of a group is cut off"
    ]


def test_many_defects_are_cut_short() -> None:
    broken = container(b"\1" * 32)
    found = report(broken * 100)
    assert len(found.defects) == 21
    assert found.defects[-1].message == "there are more defects"


def test_many_targets_are_cut_short() -> None:
    entries = [entry(1, arch, payload=b"") for arch in range(1, 3001)]
    found = report(container(*entries))
    assert len(found.targets) < 3000
    (defect,) = found.defects
    assert "more than 4096 targets" in defect.message


def test_the_number_of_containers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "STEPS", 50)
    data = container() * 1000
    found = report(data)
    assert found.sections[""] <= 50
    (defect,) = found.defects
    assert "too many containers" in defect.message
    borders = range(0, len(data), 100)
    assert inspect_bytes(data, "kernels.bin", borders) == found


def test_the_number_of_cubins_looked_at_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(budget, "CHECKED", 3)
    found = report(container(*[entry(payload=TestStubs.stub)] * 5))
    assert (found.stubs, found.unchecked) == ({"90_real": 3}, 2)
    # Once, however many are left.
    (defect,) = found.defects
    assert "not everything was read" in defect.message


def group(*listed: bytes, payload: bytes, flags: int) -> bytes:
    """Entries of 64 bytes in a list, their payloads in one stream."""
    names = b"".join(listed)
    names = struct.pack("<II", len(listed), 8 + len(names)) + names
    made = entry(0x100, payload=payload, flags=flags, size=1 << 20)
    header = struct.pack("<I", 64 + len(names))
    return made[:4] + header + made[8:64] + names + made[64:]


LZ4_BOMB = b"\x1fA\x01\0" + b"\xff" * 4110 + b"\0"
"""A megabyte of A."""

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
    found = report(container(group(*listed, payload=LZ4_BOMB, flags=0x2000)))
    assert sum(found.targets.values()) == len(listed)
    assert len(sizes) == calls


@pytest.mark.parametrize(
    ("limit", "value"), [("UNPACKED", 3 << 20), ("SEQUENCES", 3), ("STEPS", 8)]
)
def test_files_share_what_may_be_spent(
    limit: str, value: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, limit, value)
    one = container(group(SMALL_CUBIN, payload=LZ4_BOMB, flags=0x2000))
    members = {f"demo/{index}.so": one for index in range(40)}
    path = write_wheel(tmp_path / "demo-1.0-py3-none-any.whl", members)
    (defect,) = api.inspect(path).all_defects
    assert "not everything was read" in defect.message
