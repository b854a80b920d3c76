"""The proxy of a request, found as pip finds it, and which errors are its own.

The clients of httpx are told their proxy: a variable that is wrong would otherwise end
requests that do not go through that proxy, and no error would name it.
"""

from __future__ import annotations

import ssl
from importlib.util import find_spec
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass  # noqa: TID251  # no connection

import httpx

from nvidia_variant_provider.errors import redacted

from .urls import Settings, UpstreamError

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
