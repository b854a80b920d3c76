"""The interpreter that wheels are selected for."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from packaging.tags import sys_tags

from nvidia_variant_provider.errors import InputError
from nvp.index.pip.settings import find_interpreter


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such links")
def test_another_interpreter_is_asked(tmp_path: Path) -> None:
    link = tmp_path / "python"
    link.symlink_to(sys.executable)
    asked = find_interpreter(str(link), os.environ)
    own = find_interpreter(sys.executable, os.environ)
    assert asked.version == own.version
    best = next(iter(sys_tags()))
    assert (own.rank([best]), asked.rank([best])) == (0, 0)
    assert own.platforms == asked.platforms


def test_what_is_not_an_interpreter(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="see --python"):
        find_interpreter(str(tmp_path / "nothing"), os.environ)


def test_requires_python() -> None:
    own = find_interpreter(sys.executable, os.environ)
    assert own.is_allowed(None)
    assert own.is_allowed(">=3.10")
    assert not own.is_allowed(">=4")
    assert own.is_allowed("malformed")
    # Python converts no number of more than 4,300 digits.
    assert own.is_allowed(f">={'1' * 4301}")
    assert own.rank([]) is None
