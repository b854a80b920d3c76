"""An index is slow if it answers late, and not if this program is busy."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
from simple_repository import model
from support.exposed import index_of, selection_for, wheel
from support.label_index import Pages
from support.loopback import start_with_limits
from support.range_server import Answer, serve_answers

from nvidia_variant_provider.machine.environment import Environment
from nvp.index.http.client import Client
from nvp.index.http.threads import Turn
from nvp.index.http.urls import CompleteResponse, TooSlowError
from nvp.index.selection import indexes as indexes_module
from nvp.index.selection.component import select
from nvp.index.selection.evidence import Leaders, Part
from nvp.index.selection.indexes import Indexes
from nvp.index.selection.options import Selection
from nvp.index.selection.reader import Reader
from nvp.index.server import app, kept_pages
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


@pytest.mark.parametrize(("age", "left"), [(0, 600), (60, 600), (100, 560), (3600, 0)])
def test_how_long_a_page_is_used_after_errors(age: float, left: float) -> None:
    """RFC 5861, section 4: until it has been stale for the given time."""
    headers = {"cache-control": "max-age=60, stale-if-error=600"}
    assert kept_pages._lifetime(headers, age)[1] == left


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


def be_impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in {
        "LATE": 0.4,
        "LEAST": 0.2,
        "_SOON": 0.1,
        "_KEPT": 0.05,
    }.items():
        monkeypatch.setattr(indexes_module, name, seconds)


def test_a_late_index_does_not_delay_the_pages_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """uv alone does not read its page, for which it waited two minutes."""
    be_impatient(monkeypatch)

    async def run() -> None:
        first = index_of(0, [wheel("1.0"), wheel("2.0+cu130")])
        second = LatePages(asyncio.Event())
        warnings: list[str] = []
        page = await shown(warnings, first)
        # The build for CUDA 13 cannot run on this machine.
        assert [bool(file.yanked) for file in page.files] == [False, True]
        # The late page will be judged with these files: if this page were judged now,
        # perhaps no file would be left on both pages.
        page = await shown(warnings, first, second)
        assert [bool(file.yanked) for file in page.files] == [False, False]
        reason = "no builds of kern are selected, because another index is late"
        assert warnings[-1] == reason
        assert set(second.left) == {"kern"}

    asyncio.run(asyncio.wait_for(run(), 60))


async def shown(warnings: list[str], *indexes: Pages) -> model.ProjectDetail:
    """Return the page of the first index."""
    components = select(
        indexes,
        selection=selection_for(None, {}),
        reader=Reader(Client()),
        warn=warnings.append,
    )
    return await components[0].get_project_page("kern")


def test_the_waits_of_a_page_do_not_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages and METADATA of another index delayed a page three times by 20 seconds."""
    be_impatient(monkeypatch)

    async def run() -> None:
        now = [0.0]
        own, prompt = index_of(0, [wheel("1.0")]), index_of(1, [wheel("1.0")])
        late, later = LatePages(asyncio.Event()), LatePages(asyncio.Event())
        last = LatePages(asyncio.Event())
        others = Indexes([own, prompt, late, later, last], clock=lambda: now[0])

        async def wait(index: Pages, seconds: str) -> None:
            with pytest.raises(TooSlowError, match=f"not there after {seconds} s"):
                await others.wait(index, index.get_project_page("kern"))

        with others.of(own):
            assert not others.late
            await wait(late, "0.4")
            assert others.late
            await wait(late, "0.05")  # there was no time left
            await wait(later, "0.2")
            with others.of(own):  # evidence for the same page
                await wait(later, "0.05")
            names, why = await others.read_names([late, later, prompt], "kern")
            assert names == [[], [], [wheel("1.0").name]]
            assert why == "another index is late"
        with others.of(prompt):
            await asyncio.sleep(0.3)  # its own evidence, or that of another page
            await wait(last, "0.2")
        now[0] += 59
        with others.of(prompt):  # in the next minute
            await others.wait(own, own.get_project_page("kern"))
            assert not others.late
            await wait(late, "0.1")
            await wait(late, "0.05")  # its other projects, which METADATA requires
        now[0] += 2  # the last, short wait does not count
        with others.of(prompt):
            await wait(late, "0.4")
        with others.of(late):  # its own pages have no limit here
            reading = others.wait(late, late.get_project_page("kern"))
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(reading, 0.6)

    asyncio.run(asyncio.wait_for(run(), 60))


def test_a_required_project_on_a_late_index_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For ten minutes, other pages were judged without it, and had no file left."""
    be_impatient(monkeypatch)

    async def judge(*_: object) -> tuple[Any, Any]:
        return [], {}

    async def run() -> None:
        answers = asyncio.Event()
        own, late = index_of(0, [wheel("1.0")]), LatePages(answers)
        every = Indexes([own, late])
        selection = Selection(machine=Environment, platform="linux_x86_64")
        leaders = Leaders(every, selection, judge)
        with every.of(own):
            assert await leaders.find("kern", 1) == ({}, None)
        answers.set()
        with every.of(own):
            assert await leaders.find("kern", 1) == ({}, {})  # no builds

    asyncio.run(asyncio.wait_for(run(), 60))


def test_a_page_that_takes_long_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = Answer(fault="hang")
    with (
        serve_answers({"/simple/torch/": answer}) as server,
        start_with_limits(server, answer) as running,
    ):
        running.page()
        assert running.waits == []
        monkeypatch.setattr(app, "_SILENCE", 0.0)
        running.page()
        assert running.waits == ["torch"]


def test_pages_share_that_an_index_was_late() -> None:
    """A page that waits for the evidence of another page is as incomplete."""

    async def run() -> None:
        own, late = index_of(0, []), index_of(1, [])
        every = Indexes([own, late])

        async def work() -> Part:
            await asyncio.sleep(0)
            late_ones = frozenset({late})
            return Part(builds=(), judged=(), required={}, late=late_ones)

        async def use() -> None:
            with every.of(own):
                assert not every.late
                await every.once("torch", lambda: 0, work)
                assert every.late == {late}

        await asyncio.gather(use(), use())

    asyncio.run(run())
