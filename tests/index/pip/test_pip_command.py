"""Asking a pip how it understands its command line."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from support.processes import Pip

from nvidia_variant_provider.errors import InputError
from nvidia_variant_provider.index.pip.command import Pip as Command
from nvidia_variant_provider.index.pip.command import PipCommand

PROGRAM = Path(sys.executable).with_name("nvidia-variant-provider")

posix = pytest.mark.skipif(os.name == "nt", reason="scripts of POSIX")


def understand(python: str = sys.executable, **environ: str) -> PipCommand:
    command = Command(python, {**os.environ, **environ})
    return command.understand(["install", "--index-url", "https://a.example/", "x"])


def test_arguments_are_understood() -> None:
    found = understand()
    assert (found.command, found.positional) == ("install", ["x"])
    assert found.indexes[0] == "https://a.example/"


def test_modules_in_the_working_folder_are_not_imported(
    pip: Pip, index: str, tmp_path: Path
) -> None:
    """``python -m pip`` removes the working folder from the path as well."""
    hostile = tmp_path / "cloned"
    hostile.mkdir()
    for name in ("json", "typing"):
        (hostile / f"{name}.py").write_text(
            "import pathlib\npathlib.Path(__file__).with_name('run').touch()\n"
            "raise ImportError\n"
        )
    # Run the program: ``-m`` itself would import modules of the working folder.
    words = ("pip", "--python", pip.python, "--cuda-driver=12.9", "--sm-arch=8.0")
    done = subprocess.run(
        [PROGRAM, *words, "install", "-i", index, "--dry-run", "--no-deps", "torch"],
        env=pip.environ,
        cwd=hostile,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Would install variant cu126 of torch 2.8.0" in done.stdout
    assert not (hostile / "run").exists()


def test_other_output_is_not_the_reply(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('hello from site')\n")
    found = understand(PYTHONPATH=str(tmp_path))
    assert found.indexes[0] == "https://a.example/"


@posix
@pytest.mark.parametrize(
    "output",
    [
        "",
        "hello",
        "pip_probe\n",
        "pip_probe\n{",
        "pip_probe\n[1]",
        "pip_probe\n{}",
        'pip_probe\n{"command": "install", "what": 1}',
    ],
)
def test_programs_that_are_not_an_interpreter(output: str, tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{output}\nEND\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    with pytest.raises(InputError, match="is not a Python with a pip"):
        understand(str(program))


@posix
def test_an_interpreter_that_ends_as_if_it_had_no_pip(tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho pip_probe\nexit 66\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    with pytest.raises(InputError, match="is not a Python with a pip"):
        understand(str(program))
