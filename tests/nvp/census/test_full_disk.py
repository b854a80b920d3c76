"""A disk that becomes full: one line reports it, and no stored row is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.command import Run
from support.paths import FIXTURES

INDEX = FIXTURES / "census"

TORCH = FIXTURES / "variants-json" / "torch-2.8.0-variants.json"
STACK = FIXTURES / "stacks" / "cuda13"
MACHINE = ["--cuda-driver", "13.0", "--sm-arch", "9.0"]

LIMITED = """
import resource, sys
from nvp.cli import main
limit = int(sys.argv.pop(1))
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
sys.exit(main())
"""


pytestmark = pytest.mark.skipif(os.name == "nt", reason="there is no such limit")


def limited(
    limit: int, *words: object, folder: Path
) -> subprocess.CompletedProcess[str]:
    """Run our command line where no file can have more bytes than ``limit``.

    The limit would also cut byte code, which Python then cannot read.
    """
    script = folder / "limited.py"
    script.write_text(LIMITED)
    return subprocess.run(
        [sys.executable, "-B", script, str(limit), *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.parametrize(
    "words",
    [
        ["upgrade", TORCH, "-o"],
        ["matrix", TORCH, "-o"],
        ["doctor", "--python", STACK, *MACHINE, "--receipt"],
    ],
    ids=lambda words: words[0],
)
def test_what_was_written_before_stays(words: list[object], tmp_path: Path) -> None:
    """Files are replaced atomically, so an incomplete file is never left."""
    folder = tmp_path / "written"
    folder.mkdir()
    before = folder / "before.json"
    before.write_text("{}\n")
    done = limited(100, *words, before, folder=tmp_path)
    assert done.returncode == 3, done.stderr
    (line,) = (line for line in done.stderr.splitlines() if str(before) in line)
    assert "cannot be written" in line
    assert "Traceback" not in done.stderr
    assert before.read_text() == "{}\n"
    assert list(folder.iterdir()) == [before]


def test_a_full_disk(run: Run, tmp_path: Path) -> None:
    """A limit for the size of files replaces a full disk."""
    store = tmp_path / "census.sqlite"
    words = ["census", INDEX, "-o", store, "--jobs", "1"]
    first = run(*words, "--project", "demo-tools")
    assert first.code == 0
    limit = store.stat().st_size
    done = limited(limit, *words, "--per-release", "all", folder=tmp_path)
    assert done.returncode == 3
    (line,) = done.stderr.splitlines()
    assert str(store) in line
    assert "free some space" in line
    again = run(*words, "--json")
    assert again.data["known"] >= 1
    assert again.code == 0
