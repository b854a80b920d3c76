"""The layers of the package, as `pyproject.toml` states them for import-linter."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.paths import ROOT


def check(root: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_import_obeys_the_contracts() -> None:
    pytest.importorskip("importlinter")
    done = check(ROOT)
    assert done.returncode == 0, done.stdout
    assert "0 broken" in done.stdout


@pytest.mark.parametrize(
    ("module", "line", "message"),
    [
        ("errors.py", "from .cli import main", "errors is not allowed to import"),
        ("builds/page.py", "from ..doctor import model", "is not allowed to import"),
        ("census/model.py", "import socket", "census.model -> socket"),
        ("fleet/groups.py", "import ctypes", "fleet.groups -> ctypes"),
        ("doctor/live/proof.py", "from cuda import nvrtc", "doctor.live.proof -> cuda"),
        ("index/http/urls.py", "from .. import pip", "is not allowed to import"),
        ("doctor/software.py", "from . import stack", "No cycles are allowed"),
        # A new folder has to be given its place among the layers.
        ("planning/__init__.py", "", "not listed as layers"),
    ],
)
def test_a_change_that_breaks_a_contract_is_named(
    module: str, line: str, message: str, tmp_path: Path
) -> None:
    pytest.importorskip("importlinter")
    package = tmp_path / "nvidia_variant_provider"
    for path in (ROOT / "nvidia_variant_provider").rglob("*.py"):
        copy = package / path.relative_to(ROOT / "nvidia_variant_provider")
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    (tmp_path / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    (package / module).parent.mkdir(exist_ok=True)
    with (package / module).open("a") as file:
        file.write(f"\n\n{line}\n")
    done = check(tmp_path)
    assert done.returncode == 1, done.stdout
    assert message in " ".join(done.stdout.split())
