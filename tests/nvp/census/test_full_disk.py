"""A disk that becomes full: one line says so, and nothing that was stored is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.command import Run
from support.paths import ROOT

INDEX = ROOT / "fixtures" / "census"

LIMITED = """
import resource, sys
from nvp.cli import main
if __name__ == "__main__":
    limit = int(sys.argv.pop(1))
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    sys.exit(main())
"""


@pytest.mark.skipif(os.name == "nt", reason="there is no such limit")
def test_a_full_disk(run: Run, tmp_path: Path) -> None:
    """A limit for the size of files stands for the disk."""
    script, store = tmp_path / "limited.py", tmp_path / "census.sqlite"
    script.write_text(LIMITED)
    words = ["census", INDEX, "-o", store, "--jobs", "1"]
    first = run(*words, "--project", "demo-tools")
    assert first.code == 0
    limit = str(store.stat().st_size)
    done = subprocess.run(
        [sys.executable, script, limit, *map(str, words), "--per-release", "all"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 3
    (line,) = done.stderr.splitlines()
    assert str(store) in line
    assert "free some space" in line
    again = run(*words, "--json")
    assert again.data["known"] >= 1
    assert again.code == 0
