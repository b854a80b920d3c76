"""Fixtures of the tests of ``doctor``."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.command import Run
from support.live import LiveMachine


@pytest.fixture
def live(
    tmp_path: Path, libraries: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> LiveMachine:
    """Return a machine with fakes for the driver's libraries."""
    return LiveMachine(tmp_path, libraries, run, monkeypatch)
