"""What one report may cost, whatever an archive makes of its few kilobytes.

Spending all of it takes some 15 seconds. Real wheels stay far below: the numbers are
of those that need most.
"""

from __future__ import annotations

__all__ = ["Budget"]

STEPS = 1_000_000
"""Steps of the scanner: entries, and starts and ends of containers. cuFFT, which has
most, needs 73,000."""

CHECKED = 20_000
"""Cubins whose sections are looked at; in cuFFT there are 1,086."""

UNPACKED = 256 * 1024 * 1024
"""Bytes that are decompressed, to see whether there are kernels: 14 MiB of
cuSPARSELt."""

SEQUENCES = 4_000_000
"""Sequences of LZ4, which is decoded here, in Python; cuSPARSELt has 219,000."""


class Budget:
    """Shared by the files of an archive, folder or distribution, and by threads.

    Without a lock: a step that two threads count as one costs no more than a step.
    """

    __slots__ = ("_told", "checked", "sequences", "steps", "unpacked")

    def __init__(self) -> None:
        self.steps = STEPS
        self.checked = CHECKED
        self.unpacked = UNPACKED
        self.sequences = SEQUENCES
        self._told: set[str] = set()

    @property
    def may_unpack(self) -> bool:
        """Is there something left for another piece."""
        return self.checked > 0 and self.unpacked > 0 and self.sequences > 0

    def is_news(self, message: str) -> bool:
        """Is it the first time that this is said of the report."""
        if message in self._told:
            return False
        self._told.add(message)
        return True
