"""`serve` and `validate` with a hostile index that tries to block them."""

from __future__ import annotations

import asyncio
import gc
import gzip
import http.client
import json
import os
import re
import signal
import socket
import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from packaging.version import Version
from support.grids import some_of
from support.loopback import JSON, ask, start
from support.processes import clean_environ, provider
from support.range_server import Answer, RangeServer, serve_answers
from support.serving import Serving, fetch, serving
from support.wheels import stub_wheel

from nvp.index.http import pages, replies
from nvp.index.http.client import Client
from nvp.index.http.pages import parse_page
from nvp.index.http.threads import Turn
from nvp.index.http.urls import CompleteResponse, UpstreamError
from nvp.index.server.kept_pages import KeptPages
from nvp.index.server.places import LinksUpstream

PAGES = {
    "quotes": Answer(body=b"<a x='" * 300_000, kind="text/html"),
    "comments": Answer(body=b"<!--" * 500_000, kind="text/html"),
    "ends": Answer(body=b"</" * 1_000_000, kind="text/html"),
    "bomb": Answer(
        body=gzip.compress(b"<a>" * 7_000_000),
        kind="text/html",
        headers={"Content-Encoding": "gzip"},
    ),
    "lists": Answer(
        body=b'{"files":[' + b"[]," * 5_000_000 + b"[]]}",
        kind="application/vnd.pypi.simple.v1+json",
    ),
}
ENDING = [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
CLIENTS_GONE = 7


@pytest.fixture(scope="module")
def upstream() -> Iterator[RangeServer]:
    """Return an index with hostile pages, and with a wheel that never ends."""
    answers = {f"/simple/{name}/": page for name, page in PAGES.items()}
    answers["/simple/fine/"] = Answer(body=b"<a href=fine-1.zip>", kind="text/html")
    wheel = "drip-1.0-py3-none-any-cu126.whl"
    link = f"<a href=/files/{wheel}>".encode()
    answers["/simple/drip/"] = Answer(body=link, kind="text/html")
    answers[f"/files/{wheel}"] = Answer(body=b"x" * 100_000, fault="drip")
    with serve_answers(answers) as server:
        yield server


@pytest.fixture
def server(upstream: RangeServer, tmp_path: Path) -> Iterator[Serving]:
    """Return a process that serves the index."""
    machine = ("--cuda-driver", "12.9", "--sm-arch", "9.0")
    environ = clean_environ(tmp_path / "home")
    with serving("-i", f"{upstream.url}/simple/", *machine, environ=environ) as process:
        yield process


def leave_early(server: Serving, project: str) -> None:
    """Request the page of a project several times, without waiting for a reply."""
    parts = urlsplit(server.urls[0])
    for _ in range(CLIENTS_GONE):
        with socket.create_connection(("127.0.0.1", parts.port or 0)) as client:
            request = f"GET {parts.path}{project}/ HTTP/1.1\r\nHost: localhost\r\n\r\n"
            client.sendall(request.encode())


@pytest.mark.parametrize("project", some_of(((name,) for name in PAGES), 3))
def test_others_are_served_after_a_hostile_page(server: Serving, project: str) -> None:
    leave_early(server, project)
    accept = {"Accept": "application/vnd.pypi.simple.v1+json"}
    status, _, body = fetch(f"{server.urls[0]}{project}/", headers=accept)
    assert status in (200, 502)
    assert status == 200 or b"is refused: it has" in body
    assert fetch(f"{server.urls[0]}fine/")[0] == 200
    code, said = server.stop(signal.SIGTERM)
    assert code == 0
    assert "Traceback" not in said


@pytest.mark.skipif(sys.platform == "win32", reason="has no such signals")
@pytest.mark.parametrize("number", ENDING)
def test_a_signal_ends_it_while_threads_wait_for_a_server(
    server: Serving, upstream: RangeServer, number: signal.Signals
) -> None:
    upstream.requests.clear()
    leave_early(server, "drip")
    upstream.requests.wait_for("/files/drip")
    code, said = server.stop(number)
    assert code == 0
    assert "Traceback" not in said


@pytest.mark.parametrize(
    "project",
    [
        "quotes",
        "bomb",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("comments", "ends", "lists")
        ),
    ],
)
def test_validate_reads_or_refuses_hostile_pages(
    project: str, upstream: RangeServer, tmp_path: Path
) -> None:
    environ = clean_environ(tmp_path)
    done = provider("validate", f"{upstream.url}/simple/{project}/", environ=environ)
    assert done.code in (1, 3)
    assert "Traceback" not in done.text


NAME = "secret-1.0-py3-none-any.whl"


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """Return a stranger's index, beside which are a user's private pages and files."""
    (index := tmp_path / "shared" / "index").mkdir(parents=True)
    for folder in ("private", "private/secret", "private/paged"):
        stub_wheel(tmp_path / folder, "secret", "1.0")
    page = f'<!DOCTYPE html><a href="https://elsewhere.example/TOKEN/{NAME}">x</a>'
    (tmp_path / "private" / "paged" / "index.html").write_text(page)
    stub_wheel(index / "open", "open", "1.0")
    return index


@pytest.mark.skipif(os.name == "nt", reason="only few users can make links there")
@pytest.mark.parametrize(
    ("link", "target"),
    [
        ("secret", "private/secret"),
        ("paged", "private/paged"),
        ("page/index.html", "private/paged/index.html"),
    ],
)
def test_links_show_nothing_of_another_user(
    link: str, target: str, shared: Path, tmp_path: Path
) -> None:
    """A link in the directory may be a stranger's; the user can read its target."""
    project = link.partition("/")[0]
    (shared / link).parent.mkdir(exist_ok=True)
    (shared / link).symlink_to(tmp_path / target)
    with start(str(shared)) as running:
        reply = ask(f"{running.urls[0]}{project}/", Accept=JSON)
        assert re.match("error: .*outside of the index", reply.text)
        assert NAME not in reply.text
        assert ask(f"{running.urls[0]}open/").status == 200


@pytest.mark.skipif(os.name == "nt", reason="only few users can make links there")
def test_links_inside_of_the_parent_are_followed(shared: Path) -> None:
    stub_wheel(shared.parent / "files", "files", "1.0")
    stub_wheel(shared.parent / "paged", "paged", "1.0")
    page = '<!DOCTYPE html><a href="paged-1.0-py3-none-any.whl">x</a>'
    for name in ("paged/index.html", "paged/versions/index_7.html"):
        (shared.parent / name).parent.mkdir(exist_ok=True)
        (shared.parent / name).write_text(page)
    (shared / "old").mkdir()
    for link, target in (
        ("files", "files"),
        ("paged", "paged"),
        ("old/index.html", "paged/versions/index_7.html"),
    ):
        (shared / link).symlink_to(shared.parent / target)
    stub_wheel(shared / "old", "paged", "1.0")
    with start(str(shared)) as running:
        for project in ("files", "paged", "old"):
            for url in ask(f"{running.urls[0]}{project}/", Accept=JSON).files.values():
                assert ask(url).status == 200
                break
            else:
                pytest.fail(project)


@pytest.mark.skipif(os.name == "nt", reason="only few users can make links there")
@pytest.mark.parametrize("own", [True, False])
def test_an_index_that_becomes_a_link(own: bool, shared: Path, tmp_path: Path) -> None:
    """The owner of the directory above can exchange the index at any time."""
    target = tmp_path / "private"
    secret = target / "secret" / NAME
    if own:  # Its parent then has the private directory.
        target = tmp_path / "own"
        page = f'<!DOCTYPE html><a href="{secret.as_uri()}">x</a>'
        for folder in (target / "secret", shared / "secret"):
            folder.mkdir(parents=True)
            (folder / "index.html").write_text(page)
    with start(str(shared)) as running:
        if own:
            url = ask(f"{running.urls[0]}secret/", Accept=JSON).files[NAME]
            assert ask(url).status == 403
        shared.rename(tmp_path / "hidden")
        shared.symlink_to(target, target_is_directory=True)
        for path in ("", "secret/"):
            reply = ask(f"{running.urls[0]}{path}", Accept=JSON)
            assert re.match("error: .*outside of the index", reply.text)
        if own:
            assert ask(url).status in (403, 404)


_SIZE = 1024 * 1024
_UNREADABLE = {
    "a bad entry": Answer(
        body=b'{"files":[{"filename":"p-1.zip","url":5,"x":"%s"}]}' % (b"x" * _SIZE),
        kind=JSON,
    ),
    "many files": Answer(
        body=json.dumps(
            {"files": [{"filename": f"p-{n}.zip", "url": "/f"} for n in range(9000)]}
        ).encode()[:-2]
        + b',{"filename":"p-1.zip","url":5}]}',
        kind=JSON,
    ),
    "too large": Answer(
        body=gzip.compress(b"x" * (9 * _SIZE)),
        kind=JSON,
        headers={"Content-Encoding": "gzip"},
    ),
    "broken": Answer(body=b"<p>" + b"x" * 3 * _SIZE, kind="text/html", fault="cut"),
    "broken tags": Answer(body=b"<a>" * _SIZE, kind="text/html", fault="cut"),
    "broken link": Answer(
        body=b"<a href=a href=b>p</a>" + b"x" * 3 * _SIZE, kind="text/html", fault="cut"
    ),
    "of no type": Answer(body=b"x" * _SIZE, kind="image/png"),
    "readable": Answer(body=b'{"files":[],"x":"%s"}' % (b"x" * _SIZE), kind=JSON),
}


@pytest.mark.parametrize("kind", _UNREADABLE)
@pytest.mark.parametrize("way", ["page", "file", "another index"])
def test_pages_that_cannot_be_read_are_not_kept(way: str, kind: str) -> None:
    """20 requests for one page took 4 GB, until Python looked for cycles.

    Errors have the responses of their frames, and most frames refer to their errors.
    """
    build = b'<!DOCTYPE html><a href="p-1-py3-none-any-cu118.whl">p</a>'
    path = "/b/p/" if way == "another index" else "/a/p/"
    pages = {"/a/p/": Answer(body=build, kind="text/html"), path: _UNREADABLE[kind]}
    kept = KeptPages(lambda _: None, clock=lambda: next(times))
    times = iter(range(0, 10**9, 1000))
    asked = "f/p/-/0/p-1.zip" if way == "file" else "simple/p/"
    with (
        serve_answers(pages) as server,
        start(f"{server.url}/a/", f"{server.url}/b/", kept=kept) as running,
    ):
        url = running.urls[0].removesuffix("simple/") + asked

        def once() -> None:
            with suppress(http.client.IncompleteRead):  # of a broken page
                ask(url, Accept=JSON)

        once()
        gc.collect()
        gc.disable()
        tracemalloc.start()
        try:
            for _ in range(12):
                once()
            ask(f"{running.urls[0]}%00/")  # answered after the end of the others
            taken, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
            gc.enable()
        assert len([item for item in server.requests if item.startswith(path)]) > 12
    # The last response may be freed a little later.
    most = 36 if kind == "too large" else 6
    assert taken < most * _SIZE, f"{taken / _SIZE:.1f} MiB"


@pytest.mark.parametrize("size", [10_000, 40_000])
def test_a_page_that_is_large_when_unpacked_waits_for_its_turn(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """64 pages of 600 KB, which were 53 MB each, took 3.5 GB."""
    monkeypatch.setattr(replies, "LARGE", 20_000)
    seen: list[int | str] = []
    real = replies.decode

    def decode(reply: CompleteResponse, limit: int) -> bytes | None:
        seen.append(limit)
        return real(reply, limit)

    class Turns(Turn):
        async def take(self) -> None:
            seen.append("turn")

    monkeypatch.setattr(replies, "decode", decode)
    body = bytes(size)
    headers = {"content-encoding": "gzip"}
    reply = CompleteResponse(
        status=200, url="", headers=headers, body=b"", raw=gzip.compress(body)
    )

    async def unpack() -> CompleteResponse:
        return await replies.unpack(reply, "", 50_000, Turns(asyncio.Lock()))

    assert asyncio.run(unpack()).body == body
    assert seen == [20_000, *(["turn", 50_000] if size > 20_000 else [])]


def test_long_urls_are_not_kept() -> None:
    """Python keeps the last 128 URLs that it has parsed, and each may have 50 MB."""

    def page(name: str) -> Answer:
        url = f"/f/{name}/" + "x" * (2 * _SIZE)
        entry = {"filename": f"{name}-1-py3-none-any.whl", "url": url, "hashes": {}}
        page = {"meta": {"api-version": "1.0"}, "name": name, "files": [entry]}
        return Answer(body=json.dumps(page).encode(), kind=JSON)

    names = [f"p{number}" for number in range(9)]
    with (
        serve_answers({f"/a/{name}/": page(name) for name in names}) as server,
        start(f"{server.url}/a/") as running,
    ):
        running.page(names[0])
        gc.collect()
        tracemalloc.start()
        try:
            for name in names[1:]:
                running.page(name)
            gc.collect()
            taken, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert taken < 8 * _SIZE


EQUAL = [f"1.{n * (2**61 - 1)}" for n in range(1, 70)]
SIMILAR = [f"1.{n * 2**61}" for n in range(1, 70)]


def chosen() -> list[str]:
    """Return versions whose tuples of small numbers have the same hash in CPython."""
    times, factor, start = (
        11400714785074694791,
        14029467366897019727,
        2870177450012600261,
    )
    inverse = pow(factor, -1, 2**64)

    def after(state: int, number: int) -> int:
        state = (state + number * factor) % 2**64
        return (state << 31 | state >> 33) * times % 2**64

    found: list[str] = []
    for number in range(100_000):
        last = -after(after(start, 1), number) * inverse % 2**64
        if last < 10**15 * 100 and len(found) < 70:
            found.append(f"1.{number}.{last}")
    return found


@pytest.mark.parametrize(
    "end", [".tar.gz", "-py3-none-any.whl", "+a-py3-none-any.whl", "-variants.json"]
)
@pytest.mark.parametrize("versions", [EQUAL, chosen()])
def test_versions_with_the_same_hash_are_refused(versions: list[str], end: str) -> None:
    assert len({hash(Version(version)) for version in versions}) == 1

    def page(versions: list[str]) -> bytes:
        names = [f"p-{version}{end}" for version in versions]
        files = [{"filename": x, "url": f"f/{x}", "hashes": {}} for x in names]
        return json.dumps({"meta": {"api-version": "1.0"}, "files": files}).encode()

    url = "https://index.example/p/"
    for exact in (True, False):
        with pytest.raises(UpstreamError, match="too many versions with the same hash"):
            parse_page(page(versions), JSON, url, "p", exact=exact)
    assert parse_page(page(SIMILAR), JSON, url, "p", exact=True).files


def test_links_to_versions_with_the_same_hash_are_refused(tmp_path: Path) -> None:
    for version in EQUAL:
        (tmp_path / f"p-{version}.tar.gz").touch()
    upstream = LinksUpstream(str(tmp_path), Client())
    with pytest.raises(UpstreamError, match="too many versions with the same hash"):
        asyncio.run(upstream.get_project_page("p"))


def test_a_page_that_stays_as_it_is_takes_little_memory() -> None:
    """Its text has two bytes for each character, and would have six if escaped."""
    body = '{"files":[],"x":"%s"}'.replace("%s", "\u0101" * 2 * _SIZE).encode()
    url, headers = "https://index.example/p/", {"content-type": JSON}
    reply = CompleteResponse(status=200, url=url, headers=headers, body=body, raw=body)
    tracemalloc.start()
    try:
        again = pages.with_absolute_links(reply).raw
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert json.loads(again) == json.loads(body)
    assert peak < 6 * len(body)
