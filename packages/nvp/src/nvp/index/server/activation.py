"""Taking over a listening socket: the protocol of systemd's ``sd_listen_fds(3)``."""

from __future__ import annotations

import logging
import socket
import sys
from collections.abc import Mapping

from nvidia_variant_provider.errors import InputError, shown

__all__ = ["take_socket", "without_activation"]

logger = logging.getLogger(__name__)

_FIRST = 3
"""The first descriptor that is handed over (``SD_LISTEN_FDS_START``)."""

_VARIABLES = ("LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "LISTEN_PIDFDID")


def without_activation(environ: Mapping[str, str]) -> dict[str, str]:
    """Return ``environ`` for programs that must not take the socket themselves."""
    return {name: text for name, text in environ.items() if name not in _VARIABLES}


def take_socket(environ: Mapping[str, str], process: int) -> socket.socket | None:
    """Return the socket that was handed over to this process, if there is one.

    :param process: the number of this process. ``LISTEN_PID`` of another process means
        that the variables were inherited and are for that process, so that they do not
        count here (``sd_listen_fds``).
    :raises InputError: the variables are malformed, or the descriptor is not a TCP
        socket that listens.
    """
    if sys.platform == "win32" or not environ.get("LISTEN_FDS"):
        return None
    count = _number(environ, "LISTEN_FDS")
    if _number(environ, "LISTEN_PID") != process:
        logger.info("LISTEN_PID is that of another process: LISTEN_FDS does not count")
        return None
    if count == 0:
        return None
    if count != 1:
        message = f"{count} sockets were handed over, but one can be used"
        raise InputError(message, path="LISTEN_FDS", hint="keep one ListenStream=")
    try:
        taken = socket.socket(fileno=_FIRST)
    except OSError:
        raise _unusable("is not a socket") from None
    if taken.family not in (socket.AF_INET, socket.AF_INET6):
        taken.detach()
        raise _unusable("is not a TCP socket")
    if not _listens(taken):
        taken.detach()
        raise _unusable("is not a socket that listens")
    # Programs that this process runs, such as pip, must not keep the socket open.
    taken.set_inheritable(False)
    logger.info("took over a socket that listens on %s", taken.getsockname())
    return taken


def _listens(taken: socket.socket) -> bool:
    try:
        return taken.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1
    except OSError:
        return False


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name, "")
    if not (text.isascii() and text.isdigit()):
        raise InputError(f"{shown(text)} is not a number", path=name, hint="unset it")
    return int(text)


def _unusable(why: str) -> InputError:
    return InputError(
        f"descriptor {_FIRST} {why}",
        path="LISTEN_FDS",
        hint="use ListenStream= with an address and a port, and Accept=no",
    )
