"""What the entries of one file add up to."""

from __future__ import annotations

import bisect
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from .elf import Section
from .fatbin import CUBIN, LTO_IR, PTX, Entry
from .report import Defect, sort_targets, target_key

__all__ = ["Counts"]

MAX_DEFECTS = 20
"""Defects that are listed for one file."""

MAX_DISTINCT = 2048
"""Different entries that one file may have: by kind, target, version of PTX and
compression. cuBLASLt has 40."""

MAX_PLACES = 262_144
"""Containers whose section is looked up; cuFFT, which has the most, has 24,453."""


class Counts:
    """Counts the entries of a file, and notes where its containers and defects are.

    :param path: the name of the file in the report.
    """

    __slots__ = ("_entries", "_is_full", "defects", "path", "places")

    def __init__(self, path: str) -> None:
        self.path = path
        self.places = array("Q")
        self.defects: list[Defect] = []
        # The same few entries come again thousands of times.
        self._entries: dict[Entry, int] = {}
        self._is_full = False

    def add_container(self, offset: int) -> None:
        """Note where a container starts."""
        if len(self.places) < MAX_PLACES:
            self.places.append(offset)

    def add(self, entry: Entry) -> None:
        """Count an entry, unless the file has too many different ones."""
        entries = self._entries
        if entry in entries:
            entries[entry] += 1
        elif len(entries) < MAX_DISTINCT:
            entries[entry] = 1
        elif not self._is_full:
            self._is_full = True
            message = f"more than {MAX_DISTINCT} targets: the others are not read"
            self.add_defect(None, message)

    def add_defect(self, offset: int | None, message: str) -> None:
        """Note a defect, unless there are many already."""
        if len(self.defects) == MAX_DEFECTS:
            message, offset = "there are more defects", None
        if len(self.defects) <= MAX_DEFECTS:
            place = "" if offset is None else f"{offset:#x}"
            self.defects.append(Defect(path=self.path, place=place, message=message))

    def totals(self) -> dict[str, Any]:
        """Return the fields of `report.LibraryReport` that count entries."""
        if not self._entries:  # as in most files of a distribution
            return {}
        targets: dict[str, int] = defaultdict(int)
        stubs: dict[str, int] = defaultdict(int)
        lto: dict[str, int] = defaultdict(int)
        unknown: dict[str, int] = defaultdict(int)
        compression: dict[str, int] = defaultdict(int)
        isa: dict[str, set[str]] = defaultdict(set)
        unchecked = 0
        for entry, count in self._entries.items():
            if entry.kind == CUBIN:
                name = f"{entry.target}_real"
                targets[name] += count
                if entry.stub:
                    stubs[name] += count
                elif entry.stub is None:
                    unchecked += count
            elif entry.kind == PTX:
                name = f"{entry.target}_virtual"
                targets[name] += count
                isa[name].add(entry.isa)
            elif entry.kind == LTO_IR:
                lto[entry.target] += count
            else:
                unknown[f"kind {entry.kind:#x}"] += count
            compression[entry.compression] += count
        return {
            "targets": sort_targets(targets),
            "lto": sort_targets(lto),
            "stubs": sort_targets(stubs),
            "ptx_isa": {
                name: tuple(sorted(isa[name], key=_version))
                for name in sorted(isa, key=target_key)
            },
            "compression": dict(sorted(compression.items())),
            "unknown": dict(sorted(unknown.items())),
            "unchecked": unchecked,
        }

    def by_section(self, sections: Iterable[Section]) -> dict[str, int]:
        """Count the containers by the section that they are in."""
        return _by_section(self.places, sections) if self.places else {}


def _by_section(places: Sequence[int], sections: Iterable[Section]) -> dict[str, int]:
    spans = sorted(
        (item.offset, item.offset + item.size, item.name) for item in sections
    )
    starts = [start for start, _, _ in spans]
    counts: Counter[str] = Counter()
    for place in places:
        index = bisect.bisect_right(starts, place) - 1
        inside = index >= 0 and place < spans[index][1]
        counts[spans[index][2] if inside else ""] += 1
    return dict(sorted(counts.items()))


def _version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))
