"""The conditions and the delays of retries, and the order of requests."""

from __future__ import annotations

import asyncio
import base64
import email.utils
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.index_server import start_server
from support.range_server import Answer, serve_answers

from nvp.index.http import client as client_module
from nvp.index.http import replies
from nvp.index.http.blocking import BlockingClient
from nvp.index.http.client import Client
from nvp.index.http.replies import PASSING, pause_before, read_retry_after
from nvp.index.http.threads import Turn
from nvp.index.http.urls import PassingError, Settings, UpstreamError
from nvp.index.server.places import make_upstream


@given(st.integers(0, 10**8))
def test_seconds(seconds: int) -> None:
    assert read_retry_after({"retry-after": str(seconds)}) == seconds


@given(st.integers(60, 10**6))
def test_a_date(seconds: int) -> None:
    date = email.utils.formatdate(time.time() + seconds, usegmt=True)
    wait = read_retry_after({"retry-after": date})
    assert wait is not None
    assert seconds - 30 <= wait <= seconds


@given(st.text())
def test_any_text_is_read_or_is_not_valid(text: str) -> None:
    wait = read_retry_after({"retry-after": text})
    assert wait is None or wait >= 0


def test_the_time_between_attempts_grows() -> None:
    error = PassingError("busy")
    pauses = [pause_before(attempt, error) for attempt in range(1, 20)]
    for attempt, pause in enumerate(pauses):
        longest = min(replies._LONGEST, replies._FIRST * 2**attempt)
        assert pause is not None
        assert longest / 2 <= pause <= longest


@pytest.mark.parametrize("status", sorted(PASSING))
def test_how_often(status: int) -> None:
    headers = {"Retry-After": "0"}
    with (
        serve_answers({"/x": Answer(status=status, headers=headers)}) as server,
        BlockingClient(lambda: Client(Settings(retries=2))) as reader,
    ):
        with pytest.raises(UpstreamError, match=f"HTTP {status}"):
            reader.read(f"{server.url}/x")
        assert len(server.requests) == 3


@pytest.mark.parametrize(("status", "retries"), [(404, 5), (403, 5), (503, 0)])
def test_what_is_not_asked_again(status: int, retries: int) -> None:
    with (
        serve_answers({"/x": Answer(status=status)}) as server,
        BlockingClient(lambda: Client(Settings(retries=retries))) as reader,
    ):
        with pytest.raises(UpstreamError):
            reader.read(f"{server.url}/x")
        assert len(server.requests) == 1


def test_a_page_does_not_wait_for_files_of_other_servers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A page may name METADATA on many servers that hang."""
    monkeypatch.setattr(client_module, "_IN_ALL", 1)
    slow, page = {"/file": Answer(fault="hang")}, {"/page": Answer(body=b"page")}

    async def read(file_url: str, page_url: str) -> bytes:
        reader = Client()
        reading = asyncio.create_task(reader.get(file_url))
        await asyncio.to_thread(hanging.requests.wait_for, "/file")
        async with Turn(reader.large) as turn:
            reply = await asyncio.wait_for(reader.get(page_url, turn=turn), 30)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await reader.close()
        return reply.body

    with serve_answers(slow) as hanging, serve_answers(page) as index:
        assert asyncio.run(read(f"{hanging.url}/file", f"{index.url}/page")) == b"page"


@contextmanager
def serve_logins(
    reply: Callable[[str, str], int | str],
) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yield the URL of a server, and the path and login of each request.

    :param reply: returns the status, or the target of a redirect, for a path and login.
    """
    seen: list[tuple[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            """Print nothing."""

        def do_GET(self) -> None:
            encoded = self.headers.get("Authorization", "").partition(" ")[2]
            seen.append((self.path, base64.b64decode(encoded).decode()))
            found = reply(*seen[-1])
            self.send_response(302 if isinstance(found, str) else found)
            self.send_header("Location", str(found))
            self.send_header("Content-Length", "0")
            self.end_headers()

    with start_server(Handler) as url:
        yield url, seen


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Return the settings of a user with a netrc file."""
    path = tmp_path / "netrc"
    path.write_text("machine 127.0.0.1 login me password word\n")
    return Settings(plain_http=True, retries=0, netrc=(str(path),))


@pytest.mark.parametrize("status", [401, 403, 404])
@pytest.mark.parametrize(
    ("user", "accepted", "sent"),
    [
        # uv sends no login of another user than that of the URL; pip does.
        ("token", "token:", ["token:"]),
        ("token", "me:word", ["token:", "me:word"]),
        # uv sends a login of the netrc file only after a refusal; pip sends it first.
        ("", "me:word", ["me:word"]),
        ("", "", ["me:word", ""]),
        ("token", "none:none", ["token:", "me:word", ""]),
    ],
)
def test_other_logins_of_the_user(
    status: int, user: str, accepted: str, sent: list[str], settings: Settings
) -> None:
    """An installer must not use its next index where another login gets the page."""
    with (
        serve_logins(lambda _, pair: 200 if pair == accepted else status) as (
            url,
            seen,
        ),
        BlockingClient(lambda: Client(settings).only(url)) as reader,
    ):
        if user:
            reader.add_credentials(url, (user, ""))
        if accepted == "none:none":
            with pytest.raises(UpstreamError, match=str(status)):
                reader.read(f"{url}a")
        else:
            reader.read(f"{url}a")
    assert [pair for _, pair in seen] == sent


@pytest.mark.parametrize(
    ("pages", "own", "known", "expected"),
    [
        # The index sends strangers to its page for logins, whatever they ask for.
        (
            {"/a": {"me:word": 404, "": "/login"}, "/login": {"": 200}},
            "",
            None,
            [("/a", "me:word"), ("/a", ""), 404],
        ),
        # After a redirect, requests sends the login of the netrc file.
        (
            {"/a": {"u:p": "/b"}, "/b": {"u:p": 200}},
            "u:p@",
            None,
            [("/a", "u:p"), ("/b", "me:word"), ("/b", "u:p"), 200],
        ),
        # pip knows the login of another index of the server.
        (
            {"/a": {"": 200}},
            "",
            ("u", "p"),
            [("/a", "u:p"), ("/a", "me:word"), ("/a", ""), 200],
        ),
    ],
)
def test_logins_of_one_server(
    pages: dict[str, dict[str, int | str]],
    own: str,
    known: tuple[str, str] | None,
    expected: list[object],
    settings: Settings,
) -> None:
    with serve_logins(lambda path, pair: pages[path].get(pair, 404)) as (url, seen):
        client = Client(settings).only(url)
        assert make_upstream(url.replace("//", f"//{own}"), known, client) is not None
        status = 200
        with BlockingClient(lambda: client) as reader:
            try:
                reader.read(f"{url}a")
            except UpstreamError as error:
                status = error.status
    assert [*seen, status] == expected
