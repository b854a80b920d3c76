"""The index from which uv installs in each module of comparisons."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.uv_installer import UvIndex, uv_index


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("uv")


@pytest.fixture(scope="module")
def index(root: Path) -> Iterator[UvIndex]:
    with uv_index(root) as value:
        yield value
