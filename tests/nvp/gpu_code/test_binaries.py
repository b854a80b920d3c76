"""Every binary of ``fixtures/binaries/`` has the contents of the file next to it."""

from __future__ import annotations

import json
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.containers import (
    BINARIES,
    binaries,
    inspect_bytes,
    plain_target,
    write_wheel,
)

from nvp import api
from nvp.gpu_code.report import LibraryReport

EVERY = pytest.mark.parametrize("path", binaries(), ids=lambda path: path.name)
CUOBJDUMP = json.loads((BINARIES / "cuobjdump.json").read_text())


def contents(report: LibraryReport | None) -> dict[str, Any]:
    """Return the fields that expectations have: those that are neither empty nor
    derived."""
    assert report is not None
    data = report.to_dict()
    derived = ("path", "size", "cuda_runtime", "toolkit")
    return {key: value for key, value in data.items() if value and key not in derived}


def expected(path: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(
        path.with_name(f"{path.name}.expected.json").read_text()
    )
    return data


def test_every_expectation_has_its_binary() -> None:
    names = {path.name for path in BINARIES.glob("*.expected.json")}
    assert names == {f"{path.name}.expected.json" for path in binaries()}
    assert len(names) > 25
    assert sum(path.stat().st_size for path in BINARIES.iterdir()) < 1_500_000


@EVERY
def test_inspection_finds_what_is_expected(path: Path) -> None:
    report = api.inspect(path)
    assert (report.kind, report.members, report.defects) == ("file", 1, ())
    assert report.size == path.stat().st_size
    (library,) = report.libraries
    assert library.path == path.name
    assert contents(library) == expected(path)
    # The targets have their order in the expectation too.
    assert list(library.targets) == list(expected(path)["targets"])


@EVERY
def test_a_wheel_gives_the_same(path: Path, tmp_path: Path) -> None:
    members = {"demo/__init__.py": b"", f"demo/{path.name}": path.read_bytes()}
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        wheel = tmp_path / "demo-1.0-py3-none-any.whl"
        report = api.inspect(write_wheel(wheel, members, method))
        assert (report.kind, report.members, report.all_defects) == ("wheel", 2, ())
        (library,) = report.libraries
        assert library.path == f"demo/{path.name}"
        assert contents(library) == expected(path)


@EVERY
def test_short_pieces_give_the_same(path: Path) -> None:
    data = path.read_bytes()
    # Larger files are cut into longer pieces.
    for length in (7, 1000) if len(data) > 12_000 else (1, 64):
        cut = inspect_bytes(data, path.name, range(0, len(data), length))
        assert contents(cut) == expected(path)


@EVERY
def test_cuobjdump_lists_the_same(path: Path) -> None:
    (library,) = api.inspect(path).libraries
    counts: Counter[str] = Counter()
    for target, count in library.targets.items():
        counts[plain_target(target)] += count
    if path.name not in CUOBJDUMP:
        # cuobjdump reads no text, no DLL, and no container outside of its sections.
        assert path.suffix in (".ptx", ".dll") or path.name == "elsewhere.so"
        return
    assert counts == CUOBJDUMP[path.name]


def test_linked_runtime_on_linux_and_windows() -> None:
    for name in ("plain.so", "plain.dll"):
        (library,) = api.inspect(BINARIES / name).libraries
        assert library.cuda_runtime == (13,)


def test_kernels_leave_the_stubs_out() -> None:
    (library,) = api.inspect(BINARIES / "host-only.so").libraries
    assert library.has_gpu_code
    assert library.kernels == {}
    (library,) = api.inspect(BINARIES / "plain.so").libraries
    assert library.kernels == library.targets
