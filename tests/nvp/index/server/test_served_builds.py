"""The regular wheels that the local index sends, and its requests for them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from urllib.parse import quote

import pytest
from support.builds import gpu_build, machine, metadata
from support.loopback import answers_of, ask, start
from support.range_server import Answer, serve_answers
from support.wheels import stub_wheel, write_page

pytestmark = pytest.mark.usefixtures("no_noise")

TAG = "cp311-cp311-manylinux_2_17_x86_64"
OLD = machine("12.8", "8.0")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return an index without METADATA files (PEP 658)."""
    for version, cuda in (("1.0", "12.8.90"), ("2.0", "13.0.48"), ("3.0", "13.2.1")):
        major = cuda.partition(".")[0]
        stub_wheel(
            tmp_path / "demo",
            "demo",
            version,
            tag=TAG,
            requires=[f"nvidia-cuda-runtime-cu{major}=={cuda}"],
        )
    write_page(tmp_path / "demo")
    return tmp_path


def test_metadata_that_the_index_does_not_send(folder: Path) -> None:
    with (
        serve_answers(answers_of(folder, "demo")) as upstream,
        start(f"{upstream.url}/simple/", machine=OLD) as running,
    ):
        pip = 'pip/26.3 {"installer":{}}'
        files = json.loads(running.page("demo", User_Agent=pip).body)["files"]
        by_version = {file["filename"].split("-")[1]: file for file in files}
        assert [bool(by_version[v].get("yanked")) for v in ("1.0", "2.0", "3.0")] == [
            False,
            True,
            True,
        ]
        assert "it needs a driver for CUDA 13" in by_version["3.0"]["yanked"]
        name = by_version["1.0"]["filename"]
        url = running.page("demo", User_Agent=pip).files[name]
        metadata = ask(f"{url}.metadata")
        announced = by_version["1.0"]["core-metadata"]["sha256"]
        assert hashlib.sha256(metadata.body).hexdigest() == announced
        assert b"Requires-Dist: nvidia-cuda-runtime-cu12==12.8.90" in metadata.body
        # Other installers send range requests, and their lock files record the URL of
        # the file.
        (other,) = (
            file
            for file in json.loads(running.page("demo").body)["files"]
            if file["filename"] == name
        )
        assert other["url"] == f"{upstream.url}/simple/demo/{quote(name)}"
        assert "core-metadata" not in other
        assert running.warnings == []


@pytest.mark.parametrize("unchecked", [False, True])
def test_a_page_of_links(tmp_path: Path, unchecked: bool) -> None:
    for version in ("2.15.0+cu130", "2.15.0+xpu", "2.10.0+cu128"):
        stub_wheel(tmp_path, "torch", version, tag=TAG)
    stub_wheel(tmp_path, "other", "1.0")
    with start(str(tmp_path), machine=OLD, links=True, unchecked=unchecked) as running:
        if unchecked:
            # pip reads such a directory itself.
            assert running.urls == [str(tmp_path)]
            return
        text = ask(f"{running.urls[0]}torch/").text
        assert "other-1.0" in ask(f"{running.urls[0]}other/").text
    assert "torch-2.10.0" in text
    assert "other-1.0" not in text
    assert "xpu" not in text
    assert text.count("data-yanked") == 1


def test_a_wheel_that_is_replaced_on_the_page(tmp_path: Path) -> None:
    """Without a metadata file, the server may run for weeks with those of wheels."""
    answers: dict[str, Answer] = {}
    with serve_answers(answers) as server, start(f"{server.url}/simple/") as running:
        for number, (bound, shown) in enumerate((("13.0", 0), ("12.0", 1))):
            folder = tmp_path / str(number) / "kern"
            build = gpu_build(bound, "90_real")
            stub_wheel(folder, "kern", "1.0", "a", variant_json=metadata({"a": build}))
            write_page(folder)
            answers |= answers_of(folder.parent, "kern")
            assert len(running.page("kern").files) == shown


def test_the_same_wheel_on_two_indexes_stays_on_one(tmp_path: Path) -> None:
    """Each page withdrew its own copy for the other, whose METADATA it did not read."""
    need = ["nvidia-cuda-runtime-cu13==13.0.48"]
    wheel = stub_wheel(tmp_path / "demo", "demo", "1.0", tag=TAG, requires=need)
    write_page(tmp_path / "demo")
    answers = answers_of(tmp_path, "demo")
    with serve_answers(answers) as one, serve_answers(answers) as two:
        urls = [f"{server.url}/simple/" for server in (one, two)]
        with start(*urls, machine=OLD) as running:
            pages = [json.loads(running.page("demo", n).body) for n in (0, 1)]
    files = [file for page in pages for file in page["files"]]
    assert [file["filename"] for file in files] == 2 * [wheel.name]
    assert not all(file.get("yanked") for file in files)
