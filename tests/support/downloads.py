"""Wheels from the index that pip is configured for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

__all__ = ["download"]


def download(wheel: str, folder: Path) -> Path:
    """Let pip download the wheel of this file name into ``folder``."""
    name, version, python, _, platforms = wheel.removesuffix(".whl").split("-")
    options = [
        *("--no-deps", "--quiet", "--no-cache-dir", "--only-binary", ":all:"),
        # The wheels are for this ABI, regardless of the interpreter of the tests.
        *(
            "--python-version",
            "3.11",
            "--implementation",
            python[:2],
            "--dest",
            str(folder),
        ),
        *(item for name in platforms.split(".") for item in ("--platform", name)),
    ]
    subprocess.run(
        [sys.executable, "-m", "pip", "download", *options, f"{name}=={version}"],
        check=True,
        capture_output=True,
        text=True,
    )
    return folder / wheel
