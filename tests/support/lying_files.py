"""An honest page, and a server of files that sends false ranges of a wheel."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path

from .loopback import JSON
from .range_server import Answer
from .wheels import stub_wheel

TAG = "py3-none-manylinux_2_17_x86_64"
KERN = f"/files/kern-1.0-{TAG}.whl"
PAD = {"kern.bin": os.urandom(2_000_000)}
"""The bytes before METADATA, so no single range is the whole wheel."""


def page(project: str, *wheels: Path, hashes: bool = True) -> dict[str, Answer]:
    """Return a page without METADATA, and its wheels."""
    answers, files = {}, []
    for wheel in wheels:
        body, url = wheel.read_bytes(), f"/files/{wheel.name}"
        answers[url] = Answer(body=body)
        digest = {"sha256": hashlib.sha256(body).hexdigest()} if hashes else {}
        size = max(len(body), 1_000_000)
        files.append(
            {"filename": wheel.name, "url": url, "size": size, "hashes": digest}
        )
    document = {"meta": {"api-version": "1.0"}, "name": project, "files": files}
    body = json.dumps(document).encode()
    return answers | {f"/simple/{project}/": Answer(body=body, kind=JSON)}


def make_answers(folder: Path, *, hashes: bool = True) -> dict[str, Answer]:
    """Return an index whose file server sends false ranges of kern."""
    kern = stub_wheel(folder, "kern", "1.0", tag=TAG, members=PAD)
    evil = stub_wheel(folder, "evil", "1.0")
    lie = stub_wheel(
        folder / "lie", "kern", "1.0", tag=TAG, members=PAD, requires=["evil"]
    )
    answers = {**page("kern", kern, hashes=hashes), **page("evil", evil)}
    answers[KERN] = replace(answers[KERN], parts=lie.read_bytes())
    return answers
