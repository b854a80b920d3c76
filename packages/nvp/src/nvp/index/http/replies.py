"""Send requests, and interpret responses: bodies, headers, redirects and errors."""

from __future__ import annotations

import asyncio
import email.utils
import math
import random
import re
import secrets
import ssl
import time
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

import httpcore
import httpx

from nvidia_variant_provider.errors import redacted

from .threads import Turn, Turns
from .urls import (
    CompleteResponse,
    PassingError,
    TooLargeError,
    UpstreamError,
)

E = TypeVar("E", bound=BaseException)

LARGE = 2 * 1024 * 1024
"""The size in bytes from which pages are read, or decompressed, one at a time."""

CHECK_PROXY = "check the proxy: https_proxy, http_proxy, ALL_PROXY or pip's --proxy"

TOO_MANY = 429
PASSING = frozenset({408, 425, TOO_MANY, 500, 502, 503, 504})
"""HTTP statuses after which a repeated request may succeed (RFC 9110, section 15; RFC
6585 for 429, RFC 8470 for 425)."""

OWN = {"Nvp-Process": secrets.token_hex(16)}
"""A header of each request, by which a server in this process recognizes requests of
its own client. Otherwise, an upstream index that refers back to the server would make
it request pages from itself until it has no free connections."""

_COMPRESSED = re.compile(r"\b(gzip|deflate|br|zstd)\b")
"""The compressions that pip or uv can undo, also in a list, such as ``gzip, gzip``."""

_FIRST = 0.5  # seconds before the first retry; the pause doubles with each further one
_LONGEST = 60.0  # seconds before a retry, whatever the server requests

_UNPACKED, _RATIO = 8 * 1024 * 1024, 100
"""The maximum size of an unpacked response in bytes, or in bytes for each compressed
byte, if that is more. Pages have a ratio of 10; many at once could take all memory."""

_STATUS_LINE = re.compile(rb"HTTP/1\.[01] \d{3}(?: [\t -~\x80-\xff]*)?\r?\n")
_FIELD = re.compile(rb"[\w!#$%&'*+.^`|~-]+:[\t -~\x80-\xff]*\r?\n")
_FIELDS, _LARGE = 100, re.compile(rb"\d{20}")
"""The lines of a head that uv (httparse, hyper) accepts, their maximum number, and the
lengths that may not fit into 64 bits. h11, like pip, accepts more."""

NO_END = "TLS was not closed, so a part may be missing"
EARLY_END = "peer closed"
"""The text of h11 about a body that ends early. If the body has a length, some versions
of pip do not notice such an end, but they notice any other failure."""

_TOO_LONG = 2**63 - 1  # pip 23 stops at a body of so many bytes
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,20})[^\n]*\r\n")
_BLANKS = b" " * 256
_MOST_OF_HEADS, _MOST_LINES = 128 * 1024, 1000
"""The maximum bytes and lines of all heads and trailers of a message."""

_MOST_OF_LINE = 16 * 1024  # in bytes; Node.js refuses longer heads

_PIECES = (4096, 16), (100_000, 256)
"""The numbers of pieces of a message above which their mean length has a minimum. Some
servers send each of the 50,000 lines of a page as a piece. h11 takes 10 µs for each."""


class Framing:
    """Follows HTTP messages, and refuses those that take h11 long to parse.

    h11 parses lines without a pause for other requests. Its time is quadratic in the
    length of a run of spaces. This class must find every line that h11 finds: any value
    of ``Transfer-Encoding`` counts here, because h11 accepts only ``chunked``, even in
    a folded line, and a ``Content-Length`` counts only if h11 reads the same number.

    :param rest: the length of a body without a header; ``math.inf`` for responses.
    """

    is_odd = False  # whether uv refuses a head since the last request

    def __init__(self, rest: float) -> None:
        self._rest = rest
        self.start()

    def start(self) -> None:
        """Expect the head of a message."""
        self._part, self._line = "head", bytearray()
        self._first, self._length = b"", self._rest
        self._is_chunked = False
        self._left: float = 0  # the bytes of the body or of a chunk
        self._heads = self.lines = self._pieces = self._read = self._fields = 0

    @property
    def is_complete(self) -> bool:
        """Whether the message has ended, and no byte follows it."""
        return self._part == "end" and not self._left

    @property
    def ends_with_connection(self) -> bool:
        """Whether the end of the connection ends the message."""
        return self._left == math.inf

    @property
    def is_in_head(self) -> bool:
        """Whether a part of the head has been followed."""
        return self._part == "head" and bool(self._heads)

    def follow(self, data: bytes) -> None:
        """Follow the next bytes.

        :raises RemoteProtocolError: the message has too many lines or pieces, or a
            malformed line.
        """
        self._count_piece()
        at = 0
        while at < len(data):
            if self.is_complete:
                self.start()
                # A response that nobody has requested is not read.
                self._left = self._rest
            if self._left:
                step = int(min(self._left, len(data) - at))
                self._left, self._read = self._left - step, self._read + step
                at += step
                continue
            end = data.find(b"\n", at) + 1 or len(data)
            self._line += data[at:end]
            self._heads += 0 if self._part == "size" else end - at
            at = end
            if self._heads > _MOST_OF_HEADS or len(self._line) > _MOST_OF_LINE:
                raise httpcore.RemoteProtocolError("its head or trailers are too long")
            if self._line.endswith(b"\n"):
                line, self._line = bytes(self._line), bytearray()
                self._take(line)

    def _count_piece(self) -> None:
        pieces = self._pieces = self._pieces + 1
        if any(pieces > most and pieces * mean > self._read for most, mean in _PIECES):
            raise httpcore.RemoteProtocolError("it is sent in very many tiny pieces")

    def _take(self, line: bytes) -> None:
        """Take a line of a head or of the trailers, or the size of a chunk."""
        if _BLANKS in line.replace(b"\t", b" "):
            raise httpcore.RemoteProtocolError("a line has very many spaces")
        if self._part == "size":
            self._count_piece()
            if not (found := _SIZE.fullmatch(line)):
                raise httpcore.RemoteProtocolError("the size of a chunk is malformed")
            if (size := int(found[1], 16)) >= _TOO_LONG:
                raise httpcore.RemoteProtocolError("the size of a chunk is too large")
            self._left = size and size + 2  # a line break follows the chunk
            self._part = "size" if size else "trailers"
        elif line not in (b"\n", b"\r\n"):
            self.lines += 1
            if self.lines > _MOST_LINES:
                raise httpcore.RemoteProtocolError("its head or trailers are too long")
            self._first = self._first or line
            name, _, value = line.lower().partition(b":")
            value = value.strip()
            self._is_chunked = self._is_chunked or name == b"transfer-encoding"
            if name == b"content-length" and value.isdigit() and len(value) <= 20:
                self._length = int(value)
            self._judge(line, name)
        elif self._part == "trailers":
            self._part = "end"
        else:
            self._end_head(self._first[9:12])

    def _end_head(self, status: bytes) -> None:
        """Expect what follows a head: a body, or the head of the final response."""
        if self._rest and status.startswith(b"1"):
            if status != b"100":  # pip does not read another response
                raise httpcore.RemoteProtocolError("it has an interim response")
            self._first, self._length, self._is_chunked = b"", self._rest, False
            self._fields = 0
            return
        # These responses have no body, whatever their headers are.
        if self._rest and status in (b"204", b"304"):
            if self._is_chunked:  # pip reads the chunks
                raise httpcore.RemoteProtocolError("it has a body despite its status")
            self._length = self._rest
        if _TOO_LONG <= self._length < math.inf:
            raise httpcore.RemoteProtocolError("its length is too large")
        if self._is_chunked and not self._rest:  # no installer sends one
            raise httpcore.RemoteProtocolError("it is a request in chunks")
        self._part = "size" if self._is_chunked else "end"
        self._left = 0 if self._is_chunked else self._length

    def _judge(self, line: bytes, name: bytes) -> None:
        """Note whether uv refuses a line of a head."""
        if self._part == "head":
            form = _FIELD if self._fields else _STATUS_LINE
            self._fields += 1
            is_old = self._first.startswith(b"HTTP/1.0")
            is_old = is_old and name == b"transfer-encoding"
            is_large = name == b"content-length" and _LARGE.search(line)
            is_many = self._fields > 1 + _FIELDS
            if is_old or is_large or is_many or not form.fullmatch(line):
                self.is_odd = True


class LimitedStream(httpcore.AsyncNetworkStream):
    """A connection that reads only responses that `Framing` accepts.

    httpcore also skips interim responses (RFC 9110, section 15.2) without a pause.

    :param handshakes: limits those with a ``port``: TLS may take 0.1 s of the loop.
    """

    def __init__(
        self, inner: httpcore.AsyncNetworkStream, handshakes: Turns, port: int
    ) -> None:
        self._inner = inner
        self._handshakes, self._port = handshakes, port
        self._framing = Framing(math.inf)

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Read from the connection; see the class."""
        await asyncio.sleep(0)  # the next records of TLS may have been received
        data = await self._inner.read(max_bytes, timeout)
        if not data and self._framing.is_in_head:
            raise httpcore.RemoteProtocolError("its head breaks off")
        if not data and self._framing.ends_with_connection and not self._is_closed():
            raise httpcore.ReadError(NO_END)
        self._framing.follow(data)
        return data

    def _is_closed(self) -> bool:
        """Return whether the server has closed TLS, if it is used.

        RFC 8446, section 6.1: "each party MUST send a close_notify alert before
        closing". Without it, anyone on the network can cut a response. uv stops then.
        """
        tls = self._inner.get_extra_info("ssl_object")
        try:
            return tls is None or not tls.read(1)
        except (OSError, ValueError):
            return False

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Send a request, or a part of it."""
        self._framing.start()
        self._framing.is_odd = False
        if buffer.startswith(b"CONNECT "):  # to a server behind a proxy
            self._port = int(buffer.split(b" ")[1].rpartition(b":")[2])
        await self._inner.write(buffer, timeout)

    async def aclose(self) -> None:
        """Close the connection."""
        await self._inner.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Begin TLS on the connection."""
        async with self._handshakes.of(f"https://{server_hostname}:{self._port}"):
            inner = await self._inner.start_tls(ssl_context, server_hostname, timeout)
        return LimitedStream(inner, self._handshakes, self._port)

    def get_extra_info(self, info: str) -> Any:
        """Return what httpcore asks about the connection, or ``is_odd``."""
        if info == "is_odd":
            return self._framing.is_odd
        # httpcore closes an idle connection that is readable. Bytes in h11 count, too.
        if info == "is_readable" and not self._framing.is_complete:
            return True
        return self._inner.get_extra_info(info)


def shown_proxy(proxy: str) -> str:
    """Return the URL of a proxy without its user and password, for a message."""
    scheme, _, rest = proxy.partition("://")
    _, at, server = rest.rpartition("@")
    return redacted(f"{scheme}://{at and '****@'}{server}")


class OddReply(CompleteResponse):
    """A reply that uv does not accept; see `Framing.is_odd`."""

    __slots__ = ()


def has_unread_body(reply: CompleteResponse) -> bool:
    """Return whether pip may be unable to read the body of an error, and then stops."""
    return bool(reply.raw) or not reply.is_whole


def make_reply(response: httpx.Response) -> CompleteResponse:
    """Return the status and headers of a response, and a body that pip must read."""
    headers = {key.lower(): text for key, text in response.headers.items()}
    more = response.extensions
    return (OddReply if more.get("is_odd") else CompleteResponse)(
        status=response.status_code,
        url=str(response.url),
        headers=headers,
        body=b"",
        raw=more.get("raw", b""),
        is_whole=more.get("is_whole", True),
        away=more.get("away", ""),
    )


def decode(reply: CompleteResponse, limit: int) -> bytes | None:
    """Return the decompressed body; if it is too large, its first ``limit + 1`` bytes.

    A body whose coding is no compression, such as ``none``, is returned unchanged.

    :returns: ``None`` for a damaged body, for one that is not compressed as declared,
        and for one with a compression that only some installers can undo.
    """
    coding = reply.headers.get("content-encoding", "").strip().lower()
    forms = {"gzip": (31,), "x-gzip": (31,), "deflate": (15, -15)}.get(coding, ())
    for bits in forms if reply.raw else ():
        with suppress(zlib.error):
            engine = zlib.decompressobj(bits)
            body = engine.decompress(reply.raw, limit + 1)
            is_all = engine.eof and not engine.unused_data
            # Like uv, reject data after the end of the body; pip ignores it.
            if is_all or len(body) > limit or not reply.is_whole:
                return body
    return None if reply.raw and _COMPRESSED.search(coding) else reply.raw


def content_length(response: httpx.Response) -> int:
    """Return the announced size of a response in bytes, or 0 if unknown."""
    length = response.headers.get("content-length", "")
    return int(length) if length.isdecimal() and len(length) < 20 else 0


def read_retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of ``Retry-After``; ``None`` if it is missing or invalid.

    RFC 9110, section 10.2.3: "either an HTTP-date or a number of seconds to delay".
    """
    text = headers.get("retry-after", "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    date = read_date(text)
    return None if date is None else max(0.0, date - time.time())


def read_date(text: str) -> float | None:
    """Return an HTTP date in seconds since 1970; ``None`` if it is invalid."""
    with suppress(ValueError, TypeError, IndexError, OverflowError):
        return email.utils.parsedate_to_datetime(text).timestamp()
    return None


def is_own(headers: Mapping[str, str]) -> bool:
    """Return whether a request or a response comes from this process."""
    return any(headers.get(name) == text for name, text in OWN.items())


def check_status(response: httpx.Response, url: str, *, most: int) -> None:
    """Raise an error if the status of a response shows a failure.

    :param most: the first error status; pip and uv read a page with any status below
        400.
    :raises UpstreamError: the status is an error.
    :raises PassingError: the error may be temporary, such as 503.
    """
    if (status := response.status_code) < most or (most == 400 and status >= 600):
        return
    message = f"HTTP {status} {response.reason_phrase}".rstrip()
    if is_own(response.headers):
        raise UpstreamError("leads back to this server", url)
    reply = make_reply(response)
    if status in PASSING:
        error = PassingError(message, url, status=status, reply=reply)
        error.wait = read_retry_after(response.headers)
        raise error
    hint = UpstreamError.usual_hint
    if status == 401:
        hint = "give credentials: in its URL, a netrc file or a keyring"
    raise UpstreamError(message, url, status=status, reply=reply, hint=hint)


def too_large(
    url: str, limit: int, hint: str = "check that this is the right file"
) -> TooLargeError:
    """Return the error for a response of more than ``limit`` bytes."""
    message = f"larger than {limit >> 20} MiB"
    return TooLargeError(message, url, hint=hint)


async def unpack(
    reply: CompleteResponse, url: str, limit: int, turn: Turn | None
) -> CompleteResponse:
    """Add the body, decompressed by `decode`; a large one waits for its turn.

    :raises UpstreamError: the body cannot be decompressed, or is too large.
    """
    found: bytes | None = reply.raw
    if "content-encoding" in reply.headers:
        limit = min(limit, max(_UNPACKED, _RATIO * len(reply.raw)))
        first = limit if turn is None else min(limit, LARGE)
        found = await asyncio.to_thread(decode, reply, first)
        if turn is not None and found is not None and first < min(limit, len(found)):
            del found
            await turn.take()
            found = await asyncio.to_thread(decode, reply, limit)
    if found is None:
        raise UpstreamError("cannot be decompressed", url, reply=reply)
    if len(found) > limit:
        raise too_large(url, limit)
    return replace(reply, body=found)


def without_frames(error: E) -> E:
    """Return an error without the frames through which it and its causes have passed.

    Frames have whole responses, and some refer to their error. Python looks for such
    cycles after many new objects, and a few large responses take gigabytes before.
    """
    cause: BaseException | None = error
    while cause is not None:
        last, cause = cause, cause.__context__
        last.__traceback__ = last.__context__ = None
    return error


def pause_before(attempt: int, error: PassingError) -> float | None:
    """Return the seconds before a retry; ``None`` if the server requests too many.

    :param attempt: the number of the retry, from 1.
    """
    if error.wait is not None:
        return error.wait if error.wait <= _LONGEST else None
    pause: float = min(_LONGEST, _FIRST * 2 ** (attempt - 1))
    # Vary the pause, so workers that failed together do not retry together.
    return pause * random.uniform(0.5, 1.0)  # noqa: S311  # nothing secret
