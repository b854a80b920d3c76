"""Pages are cached while their index allows, and equal requests are sent once."""

from __future__ import annotations

import asyncio
import gc
import json
import math
import threading
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simple_repository import model
from support.builds import gpu_build, metadata
from support.loopback import Running, start
from support.pages import HTML, JSON, SHA
from support.range_server import Answer, RangeServer, serve_answers
from support.wheels import publish

from nvp.index.http.pages import parse_page
from nvp.index.http.urls import CompleteResponse
from nvp.index.selection import component
from nvp.index.selection.kept import weigh
from nvp.index.selection.options import parse_pins
from nvp.index.server import kept_pages, upstream
from nvp.index.server.kept_pages import KeptPage, KeptPages, mark

PATH = "/simple/p/"
REDIRECTS = [(302, "no-store", 0), (301, "max-age=99", 0), (307, "", 0), (308, "", 10)]
URL = "http://127.0.0.1/simple/p/"
STALE = "max-age=5, stale-if-error=60"


def page(version: str = "1.0", fault: str = "", **headers: str) -> Answer:
    """Return a page with one wheel, and headers with ``_`` in place of ``-``."""
    name = f"p-{version}-py3-none-any.whl"
    return Answer(
        body=f"<!DOCTYPE html><a href={name}>{name}</a>".encode(),
        kind="text/html",
        fault=fault,
        headers={key.replace("_", "-"): text for key, text in headers.items()},
    )


@dataclass
class Case:
    """A server with pages in front of an index, and a clock for its ages."""

    answers: dict[str, Answer]
    upstream: RangeServer
    running: Running
    warnings: list[str]
    time: list[float] = field(default_factory=lambda: [0.0])

    def versions(self, project: str = "p", at: float | None = None) -> list[str]:
        """Return the versions on the page at a time; an empty result without a page."""
        if at is not None:
            self.time[0] = at
        reply = self.running.page(project)
        return [n.split("-")[1] for n in reply.files] if reply.status == 200 else []

    def asked(self) -> int:
        """Return the number of requests to the index since the last call."""
        count = len(self.upstream.requests)
        self.upstream.requests.clear()
        return count


@contextmanager
def case(
    *others: str, fresh: bool = False, credentials: str | None = None
) -> Iterator[Case]:
    time, answers = [0.0], {PATH: page()}
    warnings: list[str] = []
    kept = KeptPages(warnings.append, fresh=fresh, clock=lambda: time[0])
    with serve_answers(answers, credentials=credentials) as upstream:
        url = f"{upstream.url}/simple/"
        if credentials is not None:
            url = url.replace("//", f"//{credentials}@")
        with start(url, *others, kept=kept) as running:
            yield Case(answers, upstream, running, warnings, time)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, 10),
        ({"Cache_Control": "max-age=60"}, 60),
        ({"Cache_Control": 'private, MAX-AGE = "5"'}, 5),
        ({"Cache_Control": "max-age=60, max-age=600"}, 60),
        ({"Cache_Control": "max-age=999999999"}, 600),
        ({"Cache_Control": "max-age=60", "Age": "45"}, 15),
        ({"Cache_Control": "max-age=60", "Age": "61"}, 0),
        ({"Cache_Control": "max-age=60", "Date": "Sun, 06 Nov 1994 08:49:37 GMT"}, 0),
        ({"Cache_Control": "max-age=soon"}, 0),
        ({"Cache_Control": "s-maxage=60, public"}, 10),
        ({"Cache_Control": "no-cache, max-age=60"}, 0),
        ({"Cache_Control": "max-age=60, no-store"}, 0),
        ({"Cache_Control": "max-age=60", "Vary": "Accept, *"}, 0),
    ],
)
def test_the_index_says_how_long(headers: dict[str, str], seconds: float) -> None:
    with case() as it:
        it.answers[PATH] = page("1.0", **headers)
        assert it.versions() == ["1.0"]
        it.answers[PATH] = page("2.0", **headers)
        if seconds:
            assert it.versions(at=seconds - 0.5) == ["1.0"]
            assert it.asked() == 1
        assert it.versions(at=seconds) == ["2.0"]


@pytest.mark.parametrize("name", ["ETag", "Last_Modified"])
@pytest.mark.parametrize("policy", ["", "no-cache"])
def test_an_unchanged_page_is_not_sent_again(name: str, policy: str) -> None:
    headers = {name: '"1"', **({"Cache_Control": policy} if policy else {})}
    with case() as it:
        it.answers[PATH] = page("1.0", **headers)
        assert it.versions() == ["1.0"]
        sent = it.upstream.sent[PATH]
        assert it.versions(at=10) == ["1.0"]
        assert it.versions(at=19) == ["1.0"]
        assert it.asked() == (3 if policy else 2)
        assert it.upstream.sent[PATH] == sent
        it.answers[PATH] = page("2.0", **{**headers, name: '"2"'})
        assert it.versions(at=20) == ["2.0"]


def json_page(*files: object, **keys: object) -> tuple[bytes, str]:
    document = {"meta": {"api-version": "1.0"}, "files": files, **keys}
    return json.dumps(document, separators=(",", ":")).encode(), JSON


def entry(number: int, **keys: object) -> dict[str, object]:
    return {"filename": f"p-{number}.zip", "url": f"p-{number}.zip", **keys}


SIGNED = {"hashes": {"sha256": SHA}, "core-metadata": {"sha256": SHA}}
REAL = {**SIGNED, "size": 10**6, "upload-time": "2024-01-01T00:00:00Z", "yanked": False}
ATTESTED = b"<a href=p-1.zip data-provenance=p>p</a>"
TEXTS = {
    "real": json_page(*(entry(n, **REAL) for n in range(2000))),
    "short entries": json_page(*map(entry, range(12_000))),
    "small values": json_page(x=[{"a": 0}] * 30_000),
    "small keys": json_page(x={str(n): 0 for n in range(50_000)}),
    "keys of files": json_page(*(entry(n, x={}, y=[]) for n in range(5000))),
    "versions": json_page(versions=[str(n) for n in range(50_000)]),
    "wide text": json_page(x="x" * 1_000_000 + "\U0001f600"),
    "base": (b"<base href=//x/%s/>" % (b"x" * 1900) + ATTESTED * 999, HTML),
    "links": (b"".join(b"<a href=p-%d.zip>p</a>" % n for n in range(12_000)), HTML),
    "attributes": (b"<a href=p-1.zip data-a=1 data-b=2 data-c=3>p</a>" * 5000, HTML),
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_page_weighs_what_it_takes(name: str) -> None:
    body, kind = TEXTS[name]
    headers = {"content-type": kind}
    reply = CompleteResponse(status=200, url=URL, headers=headers, body=body, raw=body)
    parse_page(b"<p>", HTML, URL, "p")  # loads the parser
    gc.collect()
    tracemalloc.start()
    try:
        page_ = parse_page(body, kind, URL, "p")
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0.8 * taken < weigh(mark(page_, reply, None)) < 4 * taken + 10_000


@pytest.mark.parametrize("values", [800, 1200, 4000])
def test_large_pages_leave_no_room_for_others(
    values: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page of small values takes many times its size, and an index has many pages."""
    monkeypatch.setattr(kept_pages, "PAGES", 700_000)
    monkeypatch.setattr(kept_pages, "_MADE", 1)
    body, kind = json_page(entry(1), x=[{"a": 0}] * values)
    with case() as it:
        for project in "pqp":
            headers = {"Cache-Control": "max-age=600"}
            answer = Answer(body=body, kind=kind, headers=headers)
            it.answers[f"/simple/{project}/"] = answer
            assert it.running.page(project).status == 200
        assert it.running.page("p").status == 200
        assert it.asked() == (2 if values == 800 else 3)


def test_long_headers_leave_no_room_for_other_pages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kept_pages, "PAGES", 25_000)
    monkeypatch.setattr(kept_pages, "_MADE", 1)
    with case() as it:
        for length, asked in ((10, 2), (15_000, 3)):
            for project in "pqp":
                it.answers[f"/simple/{project}/"] = page(ETag='"' + "x" * length + '"')
                assert it.versions(project) == ["1.0"]
            assert it.asked() == asked
            it.time[0] += 10


def test_the_pages_behind_files_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "PAGES", 1_000_000)
    monkeypatch.setattr(component, "PAGES", 1_000_000)
    names, answers = [f"p{number}" for number in range(12)], {}
    for name in names:
        wheels = [f"{name}-{n}+cu126-py3-none-linux_x86_64.whl" for n in range(200)]
        files = ({"filename": wheel, "url": wheel} for wheel in wheels)
        body, kind = json_page(*files, x=[0] * 5000)
        answers[f"/simple/{name}/"] = Answer(body=body, kind=kind)
    with serve_answers(answers) as index, start(f"{index.url}/simple/") as running:
        for name in names:
            assert running.page(name).status == 200
        (place,) = running.local_index._places
        (repository,) = running.local_index._repositories
    assert 0 < len(place.upstream._pages) < len(names)
    assert 0 < len(repository.all_shown()) < len(names)


def test_a_lock_file_gets_all_builds_of_a_page_without_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large page of one index must not lose the builds of another one."""
    monkeypatch.setattr(component, "PAGES", 1)
    for name in ("one", "two"):
        publish(tmp_path, metadata({"cu126": gpu_build("12.6")}), name, "1.0")
    with start(str(tmp_path), pins=parse_pins(["cu126"]), secret=True) as running:
        token = running.local_index.token or ""
        for name in ("one", "two"):
            found = running.page(name, Nvp_Proof=token).files.items()
            url = next(url for file, url in found if "cu126" in file)
            assert running.page("two", Nvp_Proof=token).status == 200
            release = running.local_index.read_lockable(url)
            assert release is not None
            assert len(release.wheels) == 2
            assert running.local_index.find_shown_releases(name)
        assert running.local_index.requested == {"one", "two"}
        assert running.local_index.asked_labels().keys() == {"one", "two"}


def test_large_pages_are_read_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight pages of 60 MB at once took 2.7 GB."""
    monkeypatch.setattr("nvp.index.http.client.LARGE", 1000)
    working: list[int] = []
    real = upstream._parse

    def parse(reply: CompleteResponse, *rest: Any) -> model.ProjectDetail:
        working.append(1)
        with pytest.raises(threading.BrokenBarrierError):
            barrier.wait(0.3)
        return real(reply, *rest)

    monkeypatch.setattr(upstream, "_parse", parse)
    barrier = threading.Barrier(2)
    body, kind = json_page(entry(1), x=["x" * 2000])
    answers = {f"/simple/{x}/": Answer(body=body, kind=kind) for x in "pq"}
    with (
        serve_answers(answers) as index,
        start(f"{index.url}/simple/", kept=KeptPages(print)) as running,
        ThreadPoolExecutor() as pool,
    ):
        assert [x.status for x in pool.map(running.page, "pq")] == [200, 200]
    assert len(working) == 2


def test_a_page_that_must_not_be_stored_is_asked_for_without_conditions() -> None:
    with case() as it:
        it.answers[PATH] = page(ETag='"1"', Cache_Control="no-store")
        assert [it.versions(), it.versions()] == [["1.0"], ["1.0"]]
        assert it.upstream.sent[PATH] == 2 * len(it.answers[PATH].body)


@pytest.mark.parametrize(("status", "policy", "at"), REDIRECTS)
def test_a_redirect_with_the_same_tag(status: int, policy: str, at: float) -> None:
    with case() as it:
        for place, version, time in (("/a/", "1.0", 0), ("/b/", "2.0", at)):
            it.answers[place] = page(version, ETag='"1"')
            headers = {"Location": place, "Cache-Control": policy}
            it.answers[PATH] = Answer(status=status, headers=headers)
            assert it.versions(at=time) == [version]


@pytest.mark.parametrize("status", [404, 410, 403, 500, 503])
def test_errors_are_not_kept(status: int) -> None:
    with case() as it:
        it.answers[PATH] = Answer(status=status)
        assert it.versions() == []
        it.answers[PATH] = page()
        assert it.versions() == ["1.0"]


@pytest.mark.parametrize("dead", [Answer(status=503), page("2.0", fault="cut")])
def test_the_last_page_stands_in_for_an_error(dead: Answer) -> None:
    with case() as it:
        it.answers |= {PATH: page(Cache_Control=STALE), "/simple/q/": page()}
        assert it.versions() == ["1.0"]
        it.answers[PATH] = dead
        assert it.versions(at=5) == ["1.0"]
        assert it.versions(at=60) == ["1.0"]
        assert len(it.warnings) == 1
        assert "pages of this index are sent as they were" in it.warnings[0]
        it.asked()
        assert it.versions(at=62) == ["1.0"]
        assert it.asked() == 0  # The last request to the index was a moment ago.
        it.answers[PATH] = page("2.0", Cache_Control=STALE)
        assert it.versions(at=64) == ["2.0"]
        it.answers[PATH] = Answer(status=503)
        assert it.versions(at=128) == ["2.0"]
        assert len(it.warnings) == 2
        assert it.versions(at=64 + 65) == []


@pytest.mark.parametrize(
    "policy",
    [
        "max-age=5",
        "max-age=5, must-revalidate, stale-if-error=60",
        "no-cache, stale-if-error=60",
        "no-store, stale-if-error=60",
    ],
)
def test_no_last_page_where_the_index_does_not_allow_it(policy: str) -> None:
    with case() as it:
        it.answers[PATH] = page(Cache_Control=policy)
        assert it.versions() == ["1.0"]
        it.answers[PATH] = Answer(status=503)
        assert it.versions(at=6) == []
        assert it.warnings == []


def test_a_project_that_is_gone_stays_gone() -> None:
    with case() as it:
        it.answers[PATH] = page(Cache_Control=STALE)
        assert it.versions() == ["1.0"]
        for status in (404, 503):
            it.answers[PATH] = Answer(status=status)
            assert it.versions(at=6) == []


def test_a_slow_index(monkeypatch: pytest.MonkeyPatch) -> None:
    def parse_slowly(*args: Any) -> model.ProjectDetail:
        threading.Event().wait(0.5)
        return parse(*args)

    parse = upstream._parse
    monkeypatch.setattr(kept_pages, "_PATIENCE", 0.1)
    with case() as it:
        it.answers[PATH] = page(Cache_Control=STALE)
        assert it.versions() == ["1.0"]
        # With a page of 40 MB of another index, pip got a file that this one yanked.
        with monkeypatch.context() as patch:
            patch.setattr(upstream, "_parse", parse_slowly)
            it.answers[PATH] = page("2.0", Cache_Control=STALE)
            assert it.versions(at=6) == ["2.0"]
        assert it.warnings == []
        it.answers[PATH] = page("3.0", fault="hang")
        assert it.versions(at=12) == ["2.0"]
        assert it.warnings[0].startswith(f"{it.upstream.url}{PATH}: no page within 0.1")


def test_credentials_are_kept_apart() -> None:
    with case(credentials="user:secret") as it:
        assert it.versions() == ["1.0"]
        client = it.running.local_index._client
        index = f"{it.upstream.url}/simple/"
        client.logins.add(index, ("user", "wrong"))
        assert it.running.page("p").status == 401
        client.logins.add(index, ("user", "secret"))
        assert it.versions() == ["1.0"]
        assert it.asked() == 2


def test_nothing_is_kept_with_fresh() -> None:
    with case(fresh=True) as it:
        it.answers[PATH] = page(ETag='"1"', Cache_Control=STALE)
        assert [it.versions(), it.versions()] == [["1.0"], ["1.0"]]
        assert it.upstream.sent[PATH] == 2 * len(it.answers[PATH].body)
        it.answers[PATH] = Answer(status=503)
        assert it.versions() == []


def test_a_folder_is_read_each_time(tmp_path: Path) -> None:
    folder = tmp_path / "p"
    folder.mkdir()
    (folder / "p-3.0-py3-none-any.whl").touch()
    with case(str(tmp_path)) as it:
        assert it.running.page("p", 1).text.count("3.0-py3") > 0
        (folder / "p-4.0-py3-none-any.whl").touch()
        assert "p-4.0-py3-none-any.whl" in it.running.page("p", 1).files


def test_many_clients_are_one_request() -> None:
    with case() as it, ThreadPoolExecutor(20) as pool:
        found = list(pool.map(lambda _: it.versions(), range(40)))
        assert found == [["1.0"]] * 40
        assert it.asked() == 1


@pytest.mark.parametrize("fails", [False, True])
def test_equal_requests_are_merged_even_if_nothing_may_be_kept(fails: bool) -> None:
    asked: list[KeptPage | None] = []
    found = model.ProjectDetail(meta=model.Meta("1.0"), name="p", files=())
    reply = CompleteResponse(
        status=200, url=URL, headers={"cache-control": "no-store"}, body=b""
    )

    async def work() -> list[object]:
        kept, go = KeptPages(lambda _: None), asyncio.Event()

        async def ask(
            last: KeptPage | None, _: object
        ) -> tuple[CompleteResponse, model.ProjectDetail]:
            asked.append(last)
            await go.wait()
            if fails:
                raise OSError("broken")
            return reply, found

        reads = [
            asyncio.create_task(kept.read(URL, partial(int, n % 2), ask))
            for n in range(20)
        ]
        await asyncio.sleep(0)
        reads[0].cancel()  # A client that disconnects does not affect the others.
        await asyncio.sleep(0)
        go.set()
        return await asyncio.gather(*reads, return_exceptions=True)

    first, *others = asyncio.run(work())
    assert isinstance(first, asyncio.CancelledError)
    assert all(isinstance(x, OSError) if fails else x is found for x in others)
    assert asked == [None, None]  # The cache has one page for each user.


@given(st.text() | st.from_regex(r'(max-age|stale-if-error)="?-?[0-9]*"?,?'))
def test_any_header_is_a_number_of_seconds(text: str) -> None:
    age = kept_pages._age_of({"age": text, "date": text})
    for seconds in kept_pages._lifetime({"cache-control": text}, age):
        assert 0 <= seconds < math.inf
