"""One file: its tables, and the GPU code in it, read from a stream."""

from __future__ import annotations

import bisect
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any

from .budget import Budget
from .dynamic import read_needed
from .elf import Image, NamesWatch, Section, read_sections
from .fatbin import CUBIN, LTO_IR, PTX, Entry, Scanner
from .loose import Code, guess_format, read_cubin, read_ptx
from .pe import read_pe
from .ranges import RangeFeeder, Reader, read_seekable
from .report import Defect, LibraryReport, sort_targets, target_key

__all__ = [
    "BrokenError",
    "Pieces",
    "SuspectError",
    "inspect_library",
    "inspect_local",
]

Pieces = Callable[[], Iterator[bytes]]
"""A function that reads the file from its start, in pieces of any length."""

MAX_DEFECTS = 20
"""Defects that are listed for one file."""

MAX_DISTINCT = 4096
"""Targets, PTX versions and kinds of unknown entries that one file may have."""

MAX_PLACES = 262_144
"""Containers whose section is looked up; cuFFT, which has the most, has 24,453."""

_PASSES = 2
"""How often a stream is read again for tables that have passed. The longest chains of
references go back twice: from the section headers to the names of the sections and from
those to the contents of a section, or from the program headers to the dynamic section
and from there to the names of the libraries."""

_HEAD = 64
"""Bytes from which the format of a file is told."""

_STEP = 256 * 1024
"""Bytes of a file on disk that are read at once, where none are skipped."""

_SHORT = 4 * 1024
"""Bytes that are read after some were skipped: an entry has a header of 64 or more."""

_AT_START = array("Q", [0])


class BrokenError(Exception):
    """A stream ends early: the rest of the file cannot be read."""


class SuspectError(Exception):
    """A stream may be damaged: another reader has to say what is wrong with it."""


class _Tally:
    """What the entries of a file add up to."""

    def __init__(self, path: str) -> None:
        self.path = path
        # A Counter takes ten times as long to make, and there may be 10,000 files.
        self.targets: dict[str, int] = defaultdict(int)
        self.stubs: dict[str, int] = defaultdict(int)
        self.lto: dict[str, int] = defaultdict(int)
        self.compression: dict[str, int] = defaultdict(int)
        self.unknown: dict[str, int] = defaultdict(int)
        self.isa: dict[str, set[str]] = {}
        self.unchecked = 0
        self.places = array("Q")
        self.defects: list[Defect] = []
        self._is_full = False

    def add_container(self, offset: int) -> None:
        """Note where a container starts."""
        if len(self.places) < MAX_PLACES:
            self.places.append(offset)

    def add(self, entry: Entry) -> None:
        """Count an entry, unless the file has too many different ones."""
        known = len(self.targets) + len(self.lto) + len(self.unknown)
        if known + sum(map(len, self.isa.values())) >= MAX_DISTINCT:
            if not self._is_full:
                self._is_full = True
                message = f"more than {MAX_DISTINCT} targets: the others are not read"
                self.add_defect(None, message)
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
        """Note a defect, unless there are many already."""
        if len(self.defects) == MAX_DEFECTS:
            message, offset = "there are more defects", None
        if len(self.defects) <= MAX_DEFECTS:
            place = "" if offset is None else f"{offset:#x}"
            self.defects.append(Defect(path=self.path, place=place, message=message))


def inspect_library(
    path: str,
    size: int,
    pieces: Pieces,
    *,
    budget: Budget | None = None,
) -> LibraryReport | None:
    """Find the GPU code of a file; ``None`` for other files without GPU code.

    :param path: the name of the file in the report.
    :param size: the length in bytes that the file claims to have.
    :param pieces: reads the file, and is called at most three times; it may raise
        `BrokenError`, which becomes a defect.
    :param budget: what may be spent; the files of one report share it.
    :raises SuspectError: ``pieces`` raised it. What was read so far does not count.
    """
    tally = _Tally(path)
    scanner = _scanner(tally, size, budget)
    head, form = b"", ""
    feeders: list[_Feeder] = []
    try:
        for piece in pieces():
            data = piece
            if not form:
                head += piece
                if len(head) < min(_HEAD, size):
                    continue
                data, form = head, guess_format(path, head)
                feeders = _feeders(form, size, tally)
            scanner.feed(data)
            for feeder in feeders:
                feeder.feed(data)
    except BrokenError as error:
        tally.add_defect(None, str(error))
    scanner.finish()
    if form == "elf" and not tally.places:
        # The names of the sections say where containers are, and there are none.
        feeders[0].finish()
    _read_again(feeders, pieces)
    tables = [feeder.result for feeder in feeders]
    _add_errors(tally, [item.error for item in feeders if item.error is not None])
    form = form or guess_format(path, head)
    return _report(tally, form, size, tables)


def inspect_local(
    path: str,
    size: int,
    place: str,
    *,
    budget: Budget | None = None,
    on_bytes: Callable[[int], None] = lambda _: None,
) -> LibraryReport | None:
    """Find the GPU code of a file on disk; the report is that of `inspect_library`.

    The machine code itself, which is most of a library of CUDA, is not read.

    :param path: the name of the file in the report.
    :param place: where the file is.
    :param on_bytes: is called with the number of bytes of each step.
    """
    tally = _Tally(path)
    scanner = _scanner(tally, size, budget)
    form = ""
    tables: list[_Table | None] = []
    errors: list[ValueError] = []
    try:
        with open(place, "rb", buffering=0) as file:
            form = guess_format(path, file.read(_HEAD))
            _scan(scanner, size, file, on_bytes)
            tables = [_read_table(item, file, errors) for item in _readers(form)]
    except OSError as error:
        tally.add_defect(None, f"cannot be read: {error.strerror or error}")
    scanner.finish()
    _add_errors(tally, errors)
    return _report(tally, form, size, tables)


def _read_table(
    reader: Reader[_Table], file: IO[bytes], errors: list[ValueError]
) -> _Table | None:
    try:
        return read_seekable(reader, file)
    except ValueError as error:
        errors.append(error)
        return None


def _scan(
    scanner: Scanner, size: int, file: IO[bytes], on_bytes: Callable[[int], None]
) -> None:
    step = _STEP
    while (start := scanner.position) < size:
        file.seek(start)
        data = file.read(min(step, size - start))
        if not data:
            return
        scanner.feed(data)
        # Where much was skipped, much is likely to be skipped again.
        step = min(2 * step, _STEP) if scanner.wanted == scanner.position else _SHORT
        scanner.skip(scanner.wanted)
        on_bytes(scanner.position - start)


def _scanner(tally: _Tally, size: int, budget: Budget | None) -> Scanner:
    return Scanner(
        size,
        budget=budget or Budget(),
        on_container=tally.add_container,
        on_entry=tally.add,
        on_defect=tally.add_defect,
    )


def _add_errors(tally: _Tally, errors: Iterable[ValueError]) -> None:
    # An ELF file has two readers, and both fail when its header is wrong.
    for message in dict.fromkeys(map(str, errors)):
        tally.add_defect(None, message)


_Table = Image | Code | tuple[str, ...]
_Feeder = RangeFeeder[Image] | RangeFeeder[Code] | RangeFeeder[tuple[str, ...]]


def _feeders(form: str, size: int, tally: _Tally) -> list[_Feeder]:
    """Return what reads the tables of a format; that of sections comes first."""
    if form == "elf":
        watch = NamesWatch(lambda: len(tally.places) > 0)
        sections = RangeFeeder(read_sections(), size, watch=watch)
        return [sections, RangeFeeder(read_needed(), size)]
    return [RangeFeeder(reader, size) for reader in _readers(form)]


def _readers(form: str) -> list[Reader[Any]]:
    if form == "elf":
        return [read_sections(), read_needed()]
    if form == "pe":
        return [read_pe()]
    if form == "cubin":
        return [read_cubin()]
    return [read_ptx()] if form == "ptx" else []


def _read_again(feeders: list[_Feeder], pieces: Pieces) -> None:
    """Read the stream again for the ranges that had passed when they were asked for."""
    for _ in range(_PASSES):
        left = max((feeder.end for feeder in feeders), default=0)
        if not left:
            return
        for feeder in feeders:
            feeder.restart()
        try:
            for piece in pieces():
                left -= len(piece)
                for feeder in feeders:
                    feeder.feed(piece)
                if left <= 0:
                    break
        except BrokenError:
            break
    for feeder in feeders:
        feeder.finish()


def _report(
    tally: _Tally,
    form: str,
    size: int,
    tables: Sequence[_Table | None],
) -> LibraryReport | None:
    image: Image | None = None
    needed: tuple[str, ...] = ()
    for item in tables:
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
        form = "data"  # the first bytes only look like a container
    if form == "data" and not (tally.places or tally.defects):
        return None
    return LibraryReport(
        path=tally.path,
        format=form,
        machine=image.machine if image else "",
        size=size,
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
    """Count a file that is one piece of code itself."""
    name = f"{code.target}_{'virtual' if form == 'ptx' else 'real'}"
    tally.targets[name] += 1
    tally.compression["none"] += 1
    if code.stub:
        tally.stubs[name] += 1
    if code.isa:
        tally.isa[name] = {code.isa}


def _version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


def _by_section(places: Sequence[int], sections: Iterable[Section]) -> dict[str, int]:
    """Count the offsets in ``places`` by the section that they are in."""
    if not places:
        return {}
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
