"""Access to the local index, its links, and its responses."""

from __future__ import annotations

import re
import secrets
import tempfile
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Mapping,
    MutableMapping,
)
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from h11 import LocalProtocolError
from simple_repository import content_negotiation
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from nvidia_variant_provider.errors import InputError

from ..http.client import Client
from ..http.replies import OWN, OddReply, has_unread_body, is_own
from ..http.urls import (
    CompleteResponse,
    PassingError,
    TooSlowError,
    UpstreamError,
    is_http,
    is_loopback,
)
from ..selection.component import VariantRepository
from .kept_pages import KeptPages
from .sent_files import FILE_HEADERS, UpstreamResponse
from .upstream import Upstream

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

HEADERS = {"Cache-Control": "no-store"}
"""Disable caching, because pages and their files depend on the machine."""

_SANDBOX = {**FILE_HEADERS, "Content-Security-Policy": "sandbox"}
"""Headers for untrusted pages that are passed on unchanged."""

_OF_ANSWERS = ("location", "retry-after")
_OF_BODIES = ("content-type", "content-encoding")
_LEADING = (301, 302, 303, 307, 308)

_PORT = re.compile(r":\d*\Z")

_PIECE = 64 * 1024  # the number of bytes of a text that are sent at a time


def respond_with_text(text: str) -> Response:
    """Return a response that takes little memory for a client that reads nothing.

    A large text is sent from a temporary file: each of many clients may request another
    one, and a text in memory may take four times its size.

    :raises OSError: the file cannot be written.
    """
    if len(text) <= _PIECE:
        return PlainTextResponse(text, headers=HEADERS)
    file = tempfile.TemporaryFile(prefix="nvidia-variant-provider-")  # noqa: SIM115
    file.write(text.encode())
    size = file.tell()
    file.seek(0)

    async def pieces() -> AsyncIterator[bytes]:
        with file:
            while piece := file.read(_PIECE):
                yield piece

    headers = {"Content-Length": str(size), **HEADERS}
    return StreamingResponse(pieces(), headers=headers, media_type="text/plain")


class HostCheck:
    """Rejects requests with a wrong ``Host``, of other web pages, and of this process.

    Otherwise a page in the user's browser could read the index under a host name that
    resolves to this machine (DNS rebinding), or find out which projects it has.
    """

    def __init__(self, app: ASGIApp, hosts: frozenset[str]) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        app = self._app
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            host = _PORT.sub("", headers.get("host", "").lower())
            if is_own(headers):
                app = Response(status_code=508, headers=OWN)
            elif not (
                # An address is no DNS name that could lead elsewhere.
                is_loopback(host.strip("[]"))
                or host in self._hosts
                or ANY_HOST[0] in self._hosts
            ):
                app = PlainTextResponse("Invalid host header", status_code=400)
            elif headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
                app = PlainTextResponse("Not for other web pages", status_code=403)
        await app(scope, receive, send)


class TokenCheck:
    """Rejects requests without the token of ``pip``.

    Logs of pip can have the secret part of the URLs. The token is in a variable, which
    other users cannot read, and pip sends it only to this server.
    """

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        app = self._app
        if scope["type"] == "http":
            token = Headers(scope=scope).get(PROOF, "").encode()
            if not secrets.compare_digest(token, self._token):
                app = PlainTextResponse("Not the user's own pip", status_code=403)
        await app(scope, receive, send)


class Failures:
    """Turns errors into responses, and reports them to the user.

    pip skips an index whose page has an error status, and may select a file of another
    index. Therefore an installer gets the same reply as without this server, or else an
    unreadable page, with which every installer fails.
    """

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._last: str | None = None

    async def respond(self, request: Request, error: Exception) -> Response:
        """Respond with the reply of the upstream, or with the error."""
        status = error.status if isinstance(error, UpstreamError) else 502
        reply = error.reply if isinstance(error, UpstreamError) else None
        is_page = _is_of_page(request)
        # Do not warn of 403, which many indexes send for a missing project.
        if status != 403 or not is_page:
            self.warn(str(error))
        agent = request.headers.get("user-agent", "")
        # uv alone stops at such a reply, whatever its status is; pip does not.
        if is_page and isinstance(reply, OddReply) and not agent.startswith("pip/"):
            return self._stop(request, str(error))
        # After a redirect, an installer would take another, unverified file; after 200,
        # the text of the error.
        if reply and (is_page or 400 <= reply.status < 600):
            return self._pass_on(reply, error, is_page=is_page)
        lost = isinstance(error, PassingError) and not isinstance(error, TooSlowError)
        # After 503, as if they could not reach an index, pip retries and uses the next
        # one, and uv and Poetry stop. pdm alone stops, but uses the next one after 503.
        if is_page and (not lost or agent.startswith("pdm/")):
            return self._stop(request, str(error))
        # pip 23.2 does not retry after 502. No pip retries after 403, the status for a
        # wheel that differs from its METADATA.
        status = 403 if status == 403 else 503 if lost else 502
        return PlainTextResponse(f"{error}\n", status_code=status, headers=HEADERS)

    def _pass_on(
        self, reply: CompleteResponse, error: Exception, *, is_page: bool
    ) -> Response:
        leads = reply.status in _LEADING and "location" in reply.headers
        unread = has_unread_body(reply)
        is_error = 400 <= reply.status < 600
        # Installers read a page of any other status; uvicorn sends none above 599.
        status = reply.status if reply.status < 600 else 200
        has_body = is_page and (unread if is_error else not leads)
        kept = (*_OF_ANSWERS, *(_OF_BODIES if has_body else ()))
        headers = {key: reply.headers[key] for key in kept if key in reply.headers}
        headers |= {**HEADERS, **_SANDBOX}
        if not has_body:
            return PlainTextResponse(f"{error}\n", status_code=status, headers=headers)
        if not reply.is_whole:
            if "content-length" in reply.headers:
                headers["content-length"] = str(len(reply.raw) + 1)
            return break_off(reply.raw, error, headers, self.warn, status)
        return Response(reply.raw, status_code=status, headers=headers)

    async def respond_without(self, _: Request, error: Exception) -> Response:
        """Let pip use a page as pip has read it."""
        self.warn(str(error))
        return Response(status_code=204)

    async def respond_to_defect(self, request: Request, error: Exception) -> Response:
        """Respond to an unexpected exception; only this request fails."""
        message = f"{type(error).__name__}: {str(error)[:200]!a}"
        if isinstance(error, OSError | LocalProtocolError):
            # A file of a directory, or one that is longer or shorter than announced.
            message = f"a file has changed, or cannot be read: {message}"
            self.warn(message)
        else:
            message = f"internal error: {message}"
            self.warn(f"{message}; please report it")
        if _is_of_page(request):
            return self._stop(request, message)
        return PlainTextResponse(f"{message}\n", status_code=500, headers=HEADERS)

    def _stop(self, request: Request, message: str) -> Response:
        """Return an unreadable page, with which every installer fails."""
        form = content_negotiation.Format.JSON_V1.value
        if form in request.headers.get("accept", ""):
            return Response(f"error: {message}\n", media_type=form, headers=HEADERS)
        # Installers that know only HTML, such as Poetry before 2.2, take any text for a
        # page without files.
        headers = {"content-type": "text/html", **HEADERS}
        return break_off(b"<", InputError(message), headers, lambda _: None)

    def warn(self, message: str) -> None:
        """Warn the user, but only once for repeated attempts of an installer."""
        if message != self._last:
            self._last = message
            self._warn(message)


def _is_of_page(request: Request) -> bool:
    # pip ends with the text of an error if it has read the page itself.
    return "name" not in request.path_params and HAS_READ not in request.headers


def break_off(
    body: bytes,
    error: Exception,
    headers: Mapping[str, str],
    warn: Callable[[str], None],
    status: int = 200,
) -> Response:
    """Return a response that breaks off after ``body``, as the upstream's did.

    :param headers: the headers, with the announced length, if any.
    :param warn: called with the text of the error when the response breaks off.
    """
    reason = str(error)
    return UpstreamResponse(
        _Broken(body, reason),
        AsyncExitStack(),
        lambda _: warn(reason),
        status_code=status,
        headers=dict(headers),
    )


class _Broken:
    """The pieces of a broken body; several clients may get them."""

    def __init__(self, body: bytes, reason: str) -> None:
        self._body = body
        self._reason = reason

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Send the body, and break off."""
        yield self._body
        raise InputError(self._reason)


OnError = Callable[[Request, Exception], Awaitable[Response]]
"""Returns the response to a request that raised an error."""


def make_handler(status: int) -> OnError:
    """Return a handler that responds to errors with a status."""

    async def respond(_: Request, error: Exception) -> Response:
        return PlainTextResponse(f"{error}\n", status_code=status, headers=HEADERS)

    return respond


LOOPBACK_NAMES = ("host.docker.internal", "host.containers.internal")
"""The host names of containers for the loopback interface, besides its addresses."""

ANY_HOST = ("*",)

PROOF = "Nvp-Proof"
"""The header with the token of `TokenCheck`."""

DIRECT = "Nvp-Direct"
"""The header of a request for a file by a pip that requests the target of a redirect
like its own URL, with its own credentials; see ``hooks.py``."""

HAS_READ = "Nvp-Has-Read"
"""The header of a request for a page by a pip that has read the page itself."""

NO_LABEL = "-"
"""The placeholder for a label in the path of files that are not variants."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Access:
    """The clients of the local index, and the files that they can read without it.

    :param direct: whether installers can download files without credentials themselves.
    :param local: whether the installer is a program of this user, which may open local
        files and ends before the server.
    :param secret: whether URLs have a secret part.
    :param hosts: the accepted host names.
    """

    direct: bool = True
    local: bool = False
    secret: bool = True
    hosts: tuple[str, ...] = LOOPBACK_NAMES


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """An upstream, and the settings with which the server serves it.

    :param path: the path on the server, such as ``/0``; may be empty.
    :param url: the URL of the upstream, without credentials.
    :param repository: ``upstream`` with the variants selected.
    :param client: reads the files of the upstream.
    :param access: the installer's access to files without this server.
    :param originals: collects the original URL of each path.
    :param passing: collects ``{project: why its files have URLs of this server}``.
    :param rewritten: collects ``{SHA-256 of the rewritten wheel: SHA-256 of the
        original}``.
    :param kept: the cache of pages and responses; ``None`` disables it.
    :param saved: the paths of saved rewritten wheels, keyed by their names on pages.
    """

    path: str
    url: str
    upstream: Upstream
    repository: VariantRepository
    client: Client
    access: Access
    originals: MutableMapping[str, str] | None = None
    passing: MutableMapping[str, str] = field(default_factory=dict)
    rewritten: MutableMapping[str, str] | None = None
    kept: KeptPages | None = None
    saved: MutableMapping[str, Path] = field(default_factory=dict)

    def is_reachable(self, url: str) -> bool:
        """Return whether an installer can download ``url`` without this server."""
        if url.startswith("file:"):
            return self.access.local
        if not self.access.direct or not url.startswith(("http://", "https://")):
            return False
        # Accept plain HTTP: installers have their own policy for it.
        return not self._is_lost(url)

    def redirecting(self, error: UpstreamError) -> UpstreamError:
        """Return an error with which an installer reads an unreadable page itself.

        It cannot if it would need credentials of the index: then the error stops it.
        """
        if (reply := error.reply) is None:
            return error
        place = reply.away or reply.url
        # A server to which the index leads may show its page only to the installer.
        is_away = not self.client.logins.identify(place)
        is_page = is_http(place) and (
            reply.status < 300 or (reply.status >= 400 and is_away)
        )
        if is_page and (reply.is_whole or reply.away):
            if self.is_reachable(place) and (reply.away or not self._is_trusted(place)):
                headers = {"location": place}
                reply = error.reply = replace(reply, status=302, headers=headers)
            elif reply.away:
                return UpstreamError(error.message, reply.url)
        with suppress(KeyError, ValueError):  # no redirect, or to no URL
            if self._is_lost(reply.headers["location"]):
                return UpstreamError(error.message, reply.url)
        return error

    def _is_lost(self, url: str) -> bool:
        """Return whether installers must not get a URL from this server.

        Either the URL needs what only this server may have, such as credentials, or it
        may mean the machine of the installer.
        """
        is_near = self.access.hosts == ANY_HOST and not self.access.direct
        settings, logins = self.client.settings, self.client.logins
        # Installers such as uv read no certificate and no proxy that only pip knows.
        is_known = settings.client_cert and logins.identify(url)
        return is_near or bool(is_known or settings.proxy) or logins.has(url)

    def _is_trusted(self, url: str) -> bool:
        """Return whether pip's configuration lets this server trust a URL's server."""
        settings = self.client.settings
        return settings.cert is not None or settings.is_trusted(url)
