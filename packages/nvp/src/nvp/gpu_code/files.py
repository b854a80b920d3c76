"""List the files to inspect in a wheel, a directory or an installed distribution."""

from __future__ import annotations

import contextlib
import csv
import os
import re
import stat
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter
from typing import IO, TYPE_CHECKING

from nvidia_variant_provider.errors import InputError
from nvidia_variant_provider.strict_json import open_regular, unreadable

from ..wheels.archive import MAX_REQUIRES, explained, parse_requires, read_dist_info
from .report import BrokenError, Defect
from .zip_members import PIECE, ReadAhead, Source, list_members

if TYPE_CHECKING:
    from .library import Pieces

ARCHIVES = (".whl", ".zip")
"""Suffixes of archives whose members are inspected."""

_LINE = re.compile(r"[^\r\n]+")

MAX_RECORDED = 100_000
"""The maximum number of files of an installed distribution; large ones have 20,000."""

MAX_DEFECTS = 200
"""The maximum number of listed defects of an archive or directory."""


_TEXT = re.compile(
    r".*\.(?:c|cc|cfg|cmake|cpp|css|csv|cuh?|cxx|f90|h|hpp|html?|hxx|in|inc|ini|inl|"
    r"ipynb|js|json|lock|map|md|pc|po|proto|pxd|pxi|py|pyi|pyx|rst|sh|svg|toml|ts|txt|"
    r"typed|xml|ya?ml)|AUTHORS|COPYING|INSTALLER|LICENSE|METADATA|NOTICE|RECORD|"
    r"REQUESTED|WHEEL",
    re.IGNORECASE | re.DOTALL,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class File:
    """A file to inspect.

    :param path: the path of the file in the wheel or directory, with ``/``.
    :param size: the claimed size of the file in bytes.
    :param pieces: a function that reads the file.
    :param local: the path on disk, if the file is so long that parts are skipped.
    :param loaded_only: the argument for `library.inspect_local`.
    """

    path: str
    size: int
    pieces: Pieces
    local: str | None = None
    loaded_only: bool = False


@dataclass(kw_only=True, slots=True)
class Listing:
    """The files to inspect, and errors that occurred while listing them.

    :param size: the size of the archive, or of all files of a directory, in bytes.
    :param members: the number of files, including text.
    :param requires: ``Requires-Dist`` of the METADATA.
    :param projects: ``{prefix of the members of an archive: project of the archive}``;
        the empty prefix is for files outside of archives.
    :param loaded_only: the argument for `library.inspect_local`.
    """

    size: int = 0
    files: list[File] = field(default_factory=list)
    members: int = 0
    requires: tuple[str, ...] = ()
    projects: dict[str, str] = field(default_factory=dict)
    loaded_only: bool = False
    _archives: list[Source] = field(default_factory=list)
    _ahead: list[ReadAhead] = field(default_factory=list)
    _defects: list[Defect] = field(default_factory=list)
    _unlisted: int = 0

    def add_defect(self, path: str, message: str) -> None:
        """Add a defect; if there are already many, only count it."""
        if len(self._defects) < MAX_DEFECTS:
            self._defects.append(Defect(path=path, message=message))
        else:
            self._unlisted += 1

    def defects(self, more: Iterator[Defect]) -> tuple[Defect, ...]:
        """Return all defects, sorted; the last may state the number of omitted ones."""
        defects = [*self._defects, *more]
        defects.sort(key=lambda item: (item.path, item.message))
        unlisted = self._unlisted + len(defects[MAX_DEFECTS:])
        if unlisted:
            message = f"{unlisted} more defect{'s' if unlisted > 1 else ''}"
            defects[MAX_DEFECTS:] = [Defect(path="", message=message)]
        return tuple(defects)

    def add_path(self, path: str, name: str) -> None:
        """Add a file of a directory, with its members if it is an archive.

        :param name: the name of the file in the report, with ``/``.
        """
        try:
            status = os.stat(path)
        except (OSError, ValueError) as error:
            # Ignore missing text and byte code, which container images often omit.
            if not is_text(name) and not name.endswith(".pyc"):
                self.add_defect(name, str(unreadable(error, name).message))
            return
        if not stat.S_ISREG(status.st_mode):
            return
        self.size += status.st_size
        if name.lower().endswith(ARCHIVES):
            self.add_archive(path, os.path.basename(name), f"{name}/")
            return
        self.members += 1
        if status.st_size and not is_text(name):
            self.add_local(path, name, status.st_size)

    def add_local(self, path: str, name: str, size: int) -> None:
        """Add a file on disk, whatever its name."""
        self.files.append(
            File(
                path=name,
                size=size,
                pieces=partial(_read, path, size),
                local=path if size > PIECE else None,
                loaded_only=self.loaded_only,
            )
        )

    def add_archive(
        self,
        source: str | IO[bytes],
        file_name: str,
        prefix: str = "",
        *,
        requires: bool = False,
        look: Callable[[zipfile.ZipFile], object] | None = None,
    ) -> None:
        """Add the members of an archive.

        :param file_name: the name of the archive, which begins with its project.
        :param prefix: the prefix of the names of the members.
        :param requires: read ``Requires-Dist`` from the METADATA of the archive.
        :param look: called with the open archive, to read more from it.
        """

        def read(archive: zipfile.ZipFile) -> None:
            if requires:
                self._add_requires(archive)
            if look is not None:
                look(archive)

        try:
            members, defects = list_members(source, read)
        except InputError as error:
            self.add_defect(prefix.rstrip("/"), error.message)
            return
        for defect in defects:
            self.add_defect(f"{prefix}{defect.path}", defect.message)
        self.members += len(members) + len(defects)
        self.projects[prefix] = file_name.partition("-")[0]
        shared = Source(source)
        self._archives.append(shared)
        for member in members:
            if is_text(member.name):
                continue
            self.files.append(
                File(
                    path=prefix + member.name,
                    size=member.size,
                    pieces=partial(member.pieces, shared),
                )
            )

    def read_ahead(self, count: int) -> None:
        """Begin to inflate the largest files, each in a thread of its own.

        Meanwhile, the caller imports the modules that inspect the files. On several
        cores, inspecting the files then takes no time beyond inflating them.
        """
        self.files.sort(key=attrgetter("size"), reverse=True)
        for index, item in enumerate(self.files[:count]):
            if item.local is None and item.size > PIECE:
                ahead = ReadAhead(item.pieces)
                self._ahead.append(ahead)
                self.files[index] = replace(item, pieces=ahead)

    def close(self) -> None:
        """Close the archives, after the files have been read."""
        for ahead in self._ahead:
            ahead.stop()
        for archive in self._archives:
            archive.close()

    def _add_requires(self, archive: zipfile.ZipFile) -> None:
        # Errors in METADATA do not prevent reading the other files.
        with contextlib.suppress(InputError), explained():
            metadata = read_dist_info(archive, "METADATA")
            if metadata is not None:
                self.add_metadata(metadata)

    def add_metadata(self, metadata: bytes) -> None:
        """Set ``requires`` from the content of METADATA."""
        self.requires = parse_requires(metadata)
        if len(self.requires) > MAX_REQUIRES:
            self.requires = self.requires[:MAX_REQUIRES]
            message = f"only the first {MAX_REQUIRES} requirements are read"
            self.add_defect("METADATA", message)


def list_folder(folder: str) -> Listing:
    """List a directory's files and those of its archives, without following links."""
    listing = Listing()

    def note(error: OSError) -> None:
        path = os.path.relpath(error.filename or folder, folder)
        message = f"cannot be read: {error.strerror or error}"
        listing.add_defect(path.replace(os.sep, "/"), message)

    for root, folders, names in os.walk(folder, onerror=note):
        folders.sort()
        for name in sorted(names):
            path = os.path.join(root, name)
            # Skip a link: its target is outside of the directory, or listed anyway.
            if os.path.islink(path):
                continue
            relative = os.path.relpath(path, folder).replace(os.sep, "/")
            listing.add_path(path, relative)
    return listing


def recorded_rows(record: str) -> Iterator[list[str]]:
    """Yield the rows of a RECORD that are not empty.

    :raises csv.Error: the RECORD is malformed.
    """
    # Use an iterator, to avoid a list of all lines in memory.
    return filter(None, csv.reader(match[0] for match in _LINE.finditer(record)))


def recorded_paths(recorded: Iterable[str], listing: Listing) -> set[str]:
    """Return those paths of a RECORD that are inside the directory of packages.

    Scripts and manuals are up to three directories above, in ``bin`` and ``share``, and
    contain no GPU code. An absolute path, or a path further up, leaves the
    installation: it is not returned, but added to ``listing`` as a defect.
    """
    paths: set[str] = set()
    for given in recorded:
        if len(paths) == MAX_RECORDED:
            message = f"only the first {MAX_RECORDED} files are read"
            listing.add_defect("RECORD", message)
            break
        path = os.path.normpath(given.replace("\\", "/"))
        steps = path.split(os.sep)
        absolute = os.path.isabs(path) or os.path.splitdrive(path)[0]
        if absolute or steps[:4] == [".."] * 4:
            listing.add_defect(given, "not read: it is outside of the installation")
        elif steps[0] not in ("..", "."):
            paths.add(path)
    return paths


def _read(path: str, size: int) -> Iterator[bytes]:
    """Yield at most ``size`` bytes of a file, because some files never end."""
    if not size:
        return
    try:
        with open_regular(path) as file:
            while size > 0 and (piece := file.read(min(PIECE, size))):
                size -= len(piece)
                yield piece
    except OSError as error:
        raise BrokenError(f"cannot be read: {error.strerror or error}") from None


def is_text(path: str) -> bool:
    """Return whether the name of a file shows that it is text, without GPU code."""
    return _TEXT.fullmatch(path.rpartition("/")[2]) is not None
