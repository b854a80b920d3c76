"""Running an ASGI application in a thread, on a socket of this machine."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import urlsplit

import uvicorn

from nvidia_variant_provider.errors import InputError, UsageError

from ..threads import LoopThread
from .connections import (
    ACCEPTED_AT_ONCE,
    BoundedProtocol,
    Crowd,
    most_connections,
)

if TYPE_CHECKING:
    from starlette.types import ASGIApp

__all__ = ["Server", "reachable_url"]

logger = logging.getLogger(__name__)

_BACKLOG = 1024
"""Connections that may wait: installers open dozens at once, and retry slowly."""

_THREADS = 64
"""Threads for work that waits or computes. Wheels that are read from a slow index wait
in threads, and pages must not wait for them."""

T = TypeVar("T")

_STOP = 2
"""Seconds in which responses may end after the server was stopped."""


def reachable_url(url: str) -> str:
    """Return ``url`` as other machines can use it: 0.0.0.0 is not an address there."""
    parts = urlsplit(url)
    if parts.hostname not in ("0.0.0.0", "::"):  # noqa: S104  # a comparison
        return url
    return url.replace(parts.netloc, f"{socket.gethostname()}:{parts.port}", 1)


class _Reports:
    """Logs what the event loop reports: each message once, without a traceback.

    A loop that cannot take connections would otherwise write one traceback for each.
    """

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def __call__(
        self, loop: asyncio.AbstractEventLoop, context: Mapping[str, Any]
    ) -> None:
        """Log a report, which asyncio describes by ``context``."""
        error = context.get("exception")
        message = str(context.get("message"))
        # Tasks that the end of the server breaks off fail, and nobody waits for them.
        if message in self._logged or loop.is_closed() or "shutdown" in message:
            logger.debug("%s: %r", message, error)
            return
        self._logged.add(message)
        logger.warning("%s: %r; it will not be reported again", message, error)


class _Uvicorn(uvicorn.Server):
    """Stops at once when it is told to; the base class looks ten times a second."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start serving, and let as many connections wait as installers open."""
        await super().startup(sockets)
        for listening in sockets or ():
            listening.listen(_BACKLOG)

    async def main_loop(self) -> None:
        """Wait until the server is stopped."""
        await self._stopped.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop serving; the base class waits at least a tenth of a second."""
        if not self.force_exit:
            await super().shutdown(sockets)
            return
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()

    def stop(self, *, patient: bool) -> None:
        """Stop the server, from any thread; ``patient`` lets responses end."""
        self.should_exit = True
        self.force_exit = not patient
        with suppress(RuntimeError):  # The loop has ended.
            self._loop.call_soon_threadsafe(self._stopped.set)


class Server:
    """A socket, and a thread that serves an application there.

    :param port: 0 for any free port.
    :raises InputError: the address cannot be used.
    """

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self._socket = _bind(host, port)
        self._thread: LoopThread | None = None
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self._socket.getsockname()[1]}"

    @contextmanager
    def serve(
        self, app: ASGIApp, close: Callable[[], Awaitable[None]], *, patient: bool
    ) -> Iterator[None]:
        """Serve ``app`` while the block lasts.

        :param close: awaited after the last request.
        :param patient: responses that are under way at the end get some time more.
        """
        config = uvicorn.Config(
            app,
            access_log=False,
            # The application reports its errors itself.
            log_level="critical",
            lifespan="off",
            # The event loop takes as many connections at once as may wait, so that
            # more may wait only from the time on when it has been told how many.
            backlog=ACCEPTED_AT_ONCE,
            http=cast(
                "type[asyncio.Protocol]",
                partial(BoundedProtocol, crowd=Crowd(most_connections())),
            ),
            server_header=False,
            ws="none",
            timeout_graceful_shutdown=_STOP,
            date_header=False,
        )
        started: Future[_Uvicorn] = Future()

        async def work() -> None:
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(_Reports())
            loop.set_default_executor(ThreadPoolExecutor(_THREADS))
            server = _Uvicorn(config)
            started.set_result(server)
            await server.serve(sockets=[self._socket])
            await close()

        self._thread = LoopThread()
        served = self._thread.submit(work())
        server = started.result()
        try:
            yield
        finally:
            server.stop(patient=patient)
            wait([served], _STOP + 1)
            self._thread.close()
            self._socket.close()

    def close(self) -> None:
        """Give the address up; for a server that is not to serve after all."""
        self._socket.close()

    def call_soon(self, work: Callable[[str], object], argument: str) -> None:
        """Let the thread that serves call ``work``."""
        if self._thread is None:
            raise RuntimeError("not serving")
        self._thread.loop.call_soon_threadsafe(work, argument)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of ``work``, which runs in the thread that serves."""
        if self._thread is None:
            raise RuntimeError("not serving")
        return self._thread.call(work)


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        if port and hasattr(socket, "SO_REUSEADDR"):
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        bound.listen(_BACKLOG)
    except OverflowError:
        bound.close()
        message = f"{port} is not a port number"
        raise UsageError(message, hint="give 0 to 65535") from None
    except OSError as error:
        bound.close()
        reason = error.strerror or str(error)
        message = f"cannot listen on {host} port {port}: {reason}"
        known = isinstance(error, socket.gaierror)
        hint = "check --host" if known else "choose another --port"
        raise InputError(message, hint=hint) from None
    bound.set_inheritable(True)
    logger.info("listening on %s port %d", host, bound.getsockname()[1])
    return bound
