"""The project itself: what is built, and what the README promises."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from support.paths import ROOT
from support.shared import shared_folder

from nvidia_variant_provider import __version__


def tracked(*folders: str) -> set[str]:
    """The files below ``folders`` that git tracks."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--", *folders],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    return {name for name in listed.stdout.split("\0") if name}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel, and the sdist that it was built from."""
    return shared_folder(tmp_path_factory, "dist", _build)


def _build(folder: Path) -> None:
    for target in ("sdist", "wheel"):
        subprocess.run(
            [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", folder],
            cwd=ROOT,
            capture_output=True,
            check=True,
        )


def strays(*folders: str) -> set[str]:
    """Files of the user below ``folders``, which are nobody's business."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--others", "--exclude-standard", "--", *folders],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return {name for name in listed.stdout.split("\0") if name}


def test_wheel_has_exactly_the_package_and_the_schemas(built: Path) -> None:
    (path,) = built.glob("*.whl")
    assert path.name == f"nvidia_variant_provider-{__version__}-py3-none-any.whl"
    with zipfile.ZipFile(path) as wheel:
        names = set(wheel.namelist()) - strays("nvidia_variant_provider")
    names -= {f"nvidia_variant_provider/{name}" for name in strays("schemas")}
    info = f"nvidia_variant_provider-{__version__}.dist-info"
    assert names == {
        *tracked("nvidia_variant_provider"),
        *(f"nvidia_variant_provider/{name}" for name in tracked("schemas")),
        f"{info}/METADATA",
        f"{info}/RECORD",
        f"{info}/WHEEL",
        f"{info}/entry_points.txt",
        f"{info}/licenses/LICENSE",
    }


def test_sdist_has_everything_but_dotfiles(built: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    expected = {name for name in tracked(".") if not name.startswith(".")}
    # hatchling adds these two itself.
    assert names - strays(".") == {*expected, "PKG-INFO", ".gitignore"}


def test_what_an_installer_pulls_in(built: Path) -> None:
    (path,) = built.glob("*.whl")
    with zipfile.ZipFile(path) as wheel:
        name = next(n for n in wheel.namelist() if n.endswith("METADATA"))
        metadata = Parser().parsestr(wheel.read(name).decode())
    requires = metadata.get_all("Requires-Dist", [])
    plain = [line for line in requires if "extra ==" not in line]
    assert {re.split(r"[<>=;]", line)[0] for line in plain} == {
        "nvidia-ml-py",
        "packaging",
        "platformdirs",
    }
    extras = set(metadata.get_all("Provides-Extra", []))
    assert extras == {
        *("all", "census", "cli", "cuda", "docs", "fleet", "index", "test", "wheels")
    }
    # Metadata in the field asks for nvidia-variant-provider>=0.0.1,<1.0.0.
    assert __version__.startswith("0.")


def test_entry_point_is_the_namespace() -> None:
    (point,) = entry_points(group="variant_plugins", name="nvidia")
    assert point.value == "nvidia_variant_provider.plugin:NvidiaVariantPlugin"


def test_no_module_is_long() -> None:
    modules = [ROOT / name for name in tracked(".") if name.endswith(".py")]
    long = {
        path.name: count
        for path in modules
        if (count := path.read_text().count("\n")) > 450
    }
    assert not long


def test_schemas_are_json() -> None:
    for name in tracked("schemas"):
        json.loads((ROOT / name).read_text())
