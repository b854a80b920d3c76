"""Who may call the local index of ``pip``: programs of this user, and of root.

The secret part of its URLs is on the command line of each pip that another pip starts
for a build, where every user of this machine can read it. So it is not enough:

- Linux says which user has made a connection, and connections of others are closed.
- Where the system does not say that, requests have to bring a token. pip gets it in an
  environment variable, which others cannot read and which builds inherit.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import re
import secrets
import socket
import struct
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ["OwnUserSocket", "TokenCheck", "find_user", "system_tells", "with_token"]

logger = logging.getLogger(__name__)

_TABLES = {"/proc/net/tcp": False, "/proc/net/tcp6": True}
"""The connections of this network namespace, and whether their addresses are IPv6.

An IPv6 socket may call over IPv4, and is in the second table then.
"""

_USER, _INODE = 6, 8
"""Columns of a row, counted from the caller's address."""

_ATTEMPTS = 3
"""How often a connection is looked up: Linux may skip rows while others change."""

_NOBODY = 65534
"""Stands for all users that a user namespace does not have (``overflowuid``)."""

_USER_DATA = "PIP_USER_AGENT_USER_DATA"
"""The variable whose text pip sends in its ``User-Agent``, also with ``--isolated``."""

_Address = tuple[Any, ...]


def system_tells() -> bool:
    """Return whether the system says which user has made a connection.

    This makes a connection and asks for its user: ``/proc`` may be missing, belong to
    another network namespace or be closed to this program.
    """
    if sys.platform != "linux" or _own_user() == _NOBODY:
        return False
    with (
        suppress(OSError),
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as client,
    ):
        user = find_user(client.getsockname(), client.getpeername())
        return user is not None and user == _own_user()
    return False


def _own_user() -> int | None:
    if sys.platform == "win32":
        return None
    return os.geteuid()


def find_user(caller: _Address, called: _Address) -> int | None:
    """Return the number of the user who has made a connection, on Linux.

    :param caller: address and port of the side that has connected.
    :param called: address and port of the side that listens.
    :returns: ``None`` if its program has closed it, or is not on this machine.
    """
    for _ in range(_ATTEMPTS):
        for table, wide in _TABLES.items():
            row = _row_start(caller, called, wide=wide)
            text = _read(table)
            at = -1 if row is None else text.find(row)
            if at >= 0:
                columns = text[at : text.index("\n", at)].split()
                # Linux gives the user 0 to a connection without a socket, which its
                # program has closed.
                return int(columns[_USER]) if columns[_INODE] != "0" else None
    return None


def _row_start(caller: _Address, called: _Address, *, wide: bool) -> str | None:
    """Return the addresses in a row; ``None`` if the table has no such addresses."""
    ends = []
    for host, port in (caller[:2], called[:2]):
        ip = ipaddress.ip_address(host)
        if wide and ip.version == 4:
            ip = ipaddress.IPv6Address(f"::ffff:{ip}")
        elif ip.version == 6 and not wide:
            return None
        # The tables have an address as numbers of 32 bits in the host's own order.
        words = struct.unpack(f"={len(ip.packed) // 4}I", ip.packed)
        ends.append(f"{''.join(f'{word:08X}' for word in words)}:{port:04X}")
    return f" {ends[0]} {ends[1]} "


def _read(table: str) -> str:
    try:
        with open(table, encoding="ascii") as file:
            return file.read()
    except OSError:
        return ""


class OwnUserSocket(socket.socket):
    """A listening socket that takes connections of this user and of root alone."""

    on_stranger: Callable[[str], None] | None = None
    """Called with a sentence for the first connection that is closed."""

    def accept(self) -> tuple[socket.socket, _Address]:
        """Take a connection.

        :raises ConnectionAbortedError: it was another user's, and is closed. That is
            the error for a connection that has ended before it was taken, after which
            programs take the next one.
        """
        connection, address = super().accept()
        user = None
        with suppress(OSError):
            user = find_user(address, connection.getsockname())
        if user is not None and user in (0, _own_user()):
            return connection, address
        connection.close()
        logger.info("closed a connection of user %s", user)
        if user is not None and self.on_stranger is not None:
            self.on_stranger(
                f"the user with number {user} tried to read your indexes through this "
                "program, and was refused"
            )
            self.on_stranger = None
        raise ConnectionAbortedError


class TokenCheck:
    """Refuses requests whose ``User-Agent`` does not have the token."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        app = self._app
        if scope["type"] == "http":
            agent = Headers(scope=scope).get("user-agent", "")
            words = re.split(r"[^\w-]+", agent, flags=re.ASCII)
            if not any(secrets.compare_digest(word, self._token) for word in words):
                app = PlainTextResponse("Not the user's own pip", status_code=403)
        await app(scope, receive, send)


def with_token(environ: Mapping[str, str], token: str) -> dict[str, str]:
    """Return the variable by which pip brings ``token``, besides the user's own text.

    Every pip from 19.1 on reads it, and so do those that it starts.
    """
    own = environ.get(_USER_DATA)
    return {_USER_DATA: f"{own} {token}" if own else token}
