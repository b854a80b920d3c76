"""Inspect wheels, directories, installed distributions and single files."""

from __future__ import annotations

import bisect
import contextlib
import csv
import os
import stat
import threading
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import IO

from nvidia_variant_provider.errors import InputError, shown
from nvidia_variant_provider.light import Logger
from nvidia_variant_provider.strict_json import open_regular, unreadable

from ..files import read_installed
from ..signals import count_input, map_in_threads
from .compression import Budget
from .files import ARCHIVES, File, Listing, list_folder, recorded_paths, recorded_rows
from .report import Defect, LibraryReport, WheelReport
from .zip_members import inflater_name

logger = Logger(__name__)

Progress = Callable[[int, int], None]
"""A function that receives the number of inspected bytes, and their total number.

Bytes are counted after decompression. The calls come one at a time, from any thread.
"""


def inspect_path(
    source: str | IO[bytes],
    *,
    name: str | None = None,
    jobs: int = 1,
    progress: Progress | None = None,
) -> WheelReport:
    """Find the GPU code of a wheel, a directory or a file, as `nvp.api.inspect` does.

    :raises InputError: the file is missing or unreadable.
    """
    if isinstance(source, str):
        name = name or source
        listing, kind = _list_path(source, name)
        count_input(name, listing.size, is_new=False)
    else:
        name = name or "archive"
        listing, kind = list_wheel(source, name), "wheel"
    return inspect_listing(listing, name, kind, jobs=jobs, progress=progress)


def _list_path(source: str, name: str) -> tuple[Listing, str]:
    try:
        status = os.stat(source)
        if stat.S_ISDIR(status.st_mode):
            return list_folder(source), "directory"
        if not stat.S_ISREG(status.st_mode):
            message = "neither a file nor a directory"
            raise InputError(message, path=name, hint="name a wheel or a library")
        zipped = False
        if status.st_size:  # files in /proc claim to be empty; reading one may block
            with open_regular(source) as file:
                zipped = file.read(4) == b"PK\3\4"
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise unreadable(error, name) from None
    listing = Listing(size=status.st_size)
    if zipped or source.lower().endswith(ARCHIVES):
        listing.add_archive(source, os.path.basename(source), requires=True)
        return listing, "wheel"
    listing.members = 1
    listing.add_local(source, os.path.basename(source), status.st_size)
    return listing, "file"


def list_wheel(
    source: IO[bytes],
    name: str,
    *,
    look: Callable[[zipfile.ZipFile], object] | None = None,
) -> Listing:
    """List the members of an open wheel that may have GPU code; read its METADATA.

    :param source: a seekable file.
    :param name: the wheel's name or URL, which begins with its project.
    :param look: called with the open archive, to read more from it.
    """
    listing = Listing(size=source.seek(0, os.SEEK_END))
    # The name may be a URL: its last part is the file name.
    listing.add_archive(source, name.rpartition("/")[2], requires=True, look=look)
    return listing


def inspect_distribution(
    name: str, *, jobs: int = 1, progress: Progress | None = None
) -> WheelReport:
    """Find the GPU code of an installed distribution, in the files of its RECORD.

    :raises InputError: the distribution is not installed or lists no files.
    """
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        installed = distribution(name)
    except (PackageNotFoundError, ValueError):
        message = f"no distribution {shown(name)} is installed"
        raise InputError(
            message, hint="name a wheel, a library or a directory"
        ) from None
    # Read RECORD itself: since Python 3.12, the property `files` omits missing files.
    try:
        record = read_installed(installed, "RECORD")
    except UnicodeDecodeError:
        message = f"the RECORD of {shown(name)} is not UTF-8"
        raise InputError(message, hint="install it again") from None
    if record is None:
        message = f"{shown(name)} does not list its files"
        raise InputError(message, hint="name the directory that it is in")
    try:
        metadata = read_installed(installed, "METADATA") or ""
    except UnicodeDecodeError:
        metadata = None
    try:
        paths = [row[0] for row in recorded_rows(record)]
    except csv.Error as error:
        message = f"the RECORD of {shown(name)} cannot be read: {error}"
        raise InputError(message, hint="install it again") from None
    return inspect_recorded(
        name,
        paths,
        None if metadata is None else metadata.encode(),
        locate=lambda path: str(installed.locate_file(path)),
        jobs=jobs,
        progress=progress,
    )


def inspect_recorded(
    name: str,
    recorded: Iterable[str],
    metadata: bytes | None,
    *,
    locate: Callable[[str], str],
    loaded_only: bool = False,
    budget: Budget | None = None,
    jobs: int = 1,
    progress: Progress | None = None,
) -> WheelReport:
    """Find the GPU code in the files of a RECORD.

    :param name: the distribution of the RECORD.
    :param recorded: the paths in the RECORD.
    :param metadata: the bytes of METADATA; ``None`` if unreadable.
    :param locate: returns the path on disk for a path in the RECORD.
    :param loaded_only: skip the parts of libraries that cannot contain data for CUDA;
        this halves the time. See `dynamic.read_other_parts`.
    """
    listing = Listing(projects={"": name}, loaded_only=loaded_only)
    if metadata is None:
        listing.add_defect("METADATA", "not read: it is not UTF-8")
    else:
        listing.add_metadata(metadata)
    for path in sorted(recorded_paths(recorded, listing)):
        listing.add_path(locate(path), path.replace("\\", "/"))
    count_input(name, listing.size, is_new=False)
    return inspect_listing(
        listing, name, "distribution", budget=budget, jobs=jobs, progress=progress
    )


def inspect_listing(
    listing: Listing,
    path: str,
    kind: str = "wheel",
    *,
    budget: Budget | None = None,
    jobs: int = 1,
    progress: Progress | None = None,
) -> WheelReport:
    """Find the GPU code in listed files, such as from `list_wheel`.

    :param path: the subject of the report.
    :param kind: the kind of the report; see `WheelReport`.
    :param budget: the limits of the work, by default the limits for one report.
    """
    total = sum(item.size for item in listing.files)
    logger.info(
        "%s: a %s of %d bytes; %d of its %d files are read, which have %d bytes",
        path,
        kind,
        listing.size,
        len(listing.files),
        listing.members,
        total,
    )
    started = time.monotonic()
    try:
        if jobs > 1:
            listing.read_ahead(jobs)
        counter = _Counter(total, progress)
        reports = _inspect_all(listing.files, jobs, budget or Budget(), counter)
    finally:
        listing.close()
    seconds, name = time.monotonic() - started, inflater_name()
    logger.info("%s: read in %.3f seconds, inflated by %s", path, seconds, name)
    # Defects of files other than libraries are listed as defects of the archive.
    libraries: list[LibraryReport] = []
    others: list[LibraryReport] = []
    for item in reports:
        is_library = item.format != "data" or item.has_gpu_code
        (libraries if is_library else others).append(item)
    return WheelReport(
        path=path,
        kind=kind,
        size=listing.size,
        members=listing.members,
        libraries=_marked(libraries, listing.projects),
        defects=listing.defects(defect for item in others for defect in item.defects),
        requires=listing.requires,
    )


def _marked(
    libraries: list[LibraryReport], projects: Mapping[str, str]
) -> tuple[LibraryReport, ...]:
    """Return the libraries sorted by path, with vendored copies marked.

    :param projects: ``{prefix of the members of an archive: project of the archive}``.
    """
    from .units import copied_paths

    prefixes = sorted(filter(None, projects))
    archives: dict[str, list[LibraryReport]] = {}
    for item in libraries:
        start = _archive(item.path, prefixes)
        inside = replace(item, path=item.path.removeprefix(start)) if start else item
        archives.setdefault(start, []).append(inside)
    copied = {
        start + path
        for start, items in archives.items()
        for path in copied_paths(items, projects.get(start, ""))
    }
    return tuple(
        replace(item, vendored=True) if item.path in copied else item
        for item in sorted(libraries, key=lambda item: (item.path, item.size))
    )


def _archive(path: str, prefixes: Sequence[str]) -> str:
    """Return the prefix of the archive that contains a file; empty if none does.

    :param prefixes: the prefixes of the archives, sorted. None begins with another one,
        so only the last one before the path can be its prefix.
    """
    start = prefixes[bisect.bisect_right(prefixes, path) - 1] if prefixes else ""
    return start if path.startswith(start) else ""


class _Counter:
    """A counter for all threads, which reports progress and tells them to stop."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._total = total
        self._progress = progress
        self._lock = threading.Lock()
        self._done = 0
        self.stopped = False

    def add(self, size: int) -> None:
        if self._progress is not None:
            with self._lock:
                self._done = min(self._done + size, self._total)
                self._progress(self._done, self._total)

    def stop(self) -> None:
        self.stopped = True


def _inspect_all(
    files: list[File], jobs: int, budget: Budget, counter: _Counter
) -> list[LibraryReport]:
    if jobs < 2 or len(files) < 2:
        return _inspect_each(iter(files), budget, counter)
    # Threads help, because zlib releases the interpreter's lock. The largest files come
    # first, so no thread works on such a file alone at the end.
    waiting = SimpleQueue[File]()
    for item in files:
        waiting.put(item)
    # Use one task for each thread: futures for the 50,000 files of an archive would
    # take more memory than the files.
    jobs = min(jobs, len(files))
    tasks = [_taken(waiting) for _ in range(jobs)]
    found = map_in_threads(
        jobs, lambda task: _inspect_each(task, budget, counter), tasks, counter.stop
    )
    return [item for items in found for item in items]


def _taken(waiting: SimpleQueue[File]) -> Iterator[File]:
    with contextlib.suppress(Empty):
        while True:
            yield waiting.get_nowait()


def _inspect_each(
    files: Iterator[File], budget: Budget, counter: _Counter
) -> list[LibraryReport]:
    reports: list[LibraryReport] = []
    try:
        for item in files:
            report = _inspect(item, budget, counter)
            if report is not None:
                reports.append(report)
    except _StoppedError:
        # The caller collects the results one by one, so a stopped thread must not hide
        # the error of the thread that failed.
        return reports
    except BaseException:
        counter.stop()
        raise
    return reports


class _StoppedError(Exception):
    """Another thread has failed, or the user has interrupted the work."""


def _inspect(item: File, budget: Budget, counter: _Counter) -> LibraryReport | None:
    # Import late, while `Listing.read_ahead` already inflates the first files.
    from .library import UNSEARCHED, inspect_library, inspect_local

    if budget.is_late:
        defect = Defect(path=item.path, message=UNSEARCHED)
        return LibraryReport(path=item.path, format="data", defects=(defect,))
    is_first = True

    def step(size: int) -> None:
        if counter.stopped:
            raise _StoppedError
        counter.add(size)

    def pieces() -> Iterator[bytes]:
        # Report progress only for the first reading: tables may need a second one.
        nonlocal is_first
        counts, is_first = is_first, False
        for piece in item.pieces():
            step(len(piece) if counts else 0)
            yield piece

    started = time.monotonic()
    if item.local is None:
        report = inspect_library(item.path, item.size, pieces, budget=budget)
    else:
        report = inspect_local(
            item.path,
            item.size,
            item.local,
            budget=budget,
            loaded_only=item.loaded_only,
            on_bytes=step,
        )
    seconds = time.monotonic() - started
    logger.debug("%s: %d bytes in %.3f seconds", item.path, item.size, seconds)
    return report
