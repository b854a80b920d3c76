"""The layers of the package, as `pyproject.toml` states them for import-linter."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


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


def test_an_import_of_the_command_line_breaks_them(tmp_path: Path) -> None:
    pytest.importorskip("importlinter")
    package = tmp_path / "nvidia_variant_provider"
    for path in (ROOT / "nvidia_variant_provider").rglob("*.py"):
        copy = package / path.relative_to(ROOT / "nvidia_variant_provider")
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    (tmp_path / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    with (package / "errors.py").open("a") as file:
        file.write("\n\nfrom .cli import main\n")
    done = check(tmp_path)
    assert done.returncode == 1, done.stdout
    assert "errors is not allowed to import" in " ".join(done.stdout.split())
