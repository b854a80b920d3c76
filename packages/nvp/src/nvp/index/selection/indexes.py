"""The indexes of an installer, on all of whose pages a page depends."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import (
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from simple_repository import model
from simple_repository.components.core import RepositoryContainer, SimpleRepository

from nvidia_variant_provider.errors import InputError

from ...builds.needs import Backend, parse_backend
from ..http.kept_keys import is_yanked
from ..http.replies import TOO_MANY, without_frames
from ..http.threads import FOR_INSTALLER, Share, Turns, in_thread
from ..http.urls import PassingError, TooSlowError, UpstreamError, server_of
from .kept import FOREVER, FRESH, WARNED, Aging
from .pieces import UNAVAILABLE
from .reader import Reader, may_find_files

T = TypeVar("T")
K = TypeVar("K", bound="Known")

_MOST = 100_000
"""The maximum number of files of an index by which the index of a file is found."""

_MEMORY = 64 * 1024 * 1024
"""The maximum memory of cached evidence in bytes."""

BUILD = 1100
"""The memory of a verdict on a build in bytes, without its reasons."""

MINUTE = 60.0
"""The seconds for which evidence is cached, and for which an index counts as late."""

_AT_ONCE, _IN_ALL = 4, 16
"""The maximum numbers of METADATA files that are in memory at the same time, to be
parsed: of a server, and of all servers of an index."""

_PAUSES = (0.25, 0.5, 1.0)  # in seconds, before a page of another index is read again

LATE, LEAST, _SOON, _KEPT = 15.0, 3.0, 1.0, 0.1
"""The seconds for which a page waits for other indexes; see `Indexes.wait`."""

_QUIET = 3 * LATE
"""The longest time between the requests of an installer for two pages of a project: pip
waits for the first page, which may wait for two indexes."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Known(ABC):
    """What pages share about a project.

    :param late: the indexes that were late, so that some evidence is missing.
    """

    late: frozenset[SimpleRepository]

    @property
    @abstractmethod
    def memory(self) -> int:
        """The estimated memory in bytes."""


class LateError(TooSlowError):
    """An index takes longer than a page of another index waits for it."""

    usual_hint = "try again"


@dataclass(slots=True)
class _Waits:
    """The waits of a page for the indexes other than ``own``."""

    own: SimpleRepository
    until: float
    known: set[SimpleRepository] = field(default_factory=set)
    late: set[SimpleRepository] = field(default_factory=set)


_WAITS: ContextVar[_Waits | None] = ContextVar("waits", default=None)
"""The waits of the page that is made."""


class _Shared(NamedTuple):
    given: object
    task: asyncio.Task[Any]
    since: float
    used: float
    memory: int

    def is_fresh(self, now: float, age: float) -> bool:
        """Return whether the result is still used; see `Indexes.once`."""
        quiet = now - self.used < _QUIET
        return now - self.since < (2 * age if quiet else age)


class Indexes:
    """All indexes of an installer, in the order of the user.

    The methods limit how long a page waits for other indexes, which uv alone may not
    need.
    """

    def __init__(
        self,
        indexes: Sequence[SimpleRepository] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.all = tuple(indexes)
        # The files of each index, by the hash of name and URL, which may be long.
        self._files = {index: Aging[int, bool](_MOST, FOREVER) for index in self.all}
        self._only = self.all if len(self.all) == 1 else ()
        self._turns, self._parsing = Turns(_AT_ONCE, _IN_ALL), Turns(1, 1)
        self._late: Aging[object, bool] = Aging(WARNED, MINUTE, clock)
        # The servers that have refused METADATA, because there were too many requests.
        self._limiting: Aging[str, bool] = Aging(WARNED, MINUTE, clock)
        self._clock = clock
        self._inspected = 0  # the number of wheels
        self._known: Aging[object, _Shared]
        self._known = Aging(_MEMORY, MINUTE, clock, lambda known: known.memory)

    @contextmanager
    def of(self, index: SimpleRepository) -> Iterator[None]:
        """Make a page of ``index`` in the block, and wait for that index itself."""
        FOR_INSTALLER.set(False)  # the page itself has been read
        waits = _WAITS.get()
        is_same = waits is not None and waits.own is index
        until = asyncio.get_running_loop().time() + LATE
        token = _WAITS.set(waits if is_same else _Waits(index, until))
        try:
            yield
        finally:
            _WAITS.reset(token)

    @property
    def own(self) -> SimpleRepository | None:
        """The index whose page is made."""
        waits = _WAITS.get()
        return waits.own if waits else None

    @property
    def late(self) -> frozenset[SimpleRepository]:
        """The other indexes that were late for the page that is made."""
        waits = _WAITS.get()
        return frozenset(waits.late if waits else ())

    async def wait(
        self, index: SimpleRepository, work: Awaitable[T], seconds: float = LATE
    ) -> T:
        """Return the result of ``work``, which reads from an index.

        A page waits `LATE` seconds for all other indexes, also if it reads much, then
        `LEAST` seconds for one that it has not waited for, and `_KEPT` seconds for
        what is cached. For the next minute, all pages wait only `_SOON` seconds for
        such work of an index that is late, and then `_KEPT` seconds.

        :param seconds: the longest time to wait.
        :raises LateError: another index is late.
        """
        waits = _WAITS.get()
        if waits is None or waits.own is index:
            return await work
        now = asyncio.get_running_loop().time()
        left = max(waits.until - now, _KEPT if index in waits.known else LEAST)
        waits.known.add(index)
        kind = index, seconds
        was_late = self._late.get(kind)
        soon = _KEPT if index in waits.late else _SOON
        left = min(left, seconds, soon) if was_late else min(left, seconds)
        try:
            return await asyncio.wait_for(work, left)
        except UpstreamError as error:
            raise without_frames(error) from None
        except asyncio.TimeoutError:
            waits.late.add(index)
            if not was_late and left >= _SOON:
                self._late.put(kind, True)
            raise LateError(f"not there after {left:.2g} s") from None

    async def read(
        self, index: SimpleRepository, project: str
    ) -> tuple[model.ProjectDetail | None, str]:
        """Return the page of a project, and why installers may find other files."""
        try:
            page = await self.wait(index, _read_page(index, project))
        except LateError:
            return None, "another index is late"
        except (InputError, *UNAVAILABLE) as error:
            why = "a page that nvp cannot read may have other files of it"
            return None, why if await may_find_files(error, project) else ""
        self.note(index, page.files)
        return page, ""

    async def read_metadata(
        self,
        reader: Reader,
        project: str,
        file: model.File,
        parse: Callable[[bytes], T],
    ) -> T:
        """Return the result of ``parse`` on METADATA of a wheel, in a thread.

        :raises LateError: another index is late.
        :raises InputError: METADATA cannot be read, or is not of the wheel.
        """
        if not self.origins(file):
            raise InputError(f"its index has over {_MOST:,} files")
        index, server = self.origin(file), server_of(file.url)
        servers = [server_of(_url_of(x)) for x in self.all]
        if server in servers and server != server_of(_url_of(index)):
            raise InputError("it is on the server of another index")

        async def read() -> T:
            # Keep the turn until METADATA is parsed: an index may have thousands, each
            # of which may take half a second.
            async with self._turns.of(file.url, index):
                if self._limiting.get(server):
                    raise InputError("its server limits requests")
                try:
                    metadata = await reader.read_metadata(index, project, file)
                except UpstreamError as error:
                    if error.status == TOO_MANY:
                        self._limiting.put(server, True)
                    raise
                async with self._parsing.of("", index):
                    return await asyncio.to_thread(parse, metadata)

        try:
            return await self.wait(index, read())
        except InputError as error:
            raise without_frames(error) from None  # they have METADATA

    async def once(
        self,
        key: object,
        state: Callable[[], object],
        work: Callable[[], Coroutine[Any, Any, K]],
        age: float = FRESH,
    ) -> K:
        """Return the result of ``work``, or a known one.

        Pages of a project on several indexes need the same evidence, also if it is
        incomplete, because a server fails. So that it does not change between the pages
        of one installer, a result is known for a minute after its last use, or for
        `_QUIET` seconds once it is as old as ``age``, but no longer than twice ``age``.

        :param state: returns a value that changes if ``work`` has other input. It is
            called in a thread.
        :param age: the time in seconds.
        """
        given = self._inspected, await in_thread(state)
        known, now = self._known.get(key), self._clock()
        is_known = (
            known is not None and known.given == given and known.is_fresh(now, age)
        )
        if known is None or not is_known:
            known = _Shared(given, asyncio.create_task(work()), now, now, BUILD)
            known.task.add_done_callback(partial(self._end, key))
        self._known.put(key, known._replace(used=now))
        task: asyncio.Task[K] = known.task
        with Share.waits() if is_known else nullcontext():
            result = await asyncio.shield(task)
        if waits := _WAITS.get():
            waits.late |= result.late
        return result

    def _end(self, key: object, task: asyncio.Task[Any]) -> None:
        """Count the memory of a result, or forget an incomplete one."""
        failed = task.cancelled() or task.exception() or task.result().late
        known = self._known.get(key)
        if known is None or known.task is not task:
            return
        if failed:
            self._known.drop(key)
        else:
            self._known.put(key, known._replace(memory=task.result().memory))

    def note_inspected(self) -> None:
        """Use no known result of `once`: a wheel was inspected, which is evidence."""
        self._inspected += 1

    async def read_names(
        self, indexes: Sequence[SimpleRepository], project: str
    ) -> tuple[list[list[str]], str]:
        """Return a project's file names in some indexes, and the reason of `read`."""
        found = await asyncio.gather(*(self.read(index, project) for index in indexes))
        names = [[x.filename for x in page.files] if page else [] for page, _ in found]
        return names, next((why for _, why in found if why), "")

    def note(self, index: SimpleRepository, files: Sequence[model.File]) -> None:
        """Record the index of files; see `origins`."""
        for file in () if self._only else files:
            self._files[index].put(hash((file.filename, file.url)), True)

    def origins(self, file: model.File) -> tuple[SimpleRepository, ...]:
        """Return the indexes that list a file; an index may list another one's."""
        key = hash((file.filename, file.url))
        return tuple(x for x in self.all if self._files[x].get(key)) or self._only

    def origin(self, file: model.File) -> SimpleRepository:
        """Return an index that lists a file: that of the page that is made, if any."""
        listing, own = self.origins(file) or self.all, self.own
        return own if own in listing else listing[0]


def state_of(files: Iterable[model.File]) -> int:
    """Return a hash of the data of files on which verdicts depend.

    URLs do not count, because their signatures differ from reply to reply.
    """
    states = (
        (
            file.filename,
            file.size,
            file.yanked or is_yanked(file),
            file.requires_python,
            repr(file.hashes),
            repr(file.dist_info_metadata),
        )
        for file in files
    )
    return hash(frozenset(states))


def is_vendor(index: SimpleRepository) -> bool:
    """Return whether an index, possibly wrapped in components, belongs to vendors."""
    return getattr(_unwrapped(index), "is_vendor", False)


async def _read_page(index: SimpleRepository, project: str) -> model.ProjectDetail:
    """Read a page, again after a failure after which installers repeat requests."""
    for seconds in _PAUSES:
        try:
            return await index.get_project_page(project)
        except PassingError as error:
            if error.status == TOO_MANY:
                raise
            without_frames(error)
        with Share.waits():
            await asyncio.sleep(seconds)
    return await index.get_project_page(project)


def _url_of(index: SimpleRepository) -> str:
    """Return the URL of an index, or its directory."""
    own = _unwrapped(index)
    return str(getattr(own, "url", None) or getattr(own, "folder", ""))


def folder_of_index(index: SimpleRepository) -> Backend | None:
    """Return the backend in the last directory of an index's URL, such as ``cu126``."""
    parts = [part for part in urlsplit(_url_of(index)).path.split("/") if part]
    # Skip ``simple``, the usual end of an index URL, which PEP 503 does not require.
    while parts and parts[-1] == "simple":
        parts.pop()
    return parse_backend(parts[-1]) if parts else None


def _unwrapped(index: SimpleRepository) -> SimpleRepository:
    while isinstance(index, RepositoryContainer):
        index = index.source
    return index
