"""What one report may cost, since a hostile archive of a few kilobytes can cost much.

To spend all of it takes about 15 seconds. Real wheels stay far below: each limit says
what the wheel that needs the most takes of it.
"""

from __future__ import annotations

import threading

__all__ = ["Budget"]

STEPS = 1_000_000
"""Steps of the scanner: entries, starts and ends of containers. cuFFT takes 73,000."""

CHECKED = 20_000
"""Cubins that are searched for kernels. cuFFT has 1,086."""

UNPACKED = 256 * 1024 * 1024
"""Bytes that are decompressed for that. cuSPARSELt takes 14 MiB."""

SEQUENCES = 4_000_000
"""Sequences of LZ4, which is decoded in Python. cuSPARSELt has 219,000."""


class Budget:
    """What is left to spend. The files of one report share a budget, in all threads.

    There is no lock: if two threads count one step together, that is one step too many
    at most.
    """

    __slots__ = ("_told", "checked", "sequences", "steps", "unpacked")

    def __init__(self) -> None:
        self.steps = STEPS
        self.checked = CHECKED
        self.unpacked = UNPACKED
        self.sequences = SEQUENCES
        self._told: dict[str, int] = {}

    @property
    def may_unpack(self) -> bool:
        """Whether enough is left to decompress another piece."""
        return self.checked > 0 and self.unpacked > 0 and self.sequences > 0

    def told(self) -> frozenset[str]:
        """Return what has been told so far."""
        return frozenset(self._told)

    def forget_since(self, told: frozenset[str]) -> None:
        """Forget what this thread has told since, which was thrown away."""
        mine = threading.get_ident()
        for message, thread in list(self._told.items()):
            if thread == mine and message not in told:
                del self._told[message]

    def is_news(self, message: str) -> bool:
        """Return whether ``message`` is new in this report, and remember it."""
        if message in self._told:
            return False
        self._told[message] = threading.get_ident()
        return True
