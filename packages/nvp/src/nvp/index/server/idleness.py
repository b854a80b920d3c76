"""When a server has been idle for long enough to end."""

from __future__ import annotations

__all__ = ["PAUSE", "RENEWED_AFTER", "IdleWatch"]

RENEWED_AFTER = 3600.0
"""Seconds after which a server that starts again by itself uses the first pause.

The machine is detected once for each start, so a driver that was changed while
requests keep coming is noticed after this time.
"""

PAUSE = 5.0
"""Seconds without a request that count as a pause."""

_LOOK = 1.0
"""Seconds between two looks at a server that is busy."""


class IdleWatch:
    """Says when a server may end; it is told what the server does.

    :param idle: seconds without a request after which the server ends.
    :param now: the time at the start, in seconds.
    :param renews: the next request starts the server again, so that it may end at the
        first pause once it is old.
    """

    def __init__(self, idle: float, *, now: float, renews: bool) -> None:
        self._idle = idle
        self._renews = renews
        self._start = self._last = now
        self._requests = 0

    def seconds_left(self, *, now: float, requests: int, busy: bool) -> float:
        """Return after how many seconds to look again; the server may end at 0.

        :param requests: how many requests there have been.
        :param busy: a request is under way.
        """
        if busy or requests != self._requests:
            self._requests, self._last = requests, now
        if busy:
            return _LOOK
        old = self._renews and now - self._start >= RENEWED_AFTER
        left = (min(self._idle, PAUSE) if old else self._idle) - (now - self._last)
        return max(0.0, min(left, _LOOK))
