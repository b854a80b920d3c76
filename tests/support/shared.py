"""Directories that take long to make, made once for all processes of a test run."""

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
    """Return the directory ``name`` of this run, filled by the first who asks for it.

    Under pytest-xdist each process has a base directory of its own, below that of the
    run. The lock makes the others wait, and one that failed leaves nothing behind.

    :param fill: is called with the directory, which is empty.
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
