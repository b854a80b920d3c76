"""Answers of the loopback index, other than pages."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import httpx
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import (
    FileResponse,
    PlainTextResponse,
    Response,
    StreamingResponse,
)

from ..http.client import UpstreamError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = [
    "CHUNK",
    "HEADERS",
    "ByName",
    "Failures",
    "Local",
    "Stream",
    "answer_missing",
    "answer_refusal",
    "answer_unacceptable",
]

CHUNK = 1024 * 1024

HEADERS = {"Cache-Control": "no-store"}
"""A page depends on the machine, and so does what a name on it means."""

_PORT = re.compile(r":\d*\Z")


class ByName:
    """Refuses requests to another name, as that of a site that a browser is on.

    Starlette's own counts capitals, or no address in brackets, in some versions.
    """

    def __init__(self, app: ASGIApp, hosts: frozenset[str]) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or refuse it."""
        app = self._app
        if scope["type"] == "http" and "*" not in self._hosts:
            host = Headers(scope=scope).get("host", "").lower()
            if _PORT.sub("", host) not in self._hosts:
                app = PlainTextResponse("Invalid host header", status_code=400)
        await app(scope, receive, send)


class Local(FileResponse):
    """A file of this machine, in large pieces."""

    chunk_size = CHUNK


class Stream(StreamingResponse):
    """An answer of an upstream; where that breaks off, this one does."""

    def __init__(
        self,
        chunks: AsyncIterator[bytes],
        stack: AsyncExitStack,
        broken: Callable[[httpx.HTTPError], None],
        **more: Any,
    ) -> None:
        super().__init__(chunks, **more)
        self._stack = stack
        self._broken = broken

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it, and close the upstream's answer whatever happens."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._stack.aclose()

    async def stream_response(self, send: Send) -> None:
        """Send what arrives, as far as it does."""
        # Its beginning is sent: all that is left is to close the connection, which
        # the server does with an answer that is not complete.
        try:
            await super().stream_response(send)
        except httpx.HTTPError as error:
            self._broken(error)


class Failures:
    """What an upstream did wrong; installers show little of it, or nothing."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._last: str | None = None

    async def answer(self, _: Request, error: Exception) -> Response:
        """The status of the upstream, where that is of use."""
        status = error.status if isinstance(error, UpstreamError) else 502
        # Many indexes say 403 for a project that they do not have. Installers try
        # again: once is enough.
        if status != 403:
            self.tell(str(error))
        if status in (401, 407):
            # Installers would ask their users for the password of this server.
            status = 403
        elif not 400 <= status < 600:
            status = 502
        return PlainTextResponse(f"{error}\n", status_code=status, headers=HEADERS)

    async def answer_defect(self, _: Request, error: Exception) -> Response:
        """For what nobody thought of; it ends one request, not the server."""
        message = f"internal error: {type(error).__name__}: {str(error)[:200]!a}"
        self.tell(f"{message}; please report it")
        return PlainTextResponse(f"{message}\n", status_code=500, headers=HEADERS)

    def tell(self, message: str) -> None:
        """Warn; once for what is tried again."""
        if message != self._last:
            self._last = message
            self._warn(message)


async def answer_missing(_: Request, error: Exception) -> Response:
    """There is no such project or file."""
    return PlainTextResponse(f"{error}\n", status_code=404, headers=HEADERS)


async def answer_refusal(_: Request, error: Exception) -> Response:
    """There is one, and an installer could do nothing with it."""
    return PlainTextResponse(f"{error}\n", status_code=403, headers=HEADERS)


async def answer_unacceptable(_: Request, error: Exception) -> Response:
    """No form of a page that the client would take."""
    return PlainTextResponse(f"{error}\n", status_code=406, headers=HEADERS)
