"""Lock files of runs in which the user excludes files, by hashes or by dates."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from support.builds import gpu_build, metadata
from support.loopback import JSON
from support.processes import Pip
from support.range_server import Answer, serve_answers
from support.wheels import publish

from nvp.index.pip.locks import parse_toml

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
