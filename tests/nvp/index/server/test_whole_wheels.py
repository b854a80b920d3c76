"""Variant wheels on servers that send neither METADATA files nor parts of files."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import uv
from simple_repository import model
from support.builds import gpu_build, machine, metadata
from support.index_server import run_http_server
from support.loopback import ask, page_of, start
from support.processes import Pip, clean_environ, installed_labels
from support.range_server import Answer, RangeServer, serve_answers
from support.serving import fetch, serving
from support.wheels import stub_wheel, variants_json_name, write_page

from nvp.index.http.client import Client
from nvp.index.selection import pieces, reader
from nvp.index.selection.options import Selection, Target
from nvp.index.selection.pieces import HashingRepository
from nvp.index.server.served_locks import ListedUpstream

LARGE = hashlib.shake_256(b"").digest(17 << 20)
"""A size above that of files that are read completely before a page is sent."""

BUILDS = {"best": gpu_build("12.8"), "less": gpu_build("12.4")}
BEST = "/marked/marked-1.0-py3-none-any-best.whl"
MARKED = ['wanted; "nvidia" in variant_namespaces']
MACHINE = ("--cuda-driver", "12.9", "--sm-arch", "8.0")
TAG = "py3-none-manylinux_2_17_x86_64"


def fill(folder: Path, requires: list[str]) -> None:
    """Fill a directory with two large builds, and their requirements."""
    for label, build in BUILDS.items():
        stub_wheel(
            folder / "marked",
            "marked",
            "1.0",
            label,
            variant_json=metadata({label: build}),
            requires=requires,
            members={"marked.bin": LARGE},
        )
    path = folder / "marked" / variants_json_name("marked", "1.0")
    path.write_text(json.dumps(metadata(BUILDS)))
    stub_wheel(folder / "wanted", "wanted", "1.0")


@contextmanager
def count_requests(
    folder: Path, answers: dict[str, Answer] | None = None, **changes: Any
) -> Iterator[RangeServer]:
    """Serve a directory with a server that sends no ranges, and counts its requests.

    :param answers: receives what the server sends.
    :param changes: of the answer for the best wheel.
    """
    answers = {} if answers is None else answers
    for project in ("marked", "wanted"):
        if not (folder / project / "index.html").exists():
            write_page(folder / project)
    answers |= {
        f"/{path.relative_to(folder).as_posix().removesuffix('index.html')}": Answer(
            body=path.read_bytes(),
            kind="text/html" if path.suffix == ".html" else "application/octet-stream",
            ranges=False,
        )
        for path in folder.glob("*/*")
    }
    answers[BEST] = replace(answers[BEST], **changes)
    with serve_answers(answers) as server:
        yield server


def uv_installs(
    url: str, target: Path, environ: Mapping[str, str], *words: str
) -> dict[str, str]:
    environ = {
        **environ,
        "UV_CACHE_DIR": str(target.parent / "cache"),
        "UV_PYTHON": sys.executable,
    }
    with serving("-i", url, *MACHINE, environ=environ) as server:
        command = (uv.find_uv_bin(), "pip", "install", "--no-config", *words)
        to = ("--default-index", server.urls[0], "--target", target, "marked")
        done = subprocess.run(
            [*command, *map(str, to)],
            env=environ,
            capture_output=True,
            encoding="utf-8",
            timeout=300,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    return installed_labels(target)


@pytest.mark.parametrize("requires", [MARKED, pytest.param([], marks=pytest.mark.slow)])
def test_pip_downloads_the_wheel_once(
    requires: list[str], pip: Pip, tmp_path: Path
) -> None:
    fill(tmp_path / "index", requires)
    target = tmp_path / "it"
    with count_requests(tmp_path / "index") as server:
        done = pip("install", "-i", server.url, "--target", target, "marked")
    assert done.code == 0, done.text
    wanted = {"wanted": "1.0 None"} if requires else {}
    assert installed_labels(target) == {"marked": "1.0 best", **wanted}
    assert (target / "marked.bin").read_bytes() == LARGE
    assert done.err == ""
    assert server.requests.count(f"{BEST} whole") == 1
    assert not any("less.whl whole" in text for text in server.requests)


def test_what_was_read_once_is_kept(pip: Pip, tmp_path: Path) -> None:
    """The page then has the hash of a wheel whose METADATA is known."""
    fill(tmp_path / "index", [])
    with count_requests(tmp_path / "index") as server:
        words = ("install", "--dry-run", "-i", server.url, "--no-cache-dir", "marked")
        for _ in range(2):
            assert pip(*words).code == 0
    asked = [text for text in server.requests if text.startswith(BEST)]
    assert asked == [f"{BEST} bytes=-65536", f"{BEST} whole", f"{BEST} whole"]


def test_uv_downloads_the_wheel_once(tmp_path: Path, environ: dict[str, str]) -> None:
    """uv sends two requests: for METADATA, and for the installation."""
    fill(tmp_path / "index", MARKED)
    with count_requests(tmp_path / "index") as server:
        found = uv_installs(server.url, tmp_path / "it", environ)
    assert found == {"marked": "1.0 best", "wanted": "1.0 None"}
    assert server.requests.count(f"{BEST} whole") == 1


@pytest.mark.slow
def test_the_server_of_python(
    pip: Pip, tmp_path: Path, environ: dict[str, str]
) -> None:
    """The pages of this server list a directory, without hashes."""
    fill(tmp_path / "index", MARKED)
    expected = {"marked": "1.0 best", "wanted": "1.0 None"}
    with run_http_server(tmp_path / "index") as url:
        done = pip("install", "-i", url, "--target", tmp_path / "it", "marked")
        assert (done.code, done.err) == (0, ""), done.text
        assert installed_labels(tmp_path / "it") == expected
        assert uv_installs(url, tmp_path / "other", environ) == expected


def test_another_wheel_than_the_page_says(pip: Pip, tmp_path: Path) -> None:
    fill(tmp_path / "index", MARKED)
    write_page(tmp_path / "index" / "marked")
    page = tmp_path / "index" / "marked" / "index.html"
    digest = hashlib.sha256((tmp_path / "index" / BEST[1:]).read_bytes()).hexdigest()
    page.write_text(page.read_text().replace(digest, "0" * 64))
    target = tmp_path / "it"
    with count_requests(tmp_path / "index") as server:
        done = pip("install", "-i", server.url, "--target", target, "marked")
    assert done.code == 1
    assert "its sha256 is not the one that the page gives" in done.err
    assert not target.exists()


def test_required_hashes_do_not_allow_markers(pip: Pip, tmp_path: Path) -> None:
    fill(tmp_path / "index", MARKED)
    digest = hashlib.sha256((tmp_path / "index" / BEST[1:]).read_bytes()).hexdigest()
    file = tmp_path / "requirements.txt"
    file.write_text(f"marked==1.0 --hash=sha256:{digest}\n")
    target = tmp_path / "it"
    with count_requests(tmp_path / "index") as server:
        done = pip("install", "-i", server.url, "--target", target, "-r", file)
    assert done.code == 1
    assert "and the hashes that you require do not allow that" in done.err
    assert not target.exists()


@pytest.mark.skipif(sys.platform == "win32", reason="there is no such signal")
def test_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    """The first part of the wheel has arrived, and the rest never does."""
    fill(tmp_path / "index", MARKED)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environ = {**clean_environ(tmp_path / "home"), "TMPDIR": str(temporary)}
    with (
        count_requests(tmp_path / "index", fault="drip") as server,
        serving("-i", server.url, *MACHINE, environ=environ) as running,
    ):
        _, _, page = fetch(f"{running.urls[0]}marked/")
        (link,) = set(re.findall(rb'href="../../(\S+best-\S+whl)"', page))
        parts = urlsplit(running.urls[0])
        connection = http.client.HTTPConnection(parts.netloc, timeout=30)
        path = f"{parts.path.removesuffix('simple/')}{link.decode()}"
        connection.request("GET", path)
        assert connection.getresponse().status == 200
        server.requests.wait_for(f"{BEST} whole")
        running.stop(signal.SIGINT)
        connection.close()
    assert os.listdir(temporary) == []


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Return the temporary files, which no garbage collection closes."""
    made: list[Any] = []
    make = tempfile.TemporaryFile

    def record(*words: Any, **options: Any) -> Any:
        made.append(make(*words, **options))
        return made[-1]

    monkeypatch.setattr(tempfile, "TemporaryFile", record)
    monkeypatch.setattr(pieces, "_GRACE", 0.1)
    gc.disable()
    yield made
    gc.enable()


@contextmanager
def asking(url: str) -> Iterator[http.client.HTTPConnection]:
    """Send a request, and close the connection after the block."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=30)
    connection.request("GET", parts.path)
    yield connection
    connection.close()


def wait_until(check: Callable[[], object]) -> None:
    end = time.monotonic() + 30
    while not check():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_an_aborted_download_leaves_no_file(tmp_path: Path, copies: list[Any]) -> None:
    fill(tmp_path / "index", MARKED)
    with (
        count_requests(tmp_path / "index", fault="drip") as server,
        start(server.url, machine=machine("12.9", "8.0")) as running,
    ):
        files = running.page("marked").files
        with asking(
            next(files[name] for name in files if "best" in name)
        ) as connection:
            assert connection.getresponse().status == 200
            wait_until(lambda: copies)
        wait_until(lambda: all(file.closed for file in copies))


@contextmanager
def serving_announced(folder: Path, size: int, **changes: Any) -> Iterator[str]:
    """Yield the URL of announced METADATA, whose server then sends no ranges.

    :param size: the size on the page.
    :param changes: of the answer for the wheel.
    """
    wheel = stub_wheel(folder, "torch", "1.0", tag=TAG, members={"torch.bin": LARGE})
    body, place = wheel.read_bytes(), f"/files/{wheel.name}"
    answers = {
        place: Answer(body=body),
        **page_of({"filename": wheel.name, "url": place, "hashes": {}, "size": size}),
    }
    with (
        serve_answers(answers) as server,
        start(f"{server.url}/simple/", machine=machine(None)) as running,
    ):
        url = running.page(User_Agent="pip/26.3 {}").files[wheel.name]
        answers[place] = replace(answers[place], ranges=False, **changes)
        yield f"{url}.metadata"


def test_a_download_for_metadata_ends_after_its_clients(
    tmp_path: Path, copies: list[Any]
) -> None:
    with serving_announced(tmp_path, len(LARGE) * 2, fault="drip") as url:
        with asking(url):
            wait_until(lambda: copies)
        wait_until(lambda: all(file.closed for file in copies))


@pytest.mark.parametrize(("size", "status"), [(1_000_000, 502), (2 * len(LARGE), 200)])
def test_a_download_for_metadata_ends_at_the_size_on_the_page(
    size: int, status: int, tmp_path: Path
) -> None:
    with serving_announced(tmp_path, size) as url:
        reply = ask(url)
    assert reply.status == status
    assert ("its download is too large" in reply.text) == (status == 502)


def test_only_wheels_for_the_target_are_downloaded_for_their_hashes(
    pip: Pip, tmp_path: Path
) -> None:
    folder = tmp_path / "index"
    fill(folder, [])
    plain = stub_wheel(folder / "marked", "marked", "1.0")
    foreign = stub_wheel(folder / "marked", "marked", "1.0", tag="cp39-cp39-win_amd64")
    write_page(folder / "marked")
    page = folder / "marked" / "index.html"
    page.write_text(re.sub("#sha256=[0-9a-f]+", "", page.read_text()))
    digest = hashlib.sha256(plain.read_bytes()).hexdigest()
    file = tmp_path / "requirements.txt"
    file.write_text(f"marked==1.0 --hash=sha256:{digest}\n")
    target = tmp_path / "it"
    with count_requests(folder) as server:
        done = pip("install", "-i", server.url, "--target", target, "-r", file)
    assert done.code == 0, done.text
    assert installed_labels(target) == {"marked": "1.0 None"}
    assert not any(foreign.name in text for text in server.requests)


@pytest.mark.parametrize(
    ("limit", "shown"),
    [
        ({}, {"plain": True, "best": True}),
        ({"_MOST": 1 << 20}, {"plain": True}),
        ({"_PATIENCE": -60.0}, {"plain": False}),
    ],
)
def test_downloads_for_hashes_have_limits(
    limit: dict[str, float],
    shown: dict[str, bool],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A variant without a hash would make pip refuse the wheel that it takes alone."""
    large = {"marked.bin": LARGE}
    paths = {
        "best": stub_wheel(tmp_path, "marked", "1.0", "best", members=large),
        "plain": stub_wheel(tmp_path, "marked", "1.0"),
    }
    for name, value in limit.items():
        monkeypatch.setattr(pieces, name, value)
    listed = [model.File(path.name, path.as_uri(), {}) for path in paths.values()]
    selection = Selection(
        pinned={"marked": ["1.0"]},
        target=Target(version="3.11", tags={"py3-none-any": None}),
    )
    repository = HashingRepository(
        ListedUpstream({"marked": listed}), Client(), selection
    )
    page = asyncio.run(repository.get_project_page("marked"))
    assert {
        name: bool(file.hashes)
        for name, path in paths.items()
        for file in page.files
        if file.filename == path.name
    } == shown


def test_a_copy_is_kept_by_clients_as_the_wheel(tmp_path: Path) -> None:
    fill(tmp_path, MARKED)
    headers = {"Cache-Control": "no-store"}
    with (
        count_requests(tmp_path, headers=headers) as server,
        start(f"{server.url}/") as running,
    ):
        (url,) = (x for x in running.page("marked").files.values() if "best" in x)
        for _ in range(2):
            assert ask(url).headers["cache-control"] == "no-store"
        assert server.requests.count(f"{BEST} whole") == 1


@pytest.mark.parametrize("hashed", [True, False])
@pytest.mark.parametrize("replaced", [False, True])
def test_a_wheel_without_a_copy_is_downloaded_again(
    hashed: bool, replaced: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each installation but the first failed, because METADATA was known."""
    # Four copies are kept, for ten minutes.
    monkeypatch.setattr(reader.Reader, "find_copy", lambda _, resource: resource)
    fill(tmp_path, MARKED)
    write_page(tmp_path / "marked")
    page = tmp_path / "marked" / "index.html"
    if not hashed:
        page.write_text(re.sub("#sha256=[0-9a-f]{64}", "", page.read_text()))
    answers: dict[str, Answer] = {}
    with (
        count_requests(tmp_path, answers) as server,
        start(f"{server.url}/") as running,
    ):
        (url,) = (x for x in running.page("marked").files.values() if "best" in x)
        first = ask(url)
        assert first.status == 200
        metadata = ask(f"{url}.metadata").text
        assert "Requires-Dist: wanted\n" in metadata
        if replaced:
            fill(tmp_path, ["other"])
            answers[BEST] = replace(
                answers[BEST], body=(tmp_path / BEST[1:]).read_bytes()
            )
            with pytest.raises(http.client.IncompleteRead):
                ask(url)
            assert ask(url).status == 403  # uv asks once more
        else:
            assert ask(url).body == first.body
            assert server.requests.count(f"{BEST} whole") == 2
