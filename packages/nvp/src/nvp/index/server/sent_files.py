"""How the local index sends files, and how long installers may keep them."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterable, Callable, Mapping
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, BinaryIO

import httpx
from starlette.datastructures import Headers
from starlette.responses import FileResponse, StreamingResponse
from starlette.staticfiles import NotModifiedResponse

from nvidia_variant_provider.errors import InputError

from ..http.client import CONDITIONS

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

ASKING = {"Cache-Control": "no-cache"}
"""Let clients ask before they use a file that they have."""

FILE_HEADERS = {"X-Content-Type-Options": "nosniff"}
"""Files are untrusted: a browser must not render one as a page."""

OCTETS = "application/octet-stream"
"""The content type of every file, regardless of the type that the upstream sends."""

OF_BODIES = ("content-length", "content-encoding")
_OF_CACHES = ("cache-control", "expires", "pragma", "date", "age", "vary")
_OF_FILES = ("content-range", "etag", "last-modified", *_OF_CACHES)

_RANGE = re.compile(r"bytes=(?=\d|-\d)(?P<first>\d{0,18})-(?P<last>\d{0,18})", re.ASCII)
"""A single range of bytes (RFC 9110, section 14.1.2)."""

_CHECKS_LENGTH = re.compile(r"uv/|pip/(25\.[1-9]|2[6-9]\.|[3-9]\d\.)", re.ASCII)
_RESUMING = ("range", "if-range")


def find_range(headers: Headers) -> str | None:
    """Return the requested range, if it is supported.

    RFC 9110, section 14.2: "A server MAY ignore the Range header field." Malformed and
    several ranges are ignored: a response with several would have another type.
    """
    wanted = _RANGE.fullmatch(headers.get("range", ""))
    if wanted is None or int(wanted["first"] or 0) > int(wanted["last"] or 10**18):
        return None
    return wanted[0]


def conditions_of(headers: Headers) -> dict[str, str]:
    """Return the headers of a request that the upstream must know."""
    keys = CONDITIONS + (() if find_range(headers) is None else _RESUMING)
    return {k: headers[k] for k in keys if headers.get(k, "\xff").isascii()}


def headers_of(response: httpx.Response) -> dict[str, str]:
    """Return the headers of an upstream's response that describe a file.

    The headers for caches are among them. Without such a header, RFC 9111, section
    4.2.2, allows keeping a file, which uv does for a tenth of its age.
    """
    headers = response.headers
    # RFC 9110, section 15.4.5: 304 has no body.
    keys = _OF_FILES + (() if response.status_code == 304 else OF_BODIES)
    found = {key: headers[key].strip() for key in keys if key in headers}
    return {**found, "Content-Type": OCTETS, **FILE_HEADERS}


def with_checked_length(
    headers: dict[str, str], request: Mapping[str, str]
) -> dict[str, str]:
    """Return ``headers``, without the length of a wheel for clients that may ignore it.

    The end of a wheel is held back until the wheel is verified. pip before 25.1 notices
    only without a length that the end is missing, and else may install such a wheel.
    """
    checks = _CHECKS_LENGTH.match(request.get("user-agent", ""))
    return {k: v for k, v in headers.items() if checks or k != "Content-Length"}


class LocalFileResponse(FileResponse):
    """A file of this machine, sent in large pieces unless the client has it."""

    chunk_size = 1024 * 1024

    def __init__(self, file: BinaryIO) -> None:
        # The path of the file may lead to another one now.
        opened = f"/proc/self/fd/{file.fileno()}"
        path = opened if os.path.exists(opened) else file.name
        # A copy may have the time and the size of the file that it replaces.
        state = os.fstat(file.fileno())
        tag = f'"{state.st_mtime_ns:x}-{state.st_ctime_ns:x}-{state.st_size:x}"'
        headers = {**FILE_HEADERS, **ASKING, "ETag": tag}
        super().__init__(path, media_type=OCTETS, headers=headers)
        self._file = file

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the file; ignore ranges that the base class would reject."""
        asked = Headers(scope=scope)
        if find_range(asked) is None:
            others = [item for item in scope["headers"] if item[0] != b"range"]
            scope = {**scope, "headers": others}
        known = asked.get("if-none-match", "").split(",")
        with self._file:
            if self.headers["etag"] in map(str.strip, known):
                await NotModifiedResponse(self.headers)(scope, receive, send)
            else:
                await super().__call__(scope, receive, send)


class UpstreamResponse(StreamingResponse):
    """The response of an upstream, streamed to the client.

    :param on_break: called with the error if the upstream breaks off.
    """

    def __init__(
        self,
        chunks: AsyncIterable[bytes],
        stack: AsyncExitStack,
        on_break: Callable[[Exception], None],
        **options: Any,
    ) -> None:
        super().__init__(chunks, **options)
        # A generator that is not closed keeps its files until the garbage collection.
        if close := getattr(chunks, "aclose", None):
            stack.push_async_callback(close)
        self._stack = stack
        self._on_break = on_break

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response, and always close the connection to the upstream."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._stack.aclose()

    async def stream_response(self, send: Send) -> None:
        """Send the bytes that arrive from the upstream."""
        # The status has been sent, so an error can only close the connection, which the
        # server does for an incomplete response.
        try:
            await super().stream_response(send)
        except (httpx.HTTPError, InputError, OSError) as error:
            self._on_break(error)
