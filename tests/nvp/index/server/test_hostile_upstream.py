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
from simple_repository import model
from support.grids import some_of
from support.loopback import JSON, ask, start
from support.processes import clean_environ, provider
from support.range_server import Answer, RangeServer, serve_answers
from support.serving import Serving, fetch, serving
from support.wheels import stub_wheel

from nvp.index.http import kept_keys, pages, replies
from nvp.index.http.client import Client
from nvp.index.http.kept_keys import LINKS, check_hashes
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
_FOUND = """
    1.612082.34610521.23045 1.9326.442823249.748249 1.53443.9540198.7629765
    1.85789.296029.17283176 1.5367136.522061902.1013 1.5388186.180448882.2708
    1.6867355.139426285.5864 1.3843524.169818521.6053 1.7136265.751779257.8502
    1.7436544.893262559.9393 1.1224161.69221037.46083 1.314971.828080190.62575
    1.336021.486467170.64270 1.723633.301990692.76474 1.9024921.43128115.77564
    1.10504090.2105518.80720 1.927050.862690706.85613 1.948100.521077686.87308
    1.3153891.7396604.184898 1.4510650.2384787.286098 1.8146560.6603067.308947
    1.778680.99946442.333481 1.19772.696520457.484741 1.380622.30725712.584785
    1.8181382.4632790.616266 1.897466.25577116.730062 1.2922431.3511795.746638
    1.30376.101210229.749944 1.162977.26977380.805068 1.5823852.9130339.844493
    1.1348027.4775280.865721 1.51225.948110911.870009 1.480937.80408393.885603
    1.65198.99239952.1057263 1.599723.6039067.1282184 1.1116567.890471.1427461
    1.7413.667949003.1743880 1.9124.931433303.2244886 1.141883.8193018.2828721
    1.7347420.976338.2864801 1.98326.19950387.3285916 1.3218848.882286.4081170
    1.8255.712574968.4218227 1.95544.26217806.6254888 1.7896304.124884.6286369
    1.1062949.267374.6535824 1.7131.201797356.6608244 1.314645.1531161.6952287
    1.3151415.122712.9530990 1.9104.91342963.15511718 1.50967.2266306.16975857
    1.6322.97610382.18480690 1.83007.6563448.20252148 1.13368145.121716023.1212
    1.13668424.263199325.2103 1.10776369.360897759.5409 1.15416503.834529700.7897
    1.5591603.741148896.11847 1.8936763.510626942.14244 1.2999827.980330632.16044
    1.7392101.499996581.17589 1.4478996.939308035.19200 1.4500046.597695015.20895
    1.8892320.117360964.22440 1.5979215.556672418.24051 1.6000265.215059398.25746
"""
"""Found in a minute, because the tuples of CPython have hashes without a secret."""
NINE_DIGITS = _FOUND.split()


@pytest.mark.parametrize(
    "end", [".tar.gz", "-py3-none-any.whl", "+a-py3-none-any.whl", "-variants.json"]
)
@pytest.mark.parametrize("versions", [EQUAL, NINE_DIGITS])
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


def test_a_project_with_many_versions_is_refused() -> None:
    """Dictionaries may take quadratic time for versions with different hashes, too."""
    url = "https://index.example/p/"
    for number in (20_000, 20_001):
        names = (f"p-{version}-py3-none-any.whl" for version in range(number))
        page = "".join(f'<a href="{name}">{name}</a>' for name in names).encode()
        if number == 20_000:
            assert len(parse_page(page, "text/html", url, "p").files) == number
            continue
        with pytest.raises(UpstreamError, match="more than 20000 versions"):
            parse_page(page, "text/html", url, "p")
        assert parse_page(page, "text/html", url, LINKS).files


def test_hashes_are_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever can choose hashes can also choose those for which keys are slow."""

    class Hash(int):
        __hash__ = None  # type: ignore[assignment]

    monkeypatch.setattr(kept_keys, "hash", lambda _: Hash(), raising=False)
    names = [f"p-{version}-py3-none-any.whl" for version in SIMILAR[:65]]
    files = [model.File(name, name, {}) for name in names]
    check_hashes(files[:64], LINKS)
    with pytest.raises(ValueError, match="too many versions with the same hash"):
        check_hashes(files, LINKS)


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
