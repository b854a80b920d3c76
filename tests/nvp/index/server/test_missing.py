"""Requests for files of a page for another machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urljoin

import pytest
from simple_repository import model
from support.builds import machine
from support.loopback import JSON, Running, ask, page_of, start
from support.range_server import Answer, serve_answers

from nvp.index.selection.kept import mark_of
from nvp.index.selection.options import Pins

OLD = machine("12.8", "8.0")
NEW = machine("13.0", "8.0")


@pytest.fixture(scope="module")
def urls_elsewhere(published: Path) -> dict[str, str]:
    """Return the path of each label's wheel, as on a machine that runs all of them."""
    with start(str(published), machine=NEW) as running:
        files = running.page().files
    paths = {}
    for name, url in files.items():
        path = url.partition("/f/")[2]
        if name.startswith("torch-2.8.0") and path:
            paths[path.split("/")[1]] = f"/f/{path}"
    assert {"cu130", "cu126", "plain"} <= paths.keys()
    return paths


@pytest.fixture(scope="module")
def here(published: Path) -> Iterator[Running]:
    with start(str(published), machine=OLD) as running:
        yield running


def test_a_build_that_does_not_fit(
    here: Running, urls_elsewhere: dict[str, str]
) -> None:
    root = here.urls[0].removesuffix("/simple/")
    reply = ask(root + urls_elsewhere["cu130"])
    assert reply.status == 404
    name = urls_elsewhere["cu130"].rpartition("/")[2]
    assert reply.text == (
        f"{name}: variant cu130 of torch 2.8.0 does not fit this machine: it needs a "
        "driver for CUDA 13.0 or newer, but this driver is for CUDA 12.8; this machine "
        "gets variant cu126\n"
    )


@pytest.mark.parametrize("end", ["", ".metadata"])
@pytest.mark.parametrize("tags", ["py3-none-any", "py3.cp311-none.cp311-any.linux_x"])
def test_a_build_that_fits_has_another_rank_here(
    end: str, tags: str, published: Path, urls_elsewhere: dict[str, str]
) -> None:
    pins = Pins(everywhere="cu126")
    with start(str(published), machine=OLD, pins=pins) as running:
        url = running.urls[0].removesuffix("/simple/") + urls_elsewhere["cu126"]
        reply = ask(url.replace("py3-none-any", tags) + end)
        assert reply.status == 302
        name = reply.headers["location"]
        assert name == f"torch-2.8.0-1cu126-py3-none-any.whl{end}"
        assert ask(urljoin(url, name.removesuffix(end))).status == 200


@pytest.mark.parametrize(
    "name",
    [
        *("torch-9-py3-none-any.whl", "x", "torch-a-b", f"x-{'9' * 5000}"),
        *("torch-2.8.0", "torch-2.8.0-1x-cp311-none-any.whl"),
    ],
)
def test_a_file_that_no_machine_gets(name: str, here: Running) -> None:
    root = here.urls[0].removesuffix("/simple/")
    assert ask(f"{root}/f/torch/cu126/00000000/{name}").status == 404


LISTED = "torch-1.0-py3-none-any.whl"


@pytest.mark.parametrize("digest", ["{:0>64}", "{:0<64}", ""])
@pytest.mark.parametrize("accept", [JSON, "text/html"])
def test_a_page_lists_two_files_of_one_name(accept: str, digest: str) -> None:
    """An installer gets the file that it has selected, such as one that runs here.

    A page may list any hash, for example one that starts as that of another file does.
    """
    entries = [
        {
            "filename": LISTED,
            "url": f"/{folder}/{LISTED}",
            "hashes": {"sha256": digest.format(folder)} if digest else {},
            "yanked": folder == "b" and "it is broken",
        }
        for folder in "ab"
    ]
    answers = page_of(*entries) | {
        f"/{folder}/{LISTED}": Answer(body=folder.encode()) for folder in "ab"
    }
    with serve_answers(answers, credentials="me:S3cret") as server:
        index = server.url.replace("://", "://me:S3cret@") + "/simple/"
        with start(index) as running:
            page = running.page(Accept=accept).text
            urls = [word.split("#")[0] for word in page.split('"') if "/f/" in word]
            found = [ask(urljoin(f"{running.urls[0]}torch/", url)) for url in urls]
    assert [reply.body for reply in found] == [b"a", b"b"]


def test_a_file_that_is_newer_than_the_last_page() -> None:
    """The lock file of another machine names it, so nobody requests the page."""
    answers = page_of()
    with serve_answers(answers, credentials="me:S3cret") as server:
        index = server.url.replace("://", "://me:S3cret@") + "/simple/"
        with start(index) as running:
            assert running.page().status == 200
            place, hashes = f"/a/{LISTED}", {"sha256": "0" * 64}
            mark = mark_of(model.File(LISTED, place, hashes))
            url = f"{running.urls[0]}../f/torch/-/{mark}/{LISTED}"
            assert ask(urljoin(url, LISTED)).status == 404
            file = {"filename": LISTED, "url": place, "hashes": hashes}
            answers |= page_of(file)
            answers[place] = Answer(body=b"a")
            assert ask(urljoin(url, LISTED)).body == b"a"


def test_a_resumed_download_of_a_file_that_has_changed() -> None:
    """A client must not join halves of two files."""
    file = Answer(body=b"0123456789", headers={"ETag": '"new"'})
    answers = page_of({"filename": LISTED, "url": f"/a/{LISTED}", "hashes": {}})
    answers[f"/a/{LISTED}"] = file
    with serve_answers(answers, credentials="me:S3cret") as server:
        index = server.url.replace("://", "://me:S3cret@") + "/simple/"
        with start(index) as running:
            (url,) = running.page().files.values()
            url = urljoin(f"{running.urls[0]}torch/", url)
            assert ask(url).headers["etag"] == '"new"'
            replies = [
                ask(url, Range="bytes=5-9", If_Range=f'"{x}"') for x in ("new", "old")
            ]
    assert [(r.status, r.body) for r in replies] == [(206, b"56789"), (200, file.body)]


def test_an_index_that_knows_only_installers() -> None:
    """Behind `serve`, they got a 404, and took the file of the next index.

    They share pages, so the agent of none of them may decide.
    """
    wheel = "kern-1.0-py3-none-any.whl"
    body = f"<!DOCTYPE html><a href={wheel}>{wheel}</a>".encode()
    page = Answer(body=body, kind="text/html", agent="pip/")
    with (
        serve_answers({"/simple/kern/": page}) as index,
        start(f"{index.url}/simple/") as running,
    ):
        assert running.page("kern", User_Agent="uv/0.13").status == 200
