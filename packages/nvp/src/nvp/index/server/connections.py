"""Connections of clients that send or read slowly, or that are many.

uvicorn has a time limit for idle connections only, and its ``limit_concurrency``
refuses newcomers, so that half-sent requests would lock everybody else out. Here the
connection that has waited the longest makes room for a new one.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
import sys
from contextlib import suppress
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["ACCEPTED_AT_ONCE", "BoundedProtocol", "Crowd", "most_connections"]

logger = logging.getLogger(__name__)

ACCEPTED_AT_ONCE = 16
"""Connections that the event loop takes before it counts them."""

_HEAD = 10.0
"""Seconds in which a client sends the head of a request."""

_WRITE = 30.0
"""Seconds in which a client reads `_LEAST` bytes, or all that there are."""

_LEAST = 64 * 1024

_NO_WAITING = struct.pack("hh" if sys.platform == "win32" else "ii", 1, 0)
"""``struct linger``: the system forgets a connection at once, and tells its client."""

_MOST = 512
"""Connections of all clients, where the system allows as many descriptors."""

_RESERVED = 128
"""Descriptors for pages and files of the indexes, and for what Python opens."""


def most_connections() -> int:
    """Return how many connections the descriptors of this process are enough for.

    A stream takes two: one to the client, and one to the index.
    """
    if sys.platform == "win32":
        return _MOST
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _MOST
    return max(8, min(_MOST, (soft - _RESERVED) // 2))


class Crowd:
    """All connections of a server.

    :param most: how many there may be.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        # One other machine takes at most a quarter of them. Programs of this machine
        # share one address.
        self._most_of_client = max(8, most // 4)
        self._members: set[BoundedProtocol] = set()

    def __len__(self) -> int:
        return len(self._members)

    def enter(self, newcomer: BoundedProtocol) -> None:
        """Add a connection, for which another one may have to be closed."""
        self._members.add(newcomer)
        if len(self._members) > self._most:
            self._make_room(self._members)
        elif not newcomer.host.startswith(("127.", "::1")):
            own = {one for one in self._members if one.host == newcomer.host}
            if len(own) > self._most_of_client:
                self._make_room(own)

    def leave(self, member: BoundedProtocol) -> None:
        """Forget a connection that is closed."""
        self._members.discard(member)

    def _make_room(self, members: set[BoundedProtocol]) -> None:
        """Close the connection that has waited longest for its client.

        One that waits for a request goes before one whose response is being read. The
        newcomer waits too, so that there is always one.
        """
        waiting = (member for member in members if member.waits_for_client)
        victim = min(waiting, key=lambda member: (member.is_writing, member.since))
        logger.info("too many connections: closing one of %s", victim.host)
        self.leave(victim)
        victim.drop()


class BoundedProtocol(H11Protocol):
    """A connection with time limits for the head of a request and for each write.

    :param crowd: the connections that this one is counted with.
    """

    def __init__(self, *, crowd: Crowd, **options: Any) -> None:
        super().__init__(**options)
        self._crowd = crowd
        self._timer: asyncio.TimerHandle | None = None
        self.host = ""
        self.since = self.loop.time()
        self._left = 0

    @property
    def waits_for_client(self) -> bool:
        """Whether the client has to send a request, or to read a response."""
        if self.transport.is_closing():  # What the client has not got is on its way.
            return False
        return self._timer is not None or not self._is_responding()

    @property
    def is_writing(self) -> bool:
        """Whether the client has to read more of a response."""
        return self.flow.write_paused

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the connection, and wait for the first request."""
        super().connection_made(transport)  # type: ignore[arg-type]
        self.host = self.client[0] if self.client else ""
        # The client waits for every byte, so the write limit has to see all of them.
        self.transport.set_write_buffer_limits(high=0)
        self._wait(_HEAD, self._close_late)
        self._crowd.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop counting it."""
        self._crowd.leave(self)
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read a part of a request."""
        super().data_received(data)
        if self.flow.write_paused:
            return
        if self._is_responding():
            self._stop_waiting()
        elif self._timer is None:
            self._wait(_HEAD, self._close_late)

    def pause_writing(self) -> None:
        """Wait until the client reads."""
        super().pause_writing()
        self._left = self.transport.get_write_buffer_size()
        self._wait(_WRITE, self._close_slow)

    def resume_writing(self) -> None:
        """Go on, since the client has read everything."""
        super().resume_writing()
        self._stop_waiting()

    def on_response_complete(self) -> None:
        """Note since when the connection is idle."""
        self.since = self.loop.time()
        super().on_response_complete()

    def _is_responding(self) -> bool:
        cycle: Any = self.cycle  # None before the first request
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
        """Close the connection now, without what the client has not read."""
        connected = self.transport.get_extra_info("socket")
        if connected is not None:
            with suppress(OSError):
                connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_WAITING)
        self.transport.abort()
