"""The folder for what is read once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nvp.files import cache_folder


@pytest.mark.skipif(os.name == "nt", reason="Windows asks the system for the folder")
@pytest.mark.parametrize("name", ["HOME", "XDG_CACHE_HOME"])
def test_the_working_folder_gets_no_cache(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv(name, str(tmp_path))
    assert (cache_folder(os.environ) or "").startswith(str(tmp_path))
    monkeypatch.setenv(name, "folder")
    # Some versions of platformdirs ignore such a value, and others use it.
    assert os.path.isabs(cache_folder(os.environ) or os.sep)
