"""Running an ASGI application in a thread, on a socket of this machine."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import uvicorn

from ...errors import InputError, UsageError

if TYPE_CHECKING:
    from starlette.types import ASGIApp

__all__ = ["Server", "reachable_url"]

logger = logging.getLogger(__name__)

_BACKLOG = 1024
"""Connections that may wait: installers open dozens at once, and retry slowly."""

T = TypeVar("T")

_STOP = 2
"""Seconds in which responses may end after the server was stopped."""


def reachable_url(url: str) -> str:
    """Return ``url`` as other machines can use it: 0.0.0.0 is not an address there."""
    parts = urlsplit(url)
    if parts.hostname not in ("0.0.0.0", "::"):  # noqa: S104  # a comparison
        return url
    return url.replace(parts.netloc, f"{socket.gethostname()}:{parts.port}", 1)


class _Uvicorn(uvicorn.Server):
    """Stops at once when it is told to; the base class looks ten times a second."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()

    async def main_loop(self) -> None:
        """Wait until the server is stopped."""
        await self._stopped.wait()

    def stop(self, *, patient: bool) -> None:
        """Stop the server, from any thread; ``patient`` lets responses end."""
        self.should_exit = True
        self.force_exit = not patient
        self._loop.call_soon_threadsafe(self._stopped.set)


class Server:
    """A socket, and a thread that serves an application there.

    :param port: 0 for any free port.
    :raises InputError: the address cannot be used.
    """

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self._socket = _bind(host, port)
        self._loop: asyncio.AbstractEventLoop | None = None
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
            backlog=_BACKLOG,
            server_header=False,
            ws="none",
            timeout_graceful_shutdown=_STOP,
            date_header=False,
        )
        started: Future[_Uvicorn] = Future()

        async def work() -> None:
            self._loop = asyncio.get_running_loop()
            server = _Uvicorn(config)
            started.set_result(server)
            await server.serve(sockets=[self._socket])
            await close()

        thread = threading.Thread(target=asyncio.run, args=[work()], daemon=True)
        thread.start()
        server = started.result()
        try:
            yield
        finally:
            server.stop(patient=patient)
            thread.join(_STOP + 1)
            self._socket.close()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of ``work``, which runs in the thread that serves."""
        if self._loop is None:
            raise RuntimeError("not serving")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


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
