"""The indexes of an installer, on all of whose pages a page depends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar

from simple_repository import model
from simple_repository.components.core import SimpleRepository

from nvidia_variant_provider.errors import InputError

from ..http.replies import without_frames
from ..http.threads import Share
from ..http.urls import TooSlowError, UpstreamError
from .kept import FOREVER, WARNED, Aging, weigh
from .pieces import UNAVAILABLE
from .reader import may_find_files

T = TypeVar("T")

_MOST = 100_000
"""The maximum number of files whose index is cached."""

_MEMORY, _JUDGED = 64 * 1024 * 1024, 1100
"""The maximum memory of cached evidence, and that of a judged file, in bytes."""

MINUTE = 60.0
"""The seconds for which evidence is cached, and for which an index counts as late."""

_LATE, _LEAST, _SOON, _KEPT = 15.0, 3.0, 1.0, 0.1
"""The seconds for which a page waits for other indexes; see `Indexes.wait`."""


@dataclass(slots=True)
class _Waits:
    """The waits of a page for the indexes other than ``own``."""

    own: SimpleRepository
    until: float | None = None
    is_late: bool = False
    known: set[SimpleRepository] = field(default_factory=set)


_WAITS: ContextVar[_Waits | None] = ContextVar("waits", default=None)
"""The waits of the page that is made."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Evidence:
    """Evidence about a project.

    :param is_late: whether some is missing, because an index is late.
    """

    is_late: bool


E = TypeVar("E", bound=Evidence)


class Indexes:
    """All indexes of an installer, in the order of the user.

    The methods limit how long a page waits for other indexes, which uv alone may not
    need. A page without the files of an index must not be judged: the page of that
    index would be judged with all files, so both could have no file that is shown.
    """

    def __init__(
        self,
        indexes: Sequence[SimpleRepository] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.all = tuple(indexes)
        # The index of each file, by the hash of its name and URL, which may be long.
        self._origins: Aging[int, SimpleRepository] = Aging(_MOST, FOREVER)
        self._late: Aging[SimpleRepository, bool] = Aging(WARNED, MINUTE, clock)
        # Each result, after the data from which it is made, and with its memory.
        self._known: Aging[object, tuple[object, asyncio.Task[Any], int]]
        self._known = Aging(_MEMORY, MINUTE, clock, lambda known: known[2])

    @contextmanager
    def of(self, index: SimpleRepository) -> Iterator[None]:
        """Make a page of ``index`` in the block, and wait for that index itself."""
        token = _WAITS.set(_Waits(index))
        try:
            yield
        finally:
            _WAITS.reset(token)

    @property
    def is_late(self) -> bool:
        """Whether another index was late for the page that is made."""
        waits = _WAITS.get()
        return waits is not None and waits.is_late

    async def wait(self, index: SimpleRepository, work: Awaitable[T]) -> T:
        """Return the result of ``work``, which reads from an index.

        A page waits `_LATE` seconds for all other indexes, also if it reads much, then
        `_LEAST` seconds for one that it has not waited for, and `_KEPT` seconds for
        what is cached. For the next minute, all pages wait only `_SOON` seconds for an
        index that is late.

        :raises TooSlowError: another index is late.
        """
        waits = _WAITS.get()
        if waits is None or waits.own is index:
            return await work
        now = asyncio.get_running_loop().time()
        waits.until = waits.until or now + _LATE
        left = max(waits.until - now, _KEPT if index in waits.known else _LEAST)
        waits.known.add(index)
        was_late = self._late.get(index)
        seconds = min(left, _SOON) if was_late else left
        try:
            return await asyncio.wait_for(work, seconds)
        except UpstreamError as error:
            raise without_frames(error) from None
        except asyncio.TimeoutError:
            waits.is_late = True
            if not was_late and seconds >= _SOON:
                self._late.put(index, True)
            message = f"not there after {seconds:.2g} s"
            raise TooSlowError(message, hint="try again") from None

    async def read(
        self, index: SimpleRepository, project: str
    ) -> tuple[model.ProjectDetail | None, bool]:
        """Return the page of a project, and whether installers find no other files."""
        try:
            page = await self.wait(index, index.get_project_page(project))
        except (InputError, *UNAVAILABLE) as error:
            return None, not await may_find_files(error, project)
        self.note(index, page.files)
        return page, True

    async def read_all(self, project: str) -> Sequence[model.File]:
        """Return the files of a project on all indexes.

        :raises TimeoutError: an index is late, so the files must not be judged.
        """
        found = [await self.read(index, project) for index in self.all]
        if self.is_late:
            raise asyncio.TimeoutError
        return [file for page, _ in found if page for file in page.files]

    async def once(
        self,
        key: object,
        given: model.ProjectDetail | Sequence[Evidence],
        work: Callable[[], Coroutine[Any, Any, E]],
    ) -> E:
        """Return the result of ``work``, or that of a page within the last minute.

        Pages of a project on several indexes need the same evidence, also if it is
        incomplete, because a server fails.

        :param given: the data from which the result is made.
        """
        if len(self.all) == 1:
            return await work()
        known = self._known.get(key)
        is_known = known is not None and known[0] == given
        if known is None or not is_known:
            memory = _JUDGED
            if isinstance(given, model.ProjectDetail):
                memory = weigh(given) + _JUDGED * len(given.files)
            known = given, asyncio.create_task(work()), memory
            self._known.put(key, known)

            def end(task: asyncio.Task[E]) -> None:
                failed = task.cancelled() or task.exception() or task.result().is_late
                if failed and self._known.get(key) is known:
                    self._known.drop(key)

            known[1].add_done_callback(end)
        task: asyncio.Task[E] = known[1]
        with Share.waits() if is_known else nullcontext():
            return await asyncio.shield(task)

    def forget(self, key: object) -> None:
        """Forget a result of `once`, because there is new evidence."""
        self._known.drop(key)

    async def read_names(
        self, indexes: Sequence[SimpleRepository], project: str
    ) -> list[list[str]]:
        """Return a project's file names in some indexes, without unreadable pages."""
        found = await asyncio.gather(*(self.read(index, project) for index in indexes))
        return [[x.filename for x in page.files] if page else [] for page, _ in found]

    def note(self, index: SimpleRepository, files: Sequence[model.File]) -> None:
        """Record the index of files; see `origin`."""
        if len(self.all) > 1:
            for file in files:
                self._origins.put(hash((file.filename, file.url)), index)

    def origin(self, file: model.File) -> SimpleRepository:
        """Return the index that has a file on its page."""
        return self._origins.get(hash((file.filename, file.url))) or self.all[0]
