"""The layers of both packages, as `pyproject.toml` states them for import-linter."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.paths import NVP, PROVIDER, ROOT
from support.shared import shared_folder

pytest.importorskip("importlinter")


def check(*packages: Path) -> subprocess.CompletedProcess[str]:
    """Run import-linter on packages.

    import-linter imports the packages that it reads, and would find installed copies
    first.

    :param packages: the directories of the packages; the first has the contracts.
    """
    return subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache", "--no-logo"],
        cwd=packages[0],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, packages))},
        capture_output=True,
        text=True,
        check=False,
    )


def check_with(changes: Mapping[str, str], folder: Path) -> str:
    """Return the report on copies of the packages with lines added to some files."""
    leave_out = shutil.ignore_patterns("__pycache__")
    for package in (PROVIDER, NVP):
        shutil.copytree(package, folder / package.name, ignore=leave_out)
    shutil.copy(ROOT / "pyproject.toml", folder)
    for name, line in changes.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(f"\n\n{line}\n")
    done = check(folder)
    assert done.returncode == 1, done.stdout
    return " ".join(done.stdout.split())


def test_every_import_obeys_the_contracts() -> None:
    done = check(ROOT, NVP.parent)
    assert done.returncode == 0, done.stdout
    assert "0 broken" in done.stdout


CHANGES = {
    "nvidia_variant_provider/errors.py": "from .api import detect",
    "nvidia_variant_provider/resolution/resolver.py": "import nvp.findings",
    "nvidia_variant_provider/metadata/model.py": "import ctypes",
    "nvp/wheels/__init__.py": "from ..doctor import model",
    "nvp/api/__init__.py": "from ..cli import main",
    "nvp/census/__init__.py": "import socket",
    "nvp/fleet/__init__.py": "import ctypes",
    "nvp/doctor/__init__.py": "from cuda import nvrtc",
    "nvp/index/http/__init__.py": "from .. import pip",
    "nvp/fleet/one.py": "from . import two",
    "nvp/fleet/two.py": "from . import one",
}

MESSAGES = [
    "nvidia_variant_provider.errors is not allowed to import "
    "nvidia_variant_provider.api",
    "nvidia_variant_provider is not allowed to import nvp: "
    "- nvidia_variant_provider.resolution.resolver -> nvp.findings",
    "nvidia_variant_provider.metadata.model -> ctypes",
    "nvp.wheels is not allowed to import nvp.doctor",
    "nvp.api is not allowed to import nvp.cli",
    "nvp.census -> socket",
    "nvp.fleet -> ctypes",
    "nvp.doctor -> cuda",
    "nvp.index.http is not allowed to import nvp.index.pip",
    "No cycles are allowed in nvp.fleet",
]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The report on all changes together."""

    def fill(folder: Path) -> None:
        report = check_with(CHANGES, folder / "packages")
        (folder / "report.txt").write_text(report, encoding="utf-8")

    folder = shared_folder(tmp_path_factory, "broken-contracts", fill)
    return (folder / "report.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("message", MESSAGES)
def test_an_import_that_breaks_a_contract_is_named(message: str, report: str) -> None:
    assert message in report


def test_a_new_folder_needs_a_place_among_the_layers(tmp_path: Path) -> None:
    changes = {
        "nvidia_variant_provider/planning/__init__.py": "",
        "nvp/serving/__init__.py": "",
    }
    report = check_with(changes, tmp_path / "packages")
    assert report.count("not listed as layers") == 2
    assert "nvidia_variant_provider.planning" in report
    assert "nvp.serving" in report
