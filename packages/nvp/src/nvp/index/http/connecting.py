"""Connections: certificates, proxies as pip finds them, and addresses."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
import ssl
import time
from collections.abc import Iterable
from enum import IntEnum
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass  # noqa: TID251  # no connection

import httpcore
import httpx

from nvidia_variant_provider.errors import redacted

from .urls import Settings, UpstreamError

_PAGES = 64
"""Connections for what is read as a whole, such as pages."""

_IMPATIENT = 3.0
"""Seconds for one of several addresses of a server, before the next one is tried."""

_EMBEDDING = (0x0064FF9B << 64, 0, 0xFFFF, 0xFFFF << 16)
"""The first 96 bits of addresses with an IPv4 address at their end: ``64:ff9b::/96``
(RFC 6052), ``::/96`` and ``::ffff:0:0/96`` (RFC 4291), ``::ffff:0:0:0/96`` (RFC 2765).
"""

_UNICAST = ipaddress.IPv6Network("2000::/3")
"""All other addresses of IPv6 are for local networks, or for nothing yet."""

_CLOUD = ipaddress.IPv4Address("168.63.129.16")
"""Global, but Azure's own on each of its machines."""

_RESOLVED = 60.0
"""Seconds for which the addresses of a name stay the same."""


class Nearness(IntEnum):
    """Where a server is, the nearest first."""

    MACHINE = 0
    """This machine, and addresses of the link, where clouds have their metadata."""

    NETWORK = 1
    """A private network (RFC 1918, RFC 4193) or another one that is not global."""

    ELSEWHERE = 2


class NearnessFinder:
    """Finds out how near servers are, and at which addresses these are.

    A page from elsewhere must not make this program send requests to servers that only
    this machine, or its network, can reach. So connections are made to the addresses
    that were looked at, and a server that was near once stays near.
    """

    def __init__(self) -> None:
        self._known: dict[str, Nearness] = {}
        self._addresses: dict[str, tuple[float, tuple[str, ...]]] = {}

    async def find(self, url: str) -> Nearness:
        """Return how near the server of ``url`` is.

        A name counts as the nearest of its addresses. One that cannot be resolved
        here, as where a proxy resolves all names, is elsewhere.
        """
        host = _connected_host(url)
        if f".{host.rstrip('.')}".endswith(".localhost"):  # RFC 6761, 6.3
            return Nearness.MACHINE
        try:
            addresses = await self._resolve(host)
        except (OSError, UnicodeError):
            addresses = ()
        near = min(map(_of_address, addresses), default=Nearness.ELSEWHERE)
        self._known[host] = min(near, self._known.get(host, near))
        return self._known[host]

    async def addresses_of(self, host: str) -> tuple[str, ...]:
        """Return the addresses by which `find` has found a server to be near or far.

        :raises OSError: there are none, or by now there is one that is nearer.
        :raises UnicodeError: it is not the name of a host.
        """
        addresses = await self._resolve(host)
        known = self._known.get(host)
        near = min(map(_of_address, addresses), default=Nearness.ELSEWHERE)
        self._known[host] = near if known is None else min(near, known)
        if known is not None and near < known:
            raise OSError(f"{host} has moved to an address that is nearer")
        return addresses

    async def _resolve(self, host: str) -> tuple[str, ...]:
        """Return the addresses of a host; for a minute, these are the same ones."""
        if _is_address(host):
            return (host,)
        since, addresses = self._addresses.get(host, (0.0, ()))
        if not addresses or time.monotonic() - since > _RESOLVED:
            # This reads short forms of addresses too, such as 127.1.
            entries = await asyncio.get_running_loop().getaddrinfo(
                host, None, type=socket.SOCK_STREAM
            )
            addresses = tuple(dict.fromkeys(str(entry[4][0]) for entry in entries))
            self._addresses[host] = time.monotonic(), addresses
        return addresses

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


def _connected_host(url: str) -> str:
    """Return the name that a connection to a URL resolves.

    Python makes ``ss`` of a German letter (RFC 3490), and httpx makes another name of
    it (RFC 5891), with addresses of its own.
    """
    try:
        return httpx.URL(url).raw_host.decode("ascii")
    except (httpx.InvalidURL, ValueError):
        return urlsplit(url).hostname or ""  # Nothing is read at such a URL.


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _of_address(text: str) -> Nearness:
    address = ipaddress.ip_address(text)
    if address.is_loopback or address.is_unspecified or address.is_link_local:
        return Nearness.MACHINE
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.sixtofour
        if int(address) >> 32 in _EMBEDDING:
            inner = ipaddress.IPv4Address(int(address) % 2**32)
        if inner is not None:  # A gateway, or the system, connects to that address.
            return _of_address(str(inner))
        is_far = address.is_global and address in _UNICAST
    else:
        is_far = address.is_global
    if address == _CLOUD:
        return Nearness.MACHINE
    return Nearness.ELSEWHERE if is_far else Nearness.NETWORK


def make_connections(
    settings: Settings,
    tls: ssl.SSLContext,
    proxy: str | None,
    url: str,
    finder: NearnessFinder,
    *,
    streams: bool,
) -> httpx.AsyncClient:
    """Make the connections of one kind, such as those without a proxy.

    :param url: what is to be read, for an error.
    :param finder: has checked the servers that pages lead to.
    :param streams: they are for what is passed on as it arrives.
    :raises UpstreamError: ``proxy`` cannot be the URL of a proxy.
    """
    # Installers ask for many pages at once. There are as many streams as connections of
    # clients, whose number the server limits.
    limits = httpx.Limits(max_connections=None if streams else _PAGES)
    transport = None
    if proxy is None and not settings.trusts_pages:
        transport = httpx.AsyncHTTPTransport(verify=tls, trust_env=False, limits=limits)
        # httpx has no option for the backend of its pool. Where a proxy resolves names,
        # the connection is one to that proxy.
        transport._pool._network_backend = _CheckedBackend(finder)
    return httpx.AsyncClient(
        transport=transport,
        verify=tls,
        proxy=read_proxy(proxy, url),
        trust_env=False,
        # No pool timeout: waiting for a free connection is not the server being slow.
        timeout=httpx.Timeout(settings.timeout, pool=None),
        limits=limits,
    )


def make_tls_context(settings: Settings, *, verify: bool) -> ssl.SSLContext:
    """Return the context for servers that are verified, or that are not."""
    if settings.cert:
        context = (
            ssl.create_default_context(capath=settings.cert)
            if os.path.isdir(settings.cert)
            else ssl.create_default_context(cafile=settings.cert)
        )
    else:
        import truststore

        # pip uses the certificates of the system since version 24.2.
        context = truststore.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if settings.client_cert:
        context.load_cert_chain(settings.client_cert)
    return context


class _CheckedBackend(httpcore.AsyncNetworkBackend):
    """Connects to the addresses by which a server was found to be near or far.

    A name could have other addresses when it is resolved again (DNS rebinding).
    """

    def __init__(self, finder: NearnessFinder) -> None:
        self._finder = finder
        self._inner = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect to the first address that accepts it.

        :raises ConnectError: none does, or the server has moved nearer.
        """
        try:
            addresses = await self._finder.addresses_of(host)
        except (OSError, UnicodeError) as failure:
            raise httpcore.ConnectError(str(failure)) from failure
        error: Exception = httpcore.ConnectError("the name has no address")
        for number, address in enumerate(addresses, start=1):
            is_last = number == len(addresses)
            patience = timeout if is_last else min(timeout or _IMPATIENT, _IMPATIENT)
            try:
                return await self._inner.connect_tcp(
                    address, port, patience, local_address, socket_options
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as failure:
                error = failure
        raise error

    async def sleep(self, seconds: float) -> None:
        """Wait, as the pool does between attempts."""
        await self._inner.sleep(seconds)


# The clients of httpx are told their proxy: a variable that is wrong would otherwise
# end requests that do not go through that proxy, and no error would name it.
CHECK_PROXY = "check the proxy: https_proxy, http_proxy, ALL_PROXY or pip's --proxy"


def find_proxy(settings: Settings, url: str) -> str | None:
    """Return the URL of the proxy for a request, or ``None`` without one."""
    proxy = settings.proxy
    if proxy is None and settings.trust_env:
        parts = urlsplit(url)
        known = getproxies()
        proxy = known.get(parts.scheme) or known.get("all")
        if proxy and proxy_bypass(parts.netloc.rpartition("@")[2]):
            return None
    return f"http://{proxy}" if proxy and "://" not in proxy else proxy or None


def read_proxy(proxy: str | None, url: str) -> httpx.Proxy | None:
    """Return what httpx connects by.

    :raises UpstreamError: it cannot be the URL of a proxy.
    """
    if proxy is None:
        return None
    try:
        made = httpx.Proxy(proxy)
        is_valid = bool(made.url.host) and (made.url.port or 80) < 65536
    except (ValueError, httpx.InvalidURL):
        is_valid = False
    if not is_valid:
        message = f"{redacted(proxy)} is not the URL of a proxy"
        raise UpstreamError(message, url, hint=CHECK_PROXY)
    if made.url.scheme.startswith("socks") and find_spec("socksio") is None:
        message = f"the proxy {redacted(proxy)} speaks SOCKS, which needs a package"
        raise UpstreamError(message, url, hint="pip install 'httpx[socks]'")
    return made


def is_of_proxy(error: httpx.HTTPError) -> bool:
    """Return whether an error is that of the proxy, to which alone httpx connects.

    TLS and a response that does not end are those of the server behind it.
    """
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__context__
    return cause is None and not isinstance(error, httpx.ReadTimeout)
