"""HTTP as the user's pip does it: its certificates, proxies and credentials.

Answers are bounded in size and time. What goes wrong is an `InputError` that names
the URL without credentials.
"""

from __future__ import annotations

import asyncio
import base64
import fnmatch
import ipaddress
import os
import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

import httpx

from ...errors import InputError
from ...strict_json import MAX_BYTES
from .byte_ranges import AskRange, redacted

__all__ = [
    "Answer",
    "Client",
    "Settings",
    "UpstreamError",
    "is_loopback",
    "split_credentials",
]

AskCredentials = Callable[[str], "tuple[str, str] | None"]
"""User and password for a URL, from the user's keyring or netrc."""

_REDIRECTS = 10

_WHOLE = 16 * 1024 * 1024
"""Bytes of a file on a server that does not send parts."""


class UpstreamError(InputError):
    """An index did not answer as one.

    :param status: the HTTP status that stands for it.
    """

    def __init__(self, message: str, *, status: int = 502, **places: Any) -> None:
        super().__init__(message, **places)
        self.status = status


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """How pip is set up to talk to indexes.

    :param timeout: seconds without an answer.
    :param deadline: seconds for the whole of a page or a document.
    :param trusted_hosts: ``host`` or ``host:port``, not verified, http allowed.
    :param cert: a file of certificate authorities, instead of the system's.
    :param client_cert: a file with a certificate and its private key.
    """

    timeout: float = 15.0
    deadline: float = 120.0
    trusted_hosts: Sequence[str] = ()
    cert: str | None = None
    client_cert: str | None = None
    proxy: str | None = None
    trust_env: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """A whole answer.

    :param url: where it came from, after redirects.
    :param headers: with small names.
    """

    status: int
    url: str
    headers: Mapping[str, str]
    body: bytes = field(repr=False)


def is_loopback(host: str) -> bool:
    """Does ``host`` reach this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def split_credentials(url: str) -> tuple[str, tuple[str, str] | None]:
    """``url`` without user and password, and these."""
    parts = urlsplit(url)
    pair, at, host = parts.netloc.rpartition("@")
    if not at:
        return url, None
    user, _, password = pair.partition(":")
    bare = urlunsplit(parts._replace(netloc=host))
    return bare, (unquote(user), unquote(password))


class Client:
    """Reads from the indexes of one user.

    :param ask_credentials: is asked once for each server that wants credentials.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        ask_credentials: AskCredentials | None = None,
    ) -> None:
        self._settings = settings or Settings()
        self._ask = ask_credentials
        self._credentials: dict[str, tuple[str, str]] = {}
        self._answers: dict[str, tuple[str, str] | None] = {}
        self._lock = asyncio.Lock()
        # By whether they verify the server; made when they are needed.
        self._clients: dict[bool, httpx.AsyncClient] = {}

    def _http_client(self, context: ssl.SSLContext) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            verify=context,
            proxy=self._settings.proxy,
            trust_env=self._settings.trust_env,
            # Those that wait for a connection wait for others, not for a server.
            timeout=httpx.Timeout(self._settings.timeout, pool=None),
            # An installer asks for many pages at once.
            limits=httpx.Limits(max_connections=64),
        )

    async def close(self) -> None:
        """Close all connections."""
        for client in self._clients.values():
            await client.aclose()
        self._clients.clear()

    def add_credentials(self, url: str, pair: tuple[str, str]) -> None:
        """Use ``pair`` for the server of ``url``."""
        self._credentials[_server(url)] = pair

    def has_credentials(self, url: str) -> bool:
        """Does the server of ``url`` get credentials from here."""
        return _server(url) in self._credentials

    def is_allowed(self, url: str) -> bool:
        """May ``url`` be read: not over plain HTTP, unless it is trusted.

        pip ignores such indexes as well.
        """
        parts = urlsplit(url)
        if parts.scheme == "https":
            return True
        local = is_loopback(parts.hostname or "")
        return parts.scheme == "http" and (local or self._is_trusted(url))

    def _is_trusted(self, url: str) -> bool:
        parts = urlsplit(url)
        host = parts.hostname or ""
        try:
            names = (host, f"{host}:{parts.port}") if parts.port else (host,)
        except ValueError:
            return False
        return any(
            fnmatch.fnmatchcase(name, pattern.lower())
            for pattern in self._settings.trusted_hosts
            for name in names
        )

    async def get(
        self,
        url: str,
        headers: Mapping[str, str] | None = None,
        *,
        limit: int = MAX_BYTES,
    ) -> Answer:
        """The whole answer, of at most ``limit`` bytes.

        :raises UpstreamError: there is none.
        """
        body = bytearray()
        try:
            # Python 3.10 has no asyncio.timeout.
            return await asyncio.wait_for(
                self._collect(url, headers or {}, body, limit), self._settings.deadline
            )
        except asyncio.TimeoutError:
            message = f"not complete after {self._settings.deadline:g} s"
            raise _error(message, url, status=504, hint="try again") from None

    async def _collect(
        self, url: str, headers: Mapping[str, str], body: bytearray, limit: int
    ) -> Answer:
        headers = {"Accept-Encoding": "gzip", **headers}
        async with self.stream(url, headers) as response:
            if response.headers.get("content-encoding", "identity").lower() not in (
                "",
                "identity",
                "gzip",
                "deflate",
            ):
                # A little of others, or of several, may become any size at once.
                raise _error("is compressed in a way that was not asked for", url)
            length = response.headers.get("content-length", "")
            if length.isdecimal() and len(length) < 20 and int(length) > limit:
                raise _too_large(url, limit)
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > limit:
                    raise _too_large(url, limit)
            found = {key.lower(): value for key, value in response.headers.items()}
            return Answer(
                status=response.status_code,
                url=str(response.url),
                headers=found,
                body=bytes(body),
            )

    def ask_range(self, url: str) -> AskRange:
        """How a thread asks for ranges of ``url``, for `RangeFile`.

        A server without ranges sends all of it, which will do if it is little.
        """
        loop = asyncio.get_running_loop()
        whole: list[bytes] = []

        def ask(asked: str, _: int) -> tuple[bytes, Mapping[str, str]]:
            if not whole:
                answer = asyncio.run_coroutine_threadsafe(
                    self.get(url, {"Range": asked}, limit=_WHOLE), loop
                ).result()
                if answer.status == 206:
                    return answer.body, answer.headers
                whole.append(answer.body)
            start, end = asked.removeprefix("bytes=").split("-")
            size = len(whole[0])
            first = int(start) if start else max(0, size - int(end))
            last = min(int(end), size - 1) if start else size - 1
            piece = whole[0][first : last + 1]
            return piece, {"content-range": f"bytes {first}-{last}/{size}"}

        return ask

    @asynccontextmanager
    async def stream(
        self, url: str, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[httpx.Response]:
        """An open answer of status 200 or 206; redirects are followed.

        :raises UpstreamError: any other status, or no answer; also while it is read.
        """
        try:
            response = await self._send(url, dict(headers or {}))
            try:
                _check_status(response, url)
                yield response
            finally:
                await response.aclose()
        except httpx.HTTPError as error:
            raise _failure(error, url, self._settings.timeout) from None
        except (httpx.InvalidURL, ssl.SSLError, OSError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise _error(f"cannot be read: {error}", url) from None

    async def _send(self, url: str, headers: dict[str, str]) -> httpx.Response:
        for _ in range(_REDIRECTS):
            response = await self._send_once(url, headers)
            if not response.has_redirect_location:
                return response
            await response.aclose()
            following = str(response.next_request.url) if response.next_request else ""
            # Credentials are the user's to give, not for a server to choose.
            url, _ = split_credentials(following)
        raise _error(f"more than {_REDIRECTS} redirects", url)

    async def _send_once(self, url: str, headers: dict[str, str]) -> httpx.Response:
        if not self.is_allowed(url):
            message = "is neither https nor a trusted host"
            raise _error(message, url, status=403, hint="see pip's --trusted-host")
        client = self._client_for(url)
        pair = self._credentials.get(_server(url))
        response = await self._try(client, url, headers, pair)
        # A user without a password: the keyring has that, or it is a token.
        if response.status_code == 401 and not (pair and pair[1]):
            pair = await self._asked(url)
            if pair is not None:
                await response.aclose()
                response = await self._try(client, url, headers, pair)
        return response

    async def _try(
        self,
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

    async def _asked(self, url: str) -> tuple[str, str] | None:
        """The credentials that the user keeps for the server; asked for once."""
        server = _server(url)
        async with self._lock:
            if server not in self._answers and self._ask is not None:
                self._answers[server] = await asyncio.to_thread(self._ask, url)
        found = self._answers.get(server)
        if found is not None:
            self._credentials[server] = found
        return found

    def _client_for(self, url: str) -> httpx.AsyncClient:
        verify = not self._is_trusted(url)
        if verify not in self._clients:
            context = _tls(self._settings, verify=verify)
            self._clients[verify] = self._http_client(context)
        return self._clients[verify]


def _tls(settings: Settings, *, verify: bool) -> ssl.SSLContext:
    if settings.cert:
        context = (
            ssl.create_default_context(capath=settings.cert)
            if os.path.isdir(settings.cert)
            else ssl.create_default_context(cafile=settings.cert)
        )
    else:
        import truststore

        # What the system trusts, as pip itself does since 24.2.
        context = truststore.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if settings.client_cert:
        context.load_cert_chain(settings.client_cert)
    return context


def _server(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2].lower()}"


def _check_status(response: httpx.Response, url: str) -> None:
    status = response.status_code
    if status in (200, 206):
        return
    more = {"hint": "give credentials: in its URL, a netrc file or a keyring"}
    raise _error(
        f"HTTP {status} {response.reason_phrase}",
        url,
        status=status,
        **(more if status == 401 else {}),
    )


def _too_large(url: str, limit: int) -> UpstreamError:
    message = f"larger than {limit // 1024 // 1024} MiB"
    return _error(message, url, hint="this is not what was asked for")


def _failure(error: httpx.HTTPError, url: str, timeout: float) -> UpstreamError:
    if isinstance(error, httpx.TimeoutException):
        return _error(f"no answer within {timeout:g} s", url, status=504)
    reason = str(error) or type(error).__name__
    return _error(f"cannot be read: {reason}", url)


def _error(message: str, url: str, **more: Any) -> UpstreamError:
    more.setdefault("hint", "check the index")
    return UpstreamError(message, path=redacted(url), **more)
