"""The cost of an archive, and parts that its METADATA hides."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.reports import lib, wheel

from nvp import api
from nvp.gpu_code import bounds, units
from nvp.gpu_code.claims import find_claim, find_gpus

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
