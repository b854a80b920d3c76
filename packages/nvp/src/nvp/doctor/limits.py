"""What is looked into of an environment at most, so that every diagnosis ends soon.

Anybody can publish a distribution whose files take hours to read: METADATA of many
megabytes, RECORDs with millions of lines, libraries that are linked with hundreds of
others and name thousands of folders. All checks of one diagnosis share one allowance of
each kind. What is left out then is named in a note, and never reported as a finding.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..findings import listed

DISTRIBUTIONS = "distributions"
BYTES = "bytes of METADATA, RECORD and the like"
FILES = "lines of RECORD"
CODE = "files with data, in the search for GPU code"
REQUIREMENTS = "requirements that lead to GPU code"
MARKERS = "comparisons of requirements with this Python"
SEARCHES = "steps of the search for libraries"
OPENED = "bytes of libraries that are searched for names or hashed"
SYMBOLS = "symbols of libraries (or as much work)"

MOST = {
    DISTRIBUTIONS: 10_000,
    BYTES: 64 << 20,
    FILES: 400_000,
    CODE: 20_000,
    REQUIREMENTS: 20_000,
    MARKERS: 50_000,
    SEARCHES: 4_000_000,
    OPENED: 1 << 30,
    SYMBOLS: 4_000_000,
}
"""An environment of 104 distributions with 43,000 files takes a sixth of any of these
at most. The libraries of torch 2.15 have 120,000 symbols that count."""

_NAMED = 5
"""How many distributions one note names."""


class Limits:
    """What may still be spent of each kind in `MOST`."""

    def __init__(self) -> None:
        self._left = dict(MOST)
        self._without: dict[str, dict[str, None]] = {}

    def take(self, kind: str, amount: int = 1, *, of: str) -> bool:
        """Return whether so much of a kind is left, and take it.

        :param of: what is left out otherwise, such as the name of a distribution.
        """
        if amount <= self._left[kind]:
            self._left[kind] -= amount
            return True
        self._left[kind] = 0
        self._without.setdefault(kind, {})[of] = None
        return False

    def is_used_up(self, kind: str) -> bool:
        """Return whether anything of a kind has been left out."""
        return kind in self._without

    def notes(self) -> Iterator[str]:
        """Yield a sentence for each kind of which something has been left out."""
        for kind, names in self._without.items():
            yield (
                f"only {MOST[kind]:,} {kind} are looked at, and not all of "
                f"{listed(list(names), _NAMED)}"
            )
