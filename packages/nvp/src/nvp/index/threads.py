"""Event loops in threads of their own, for callers that have none."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

_NAME = "nvidia-variant-provider index"

_PATIENCE = 3.0
"""Seconds in which a thread should end. A keyring or the look-up of a name may take
longer, and cannot be cancelled."""


class LoopThread:
    """A thread that runs an event loop until it is closed.

    The portals of anyio do the same, but wait without a limit when they are closed: a
    keyring that does not respond would keep Ctrl-C from ending the program.
    """

    def __init__(self) -> None:
        started: Future[asyncio.AbstractEventLoop] = Future()

        async def work() -> None:
            self._closed = asyncio.Event()
            started.set_result(asyncio.get_running_loop())
            await self._closed.wait()

        # A daemon: a request that hangs does not keep the process alive.
        self._thread = threading.Thread(
            target=asyncio.run, args=[work()], name=_NAME, daemon=True
        )
        self._thread.start()
        self.loop = started.result()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start ``work``, and return what its result will be in."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of ``work``."""
        return self.submit(work).result()

    def close(self, last: Coroutine[Any, Any, object] | None = None) -> None:
        """Cancel all work and end the thread, or leave it alone if it does not end.

        :param last: what is still done, such as closing connections.
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
    """Return whether such a thread runs, although the verb has ended."""
    return any(thread.name == _NAME for thread in threading.enumerate())
