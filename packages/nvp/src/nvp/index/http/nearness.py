"""How near a server is: on this machine, in a private network, or elsewhere.

A page from elsewhere must not make this program send requests to servers that only
this machine, or its network, can reach.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from enum import IntEnum
from urllib.parse import urlsplit

__all__ = ["Nearness", "NearnessFinder"]


class Nearness(IntEnum):
    """Where a server is, the nearest first."""

    MACHINE = 0
    """This machine, and addresses of the link, where clouds have their metadata."""

    NETWORK = 1
    """A private network (RFC 1918, RFC 4193) or another one that is not global."""

    ELSEWHERE = 2


class NearnessFinder:
    """Finds out how near servers are, and remembers it."""

    def __init__(self) -> None:
        self._known: dict[str, Nearness] = {}

    async def find(self, url: str) -> Nearness:
        """Return how near the server of ``url`` is.

        A name counts as the nearest of its addresses. One that cannot be resolved
        here, as where a proxy resolves all names, is elsewhere.
        """
        host = urlsplit(url).hostname or ""
        if host not in self._known:
            self._known[host] = await _find(host)
        return self._known[host]

    async def may_lead(self, start: str, end: str) -> bool:
        """Return whether a page or a redirect at ``start`` may lead to ``end``.

        It may not lead to a nearer place. A name in a private network is an exception,
        as a company's own mirror has one: with HTTPS, a server there receives nothing
        unless it has a certificate for that name.
        """
        near = await self.find(end)
        if near is Nearness.ELSEWHERE or near >= await self.find(start):
            return True
        parts = urlsplit(end)
        named = not _is_address(parts.hostname or "")
        return near is Nearness.NETWORK and named and parts.scheme == "https"


async def _find(host: str) -> Nearness:
    if _is_address(host):
        return _of_address(host)
    if host == "localhost" or host.endswith(".localhost"):  # RFC 6761, section 6.3
        return Nearness.MACHINE
    try:
        # This reads short forms of addresses too, such as 127.1.
        entries = await asyncio.get_running_loop().getaddrinfo(
            host, None, type=socket.SOCK_STREAM
        )
    except (OSError, UnicodeError):
        return Nearness.ELSEWHERE
    addresses = [str(entry[4][0]) for entry in entries]
    return min(map(_of_address, addresses), default=Nearness.ELSEWHERE)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _of_address(text: str) -> Nearness:
    address = ipaddress.ip_address(text)
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if address.is_loopback or address.is_unspecified or address.is_link_local:
        return Nearness.MACHINE
    return Nearness.ELSEWHERE if address.is_global else Nearness.NETWORK
