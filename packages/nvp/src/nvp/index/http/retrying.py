"""Which failures may pass, and how long to wait before a request is sent again."""

from __future__ import annotations

import email.utils
import random
import time
from collections.abc import Mapping

from .urls import UpstreamError

__all__ = ["PASSING", "PassingError", "pause_before", "read_retry_after"]

PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses after which the same request may succeed (RFC 9110, section 15; RFC 6585 for
429, RFC 8470 for 425)."""

_FIRST = 0.5
"""Seconds before the first new attempt; the time doubles with each further one."""

_LONGEST = 60.0
"""Seconds that a census waits at most, whatever the server asks for."""


class PassingError(UpstreamError):
    """A failure that may be gone when the same request is sent again.

    :param wait: how many seconds the server asks to wait; ``None`` if it does not say.
    """

    wait: float | None = None


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


def pause_before(attempt: int, error: PassingError) -> float | None:
    """Return how many seconds to wait; ``None`` if the server asks for too many.

    :param attempt: the number of the new attempt, from 1 on.
    """
    if error.wait is not None:
        return error.wait if error.wait <= _LONGEST else None
    pause: float = min(_LONGEST, _FIRST * 2 ** (attempt - 1))
    # Workers that failed together do not all come again at the same moment.
    return pause * random.uniform(0.5, 1.0)  # noqa: S311  # nothing secret
