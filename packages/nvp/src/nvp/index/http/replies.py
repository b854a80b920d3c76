"""What is made of the responses of servers: their bodies, headers and redirects."""

from __future__ import annotations

import email.utils
import time
import zlib
from collections.abc import Mapping
from contextlib import suppress
from urllib.parse import urlsplit

import httpx

from .urls import CompleteResponse, UpstreamError, split_credentials


def find_target(response: httpx.Response) -> str:
    """Return the URL that a response redirects to.

    Credentials in it are left out: they are the user's to give.

    :raises UpstreamError: it is no URL.
    """
    try:
        urlsplit(response.headers["location"])  # httpx takes what pip refuses.
        following = response.next_request
    except (httpx.HTTPError, httpx.InvalidURL, ValueError):
        following = None
    if following is None:
        message, reply = "redirects to what is no URL", make_reply(response)
        raise UpstreamError(message, str(response.url), reply=reply)
    return split_credentials(str(following.url))[0]


def make_reply(response: httpx.Response) -> CompleteResponse:
    """Return status and headers of a response, whose body has not been read."""
    headers = {key.lower(): text for key, text in response.headers.items()}
    return CompleteResponse(
        status=response.status_code,
        url=str(response.url),
        headers=headers,
        body=b"",
    )


def decode(reply: CompleteResponse, limit: int) -> bytes | None:
    """Return the body without compression, or a little more than the limit of it.

    What no installer can decode is returned as it is.

    :returns: ``None`` for a body that is not compressed as its header says.
    """
    coding = reply.headers.get("content-encoding", "").strip().lower()
    forms = {"gzip": (31,), "x-gzip": (31,), "deflate": (15, -15)}.get(coding, ())
    for bits in forms if reply.raw else ():
        with suppress(zlib.error):
            return zlib.decompressobj(bits).decompress(reply.raw, limit + 1)
    return None if forms and reply.raw else reply.raw


def content_length(response: httpx.Response) -> int:
    """Return the bytes that a response announces, or 0 if it does not say it."""
    length = response.headers.get("content-length", "")
    return int(length) if length.isdecimal() and len(length) < 20 else 0


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
