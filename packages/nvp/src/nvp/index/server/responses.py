"""Who may call the local index, and its responses: pages, files, and failures."""

from __future__ import annotations

import html
import os
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import httpx
from simple_repository import content_negotiation, errors, model, serializer
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import (
    FileResponse,
    PlainTextResponse,
    Response,
    StreamingResponse,
)

from nvidia_variant_provider.errors import InputError

from ..http.urls import UpstreamError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

CHUNK = 1024 * 1024

HEADERS = {"Cache-Control": "no-store"}
"""A page depends on the machine, and so does the file that a name on it means."""

FILE_HEADERS = {"X-Content-Type-Options": "nosniff"}
"""Files come from strangers: a browser must not take one for a page of this server."""

OCTETS = "application/octet-stream"
"""The type of every file, whatever the upstream calls it."""

_RANGE = re.compile(r"bytes=(?:\d+-\d*|-\d+)", re.ASCII)
"""A single range of bytes (RFC 9110, section 14.1.2)."""

_PORT = re.compile(r":\d*\Z")

_Page = model.ProjectDetail | model.ProjectList


class HostCheck:
    """Refuses requests whose ``Host`` is not one of the server's own names.

    A page in the user's browser could otherwise read the index, by a name that its
    author points at this machine (DNS rebinding). Starlette's TrustedHostMiddleware
    does not serve: in some versions it compares letters by case, and in some it does
    not know an IPv6 address in brackets.
    """

    def __init__(self, app: ASGIApp, hosts: frozenset[str]) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        app = self._app
        if scope["type"] == "http" and "*" not in self._hosts:
            host = Headers(scope=scope).get("host", "").lower()
            if _PORT.sub("", host) not in self._hosts:
                app = PlainTextResponse("Invalid host header", status_code=400)
        await app(scope, receive, send)


class TokenCheck:
    """Refuses requests whose ``User-Agent`` does not have the token of ``pip``.

    The secret part of the URLs of an index is on the command line of each pip that
    another pip starts for a build, where every user of this machine can read it. pip
    gets the token in an environment variable, which other users cannot read and which
    builds inherit.
    """

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        app = self._app
        if scope["type"] == "http":
            agent = Headers(scope=scope).get("user-agent", "")
            words = re.split(r"[^\w-]+", agent, flags=re.ASCII)
            if not any(secrets.compare_digest(word, self._token) for word in words):
                app = PlainTextResponse("Not the user's own pip", status_code=403)
        await app(scope, receive, send)


def find_range(headers: Headers) -> str | None:
    """Return the range that a request asks for.

    RFC 9110, section 14.2: "A server MAY ignore the Range header field." Other units
    and malformed ranges are ignored, and several ranges at once, whose response would
    have another type.
    """
    wanted = headers.get("range", "")
    return wanted if _RANGE.fullmatch(wanted) else None


class LocalFileResponse(FileResponse):
    """A file of this machine, sent in large pieces."""

    chunk_size = CHUNK

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path, media_type=OCTETS, headers=FILE_HEADERS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the file; the base class refuses a range that it does not know."""
        if find_range(Headers(scope=scope)) is None:
            others = [item for item in scope["headers"] if item[0] != b"range"]
            scope = {**scope, "headers": others}
        await super().__call__(scope, receive, send)


class UpstreamResponse(StreamingResponse):
    """The response of an upstream, passed on as it arrives.

    :param on_break: called when the upstream breaks off, and this response with it.
    """

    def __init__(
        self,
        chunks: AsyncIterator[bytes],
        stack: AsyncExitStack,
        on_break: Callable[[Exception], None],
        **options: Any,
    ) -> None:
        super().__init__(chunks, **options)
        self._stack = stack
        self._on_break = on_break

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response, and close that of the upstream in any case."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._stack.aclose()

    async def stream_response(self, send: Send) -> None:
        """Send what arrives from the upstream."""
        # The status is sent already, so an error can only close the connection. The
        # server does that with a response that is not complete.
        try:
            await super().stream_response(send)
        except (httpx.HTTPError, InputError, OSError) as error:
            self._on_break(error)


class Failures:
    """Turns errors into responses, and tells the user, whom installers tell little."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._last: str | None = None

    async def respond(self, _: Request, error: Exception) -> Response:
        """Respond with the status of the upstream, where an installer can use it."""
        status = error.status if isinstance(error, UpstreamError) else 502
        # Many indexes send 403 for a project that they do not have.
        if status != 403:
            self.warn(str(error))
        if status in (401, 407):
            # Installers would ask their users for the password of this server.
            status = 403
        elif not 400 <= status < 600:
            status = 502
        return PlainTextResponse(f"{error}\n", status_code=status, headers=HEADERS)

    async def respond_to_defect(self, _: Request, error: Exception) -> Response:
        """Respond to an exception that is a defect; only this request ends."""
        message = f"internal error: {type(error).__name__}: {str(error)[:200]!a}"
        self.warn(f"{message}; please report it")
        return PlainTextResponse(f"{message}\n", status_code=500, headers=HEADERS)

    def warn(self, message: str) -> None:
        """Warn the user, but not again for each attempt of an installer."""
        if message != self._last:
            self._last = message
            self._warn(message)


def make_handler(status: int) -> Callable[[Request, Exception], Awaitable[Response]]:
    """Return what responds to errors of a kind with a status."""

    async def respond(_: Request, error: Exception) -> Response:
        return PlainTextResponse(f"{error}\n", status_code=status, headers=HEADERS)

    return respond


def find_format(request: Request) -> content_negotiation.Format:
    """Return the form of pages that a client accepts.

    :raises UnsupportedSerialization: it accepts none.
    """
    accept = request.headers.get("accept", "")
    try:
        return content_negotiation.select_response_format(accept)
    except ValueError:
        raise errors.UnsupportedSerialization(ascii(accept[:100])) from None


def respond_with(page: _Page, form: content_negotiation.Format) -> Response:
    """Return the response with a page."""
    if form is not content_negotiation.Format.JSON_V1 and isinstance(
        page, model.ProjectDetail
    ):
        page = _escaped(page)
    text = serializer.serialize(page, form)
    return Response(text, media_type=form.value, headers=HEADERS)


def _escaped(page: model.ProjectDetail) -> model.ProjectDetail:
    """Escape the text of a page for HTML.

    The HTML serializer of simple-repository 0.11.1 escapes ``data-requires-python``
    alone, and writes all other text of a page as it is.
    """
    return replace(
        page,
        name=html.escape(page.name),
        files=tuple(
            replace(
                file,
                filename=html.escape(file.filename),
                url=html.escape(file.url),
                yanked=html.escape(file.yanked)
                if isinstance(file.yanked, str)
                else file.yanked,
                hashes=_escaped_pairs(file.hashes),
                dist_info_metadata=_escaped_pairs(file.dist_info_metadata)
                if isinstance(file.dist_info_metadata, dict)
                else file.dist_info_metadata,
            )
            for file in page.files
        ),
    )


def _escaped_pairs(pairs: dict[str, Any]) -> dict[str, str]:
    return {html.escape(key): html.escape(str(text)) for key, text in pairs.items()}
