"""The conditions and the delays of retries, and the order of requests."""

from __future__ import annotations

import asyncio
import email.utils
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.range_server import Answer, serve_answers

from nvp.index.http import client as client_module
from nvp.index.http import replies
from nvp.index.http.blocking import BlockingClient
from nvp.index.http.client import Client
from nvp.index.http.replies import PASSING, pause_before, read_retry_after
from nvp.index.http.threads import Turn
from nvp.index.http.urls import PassingError, Settings, UpstreamError


@given(st.integers(0, 10**8))
def test_seconds(seconds: int) -> None:
    assert read_retry_after({"retry-after": str(seconds)}) == seconds


@given(st.integers(60, 10**6))
def test_a_date(seconds: int) -> None:
    date = email.utils.formatdate(time.time() + seconds, usegmt=True)
    wait = read_retry_after({"retry-after": date})
    assert wait is not None
    assert seconds - 30 <= wait <= seconds


LONG = st.integers(-(10**30), 10**30).map(str)
DATES = st.tuples(
    st.just("Mon,"),
    st.just("01") | LONG,
    st.just("Jan"),
    st.just("2026") | LONG,
    st.just("00:00:00") | st.lists(LONG, max_size=4).map(":".join),
    st.just("GMT") | LONG,
).map(" ".join)


@given(st.text() | DATES)
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


@pytest.mark.parametrize("name", ["_IN_ALL", "_AT_ONCE"])
def test_a_page_does_not_wait_for_files(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page may name METADATA on many servers that hang, or on that of an index.

    An index that allows its last page after errors then counted as slow.
    """
    monkeypatch.setattr(client_module, name, 1)
    page = {"/page": Answer(body=b"page")}
    slow = {"/file": Answer(fault="hang"), **page}

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
        url = (index if name == "_IN_ALL" else hanging).url
        assert asyncio.run(read(f"{hanging.url}/file", f"{url}/page")) == b"page"


def test_nothing_is_requested_after_the_end() -> None:
    """Requests that waited for their turn connected while the event loop ended."""
    with serve_answers({}) as server:
        client = Client(Settings(trust_env=False))

        async def run() -> None:
            await client.close()
            with pytest.raises(UpstreamError, match="the program ends"):
                await client.only(None).get(f"{server.url}/late")

        asyncio.run(run())
        assert server.requests == []


@pytest.mark.parametrize("length", [4_000, 9_000])
def test_a_redirect_to_a_long_url(length: int) -> None:
    """Nine redirects to 60,000 characters took a second, in which no page was sent."""
    end = f"/end?{'x' * length}"
    answers = {end: Answer(body=b"page")}
    with serve_answers(answers) as server:
        target = {"location": f"{server.url}{end}"}
        answers["/start"] = Answer(status=302, headers=target)
        client = Client(Settings(trust_env=False))

        async def run() -> bytes:
            try:
                return (await client.get(f"{server.url}/start")).body
            finally:
                await client.close()

        if length < 8_000:
            assert asyncio.run(run()) == b"page"
            return
        with pytest.raises(UpstreamError, match="redirects to a URL"):
            asyncio.run(run())
