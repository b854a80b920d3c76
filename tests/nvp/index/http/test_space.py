"""Few pages of an index are made at the same time: see `Space`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from functools import partial

import pytest
from simple_repository import model

from nvp.index.http import threads
from nvp.index.http.client import Client
from nvp.index.http.ranges import RangeSupport
from nvp.index.http.threads import (
    Share,
    Space,
    Turns,
    call_in_daemon,
    in_steps,
    in_thread,
)
from nvp.index.http.urls import CompleteResponse
from nvp.index.server.kept_pages import KeptPage, KeptPages

URL = "https://127.0.0.1/simple/demo/"


def test_pages_with_many_files_are_made_after_each_other() -> None:
    """Twenty pages of 2 MB took 900 MB, and small pages waited for 35 seconds.

    So did 100 pages of 256 KB, which were not counted, for 44 seconds.
    """
    made: list[str] = []
    space = Space()

    async def make(name: str, files: int, goes_on: asyncio.Event) -> None:
        async with Share((space, space)):
            assert [x async for x in in_steps("x")] == ["x"]  # nothing is counted yet
            await asyncio.ensure_future(Share.take(files))  # by another task
            await Share.take(files)  # another page for this one
            made.append(name)
            await goes_on.wait()

    async def wait(name: str, files: int, *goes_on: asyncio.Event) -> None:
        async with Share((space, space)):
            await Share.take(files)
            with Share.waits(), Share.waits():  # for a server, and another page
                await goes_on[0].wait()
            made.extend([name async for _ in in_steps("x")])
            await goes_on[1].wait()

    async def pause() -> None:
        for _ in range(40):
            await asyncio.sleep(0)

    async def run(pages: dict[str, int], at_once: list[str]) -> None:
        first, second = asyncio.Event(), asyncio.Event()
        tasks = [
            asyncio.ensure_future(make(name, files, first))
            for name, files in pages.items()
        ]
        await pause()
        assert made == at_once
        first.set()
        await asyncio.gather(*tasks)
        assert made == [*pages]
        made.clear()
        first.clear()
        tasks = [
            asyncio.ensure_future(wait(name, files, first, second))
            for name, files in pages.items()
        ]
        await pause()
        assert space._used == 0  # all of them wait for servers
        first.set()
        await pause()
        assert made == at_once
        second.set()
        await asyncio.gather(*tasks)
        assert made == [*pages]
        assert space._used == 0
        made.clear()

    async def run_all() -> None:
        await run({"a": 40_000, "b": 20_000, "c": 100_000, "d": 1}, ["a", "b"])
        await run(dict.fromkeys("abcdefghij", 1), [*"abcd"])

    asyncio.run(asyncio.wait_for(run_all(), 60))


def test_space_for_a_page_that_also_waits() -> None:
    """Each wheel of a page with METADATA of 4 MiB took 0.4 seconds of a thread."""
    used: list[int] = []
    space = Space()

    async def work() -> None:
        with Share.waits():
            await asyncio.sleep(0)
        await in_thread(lambda: used.append(space._used))

    async def run() -> None:
        async with Share((space, space), files=1):
            with Share.waits():
                await asyncio.gather(*(work() for _ in range(9)))
                assert space._used == 0
            await work()
            assert space._used == 15_000
        assert space._used == 0

    asyncio.run(asyncio.wait_for(run(), 60))
    assert used == [15_000] * 10


def test_pages_that_wait_for_others_have_no_space(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Four pages that wait for the same server would delay all others of its index."""
    space, goes_on = Space(), threading.Event()

    async def ask(*_: object) -> bool:
        with Share.waits():
            return await asyncio.to_thread(goes_on.wait, 30)

    async def wait(work: Callable[[], Awaitable[object]]) -> None:
        async with Share((space, space), files=1):
            async with Share.works():
                pass
            await work()

    async def run() -> None:
        client = Client()
        monkeypatch.setattr(RangeSupport, "_ask", ask)
        has = partial(RangeSupport(client).has, "https://127.0.0.1/")
        find = partial(call_in_daemon, goes_on.wait, 30)
        # The index has sent the page, so the last page is not sent instead.
        kept = KeptPages(lambda _: None)
        found = model.ProjectDetail(model.Meta("1.0"), "demo", ())
        headers = {"cache-control": "max-age=0, stale-if-error=600"}
        reply = CompleteResponse(status=200, url=URL, headers=headers, body=b"")

        async def renew(
            last: KeptPage | None, answered: Callable[[], None]
        ) -> tuple[CompleteResponse, model.ProjectDetail]:
            answered()
            if last is not None:
                await ask()
            return reply, found

        read = partial(kept.read, URL, lambda: None, renew)
        await read()
        works = has, has, find, read, read
        tasks = [asyncio.ensure_future(wait(work)) for work in works]
        for _ in range(20):
            await asyncio.sleep(0)
        assert space._used == 0
        goes_on.set()
        await asyncio.gather(*tasks)

    asyncio.run(asyncio.wait_for(run(), 60))


def test_space_for_a_page_that_nobody_waits_for() -> None:
    async def run() -> None:
        space = Space()
        await space.take(60_000)
        async with Share((space, space)):
            late = asyncio.ensure_future(Share.take(7))
            await asyncio.sleep(0)
        space.give_back(60_000)
        await late
        await Share.take(9)  # the block has ended
        assert space._used == 0
        async with Share((space, space)):
            work = asyncio.ensure_future(Share.take(8))
            work.cancel()
        await asyncio.wait_for(space.take(60_000), 30)

    asyncio.run(run())


def test_a_page_that_has_had_space_comes_first() -> None:
    """METADATA that is requested for the first time does not overtake pages."""
    space, order = Space(), list[str]()

    async def make(name: str, goes_on: asyncio.Event, *, again: bool) -> None:
        async with Share((space, space), files=60_000):
            if again:
                async with Share.works():
                    pass
                with Share.waits():
                    await goes_on.wait()
            async with Share.works():
                pass
            order.append(name)

    async def run() -> None:
        goes_on = asyncio.Event()
        last = asyncio.ensure_future(make("again", goes_on, again=True))
        await asyncio.sleep(0)
        await space.take(60_000)
        new = [
            asyncio.ensure_future(make(name, goes_on, again=False)) for name in "abc"
        ]
        await asyncio.sleep(0)
        goes_on.set()
        for _ in range(3):
            await asyncio.sleep(0)
        space.give_back(60_000)
        await asyncio.gather(last, *new)

    asyncio.run(asyncio.wait_for(run(), 60))
    assert order == ["again", "a", "b", "c"]


def test_space_that_is_given_back_is_seen_by_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If two pages begin to wait meanwhile, an event that is cleared can be missed."""
    monkeypatch.setattr(threads, "_STUCK", 60.0)
    space = Space()

    async def take(*, again: bool) -> None:
        await space.take(15_000, again=again)
        space.give_back(15_000)

    async def give_back() -> None:
        space.give_back(60_000)

    async def run() -> None:
        await space.take(60_000)
        await asyncio.gather(take(again=True), give_back(), take(again=False))

    asyncio.run(asyncio.wait_for(run(), 30))


def test_a_small_page_does_not_wait_for_larger_ones() -> None:
    """Those of a stranger may be on the same index."""
    made: list[int] = []

    async def make(spaces: tuple[Space, Space], files: int) -> None:
        async with Share(spaces):
            await Share.take(files)
            made.append(files)

    async def run() -> None:
        spaces = Space(), Space()
        await spaces[1].take(60_000)
        larger = asyncio.ensure_future(make(spaces, 1001))
        await make(spaces, 1000)
        assert made == [1000]
        spaces[1].give_back(60_000)
        await larger
        assert made == [1000, 1001]

    asyncio.run(asyncio.wait_for(run(), 60))


def test_turns_count_for_the_index_that_names_a_server() -> None:
    """Slow servers of one index took the turns of the others."""

    async def run() -> None:
        turns = Turns(1, 2)
        order: list[str] = []

        async def take(url: str, index: str | None) -> None:
            async with turns.of(url, index):
                order.append(f"{url} {index}")

        async with turns.of("https://a.example/", "one"):
            await take("https://a.example/", "two")
            await take("https://a.example/", None)
            same = asyncio.ensure_future(take("https://a.example/", "one"))
            async with turns.of("https://b.example/", "one"):
                third = asyncio.ensure_future(take("https://c.example/", "one"))
                for _ in range(5):
                    await asyncio.sleep(0)
                expected = ["https://a.example/ two", "https://a.example/ None"]
                assert order == expected
            await third
        await same
        assert order == [*expected, "https://c.example/ one", "https://a.example/ one"]

    asyncio.run(asyncio.wait_for(run(), 60))
