"""HTTP requests as the user's pip makes them: its certificates, proxies, credentials.

This is the only HTTP client of the package. Bounds on size and time and the rules for
redirects and new attempts are here, and URLs are redacted where the errors are made.
"""

from __future__ import annotations

import asyncio
import base64
import email.utils
import logging
import os
import random
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx

from nvidia_variant_provider.errors import InputError, redacted
from nvidia_variant_provider.strict_json import LARGE_BYTES

from .proxies import CHECK_PROXY, find_proxy, is_of_proxy, read_proxy
from .urls import (
    NearnessFinder,
    PassingError,
    Settings,
    TooLargeError,
    UpstreamError,
    server_of,
    split_credentials,
    with_user,
)

T = TypeVar("T")

logger = logging.getLogger(__name__)

AskCredentials = Callable[[str], "tuple[str, str] | None"]
"""Returns user and password for a URL, from the user's keyring or netrc file."""

_REDIRECTS = 10

_PAGES = 64
"""Connections for what is read as a whole, such as pages."""

PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses after which the same request may succeed (RFC 9110, section 15; RFC 6585 for
429, RFC 8470 for 425)."""

_FIRST = 0.5
"""Seconds before the first new attempt; the time doubles with each further one."""

_LONGEST = 60.0
"""Seconds that a census waits at most, whatever the server asks for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CompleteResponse:
    """A response that was read to its end.

    :param url: the URL after redirects.
    :param headers: the headers, their names in small letters.
    """

    status: int
    url: str
    headers: Mapping[str, str]
    body: bytes = field(repr=False)


class Client:
    """Reads pages and files with the credentials of one user.

    :param ask_credentials: called once for each server that requires credentials.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        ask_credentials: AskCredentials | None = None,
    ) -> None:
        self._settings = settings or Settings()
        self._ask_credentials = ask_credentials
        self._credentials: dict[str, tuple[str, str]] = {}
        # What `ask_credentials` returned for each server, so that it is called once.
        self._kept: dict[str, tuple[str, str] | None] = {}
        self._lock = asyncio.Lock()
        # One client that verifies certificates and one that does not, made on demand.
        self._contexts: dict[bool, ssl.SSLContext] = {}
        # Streams have their own, so that pages do not wait until they end.
        self._clients: dict[tuple[bool, str | None, bool], httpx.AsyncClient] = {}
        self._nearness = NearnessFinder()

    async def close(self) -> None:
        """Close all connections."""
        for client in self._clients.values():
            await client.aclose()
        self._clients.clear()

    def add_credentials(self, url: str, pair: tuple[str, str]) -> None:
        """Send user and password with every request to the server of ``url``."""
        self._credentials[server_of(url)] = pair

    def has_credentials(self, url: str) -> bool:
        """Return whether requests to the server of ``url`` carry credentials."""
        return server_of(url) in self._credentials

    def is_allowed(self, url: str) -> bool:
        """Return whether `Settings` allow reading ``url``."""
        return self._settings.is_allowed(url)

    async def may_lead(self, start: str, end: str) -> bool:
        """Return whether a page or a redirect at ``start`` may lead to ``end``."""
        if self._settings.trusts_pages:
            return True
        return await self._nearness.may_lead(start, end)

    async def get(
        self,
        url: str,
        headers: Mapping[str, str] | None = None,
        *,
        limit: int = LARGE_BYTES,
    ) -> CompleteResponse:
        """Read a whole response of at most ``limit`` bytes.

        :raises UpstreamError: the server cannot be reached, responds with another
            status than 200 or 206, or exceeds a limit of size or time.
        """

        async def attempt() -> CompleteResponse:
            try:
                # asyncio.timeout() exists since Python 3.11 only.
                return await asyncio.wait_for(
                    self._read_whole(url, headers or {}, limit), self._settings.deadline
                )
            except asyncio.TimeoutError:
                message = f"not complete after {self._settings.deadline:g} s"
                raise PassingError(message, url, hint="try again") from None

        return await self._attempt(attempt, url)

    async def _attempt(self, work: Callable[[], Awaitable[T]], url: str) -> T:
        """Do ``work``, and again after failures that may pass, as `Settings` allow."""
        attempt = 0
        while True:
            try:
                return await work()
            except PassingError as error:
                attempt += 1
                if attempt > self._settings.retries:
                    raise
                pause = pause_before(attempt, error)
                if pause is None:
                    error.message += f", and asks to wait for {error.wait:.0f} s"
                    raise
                message = "%s: %s; trying again after %.1f s"
                logger.info(message, redacted(url), error.message, pause)
            await asyncio.sleep(pause)

    async def _read_whole(
        self, url: str, headers: Mapping[str, str], limit: int
    ) -> CompleteResponse:
        body = bytearray()
        headers = {"Accept-Encoding": "gzip", **headers}
        async with self._open(url, headers, streams=False) as response:
            coding = response.headers.get("content-encoding", "identity").lower()
            if coding not in ("", "identity", "gzip", "deflate"):
                # Other codings, or several of them, may inflate a few bytes to any
                # size in one step.
                message = "is compressed in a way that was not requested"
                raise UpstreamError(message, url)
            if content_length(response) > limit:
                raise too_large(url, limit)
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > limit:
                    raise too_large(url, limit)
            logger.debug("%s: read %d bytes", redacted(url), len(body))
            return CompleteResponse(
                status=response.status_code,
                url=str(response.url),
                headers={key.lower(): text for key, text in response.headers.items()},
                body=bytes(body),
            )

    @asynccontextmanager
    async def stream(
        self, url: str, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[httpx.Response]:
        """Open a response of status 200 or 206, and follow redirects.

        :raises UpstreamError: the server cannot be reached or responds with another
            status; also raised in the block, when the response breaks off.
        """
        async with AsyncExitStack() as stack:

            def attempt() -> Awaitable[httpx.Response]:
                opened = self._open(url, headers or {}, streams=True)
                return stack.enter_async_context(opened)

            yield await self._attempt(attempt, url)

    @asynccontextmanager
    async def _open(
        self, url: str, headers: Mapping[str, str], *, streams: bool
    ) -> AsyncIterator[httpx.Response]:
        logger.info("GET %s", redacted(url))
        try:
            response = await self._follow(url, dict(headers), streams=streams)
            try:
                logger.info("%s: HTTP %d", redacted(url), response.status_code)
                _check_status(response, url)
                yield response
            finally:
                await response.aclose()
        except httpx.HTTPError as error:
            proxy = find_proxy(self._settings, str(error.request.url))
            timeout = self._settings.timeout
            raise _translate_error(error, url, timeout, proxy) from None
        except (httpx.InvalidURL, ssl.SSLError, OSError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            message = f"cannot be read: {redacted(str(error))}"
            raise UpstreamError(message, url) from None

    async def _follow(
        self, url: str, headers: dict[str, str], *, streams: bool
    ) -> httpx.Response:
        start = url
        for _ in range(_REDIRECTS):
            response = await self._send(url, headers, streams=streams)
            if not response.has_redirect_location:
                return response
            await response.aclose()
            following = str(response.next_request.url) if response.next_request else ""
            # Ignore credentials in a redirect: they are the user's to give.
            url, _ = split_credentials(following)
            logger.debug("redirected to %s", redacted(url))
            if not await self.may_lead(start, url):
                message = "redirects to a server that only this machine can reach"
                raise UpstreamError(message, start, hint="tell the owner of the server")
        raise UpstreamError(f"more than {_REDIRECTS} redirects", url)

    async def _send(
        self, url: str, headers: dict[str, str], *, streams: bool
    ) -> httpx.Response:
        if not self.is_allowed(url):
            raise _not_allowed(url)
        client = self._client_for(url, streams=streams)
        pair = self._credentials.get(server_of(url))
        response = await _send_with(client, url, headers, pair)
        # A user without a password may be a token, or the keyring has the password.
        if response.status_code == 401 and not (pair and pair[1]):
            user = pair[0] if pair else ""
            pair = await self._find_kept_credentials(url, user)
            if pair is not None:
                await response.aclose()
                response = await _send_with(client, url, headers, pair)
        return response

    async def _find_kept_credentials(
        self, url: str, user: str
    ) -> tuple[str, str] | None:
        """Return the credentials that the user keeps for the server of ``url``.

        :param user: the user in the URL, for whom a keyring may have the password.
        """
        server = server_of(url)
        url = with_user(url, user) if user else url
        async with self._lock:
            if server not in self._kept and self._ask_credentials is not None:
                logger.info("%s requires credentials: asking for them", server)
                self._kept[server] = await asyncio.to_thread(self._ask_credentials, url)
        pair = self._kept.get(server)
        logger.info("credentials for %s: %s", server, "found" if pair else "none")
        if pair is not None:
            self._credentials[server] = pair
        return pair

    def prepare(self, url: str) -> None:
        """Load what the first request to ``url`` needs, such as certificates.

        An error shows when the request is made.
        """
        with suppress(InputError, OSError):
            self._client_for(url, streams=False)

    def _tls_context(self, *, verify: bool) -> ssl.SSLContext:
        """Return the context for servers that are verified, or that are not."""
        # Loading the certificates of the system takes a while.
        if verify not in self._contexts:
            self._contexts[verify] = _make_tls_context(self._settings, verify=verify)
        return self._contexts[verify]

    def _client_for(self, url: str, *, streams: bool) -> httpx.AsyncClient:
        verify = not self._settings.is_trusted(url)
        proxy = find_proxy(self._settings, url)
        kind = verify, proxy, streams
        if kind not in self._clients:
            self._clients[kind] = httpx.AsyncClient(
                verify=self._tls_context(verify=verify),
                proxy=read_proxy(proxy, url),
                trust_env=False,
                # No pool timeout: waiting for a free connection is not the server
                # being slow.
                timeout=httpx.Timeout(self._settings.timeout, pool=None),
                # Installers ask for many pages at once. There are as many streams as
                # connections of clients, whose number the server limits.
                limits=httpx.Limits(max_connections=None if streams else _PAGES),
            )
        return self._clients[kind]


def _make_tls_context(settings: Settings, *, verify: bool) -> ssl.SSLContext:
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


async def _send_with(
    client: httpx.AsyncClient,
    url: str,
    headers: dict[str, str],
    pair: tuple[str, str] | None,
) -> httpx.Response:
    if pair is not None:
        basic = base64.b64encode(":".join(pair).encode()).decode("ascii")
        headers = {**headers, "Authorization": f"Basic {basic}"}
    request = client.build_request("GET", url, headers=headers)
    return await client.send(request, stream=True, follow_redirects=False)


def content_length(response: httpx.Response) -> int:
    """Return the bytes that a response announces, or 0 if it does not say it."""
    length = response.headers.get("content-length", "")
    return int(length) if length.isdecimal() and len(length) < 20 else 0


def _check_status(response: httpx.Response, url: str) -> None:
    """Raise an error where a server sends neither a file nor a part of one.

    :raises UpstreamError: the status is not 200 or 206.
    :raises PassingError: it is one that may pass, such as 503.
    """
    status = response.status_code
    if status in (200, 206):
        return
    message = f"HTTP {status} {response.reason_phrase}".rstrip()
    if status in PASSING:
        error = PassingError(message, url, status=status)
        error.wait = read_retry_after(response.headers)
        raise error
    if status == 401:
        hint = "give credentials: in its URL, a netrc file or a keyring"
        raise UpstreamError(message, url, status=status, hint=hint)
    raise UpstreamError(message, url, status=status)


def too_large(
    url: str, limit: int, hint: str = "check that this is the right file"
) -> TooLargeError:
    """Return the error for a response of more than ``limit`` bytes."""
    message = f"larger than {limit >> 20} MiB"
    return TooLargeError(message, url, hint=hint)


def _not_allowed(url: str) -> UpstreamError:
    """Return the error for a URL that the settings do not allow."""
    if urlsplit(url).scheme != "http":
        return UpstreamError("only http and https are read", url, status=403)
    message = "is neither https nor a trusted host"
    return UpstreamError(message, url, status=403, hint="see pip's --trusted-host")


def _translate_error(
    error: httpx.HTTPError, url: str, timeout: float, proxy: str | None
) -> UpstreamError:
    """Return an error of httpx as one of this package, without secrets.

    :param timeout: the seconds after which a server counts as silent.
    :param proxy: the URL of the proxy that was asked.
    """
    reason = redacted(str(error)) or type(error).__name__
    if isinstance(error, httpx.TimeoutException):
        reason = f"no response within {timeout:g} s"
    places: dict[str, Any] = {}
    if proxy is not None and is_of_proxy(error):
        reason = f"the proxy {redacted(proxy)} does not work: {reason}"
        places["hint"] = CHECK_PROXY
    if isinstance(error, httpx.TimeoutException):
        return PassingError(reason, url, **places)
    message = f"cannot be read: {reason}"
    if isinstance(error, httpx.TransportError):
        return PassingError(message, url, status=502, **places)
    return UpstreamError(message, url, **places)


def read_retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of ``Retry-After``; ``None`` without a valid one.

    RFC 9110, section 10.2.3: "The Retry-After field value can be either an HTTP-date or
    a number of seconds to delay after receiving the response."
    """
    text = headers.get("retry-after", "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        date = email.utils.parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError):
        return None
    try:
        return max(0.0, date.timestamp() - time.time())
    except (OverflowError, ValueError):
        return None


def pause_before(attempt: int, error: PassingError) -> float | None:
    """Return how many seconds to wait; ``None`` if the server asks for too many.

    :param attempt: the number of the new attempt, from 1 on.
    """
    if error.wait is not None:
        return error.wait if error.wait <= _LONGEST else None
    pause: float = min(_LONGEST, _FIRST * 2 ** (attempt - 1))
    # Workers that failed together do not all come again at the same moment.
    return pause * random.uniform(0.5, 1.0)  # noqa: S311  # nothing secret
