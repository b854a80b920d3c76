"""An index is slow if it answers late, and not if this program is busy."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial

import pytest
from simple_repository import model

from nvp.index.http.threads import Turn
from nvp.index.http.urls import CompleteResponse
from nvp.index.server import kept_pages
from nvp.index.server.kept_pages import KeptPage, KeptPages

URL = "https://127.0.0.1/simple/demo/"
STALE = {"cache-control": "max-age=0, stale-if-error=600"}


def found(version: str) -> model.ProjectDetail:
    files = (model.File(f"demo-{version}-py3-none-any.whl", "a.whl", {}),)
    return model.ProjectDetail(model.Meta("1.0"), "demo", files)


async def block(answered: Callable[[], None]) -> None:
    """Block the event loop, as a page of 60 MB of another index does."""
    time.sleep(0.3)
    for _ in range(9):  # until the reply is read
        await asyncio.sleep(0)
    answered()
    await asyncio.sleep(0.3)


async def take_turns(answered: Callable[[], None]) -> None:
    """Wait for another large page of the index, in the middle of this one."""
    lock = asyncio.Lock()
    await lock.acquire()
    asyncio.get_running_loop().call_later(0.3, lock.release)
    async with Turn(lock, answered) as turn:
        await turn.take()


async def stall(answered: Callable[[], None]) -> None:
    """Wait for the rest of a large page, while no other one is read."""
    async with Turn(asyncio.Lock(), answered) as turn:
        await turn.take()
        await asyncio.sleep(0.3)


async def hang(_: Callable[[], None]) -> None:
    await asyncio.sleep(0.3)


@pytest.mark.parametrize(
    ("work", "version"),
    [(block, "2.0"), (take_turns, "2.0"), (stall, "1.0"), (hang, "1.0")],
)
def test_the_last_page_is_not_sent_because_this_program_is_busy(
    work: Callable[[Callable[[], None]], Awaitable[None]],
    version: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """pip and uv got a file that the index had yanked."""
    monkeypatch.setattr(kept_pages, "_PATIENCE", 0.1)
    warnings: list[str] = []

    async def ask(
        last: KeptPage | None, answered: Callable[[], None]
    ) -> tuple[CompleteResponse, model.ProjectDetail]:
        if last is not None:
            await work(answered)
        reply = CompleteResponse(status=200, url=URL, headers=STALE, body=b"")
        return reply, found("1.0" if last is None else "2.0")

    async def run() -> model.ProjectDetail:
        read = partial(KeptPages(warnings.append).read, URL, lambda: None, ask)
        await read()
        return await read()

    assert asyncio.run(run()) == found(version)
    assert bool(warnings) == (version == "1.0")
