"""Wheels of PyPI, library by library, compared with what cuobjdump lists in them.

``pytest -m network`` downloads them. Wheels of 50 MB and more also need
``NV_VARIANT_PROVIDER_TEST_LARGE_WHEELS=1``.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.containers import plain_target
from support.downloads import download
from support.paths import FIXTURES

from nvp import api

FACTS: Mapping[str, Any] = json.loads((FIXTURES / "wheel-gpu-code.json").read_text())[
    "wheels"
]

SMALL = 50_000_000
"""Bytes of the wheels that CI downloads."""

# Read the variable at import, because a fixture removes it before each test.
LARGE = bool(os.environ.get("NV_VARIANT_PROVIDER_TEST_LARGE_WHEELS"))


def listed(library: Mapping[str, Any]) -> dict[str, int]:
    """Return how many entries a record lists for each target."""
    kinds = ("real", "virtual")
    return {f"{k}_{kind}": n for kind in kinds for k, n in library[kind].items()}


def test_some_are_small() -> None:
    assert sum(item["bytes"] < SMALL for item in FACTS.values()) >= 5


@pytest.mark.network
@pytest.mark.parametrize("name", FACTS)
def test_as_cuobjdump_lists(name: str, tmp_path: Path) -> None:
    if FACTS[name]["bytes"] >= SMALL and not LARGE:
        pytest.skip("a large wheel")
    path = download(name, tmp_path)
    assert path.stat().st_size == FACTS[name]["bytes"]
    report = api.inspect(path, jobs=2)
    counts_by_path = {}
    for library in report.libraries:
        counts: Counter[str] = Counter()
        for target, count in library.targets.items():
            # cuobjdump prints f targets of machine code without the f.
            counts[plain_target(target)] += count
        if counts:
            counts_by_path[library.path] = dict(counts)
    libraries = FACTS[name]["libraries"].items()
    assert counts_by_path == {path: listed(library) for path, library in libraries}
    assert report.all_defects == ()
    assert not any(library.unknown for library in report.libraries)
    assert not any(library.unchecked for library in report.libraries)
