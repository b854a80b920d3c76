"""The program in a zip file, in which its data files are not files of the system."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipapp
from pathlib import Path

import pytest
from support.paths import FIXTURES, ROOT
from support.processes import clean_environ, provider
from support.shared import shared_folder

import nvidia_variant_provider
import nvp

PACKAGES = [Path(it.__file__ or "").parent for it in (nvidia_variant_provider, nvp)]

MAIN = """
import sys
import nvidia_variant_provider, nvp
from nvp.cli import main
assert ".pyz" in nvidia_variant_provider.__file__
assert ".pyz" in nvp.__file__
sys.exit(main())
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the program, made as ``python -m zipapp`` makes it."""

    def fill(folder: Path) -> None:
        content = folder / "content"
        ignored = shutil.ignore_patterns("__pycache__")
        for package in PACKAGES:
            shutil.copytree(package, content / package.name, ignore=ignored)
        # The wheel has the page, which is elsewhere in the checkout.
        shutil.copy(ROOT / "docs" / "rules.md", content / "nvp" / "lint")
        (content / "__main__.py").write_text(MAIN)
        zipapp.create_archive(content, folder / "nvp.pyz")

    return shared_folder(tmp_path_factory, "zipapp", fill) / "nvp.pyz"


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(
            ("matrix", FIXTURES / "published" / "torch-2.9.0-variants.json"),
            marks=pytest.mark.slow,
        ),
        ("inspect", FIXTURES / "binaries" / "concatenated.so"),
        ("validate", FIXTURES / "published" / "torch-2.9.0-variants.json"),
        pytest.param(
            ("releases", "torch", "--index-url", FIXTURES, "--cuda-driver", "12.8"),
            marks=pytest.mark.slow,
        ),
        pytest.param(("pip", "--version"), marks=pytest.mark.slow),
        ("pip", "freeze", "--path", FIXTURES),
        ("detect",),
    ],
    ids=lambda words: str(words[0]),
)
def test_a_command_does_the_same(
    words: tuple[object, ...], program: Path, tmp_path: Path
) -> None:
    environ = clean_environ(tmp_path / "home")
    expected = provider(*words, environ=environ)
    done = subprocess.run(
        [sys.executable, str(program), *map(str, words)],
        env=environ,
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (expected.code, expected.out), done.stderr
    assert done.stderr.replace(os.fspath(program), "") == expected.err
