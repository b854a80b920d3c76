"""Pages that change before the wheel is sent, and a server of false ranges."""

from __future__ import annotations

import hashlib
import http.client
import json
import zipfile
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.builds import gpu_build, machine, metadata
from support.loopback import JSON, Running, ask, start
from support.lying_files import KERN, make_answers
from support.range_server import Answer, serve_answers
from support.wheels import stub_wheel


@contextmanager
def served(answers: MutableMapping[str, Answer]) -> Iterator[Running]:
    with (
        serve_answers(answers) as server,
        start(f"{server.url}/simple/", direct=True) as running,
    ):
        yield running


def change(answers: MutableMapping[str, Answer], running: Running, **keys: Any) -> None:
    """Change the page of the index, and let another client read it."""
    old = answers["/simple/kern/"]
    page = json.loads(old.body)
    page["files"][0] |= keys
    answers["/simple/kern/"] = replace(old, body=json.dumps(page).encode())
    source = running.local_index._repositories[0].source
    running.local_index._server.call(source.get_project_page("kern"))
    running.page("kern", User_Agent="pip/26.3")


@pytest.mark.parametrize("later", ["hashes", "yanked", "nothing"])
def test_a_wheel_is_compared_whatever_the_next_page_says(
    later: str, tmp_path: Path
) -> None:
    answers = make_answers(tmp_path)
    body = answers[KERN].body
    first, last = (
        {"hashes": {name: hashlib.new(name, body).hexdigest()}}
        for name in ("sha512", "sha256")
    )
    keys: dict[str, dict[str, Any]] = {"hashes": last, "yanked": {"yanked": "CVE"}}
    with served(answers) as running:
        change(answers, running, **first)
        (url,) = running.page("kern", User_Agent="pip/26.3").files.values()
        assert "Requires-Dist: evil" in ask(f"{url}.metadata").text
        change(answers, running, **keys.get(later, {}))
        answers[KERN] = replace(answers[KERN], parts=None)
        for other in running.page("kern", User_Agent="pip/26.3").files.values():
            ask(f"{other}.metadata")
        with pytest.raises(http.client.IncompleteRead):
            ask(url)


@pytest.mark.parametrize("honest", [True, False])
def test_metadata_that_the_next_page_announces(honest: bool, tmp_path: Path) -> None:
    """An installer with the earlier page does not compare it with its hash."""
    answers = make_answers(tmp_path)
    with zipfile.ZipFile(tmp_path / KERN.rpartition("/")[2]) as wheel:
        metadata = wheel.read("kern-1.0.dist-info/METADATA")
    lie = metadata + b"Requires-Dist: evil\n"
    answers[f"{KERN}.metadata"] = Answer(body=metadata if honest else lie)
    digest = hashlib.sha256(metadata).hexdigest()
    with served(answers) as running:
        (url,) = running.page("kern", User_Agent="pip/26.3").files.values()
        change(answers, running, **{"core-metadata": {"sha256": digest}})
        response = ask(f"{url}.metadata")
        assert (response.status, "evil" in response.text) == (
            (200, False) if honest else (502, False)
        )


def test_variants_of_a_wheel_count_for_its_whole_url(tmp_path: Path) -> None:
    """An index may give the hash of another's wheel, which is at the same path."""
    answers: dict[str, Answer] = {}
    builds = {"own": ("12.6", "13.0"), "other": ("13.0", "12.6")}
    for tenant, versions in builds.items():
        entries = []
        for label, version in zip(("alpha", "beta"), versions, strict=True):
            document = metadata({label: gpu_build(version)})
            folder = tmp_path / tenant
            wheel = stub_wheel(folder, "kern", "1.0", label, variant_json=document)
            place = f"/files/{wheel.name}?tenant={tenant}"
            answers[place] = Answer(body=wheel.read_bytes())
            body = (tmp_path / "own" / wheel.name).read_bytes()
            digest = hashlib.sha256(body).hexdigest()
            hashes = {"filename": wheel.name, "hashes": {"sha256": digest}}
            entries.append({**hashes, "url": place, "size": len(body)})
        page = {"meta": {"api-version": "1.0"}, "name": "kern", "files": entries}
        body = json.dumps(page).encode()
        answers[f"/{tenant}/kern/"] = Answer(body=body, kind=JSON)
    with serve_answers(answers) as server:
        urls = (f"{server.url}/{tenant}/" for tenant in ("other", "own"))
        with start(*urls, machine=machine("12.8", "9.0")) as running:
            running.page("kern", 0)
            assert "alpha" in min(running.page("kern", 1).files)
