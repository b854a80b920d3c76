"""Responses that take h11 long to parse delay no other requests."""

from __future__ import annotations

import asyncio
import itertools
import math
import ssl
from contextlib import suppress
from typing import Any

import httpcore
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.range_server import Answer, serve_answers

from nvp.index.http.blocking import BlockingClient
from nvp.index.http.client import Client
from nvp.index.http.connecting import NearnessFinder, _Backend, make_tls_context
from nvp.index.http.replies import Framing, LimitedStream
from nvp.index.http.threads import Turns
from nvp.index.http.urls import (
    PassingError,
    Settings,
    UpstreamError,
)


@given(
    chunks=st.lists(st.text("\r\n0a;", min_size=1), max_size=5),
    number=st.sampled_from((0, 1, 2000)),
    data=st.data(),
)
def test_lines_are_counted_only_outside_of_chunks(
    chunks: list[str], number: int, data: st.DataObject
) -> None:
    body = b"".join(b"%x;x=1\r\n%s\r\n" % (len(x), x.encode()) for x in chunks)
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    text = head + body + b"0\r\n" + b"a:\r\n" * number + b"\r\n"
    # An empty piece would be the end of the connection.
    cuts = sorted(data.draw(st.sets(st.integers(1, len(text) - 1), max_size=9)))
    pieces = [text[a:b] for a, b in itertools.pairwise([0, *cuts, len(text)])]
    stream = LimitedStream(httpcore.AsyncMockStream([*pieces]), Turns(1, 1), 80)

    async def read() -> bytes:
        await stream.write(b"GET / HTTP/1.1\r\n\r\n")
        return b"".join([await stream.read(65_536) for _ in pieces])

    if number > 1000:
        with pytest.raises(httpcore.RemoteProtocolError, match="trailers"):
            asyncio.run(read())
    else:
        assert asyncio.run(read()) == text
        assert stream._framing.lines == number + 2


OK, LENGTH, CHUNKED = (
    b"HTTP/1.1 200 OK\r\n",
    b"Content-Length: 1\r\n",
    b"Transfer-Encoding: chunked\r\n",
)


def read_raw(response: bytes, path: str = "/x") -> bytes:
    """Read a body from a server that sends ``response``."""
    client = BlockingClient(lambda: Client(Settings(retries=0, plain_http=True)))
    with serve_answers({path: Answer(body=response, fault="raw")}) as server, client:
        return client.read(server.url + path)


@pytest.mark.parametrize("number", [200, 300])
@pytest.mark.parametrize("blank", [b" ", b"\t", b" \t"])
@pytest.mark.parametrize(
    "response",
    [
        OK + b"X:%s1\r\n" + LENGTH + b"\r\nx",
        OK + CHUNKED + b"\r\n1;%s1\r\nx\r\n0\r\n\r\n",
        OK + CHUNKED + b"\r\n1\r\nx\r\n0\r\nX:%s1\r\n\r\n",
        b"HTTP/1.1 100 Y\r\nX:%s1\r\n\r\n" + OK + LENGTH + b"\r\nx",
    ],
)
def test_a_line_of_very_many_spaces(response: bytes, blank: bytes, number: int) -> None:
    """The patterns of h11 take quadratic time: 98,000 spaces took 20 s."""
    text = response % (blank * (number // len(blank)))
    if number < 256:
        assert read_raw(text) == b"x"
    else:
        with pytest.raises(UpstreamError, match="very many spaces"):
            read_raw(text)


@pytest.mark.parametrize(
    "response",
    [
        OK + b"X: %s\r\n" + LENGTH + b"\r\nx",
        OK + CHUNKED + b"\r\n1;%s\r\nx\r\n0\r\n\r\n",
        OK + CHUNKED + b"\r\n1\r\nx\r\n0\r\nX: %s\r\n\r\n",
    ],
)
def test_a_very_long_line(response: bytes) -> None:
    """Python's parsers of headers take quadratic time, such as for Content-Type."""
    assert read_raw(response % (b"y" * 16_000)) == b"x"
    with pytest.raises(UpstreamError, match="too long"):
        read_raw(response % (b"y" * 17_000))


@pytest.mark.parametrize("size", [b"1\n", b"x\r\n", b"1;\nx\r\n", b"\r\n"])
def test_a_malformed_size_of_a_chunk_is_an_error_at_once(size: bytes) -> None:
    """A line that h11 does not find would end with a timeout, which may pass."""
    with pytest.raises(UpstreamError, match="size of a chunk") as caught:
        read_raw(OK + CHUNKED + b"\r\n" + size + b"x\n0\n\n")
    assert not isinstance(caught.value, PassingError)


def test_a_head_of_tiny_pieces() -> None:
    """TLS can send each byte in a record of its own; other requests continue."""
    pieces = [b"x"] * 9000
    mock = httpcore.AsyncMockStream([OK + b"X: ", *pieces])
    stream = LimitedStream(mock, Turns(1, 1), 80)
    reads, others = 0, 0

    async def count_others() -> None:
        nonlocal others
        while True:
            others += 1
            await asyncio.sleep(0)

    async def read() -> None:
        nonlocal reads
        other = asyncio.ensure_future(count_others())
        try:
            await stream.write(b"GET / HTTP/1.1\r\n\r\n")
            while await stream.read(65_536):
                reads += 1
        finally:
            other.cancel()

    with pytest.raises(httpcore.RemoteProtocolError, match="tiny pieces"):
        asyncio.run(read())
    assert reads == 4096
    assert others >= reads


@pytest.mark.parametrize(
    ("size", "number", "is_refused"),
    [(13, 4094, False), (13, 4096, True), (17, 99_998, False), (17, 100_000, True),
     (257, 100_000, False)],
)  # fmt: skip
def test_many_chunks(size: int, number: int, is_refused: bool) -> None:
    """h11 takes 10 µs for each: those of 17 bytes in 60 MB took 38 s."""
    framing = Framing(math.inf)
    chunks = b"%x\r\n%s\r\n" % (size, b"x" * size) * number
    if is_refused:
        with pytest.raises(httpcore.RemoteProtocolError, match="tiny pieces"):
            framing.follow(OK + CHUNKED + b"\r\n" + chunks)
    else:
        framing.follow(OK + CHUNKED + b"\r\n" + chunks + b"0\r\n\r\n")
        assert framing.is_complete


@pytest.mark.parametrize(
    ("response", "is_kept"),
    [
        (OK + LENGTH + b"\r\nx", True),
        (OK + CHUNKED + b"\r\n1\r\nx\r\n0\r\n\r\n", True),
        (OK + CHUNKED + LENGTH + b"\r\n1\r\nx\r\n0\r\nA: b\r\n\r\n", True),
        (b"HTTP/1.1 100 Y\r\n" + CHUNKED + b"\r\n" + OK + LENGTH + b"\r\nx", True),
        # The bytes after these would be the start of the next response.
        (OK + LENGTH + b"\r\nx" + OK, False),
        (OK + LENGTH + b"\r\nx\r\n", False),
        (OK + CHUNKED + b"\r\n1\r\nx\r\n0\r\n\r\n" + OK, False),
        (b"HTTP/1.1 204 Y\r\n" + LENGTH + b"\r\nx", False),
        (OK + b"Content-Length:\r\n 1\r\n\r\nx" + OK, False),
    ],
)
def test_a_connection_is_used_again_only_after_one_response(
    response: bytes, is_kept: bool
) -> None:
    tasks: list[Any] = []

    async def read_twice() -> None:
        async def answer(given: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
            tasks.append(asyncio.current_task())
            with suppress(asyncio.IncompleteReadError):
                while await given.readuntil(b"\r\n\r\n"):
                    to.write(response)
            to.close()
            await to.wait_closed()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        client = Client(Settings(plain_http=True))
        for _ in range(2):
            reply = await client.get(f"http://127.0.0.1:{port}/")
            assert reply.body == (b"x" if reply.status == 200 else b"")
        await client.close()
        await asyncio.gather(*tasks)
        server.close()

    asyncio.run(read_twice())
    assert len(tasks) == (1 if is_kept else 2)


def test_cookies_are_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parser takes quadratic time: a header of 98 KB took 0.7 s."""
    parsed: list[object] = []
    for name in ("split_header_words", "parse_ns_headers"):
        monkeypatch.setattr(f"http.cookiejar.{name}", parsed.append)
    cookies = b"Set-Cookie: a=b\r\nSet-Cookie2: a,a\r\n"
    assert read_raw(OK + cookies + LENGTH + b"\r\nx") == b"x"
    assert parsed == []


def test_a_response_in_chunks_has_no_length() -> None:
    """The local index passes the length on (RFC 9112, section 6.3)."""
    text = OK + CHUNKED + b"Content-Length: 5\r\n\r\n1\r\nx\r\n0\r\n\r\n"

    async def read(url: str) -> None:
        client = Client(Settings(plain_http=True))
        async with client.stream(url) as response:
            assert b"".join([piece async for piece in response.aiter_raw()]) == b"x"
            assert "content-length" not in response.headers
        await client.close()

    with serve_answers({"/x": Answer(body=text, fault="raw")}) as server:
        asyncio.run(read(f"{server.url}/x"))


@pytest.mark.parametrize("trusts_system", [True, False])
def test_a_server_cannot_choose_a_slow_key_exchange(trusts_system: bool) -> None:
    settings = Settings(trusts_system=trusts_system)
    context = make_tls_context(settings, "https://index.example/", verify=True)
    ciphers = {item["name"].partition("-")[0] for item in context.get_ciphers()}
    assert "DHE" not in ciphers
    assert "ECDHE" in ciphers


def test_few_handshakes_with_a_server_at_once() -> None:
    """A server may choose the largest group; the event loop waits for each."""
    at_once: dict[str | None, int] = {}
    most: dict[str | None, int] = {}

    class Stream(httpcore.AsyncMockStream):
        async def start_tls(
            self,
            ssl_context: ssl.SSLContext,  # noqa: ARG002
            server_hostname: str | None = None,
            timeout: float | None = None,  # noqa: ARG002
        ) -> httpcore.AsyncNetworkStream:
            number = at_once[server_hostname] = at_once.get(server_hostname, 0) + 1
            most[server_hostname] = max(number, most.get(server_hostname, 0))
            for _ in range(9):
                await asyncio.sleep(0)
            at_once[server_hostname] -= 1
            return self

    async def connect(
        backend: httpcore.AsyncNetworkBackend, host: str, port: int
    ) -> None:
        stream = await backend.connect_tcp(host, port)
        await stream.start_tls(ssl.create_default_context(), host)

    async def tunnel(backend: httpcore.AsyncNetworkBackend, port: int) -> None:
        stream = await backend.connect_tcp("proxy.example", 3128)
        await stream.write(b"CONNECT far.example:%d HTTP/1.1\r\n\r\n" % port)
        await stream.start_tls(ssl.create_default_context(), "far.example")

    async def connect_all() -> None:
        backend = _Backend(NearnessFinder(), checks=False)
        backend._find = find
        backend._inner = Streams([])  # type: ignore[assignment]
        names = ["one.example", "other.example"] * 8
        await asyncio.gather(*(connect(backend, name, 443) for name in names))
        # A server at another port has turns of its own, also behind a proxy.
        ports = [(1, "two.example"), (2, "two.example")] * 8
        await asyncio.gather(*(connect(backend, name, port) for port, name in ports))
        await asyncio.gather(*(tunnel(backend, port) for port in (1, 2) * 8))

    async def find(host: str) -> tuple[str, ...]:  # noqa: ARG001
        return ("192.0.2.1",)

    class Streams(httpcore.AsyncMockBackend):
        async def connect_tcp(self, *_: object, **__: object) -> Stream:
            return Stream([])

    asyncio.run(connect_all())
    expected = {"one": 2, "other": 2, "two": 4, "far": 4}
    assert most == {f"{name}.example": number for name, number in expected.items()}


@pytest.mark.parametrize(
    ("head", "is_odd"),
    [
        (b"HTTP/1.1 404\r\n", False),
        (b"HTTP/1.0 404 \xe9\t\n", False),
        (b"HTTP/1.1 404 X\r\nX:\r\nX_1:\ta b\xff\n", False),
        (b"HTTP/1.1 404 X\r\n" + b"X: a\r\n" * 100, False),
        (b"HTTP/1.1 404 X\r\n" + b"X: a\r\n" * 101, True),
        (b"HTTP/1.1 404 X\r\nX: a\r\n b\r\n", True),
        (b"HTTP/1.1 404 X\r\nX: a\x01b\r\n", True),
        (b"HTTP/1.1 404 X\r\nX: a\x7f\r\n", True),
        (b"HTTP/1.1 404 X\r\nX: a\rb\r\n", True),
        (b"HTTP/1.1 404 X\x01\r\n", True),
        (b"HTTP/1.9 404 X\r\n", True),
        (b"HTTP/1.0 404 X\r\nTransfer-Encoding: chunked\r\n", True),
        (b"HTTP/1.1 404 X\r\nContent-Length: 999999999999999999\r\n", False),
        (b"HTTP/1.1 404 X\r\nContent-Length: 9, 99999999999999999999\r\n", True),
        (b"HTTP/1.1 100 X\r\nX: a\x01b\r\n\r\nHTTP/1.1 404 X\r\n", True),
        (b"HTTP/1.1 100 X\r\n" + b"X: a\r\n" * 60 + b"\r\nHTTP/1.1 404 X\r\n"
         + b"X: a\r\n" * 60, False),
    ],
)  # fmt: skip
def test_a_head_that_uv_refuses(head: bytes, is_odd: bool) -> None:
    framing = Framing(math.inf)
    framing.follow(head + b"\r\n")
    assert framing.is_odd is is_odd


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        (b"HTTP/1.1 103 Y\r\n", "it has an interim response"),
        (OK + b"Content-Length: %d\r\n" % 2**63, "its length is too large"),
        (OK + CHUNKED + b"\r\n%x" % 2**63, "the size of a chunk is too large"),
        (b"HTTP/1.1 102 Y\r\n" + CHUNKED, "it has an interim response"),
        (b"HTTP/1.1 204 Y\r\n" + CHUNKED, "it has a body despite its status"),
        (b"HTTP/1.1 304 Y\r\n" + CHUNKED, "it has a body despite its status"),
    ],
)
def test_a_head_after_which_pip_reads_something_else(head: bytes, reason: str) -> None:
    framing = Framing(math.inf)
    with pytest.raises(httpcore.RemoteProtocolError, match=reason):
        framing.follow(head + b"\r\n")


def test_a_head_that_breaks_off() -> None:
    """pip reads what it has of the head, and stops; it used the next index instead."""
    for text, kind in ((OK, UpstreamError), (b"", PassingError)):
        with pytest.raises(UpstreamError) as caught:
            read_raw(text)
        assert type(caught.value) is kind
