"""Responses whose body breaks off, is damaged, or has no confirmed end."""

from __future__ import annotations

import asyncio
import gc
import gzip
import http.client
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from support.authority import Authority
from support.loopback import start
from support.range_server import Answer, serve_answers

from nvp.index.http import logins
from nvp.index.http.blocking import BlockingClient
from nvp.index.http.client import Client
from nvp.index.http.urls import PassingError, Settings, UpstreamError

PAGE = "/simple/torch/"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
# It unpacks to two megabytes, and its checksum is wrong.
DAMAGED = gzip.compress(bytes(2_000_000), mtime=0)[:-8] + b"damaged."


def _get(running_url: str) -> tuple[http.client.HTTPResponse, bytes, bool]:
    """Return a response of serve, its body, and whether the body is whole."""
    place = urlsplit(f"{running_url}torch/")
    connection = http.client.HTTPConnection(place.netloc, timeout=20)
    with closing(connection):
        connection.request("GET", place.path)
        reply = connection.getresponse()
        try:
            return reply, reply.read(), True
        except http.client.IncompleteRead as error:
            return reply, error.partial, False


@pytest.mark.parametrize("status", [403, 404, 406, 700])
@pytest.mark.parametrize(
    ("rest", "most", "first"),
    [
        (CHUNKED + b"5\r\nab", None, b"ab"),
        (CHUNKED + b"1E8480\r\n" + bytes(2_000_000), None, b"\0"),
        # pip 23 does not compare the length.
        (b"Content-Length: 50\r\n\r\nabc", 4, b"abc"),
        (b"Content-Length: 2000000\r\n\r\n" + bytes(2_000_000), 2_000_000, b"\0"),
    ],
)
def test_pip_reads_the_body_of_an_error(
    rest: bytes, most: int | None, first: bytes, status: int
) -> None:
    """pip stops if it cannot; uv reads no such body. The rest of a large body counts as
    unreadable, because pip reads it to its end."""
    head = b"HTTP/1.1 %d X\r\nContent-Type: text/html\r\n" % status
    with (
        serve_answers({PAGE: Answer(body=head + rest, fault="raw")}) as server,
        start(f"{server.url}/simple/") as running,
    ):
        reply, body, is_whole = _get(running.urls[0])
        # The server cannot send 700, and installers read such a page as after 200.
        assert reply.status == (status if status < 600 else 200)
        announced = reply.getheader("Content-Length")
        assert (announced is None) is (most is None)
        assert is_whole is (status == 700 and most == 2_000_000)
        if status < 600:
            assert body.startswith(first)
            assert announced in (None, str(len(body) + 1))
            assert most is None or len(body) < most


@pytest.mark.parametrize("status", [403, 404, 406])
@pytest.mark.parametrize("body", [b"abc", DAMAGED], ids=["small", "large"])
def test_pip_unpacks_the_body_of_an_error(body: bytes, status: int) -> None:
    head = b"HTTP/1.1 %d X\r\nContent-Type: text/html\r\nContent-Encoding: gzip\r\n"
    head = head % status + b"Content-Length: %d\r\n\r\n" % len(body)
    with (
        serve_answers({PAGE: Answer(body=head + body, fault="raw")}) as server,
        start(f"{server.url}/simple/") as running,
    ):
        reply, found, is_whole = _get(running.urls[0])
        assert (reply.status, found, is_whole) == (status, body, True)
        assert reply.getheader("Content-Encoding") == "gzip"
        assert reply.getheader("Content-Length") == str(len(body))


@pytest.mark.parametrize("status", [403, 404])
@pytest.mark.parametrize(
    "rest",
    [
        b"Content-Length: 3\r\n\r\nabc",
        b"Content-Encoding: gzip\r\n\r\n" + gzip.compress(b"abc", mtime=0),
    ],
)
def test_the_readable_body_of_an_error_is_replaced(rest: bytes, status: int) -> None:
    head = b"HTTP/1.1 %d X\r\nContent-Type: text/html\r\n" % status
    with (
        serve_answers({PAGE: Answer(body=head + rest, fault="raw")}) as server,
        start(f"{server.url}/simple/") as running,
    ):
        reply, found, is_whole = _get(running.urls[0])
        assert (reply.status, is_whole) == (status, True)
        assert found.endswith(b"\n")  # a message of this program


def test_the_body_of_an_error_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logins, "_SECONDS", 0.0)
    answer = Answer(status=404, body=b"x" * 10, kind="text/html")
    with (
        serve_answers({PAGE: answer}) as server,
        start(f"{server.url}/simple/") as running,
    ):
        assert not _get(running.urls[0])[2]


def test_the_body_of_an_error_is_not_kept() -> None:
    """Each error of one megabyte stayed in memory until Python looked for cycles."""

    async def ask(url: str) -> None:
        client = Client(Settings(retries=0, plain_http=True))
        for _ in range(3):
            with pytest.raises(UpstreamError):
                await client.get(url)
        await client.close()

    body = b"HTTP/1.1 404 X\r\nContent-Length: 99\r\n\r\nabc"
    with serve_answers({"/x": Answer(body=body, fault="raw")}) as server:
        gc.collect()
        gc.disable()
        try:
            asyncio.run(ask(f"{server.url}/x"))
            found = [x for x in gc.get_objects() if isinstance(x, httpx.Response)]
        finally:
            gc.enable()
    assert not [x for x in found if x.extensions.get("raw")]


@contextmanager
def _serve_tls(context: ssl.SSLContext, text: bytes, *, closes: bool) -> Iterator[str]:
    """Serve one response, and close TLS only if ``closes``; yield the URL."""
    ended = threading.Event()

    def answer() -> None:
        while not ended.is_set():
            try:
                plain, _ = listener.accept()
            except OSError:
                return
            with plain, context.wrap_socket(plain, server_side=True) as connection:
                connection.recv(65536)
                connection.sendall(text)
                with suppress(OSError):  # the client may not close TLS
                    if closes:
                        connection.unwrap()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        try:
            yield f"https://127.0.0.1:{listener.getsockname()[1]}/simple/torch/"
        finally:
            ended.set()
            listener.shutdown(socket.SHUT_RDWR)
    thread.join()


@pytest.mark.parametrize("closes", [True, False])
@pytest.mark.parametrize("status", [200, 404])
def test_a_body_without_a_length_ends_with_tls(
    tmp_path: Path, status: int, closes: bool
) -> None:
    """Anyone on the network can end a connection, and so cut a page. uv stops then."""
    authority = Authority(tmp_path)
    settings = Settings(retries=0, cert=authority.bundle)
    text = b"HTTP/1.1 %d X\r\nContent-Type: text/html\r\n\r\n<!DOCTYPE html>" % status
    reader = BlockingClient(lambda: Client(settings))
    with _serve_tls(authority.context, text, closes=closes) as url, reader:
        if closes and status == 200:
            assert not reader.read_page(url).files
            return
        with pytest.raises(UpstreamError) as caught:
            reader.read_page(url)
    reply = caught.value.reply
    assert reply is not None
    assert (status == 404) is reply.is_whole
    assert isinstance(caught.value, PassingError) is (status == 200)
