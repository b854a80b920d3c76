"""What `nvp pip` may write into the reports and the lock files of pip."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from support.builds import gpu_build, metadata
from support.loopback import JSON
from support.processes import Pip
from support.range_server import Answer, serve_answers
from support.wheels import publish

from nvp.index.pip.locks import parse_toml
from nvp.index.pip.written import Written

EARLY, LATE = "2026-01-01T00:00:00Z", "2026-10-01T00:00:00Z"
OLDER = "torch-1.0-py3-none-any-cu126.whl"


def find_hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.slow
@pytest.mark.parametrize("by", ["hashes", "dates", "nothing"])
def test_a_lock_has_no_file_that_the_user_excludes(
    by: str, pip: Pip, tmp_path: Path
) -> None:
    document = metadata({f"cu12{n}": gpu_build(f"12.{n}") for n in (6, 8)})
    publish(tmp_path / "index", document, "torch", "1.0")
    files = sorted((tmp_path / "index" / "torch").glob("torch-*"))
    listed = [
        {
            "filename": file.name,
            "url": f"/files/{file.name}",
            "hashes": {"sha256": find_hash(file)},
            "upload-time": EARLY if OLDER in file.name or "json" in file.name else LATE,
        }
        for file in files
    ]
    page = {"meta": {"api-version": "1.1"}, "name": "torch", "files": listed}
    answers = {f"/files/{file.name}": Answer(body=file.read_bytes()) for file in files}
    answers["/simple/torch/"] = Answer(body=json.dumps(page).encode(), kind=JSON)
    (older,) = (file for file in files if file.name == OLDER)
    requirements, lock = tmp_path / "requirements.txt", tmp_path / "pylock.toml"
    given = f" --hash=sha256:{find_hash(older)}" if by == "hashes" else ""
    requirements.write_text(f"torch==1.0{given}\n")
    words = ("--uploaded-prior-to", "2026-06-01") if by == "dates" else ()
    with serve_answers(answers) as server:
        index = f"{server.url}/simple/"
        own = ("lock", "-i", index, "--no-deps", "-r", requirements, "--output", lock)
        machine = ("--cuda-driver", "12.9", "--sm-arch", "8.0")
        done = pip(*own, *words, *machine, forced=False)
    assert done.code == 0, done.text
    (package,) = parse_toml(lock.read_text(), "pylock.toml")["packages"]
    names = [wheel["name"] for wheel in package["wheels"]]
    if by == "nothing":
        assert len(names) == 3
    else:
        assert names == [OLDER]
        assert package["variants-json"]["variants"]
        assert "no other variants are added" in done.err


def test_a_link_put_in_place_of_a_written_file_is_not_followed(tmp_path: Path) -> None:
    """Another user who can write the directory would choose what the user writes."""
    report, own = tmp_path / "report.json", tmp_path / "own.txt"
    report.write_text("of a stranger")
    own.write_text("of the user")

    def change(text: str, name: str) -> str:
        assert (text, name) == ("of a stranger", str(report))
        report.unlink()
        report.symlink_to(own)
        return "changed"

    index: Any = None
    Written(index, sys.stdout, sys.executable, {})._change(report, change)
    assert own.read_text() == "of the user"
    assert (report.is_symlink(), report.read_text()) == (False, "changed")


def test_the_target_of_a_link_is_corrected(tmp_path: Path) -> None:
    report, own = tmp_path / "report.json", tmp_path / "own.json"
    own.write_text("text")
    report.symlink_to(own)
    index: Any = None
    written = Written(index, sys.stdout, sys.executable, {})
    written._change(report, lambda *_: "changed")
    assert (report.is_symlink(), own.read_text()) == (True, "changed")
