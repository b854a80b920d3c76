"""Connections: certificates, proxies, and the addresses that are connected to."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterable
from typing import Any

import httpcore
import httpx

from .proxies import read_proxy
from .urls import NearnessFinder, Settings

_PAGES = 64
"""Connections for what is read as a whole, such as pages."""

_IMPATIENT = 3.0
"""Seconds for one of several addresses of a server, before the next one is tried."""


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
