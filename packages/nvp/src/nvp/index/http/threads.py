"""Threads for requests, their limits, and reports of the errors of an event loop."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
)
from concurrent.futures import Future
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from nvidia_variant_provider.errors import InputError

from ...signals import wait_for
from .urls import server_of

S = TypeVar("S")
T = TypeVar("T")

logger = logging.getLogger(__name__)

_NAME = "nvidia-variant-provider index"

_STEP = 1000
"""The number of items until other tasks run: some ten milliseconds."""

_PATIENCE = 3.0
"""The number of seconds to wait until the thread ends. A name lookup may take longer,
and cannot be cancelled."""

_SPACE, _STUCK = 60_000, 10.0
"""The number of files for which a `Space` has space; larger pages are made alone. The
number of seconds that a page may take without a wait for a server."""


async def in_steps(items: Iterable[T]) -> AsyncIterator[T]:
    """Yield items, and let other tasks run after each `_STEP` items.

    A page may have 100,000 files. Use a thread instead for work that shares no data.
    """
    for number, item in enumerate(items, 1):
        yield item
        if number % _STEP == 0:
            await asyncio.sleep(0)


class Turns:
    """Limits concurrent work for each server, so a slow server delays no other.

    :param most: the maximum number of tasks for a server at the same time.
    :param in_all: the maximum number of tasks for all servers at the same time.
    """

    def __init__(self, most: int, in_all: int) -> None:
        self._most = most
        self._all = asyncio.Semaphore(in_all)
        self._known: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    @asynccontextmanager
    async def of(self, url: str, *, counts: bool = True) -> AsyncIterator[None]:
        """Wait for a turn at the server of ``url``, and take it.

        :param counts: whether the task also counts towards ``in_all``.
        """
        semaphore = asyncio.Semaphore(self._most)
        async with AsyncExitStack() as stack:
            with Share.waits():
                own = self._known.setdefault(server_of(url), semaphore)
                await stack.enter_async_context(own)
                if counts:
                    await stack.enter_async_context(self._all)
            yield

    async def run(self, url: str, work: Callable[[threading.Event], T]) -> T:
        """Return the result of ``work``, which a thread does during a turn.

        Threads cannot be cancelled. If the caller is, the turn lasts as long as the
        thread, so all callers together have a limited number of threads.

        :param work: called with an event that is set if the caller is cancelled.
        """
        ended = threading.Event()
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.of(url))
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
    """

    def __init__(self, lock: asyncio.Lock) -> None:
        self._lock = lock
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
            with Share.waits():
                await self._lock.acquire()
            if self._is_over:  # the block has ended while this task waited
                self._lock.release()
            else:
                self._has = True


class Space:
    """Limits the number of files on the pages that are made at the same time.

    A file takes 2 KB of memory until the response with its page is made. A page that
    waits for a server or for another page does not count.
    """

    def __init__(self) -> None:
        self._used = 0
        self._queue = asyncio.Lock()
        self._left = asyncio.Event()

    async def take(self, files: int) -> None:
        """Wait for space for a page, or until nothing happens for `_STUCK` seconds."""
        async with self._queue:
            while self._used and self._used + files > _SPACE:
                self._left.clear()
                try:
                    await asyncio.wait_for(self._left.wait(), _STUCK)
                except asyncio.TimeoutError:
                    break
            self._used += files

    def add(self, files: int) -> None:
        """Count the files of a page again, after it has waited."""
        self._used += files

    def give_back(self, files: int) -> None:
        """Make space for other pages."""
        self._used -= files
        self._left.set()


class Share:
    """The part of a `Space` for one page, which ends with the block.

    The page is read by other tasks, which know the share of their context.
    """

    def __init__(self, space: Space) -> None:
        self._space = space
        self._files = self._waiting = 0
        self._is_asked = self._is_over = False

    async def __aenter__(self) -> Share:
        """Make this the share of the context."""
        self._token = _SHARE.set(self)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Give the space back."""
        _SHARE.reset(self._token)
        self._is_asked = self._is_over = True
        if not self._waiting:
            self._space.give_back(self._files)

    @staticmethod
    async def take(files: int) -> None:
        """Wait until there is space for the page of the context, if it has a share."""
        share = _SHARE.get()
        if share is None or share._is_asked:  # further pages are read for this one
            return
        share._is_asked = True
        await share._space.take(files)
        share._files = files
        if share._waiting or share._is_over:  # the block may have ended meanwhile
            share._space.give_back(files)

    @staticmethod
    @contextmanager
    def waits() -> Iterator[None]:
        """Give the space of the context back while its page waits in the block."""
        share = _SHARE.get()
        if share is None:
            yield
            return
        share._waiting += 1
        if share._waiting == 1 and not share._is_over:
            share._space.give_back(share._files)
        try:
            yield
        finally:
            share._waiting -= 1
            if not (share._waiting or share._is_over):
                share._space.add(share._files)


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
