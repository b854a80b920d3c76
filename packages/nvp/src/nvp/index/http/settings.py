"""How to connect to indexes: timeouts, certificates, proxies, trusted hosts."""

from __future__ import annotations

import fnmatch
import os
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from .urls import is_loopback

__all__ = ["Settings"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The settings of pip that decide how it connects to an index.

    :param timeout: how many seconds a server may send nothing.
    :param deadline: how many seconds a whole page or document may take.
    :param retries: how often a request is sent again after a failure that may pass,
        such as HTTP 429 and 503. Installers have their own retries, which need none
        here.
    :param trusted_hosts: entries of the form ``host`` or ``host:port``; their
        certificates are not verified, and they may use plain HTTP.
    :param plain_http: allow plain HTTP for every host. pip refuses an index that is
        not secure, but accepts the URL of a single file.
    :param trusts_pages: follow pages and redirects to any server, as pip does.
        Otherwise those from elsewhere must not lead to a server that only this machine,
        or its network, can reach: other people may see what is read.
    :param cert: a file or folder of certificate authorities that replaces those of
        the system.
    :param client_cert: a file with a certificate and its private key.
    :param proxy: the URL of the proxy for all requests.
    :param trust_env: use the proxy variables of the environment.
    """

    timeout: float = 15.0
    deadline: float = 120.0
    retries: int = 0
    trusted_hosts: Sequence[str] = ()
    plain_http: bool = False
    trusts_pages: bool = False
    cert: str | None = None
    client_cert: str | None = None
    proxy: str | None = None
    trust_env: bool = True

    def is_allowed(self, url: str) -> bool:
        """Return whether ``url`` may be read; pip ignores insecure indexes as well."""
        parts = urlsplit(url)
        if parts.scheme == "https":
            return True
        if parts.scheme != "http":
            return False
        local = is_loopback(parts.hostname or "")
        return self.plain_http or local or self.is_trusted(url)

    def is_trusted(self, url: str) -> bool:
        """Return whether the server of ``url`` is one of the trusted hosts."""
        parts = urlsplit(url)
        host = parts.hostname or ""
        try:
            names = (host, f"{host}:{parts.port}") if parts.port else (host,)
        except ValueError:
            return False
        return any(
            fnmatch.fnmatchcase(name, pattern.lower())
            for pattern in self.trusted_hosts
            for name in names
        )

    def make_tls_context(self, *, verify: bool) -> ssl.SSLContext:
        """Make the TLS context for servers that are verified, or that are not."""
        if self.cert:
            context = (
                ssl.create_default_context(capath=self.cert)
                if os.path.isdir(self.cert)
                else ssl.create_default_context(cafile=self.cert)
            )
        else:
            import truststore

            # pip uses the certificates of the system since version 24.2.
            context = truststore.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if not verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.client_cert:
            context.load_cert_chain(self.client_cert)
        return context
