"""One file: its tables, and the GPU code in it, out of a stream."""

from __future__ import annotations

import bisect
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from .budget import Budget
from .elf import Image, Section, read_needed, read_sections
from .fatbin import CUBIN, LTO_IR, PTX, Entry, Scanner
from .loose import Code, guess_format, read_cubin, read_ptx
from .pe import read_pe
from .ranges import Answers
from .report import Defect, LibraryReport, sort_targets, target_key

__all__ = ["BrokenError", "Pieces", "inspect_library"]

Pieces = Callable[[], Iterator[bytes]]
"""Reads the file from its start, in pieces of some size."""

MAX_DEFECTS = 20
MAX_DISTINCT = 4096
"""Targets, and kinds of unknown entries, of one file."""

MAX_PLACES = 262_144
"""Containers whose section is told; cuFFT, which has most, has 24,453."""

_PASSES = 3
"""How often a stream is read once more for tables that have passed."""

_HEAD = 64
_AT_START = array("Q", [0])


class BrokenError(Exception):
    """A stream ends here: the rest of the file cannot be had."""


class _Tally:
    """What the entries of a file add up to."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.targets: Counter[str] = Counter()
        self.stubs: Counter[str] = Counter()
        self.lto: Counter[str] = Counter()
        self.compression: Counter[str] = Counter()
        self.unknown: Counter[str] = Counter()
        self.isa: dict[str, set[str]] = {}
        self.unchecked = 0
        self.places = array("Q")
        self.defects: list[Defect] = []
        self._left_out = 0

    def add_container(self, offset: int) -> None:
        if len(self.places) < MAX_PLACES:
            self.places.append(offset)

    def add(self, entry: Entry) -> None:
        known = len(self.targets) + len(self.lto) + len(self.unknown)
        if known + sum(map(len, self.isa.values())) >= MAX_DISTINCT:
            if not self._left_out:
                self.add_defect(
                    None, f"more than {MAX_DISTINCT} targets: no more are read"
                )
            self._left_out += 1
            return
        if entry.kind == CUBIN:
            name = f"{entry.target}_real"
            self.targets[name] += 1
            if entry.stub:
                self.stubs[name] += 1
            elif entry.stub is None:
                self.unchecked += 1
        elif entry.kind == PTX:
            name = f"{entry.target}_virtual"
            self.targets[name] += 1
            self.isa.setdefault(name, set()).add(entry.isa)
        elif entry.kind == LTO_IR:
            self.lto[entry.target] += 1
        else:
            self.unknown[f"kind {entry.kind:#x}"] += 1
        self.compression[entry.compression] += 1

    def add_defect(self, offset: int | None, message: str) -> None:
        if len(self.defects) == MAX_DEFECTS:
            message, offset = "more defects follow", None
        if len(self.defects) <= MAX_DEFECTS:
            place = "" if offset is None else f"{offset:#x}"
            self.defects.append(Defect(path=self.path, place=place, message=message))


def inspect_library(
    path: str,
    size: int,
    pieces: Pieces,
    *,
    vendored: bool = False,
    budget: Budget | None = None,
) -> LibraryReport | None:
    """The GPU code of a file; ``None`` for one that is no library and has none.

    :param path: what to call it.
    :param size: its length in bytes, as far as that is known beforehand.
    :param pieces: reads it, at most four times; it may raise `BrokenError`, which
        becomes a defect.
    :param budget: shared with the other files of a report.
    """
    tally = _Tally(path)
    scanner = Scanner(
        size,
        budget=budget or Budget(),
        on_container=tally.add_container,
        on_entry=tally.add,
        on_defect=tally.add_defect,
    )
    head, form = b"", ""
    readers: list[_Answers] = []
    try:
        for piece in pieces():
            data = piece
            if not form:
                head += piece
                if len(head) < min(_HEAD, size):
                    continue
                data, form = head, guess_format(path, head)
                readers = _readers(form, size)
            scanner.feed(data)
            for reader in readers:
                reader.feed(data)
    except BrokenError as error:
        tally.add_defect(None, str(error))
    scanner.finish()
    _read_again(readers, pieces)
    found = [reader.result for reader in readers]
    # Both readers of an ELF file start with its header.
    errors = [str(reader.error) for reader in readers if reader.error is not None]
    for message in dict.fromkeys(errors):
        tally.add_defect(None, message)
    form = form or guess_format(path, head)
    return _report(tally, form, size, found, vendored=vendored)


_Answers = Answers[Image] | Answers[Code] | Answers[tuple[str, ...]]


def _readers(form: str, size: int) -> list[_Answers]:
    if form == "elf":
        return [Answers(read_sections(), size), Answers(read_needed(), size)]
    if form == "pe":
        return [Answers(read_pe(), size)]
    if form == "cubin":
        return [Answers(read_cubin(), size)]
    return [Answers(read_ptx(), size)] if form == "ptx" else []


def _read_again(readers: list[_Answers], pieces: Pieces) -> None:
    """Serve what had passed when it was asked for."""
    for _ in range(_PASSES):
        left = max((reader.end for reader in readers), default=0)
        if not left:
            return
        for reader in readers:
            reader.restart()
        try:
            for piece in pieces():
                left -= len(piece)
                for reader in readers:
                    reader.feed(piece)
                if left <= 0:
                    break
        except BrokenError:
            break
    for reader in readers:
        reader.finish()


def _report(
    tally: _Tally,
    form: str,
    size: int,
    found: Sequence[Image | Code | tuple[str, ...] | None],
    *,
    vendored: bool,
) -> LibraryReport | None:
    image: Image | None = None
    needed: tuple[str, ...] = ()
    for item in found:
        if isinstance(item, Image):
            image, needed = item, item.needed
        elif isinstance(item, Code):
            image = item.image
            _add_loose(tally, item, form)
        elif item is not None:
            needed = item
    for message in image.defects if image else ():
        tally.add_defect(None, message)
    if form == "fatbin" and tally.places[:1] != _AT_START:
        form = "data"
    if form == "data" and not (tally.places or tally.defects):
        return None
    return LibraryReport(
        path=tally.path,
        format=form,
        machine=image.machine if image else "",
        size=size,
        vendored=vendored,
        targets=sort_targets(tally.targets),
        lto=sort_targets(tally.lto),
        stubs=sort_targets(tally.stubs),
        ptx_isa={
            name: tuple(sorted(tally.isa[name], key=_version))
            for name in sorted(tally.isa, key=target_key)
        },
        compression=dict(sorted(tally.compression.items())),
        sections=_by_section(tally.places, image.sections if image else ()),
        needed=tuple(dict.fromkeys(needed)),
        unknown=dict(sorted(tally.unknown.items())),
        unchecked=tally.unchecked,
        defects=tuple(tally.defects),
    )


def _add_loose(tally: _Tally, code: Code, form: str) -> None:
    name = f"{code.target}_{'virtual' if form == 'ptx' else 'real'}"
    tally.targets[name] += 1
    tally.compression["none"] += 1
    if code.stub:
        tally.stubs[name] += 1
    if code.isa:
        tally.isa[name] = {code.isa}


def _version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


def _by_section(places: Sequence[int], sections: Sequence[Section]) -> dict[str, int]:
    spans = sorted(
        (item.offset, item.offset + item.size, item.name) for item in sections
    )
    starts = [start for start, _, _ in spans]
    found: Counter[str] = Counter()
    for place in places:
        index = bisect.bisect_right(starts, place) - 1
        inside = index >= 0 and place < spans[index][1]
        found[spans[index][2] if inside else ""] += 1
    return dict(sorted(found.items()))
