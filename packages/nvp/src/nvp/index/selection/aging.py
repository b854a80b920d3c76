"""What a server remembers for a while: bounded in number and in age."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["FOREVER", "FRESH", "Aging"]

K = TypeVar("K")
V = TypeVar("V")

FRESH = 600.0
"""Seconds for which a server relies on what an index has said. PyPI's own pages are
cached for as long."""

FOREVER = math.inf
"""The age for entries that stay until there are too many."""


class Aging(Generic[K, V]):
    """A mapping whose entries go when they are old, or too many.

    :param most: the number of entries; the oldest goes first.
    :param age: the seconds for which an entry stays.
    :param clock: returns the time, in seconds.
    """

    def __init__(
        self,
        most: int,
        age: float = FRESH,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most = most
        self._age = age
        self._clock = clock
        self._entries: OrderedDict[K, tuple[float, V]] = OrderedDict()

    def get(self, key: K) -> V | None:
        """Return the entry; ``None`` where there is none, or no fresh one."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        since, value = entry
        if self._clock() - since < self._age:
            return value
        del self._entries[key]
        return None

    def put(self, key: K, value: V) -> None:
        """Add or replace an entry; its age starts now."""
        self._entries.pop(key, None)
        self._entries[key] = self._clock(), value
        if len(self._entries) > self._most:
            self._entries.popitem(last=False)

    def values(self) -> list[V]:
        """Return all entries that are fresh, in the order in which they were put."""
        now = self._clock()
        return [v for since, v in self._entries.values() if now - since < self._age]

    def __len__(self) -> int:
        return len(self._entries)
