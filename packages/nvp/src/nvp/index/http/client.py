"""HTTP requests as the user's pip makes them: its certificates, proxies, credentials.

This is the only HTTP client of the package. Bounds on size and time, the rules for
redirects are here, and the errors with their redacted URLs in `failures`.
"""

from __future__ import annotations

import asyncio
import base64
import concurrent.futures
import logging
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx

from nvidia_variant_provider.errors import InputError
from nvidia_variant_provider.strict_json import LARGE_BYTES

from .byte_ranges import RangeRequest
from .failures import (
    TooLargeError,
    check_status,
    make_error,
    make_passing_error,
    no_ranges,
    not_allowed,
    too_large,
    translate_error,
)
from .nearness import NearnessFinder
from .retrying import PassingError, pause_before
from .settings import Settings
from .urls import (
    UpstreamError,
    redacted,
    server_of,
    split_credentials,
    with_user,
)

__all__ = ["AskCredentials", "Client", "CompleteResponse", "wait_until"]

T = TypeVar("T")

logger = logging.getLogger(__name__)

AskCredentials = Callable[[str], "tuple[str, str] | None"]
"""Returns user and password for a URL, from the user's keyring or netrc file."""

_REDIRECTS = 10

_PAGES = 64
"""Connections for what is read as a whole, such as pages."""

_WHOLE_FILE = 16 * 1024 * 1024
"""The largest file that is downloaded from a server that does not serve ranges."""


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
        self._clients: dict[tuple[bool, bool], httpx.AsyncClient] = {}
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
                raise make_passing_error(message, url, hint="try again") from None

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
                raise make_error("is compressed in a way that was not requested", url)
            length = response.headers.get("content-length", "")
            if length.isdecimal() and len(length) < 20 and int(length) > limit:
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

    def make_range_request(
        self,
        url: str,
        loop: asyncio.AbstractEventLoop,
        *,
        whole: int | None = None,
        until: float | None = None,
    ) -> RangeRequest:
        """Make the function by which other threads request ranges of ``url``.

        A server that does not serve ranges sends the whole file; that is good enough
        for small files.

        :param loop: the event loop that runs this client.
        :param whole: the most bytes of such a file; 16 MiB by default.
        :param until: when the last request has to be over, by `time.monotonic`.
        """
        most_whole = _WHOLE_FILE if whole is None else whole
        file: list[bytes] = []

        def request(wanted: str, most: int) -> tuple[bytes, Mapping[str, str]]:
            if not file:
                work = self._get_range(url, wanted, max(most, most_whole))
                response = wait_until(work, loop, until, url)
                if response.status == 206:
                    return response.body, response.headers
                if len(response.body) > most_whole:
                    raise no_ranges("the server does not serve parts", url)
                file.append(response.body)
            start, end = wanted.removeprefix("bytes=").split("-")
            size = len(file[0])
            first = int(start) if start else max(0, size - int(end))
            last = min(int(end), size - 1) if start else size - 1
            piece = file[0][first : last + 1]
            return piece, {"content-range": f"bytes {first}-{last}/{size}"}

        return request

    async def _get_range(self, url: str, wanted: str, limit: int) -> CompleteResponse:
        logger.debug("%s: asking for %s", redacted(url), wanted)
        try:
            return await self.get(url, {"Range": wanted}, limit=limit)
        except TooLargeError as error:
            message = f"{error.message}, and the server does not serve parts"
        except UpstreamError as error:
            # Some servers refuse ranges of this form instead of ignoring them.
            if error.status not in (416, 501):
                raise
            message = error.message
        raise no_ranges(message, url)

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
                check_status(response, url)
                yield response
            finally:
                await response.aclose()
        except httpx.HTTPError as error:
            raise translate_error(error, url, self._settings.timeout) from None
        except (httpx.InvalidURL, ssl.SSLError, OSError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise make_error(f"cannot be read: {redacted(str(error))}", url) from None

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
                raise make_error(message, start, hint="tell the owner of the server")
        raise make_error(f"more than {_REDIRECTS} redirects", url)

    async def _send(
        self, url: str, headers: dict[str, str], *, streams: bool
    ) -> httpx.Response:
        if not self.is_allowed(url):
            raise not_allowed(url)
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
        # Loading the certificates of the system takes a while.
        if verify not in self._contexts:
            self._contexts[verify] = self._settings.make_tls_context(verify=verify)
        return self._contexts[verify]

    def _client_for(self, url: str, *, streams: bool) -> httpx.AsyncClient:
        verify = not self._settings.is_trusted(url)
        kind = verify, streams
        if kind not in self._clients:
            self._clients[kind] = httpx.AsyncClient(
                verify=self._tls_context(verify=verify),
                proxy=self._settings.proxy,
                trust_env=self._settings.trust_env,
                # No pool timeout: waiting for a free connection is not the server
                # being slow.
                timeout=httpx.Timeout(self._settings.timeout, pool=None),
                # Installers ask for many pages at once. There are as many streams as
                # connections of clients, whose number the server limits.
                limits=httpx.Limits(max_connections=None if streams else _PAGES),
            )
        return self._clients[kind]


def wait_until(
    work: Coroutine[Any, Any, T],
    loop: asyncio.AbstractEventLoop,
    until: float | None,
    url: str,
) -> T:
    """Return what ``work`` returns, which runs in the loop of another thread.

    :param until: when it has to be over, by `time.monotonic`; ``None`` for no limit.
    :raises PassingError: it was not.
    """
    task = asyncio.run_coroutine_threadsafe(work, loop)
    left = None if until is None else max(0.0, until - time.monotonic())
    try:
        return task.result(left)
    except concurrent.futures.TimeoutError:
        # asyncio's error of the same name would mean that the work itself raised it.
        if task.done():
            raise
        task.cancel()
        raise make_passing_error("not read in time", url, hint="try again") from None


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
