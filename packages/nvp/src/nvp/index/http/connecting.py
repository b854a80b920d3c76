"""Connections: certificates, pip's proxies, and addresses of servers."""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import os
import socket
import ssl
import struct
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from enum import IntEnum
from http.cookiejar import CookieJar, DefaultCookiePolicy
from importlib.util import find_spec
from itertools import islice
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass  # noqa: TID251  # no connection

import httpcore
import httpx

from .replies import CHECK_PROXY, LimitedStream, shown_proxy
from .threads import Turns, call_in_daemon
from .urls import Settings, UpstreamError

_IDLE = 96  # the number of connections above which idle ones are closed
_IMPATIENT = 3.0  # the seconds after which the next address of a server is tried

_HANDSHAKES, _IN_ALL = 2, 1000
"""The most handshakes with a server, and with all servers, at the same time: a server
may choose a group of 8192 bits, and then each takes 0.1 s."""

_EMBEDDING = (0x0064FF9B << 64, 0, 0xFFFF, 0xFFFF << 16)
"""The first 96 bits of addresses that end with an IPv4 address: ``64:ff9b::/96`` (RFC
6052), ``::/96``, ``::ffff:0:0/96`` (RFC 4291) and ``::ffff:0:0:0/96`` (RFC 2765)."""

_PROTOCOLS = ipaddress.IPv4Network("192.0.0.0/24")  # global for some Pythons
_EXAMPLES, _UNICAST = map(ipaddress.IPv6Network, ("3fff::/20", "2000::/3"))  # RFC 9637

_NEW_ROUTE, _GET_ROUTE = 24, 26  # messages of Linux

_CLOUD = {"168.63.129.16", "192.0.0.192", "100.100.100.200", "fd00:c1::a9fe:a9fe"}
_CLOUD |= {"fd00:ec2::23", "fd00:ec2::253", "fd00:ec2::254", "fd20:ce::254"}
"""Addresses that are local to each machine of Azure, Oracle, Alibaba, AWS and Google.
To Python, the first is global, and before Python 3.13 also the second."""

_RESOLVED, _NAMED, _HOSTS = 60.0, 5.0, 10_000
"""The seconds for which addresses are cached, and a page waits for them; the most names
in a cache."""

_LONGEST_HOST = 254  # with the dot at its end, no name of a server is longer (RFC 1035)
_ADDRESSES = 32  # the most addresses of a name; a content network has about 16

_LOOKUPS = 128  # at a time for the pages of an index; only the system ends a lookup


class Nearness(IntEnum):
    """The location of a server, from local to public."""

    MACHINE = 0
    """This machine, and link-local addresses, where clouds serve metadata."""
    OWN = 1
    """Another address of this machine. A firewall may protect it, and its loopback."""
    NETWORK = 2
    """A private network (RFC 1918, RFC 4193), or another address that is not global."""
    ELSEWHERE = 3


class NearnessFinder:
    """Finds the location and the addresses of the servers that one index names.

    A public page must not make this program send requests to servers that only this
    machine, or its network, can reach. Connections therefore use only checked
    addresses, and refuse a host that has moved to a more local address.

    :param connected: receives the location of each server that was connected to. Only
        these count for other indexes, too.
    """

    def __init__(self, connected: dict[str, Nearness] | None = None) -> None:
        self._connected = {} if connected is None else connected
        # The most public location that was accepted for each host. Later addresses of
        # the host, and servers to which its pages lead, must not be more local.
        self._accepted: dict[str, Nearness] = {}
        self._addresses: dict[str, tuple[float, Mapping[str, Nearness]]] = {}
        self._lookups = threading.BoundedSemaphore(_LOOKUPS)

    async def find(self, url: str) -> Nearness:
        """Return the location of the server of ``url``.

        Of several addresses, only the most public ones count, as in `addresses_of`: an
        index could give its name a local one too. A name that cannot be resolved now
        has its last location, or is public, because a proxy may resolve it.
        """
        host = connected_host(url)
        if f".{host.rstrip('.')}".endswith(".localhost"):  # RFC 6761, section 6.3
            return Nearness.MACHINE
        since, addresses = self._addresses.get(host, (-_RESOLVED, {}))
        if time.monotonic() - since >= _RESOLVED:
            try:
                looking = self.resolve(host, self._lookups)
                addresses = await asyncio.wait_for(looking, _NAMED)
            except (OSError, UnicodeError, asyncio.TimeoutError):
                self._addresses[host] = time.monotonic(), {}
        unknown = self._accepted.get(host, Nearness.ELSEWHERE)
        return max(addresses.values(), default=unknown)

    async def addresses_of(self, host: str) -> tuple[str, ...]:
        """Return the most public addresses of a host.

        :raises OSError: the host has no address, or only more local ones than before.
        :raises UnicodeError: the name is invalid.
        """
        addresses = await self.resolve(host)
        near = self._accept(host, max(addresses.values()))
        public = tuple(item for item, where in addresses.items() if where >= near)
        if not public:
            raise OSError(f"{host} has moved to an address that is nearer")
        return public

    def note(self, host: str, address: str) -> None:
        """Record the location of a server that was connected to, for all indexes."""
        if len(self._connected) < _HOSTS:
            near = _of_address(address)
            self._connected[host] = max(near, self._connected.get(host, near))

    def _accept(self, host: str, near: Nearness) -> Nearness:
        """Record the `Nearness` of a host; return the most public one so far."""
        if len(self._accepted) >= _HOSTS and host not in self._accepted:
            return Nearness.ELSEWHERE  # a host without a record must not move nearer
        near = max(near, self._connected.get(host, near))
        self._accepted[host] = max(near, self._accepted.get(host, near))
        return self._accepted[host]

    async def resolve(
        self, host: str, most: threading.Semaphore | None = None
    ) -> Mapping[str, Nearness]:
        """Return the addresses of a host, which are cached for a minute.

        :param most: limits the lookups; see `call_in_daemon`.
        :raises OSError, UnicodeError: see `addresses_of`.
        """
        if _is_address(host):
            return {host: _of_address(host)}
        if len(self._addresses) > _HOSTS:  # pages may name other hosts each time
            self._addresses.clear()
        since, addresses = self._addresses.get(host, (0.0, {}))
        if not addresses or time.monotonic() - since > _RESOLVED:
            addresses = await call_in_daemon(_look_up, host, most)
            self._addresses[host] = time.monotonic(), addresses
        return addresses

    async def find_most(self, url: str) -> Nearness:
        """Return the most public location so far of the server of ``url``."""
        host = connected_host(url)
        if self._accepted.get(host) is Nearness.ELSEWHERE:
            return Nearness.ELSEWHERE
        return self._accept(host, await self.find(url))

    async def may_lead(self, start: str, end: str, near: int = 0) -> bool:
        """Return whether a page or a redirect at ``start`` may lead to ``end``.

        ``end`` must not be more local than ``start``. HTTPS URLs with a host name in a
        private network are an exception, for mirrors inside companies: a server without
        a certificate for that name receives no request.

        :param near: the location of ``start`` that another process has found.
        """
        parts = urlsplit(end)
        host = parts.hostname or ""
        if len(host) > _LONGEST_HOST:
            return False
        there = await self.find(end)
        may = there >= max(await self.find_most(start), near)
        if there is Nearness.NETWORK and parts.scheme == "https":
            may = may or not _is_address(host)
        if may:
            self._accept(connected_host(end), there)
        return may


def connected_host(url: str) -> str:
    """Return the host name that is resolved for a connection to a URL.

    Python would convert the German sharp s to ``ss`` (RFC 3490); httpx keeps it.
    """
    try:
        return httpx.URL(url).raw_host.decode("ascii")
    except (httpx.InvalidURL, ValueError):
        return urlsplit(url).hostname or ""  # an invalid URL is never read


def _look_up(host: str) -> dict[str, Nearness]:
    # getaddrinfo() also reads short forms of addresses, such as 127.1.
    entries = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    found = dict.fromkeys(str(entry[4][0]) for entry in entries)
    return {address: _of_address(address) for address in islice(found, _ADDRESSES)}


def _is_address(host: str) -> bool:
    with suppress(ValueError):
        return bool(ipaddress.ip_address(host))
    return False


def _of_address(text: str) -> Nearness:
    address = ipaddress.ip_address(text.partition("%")[0])  # without a zone (RFC 4007)
    is_local = address.is_loopback or address.is_unspecified or address.is_link_local
    if is_local or str(address) in _CLOUD:
        return Nearness.MACHINE
    is_far = address.is_global and address not in _PROTOCOLS
    near = Nearness.ELSEWHERE if is_far else Nearness.NETWORK
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.sixtofour
        if int(address) >> 32 in _EMBEDDING:
            inner = ipaddress.IPv4Address(int(address) % 2**32)
        if inner is not None:  # a gateway or the system connects to ``inner``
            near = _of_address(str(inner))
        elif address not in _UNICAST or address in _EXAMPLES:
            near = Nearness.NETWORK
    return min(near, Nearness.OWN) if _is_own(address) else near


def _is_own(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Return whether an address is that of this machine, without sending anything."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    to, kind, bound = address.packed, socket.SOCK_RAW, []
    if sys.platform == "linux":  # the machine may have whole networks; see rtnetlink(7)
        size = len(to)  # a message, a route and an attribute have 16, 12 and 4 bytes
        head = 32 + size, _GET_ROUTE, 1, 0, 0, family, 8 * size, 4 + size, 1
        with suppress(OSError), socket.socket(socket.AF_NETLINK, kind) as kernel:
            kernel.settimeout(1.0)
            kernel.sendto(struct.pack("=IHHIIBB10xHH", *head) + to, (0, 0))
            reply = kernel.recv(4096)
            is_route = int.from_bytes(reply[4:6], sys.byteorder) == _NEW_ROUTE
            if is_route and reply[23] in (2, 3, 4):  # local, broadcast, anycast
                return True
    # With ip_nonlocal_bind, sockets may have any address, also one for documentation.
    for text in (str(address), ("192.0.2.1", "2001:db8::1")[address.version == 6]):
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((text, 0))
            bound.append(text)
    return bound == [str(address)]


def make_connections(
    settings: Settings,
    tls: ssl.SSLContext,
    proxy: str | None,
    url: str,
    *,
    finder: NearnessFinder,
) -> httpx.AsyncClient:
    """Create an HTTP client with its own pool of connections.

    :param url: the requested URL, for errors.
    :raises UpstreamError: see `read_proxy`.
    """
    # A limit would let a server that hangs delay the requests to others. `Client`, and
    # the local index for its own clients, limit the number of requests.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=_IDLE)
    transport = httpx.AsyncHTTPTransport(
        verify=tls, proxy=read_proxy(proxy, url), trust_env=False, limits=limits
    )
    # httpx has no option for the backend of its pool, so replace it. With a proxy,
    # addresses cannot be checked, because the proxy resolves the names.
    checks = proxy is None and not settings.trusts_pages
    transport._pool._network_backend = _Backend(finder, checks=checks)
    # Like uv, keep no cookies. This policy skips a parser that takes quadratic time.
    policy = DefaultCookiePolicy(netscape=False, rfc2965=False)
    return httpx.AsyncClient(
        cookies=CookieJar(policy),
        transport=transport,
        trust_env=False,
        timeout=settings.timeout,
    )


def make_tls_context(
    settings: Settings, url: str, *, verify: bool | None
) -> ssl.SSLContext:
    """Return a TLS context.

    :param url: the requested URL, for errors.
    :param verify: whether the context verifies certificates; ``None`` for plain HTTP.
    :raises UpstreamError: the certificates cannot be loaded.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if verify is None:
        return context
    import certifi  # imported here, like truststore, since most indexes are local

    bundle = settings.bundle or certifi.where()
    places = [settings.cert or bundle]
    if settings.trusts_system:
        import truststore

        # Like pip since version 24.2, add these certificates to those of the system.
        context = truststore.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        places.append(bundle)
    # With DHE and a group of 10,000 bits, which the server chooses, a handshake takes
    # 0.6 s, in which the event loop waits. Browsers and uv have no DHE either.
    ciphers = (item["name"] for item in context.get_ciphers())
    context.set_ciphers(":".join(x for x in ciphers if not x.startswith("DHE-")))
    try:
        for place in places:
            kind = "capath" if os.path.isdir(place) else "cafile"
            context.load_verify_locations(**{kind: place})
        if settings.client_cert:
            context.load_cert_chain(settings.client_cert)
    except OSError as error:
        # These errors of `ssl` do not name the file.
        files = filter(None, (settings.cert, settings.client_cert))
        reason = f"{' or '.join(files)}: {error.strerror or error}"
        message = f"the certificates cannot be loaded: {reason}"
        hint = "check pip's options cert and client-cert, or REQUESTS_CA_BUNDLE"
        raise UpstreamError(message, url, hint=hint) from None
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


class _Backend(httpcore.AsyncNetworkBackend):
    """Connects only to the checked addresses of a server.

    If a name were resolved again, it could have other addresses (DNS rebinding).

    :param checks: whether to leave out addresses that are more local than before.
    """

    def __init__(self, finder: NearnessFinder, *, checks: bool) -> None:
        self._find = finder.addresses_of if checks else finder.resolve
        self._finder = finder
        self._inner = httpcore.AnyIOBackend()
        self._handshakes = Turns(_HANDSHAKES, _IN_ALL)

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect to the first address that accepts a connection.

        :raises ConnectError: no address accepts a connection, or the server has moved
            to a more local address.
        """
        try:
            addresses = await self._find(host)
        except (OSError, UnicodeError) as failure:
            raise httpcore.ConnectError(str(failure)) from failure
        error: Exception = httpcore.ConnectError("the name has no address")
        for number, address in enumerate(addresses, start=1):
            is_last = number == len(addresses)
            patience = timeout if is_last else min(timeout or _IMPATIENT, _IMPATIENT)
            try:
                stream = await self._inner.connect_tcp(
                    address, port, patience, local_address, socket_options
                )
                self._finder.note(host, address)
                return LimitedStream(stream, self._handshakes, port)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as failure:
                error = failure
        raise error

    async def sleep(self, seconds: float) -> None:
        """Wait; httpcore calls this method between attempts to connect."""
        await self._inner.sleep(seconds)


def find_proxy(settings: Settings, url: str) -> str | None:
    """Return the URL of the proxy for a request, or ``None`` to connect directly."""
    # httpx itself fails for an invalid variable, also if the request uses no proxy.
    proxy = settings.proxy
    if proxy is None and settings.trust_env:
        parts = urlsplit(url)
        known = getproxies()
        proxy = known.get(parts.scheme) or known.get("all")
        hosts = settings.no_proxy or known.get("no") or ""
        if proxy and _is_bypassed(parts.hostname or "", parts.port, hosts):
            return None
    if not proxy or "://" in proxy:
        return proxy or None
    # pip takes the user in user:password@host for a scheme, and fails.
    user, _, rest = proxy.partition(":")
    return f"{user}://{rest}" if "@" in rest else f"http://{proxy}"


def _is_bypassed(host: str, port: int | None, hosts: str) -> bool:
    """Return whether requests, the HTTP library of pip, connects to a host directly.

    :param hosts: the value of the variable ``no_proxy``.
    """
    if proxy_bypass(host):
        return True
    names = hosts.replace(" ", "").split(",")
    try:
        address = ipaddress.IPv4Address(socket.inet_aton(host))
    except OSError:
        ends = f".{host}", f".{host}:{port}"
        found = (f".{name.lstrip('.')}" for name in names if name)
        return any(end.endswith(name) for name in found for end in ends)
    for name in names:
        with suppress(ValueError):
            if "/" in name and address in ipaddress.IPv4Network(name, strict=False):
                return True
    return host in names


def read_proxy(proxy: str | None, url: str) -> httpx.Proxy | None:
    """Return the proxy as an `httpx.Proxy`; ``url`` is the requested URL, for errors.

    :raises UpstreamError: the proxy has an invalid URL, or needs support for SOCKS.
    """
    if proxy is None:
        return None
    try:
        made = httpx.Proxy(proxy)
        is_valid = bool(made.url.host) and (made.url.port or 80) < 65536
    except (ValueError, httpx.InvalidURL):
        is_valid = False
    if not is_valid:
        message = f"{shown_proxy(proxy)} is not the URL of a proxy"
        raise UpstreamError(message, url, hint=CHECK_PROXY)
    if made.url.scheme.startswith("socks") and find_spec("socksio") is None:
        message = f"the proxy {shown_proxy(proxy)} speaks SOCKS, which needs a package"
        raise UpstreamError(message, url, hint="pip install 'httpx[socks]'")
    if made.auth and made.url.scheme.startswith("http"):
        header = {"Proxy-Authorization": basic(made.auth)}
        return httpx.Proxy(made.url, headers=header)
    return made


def basic(pair: tuple[str, str], encoding: str = "latin-1") -> str:
    """Return the value of a header with a user and a password, in pip's encoding."""
    text = ":".join(pair)
    try:
        encoded = text.encode(encoding)
    except UnicodeEncodeError:
        encoded = text.encode()  # here, pip fails; uv always encodes in UTF-8
    return f"Basic {base64.b64encode(encoded).decode('ascii')}"
