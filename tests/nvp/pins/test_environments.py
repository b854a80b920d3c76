"""The installed packages, by their ``*.dist-info``: no code of the environment runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from nvidia_variant_provider.errors import UsageError
from nvp.pins.reading import pins_of_environment, read_pins

TORCH = """Metadata-Version: 2.4
Name: torch
Version: 2.9.1+cu128
Requires-Dist: filelock
Requires-Dist: nvidia-nccl-cu12==2.27.5; platform_system == "Linux"
"""
WHEEL = """Wheel-Version: 1.0
Tag: cp312-cp312-manylinux_2_28_x86_64
Tag: cp312-cp312-manylinux_2_27_x86_64
"""


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    folder = tmp_path / "env" / "lib" / "python3.12" / "site-packages"
    folder.mkdir(parents=True)
    (tmp_path / "env" / "pyvenv.cfg").write_text("version = 3.12.4\n")
    install(folder, "torch-2.9.1+cu128", TORCH, WHEEL)
    install(folder, "my_app-1.0", "Name: my-app\nVersion: 1.0\n\n", "")
    where = {"url": "file:///srv/my-app", "dir_info": {}}
    (folder / "my_app-1.0.dist-info" / "direct_url.json").write_text(json.dumps(where))
    return folder


def install(packages: Path, name: str, metadata: str, wheel: str) -> None:
    folder = packages / f"{name}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(metadata)
    (folder / "WHEEL").write_text(wheel)


def test_what_is_installed(packages: Path) -> None:
    pinned = pins_of_environment(str(packages.parents[2]), {})
    app, torch = pinned.pins
    assert (pinned.form, pinned.requires_python) == ("environment", "==3.12.*")
    assert torch.title == "torch 2.9.1+cu128"
    assert torch.requires == (
        "filelock",
        'nvidia-nccl-cu12==2.27.5; platform_system == "Linux"',
    )
    platforms = "manylinux_2_28_x86_64.manylinux_2_27_x86_64"
    name = f"torch-2.9.1+cu128-cp312-cp312-{platforms}.whl"
    selected = dict(pinned.select(frozenset(), pinned.target(["win_amd64"])))
    wheel = selected[torch]
    assert wheel is not None
    assert wheel.filename == name
    assert app.origin == "file:///srv/my-app"
    assert selected[app] is None


def test_a_damaged_distribution_is_a_note(packages: Path) -> None:
    install(packages, "cupy-latest", "nonsense", "Tag: x\n")
    pinned = pins_of_environment(str(packages.parents[2]), {})
    assert len(pinned.pins) == 3
    assert pinned.notes[0] == "cupy: its version cannot be read"
    assert "METADATA is missing or damaged" in pinned.notes[1]


def test_no_environment(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is neither an interpreter nor"):
        pins_of_environment(str(tmp_path / "none"), {})


@pytest.mark.parametrize("words", [("freeze", "--all"), ("inspect",), ("list",)])
def test_what_pip_says_of_it_is_the_same(
    words: tuple[str, ...], packages: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "pip", *words, "--path", str(packages)]
    command += ["--format", "json"] if words == ("list",) else []
    done = subprocess.run(command, capture_output=True, check=True)
    path = tmp_path / "printed"
    path.write_bytes(done.stdout)
    printed = {pin.name: pin.version for pin in read_pins(str(path)).pins}
    pinned = pins_of_environment(str(packages.parents[2]), {})
    expected = {pin.name: pin.version for pin in pinned.pins}
    if words[0] == "freeze":
        # A directory as the source of an installation has no version.
        expected["my-app"] = None
    assert printed == expected
