"""The HTTP client for code that is not asynchronous."""

from __future__ import annotations

import asyncio
import errno
import gzip
import io
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.range_server import Answer, serve_answers

from nvidia_variant_provider.errors import InputError
from nvidia_variant_provider.strict_json import LARGE_BYTES, MAX_BYTES
from nvp.index.http.blocking import BlockingClient
from nvp.index.http.client import Client
from nvp.index.http.threads import LoopThread
from nvp.index.http.urls import (
    PassingError,
    Settings,
    TooLargeError,
    TooSlowError,
    UpstreamError,
)


def test_nothing_is_made_without_a_request() -> None:
    def make_client() -> Client:
        raise AssertionError("a client was made")

    before = threading.active_count()
    with BlockingClient(make_client):
        assert threading.active_count() == before


def test_the_thread_ends_with_the_block() -> None:
    with serve_answers({"/a": Answer(body=b"x")}) as server:
        before = set(threading.enumerate())
        client = BlockingClient()
        with client:
            assert client.read(f"{server.url}/a") == b"x"
            (own,) = (
                thread
                for thread in set(threading.enumerate()) - before
                if "process_request" not in thread.name
            )
        assert not own.is_alive()
        client.close()  # Closing the client again has no effect.


def test_many_threads_can_read() -> None:
    answers = {f"/{n}": Answer(body=str(n).encode()) for n in range(20)}
    with (
        serve_answers(answers) as server,
        BlockingClient() as client,
        ThreadPoolExecutor(8) as executor,
    ):
        urls = [f"{server.url}{path}" for path in answers]
        bodies = list(executor.map(client.read, urls))
    assert bodies == [answer.body for answer in answers.values()]


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://[bad/", "is not a URL"),
        ("http://127.0.0.1:x/", "cannot be read"),
        ("http://127.0.0.1:65536/", "no server has the port 65536"),
        ("http://127.0.0.1:-1/", "no server has the port -1"),
        ("file:///etc/passwd", "only http and https are read"),
        ("ftp://index.example/", "only http and https are read"),
        ("/a/path", "only http and https are read"),
    ],
)
def test_urls_that_cannot_be_read(url: str, message: str) -> None:
    with BlockingClient() as client:
        for read in (client.read, client.read_page, client.open):
            with pytest.raises(UpstreamError, match=message) as caught:
                read(url)
            assert caught.value.path == url


def test_whatever_is_too_large_raises_one_error() -> None:
    """Census and lint skip a file that raises this error, with every way of reading."""
    answers = {
        "/page": Answer(body=b"x" * (LARGE_BYTES + 1), ranges=False),
        "/file": Answer(body=b"x" * (MAX_BYTES + 1), ranges=False),
    }
    with serve_answers(answers) as server, BlockingClient() as client:
        with pytest.raises(TooLargeError, match="larger than 64 MiB"):
            client.read_page(f"{server.url}/page")
        with pytest.raises(TooLargeError, match="larger than 4 MiB"):
            client.read(f"{server.url}/file")
        with pytest.raises(TooLargeError, match="larger than 1 MiB"):
            client.download(f"{server.url}/file", io.BytesIO(), limit=1024**2)


@pytest.mark.parametrize("fault", ["hang", "interim"])
def test_a_head_that_never_arrives(fault: str) -> None:
    """No read waits for long: something arrives, or the timeout is longer."""
    settings = Settings(timeout=60, deadline=0.4, retries=5, plain_http=True)
    with (
        serve_answers({"/x": Answer(fault=fault)}) as server,
        BlockingClient(lambda: Client(settings)) as client,
    ):
        url = f"{server.url}/x"
        for read in (client.read, client.read_page, client.open):
            with pytest.raises(TooSlowError, match="not complete after"):
                read(url)
        with pytest.raises(TooSlowError, match="not complete after"):
            client.download(url, io.BytesIO(), limit=1024)
        assert len(server.requests) == 4


@pytest.mark.parametrize(("number", "is_read"), [(90, True), (5000, False)])
@pytest.mark.parametrize(
    "kind", ["interim", "odd", "lines", "pieces", "trailers", "folded"]
)
def test_a_response_of_very_many_parts(kind: str, number: int, is_read: bool) -> None:
    """Each takes some time, in which a server must read other pages."""
    heads = {"interim": b"HTTP/1.1 100 A\r\n\r\n", "odd": b"HTTP/2.0 100 A\n\n"}
    interim, body = heads.get(kind, b"") * number, b"1\r\nx\r\n"
    pieces = number if kind == "pieces" else 1
    lines = b"a:\r\n" * number if kind == "lines" else b""
    text = interim + b"HTTP/1.1 200 OK\r\n" + lines
    text += b"Transfer-Encoding:" + (b"\r\n\t" if kind == "folded" else b" ")
    text += b"chunked\r\n\r\n"
    trailers = b"a:\r\n" * number if kind in ("trailers", "folded") else b""
    text += body * pieces + b"0\r\n" + trailers + b"\r\n"
    answer = Answer(body=text, fault="raw")
    client = BlockingClient(lambda: Client(Settings(retries=0, plain_http=True)))
    with serve_answers({"/x": answer}) as server, client:
        if is_read:
            assert client.read(f"{server.url}/x") == b"x" * pieces
        else:
            message = "very many" if kind == "pieces" else "trailers are too long"
            with pytest.raises(UpstreamError, match=message):
                client.read(f"{server.url}/x")


def test_errors_of_cancelled_work_are_not_printed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Ctrl-C may end a request that then fails, because its connection is closed."""
    waiting = threading.Event()

    async def fail_when_cancelled() -> None:
        try:
            waiting.set()
            await asyncio.sleep(600)
        finally:
            raise ConnectionResetError

    thread = LoopThread()
    future = thread.submit(fail_when_cancelled())
    assert waiting.wait(60)
    with caplog.at_level("INFO"):
        thread.close()
    assert isinstance(future.exception(60), ConnectionResetError)
    assert caplog.messages == []


def test_a_loop_that_cannot_be_created_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without free file descriptors, asyncio fails in the thread."""

    def fail() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(asyncio, "new_event_loop", fail)
    monkeypatch.setattr("asyncio.events.new_event_loop", fail)
    with pytest.raises(InputError, match="no connection can be made"):
        LoopThread()


def test_many_servers_share_a_limit() -> None:
    """A page can name many servers, and each connection needs a file descriptor."""
    limit, open_now, most = 96, 0, 0

    async def read_all() -> None:
        full = asyncio.Event()
        tasks: list[Any] = []

        async def answer(given: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
            nonlocal open_now, most
            tasks.append(asyncio.current_task())
            await given.readuntil(b"\r\n\r\n")
            open_now += 1
            most = max(most, open_now)
            if open_now >= limit:
                await asyncio.sleep(0.2)  # others arrive now, if they may
                full.set()
            await full.wait()
            open_now -= 1
            to.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx")
            await given.read()
            to.close()
            await to.wait_closed()

        server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=512)
        port = server.sockets[0].getsockname()[1]
        client = Client(Settings(proxy=f"http://127.0.0.1:{port}", plain_http=True))
        urls = [f"http://host{number}.example/" for number in range(2 * limit)]
        replies = await asyncio.gather(*map(client.get, urls))
        assert [reply.body for reply in replies] == [b"x"] * len(urls)
        await client.close()
        await asyncio.gather(*tasks)
        server.close()

    asyncio.run(read_all())
    assert most == limit


def test_plain_http_can_be_refused() -> None:
    """An index needs TLS or a trusted host, as for pip, but a single URL does not."""
    with (
        BlockingClient(lambda: Client(Settings())) as client,
        pytest.raises(UpstreamError, match="neither https nor a trusted host"),
    ):
        client.read("http://index.example/")


def test_an_error_shows_no_secret() -> None:
    answers = {"/a?token=S3cret": Answer(body=b"x" * 100, ranges=False)}
    with (
        serve_answers(answers, credentials="me:right") as server,
        BlockingClient() as c,
    ):
        for path in ("/a?token=S3cret", "/missing?token=S3cret"):
            url = f"{server.url}{path}".replace("://", "://me:S3cret@")
            for read in (c.read, c.read_page, c.open):
                with pytest.raises(UpstreamError) as caught:
                    read(url)
                assert "S3cret" not in str(caught.value)
                assert caught.value.status == 401


def test_a_small_response_does_not_unpack_to_a_huge_one() -> None:
    """An installer requests many pages at once."""
    body = gzip.compress(b" " * 9 * 1024 * 1024)
    answer = Answer(body=body, headers={"Content-Encoding": "gzip"}, kind="text/html")
    with serve_answers({"/a/": answer}) as server, BlockingClient() as reader:
        with pytest.raises(TooLargeError, match="larger than 8 MiB"):
            reader.read_page(f"{server.url}/a/")
        assert len(body) * 100 < 8 * 1024 * 1024


@pytest.mark.parametrize(("size", "is_kept"), [(1, True), (7, True), (40, False)])
def test_a_truncated_page_does_not_unpack_to_a_huge_one(
    size: int, is_kept: bool
) -> None:
    """Installers differ about truncated pages, so the first bytes of one are kept."""
    whole = gzip.compress(b" " * (size << 20))[:-1]
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Type: text/html\r\n"
    answer = Answer(body=head + b"Content-Length: 999999\r\n\r\n" + whole, fault="raw")
    client = BlockingClient(lambda: Client(Settings(retries=0, plain_http=True)))
    with serve_answers({"/a/": answer}) as server, client:
        with pytest.raises(PassingError) as caught:
            client.read_page(f"{server.url}/a/")
        reply = caught.value.reply
        assert reply is not None
        assert (reply.raw, reply.is_whole) == (whole, False)
        assert reply.body == (b" " * (size << 20) if is_kept else b"")


def test_errors_of_pages_do_not_keep_the_pages() -> None:
    """A census keeps all errors; 60 pages of spaces took 7 GB."""
    answers = {
        f"/{number}/": Answer(body=b" " * 1000, kind=kind)
        for number, kind in enumerate(("application/json", "text/plain"))
    }
    answers["/2/"] = Answer(body=b" " * 1000, fault="cut")

    def make() -> Client:
        return Client(Settings(retries=0, plain_http=True))

    with serve_answers(answers) as server, BlockingClient(make) as client:
        urls = [f"{server.url}{path}" for path in answers]
        for _, error in client.read_pages(urls, at_once=2):
            assert isinstance(error, UpstreamError)
            assert error.reply is None
            assert error.__context__ is None
            assert error.__traceback__ is None
