"""The fixture of the tests of the fake driver libraries."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.bench import Bench


@pytest.fixture
def bench(libraries: Path, tmp_path: Path) -> Bench:
    """Return a bench with compiled libraries and a log of their calls."""
    return Bench(libraries, tmp_path)
