"""An index is slow if it answers late, and not if this program is busy."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial

import pytest
from simple_repository import model
from support.exposed import index_of, selection_for, wheel
from support.label_index import Pages

from nvp.index.http.client import Client
from nvp.index.http.threads import Turn
from nvp.index.http.urls import CompleteResponse, TooSlowError
from nvp.index.selection import wheel_files
from nvp.index.selection.component import select
from nvp.index.selection.reader import Reader
from nvp.index.selection.wheel_files import OtherPages
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


class LatePages(Pages):
    """An index that answers after the event; it does not go on without a client."""

    def __init__(self, answers: asyncio.Event) -> None:
        super().__init__({}, url="https://late.example/simple/")
        self._answers = answers
        self.left: list[str] = []

    async def get_project_page(
        self,
        project_name: str,
        *,
        request_context: model.RequestContext | None = None,
    ) -> model.ProjectDetail:
        try:
            await self._answers.wait()
        except asyncio.CancelledError:
            self.left.append(project_name)
            raise
        return await super().get_project_page(
            project_name, request_context=request_context
        )


def test_a_late_index_does_not_delay_the_pages_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """uv alone does not read its page, for which it waited two minutes."""
    monkeypatch.setattr(wheel_files, "_LATE", 0.05)
    monkeypatch.setattr(wheel_files, "_SOON", 0.01)

    async def run() -> None:
        first = index_of(0, [wheel("1.0"), wheel("2.0+cu130")])
        second = LatePages(asyncio.Event())
        components = select(
            [first, second],
            selection=selection_for(None, {}),
            reader=Reader(Client()),
            warn=lambda _: None,
        )
        page = await components[0].get_project_page("kern")
        # It is judged as alone: the build for CUDA 13 cannot run on this machine.
        assert [bool(file.yanked) for file in page.files] == [False, True]
        assert set(second.left) == {"kern"}

    asyncio.run(asyncio.wait_for(run(), 60))


def test_a_late_index_is_late_for_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheel_files, "_LATE", 0.05)
    monkeypatch.setattr(wheel_files, "_SOON", 0.01)

    async def run() -> None:
        pages = OtherPages()
        late, prompt = LatePages(asyncio.Event()), index_of(0, [wheel("1.0")])
        for seconds in ("0.05", "0.01"):
            with pytest.raises(TooSlowError, match=f"no page after {seconds} s"):
                await pages.read(late, "kern")
        names = await pages.read_names([late, prompt], "kern")
        assert names == [[], [wheel("1.0").name]]

    asyncio.run(asyncio.wait_for(run(), 60))
