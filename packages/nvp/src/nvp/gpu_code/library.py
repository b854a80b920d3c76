"""Read the tables and the GPU code of one file from a stream."""

from __future__ import annotations

import bisect
import errno
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import IO, Any, TypeVar

from nvidia_variant_provider.strict_json import open_regular

from .compression import LONG, NONE, PER_TARGET, Budget
from .dynamic import read_needed, read_other_parts
from .elf import Image, read_sections
from .fatbin import CUBIN, LTO_IR, PTX, Entry, Scanner
from .formats import Code, guess_format, read_cubin, read_pe, read_ptx
from .ranges import Range, RangeFeeder, Reader, charged, read_seekable
from .report import BrokenError, Defect, LibraryReport, sort_targets, target_key

Pieces = Callable[[], Iterator[bytes]]
"""A function that reads the file from its start in pieces of any length."""

_T = TypeVar("_T")

_PASSES = 2
"""The maximum number of times to read a stream again for earlier tables. The longest
chains of references go back twice: from the section headers of a cubin to the names of
the sections, and on to the content of a section; or from the program headers to the
dynamic section, and on to the names of the libraries."""

_HEAD = 64
"""The number of bytes needed to recognize the format of a file."""

_STEP = 256 * 1024
"""The number of bytes to read at once from a file on disk, if nothing was skipped."""

_SHORT = 4 * 1024
"""The number of bytes to read after skipping; entries have headers of 64 bytes."""

_NO_END = 1 << 64

_CUDART = (
    b"CUDA driver version is insufficient for CUDA runtime version\0",
    b"cuStreamWaitEvent_ptsz\0",
)
_CUDART_SINCE = {
    b"cuKernelSetCacheConfig\0": 12,
    b"cuMemDiscardAndPrefetchBatchAsync\0": 13,
}
"""Texts in every CUDA runtime (`_CUDART`, a message and a driver function), and driver
functions with the first major version whose runtime contains them. The message alone is
also in ``libcudadevrt``. Without symbols, only these texts reveal a statically linked
runtime. They were found in the runtimes 11.7 to 13.5, and in wheels with such runtimes.
"""

UNSEARCHED = "not searched completely: there is too much"

MAX_DEFECTS = 20
"""The maximum number of listed defects of a file."""

MAX_DISTINCT = 512
"""The maximum number of entries of a file that differ in kind, target, PTX version or
compression. cuBLASLt has 40."""


class Counts:
    """The counted entries, the first container and the defects of a file.

    :param path: the name of the file in the report.
    :param budget: the budget to charge for each distinct entry.
    """

    __slots__ = (
        "_budget",
        "_entries",
        "_is_full",
        "defects",
        "first_container",
        "path",
    )

    def __init__(self, path: str, budget: Budget) -> None:
        self.path = path
        self._budget = budget
        self.first_container: int | None = None
        self.defects: list[Defect] = []
        # Count equal entries together: the same few occur thousands of times.
        self._entries: dict[Entry, int] = {}
        self._is_full = False

    def add_container(self, offset: int) -> None:
        """Record the offset of the first container."""
        if self.first_container is None:
            self.first_container = offset

    def add(self, entry: Entry) -> None:
        """Count an entry, unless the file has too many different entries."""
        entries = self._entries
        if entry in entries:
            entries[entry] += 1
        elif len(entries) < MAX_DISTINCT and self._budget.names > 0:
            entries[entry] = 1
            self._budget.names -= PER_TARGET + len(self.path) // LONG
        elif not self._is_full:
            self._is_full = True
            message = "not all of its targets are read: there are too many"
            self.add_defect(None, message)

    def add_defect(self, offset: int | None, message: str) -> None:
        """Add a defect, unless there are already many."""
        if len(self.defects) == MAX_DEFECTS:
            message, offset = "there are more defects", None
        if len(self.defects) <= MAX_DEFECTS:
            place = "" if offset is None else f"{offset:#x}"
            self.defects.append(Defect(path=self.path, place=place, message=message))

    def totals(self) -> dict[str, Any]:
        """Return the fields of `report.LibraryReport` that summarize the entries."""
        if not self._entries:  # shortcut: most files have no entries
            return {}
        targets: dict[str, int] = defaultdict(int)
        stubs: dict[str, int] = defaultdict(int)
        lto: dict[str, int] = defaultdict(int)
        unknown: dict[str, int] = defaultdict(int)
        compression: dict[str, int] = defaultdict(int)
        isa: dict[str, set[str]] = defaultdict(set)
        unchecked = 0
        toolkit = (0, 0)
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
            # Ignore stubs, which linking adds and which never run.
            if entry.toolkit is not None and not entry.stub:
                toolkit = max(toolkit, entry.toolkit)
        return {
            "toolkit": "{}.{}".format(*toolkit) if any(toolkit) else "",
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


def _version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


def inspect_library(
    path: str,
    size: int,
    pieces: Pieces,
    *,
    budget: Budget | None = None,
) -> LibraryReport | None:
    """Find the GPU code of a file; ``None`` for a data file without GPU code.

    :param path: the name of the file in the report.
    :param size: the claimed size of the file in bytes.
    :param pieces: reads the file, and is called at most three times; it may raise
        `BrokenError`, which becomes a defect.
    :param budget: the budget, which the files of one report share.
    """
    budget = budget or Budget()
    counts = Counts(path, budget)
    scanner = _scanner(counts, size, budget)
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
                feeders = [
                    RangeFeeder(reader, size) for reader in _readers(form, budget)
                ]
            scanner.feed(data)
            for feeder in feeders:
                feeder.feed(data)
    except BrokenError as error:
        counts.add_defect(None, str(error))
    if not size:  # an empty stream has no pieces
        form = guess_format(path, head)
        feeders = [RangeFeeder(reader, size) for reader in _readers(form, budget)]
        for feeder in feeders:
            feeder.finish()
    scanner.finish()
    _read_again(feeders, pieces)
    tables = [feeder.result for feeder in feeders]
    _add_errors(counts, [item.error for item in feeders if item.error is not None])
    form = form or guess_format(path, head)
    return _report(counts, form, size, tables, _static_cudart(scanner.texts_found))


def inspect_local(
    path: str,
    size: int,
    place: str,
    *,
    budget: Budget | None = None,
    loaded_only: bool = False,
    on_bytes: Callable[[int], None] = lambda _: None,
) -> LibraryReport | None:
    """Find the GPU code of a file on disk, as `inspect_library` does.

    The machine code in containers, which is most of a CUDA library, is skipped.

    :param path: the name of the file in the report.
    :param place: the path of the file.
    :param loaded_only: skip the parts of a library that cannot contain data for CUDA;
        see `dynamic.read_other_parts`.
    :param on_bytes: called with the number of bytes of each step.
    """
    budget = budget or Budget()
    counts = Counts(path, budget)
    scanner = _scanner(counts, size, budget)
    form = ""
    tables: list[_Table | None] = []
    errors: list[ValueError] = []
    try:
        with open_regular(place) as file:
            form = guess_format(path, file.read(_HEAD))
            others: Sequence[Range] | None = None
            if loaded_only and form == "elf":
                # Discard errors, which the readers of the tables report below.
                others = _read_table(read_other_parts(), file, [])
            if not _scan(
                scanner, size, file, others or (), budget=budget, on_bytes=on_bytes
            ):
                counts.add_defect(None, UNSEARCHED)
            tables = [_read_table(x, file, errors) for x in _readers(form, budget)]
    except OSError as error:
        counts.add_defect(None, f"cannot be read: {error.strerror or error}")
    scanner.finish()
    _add_errors(counts, errors)
    return _report(counts, form, size, tables, _static_cudart(scanner.texts_found))


def _read_table(
    reader: Reader[_T], file: IO[bytes], errors: list[ValueError]
) -> _T | None:
    try:
        return read_seekable(reader, file)
    except ValueError as error:
        errors.append(error)
        return None


def _scan(
    scanner: Scanner,
    size: int,
    file: IO[bytes],
    others: Sequence[Range],
    *,
    budget: Budget,
    on_bytes: Callable[[int], None],
) -> bool:
    """Feed a scanner, and return whether all relevant bytes were searched.

    :param others: the start and the end of each part to skip, in ascending order.
    """
    step = _STEP
    start = scanner.position
    data_end = 0
    while start < size:
        end = size
        if scanner.is_searching:
            place, end = _around(others, start, size)
            if place == start and start >= data_end:
                place, data_end = _behind_hole(file, start, size)
            if place > start:
                scanner.leave_out(place)
                on_bytes(place - start)
                start = place
                continue
        if budget.is_late:
            return False
        file.seek(start)
        data = file.read(min(step, end - start))
        if not data:
            return True
        scanner.feed(data)
        wanted = scanner.wanted
        # After a skip, read little, because the scanner is likely to skip again.
        step = min(2 * step, _STEP) if wanted == scanner.position else _SHORT
        scanner.skip(wanted)
        on_bytes(wanted - start)
        start = wanted
    return True


def _behind_hole(file: IO[bytes], place: int, size: int) -> Range:
    """Return the start and end of the next range of data in a file that may have holes.

    Holes read as zeros, and a container does not start with zeros. An entry may begin
    in data and end in a hole, so the range ends a little past the start of the hole.
    """
    if sys.platform == "win32":
        return place, size
    try:
        data = file.seek(place, os.SEEK_DATA)
    except OSError as error:
        # lseek(2), ENXIO: "whence is SEEK_DATA ... and offset is within a hole at the
        # end of the file"
        return (size if error.errno == errno.ENXIO else place), size
    try:
        return data, file.seek(data, os.SEEK_HOLE) + _SHORT
    except OSError:
        return data, size


def _around(others: Sequence[Range], place: int, size: int) -> Range:
    """Return the start and the end of the next relevant part, at or after ``place``.

    :param others: the start and the end of each part to skip, in ascending order.
    """
    index = bisect.bisect_right(others, (place, _NO_END))
    if index:
        place = max(place, others[index - 1][1])
    end = others[index][0] if index < len(others) else size
    return min(place, size), min(end, size)


def _scanner(counts: Counts, size: int, budget: Budget) -> Scanner:
    return Scanner(
        size,
        texts=(*_CUDART, *_CUDART_SINCE),
        budget=budget,
        on_container=counts.add_container,
        on_entry=counts.add,
        on_defect=counts.add_defect,
    )


def _add_errors(counts: Counts, errors: Iterable[ValueError]) -> None:
    # Add equal errors once: if an ELF header is wrong, both readers of the file fail.
    for message in dict.fromkeys(map(str, errors)):
        counts.add_defect(None, message)


_Table = Image | Code | tuple[str, ...]
_Feeder = RangeFeeder[Image] | RangeFeeder[Code] | RangeFeeder[tuple[str, ...]]


def _readers(form: str, budget: Budget) -> list[Reader[Any]]:
    readers: dict[str, list[Reader[Any]]] = {
        "elf": [read_sections(named=False), read_needed()],
        "pe": [read_pe()],
        "cubin": [read_cubin()],
        "ptx": [read_ptx()],
    }
    return [charged(reader, budget) for reader in readers.get(form, ())]


def _read_again(feeders: list[_Feeder], pieces: Pieces) -> None:
    """Read the stream again for ranges that had passed when they were requested."""
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


def _static_cudart(texts: Collection[bytes]) -> int:
    """Return the major version of the CUDA runtime that contains ``texts``, or 0."""
    majors = (major for text, major in _CUDART_SINCE.items() if text in texts)
    return max(majors, default=11) if set(_CUDART) <= set(texts) else 0


def _report(
    counts: Counts,
    form: str,
    size: int,
    tables: Sequence[_Table | None],
    cudart: int,
) -> LibraryReport | None:
    image: Image | None = None
    needed: tuple[str, ...] = ()
    for item in tables:
        if isinstance(item, Image):
            image, needed = item, item.needed
        elif isinstance(item, Code):
            image = item.image
            kind = PTX if form == "ptx" else CUBIN
            entry = Entry(kind, item.target, item.isa, NONE, item.stub, item.toolkit)
            counts.add(entry)
        elif item is not None:
            needed = item
    for message in image.defects if image else ():
        counts.add_defect(None, message)
    if form == "fatbin" and counts.first_container != 0:
        form = "data"  # the first bytes only look like a container
    if form == "data" and counts.first_container is None and not counts.defects:
        return None
    return LibraryReport(
        path=counts.path,
        format=form,
        machine=image.machine if image else "",
        size=size,
        needed=tuple(dict.fromkeys(needed)),
        static_cudart=cudart if form in ("elf", "pe", "archive") else 0,
        defects=tuple(counts.defects),
        **counts.totals(),
    )
