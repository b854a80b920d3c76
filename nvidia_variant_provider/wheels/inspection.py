"""Inspecting wheels, folders, installed distributions and single files."""

from __future__ import annotations

import csv
import os
import stat
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import IO

from ..documents import unreadable
from ..errors import InputError, shown
from ..wheel_archive import open_wheel, parse_requires, read_dist_info
from .archive import PIECE, Source, list_members
from .budget import Budget
from .library import BrokenError, Pieces, inspect_library
from .loose import is_text
from .report import Defect, LibraryReport, WheelReport
from .vendoring import is_vendored

__all__ = ["Progress", "inspect_distribution", "inspect_path"]

Progress = Callable[[int, int], None]
"""Called with the bytes that are done and their total; one call at a time, from any
thread. The bytes are those of the files, decompressed."""

_ARCHIVES = (".whl", ".zip")


@dataclass(frozen=True, kw_only=True, slots=True)
class _File:
    """One file to look into."""

    path: str
    size: int
    pieces: Pieces
    vendored: bool = False


@dataclass(slots=True)
class _Work:
    """What there is to look into, and what could not be listed."""

    files: list[_File]
    defects: list[Defect]
    members: int = 0
    size: int = 0
    requires: tuple[str, ...] = ()


def inspect_path(
    source: str | IO[bytes],
    *,
    name: str | None = None,
    jobs: int = 1,
    progress: Progress | None = None,
) -> WheelReport:
    """The GPU code of a wheel, a folder, or a library or loose file.

    :param source: a path; or a wheel as an open file that can seek.
    :param name: what to call it; the path by default.
    :param jobs: how many files are read at the same time.
    :raises InputError: there is no such file, or it cannot be read at all. Whatever
        is wrong inside is a defect of the report.
    """
    if not isinstance(source, str):
        shown_name = name or "archive"
        work = _Work([], [], size=source.seek(0, os.SEEK_END))
        # Of a URL the last part.
        _add_archive(work, source, shown_name.rpartition("/")[2], "")
        work.requires = _read_requires(source)
        return _report(work, shown_name, "wheel", jobs, progress)
    name = name or source
    try:
        status = os.stat(source)
        if stat.S_ISDIR(status.st_mode):
            work = _list_folder(source)
            return _report(work, name, "folder", jobs, progress)
        if not stat.S_ISREG(status.st_mode):
            message = "neither a file nor a folder"
            raise InputError(message, path=name, hint="name a wheel or a library")
        with open(source, "rb") as file:
            zipped = file.read(4) == b"PK\3\4"
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise unreadable(error, name) from None
    work = _Work([], [], size=status.st_size)
    if zipped or source.lower().endswith(_ARCHIVES):
        _add_archive(work, source, os.path.basename(source), "")
        work.requires = _read_requires(source)
        return _report(work, name, "wheel", jobs, progress)
    work.members = 1
    work.files.append(_local(source, os.path.basename(source), status.st_size))
    return _report(work, name, "file", jobs, progress)


def inspect_distribution(
    name: str, *, jobs: int = 1, progress: Progress | None = None
) -> WheelReport:
    """The GPU code of an installed distribution, by the files that its RECORD lists.

    :raises InputError: none of this name is installed, or it lists no files.
    """
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        found = distribution(name)
    except (PackageNotFoundError, ValueError):
        message = f"no distribution {shown(name)} is installed"
        raise InputError(message, hint="name a wheel, a library or a folder") from None
    # Not `files`, which leaves out what is missing from Python 3.12 on.
    record = found.read_text("RECORD")
    if record is None:
        message = f"{shown(name)} does not list its files"
        raise InputError(message, hint="name the folder that it is in")
    try:
        paths = {row[0] for row in csv.reader(record.splitlines()) if row}
    except csv.Error as error:
        message = f"the RECORD of {shown(name)} cannot be read: {error}"
        raise InputError(message, hint="install it again") from None
    work = _Work([], [], requires=tuple(found.requires or ()))
    for path in sorted(paths):
        _add_file(work, str(found.locate_file(path)), path.replace("\\", "/"), name)
    return _report(work, name, "distribution", jobs, progress)


def _read_requires(source: str | IO[bytes]) -> tuple[str, ...]:
    """What METADATA requires; nothing where it cannot be read, or there is none."""
    try:
        with open_wheel(source) as archive:
            metadata = read_dist_info(archive, "METADATA")
    except InputError:
        return ()
    return () if metadata is None else parse_requires(metadata)


def _list_folder(folder: str) -> _Work:
    work = _Work([], [])

    def note(error: OSError) -> None:
        path = os.path.relpath(error.filename or folder, folder)
        message = f"cannot be read: {error.strerror or error}"
        work.defects.append(Defect(path=path.replace(os.sep, "/"), message=message))

    for root, folders, names in os.walk(folder, onerror=note):
        folders.sort()
        for name in sorted(names):
            path = os.path.join(root, name)
            # A link leads to a file that is listed itself, or out of the folder.
            if os.path.islink(path):
                continue
            relative = os.path.relpath(path, folder).replace(os.sep, "/")
            _add_file(work, path, relative, "")
    return work


def _add_file(work: _Work, path: str, name: str, project: str) -> None:
    try:
        status = os.stat(path)
    except (OSError, ValueError) as error:
        message = str(unreadable(error, "").message)
        work.defects.append(Defect(path=name, message=message))
        return
    if not stat.S_ISREG(status.st_mode):
        return
    work.size += status.st_size
    if name.lower().endswith(_ARCHIVES):
        _add_archive(work, path, os.path.basename(name), f"{name}/")
        return
    work.members += 1
    if not is_text(name):
        vendored = is_vendored(name, project)
        work.files.append(_local(path, name, status.st_size, vendored=vendored))


def _add_archive(
    work: _Work, source: str | IO[bytes], file_name: str, prefix: str
) -> None:
    try:
        members, defects = list_members(source)
    except InputError as error:
        path = prefix.rstrip("/")
        work.defects.append(Defect(path=path, message=error.message))
        return
    work.defects += [replace(item, path=f"{prefix}{item.path}") for item in defects]
    work.members += len(members) + len(defects)
    project = file_name.partition("-")[0]
    shared = Source(source)
    for member in members:
        if not is_text(member.name):
            path, pieces = f"{prefix}{member.name}", partial(member.pieces, shared)
            vendored = is_vendored(member.name, project)
            item = _File(path=path, size=member.size, pieces=pieces, vendored=vendored)
            work.files.append(item)


def _local(path: str, name: str, size: int, *, vendored: bool = False) -> _File:
    return _File(path=name, size=size, pieces=partial(_read, path), vendored=vendored)


def _read(path: str) -> Iterator[bytes]:
    try:
        with open(path, "rb", buffering=0) as file:
            while piece := file.read(PIECE):
                yield piece
    except OSError as error:
        raise BrokenError(f"cannot be read: {error.strerror or error}") from None


def _report(
    work: _Work, path: str, kind: str, jobs: int, progress: Progress | None
) -> WheelReport:
    counter = _Counter(sum(item.size for item in work.files), progress)
    found = _run(work.files, jobs, counter)
    # What is no library stands with the archive.
    loose = [item for item in found if item.format == "data" and not item.sections]
    defects = [*work.defects, *(defect for item in loose for defect in item.defects)]
    return WheelReport(
        path=path,
        kind=kind,
        size=work.size,
        members=work.members,
        libraries=tuple(
            sorted(
                (item for item in found if item not in loose),
                key=lambda item: (item.path, item.size),
            )
        ),
        defects=tuple(sorted(defects, key=lambda item: (item.path, item.message))),
        requires=work.requires,
    )


class _Counter:
    """Tells how far the work is, and stops it."""

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


def _run(files: list[_File], jobs: int, counter: _Counter) -> list[LibraryReport]:
    budget = Budget()
    if jobs < 2 or len(files) < 2:
        return _inspect_each(iter(files), budget, counter)
    # zlib works without the interpreter's lock, so that threads do; the largest
    # first, lest it be what the others wait for in the end.
    files = sorted(files, key=lambda item: -item.size)
    left = _Shared(files)
    jobs = min(jobs, len(files))
    with ThreadPoolExecutor(jobs) as pool:
        try:
            # Not a future for each file: an archive may have 50,000.
            tasks = [
                pool.submit(_inspect_each, left, budget, counter) for _ in range(jobs)
            ]
            return [item for task in tasks for item in task.result()]
        except BaseException:
            counter.stopped = True
            pool.shutdown(wait=False, cancel_futures=True)
            raise


class _Shared:
    """An iterator that several threads take from."""

    def __init__(self, files: list[_File]) -> None:
        self._files = iter(files)
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[_File]:
        return self

    def __next__(self) -> _File:
        with self._lock:
            return next(self._files)


def _inspect_each(
    files: Iterator[_File], budget: Budget, counter: _Counter
) -> list[LibraryReport]:
    found = []
    try:
        for item in files:
            report = _inspect(item, budget, counter)
            if report is not None:
                found.append(report)
    except BaseException:
        counter.stopped = True
        raise
    return found


class _StoppedError(Exception):
    """Another thread has failed, or the user has had enough."""


def _inspect(item: _File, budget: Budget, counter: _Counter) -> LibraryReport | None:
    first = True

    def pieces() -> Iterator[bytes]:
        nonlocal first
        counts, first = first, False
        for piece in item.pieces():
            if counter.stopped:
                raise _StoppedError
            if counts:
                counter.add(len(piece))
            yield piece

    return inspect_library(
        item.path, item.size, pieces, vendored=item.vendored, budget=budget
    )
