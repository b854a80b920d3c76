"""Run an ASGI application in a thread, on a local socket.

uvicorn limits only the time of idle connections, and its ``limit_concurrency`` rejects
new connections, so incomplete requests would lock other clients out. This server limits
slow senders and readers, and closes the connection that has waited longest to make room
for a new one.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import struct
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import urlsplit

import httpcore
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from nvidia_variant_provider.errors import InputError, UsageError

from ..http.replies import Framing
from ..http.threads import LoopThread, Reports
from ..http.urls import is_loopback

if TYPE_CHECKING:
    from starlette.types import ASGIApp

T = TypeVar("T")

logger = logging.getLogger(__name__)

_BACKLOG = 1024
"""The maximum number of waiting connections; installers open dozens at once."""

_THREADS = 64
"""The number of worker threads. Wheels of a slow index wait in some; pages must not."""

_STOP = 2
"""Seconds for responses to end after the server is stopped."""

_ACCEPTED_AT_ONCE = 16
"""The number of connections that the event loop accepts before counting them."""

_HEAD = 10.0
"""The time limit for the head of a request in seconds."""

_WRITE, _LEAST = 30.0, 64 * 1024
"""The time limit in seconds for a client to read as many bytes of a response."""

_STALLED = 1.0
"""Seconds without reading after which a connection may be closed for a new one."""

_ALIVE = 1.0
"""Seconds between interim responses. Without them, pip treats a slow index as dead and
uses the next one."""

_NO_WAITING = struct.pack("hh" if sys.platform == "win32" else "ii", 1, 0)
"""``struct linger``: close a connection immediately with a reset."""

_MOST, _RESERVED = 512, 128
"""The maximum number of connections, if the system allows enough descriptors, and the
descriptors reserved for indexes and for Python itself."""


def reachable_url(url: str) -> str:
    """Return ``url`` for other machines, which cannot use the address 0.0.0.0."""
    parts = urlsplit(url)
    if parts.hostname not in ("0.0.0.0", "::"):  # noqa: S104  # a comparison
        return url
    return url.replace(parts.netloc, f"{socket.gethostname()}:{parts.port}", 1)


class _Uvicorn(uvicorn.Server):
    """Stops immediately; the base class polls ten times a second."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start serving with a backlog large enough for installers."""
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
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._stopped.set)


class Server:
    """A socket, and a thread that serves an application on it.

    :param port: 0 for any free port.
    :raises InputError: the address cannot be used.
    """

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self._socket, *self._occupied = _bind(host, port)
        self._thread: LoopThread | None = None
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self._socket.getsockname()[1]}"

    @contextmanager
    def serve(
        self, app: ASGIApp, close: Callable[[], Awaitable[None]], *, patient: bool
    ) -> Iterator[None]:
        """Serve ``app`` while the block lasts.

        :param close: awaited after the last request.
        :param patient: whether responses in progress may end.
        """
        config = uvicorn.Config(
            app,
            access_log=False,
            # The application reports its errors itself.
            log_level="critical",
            lifespan="off",
            # Keep this low: the event loop accepts this many connections before it
            # counts them. `_Uvicorn.startup` raises the socket's own backlog later.
            backlog=_ACCEPTED_AT_ONCE,
            http=cast(
                "type[asyncio.Protocol]",
                partial(_BoundedProtocol, crowd=_Crowd(_most_connections())),
            ),
            server_header=False,
            ws="none",
            timeout_graceful_shutdown=_STOP,
            date_header=False,
        )
        started: Future[_Uvicorn] = Future()

        async def work() -> None:
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(Reports())
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
            self.close()

    def close(self) -> None:
        """Release the addresses of the server."""
        _close([self._socket, *self._occupied])

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` in the thread that serves, and return its result."""
        if self._thread is None:
            raise RuntimeError("not serving")
        return self._thread.call(work)


def _most_connections() -> int:
    """Return how many connections the file descriptors of this process allow.

    A stream needs two: one to the client, and one to the index.
    """
    if sys.platform == "win32":
        return _MOST
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _MOST
    return max(8, min(_MOST, (soft - _RESERVED) // 2))


class _Crowd:
    """All connections of a server.

    :param most: the maximum number of connections.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        # Only remote addresses have this limit: local programs share one address.
        self._most_of_client = max(8, most // 4)
        self._members: set[_BoundedProtocol] = set()

    def __len__(self) -> int:
        return len(self._members)

    def enter(self, newcomer: _BoundedProtocol) -> None:
        """Add a connection; if there are too many, close the longest waiting one."""
        self._members.add(newcomer)
        if len(self._members) > self._most:
            self._make_room(self._members, newcomer)
        elif not newcomer.host.startswith(("127.", "::1")):
            own = {one for one in self._members if one.host == newcomer.host}
            if len(own) > self._most_of_client:
                self._make_room(own, newcomer)

    def leave(self, member: _BoundedProtocol) -> None:
        """Remove a closed connection."""
        self._members.discard(member)

    def _make_room(
        self, members: set[_BoundedProtocol], newcomer: _BoundedProtocol
    ) -> None:
        """Close the connection that has waited longest for its client.

        Connections that wait for a request are closed before those whose response is
        not read. The new connection is closed last; it also waits, so there is always
        a connection to close.
        """
        waiting = (member for member in members if member.waits_for_client)
        victim = min(
            waiting,
            key=lambda member: (member is newcomer, member.is_writing, member.since),
        )
        logger.info("too many connections: closing one of %s", victim.host)
        self.leave(victim)
        victim.drop()


class _BoundedProtocol(H11Protocol):
    """A connection with limits for the requests, and for the time of each write.

    :param crowd: the connections of the server.
    """

    def __init__(self, *, crowd: _Crowd, **options: Any) -> None:
        super().__init__(**options)
        self._crowd = crowd
        self._framing = Framing(0)
        self._timer: asyncio.TimerHandle | None = None
        self._alive: asyncio.TimerHandle | None = None
        self.host = ""
        self.since = self.loop.time()
        self._left = 0

    @property
    def waits_for_client(self) -> bool:
        """Whether the client must send a request, or does not read its response."""
        if self.transport.is_closing():  # the connection is already being closed
            return False
        if self.is_writing:
            return self.loop.time() - self.since >= _STALLED
        return self._timer is not None or not self._is_responding()

    @property
    def is_writing(self) -> bool:
        """Whether the server waits for the client to read a response."""
        return self.flow.write_paused

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Add the connection to the crowd, and start the timeout for a request."""
        super().connection_made(transport)  # type: ignore[arg-type]
        self.host = self.client[0] if self.client else ""
        # Disable buffering, so the write limit applies to every byte.
        self.transport.set_write_buffer_limits(high=0)
        self._wait(_HEAD, self._close_late)
        self._crowd.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection from the crowd, and stop its timers."""
        self._crowd.leave(self)
        self._stop_waiting()
        if self._alive is not None:
            self._alive.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read a part of a request; start the timeout for the rest."""
        try:
            self._framing.follow(data)
        except httpcore.RemoteProtocolError as error:
            logger.info("%s: %s", self.host, error)
            self.drop()
            return
        super().data_received(data)
        if self.flow.write_paused:
            return
        if self._is_responding():
            self._stop_waiting()
            if self._alive is None:
                self._alive = self.loop.call_later(_ALIVE, self._keep_alive)
        elif self._timer is None:
            self._wait(_HEAD, self._close_late)

    def _keep_alive(self) -> None:
        """Send interim responses (RFC 9110, section 15.2) until the final one."""
        cycle: Any = self.cycle
        self._alive = None
        if not self._is_responding() or cycle.response_started:
            return
        if cycle.scope["http_version"] == "1.1" and not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._alive = self.loop.call_later(_ALIVE, self._keep_alive)

    def pause_writing(self) -> None:
        """Start the timeout for a client that does not read."""
        super().pause_writing()
        self._left = self.transport.get_write_buffer_size()
        self._wait(_WRITE, self._close_slow)

    def resume_writing(self) -> None:
        """Stop the timeout, because the client has read everything."""
        super().resume_writing()
        self._stop_waiting()

    def on_response_complete(self) -> None:
        """Record the start of the idle time."""
        self.since = self.loop.time()
        super().on_response_complete()

    def _is_responding(self) -> bool:
        cycle: Any = self.cycle  # there is no cycle before the first request
        return cycle is not None and not cycle.response_complete

    def _wait(self, seconds: float, close: Any) -> None:
        self._stop_waiting()
        self.since = self.loop.time()
        self._timer = self.loop.call_later(seconds, close)

    def _stop_waiting(self) -> None:
        self.since = self.loop.time()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close_late(self) -> None:
        logger.info("%s: no request within %g s", self.host, _HEAD)
        self.drop()

    def _close_slow(self) -> None:
        left = self.transport.get_write_buffer_size()
        if left <= self._left - _LEAST:
            self._left = left
            self._timer = self.loop.call_later(_WRITE, self._close_slow)
            return
        logger.info("%s: does not read its response", self.host)
        self.drop()

    def drop(self) -> None:
        """Close the connection immediately, and drop unread data."""
        connected = self.transport.get_extra_info("socket")
        if connected is not None:
            with suppress(OSError):
                connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_WAITING)
        self.transport.abort()


def _bind(host: str, port: int) -> list[socket.socket]:
    """Listen on an address, and occupy the others to which the host's name may lead.

    Otherwise another user could listen there, and send packages to installers.

    :returns: the socket that listens, and then those that do not.
    """
    sockets: list[socket.socket] = []
    try:
        sockets.append(_socket(host, is_only=host != "::"))
        if port and hasattr(socket, "SO_REUSEADDR"):
            sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sockets[0].bind((host, port))
        sockets[0].listen(_BACKLOG)
        own, used = sockets[0].getsockname()[:2]
        for address in _others(host, own):
            _occupy(address, used, sockets)
    except OverflowError:
        _close(sockets)
        message = f"{port} is not a port number"
        raise UsageError(message, hint="give 0 to 65535") from None
    except (OSError, TypeError) as error:  # TypeError: no name of a host
        _close(sockets)
        reason = getattr(error, "strerror", None) or str(error)
        message = f"cannot listen on {host} port {port}: {reason}"
        known = isinstance(error, socket.gaierror | TypeError)
        hint = "check --host" if known else "choose another --port"
        raise InputError(message, hint=hint) from None
    logger.info("listening on %s port %d", host, used)
    return sockets


def _socket(host: str, *, is_only: bool = True) -> socket.socket:
    """Return a socket for the family of an address.

    :param is_only: whether a socket for IPv6 leaves out the addresses of IPv4.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio disables delays (Nagle) only for sockets with this protocol.
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    if family == socket.AF_INET6:
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, is_only)
    return made


def _occupy(address: str, port: int, sockets: list[socket.socket]) -> None:
    """Add a socket that does not listen, unless this machine has no such address."""
    try:
        sockets.append(_socket(address))
        sockets[-1].bind((address, port))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise


def _others(host: str, own: str) -> list[str]:
    """Return the other addresses at which installers may look for ``host``."""
    if host == "0.0.0.0":  # noqa: S104  # shown as the name of this machine
        return ["::"]
    if host == own or ":" in host:
        return []
    entries = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    found = {str(entry[4][0]) for entry in entries}
    return sorted(found.union({"::1"} if is_loopback(host) else ()) - {own})


def _close(sockets: Iterable[socket.socket]) -> None:
    for each in sockets:
        each.close()
