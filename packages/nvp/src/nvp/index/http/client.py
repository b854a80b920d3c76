"""HTTP requests with the certificates, proxies and credentials of the user's pip.

`Client` is the only HTTP client of the package. It enforces the limits on size and
time, and the rules for redirects and retries. Errors redact their URLs on creation.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx

from nvidia_variant_provider.errors import InputError, redacted
from nvidia_variant_provider.strict_json import LARGE_BYTES

from ... import __version__
from ...signals import count_input
from .connecting import (
    Nearness,
    NearnessFinder,
    find_proxy,
    make_connections,
    make_tls_context,
)
from .logins import REFUSALS, AskCredentials, Logins, find_target, leading_to, send
from .replies import (
    CHECK_PROXY,
    EARLY_END,
    LARGE,
    check_status,
    content_length,
    make_reply,
    pause_before,
    shown_proxy,
    too_large,
    unpack,
    without_frames,
)
from .threads import Share, Turn, Turns
from .urls import (
    REFUSED,
    CompleteResponse,
    PassingError,
    Settings,
    TooSlowError,
    UpstreamError,
    is_http,
    split_credentials,
)

T = TypeVar("T")
logger = logging.getLogger(__name__)

_REDIRECTS = 10
CONDITIONS = ("if-none-match", "if-modified-since")  # that the status 304 may answer

_AGENT = f"pip/26.3 (compatible; nvp/{__version__})"
"""An index may hide its projects from other programs than pip. It is the same for all
clients of `serve`, because they share replies."""

_AT_ONCE, _IN_ALL, _PAGES = 64, 96, 1000
"""The maximum number of complete responses at a time from a server, and those from all
servers, for files of an index and for its pages: a page can name many files, and each
needs a file descriptor."""


class Client:
    """Reads pages and files with the credentials of one user.

    :param ask_credentials: as ``ask`` of `Logins`, which also has ``asks_first``.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        ask_credentials: AskCredentials | None = None,
        asks_first: bool = False,
    ) -> None:
        self.settings = settings or Settings()
        self.logins = Logins(self.settings, ask_credentials, asks_first=asks_first)
        self.index: str | None = None  # the only one to read files of; see `only`
        self._connected: dict[str, Nearness] = {}
        self._nearness = NearnessFinder(self._connected)
        self.large = asyncio.Lock()  # held while a large page is read; see `get`
        self._of_indexes: dict[str | None, tuple[NearnessFinder, asyncio.Lock]]
        self._of_indexes = {None: (self._nearness, self.large)}
        # The key tells whether a context verifies, and whether it has `client_cert`.
        self._contexts: dict[tuple[bool | None, bool], ssl.SSLContext] = {}
        self._clients: dict[Hashable, httpx.AsyncClient] = {}
        # Requests that waited for others must not connect when these are closed.
        self._ended = threading.Event()
        # The files that a page names must not delay pages of the same server.
        self._turns = Turns(_AT_ONCE, _IN_ALL)
        self._page_turns = Turns(_AT_ONCE, _PAGES)
        self.parsing = asyncio.Lock()  # held while a page of over 256 KiB is parsed

    async def close(self) -> None:
        """Close all connections; later requests fail."""
        self._ended.set()
        for client in self._clients.values():
            await client.aclose()
        self._clients.clear()

    def only(self, index: str | None) -> Client:
        """Return a client with the logins for one index, which shares all else.

        Large pages of the index, and servers that they name, affect no other index.
        """
        other = copy(self)
        other.logins = self.logins.only(index)
        # The files that pages in directories name have no index; see `find_own`.
        key = index and (f"{index.rstrip('/')}/" if is_http(index) else "")
        made = NearnessFinder(self._connected), asyncio.Lock()
        other._nearness, other.large = self._of_indexes.setdefault(key, made)
        other.index = key
        return other

    def is_allowed(self, url: str) -> bool:
        """Return whether `Settings` allow reading ``url``."""
        return self.settings.is_allowed(url)

    @property
    def trusts_pages(self) -> bool:
        """Whether pages and redirects may lead to any server."""
        return self.settings.trusts_pages

    async def find_nearness(self, url: str) -> int:
        """Return the location of the server of ``url``; see `may_lead`."""
        return await self._nearness.find_most(url)

    async def may_lead(self, start: str, end: str, near: int = 0) -> bool:
        """Return whether a page or a redirect at ``start`` may lead to ``end``.

        :param near: the location of ``start`` that another process has found.
        """
        return self.trusts_pages or await self._nearness.may_lead(start, end, near)

    async def get(
        self,
        url: str,
        headers: Mapping[str, str] | None = None,
        *,
        limit: int = LARGE_BYTES,
        turn: Turn | None = None,
    ) -> CompleteResponse:
        """Read a whole response of at most ``limit`` bytes.

        :param turn: taken before a large page is complete; ``None`` for other files.
        :raises UpstreamError: the server cannot be reached, responds with an error, or
            exceeds a limit of size or time.
        """

        async def attempt() -> CompleteResponse:
            turns = self._turns if turn is None else self._page_turns
            async with turns.of(url, self.index):
                return await self._read_whole(url, headers or {}, limit, turn)

        try:
            return await self._attempt(attempt, url)
        except UpstreamError as error:
            raise without_frames(error) from None

    async def _attempt(self, work: Callable[[], Awaitable[T]], url: str) -> T:
        """Run ``work`` with a deadline, and perhaps again after a temporary failure."""
        attempt, deadline = 0, self.settings.deadline
        while True:
            try:
                with Share.waits():
                    # asyncio.timeout() requires Python 3.11.
                    return await asyncio.wait_for(work(), deadline)
            except asyncio.TimeoutError:
                message = f"not complete after {deadline:g} s"
                raise TooSlowError(message, url, hint="try again") from None
            except PassingError as error:
                attempt += 1
                if attempt > self.settings.retries:
                    raise
                pause = pause_before(attempt, error)
                if pause is None:
                    error.message += f", and asks to wait for {error.wait:.0f} s"
                    raise
                message = "%s: %s; trying again after %.1f s"
                logger.info(message, redacted(url), error.message, pause)
            await asyncio.sleep(pause)

    async def _read_whole(
        self, url: str, headers: Mapping[str, str], limit: int, turn: Turn | None
    ) -> CompleteResponse:
        headers = {"Accept-Encoding": "gzip, deflate", **headers}  # like pip
        raw = bytearray()
        reply, pieces = None, 0
        try:
            async with self._open(url, headers, streams=False) as response:
                if content_length(response) > limit:
                    raise too_large(url, limit)
                reply = make_reply(response)
                async for chunk in response.aiter_raw():
                    raw += chunk
                    pieces += 1
                    if pieces % 64 == 0:
                        await asyncio.sleep(0)  # other requests wait
                    if turn is not None and len(raw) > LARGE:
                        await turn.take()
                    if len(raw) > limit:
                        raise too_large(url, limit)
        except PassingError as error:
            if reply is not None and error.status == 502:
                # Keep the partial body, because installers differ in how they treat
                # a truncated page.
                kept = reply.headers
                if EARLY_END not in error.message:
                    kept = {k: v for k, v in kept.items() if k != "content-length"}
                part = replace(reply, headers=kept, raw=bytes(raw), is_whole=False)
                with suppress(UpstreamError):
                    part = await unpack(part, url, limit, turn)
                error.reply = part
            raise
        if headers["Accept-Encoding"] == "identity":
            limit = min(limit, len(raw))  # do not unpack what should not be compressed
        return await unpack(replace(reply, raw=bytes(raw)), url, limit, turn)

    @asynccontextmanager
    async def stream(
        self, url: str, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[httpx.Response]:
        """Follow redirects, and open the final response as a stream.

        The deadline of `Settings` is for the head; the reader paces the body.

        :raises UpstreamError: the server cannot be reached or responds with an error;
            also raised in the block, if the response is truncated.
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
        name = redacted(url) if logger.isEnabledFor(logging.INFO) else ""
        logger.info("GET %s", name)
        try:
            response = await self._try_logins(url, {"User-Agent": _AGENT, **headers})
            try:
                logger.info("%s: HTTP %d", name, response.status_code)
                if response.status_code != 304 or not headers.keys() & CONDITIONS:
                    check_status(response, url, most=300 if streams else 400)
                yield response
            finally:
                await response.aclose()
                count_input(url, response.num_bytes_downloaded, is_new=False)
        except httpx.HTTPError as error:
            proxy = find_proxy(self.settings, str(error.request.url))
            failure = _translate_error(error, url, self.settings.timeout, proxy)
            if _is_of_tls(error):  # after a `PassingError`, pip uses the next index
                reply = leading_to(url) if self.trusts_pages else None
                failure = UpstreamError(failure.message, url, reply=reply)
            raise failure from None
        except (httpx.InvalidURL, ssl.SSLError, OSError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise _unreadable(error, url) from None

    async def _try_logins(self, url: str, headers: dict[str, str]) -> httpx.Response:
        refusals: list[httpx.Response] = []
        response = await self._follow(url, headers, refusals)
        # A server to which an index redirects may know the user's certificate.
        is_known = self.settings.client_cert and response.extensions["away"]
        if refusals and response.status_code in REFUSALS and not is_known:
            await response.aclose()
            return refusals[0]
        return response

    async def _follow(
        self, url: str, headers: dict[str, str], refusals: list[httpx.Response]
    ) -> httpx.Response:
        start, places, moved, away = url, [url], None, ""
        lasts, is_odd = True, False
        response: httpx.Response | None = None
        for _ in range(_REDIRECTS):
            try:
                response, refusal = await self._send(url, headers, response)
            except (UpstreamError, httpx.HTTPError) as error:
                if isinstance(error, UpstreamError):
                    # pip may read the body of a redirect that it cannot follow.
                    moved = moved if url.startswith("http") else None
                    error.reply = moved or error.reply
                elif away:
                    seconds = self.settings.timeout
                    failure = _translate_error(error, start, seconds, None)
                    failure.reply = moved
                    raise failure from None
                raise
            is_odd = is_odd or response.extensions.get("is_odd", False)
            response.extensions.update(away=away, is_odd=is_odd)
            if refusal is not None:
                refusal.extensions["away"] = away
                refusals.append(refusal)
            control = response.headers.get("cache-control", "")
            if not response.has_redirect_location:
                if not lasts:
                    response.headers["cache-control"] = f"{control}, no-cache"
                return response
            # RFC 9111, section 3: each response says whether caches may store it. They
            # may store a redirect without directives only if the redirect is permanent.
            lasts = lasts and response.status_code in (301, 308) and not control
            await response.aclose()
            try:
                url = find_target(response)
            except UpstreamError as error:
                error.reply = error.reply if self.trusts_pages else None
                raise
            # A public server may be between two servers that are not.
            if not all([await self.may_lead(place, url) for place in places]):
                message = "redirects to a server that only this machine can reach"
                raise UpstreamError(message, start, hint="tell its owner")
            is_own = self.logins.identify(url)
            away = away or ("" if is_own else url)
            moved = replace(make_reply(response), headers={"location": away or url})
            if logger.isEnabledFor(logging.DEBUG):
                logger.debug("redirected to %s", redacted(url))
            is_other = is_own and bool(refusals)  # another login gets to this server
            if not is_other and self.logins.is_lost(response, url):
                message = "redirects to a server to which only you can log in"
                by_netrc = not is_own and self.logins.is_of_netrc(url)
                reply = moved if by_netrc else None
                raise UpstreamError(message, start, hint="serve that URL", reply=reply)
            places.append(url)
        raise UpstreamError(f"more than {_REDIRECTS} redirects", start, reply=moved)

    async def _send(
        self, url: str, headers: dict[str, str], before: httpx.Response | None
    ) -> tuple[httpx.Response, httpx.Response | None]:
        """Send a request; see `Logins.send`."""
        if not self.is_allowed(url):
            raise _not_allowed(url)
        bare, _ = split_credentials(url)
        request = partial(send, self._client_for(url), bare, headers)
        try:
            return await self.logins.send(url, before, request)
        except _errors_of_socks() as error:
            failure = httpx.ProxyError(f"it does not speak SOCKS: {error}")
            failure.request = httpx.Request("GET", bare)
            raise failure from None

    def _client_for(self, url: str) -> httpx.AsyncClient:
        # Like pip, load no certificates for plain HTTP.
        is_plain = url[:6].lower() != "https:"
        verify = None if is_plain else not self.settings.is_trusted(url)
        proxy = find_proxy(self.settings, url)
        kind = verify, self.logins.identify(url)
        key = kind, proxy, self._nearness
        if self._ended.is_set():
            raise UpstreamError("the program ends", url)
        if key not in self._clients:
            # Load the certificates of the system only once, because loading is slow.
            if kind not in self._contexts:
                cert = self.settings.client_cert if kind[1] else None
                own = replace(self.settings, client_cert=cert)
                try:
                    self._contexts[kind] = make_tls_context(own, url, verify=verify)
                except UpstreamError as error:
                    error.reply = leading_to(url) if self.trusts_pages else None
                    raise
            self._clients[key] = make_connections(
                self.settings, self._contexts[kind], proxy, url, finder=self._nearness
            )
        return self._clients[key]


def _not_allowed(url: str) -> UpstreamError:
    """Return the error for a URL that the settings do not allow."""
    if url.startswith(REFUSED):
        message, hint = "must not be named by its index", "tell the owner of the index"
        url = url.removeprefix(REFUSED)
        return UpstreamError(message, url, status=403, hint=hint)
    if urlsplit(url).scheme != "http":
        return UpstreamError("only http and https are read", url, status=403)
    message = "is neither https nor a trusted host"
    return UpstreamError(message, url, status=403, hint="see pip's --trusted-host")


def _translate_error(
    error: httpx.HTTPError, url: str, timeout: float, proxy: str | None
) -> UpstreamError:
    """Convert an error of httpx to an error of this package, without secrets.

    :param timeout: the timeout of the request in seconds.
    :param proxy: the URL of the proxy in use, if any.
    """
    reason = redacted(str(error)) or type(error).__name__
    if isinstance(error, httpx.TimeoutException):
        reason = f"no response within {timeout:g} s"
    places: dict[str, Any] = {}
    # Attribute errors of TLS, and slow responses, to the server behind the proxy.
    is_of_server = _is_of_tls(error) or isinstance(error, httpx.ReadTimeout)
    if proxy is not None and not is_of_server:
        reason = f"the proxy {shown_proxy(proxy)} does not work: {reason}"
        places["hint"] = CHECK_PROXY
    if isinstance(error, httpx.TimeoutException):
        return PassingError(reason, url, **places)
    message = f"cannot be read: {reason}"
    # Installers may use the next index if they cannot reach one, but must not after a
    # reply that only this program rejects.
    known = EARLY_END, "Server disconnected"
    is_rejected = isinstance(error, httpx.ProtocolError)
    is_rejected = is_rejected and not str(error).startswith(known)
    if isinstance(error, httpx.TransportError) and not is_rejected:
        return PassingError(message, url, status=502, **places)
    return UpstreamError(message, url, **places)


def _errors_of_socks() -> tuple[type[Exception], ...]:
    """Return the errors of SOCKS proxies that httpcore 1.0 does not translate."""
    # For a user or a password with over 255 bytes, socksio raises OverflowError.
    known = sys.modules.get("socksio")
    return () if known is None else (known.SOCKSError, OverflowError)


def _is_of_tls(error: httpx.HTTPError) -> bool:
    """Return whether a certificate or another part of TLS caused an error."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__context__
    return cause is not None


def _unreadable(error: Exception, url: str) -> UpstreamError:
    """Translate an error of a connection, or of httpx about a URL."""
    # httpx may quote a password as a port, if the password has a slash.
    is_of_system = isinstance(error, OSError)
    reason = redacted(str(error)) if is_of_system else "its URL is invalid"
    return UpstreamError(f"cannot be read: {reason}", url)
