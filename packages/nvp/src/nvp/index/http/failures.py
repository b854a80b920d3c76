"""The errors of HTTP requests: what failed, where, and what to do next.

URLs are redacted here, where the errors are made.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import httpx

from .retrying import PASSING, PassingError, read_retry_after
from .urls import NoRangesError, UpstreamError, redacted

__all__ = [
    "TooLargeError",
    "check_status",
    "make_error",
    "make_passing_error",
    "no_ranges",
    "not_allowed",
    "too_large",
    "translate_error",
]


def check_status(response: httpx.Response, url: str) -> None:
    """Raise an error where a server sends neither a file nor a part of one.

    :raises UpstreamError: the status is not 200 or 206.
    :raises PassingError: it is one that may pass, such as 503.
    """
    status = response.status_code
    if status in (200, 206):
        return
    places: dict[str, str] = {}
    if status == 401:
        places["hint"] = "give credentials: in its URL, a netrc file or a keyring"
    message = f"HTTP {status} {response.reason_phrase}".rstrip()
    if status in PASSING:
        error = make_passing_error(message, url, status=status)
        error.wait = read_retry_after(response.headers)
        raise error
    raise make_error(message, url, status=status, **places)


class TooLargeError(UpstreamError):
    """A response is larger than its limit."""


def too_large(url: str, limit: int) -> TooLargeError:
    """Return the error for a response of more than ``limit`` bytes."""
    return TooLargeError(
        f"larger than {limit // 1024 // 1024} MiB",
        path=redacted(url),
        hint="check that this is the right file",
    )


def not_allowed(url: str) -> UpstreamError:
    """Return the error for a URL that the settings do not allow."""
    if urlsplit(url).scheme != "http":
        return make_error("only http and https are read", url, status=403)
    message = "is neither https nor a trusted host"
    return make_error(message, url, status=403, hint="see pip's --trusted-host")


def translate_error(error: httpx.HTTPError, url: str, timeout: float) -> UpstreamError:
    """Return an error of httpx as one of this package, without secrets.

    :param timeout: the seconds after which a server counts as silent.
    """
    if isinstance(error, httpx.TimeoutException):
        return make_passing_error(f"no response within {timeout:g} s", url)
    message = f"cannot be read: {redacted(str(error)) or type(error).__name__}"
    if isinstance(error, httpx.TransportError):
        return make_passing_error(message, url, status=502)
    return make_error(message, url)


def no_ranges(message: str, url: str) -> NoRangesError:
    """Return the error for a file of which the server sends no parts."""
    return NoRangesError(message, path=redacted(url), hint="download it first")


def make_passing_error(message: str, url: str, **places: Any) -> PassingError:
    """Return an error after which the request may be sent again.

    :param places: ``hint`` and ``status``, where they are not the usual ones.
    """
    places = {"hint": "check the URL", "status": 504, **places}
    return PassingError(message, path=redacted(url), **places)


def make_error(message: str, url: str, **places: Any) -> UpstreamError:
    """Return an error about a URL.

    :param places: ``hint`` and ``status``, where they are not the usual ones.
    """
    places.setdefault("hint", "check the URL")
    return UpstreamError(message, path=redacted(url), **places)
