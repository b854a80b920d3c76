"""The cost of an archive, and parts that its METADATA hides."""

from __future__ import annotations

import sys
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from support.containers import inspect_bytes, library, linked
from support.reports import lib, wheel

from nvp import api
from nvp.gpu_code import bounds, compression, files, inspection, units, zip_members
from nvp.gpu_code.claims import find_claim, find_gpus
from nvp.gpu_code.report import LibraryReport

MANY = 300


def count(module: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Count the calls of a function of a module."""
    calls: list[str] = []
    real = getattr(module, name)

    def counted(*arguments: Any) -> Any:
        calls.append(name)
        return real(*arguments)

    monkeypatch.setattr(module, name, counted)
    return lambda: len(calls)


def test_a_library_is_not_compared_with_each_vendored_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "libcudart.so.12"
    own = [lib("80_real", path=f"demo/{i}.so", needed=[name]) for i in range(MANY)]
    copies = [
        lib(path=f"demo.libs/{name}.{i}", needed=["libcublas.so.12"], vendored=True)
        for i in range(MANY)
    ]
    calls = count(bounds, "major_of_name", monkeypatch)
    assert str(find_claim(wheel(*own, *copies)).strict.version).startswith("12.")
    assert calls() < 50 * MANY


def test_libraries_with_the_same_targets_are_judged_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    every = [f"{number}_real" for number in range(50, 129)]
    some = [lib("90_real", path=f"demo/{i}.so") for i in range(MANY)]
    report = wheel(lib(*every, path="demo/every.so"), *some)
    calls = count(units, "runs_machine_code", monkeypatch)
    assert len(find_claim(report).lacking) == MANY
    assert find_gpus(report)
    assert calls() < 30 * MANY


def test_an_archive_is_listed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "demo-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("demo-1.dist-info/METADATA", "Requires-Dist: torch\n")
        archive.writestr("demo/a.so", b"\x7fELF")
    opened: list[object] = []

    class Counted(zipfile.ZipFile):
        def infolist(self) -> list[zipfile.ZipInfo]:
            opened.append(self)
            return super().infolist()

    monkeypatch.setattr(zipfile, "ZipFile", Counted)
    assert api.inspect(str(path)).requires == ("torch",)
    assert len(set(map(id, opened))) == 1


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_metadata_that_cannot_be_read_hides_nothing_else(
    method: int, tmp_path: Path
) -> None:
    path = tmp_path / "demo-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("demo-1.dist-info/METADATA", "Requires-Dist: torch\n" * 99)
        archive.writestr("demo/a.so", b"\x7fELF" * 40)
    data = path.read_bytes()
    at = data.index(b"METADATA") + len(b"METADATA")
    path.write_bytes(data[:at] + b"\xff" * 8 + data[at + 8 :])
    report = api.inspect(str(path))
    assert report.requires == ()
    assert [library.path for library in report.libraries] == ["demo/a.so"]


def test_the_length_of_an_lz4_sequence_is_read_in_one_step() -> None:
    data = b"\xf0" + b"\xff" * 10_000 + b"\0" + bytes(100)
    lines: list[int] = []

    def trace(frame: FrameType, _event: str, _argument: object) -> Any:
        lines.append(frame.f_lineno)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with pytest.raises(ValueError, match="literals"):
            compression.decode_lz4(data, 10)
    finally:
        sys.settrace(before)
    assert len(lines) < 5000


def test_the_directories_of_a_file_are_not_looked_up_one_by_one() -> None:
    looked_up: list[object] = []

    class Counted(dict[str, str]):
        def __contains__(self, key: object) -> bool:
            looked_up.append(key)
            return super().__contains__(key)

    item = lib("80_real", path="a/" * 1000 + "x.so")
    (marked,) = inspection._marked([item], Counted({"": "demo"}))
    assert marked.path == item.path
    assert len(looked_up) < 10


def test_the_kernels_of_a_library_are_counted_a_few_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[str] = []
    kernels = LibraryReport.kernels.fget  # type: ignore[attr-defined]

    def counted(item: LibraryReport) -> object:
        calls.append(item.path)
        return kernels(item)

    monkeypatch.setattr(LibraryReport, "kernels", property(counted))
    targets = [f"{number}_virtual" for number in range(50, 200)]
    assert find_claim(wheel(lib(*targets))).unnamed
    assert len(calls) < 20


def test_the_names_in_a_vendored_library_are_read_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runtimes = [f"libcudart.so.{number}" for number in range(100, 150)]
    names = [f"v{number}.so" for number in range(20)]
    copies = [
        lib(path=f"demo.libs/{x}.1", needed=runtimes, vendored=True) for x in names
    ]
    own = [lib("80_real", path=f"demo/{i}.so", needed=names) for i in range(20)]
    calls = count(bounds, "major_of_name", monkeypatch)
    find_claim(wheel(*own, *copies))
    assert calls() < 5000


@pytest.mark.parametrize(("limit", "value"), [("NAMES", 40), ("TABLES", 1000)])
def test_the_tables_of_all_files_share_one_budget(
    limit: str, value: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "demo-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(20):
            archive.writestr(f"demo/{number}.so", linked("a", "b", "c", "d"))
    assert api.inspect(str(path)).complete
    monkeypatch.setattr(compression, limit, value)
    report = api.inspect(str(path))
    assert 0 < sum(bool(item.needed) for item in report.libraries) < 20
    messages = {defect.message for defect in report.all_defects}
    assert messages == {"its tables are not read: there are too many"}


def test_the_targets_of_all_files_share_one_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compression, "NAMES", 40)
    path = tmp_path / "demo-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(20):
            archive.writestr(f"demo/{number}.so", library("80_real", "90_real"))
    report = api.inspect(str(path))
    assert sum(len(item.targets) for item in report.libraries) == 10
    assert not report.complete


def test_an_interrupt_ends_the_threads_that_read_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "demo-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in "ab":
            archive.writestr(f"demo/{name}.bin", bytes(zip_members.AHEAD * 2))
    started: list[threading.Thread] = []

    class Interrupted(zip_members.ReadAhead):
        def __init__(self, pieces: Any) -> None:
            if started:
                raise KeyboardInterrupt
            super().__init__(pieces)
            assert self._thread is not None
            started.append(self._thread)

    monkeypatch.setattr(files, "ReadAhead", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        api.inspect(str(path), jobs=2)
    (thread,) = started
    thread.join(10)
    assert not thread.is_alive()


def test_long_names_count_by_their_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In files of 4 MB, 200,000 names with a wide character took 200 MB.
    monkeypatch.setattr(compression, "NAMES", 40)
    short, long = [f"lib{number}.so" for number in range(20)], "a" * 200
    for needed, complete in ((short, True), ([x + long for x in short], False)):
        path = tmp_path / "a.so"
        path.write_bytes(linked(*needed))
        assert api.inspect(str(path)).complete is complete


def test_a_long_path_counts_for_each_target(monkeypatch: pytest.MonkeyPatch) -> None:
    # A wheel of 8 MB made a store of 4 GB, because each row of a target has the path.
    monkeypatch.setattr(compression, "NAMES", 40)
    content = library("80_real", "90_real")
    for folder, complete in (("a" * 60, True), ("a" * 6000, False)):
        report = inspect_bytes(content, f"{folder}/a.so")
        assert report is not None
        assert (report.defects == ()) is complete
