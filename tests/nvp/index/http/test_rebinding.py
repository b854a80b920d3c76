"""Lookups of host names, such as with other addresses later (DNS rebinding)."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpcore
import httpx
import pytest
from simple_repository import model
from support.range_server import Answer, RangeServer, serve_answers

from nvp.census.model import Wheel
from nvp.census.worker import Task, read_wheel
from nvp.index.http import connecting, replies
from nvp.index.http.blocking import BlockingClient, RemotePage
from nvp.index.http.client import Client
from nvp.index.http.connecting import Nearness, NearnessFinder
from nvp.index.http.urls import Settings, UpstreamError
from nvp.index.server.upstream import refuse_near_files

FAR = "203.0.113.7"
"""An address for documentation, which no server has (RFC 5737)."""

ELSEWHERE = "93.184.216.34"


class Resolver:
    """Resolves the names of a test, and counts its calls."""

    def __init__(self, answers: dict[str, list[str]]) -> None:
        self.answers = answers
        self.asked: list[str] = []
        self._real: Callable[..., Any] = socket.getaddrinfo

    def __call__(self, host: Any, port: Any, *args: Any, **options: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        if name not in self.answers:
            return self._real(host, port, *args, **options)
        self.asked.append(name)
        left = self.answers[name]
        addresses = (left.pop(0) if len(left) > 1 else left[0]).split()
        kind = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "")
        return [(*kind, (address, int(port or 0))) for address in addresses]


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Resolver:
    """Return a resolver whose first answer for a name is an address elsewhere."""
    made = Resolver({"files.example": [ELSEWHERE, "127.0.0.1"]})
    monkeypatch.setattr(socket, "getaddrinfo", made)
    return made


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of the addresses of connections; those elsewhere fail."""
    import asyncio.selector_events

    loop = asyncio.selector_events.BaseSelectorEventLoop
    real = loop.sock_connect
    seen: list[str] = []

    async def connect(self: Any, sock: socket.socket, address: Any) -> None:
        seen.append(address[0])
        if address[0] == ELSEWHERE:
            raise ConnectionRefusedError
        await real(self, sock, address)

    monkeypatch.setattr(loop, "sock_connect", connect)
    return seen


def read(url: str, page: str) -> bytes:
    """Read the files that a page names, as ``validate URL``, ``releases`` and
    ``census`` do."""
    settings = Settings(timeout=5, trust_env=False, plain_http=True)
    with BlockingClient(lambda: Client(settings)) as client:
        return client.read(url, page=page)


@pytest.fixture
def inner() -> Iterator[RangeServer]:
    """Return a server that only this machine can reach."""
    with serve_answers({"/secret": Answer(body=b"secret")}) as server:
        yield server


def test_the_address_that_was_looked_at_is_connected_to(
    inner: RangeServer, resolver: Resolver, connected: list[str]
) -> None:
    url = inner.url.replace("127.0.0.1", "files.example")
    with pytest.raises(UpstreamError):
        read(f"{url}/secret", page=f"https://{FAR}/simple/torch/")
    assert inner.requests == []
    assert set(connected) == {ELSEWHERE}
    assert resolver.asked == ["files.example"]


def test_a_name_with_addresses_here_and_elsewhere_is_public(
    inner: RangeServer, resolver: Resolver, connected: list[str]
) -> None:
    """A public index can give its name a local address too."""
    resolver.answers["index.example"] = [f"127.0.0.1 {ELSEWHERE}"]
    page = f"{inner.url.replace('127.0.0.1', 'index.example')}/"
    with pytest.raises(UpstreamError, match="only this machine"):
        read(f"{inner.url}/secret", page=page)
    for start in (page, f"https://{FAR}/simple/torch/"):
        with pytest.raises(UpstreamError):
            read(f"{page}secret", page=start)
    assert inner.requests == []
    assert set(connected) == {ELSEWHERE}


def test_a_name_that_moves_nearer_is_not_connected_to(
    inner: RangeServer,
    resolver: Resolver,
    connected: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Names are resolved again after a while, because `serve` may run for weeks."""
    monkeypatch.setattr(connecting, "_RESOLVED", -1.0)
    url = inner.url.replace("127.0.0.1", "files.example")
    for _ in range(2):
        with pytest.raises(UpstreamError):
            read(f"{url}/secret", page=f"https://{FAR}/simple/torch/")
    assert inner.requests == []
    assert connected == []
    assert len(resolver.asked) > 2


@pytest.mark.usefixtures("resolver")
@pytest.mark.parametrize("retries", [0, 2])
def test_a_name_that_moved_nearer_stays_refused(
    retries: int,
    inner: RangeServer,
    connected: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The refusal lasts if a client asks again, also while another page names the same
    server."""
    monkeypatch.setattr(connecting, "_RESOLVED", -1.0)
    monkeypatch.setattr(replies, "_FIRST", 0.0)
    page = f"https://{FAR}/simple/torch/"
    url = inner.url.replace("127.0.0.1", "files.example") + "/secret"
    settings = Settings(timeout=5, trust_env=False, plain_http=True, retries=retries)

    async def work() -> list[bool]:
        client = Client(settings)
        leads = [await client.may_lead(page, url)]
        for _ in range(2):
            with pytest.raises(UpstreamError):
                await client.get(url)
            leads.append(await client.may_lead(page, url))
        await client.close()
        return leads

    assert asyncio.run(work()) == [True, False, False]
    assert inner.requests == []
    assert connected == []


@pytest.mark.parametrize("host", ["files.example", "127.0.0.1"])
def test_a_worker_of_a_census_uses_the_location_that_its_parent_found(
    inner: RangeServer, resolver: Resolver, host: str
) -> None:
    """The process resolves the name of the page again."""
    resolver.answers["files.example"] = ["127.0.0.1"]
    name = "demo-1.0-py3-none-any.whl"
    wheel = Wheel(
        project="demo",
        version="1.0",
        filename=name,
        tags="py3-none-any",
        url=f"{inner.url.replace('127.0.0.1', host)}/{name}",
        page=f"{inner.url.replace('127.0.0.1', 'files.example')}/simple/demo/",
        near=Nearness.ELSEWHERE,
    )
    outcome = read_wheel(Task(wheel=wheel, deadline=20))
    assert "the page that names the file is elsewhere" in str(outcome.reason)
    assert inner.requests == []


def test_a_page_tells_where_its_server_is(
    resolver: Resolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name in a private network may have another address for another process."""
    monkeypatch.setattr(connecting, "_of_address", lambda _: Nearness.NETWORK)
    resolver.answers["files.example"] = ["127.0.0.1"]
    body = b'<a href="demo-1.0-py3-none-any.whl">x</a>'
    with serve_answers({"/": Answer(body=body, kind="text/html")}) as server:
        url = server.url.replace("127.0.0.1", "files.example")
        settings = Settings(timeout=5, trust_env=False, plain_http=True)
        with BlockingClient(lambda: Client(settings)) as client:
            (file,) = client.read_page(f"{url}/").files
            ((_, page),) = client.read_pages([f"{url}/"], at_once=1)
    assert isinstance(page, RemotePage)
    assert page.files == [file]
    assert file.near == Nearness.NETWORK


def test_a_name_that_moves_nearer_leads_no_nearer(
    inner: RangeServer, resolver: Resolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The address of the connection decides which servers a page may name."""
    monkeypatch.setattr(connecting, "_RESOLVED", -1.0)
    resolver.answers["files.example"] = [ELSEWHERE, ELSEWHERE, "127.0.0.1"]
    real = httpcore.AnyIOBackend.connect_tcp

    async def connect(backend: Any, host: str, *args: Any) -> Any:
        host = "127.0.0.1" if host == ELSEWHERE else host
        return await real(backend, host, *args)

    monkeypatch.setattr(httpcore.AnyIOBackend, "connect_tcp", connect)
    moved = Answer(status=302, headers={"Location": f"{inner.url}/secret"})
    with serve_answers({"/moved": moved}) as server:
        url = server.url.replace("127.0.0.1", "files.example")
        with pytest.raises(UpstreamError, match="redirects to a server that only"):
            read(f"{url}/moved", page=f"https://{FAR}/simple/torch/")
    assert len(server.requests) == 1
    assert inner.requests == []
    assert len(resolver.asked) == 2  # the location of the host is recorded


@pytest.mark.parametrize("name", ["fa\xdf.example", "\u0560.example", "a b.example"])
def test_the_name_that_was_looked_at_is_connected_to(
    name: str, inner: RangeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python and httpx convert the name differently, and the attacker has both
    names."""
    connected = httpx.URL(f"http://{name}/").raw_host.decode()
    answers = {"fass.example": [ELSEWHERE], name: [ELSEWHERE], connected: ["127.0.0.1"]}
    monkeypatch.setattr(socket, "getaddrinfo", Resolver(answers))
    url = inner.url.replace("127.0.0.1", name)
    with pytest.raises(UpstreamError):
        read(f"{url}/secret", page=f"https://{FAR}/simple/torch/")
    assert inner.requests == []


def test_a_redirect_is_looked_at_as_well(
    inner: RangeServer, resolver: Resolver, connected: list[str]
) -> None:
    url = inner.url.replace("127.0.0.1", "files.example")
    moved = Answer(status=302, headers={"Location": f"{url}/secret"})
    with serve_answers({"/moved": moved}) as server:
        start = server.url.replace("127.0.0.1", "localhost")
        with pytest.raises(UpstreamError):
            read(f"{start}/moved", page=f"{start}/")
    assert inner.requests == []
    assert ELSEWHERE in connected
    assert resolver.asked == ["files.example"]


def test_an_index_of_this_machine_has_a_name(
    inner: RangeServer, resolver: Resolver
) -> None:
    """The name is from the user, or from a page of this machine."""
    resolver.answers["here.example"] = ["127.0.0.1"]
    url = inner.url.replace("127.0.0.1", "here.example")
    for page in (f"{url}/", inner.url):
        assert read(f"{url}/secret", page=page) == b"secret"
    assert resolver.asked == ["here.example"] * 2


def page_of_servers(*names: str) -> model.ProjectDetail:
    urls = (f"https://{name}/kern-1.tar.gz" for name in names)
    files = tuple(model.File("kern-1.tar.gz", url, {}) for url in urls)
    return model.ProjectDetail(meta=model.Meta("1.0"), name="kern", files=files)


def test_all_servers_of_a_page_are_looked_up_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    together = threading.Barrier(40, timeout=10)

    def find(name: str, *_: object, **__: object) -> list[object]:
        if name != "index.example":
            together.wait()  # an error, if there are never forty lookups
        return [(0, 0, 0, "", ("93.184.216.34", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", find)
    page = page_of_servers(*(f"h{n}.example" for n in range(40)))
    work = refuse_near_files(page, Client(), "https://index.example/")
    assert asyncio.run(work) == page
    assert not together.broken


@pytest.fixture
def looked_up(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Return the names that are looked up, which nobody resolves during the test."""
    names: list[str] = []
    over = threading.Event()

    def find(name: str, *_: object, **__: object) -> list[object]:
        names.append(name)
        over.wait(30)
        raise socket.gaierror("no answer")

    monkeypatch.setattr(socket, "getaddrinfo", find)
    monkeypatch.setattr(connecting, "_NAMED", 0.05)
    yield names
    over.set()


def test_a_name_that_nobody_resolves_is_waited_for_once(looked_up: list[str]) -> None:
    """It is public for a page, as every name that only a proxy may resolve."""
    page = page_of_servers("dead.example")
    places = "https://93.184.216.34/", "https://93.184.216.35/"
    assert asyncio.run(refuse_near_files(page, Client(), *places)) == page
    assert looked_up == ["dead.example"]


def test_a_page_is_parsed_while_a_name_is_looked_up(looked_up: list[str]) -> None:
    """64 such names took all threads in which pages are parsed, for 20 seconds."""

    async def work() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        client = Client(Settings(trusts_pages=True, trust_env=False))
        looking = asyncio.create_task(client.get("https://dead.example/"))
        while not looked_up:
            await asyncio.sleep(0.01)
        assert await asyncio.wait_for(asyncio.to_thread(int), 10) == 0
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
        await client.close()

    asyncio.run(work())


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """Return a client with five lookups, all of which must end after the test."""
    monkeypatch.setattr(connecting, "_LOOKUPS", 5)
    client = Client()
    yield client
    for _ in range(5):
        assert client._nearness._lookups.acquire(timeout=10)


def test_few_names_are_looked_up(impatient: Client, looked_up: list[str]) -> None:
    """A lookup lasts when nobody waits for it any more; each has a thread."""
    place = "https://93.184.216.34/"

    async def read() -> None:
        for number in range(3):
            page = page_of_servers(*(f"h{n}.p{number}.example" for n in range(20)))
            assert await refuse_near_files(page, impatient, place) == page

    asyncio.run(read())
    assert len(looked_up) == 5


def test_a_name_that_cannot_be_resolved_now_is_where_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    finder = NearnessFinder()
    found: list[object] = [(0, 0, 0, "", ("10.0.0.1", 0))]

    def find(*_: object, **__: object) -> list[object]:
        if not found:
            raise socket.gaierror("no answer")
        return found

    monkeypatch.setattr(socket, "getaddrinfo", find)
    public, inner = "https://93.184.216.34/", "http://index.corp.example/"

    async def lead() -> bool:
        return await finder.may_lead(public, inner)

    async def use() -> None:
        assert await finder.addresses_of("index.corp.example") == ("10.0.0.1",)
        assert not await lead()
        finder._addresses.clear()
        found.clear()
        assert not await lead()

    asyncio.run(use())


def test_few_names_are_cached(
    resolver: Resolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each page may name 64 other servers."""
    monkeypatch.setattr(connecting, "_HOSTS", 2)
    names = [f"{number}.example" for number in range(9)]
    resolver.answers |= {key: [ELSEWHERE] for key in names}
    finder = NearnessFinder()
    for name in names:
        assert asyncio.run(finder.find(f"https://{name}/")) is Nearness.ELSEWHERE
    assert resolver.asked == names
    assert len(finder._addresses) <= 3


def test_few_locations_are_recorded_and_other_servers_move_no_nearer(
    resolver: Resolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If names were forgotten, a page with many of them could make others move."""
    monkeypatch.setattr(connecting, "_HOSTS", 2)
    monkeypatch.setattr(connecting, "_RESOLVED", -1.0)
    names = [f"{number}.example" for number in range(9)]
    resolver.answers |= {key: [ELSEWHERE, "127.0.0.1"] for key in names}
    finder = NearnessFinder()

    async def use() -> None:
        assert await finder.find_most("http://127.0.0.1/") is Nearness.MACHINE
        for name in names:
            assert await finder.may_lead("http://127.0.0.1/", f"https://{name}/")
        assert len(finder._accepted) == 2
        for name in names:
            with pytest.raises(OSError, match="has moved"):
                await finder.addresses_of(name)
            assert await finder.find_most(f"https://{name}/") is Nearness.ELSEWHERE
        # The servers of the user are recorded first.
        assert await finder.addresses_of("127.0.0.1") == ("127.0.0.1",)

    asyncio.run(use())


def test_few_addresses_of_a_name_are_looked_at_and_used(
    resolver: Resolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look at an address takes 30 µs, and a name may have thousands of them."""
    private = [f"10.0.0.{number}" for number in range(32)]
    resolver.answers["many.example"] = [" ".join([*private, ELSEWHERE])]
    seen: list[str] = []
    real = connecting._of_address

    def look(text: str) -> Nearness:
        seen.append(text)
        return real(text)

    monkeypatch.setattr(connecting, "_of_address", look)
    finder = NearnessFinder()

    async def use() -> tuple[str, ...]:
        for _ in range(3):  # the locations are cached with the addresses
            near = await finder.find("https://many.example/")
            assert near is Nearness.NETWORK
        assert [*await finder.resolve("many.example")] == private
        return await finder.addresses_of("many.example")

    assert asyncio.run(use()) == tuple(private)
    assert seen == private
    assert resolver.asked == ["many.example"]
