"""Inspecting wheels, folders, installed distributions and single files."""

from __future__ import annotations

import csv
import os
import re
import stat
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import IO

from ..errors import InputError, shown
from ..strict_json import unreadable
from ..wheels.archive import MAX_REQUIRES, open_wheel, parse_requires, read_dist_info
from .budget import Budget
from .library import BrokenError, Pieces, inspect_library
from .loose import is_text
from .report import Defect, LibraryReport, WheelReport
from .vendoring import is_vendored
from .zip_members import PIECE, Source, list_members

__all__ = ["Progress", "inspect_distribution", "inspect_path"]

Progress = Callable[[int, int], None]
"""Called with the bytes that are done and their total; one call at a time, from any
thread. The bytes are those of the files, decompressed."""

_ARCHIVES = (".whl", ".zip")
_LINE = re.compile(r"[^\r\n]+")

MAX_RECORDED = 100_000
"""Files of a distribution. Of the largest some list 20,000."""

MAX_DEFECTS = 200
"""Defects of an archive or folder as a whole that are told each."""


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
    untold: int = 0
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
        _read_requires(work, source)
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
        zipped = False
        if status.st_size:  # as those of /proc have not, which may block
            with open(source, "rb") as file:
                zipped = file.read(4) == b"PK\3\4"
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise unreadable(error, name) from None
    work = _Work([], [], size=status.st_size)
    if zipped or source.lower().endswith(_ARCHIVES):
        # Before there is another list of the members in memory.
        _read_requires(work, source)
        _add_archive(work, source, os.path.basename(source), "")
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
    try:
        record = found.read_text("RECORD")
    except UnicodeDecodeError:
        message = f"the RECORD of {shown(name)} is not UTF-8"
        raise InputError(message, hint="install it again") from None
    if record is None:
        message = f"{shown(name)} does not list its files"
        raise InputError(message, hint="name the folder that it is in")
    work = _Work([], [])
    try:
        paths = _recorded(record, work)
    except csv.Error as error:
        message = f"the RECORD of {shown(name)} cannot be read: {error}"
        raise InputError(message, hint="install it again") from None
    try:
        metadata = found.read_text("METADATA") or ""
    except UnicodeDecodeError:
        _add_defect(work, "METADATA", "not read: it is not UTF-8")
    else:
        _add_requires(work, metadata.encode())
    for path in sorted(paths):
        _add_file(work, str(found.locate_file(path)), path.replace("\\", "/"), name)
    return _report(work, name, "distribution", jobs, progress)


def _recorded(record: str, work: _Work) -> set[str]:
    """The files of a RECORD that lie beside it, where packages are.

    Scripts, manuals and the like lie up to three folders above, in ``bin`` and
    ``share``, and hold no code for GPUs. What is further away, or anywhere at all,
    is not of the installation, and is not touched.

    :raises csv.Error: it cannot be read.
    """
    found: set[str] = set()
    # Without a list of all lines beside the text.
    lines = (match[0] for match in _LINE.finditer(record))
    for row in csv.reader(lines):
        if len(found) == MAX_RECORDED:
            message = f"it lists more than {MAX_RECORDED} files: no more are read"
            _add_defect(work, "RECORD", message)
            break
        path = os.path.normpath(row[0].replace("\\", "/")) if row else "."
        steps = path.split(os.sep)
        absolute = os.path.isabs(path) or os.path.splitdrive(path)[0]
        if absolute or steps[:4] == [".."] * 4:
            _add_defect(work, row[0], "not read: it is outside of the installation")
        elif steps[0] not in ("..", "."):
            found.add(path)
    return found


def _read_requires(work: _Work, source: str | IO[bytes]) -> None:
    """What METADATA requires; nothing where it cannot be read, or there is none."""
    try:
        with open_wheel(source) as archive:
            metadata = read_dist_info(archive, "METADATA")
    except InputError:
        return
    if metadata is not None:
        _add_requires(work, metadata)


def _add_requires(work: _Work, metadata: bytes) -> None:
    work.requires = parse_requires(metadata)
    if len(work.requires) > MAX_REQUIRES:
        work.requires = work.requires[:MAX_REQUIRES]
        message = f"more than {MAX_REQUIRES} requirements: no more are read"
        _add_defect(work, "METADATA", message)


def _add_defect(work: _Work, path: str, message: str) -> None:
    """Note it, or count it where there are many already."""
    if len(work.defects) < MAX_DEFECTS:
        work.defects.append(Defect(path=path, message=message))
    else:
        work.untold += 1


def _list_folder(folder: str) -> _Work:
    work = _Work([], [])

    def note(error: OSError) -> None:
        path = os.path.relpath(error.filename or folder, folder)
        message = f"cannot be read: {error.strerror or error}"
        _add_defect(work, path.replace(os.sep, "/"), message)

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
        # Text and byte code are often left out of an image, and are not read.
        if not is_text(name) and not name.endswith(".pyc"):
            _add_defect(work, name, str(unreadable(error, "").message))
        return
    if not stat.S_ISREG(status.st_mode):
        return
    work.size += status.st_size
    if name.lower().endswith(_ARCHIVES):
        _add_archive(work, path, os.path.basename(name), f"{name}/")
        return
    work.members += 1
    if status.st_size and not is_text(name):
        vendored = is_vendored(name, project)
        work.files.append(_local(path, name, status.st_size, vendored=vendored))


def _add_archive(
    work: _Work, source: str | IO[bytes], file_name: str, prefix: str
) -> None:
    try:
        members, defects = list_members(source)
    except InputError as error:
        _add_defect(work, prefix.rstrip("/"), error.message)
        return
    for defect in defects:
        _add_defect(work, f"{prefix}{defect.path}", defect.message)
    work.members += len(members) + len(defects)
    project = file_name.partition("-")[0]
    shared = Source(source)
    for member in members:
        if not is_text(member.name):
            # Not a copy of the name where there is no prefix.
            path, pieces = prefix + member.name, partial(member.pieces, shared)
            vendored = is_vendored(member.name, project)
            item = _File(path=path, size=member.size, pieces=pieces, vendored=vendored)
            work.files.append(item)


def _local(path: str, name: str, size: int, *, vendored: bool = False) -> _File:
    return _File(
        path=name, size=size, pieces=partial(_read, path, size), vendored=vendored
    )


def _read(path: str, size: int) -> Iterator[bytes]:
    """No more than the file had when it was listed: some never end."""
    if not size:
        return
    try:
        with open(path, "rb", buffering=0) as file:
            while size > 0 and (piece := file.read(min(PIECE, size))):
                size -= len(piece)
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
    defects.sort(key=lambda item: (item.path, item.message))
    untold = work.untold + len(defects[MAX_DEFECTS:])
    if untold:
        more = Defect(path="", message=f"{untold} more defects")
        defects = [*defects[:MAX_DEFECTS], more]
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
        defects=tuple(defects),
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
