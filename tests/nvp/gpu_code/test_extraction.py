"""Extracting one cubin of a library, in a form that a driver can load."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.containers import BINARIES, binaries, container, entry, inspect_bytes

from nvp.gpu_code import compression, extraction
from nvp.gpu_code.extraction import ExtractionError, extract_cubin
from nvp.gpu_code.fatbin import CUBIN, PTX
from nvp.gpu_code.inspection import inspect_path
from nvp.gpu_code.report import LibraryReport

EVERY = pytest.mark.parametrize("path", binaries(), ids=lambda path: path.name)

PLAIN = BINARIES / "compress-none.so"
CUBIN_80 = (BINARIES / "new-80.cubin").read_bytes()


def only(path: Path) -> LibraryReport:
    (report,) = inspect_path(str(path)).libraries
    return report


@EVERY
def test_each_target_with_a_kernel_has_a_cubin_of_that_target(path: Path) -> None:
    kernels = {
        target.removesuffix("_real")
        for target in only(path).kernels
        if target.endswith("_real")
    }
    for target in kernels:
        cubin = extract_cubin(str(path), target.__eq__)
        if path.name == "lto.so":  # its one cubin has to be linked
            assert cubin is None
            continue
        assert cubin is not None
        assert cubin.target == target
        report = inspect_bytes(cubin.data, "loose.cubin")
        assert report is not None
        (told,) = report.kernels
        # Only the options of the assembler show that the code is for a family.
        assert told.removesuffix("_real").rstrip("f") == target.rstrip("f")


def test_every_compression_has_the_same_content() -> None:
    contents: Counter[bytes] = Counter()
    for mode in ("none", "speed", "balance", "size"):
        cubin = extract_cubin(str(BINARIES / f"compress-{mode}.so"), "80".__eq__)
        assert cubin is not None
        contents[cubin.data] += 1
    assert len(contents) == 1


def test_nothing_is_taken_for_another_gpu() -> None:
    assert extract_cubin(str(PLAIN), "90".__eq__) is None


def test_stubs_are_passed_over(tmp_path: Path) -> None:
    stub = (BINARIES / "new-stub-90.cubin").read_bytes()
    path = tmp_path / "lib.fatbin"
    path.write_bytes(container(entry(CUBIN, 90, payload=stub)))
    assert extract_cubin(str(path), "90".__eq__) is None


def test_objects_for_a_linker_are_passed_over(tmp_path: Path) -> None:
    relocatable = CUBIN_80[:16] + b"\1\0" + CUBIN_80[18:]
    path = tmp_path / "lib.fatbin"
    path.write_bytes(
        container(
            entry(CUBIN, 80, payload=relocatable), entry(CUBIN, 80, payload=CUBIN_80)
        )
    )
    cubin = extract_cubin(str(path), "80".__eq__)
    assert cubin is not None
    assert cubin.data.startswith(CUBIN_80)


def test_the_first_small_cubin_is_taken_before_larger_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = CUBIN_80 + bytes(4096)
    path = tmp_path / "lib.fatbin"
    parts = [entry(CUBIN, 80, payload=large), entry(CUBIN, 80, payload=CUBIN_80)]
    path.write_bytes(container(*parts))
    monkeypatch.setattr(extraction, "_ENOUGH", len(CUBIN_80) + 8)
    cubin = extract_cubin(str(path), "80".__eq__)
    assert cubin is not None
    assert len(cubin.data) < len(large)
    path.write_bytes(container(parts[0]))
    cubin = extract_cubin(str(path), "80".__eq__)
    assert cubin is not None
    assert len(cubin.data) == len(large)
    monkeypatch.setattr(extraction, "_LARGEST", len(CUBIN_80))
    with pytest.raises(ExtractionError, match="smallest cubin"):
        extract_cubin(str(path), "80".__eq__)


def test_large_cubins_share_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compression, "CHECKED", 3)
    monkeypatch.setattr(extraction, "_ENOUGH", 8)
    path = tmp_path / "lib.fatbin"
    path.write_bytes(container(*[entry(CUBIN, 80, payload=bytes(64))] * 4))
    with pytest.raises(ExtractionError, match="too many of its cubins"):
        extract_cubin(str(path), "80".__eq__)


def test_a_search_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    budget = compression.Budget()
    budget.until = 0.0
    path = tmp_path / "lib.fatbin"
    parts = [container(), container(entry(PTX, 80, payload=b""))]
    for content in (*parts, CUBIN_80, bytes(64)):
        path.write_bytes(content)
        with pytest.raises(ExtractionError, match="too much code"):
            extract_cubin(str(path), "80".__eq__, budget)


def test_only_some_large_cubins_are_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extraction, "_MOST_LARGE", 3)
    monkeypatch.setattr(extraction, "_ENOUGH", 8)
    path = tmp_path / "lib.fatbin"
    parts = [entry(CUBIN, 80, payload=bytes(64 + 8 * n)) for n in range(5)]
    good = entry(CUBIN, 80, payload=CUBIN_80)
    for others, is_found in ((parts[:2], True), (parts[:3], False)):
        path.write_bytes(container(*others, good))
        cubin = extract_cubin(str(path), "80".__eq__)
        assert (cubin is not None) is is_found


def test_only_a_part_of_a_payload_of_gigabytes_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []

    def note(_: str, stored: bytes, *_rest: object) -> None:
        read.append(len(stored))

    monkeypatch.setattr(extraction, "_LARGEST", 4096)
    monkeypatch.setattr(extraction, "decompress", note)
    path = tmp_path / "lib.fatbin"
    path.write_bytes(container(entry(CUBIN, 80, payload=bytes(9999), size=64)))
    with pytest.raises(ExtractionError, match="cannot be decompressed"):
        extract_cubin(str(path), "80".__eq__)
    assert read == [4096]


def test_a_container_in_two_pieces_of_a_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lib.fatbin"
    monkeypatch.setattr(extraction, "_PIECE", 16)
    for place in range(20):
        path.write_bytes(bytes(place) + container(entry(CUBIN, 80, payload=CUBIN_80)))
        assert extract_cubin(str(path), "80".__eq__) is not None


def test_zstandard_is_named_where_it_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(extraction, "has_zstd", lambda: False)
    with pytest.raises(ExtractionError, match="install zstandard"):
        extract_cubin(str(BINARIES / "compress-size.so"), "80".__eq__)


def test_what_is_no_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    for name in ("empty", "missing", "."):
        with pytest.raises((OSError, ValueError)):
            extract_cubin(str(tmp_path / name), "80".__eq__)


@given(data=st.data())
def test_damage_is_never_another_error(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    source = data.draw(st.sampled_from(["compress-size.so", "concatenated.fatbin"]))
    content = bytearray((BINARIES / source).read_bytes())
    start = content.find(b"\x50\xed\x55\xba")
    for _ in range(data.draw(st.integers(1, 8))):
        place = data.draw(st.integers(start, min(start + 400, len(content) - 1)))
        content[place] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "damaged.so"
    path.write_bytes(content)
    try:
        cubin = extract_cubin(str(path), lambda _: True)
    except (ExtractionError, ValueError):
        return
    assert cubin is None or cubin.data.startswith(b"\x7fELF")
