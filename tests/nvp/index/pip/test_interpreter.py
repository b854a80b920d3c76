"""The interpreter that wheels are selected for, and what is installed for it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.tags import sys_tags

from nvidia_variant_provider.errors import InputError, UsageError
from nvp.index.pip.command import Asked, PipCommand, find_python
from nvp.index.pip.installed import (
    PipRun,
    find_installed_variants,
    find_stale_builds,
    find_wheels_in,
)
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


def test_an_empty_path_finds_no_program_of_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").write_text("")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError):
        find_python("")


def test_installed_files_that_are_not_utf_8(tmp_path: Path) -> None:
    """pip only warns of them."""
    names: dict[str, bytes] = {"odd": b"Author: J\xfcrgen\n", "torch": b""}
    for name, more in names.items():
        folder = tmp_path / f"{name}-1.0.dist-info"
        folder.mkdir()
        head = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n".encode()
        (folder / "METADATA").write_bytes(head + more)
        (folder / "variant.json").write_bytes(b'{"\xfc": 1}')
    asked: dict[str, list[Any]] = {}
    index: Any = SimpleNamespace(find_judged=lambda name: asked.setdefault(name, []))
    torch = Asked(project="torch", requirement=Requirement("torch"))
    command = PipCommand(command="install", asked=[torch], paths=[str(tmp_path)])
    run = PipRun(
        command=command, local_index=index, python=sys.executable, environ={}, status=0
    )
    assert find_stale_builds(run) == ()
    assert [*asked] == ["torch"]
    assert list(find_installed_variants([str(tmp_path)])) == []


def test_a_download_folder_that_cannot_be_listed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (None, "", str(tmp_path / "missing"), str(tmp_path / "file")):
        assert find_wheels_in(folder) == {}


def test_requires_python() -> None:
    own = find_interpreter(sys.executable, os.environ)
    assert own.is_allowed(None)
    assert own.is_allowed(">=3.10")
    assert not own.is_allowed(">=4")
    assert own.is_allowed("malformed")
    # Python converts no number of more than 4,300 digits.
    assert own.is_allowed(f">={'1' * 4301}")
    assert own.rank([]) is None
