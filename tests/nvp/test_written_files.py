"""Written files: their links, their permissions and their content."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from support.strangers import STRANGER, needs_root

from nvidia_variant_provider.errors import InputError
from nvp.files import replace_file, replacing

pytestmark = pytest.mark.skipif(
    os.name == "nt", reason="permissions and links differ there"
)


@needs_root
def test_a_file_that_becomes_a_link_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user can exchange own files and links in a shared directory."""
    shared, target = tmp_path / "shared", tmp_path / "target"
    shared.mkdir()
    shared.chmod(0o1777)
    out, link, real = shared / "out", shared / "link", os.path.lexists
    for path in (out, link):
        link.symlink_to(target) if path == link else out.touch()
        os.chown(path, STRANGER, STRANGER, follow_symlinks=False)
    looked = os.lstat

    def look(path: Any, **options: Any) -> os.stat_result:
        status = looked(path, **options)
        if path == str(out) and real(link):
            os.replace(link, out)
        return status

    monkeypatch.setattr(os, "lstat", look)
    with replacing(str(out)) as file:
        file.write(b"ours")
    assert (out.read_bytes(), out.is_symlink()) == (b"ours", False)
    assert not target.exists()


def test_a_file_that_becomes_a_link_gives_nothing_permissions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner of a directory can exchange every file in it at any time."""
    out, secret, change = tmp_path / "out", tmp_path / "secret", os.fchmod
    out.touch()
    out.chmod(0o666)
    secret.touch(mode=0o600)

    def exchange(file: int, mode: int) -> None:
        (part,) = tmp_path.glob(".*.part")
        part.unlink()
        part.symlink_to(secret)
        change(file, mode)

    monkeypatch.setattr(os, "fchmod", exchange)
    with replacing(str(out)):
        pass
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600


ACCESS_LIST = bytes.fromhex(
    "02000000 01000600ffffffff 02000600feff0000 04000000ffffffff 10000600ffffffff"
    "20000000ffffffff"
)
"""An access control list that grants everything to user 65534, and nothing to others"""


@needs_root
@pytest.mark.parametrize(
    ("case", "mode"),
    [("group", 0o660), ("other group", 0o600), ("list", 0o600), ("default", 0o660)],
)
def test_a_group_gets_no_permissions_of_another_one(
    case: str, mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    out.touch()
    os.chown(out, -1, STRANGER)
    out.chmod(0o660)
    if case in ("list", "default"):
        name = "access" if case == "list" else "default"
        place = out if case == "list" else tmp_path
        try:
            os.setxattr(place, f"system.posix_acl_{name}", ACCESS_LIST)
        except (AttributeError, OSError):
            pytest.skip("the file system has no access control lists")
    if case == "other group":

        def refuse(*_: object) -> None:
            raise PermissionError

        monkeypatch.setattr(os, "fchown", refuse)
    with replacing(str(out)) as file:
        # The permissions hold from the first moment.
        assert stat.S_IMODE(os.fstat(file.fileno()).st_mode) == mode
    status = out.stat()
    assert stat.S_IMODE(status.st_mode) == mode
    assert (status.st_gid == STRANGER) == (case != "other group")
    if sys.platform == "linux":
        assert "system.posix_acl_access" not in os.listxattr(out)


def test_a_long_chain_of_links_is_an_error(tmp_path: Path) -> None:
    for number in range(1500):
        (tmp_path / f"{number}").symlink_to(tmp_path / f"{number + 1}")
    with pytest.raises(InputError, match="cannot be written: Too many levels"):
        replace_file(tmp_path / "0", "text")


def test_a_written_file_has_no_commands_of_a_ci_service(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    replace_file(path, '["##vso[task.setvariable]", "##[add-mask]", "### title"]')
    text = path.read_text()
    assert "##vso[" not in text
    assert "##[" not in text
    assert json.loads(text) == ["##vso[task.setvariable]", "##[add-mask]", "### title"]
