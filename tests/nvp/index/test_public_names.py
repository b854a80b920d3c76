"""The public names of the index, and the modules that importing them loads."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest


def test_the_component_is_public() -> None:
    from nvp.index.selection.component import VariantRepository

    assert importlib.import_module("nvp.index").VariantRepository is VariantRepository


def test_other_names_do_not_exist() -> None:
    module = importlib.import_module("nvp.index")
    with pytest.raises(AttributeError, match="has no attribute 'Repository'"):
        _ = module.Repository


def test_the_package_alone_needs_no_extra_and_no_api() -> None:
    """The extra is imported on demand, and `api` is above the index."""
    code = """
import sys
for name in ("httpx", "simple_repository", "starlette", "uvicorn"):
    sys.modules[name] = None
import nvp.index
import nvp.index.http.urls
import nvp.index.pip.process
for name in ("httpx", "simple_repository", "starlette", "uvicorn"):
    del sys.modules[name]
from nvp.index import VariantRepository
assert "nvp.api" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
