"""An index with a defect of each kind, in a directory and on a server."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

from support import content_cases, release_cases
from support.containers import library
from support.documents import TORCH
from support.gpu_wheels import Wheel
from support.range_server import Answer, RangeServer, serve_answers
from support.release_cases import Folder
from support.wheels import publish, stub_wheel

__all__ = ["damaged_index", "serve_index"]


def damaged_index(folder: Path) -> Path:
    """Write a project directory for each case of the rules NV4 and NV5."""
    for number, case in enumerate(release_cases.CASES.values()):
        damaged = Folder(folder / "cases" / str(number))
        damaged.settle()
        case.damage(damaged)
        shutil.move(damaged.files, folder / "index" / f"release{number:02d}")
    for number, content in enumerate(content_cases.CASES.values()):
        project = folder / "index" / f"content{number:02d}"
        # The metadata makes this a release with variants, so all of its wheels are
        # checked.
        _metadata(project)
        content.trigger.write(project)
    _broken_wheels(folder / "index" / "broken")
    stub_wheel(folder / "index" / "ordinary", "ordinary", "1.0")
    (folder / "index" / "sources").mkdir()
    (folder / "index" / "sources" / "sources-1.0.tar.gz").write_bytes(b"no wheel")
    return folder / "index"


def _metadata(project: Path) -> None:
    publish(project / "made", TORCH, "demo", "1.0")
    name = "demo-1.0-variants.json"
    shutil.move(project / "made" / "demo" / name, project / name)
    shutil.rmtree(project / "made")


def _broken_wheels(project: Path) -> None:
    _metadata(project)
    good = Wheel(libraries={"demo/lib.so": library("80_real")}, sm=["80_real"])
    for label, size in {"cut": -30, "short": 10, "empty": 0}.items():
        path = Wheel(libraries=good.libraries, sm=good.sm, label=label).write(project)
        path.write_bytes(path.read_bytes()[:size])
    # The name of this file with GPU code is not the name of a library.
    Wheel(
        libraries={"demo/kernels.bin": library("90_real")},
        sm=["80_real"],
        label="hidden",
        tag="py3-none-any",
    ).write(project)
    # A wheel without METADATA, and a wheel with an invalid name.
    (project / "demo-1.0-py3-none-any-null.whl").write_bytes(b"PK\5\6" + bytes(18))
    (project / "demo.whl").write_bytes(b"")


@contextmanager
def serve_index(folder: Path) -> Iterator[RangeServer]:
    """Serve an index directory, with the hashes of most files.

    One wheel has a wrong hash, and another wheel has no hash.
    """
    answers: dict[str, Answer] = {}
    projects = sorted(path for path in folder.iterdir() if path.is_dir())
    for project in projects:
        links = []
        for path in sorted(project.iterdir()):
            body = path.read_bytes()
            digest = sha256(body).hexdigest()
            if project.name == "content00":
                digest = "0" * 64
            place = f"/files/{project.name}/{path.name}"
            hash_ = "" if project.name == "content01" else f"#sha256={digest}"
            links.append(f'<a href="{place}{hash_}">{path.name}</a>')
            answers[place] = Answer(body=body)
        page = "<!DOCTYPE html>" + "".join(links)
        answers[f"/simple/{project.name}/"] = Answer(
            body=page.encode(), kind="text/html"
        )
    names = [*(project.name for project in projects), "missing"]
    root = "".join(f'<a href="{name}/">{name}</a>' for name in names)
    answers["/simple/"] = Answer(
        body=f"<!DOCTYPE html>{root}".encode(), kind="text/html"
    )
    with serve_answers(answers) as server:
        yield server
