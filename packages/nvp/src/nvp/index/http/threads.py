"""Threads for requests, their limits, and reports of the errors of an event loop."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
)
from concurrent.futures import Future
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar
from weakref import WeakValueDictionary

from nvidia_variant_provider.errors import InputError

from ...signals import wait_for
from .urls import server_of

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")

logger = logging.getLogger(__name__)

_NAME = "nvidia-variant-provider index"

FOR_INSTALLER: ContextVar[bool] = ContextVar("for installer", default=False)
"""Whether an installer, and not only this program, needs what is requested."""

_STEP = 0.01  # the number of seconds until other tasks run

_PATIENCE = 3.0
"""The number of seconds to wait until the thread ends. A name lookup may take longer,
and cannot be cancelled."""

_SPACE, _PAGES, _STUCK = 60_000, 4, 10.0
"""The numbers of files and of pages for which a `Space` has space; larger pages are
made alone. The number of seconds that a page may take without a wait for a server."""

_SMALL = 1000
"""The number of files up to which a page does not wait for larger ones. Such a page
takes a tenth of a second."""


async def in_steps(items: Iterable[T]) -> AsyncIterator[T]:
    """Yield items, and let other tasks run after each `_STEP`.

    A page may have 100,000 files. Use a thread instead for work that shares no data.
    Before each step, the page of the context waits until it has space; see `Share`.
    """
    async with Share.works():
        since = time.monotonic()
    for item in items:
        yield item
        if time.monotonic() - since > _STEP:
            async with Share.works():
                await asyncio.sleep(0)
            since = time.monotonic()


async def in_thread(work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Return the result of ``work``, which a thread does for a page; see `in_steps`."""
    async with Share.works():
        return await asyncio.to_thread(work, *args, **kwargs)


class Turns:
    """Limits concurrent work for each index, and for each server of an index.

    So slow servers delay only pages of indexes that name them.

    :param most: the maximum number of tasks for a server at the same time.
    :param in_all: the maximum number of tasks for all servers of an index.
    """

    def __init__(self, most: int, in_all: int) -> None:
        self._most, self._in_all = most, in_all
        self._known: WeakValueDictionary[Hashable, asyncio.Semaphore]
        self._known = WeakValueDictionary()

    @asynccontextmanager
    async def of(self, url: str, index: Hashable = None) -> AsyncIterator[None]:
        """Wait for a turn at the server of ``url``, and take it.

        :param index: the index that names the server.
        """
        find = self._known.setdefault
        own = find((index, server_of(url)), asyncio.Semaphore(self._most))
        of_index = find(index, asyncio.Semaphore(self._in_all))
        async with AsyncExitStack() as stack:
            with Share.waits():
                await stack.enter_async_context(own)
                await stack.enter_async_context(of_index)
            yield

    async def run(
        self, url: str, work: Callable[[threading.Event], T], index: str | None = None
    ) -> T:
        """Return the result of ``work``, which a thread does during a turn.

        Threads cannot be cancelled. If the caller is, the turn lasts as long as the
        thread, so all callers together have a limited number of threads.

        :param work: called with an event that is set if the caller is cancelled.
        """
        ended = threading.Event()
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.of(url, index))
            turn = stack.pop_all()

        async def hold() -> T:
            async with turn:
                return await asyncio.to_thread(work, ended)

        held = asyncio.ensure_future(hold())
        # After the caller has ended, nobody else looks at an error.
        held.add_done_callback(lambda task: task.cancelled() or task.exception())
        try:
            with Share.waits():
                return await asyncio.shield(held)
        finally:
            ended.set()


class Turn:
    """A turn with a lock, which is taken at most once, and released with the block.

    :param lock: the lock of all turns.
    :param waits: called before the turn waits for another one.
    """

    def __init__(
        self, lock: asyncio.Lock, waits: Callable[[], None] = lambda: None
    ) -> None:
        self._lock, self._waits = lock, waits
        self._has = self._is_over = False
        self._taking = asyncio.Lock()  # several tasks may take the same turn

    async def __aenter__(self) -> Turn:
        """Return the turn, which is not taken yet."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Release the lock, if it was taken."""
        self._is_over = True
        if self._has:
            self._lock.release()

    async def take(self) -> None:
        """Wait for the lock, unless this turn has it."""
        async with self._taking:
            if self._has or self._is_over:
                return
            if self._lock.locked():
                self._waits()
            with Share.waits():
                await self._lock.acquire()
            if self._is_over:  # the block has ended while this task waited
                self._lock.release()
            else:
                self._has = True


class Space:
    """Limits the number of files on the pages that are made at the same time.

    A file takes 2 KB of memory until the response with its page is made, and each page
    delays those of other indexes. A page that waits for a server or for another page
    does not count.
    """

    def __init__(self) -> None:
        self._used = self._returning = 0
        self._queues = asyncio.Lock(), asyncio.Lock()
        self._waiters: set[asyncio.Future[None]] = set()

    async def take(self, files: int, *, again: bool = False) -> None:
        """Wait for space for a page, or until nothing happens for `_STUCK` seconds.

        :param again: whether the page has waited since. Such pages come first, because
            their files are already in memory.
        """
        self._returning += again
        try:
            async with self._queues[again]:
                while (self._used and self._used + files > _SPACE) or (
                    self._returning and not again
                ):
                    left = asyncio.get_running_loop().create_future()
                    self._waiters.add(left)
                    if not (await asyncio.wait({left}, timeout=_STUCK))[0]:
                        break
                self._used += files
        finally:
            self._returning -= again
            self._wake()

    def give_back(self, files: int) -> None:
        """Make space for other pages."""
        self._used -= files
        self._wake()

    def _wake(self) -> None:
        for left in self._waiters:
            if not left.done():
                left.set_result(None)
        self._waiters.clear()


class Share:
    """The part of a `Space` for one page, which ends with the block.

    The page is read by other tasks, which know the share of their context.

    :param spaces: the space for small pages, and the space for larger ones.
    :param files: the number of files, if it is known; otherwise see `take`.
    """

    def __init__(self, spaces: tuple[Space, Space], files: int | None = None) -> None:
        self._spaces = spaces
        self._files = 0
        if files is not None:
            self._count(files)
        self._waiting = self._working = 0
        self._has = self._had = self._is_over = False
        self._taking = asyncio.Lock()

    async def __aenter__(self) -> Share:
        """Make this the share of the context."""
        self._token = _SHARE.set(self)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Give the space back."""
        _SHARE.reset(self._token)
        self._is_over = True
        self._give_back()

    def _give_back(self) -> None:
        if self._has and not self._working:
            self._has = False
            self._space.give_back(self._files)

    def _count(self, files: int) -> None:
        self._space = self._spaces[files > _SMALL]
        self._files = max(files, _SPACE // _PAGES)

    async def _take(self) -> None:
        async with self._taking:
            if self._has or self._is_over:
                return
            await self._space.take(self._files, again=self._had)
            self._has = self._had = True
            if self._is_over:  # the block has ended meanwhile
                self._give_back()

    @staticmethod
    async def take(files: int) -> None:
        """Wait until the page of the context has space, if the context has a share.

        :param files: the number of files of the page; only the first number counts,
            because further pages are read for this one.
        """
        share = _SHARE.get()
        if share is not None and not share._files:
            share._count(files)
            await share._take()

    @staticmethod
    @asynccontextmanager
    async def works() -> AsyncIterator[None]:
        """Have space for the work in the block, also while a task of the page waits."""
        share = _SHARE.get()
        if share is None:
            yield
            return
        if share._files:
            await share._take()
        share._working += 1
        try:
            yield
        finally:
            share._working -= 1
            if share._waiting or share._is_over:
                share._give_back()

    @staticmethod
    @contextmanager
    def waits() -> Iterator[None]:
        """Give the space of the context back while its page waits in the block.

        The page takes the space again for much work; see `in_steps` and `in_thread`.
        """
        share = _SHARE.get()
        if share is None:
            yield
            return
        share._waiting += 1
        share._give_back()
        try:
            yield
        finally:
            share._waiting -= 1


_SHARE: ContextVar[Share | None] = ContextVar("share", default=None)


class LoopThread:
    """A thread that runs an event loop until it is closed.

    The portals of anyio are similar, but wait without a limit when they are closed: an
    unresponsive name server would prevent Ctrl-C from ending the program.

    :raises InputError: this machine has no free files or threads.
    """

    def __init__(self) -> None:
        started: Future[asyncio.AbstractEventLoop] = Future()

        async def work() -> None:
            self._closed = asyncio.Event()
            loop = asyncio.get_running_loop()
            # Futures pass on the errors of work; asyncio would print those of cancelled
            # work, such as of a connection that ends.
            loop.set_exception_handler(lambda _, context: logger.debug("%s", context))
            started.set_result(loop)
            await self._closed.wait()

        main = work()

        def run() -> None:
            try:
                asyncio.run(main)
            except BaseException as error:
                if started.done():
                    raise
                started.set_exception(error)  # it could not create the event loop

        # Use a daemon thread, so a hanging request does not keep the process alive.
        self._thread = threading.Thread(target=run, name=_NAME, daemon=True)
        try:
            self._thread.start()
            self.loop = started.result()
        except (OSError, RuntimeError) as error:
            main.close()
            hint = "check the limits of open files and processes"
            raise InputError(f"no connection can be made: {error}", hint=hint) from None

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start ``work`` in the event loop, and return its future."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` in the event loop, and return its result."""
        future = self.submit(work)
        wait_for([future])
        return future.result()

    def close(self, last: Coroutine[Any, Any, object] | None = None) -> None:
        """Cancel all work and end the thread, or abandon it if it does not end.

        :param last: work to run before the end, such as closing connections.
        """

        async def end() -> None:
            try:
                if last is not None:
                    await last
            finally:
                self._closed.set()

        self.submit(end())
        self._thread.join(_PATIENCE)


def is_running() -> bool:
    """Return whether a `LoopThread` is running, for example an abandoned thread."""
    return any(thread.name == _NAME for thread in threading.enumerate())


async def call_in_daemon(
    function: Callable[[S], T], argument: S, most: threading.Semaphore | None = None
) -> T:
    """Return ``function(argument)``, called in a thread of its own.

    Neither the end of the event loop nor that of the process waits for this thread, as
    they do for `asyncio.to_thread`. So a keyring that waits does not delay Ctrl-C.

    :param most: counts the threads that may run at the same time, also if nobody waits
        for them any more.
    :raises OSError: there are too many threads.
    """
    if most is not None and not most.acquire(blocking=False):
        raise OSError("too many threads")
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()  # so that only the thread sets the result

    def work() -> None:
        try:
            future.set_result(function(argument))
        except BaseException as error:  # noqa: BLE001  # the caller gets it
            future.set_exception(error)
        finally:
            if most is not None:
                most.release()

    try:
        threading.Thread(target=work, daemon=True).start()
    except RuntimeError as error:  # the system allows no further thread
        if most is not None:
            most.release()
        raise OSError(str(error)) from None
    with Share.waits():
        return await asyncio.wrap_future(future)


class Reports:
    """Logs the errors of the event loop, each once and without a traceback.

    Otherwise a loop that cannot accept connections would print many tracebacks.
    """

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def __call__(
        self, loop: asyncio.AbstractEventLoop, context: Mapping[str, Any]
    ) -> None:
        """Log the error that asyncio describes in ``context``."""
        error = context.get("exception")
        message = str(context.get("message"))
        # Do not warn of tasks that the shutdown has cancelled.
        if message in self._logged or loop.is_closed() or "shutdown" in message:
            logger.debug("%s: %r", message, error)
            return
        self._logged.add(message)
        logger.warning("%s: %r; it will not be reported again", message, error)
