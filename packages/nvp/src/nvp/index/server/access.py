"""Who uses the local index, and what they can reach without it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ANY_HOST", "LOOPBACK_NAMES", "Access"]

LOOPBACK_NAMES = (
    "127.0.0.1",
    "localhost",
    "[::1]",
    # The names by which containers call the machine that they run on.
    "host.docker.internal",
    "host.containers.internal",
)
"""The names by which clients may call a server on the loopback interface."""

ANY_HOST = ("*",)


@dataclass(frozen=True, kw_only=True, slots=True)
class Access:
    """Who uses the local index, and what they can reach without it.

    :param direct: installers can download files that need no credentials themselves.
    :param local: the installer is a program of this user: it may open the files of
        this machine, and it has ended when the server stops.
    :param asks: the installer asks its user for credentials that are missing.
    :param secret: the URLs have a secret part, which other programs cannot guess.
    :param hosts: the names by which the server may be called.
    """

    direct: bool = True
    local: bool = False
    asks: bool = False
    secret: bool = True
    hosts: tuple[str, ...] = LOOPBACK_NAMES
