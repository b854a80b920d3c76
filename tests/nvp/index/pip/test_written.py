"""What `nvp pip` may write into the reports and the lock files of pip."""

from __future__ import annotations

import hashlib
import json
import subprocess
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
@pytest.mark.parametrize("by", ["hashes", "url", "dates", "nothing"])
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
    older, newer = (x for x in files if x.name.endswith(("cu126.whl", "cu128.whl")))
    given = f"torch==1.0 --hash=sha256:{find_hash(newer)}\n"
    answers["/given.txt"] = Answer(body=given.encode(), kind="text/plain")
    requirements, lock = tmp_path / "requirements.txt", tmp_path / "pylock.toml"
    given = f" --hash=sha256:{find_hash(older)}" if by == "hashes" else ""
    requirements.write_text(f"torch==1.0{given}\n")
    words = ("--uploaded-prior-to", "2026-06-01") if by == "dates" else ()
    with serve_answers(answers) as server:
        index = f"{server.url}/simple/"
        if by == "url":
            requirements.write_text(f"-r {server.url}/given.txt\n")
        own = ("lock", "-i", index, "--no-deps", "-r", requirements, "--output", lock)
        machine = ("--cuda-driver", "12.9", "--sm-arch", "8.0")
        done = pip(*own, *words, *machine, forced=False)
    assert done.code == 0, done.text
    (package,) = parse_toml(lock.read_text(), "pylock.toml")["packages"]
    names = [wheel["name"] for wheel in package["wheels"]]
    if by == "nothing":
        assert len(names) == 3
    else:
        assert names == [newer.name if by == "url" else OLDER]
        assert package["variants-json"]["variants"]
        assert "no other variants are added" in done.err


@pytest.mark.parametrize("is_link", [False, True])
def test_nothing_of_the_users_path_is_read_or_replaced(
    is_link: bool, pip: Pip, index: str, tmp_path: Path
) -> None:
    """Another user who can write the directory would choose what the user writes."""
    own, report = tmp_path / "own.json", tmp_path / "report.json"
    own.write_text("of a stranger" * 1000)
    own.chmod(0o640)
    before = own.stat()
    if is_link:
        report.symlink_to(own)
    place = report if is_link else own
    words = ("--no-deps", "--dry-run", "--report", place)
    done = pip("install", "-i", index, *words, "torch")
    assert done.code == 0, done.text
    (item,) = json.loads(own.read_text())["install"]
    assert item["download_info"]["url"].startswith(f"{index}torch/")
    assert report.is_symlink() is is_link
    after = own.stat()
    assert (after.st_ino, after.st_mode) == (before.st_ino, before.st_mode)


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("pylock.toml", False),
        pytest.param("more/odd.toml", False, marks=pytest.mark.slow),
        pytest.param("-", True, marks=pytest.mark.slow),
    ],
)
def test_a_lock_is_that_of_pip_alone(
    name: str, printed: bool, pip: Pip, tmp_path: Path
) -> None:
    """Paths of local projects are relative to the directory of the user's file."""
    project = tmp_path / "more" / "project"
    project.mkdir(parents=True)
    (project / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\n'
        'backend-path = ["."]\n[project]\nname = "own"\nversion = "1"\n'
    )
    (project / "backend.py").write_text(
        "import os\n"
        "def prepare_metadata_for_build_wheel(folder, settings=None):\n"
        "    place = os.path.join(folder, 'own-1.dist-info')\n"
        "    os.mkdir(place)\n"
        "    with open(os.path.join(place, 'METADATA'), 'w') as file:\n"
        "        file.write('Metadata-Version: 2.1\\nName: own\\nVersion: 1\\n')\n"
        "    return 'own-1.dist-info'\n"
        "def build_wheel(folder, settings=None, metadata=None):\n"
        "    raise OSError\n"
    )
    words = ("lock", "--no-index", "--output", name, "./more/project")
    done = pip(*words, cwd=tmp_path)
    assert done.code == 0, done.text
    text = done.out if printed else (tmp_path / name).read_text()
    alone = subprocess.run(
        [pip.python, "-m", "pip", *words],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env=pip.environ,
    )
    warning = "is not a valid lock file name"
    assert (warning in done.err) is (warning in alone.stderr) is ("odd" in name)
    own = alone.stdout if printed else (tmp_path / name).read_text()
    start = text.index("lock-version")
    assert text[start:] == own[own.index("lock-version") :]
    assert 'path = "' in text
