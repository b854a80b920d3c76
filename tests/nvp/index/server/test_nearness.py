"""Pages from elsewhere that name servers of this machine."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from simple_repository import model
from support.authority import HOST
from support.documents import TORCH
from support.loopback import JSON, Running, ask, start
from support.processes import provider
from support.proxy import serve_proxy
from support.range_server import Answer, RangeServer, serve_answers
from support.serving import fetch, serving
from support.wheels import stub_wheel

from nvp.index.http import connecting, threads
from nvp.index.http.blocking import BlockingClient
from nvp.index.http.client import Client
from nvp.index.http.connecting import Nearness, NearnessFinder
from nvp.index.http.urls import REFUSED, Settings, UpstreamError, server_of
from nvp.index.server import upstream
from nvp.index.server.places import LinksUpstream
from nvp.index.server.responses import ANY_HOST, LOOPBACK_NAMES
from nvp.index.server.upstream import refuse_near_files

METADATA = "torch-2.8.0-variants.json"
WHEEL = "torch-2.8.0-py3-none-any-cu128.whl"
PLAIN = "torch-2.8.0-py3-none-any.whl"
MACHINE = ("--cuda-driver", "12.9", "--sm-arch", "9.0")


@pytest.fixture
def inner(tmp_path: Path) -> Iterator[RangeServer]:
    """Return a server that only this machine can reach."""
    answers = {f"/{METADATA}": Answer(body=json.dumps(TORCH).encode())}
    for label in ("cu128", None):
        wheel = stub_wheel(tmp_path, "torch", "2.8.0", label)
        answers[f"/{wheel.name}"] = Answer(body=wheel.read_bytes())
    with serve_answers(answers) as server:
        yield server


def page(where: str) -> Answer:
    files = [
        {"filename": name, "url": f"{where}/{name}", "hashes": {}}
        for name in (METADATA, WHEEL, PLAIN)
    ]
    document = {"meta": {"api-version": "1.0"}, "name": "torch", "files": files}
    return Answer(body=json.dumps(document).encode(), kind=JSON)


@pytest.fixture
def elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., AbstractContextManager[Running]]:
    """Return a function that serves an index which is not on this machine.

    A proxy is between, so this machine does not resolve the name. The servers of this
    machine are reached without the proxy.
    """

    @contextmanager
    def serve(
        answers: dict[str, Answer],
        *,
        index: str = f"http://{HOST}/simple/",
        trusts_pages: bool = False,
    ) -> Iterator[Running]:
        with serve_answers(answers) as server, serve_proxy(server.url) as proxy:
            monkeypatch.setenv("http_proxy", proxy.url)
            monkeypatch.setenv("no_proxy", "127.0.0.1,localhost,::ffff:127.0.0.1")
            trusting = Settings(trusted_hosts=["*"], trusts_pages=trusts_pages)
            settings = replace(trusting, timeout=30, deadline=60)
            with start(index, settings=settings) as running:
                yield running

    return serve


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "127.1", "2130706433", "[::ffff:127.0.0.1]"]
)
def test_a_page_from_elsewhere_names_servers_of_this_machine(
    host: str,
    inner: RangeServer,
    elsewhere: Callable[[dict[str, Answer]], AbstractContextManager[Running]],
) -> None:
    where = inner.url.replace("127.0.0.1", host)
    with elsewhere({"/simple/torch/": page(where)}) as running:
        reply = running.page()
        root = running.urls[0].removesuffix("simple/")
        # Without the file, installers would take one of another index.
        assert list(reply.files) == [METADATA, PLAIN]
        for name, url in reply.files.items():
            assert url.startswith(f"{root}f/"), name
            assert ask(url).status == 403
        for name in (f"{PLAIN}.metadata", WHEEL, f"{WHEEL}.metadata"):
            assert ask(f"{root}f/torch/-/00000000/{name}").status in (403, 404)
        assert "must not be named by its index" in str(running.warnings)
    assert inner.requests == []


def test_a_page_from_elsewhere_redirects_to_servers_of_this_machine(
    inner: RangeServer,
    elsewhere: Callable[[dict[str, Answer]], AbstractContextManager[Running]],
) -> None:
    answers = {"/simple/torch/": page("/files")}
    for name in (METADATA, WHEEL, PLAIN):
        target = {"Location": f"{inner.url}/{name}"}
        answers[f"/files/{name}"] = Answer(status=302, headers=target)
    with elsewhere(answers) as running:
        assert running.page().status == 200
        message = "redirects to a server that only this machine can reach"
        assert message in str(running.warnings)
    assert inner.requests == []


@pytest.mark.parametrize("ends", ["page", "redirect", "file"])
def test_an_index_of_this_machine_redirects_elsewhere(
    ends: str,
    inner: RangeServer,
    elsewhere: Callable[..., AbstractContextManager[Running]],
) -> None:
    """As pypiserver does for packages that it lacks, and devpi for external files."""

    def moved(url: str) -> Answer:
        return Answer(status=302, headers={"Location": url})

    names = (METADATA, WHEEL, PLAIN)
    public = {"/simple/torch/": page(inner.url), "/back/": moved(f"{inner.url}/page")}
    public |= {f"/{name}": moved(f"{inner.url}/{name}") for name in names}
    first = {
        "page": {"/simple/torch/": moved(f"http://{HOST}/simple/torch/")},
        "redirect": {"/simple/torch/": moved(f"http://{HOST}/back/")},
        "file": {"/simple/torch/": page("/files")}
        | {f"/files/{name}": moved(f"http://{HOST}/{name}") for name in names},
    }
    with (
        serve_answers(first[ends]) as index,
        elsewhere(public, index=f"{index.url}/simple/") as running,
    ):
        reply = running.page()
        is_stopped = reply.text.startswith("error: ")
        assert is_stopped is (ends == "redirect")
        for url in () if is_stopped else reply.files.values():
            ask(url)
    assert inner.requests == []


def test_nothing_is_left_out_where_pages_are_trusted(
    inner: RangeServer, elsewhere: Callable[..., AbstractContextManager[Running]]
) -> None:
    """A public index may name the files of a company, as it may for pip."""
    with elsewhere({"/simple/torch/": page(inner.url)}, trusts_pages=True) as running:
        files = running.page().files
        assert "torch-2.8.0-1cu128-py3-none-any.whl" in files
        assert files[PLAIN] == f"{inner.url}/{PLAIN}"


@pytest.mark.parametrize(
    ("words", "sees"),
    [
        (("pip", "download", "--no-deps", "-d", "out", "torch"), True),
        (("releases", "torch", "--json"), False),
    ],
)
def test_pip_trusts_pages(
    words: Sequence[str],
    sees: bool,
    inner: RangeServer,
    environ: dict[str, str],
    tmp_path: Path,
) -> None:
    """Other people may see the results of ``releases``, such as in a CI log."""
    with serve_elsewhere(inner, environ) as options:
        done = provider(*words, *options, *MACHINE, environ=environ, cwd=tmp_path)
    assert ("must not be named by its index" in done.err) is not sees, done.text
    assert done.code == 0, done.text
    assert any(METADATA in request for request in inner.requests) is sees


@pytest.mark.parametrize("remote", [False, True], ids=["local", "remote"])
def test_serve_trusts_pages_unless_other_machines_may_connect(
    remote: bool, inner: RangeServer, environ: dict[str, str]
) -> None:
    with serve_elsewhere(inner, environ) as options:
        words = ("--allow-remote",) if remote else ()
        with serving(*options, *words, *MACHINE, environ=environ) as server:
            body = fetch(f"{server.urls[0]}torch/")[2]
    assert (b"torch-2.8.0-1cu128-" in body) is not remote
    assert (f"{inner.url}/{PLAIN}".encode() in body) is not remote


@pytest.mark.parametrize("remote", [False, True], ids=["local", "remote"])
def test_serve_trusts_pages_of_a_directory_as_little(
    remote: bool, inner: RangeServer, environ: dict[str, str], tmp_path: Path
) -> None:
    """The page may be a copy of a stranger's, as in a census."""
    (index := tmp_path / "index" / "torch").mkdir(parents=True)
    links = (f'<a href="{inner.url}/{x}">x</a>' for x in (METADATA, WHEEL, PLAIN))
    (index / "index.html").write_text(f"<!DOCTYPE html>{''.join(links)}")
    options = "-i", str(index.parent), *(("--allow-remote",) if remote else ())
    with serving(*options, *MACHINE, environ=environ) as server:
        files = ask(f"{server.urls[0]}torch/", Accept=JSON).files
        assert ask(files[PLAIN]).status == (403 if remote else 200)
    assert ("torch-2.8.0-1cu128-py3-none-any.whl" in files) is not remote
    assert bool(inner.requests) is not remote


@pytest.mark.parametrize("trusts", [False, True])
def test_a_saved_page_of_links_is_trusted_as_little(
    trusts: bool, inner: RangeServer, tmp_path: Path
) -> None:
    saved = tmp_path / "links.html"
    saved.write_text(f'<!DOCTYPE html><a href="{inner.url}/{PLAIN}">x</a>')
    client = Client(Settings(trusts_pages=trusts))
    (file,) = asyncio.run(LinksUpstream(str(saved), client).read_all()).files
    assert file.url.startswith(REFUSED) is not trusts


@contextmanager
def serve_elsewhere(
    inner: RangeServer, environ: dict[str, str]
) -> Iterator[tuple[str, ...]]:
    """Serve an index elsewhere that names files of ``inner``.

    Yields the options of a command that name the index. ``environ`` gets its proxy.
    """
    answers = {"/simple/torch/": page(inner.url)}
    with serve_answers(answers) as server, serve_proxy(server.url) as proxy:
        environ |= {"http_proxy": proxy.url, "no_proxy": "127.0.0.1,localhost"}
        yield "-i", f"http://{HOST}/simple/", "--trusted-host", HOST


def test_few_servers_of_a_page_are_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page of 360 kB could name 2,000, each of which needs a request to a DNS."""
    looked_up = []

    async def find(_: NearnessFinder, url: str) -> Nearness:
        looked_up.append(url)
        return Nearness.ELSEWHERE

    monkeypatch.setattr(NearnessFinder, "find", find)
    files = tuple(model.File(str(n), f"https://h{n}/{n}", {}) for n in range(99))
    page = model.ProjectDetail(meta=model.Meta("1.0"), name="demo", files=files)
    work = refuse_near_files(page, Client(), "https://index.example/")
    shown = asyncio.run(work).files
    assert len({*looked_up}) == 65  # with the index
    assert shown[:64] == files[:64]
    assert all(file.url.startswith(REFUSED) for file in shown[64:])


def test_the_servers_of_a_page_are_found_beside_other_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """150,000 files, each at a port of a server of its own, took 4.6 s in one piece."""
    found: list[str] = []
    steps: set[int] = set()
    others = 0

    async def may_lead(*_: object) -> bool:
        return False

    def find(url: str) -> str:
        found.append(url)
        assert threading.current_thread() is not threading.main_thread()
        return server_of(url)

    def change(item: Any, **changes: Any) -> Any:
        steps.add(others)
        return replace(item, **changes)

    async def refuse(detail: model.ProjectDetail) -> model.ProjectDetail:
        nonlocal others
        work = asyncio.ensure_future(refuse_near_files(detail, Client(), "http://h/"))
        while not work.done():
            others += 1
            await asyncio.sleep(0)
        return await work

    monkeypatch.setattr(Client, "may_lead", may_lead)
    monkeypatch.setattr(threads, "_STEP", 0)
    monkeypatch.setattr(upstream, "server_of", find)
    monkeypatch.setattr(upstream, "replace", change)
    files = [model.File(str(n), f"http://127.0.0.1:{n}/{n}", {}) for n in range(1, 50)]
    given = model.ProjectDetail(model.Meta("1.0"), "demo", tuple(files))
    shown = asyncio.run(refuse(given)).files
    assert all(file.url.startswith(REFUSED) for file in shown)
    assert found == [file.url for file in files]
    assert len(steps) >= len(files)


def test_an_index_of_this_machine_may_name_them(inner: RangeServer) -> None:
    moved = {"Location": f"{inner.url}/{METADATA}"}
    answers = {
        "/simple/torch/": page(inner.url),
        f"/moved/{METADATA}": Answer(status=302, headers=moved),
    }
    with serve_answers(answers) as server:
        with start(f"{server.url}/simple/") as running:
            assert "torch-2.8.0-1cu128-py3-none-any.whl" in running.page().files
        with BlockingClient() as client:
            body = client.read(f"{server.url}/moved/{METADATA}")
    assert json.loads(body) == TORCH
    assert any(METADATA in request for request in inner.requests)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1", "2130706433", "0.0.0.0"])
def test_other_machines_get_no_url_of_this_one(host: str, inner: RangeServer) -> None:
    """On another machine, the URL would be that of another server."""
    where = inner.url.replace("127.0.0.1", host)
    with serve_answers({"/simple/torch/": page(where)}) as server:
        for hosts, is_streamed in ((LOOPBACK_NAMES, False), (ANY_HOST, True)):
            settings = Settings(plain_http=True, trust_env=False)
            with start(
                f"{server.url}/simple/", hosts=hosts, settings=settings
            ) as running:
                url = running.page().files[PLAIN]
                root = running.urls[0].removesuffix("simple/")
                assert url.startswith(root) is is_streamed
                assert ask(url).status == 200


def test_the_names_of_one_index_do_not_count_for_another(
    inner: RangeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After 10,000 names of an index, pip passed over a private one without a word."""
    monkeypatch.setattr(connecting, "_HOSTS", 2)
    client = Client(Settings(timeout=30, trust_env=False))
    hostile = client.only(far := "https://93.184.216.34/")

    async def use() -> None:
        for number in range(9):
            assert await hostile.may_lead(far, f"https://93.184.216.{number}/")
        for other in (client.only(f"{inner.url}/simple/"), client):
            assert (await other.get(f"{inner.url}/{METADATA}")).status == 200
        own = client.only("/a")._nearness
        assert own is client.only("")._nearness
        for each in (hostile._nearness, own):
            each._addresses["evil"] = monotonic(), {"127.0.0.1": Nearness.MACHINE}
        with pytest.raises(UpstreamError, match="has moved"):
            await hostile.get("https://evil/")
        # Only a connection to the server counts for other indexes.
        assert client._connected == {"127.0.0.1": Nearness.MACHINE}
        assert await own.addresses_of("evil") == ("127.0.0.1",)
        hostile._nearness.note("evil", "93.184.216.34")
        with pytest.raises(OSError, match="has moved"):
            await own.addresses_of("evil")
        await client.close()

    asyncio.run(use())
