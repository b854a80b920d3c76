"""Directories that take long to make: a test run makes each of them once."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock

__all__ = ["shared_folder"]


def shared_folder(
    factory: pytest.TempPathFactory, name: str, fill: Callable[[Path], None]
) -> Path:
    """Return the directory ``name`` of this run, which the first caller fills.

    Under pytest-xdist each process has a base directory of its own, below that of the
    run. The lock makes the other processes wait, and a process that fails leaves no
    directory behind.

    :param fill: a function that takes the empty directory.
    """
    base = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    folder, complete = base / name, base / f"{name}.complete"
    with FileLock(base / f"{name}.lock"):
        if not complete.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            fill(folder)
            complete.touch()
    return folder
