"""Half-sent requests, slow readers, and more connections than descriptors."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import select
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from starlette.types import Message, Receive, Scope, Send
from support.documents import TORCH
from support.loopback import Reply, Running, answers_of, start
from support.pages import JSON
from support.range_server import Answer, RangeServer, serve_answers
from support.wheels import publish

from nvidia_variant_provider.errors import InputError
from nvp.index.http import threads
from nvp.index.http.urls import Settings
from nvp.index.server import app, server

needs_ipv6 = pytest.mark.skipif(
    not Path("/proc/net/if_inet6").exists(), reason="there is no IPv6, or no Linux"
)

HALF = b"GET / HTTP/1.1\r\nHost: local"
WHEEL = "torch-2.8.0-py3-none-any.whl"
CONTENT = bytes(32 << 20)
PLATFORM = "manylinux_2_28_x86_64"


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RangeServer]:
    """Return an index that requires credentials, with a wheel larger than all
    buffers."""
    folder = tmp_path_factory.mktemp("index")
    publish(folder, TORCH, "torch", "2.8.0")
    answers = answers_of(folder)
    answers[f"/simple/torch/{WHEEL}"] = Answer(body=CONTENT)
    with serve_answers(answers, credentials="user:secret") as running:
        yield running


@pytest.fixture
def private(upstream: RangeServer) -> str:
    """Return the URL of the index with its credentials."""
    return f"{upstream.url}/simple/".replace("//", "//user:secret@", 1)


@contextlib.contextmanager
def calls(running: Running, count: int, text: bytes) -> Iterator[list[socket.socket]]:
    """Open connections that send ``text`` and read nothing."""
    port = urlsplit(running.urls[0]).port or 0
    with contextlib.ExitStack() as stack:
        opened = []
        for _ in range(count):
            one = socket.create_connection(("127.0.0.1", port), timeout=60)
            opened.append(stack.enter_context(one))
            # The server may already have closed the connection.
            with contextlib.suppress(ConnectionError):
                one.sendall(text)
        yield opened


def request(running: Running) -> bytes:
    """Return a request for the wheel, which the server must stream."""
    url = running.page().files["torch-2.8.0-py3-none-any.whl"]
    return f"GET {urlsplit(url).path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


def read_to_the_end(one: socket.socket) -> bytes:
    """Return what the server sends until it closes the connection."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := one.recv(1 << 16):
            received += piece
    return received


def has_data(one: socket.socket) -> bool:
    """Return whether the server sent data and did not close the connection."""
    try:
        return one.recv(1, socket.MSG_PEEK) != b""
    except ConnectionResetError:
        return False


def page_after_retries(running: Running) -> Reply:
    """Repeat the request if the connection is closed, as pip and uv do."""
    for _ in range(100):
        with contextlib.suppress(ConnectionError):
            return running.page()
        time.sleep(0.2)
    return running.page()


@pytest.mark.parametrize(
    "before",
    [
        b"",
        pytest.param(
            b"GET /x HTTP/1.1\r\nHost: localhost\r\n\r\n", marks=pytest.mark.slow
        ),
    ],
)
def test_a_request_has_to_arrive_in_time(
    before: bytes, private: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_HEAD", 0.2)
    with start(private) as running, calls(running, 1, before + HALF) as (one,):
        received = read_to_the_end(one)
        assert received.startswith(b"HTTP/1.1 404") if before else received == b""


HEAD, SPACES = b"POST /x HTTP/1.1\r\nHost: localhost\r\n", b" " * 300
CHUNKED = HEAD + b"Transfer-Encoding:\r\n chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("text", "is_read"),
    [
        (HEAD + b"Content-Length: 300\r\n\r\n" + SPACES, True),
        (HEAD + b"X:" + SPACES + b"\0\r\n\r\n", False),
        (HEAD + b"\r\n" + HEAD + b"X:" + SPACES + b"\0\r\n\r\n", False),
        (
            HEAD + b"Content-Length: 1\r\n\r\nx" + HEAD + b"X:" + SPACES + b"\r\n\r\n",
            False,
        ),
        (CHUNKED + b"1\r\nx\r\n" * 10, False),
        (HEAD + b"a:\r\n" * 1001 + b"\r\n", False),
    ],
)
def test_a_request_that_takes_long_to_parse_is_not_parsed(
    text: bytes, is_read: bool, private: str
) -> None:
    """h11 took six seconds for 60,000 spaces, in which no other client was served.

    Every user of this machine can send one, because the secret is checked later.
    """
    with start(private) as running, calls(running, 1, text) as (one,):
        if is_read:
            assert one.recv(1 << 16).startswith(b"HTTP/1.1 404")
        else:
            assert read_to_the_end(one) == b""
        assert running.page().status == 200


def test_small_responses_are_sent_at_once(
    private: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise each response on an open connection takes 40 ms longer."""
    found = []

    class Protocol(server._BoundedProtocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            one = transport.get_extra_info("socket")
            found.append(one.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            super().connection_made(transport)

    monkeypatch.setattr(server, "_BoundedProtocol", Protocol)
    with start(private) as running:
        assert running.page().status == 200
    assert all(found)
    assert found


@pytest.mark.skipif(sys.platform == "win32", reason="has no poll()")
def test_a_response_has_to_be_read(
    private: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with start(private) as running:
        monkeypatch.setattr(server, "_WRITE", 0.2)
        with calls(running, 1, request(running)) as (one,):
            poll = select.poll()
            poll.register(one, 0)  # Only the end of a connection matters.
            assert poll.poll(60_000)
            assert len(read_to_the_end(one)) < len(CONTENT)


def test_a_response_that_is_read_slowly_arrives(
    private: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_LEAST", 1)
    with start(private) as running, calls(running, 1, request(running)) as (one,):
        response = http.client.HTTPResponse(one)
        response.begin()
        pieces = iter(lambda: response.read(4096), b"")
        assert sum(map(len, pieces)) == len(CONTENT)


def test_a_page_is_not_copied_for_a_client_that_does_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Hundreds of clients may ask for a page of many megabytes."""
    waiting = []

    class Protocol(server._BoundedProtocol):
        def pause_writing(self) -> None:
            super().pause_writing()
            waiting.append(self.transport.get_write_buffer_size())

    monkeypatch.setattr(server, "_BoundedProtocol", Protocol)
    document = {"meta": {"api-version": "1.0"}, "files": [], "x": "x" * len(CONTENT)}
    large = Answer(body=json.dumps(document).encode(), kind=JSON)
    with (
        serve_answers({"/simple/torch/": large}) as index,
        start(f"{index.url}/simple/") as running,
    ):
        path = f"{urlsplit(running.urls[0]).path}torch/"
        text = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: {JSON}\r\n\r\n"
        with calls(running, 1, text.encode()) as (one,):
            for _ in range(6000):
                if waiting:
                    break
                time.sleep(0.01)
            response = http.client.HTTPResponse(one)
            response.begin()
            body = response.read()
        assert response.getheader("content-length") == str(len(body))
        assert len(body) > len(CONTENT)
        assert waiting
        assert max(waiting) < len(CONTENT) // 16


def test_a_closed_connection_gets_no_further_pieces() -> None:
    """asyncio warns of each write after the fifth one."""
    sizes: list[int] = []
    seen: list[int] = []

    async def sends(_: Scope, __: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(3 * app._PIECE + 1)})

    async def send(message: Message) -> None:
        seen.append(len(sizes))
        size = len(message.get("body", b""))
        asyncio.get_running_loop().call_soon(sizes.append, size)

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def main() -> None:
        await app._in_pieces(sends)({"type": "http"}, receive, send)
        await asyncio.sleep(0)

    asyncio.run(main())
    assert sizes == [0, *3 * [app._PIECE], 1]
    assert seen == [0, 0, 2, 3, 4]


def test_pages_do_not_wait_for_streams(private: str) -> None:
    with start(private) as running, calls(running, 80, request(running)):
        # Other headers than before: the page is read from the upstream again.
        assert running.page().status == 200
        assert running.page(Accept="text/html").status == 200


@pytest.mark.parametrize(("hanging", "requests"), [("", 64), (".metadata", 84)])
def test_an_index_that_hangs_delays_no_other(hanging: str, requests: int) -> None:
    """Neither its pages nor its METADATA are requested instead of those of others."""

    def answers_for(name: str) -> dict[str, Answer]:
        wheel = f"{name}-1.0+cu126-py3-none-{PLATFORM}.whl"
        page = f'<a data-core-metadata="true" href="{wheel}">{wheel}</a>'.encode()
        return {
            f"/simple/{name}/": Answer(body=page, kind="text/html"),
            f"/simple/{name}/{wheel}.metadata": Answer(body=b"Name: x"),
        }

    answers: dict[str, Answer] = {}
    for name in (names := [f"p{number}" for number in range(80)]):
        answers |= answers_for(name)
    stuck = {path: Answer(fault="hang") for path in answers if path.endswith(hanging)}
    patient = Settings(timeout=300, deadline=300, trust_env=False)
    with (
        serve_answers(answers | stuck) as slow,
        serve_answers(answers_for("kern" if hanging else "x-kern")) as quick,
        start(*(f"{one.url}/simple/" for one in (slow, quick)), settings=patient) as us,
        contextlib.ExitStack() as stack,
    ):
        path = urlsplit(us.urls[0]).path
        for name in names:
            head = f"GET {path}{name}/ HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
            stack.enter_context(calls(us, 1, head))
        deadline = time.monotonic() + 15
        while len(slow.requests) < requests and time.monotonic() < deadline:
            time.sleep(0.05)
        assert us.page("kern", 1).status == (200 if hanging else 404)
        assert any("kern/" in request for request in quick.requests)
        assert not hanging or any(hanging in request for request in quick.requests)


def test_many_servers_that_hang_delay_no_other_index(tmp_path: Path) -> None:
    """Their files took all turns, and the page of another index took six minutes."""
    publish(tmp_path, TORCH, "torch", "2.8.0")
    answers: dict[str, Answer] = {}
    patient = Settings(timeout=60, deadline=60, trust_env=False)
    with (
        serve_answers(answers) as slow,
        serve_answers(answers_of(tmp_path)) as quick,
        start(*(f"{one.url}/simple/" for one in (slow, quick)), settings=patient) as us,
        contextlib.ExitStack() as stack,
    ):
        for number, host in enumerate(50 * ["127.0.0.1", "localhost"]):
            name = f"p{number}"
            file, wheel = f"{name}-1.0-variants.json", f"{name}-1.0-py3-none-any-x.whl"
            url = f"{slow.url.replace('127.0.0.1', host)}/{file}"
            page = f'<a href="{wheel}">{wheel}</a> <a href="{url}">{file}</a>'.encode()
            answers[f"/simple/{name}/"] = Answer(body=page, kind="text/html")
            answers[f"/{file}"] = Answer(fault="hang")
            path = urlsplit(us.urls[0]).path
            head = f"GET {path}{name}/ HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
            stack.enter_context(calls(us, 1, head))
        deadline = time.monotonic() + 15
        while len(slow.requests) < 100 + 96 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert "cu128" in us.page("torch", 1).text
        assert len(slow.requests) == 100 + 96  # all of them still hang


def test_the_connection_that_waits_longest_makes_room(
    private: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_most_connections", lambda: 20)
    with start(private) as running, calls(running, 1, HALF) as (first,):
        with calls(running, 40, HALF):
            assert read_to_the_end(first) == b""
            assert running.page().status == 200
        with calls(running, 40, request(running)) as streams:
            assert sum(map(has_data, streams)) == 20
            assert page_after_retries(running).status == 200


def test_there_are_fewer_connections_than_descriptors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resource = pytest.importorskip("resource")
    for soft, most in ((1024, 448), (256, 64), (64, 8), (10**6, 512)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, soft=soft: (soft, soft))
        assert server._most_connections() == most
    unlimited = resource.RLIM_INFINITY
    monkeypatch.setattr(resource, "getrlimit", lambda _: (unlimited, unlimited))
    assert server._most_connections() == 512


def test_a_loop_that_is_out_of_descriptors_logs_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(threads.Reports())
    context = {
        "message": "socket.accept() out of system resource",
        "exception": OSError(24, "Too many open files"),
    }
    try:
        for _ in range(1000):
            loop.call_exception_handler(context)
    finally:
        loop.close()
    (record,) = (record for record in caplog.records if record.levelname != "DEBUG")
    assert "out of system resource" in record.getMessage()
    assert record.exc_info is None


def test_a_client_is_told_that_a_page_takes_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """pip would give up, and take a file of that name from another index."""
    monkeypatch.setattr(server, "_ALIVE", 0.01)
    with (
        serve_answers({"/simple/torch/": Answer(fault="hang")}) as index,
        start(f"{index.url}/simple/") as running,
    ):
        path = urlsplit(f"{running.urls[0]}torch/").path
        head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        with calls(running, 1, head) as (one,):
            expected = b"HTTP/1.1 100 Continue\r\n\r\n" * 3
            received = b""
            while len(received) < len(expected):
                received += one.recv(len(expected) - len(received))
    assert received == expected


@pytest.mark.parametrize("host", ["a..b", "ü" * 80])
def test_a_host_that_is_no_name(host: str) -> None:
    with pytest.raises(InputError, match="cannot listen on "):
        server.Server(host)


@pytest.mark.parametrize(
    ("host", "other"), [("localhost", "::1"), ("0.0.0.0", "::"), ("::", "0.0.0.0")]
)
@needs_ipv6
def test_no_other_program_gets_the_port(host: str, other: str) -> None:
    """Another user could send packages to installers that look there first."""
    family = socket.AF_INET6 if ":" in other else socket.AF_INET
    one = server.Server(host)
    port = one._socket.getsockname()[1]
    try:
        with socket.socket(family) as theirs:
            theirs.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                theirs.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            with pytest.raises(OSError, match="in use"):
                theirs.bind((other, port))
    finally:
        one.close()


@needs_ipv6
def test_another_program_has_the_port_at_another_address() -> None:
    with (
        socket.create_server(("::1", 0), family=socket.AF_INET6) as theirs,
        pytest.raises(InputError, match="in use"),
    ):
        server.Server("localhost", theirs.getsockname()[1])


def test_no_other_program_gets_the_socket() -> None:
    """A process that hangs, such as that of the driver, would hold the port."""
    one = server.Server("localhost")
    assert not any(each.get_inheritable() for each in (one._socket, *one._occupied))
    one.close()
