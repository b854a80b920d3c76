"""Directories that a stranger may exchange for links at any time.

`Root` finds files from the descriptor of a directory that is opened once. The functions
list directories.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
import sys
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import BinaryIO

from nvidia_variant_provider.errors import InputError
from nvidia_variant_provider.strict_json import open_regular, unreadable

from .files import path_of, real_path, replacing

logger = logging.getLogger(__name__)

_FOLDER: int = getattr(os, "O_PATH", os.O_RDONLY) | getattr(os, "O_DIRECTORY", 0)
_AS_IT_IS: int = getattr(os, "O_NOFOLLOW", 0)
"""The flags for directories, which need not be readable, and for no links."""


class Root:
    """A directory that is opened once, for files that others write or read.

    A stranger may own a directory above or below it, and exchange that for a link at
    any time. So every file is found from the descriptor, and not through links: only
    their targets are, if these are below the directory. On Windows, where only few
    users can make links, the descriptor is ``None``.

    :param path: the directory.
    :param below: a directory in it, from which it is opened as the parent.
    :raises InputError: the directory cannot be opened.
    """

    def __init__(self, path: str, below: Root | None = None) -> None:
        self.dir_fd: int | None = None
        try:
            if sys.platform == "win32":
                self.path = real_path(path)
            else:
                place = os.pardir if below is not None else path
                start = below.dir_fd if below is not None else None
                self.dir_fd = os.open(place, _FOLDER, dir_fd=start)
                # A thread may write after the end of the call that has made the root.
                finalizer = weakref.finalize(self, os.close, self.dir_fd)
                finalizer.atexit = False
                self.path = path_of(self.dir_fd, path)
        except (OSError, ValueError) as error:
            raise unreadable(error, path) from None

    @contextmanager
    def opened(
        self, folder: str, kind: str = "directory", *, makes: bool = False
    ) -> Iterator[int | None]:
        """Open a directory; yield its descriptor.

        :param folder: the directory, without links.
        :param kind: what ``folder`` was opened for, such as ``file``, for errors.
        :param makes: whether to make a missing directory.
        :raises OSError: the directory cannot be opened, or is not below this one.
        """
        real, start = os.path.join(folder, ""), os.path.join(self.path, "")
        if (place := self.dir_fd) is None and makes:
            os.makedirs(folder, exist_ok=True)
        elif not real.startswith(start):
            why = f"it is a link to a {kind} outside of the index"
            raise OSError(errno.ENOTDIR, why)
        parts = real[len(start) :].split(os.sep)[:-1]
        with ExitStack() as stack:
            for part in parts if place is not None else ():
                if makes:
                    with suppress(FileExistsError):
                        os.mkdir(part, dir_fd=place)
                # No part was a link, so one that is a link now was exchanged.
                place = os.open(part, _FOLDER | _AS_IT_IS, dir_fd=place)
                stack.callback(os.close, place)
            yield place

    def open(self, path: str) -> BinaryIO:
        """Open a regular file for reading.

        :raises InputError: the file cannot be opened, or is not below this directory.
        """
        try:
            folder, name = os.path.split(real_path(path))
            with self.opened(folder, "file") as place:
                found = None if place is None else (name, place)
                return open_regular(path, place=found)
        except (OSError, ValueError) as error:
            raise unreadable(error, path) from None

    def has(self, path: str) -> bool:
        """Return whether there is a file or a link in a directory below this one.

        :raises InputError: the directory is not below this one.
        """
        folder, name = os.path.split(path)
        try:
            with self.opened(real_path(folder)) as place:
                os.lstat(path if place is None else name, dir_fd=place)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise unreadable(error, path) from None
        return True

    def write(self, path: str, data: bytes) -> None:
        """Write a file atomically, and make its directory.

        :raises InputError: the file cannot be written.
        """
        logger.info("writing %s", path)
        folder = os.path.dirname(path)
        try:
            with (
                self.opened(real_path(folder), makes=True) as place,
                replacing(path, follows=False, dir_fd=place) as file,
            ):
                file.write(data)
        except OSError as error:
            message = f"cannot be written: {error.strerror}"
            raise InputError(message, path=folder, hint="check the path") from None

    def remove(self, path: str) -> None:
        """Remove a file, and its directory if that is empty then."""
        logger.info("removing %s", path)
        folder, name = os.path.split(path)
        with suppress(OSError), self.opened(real_path(folder)) as place:
            os.unlink(path if place is None else name, dir_fd=place)
        above, name = os.path.split(folder)
        with suppress(OSError), self.opened(real_path(above)) as place:
            os.rmdir(folder if place is None else name, dir_fd=place)


def list_names(folder: str, name: str = "", dir_fd: int | None = None) -> list[str]:
    """Return the sorted names in a directory.

    :param name: the name of the directory below ``dir_fd``, if that is given.
    :raises InputError: the directory cannot be read.
    """
    place: str | int = folder
    try:
        if dir_fd is not None:
            # Without this flag, opening a pipe would wait for its writer.
            flags = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0)
            place = os.open(name or os.curdir, flags, dir_fd=dir_fd)
        return sorted(os.listdir(place))
    except OSError as error:
        message = f"cannot be read: {error.strerror}"
        raise InputError(message, path=folder, hint="check the directory") from None
    finally:
        if isinstance(place, int):
            os.close(place)


def list_opened(folder: str | os.PathLike[str]) -> tuple[str, list[str]]:
    """Return the path of a directory without links, and the names in it.

    A stranger may exchange the directory for a link at any time, so the opened one
    counts.

    :raises OSError: the directory cannot be read.
    """
    if sys.platform == "win32":
        return real_path(folder), os.listdir(folder)
    place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return path_of(place, folder), os.listdir(place)
    finally:
        os.close(place)


def list_folders(
    root: str, dir_fd: int | None = None
) -> Iterator[tuple[str, list[str]]]:
    """Yield the root, as "", and its directories, each with the names in it.

    Hidden names are left out: archives made on macOS have a ``._`` file for each file.

    :param dir_fd: a descriptor of the root, which a stranger may exchange for a link.
    """

    def list_shown(name: str) -> list[str]:
        names = list_names(os.path.join(root, name), name, dir_fd)
        return [name for name in names if not name.startswith(".")]

    def find(name: str) -> tuple[int, int] | None:
        place = os.path.join(root, name) if dir_fd is None else name or os.curdir
        with suppress(OSError, ValueError):
            status = os.stat(place, dir_fd=dir_fd)
            if stat.S_ISDIR(status.st_mode):
                return status.st_dev, status.st_ino
        return None

    names = list_shown("")
    yield "", names
    seen = {find("")}
    for name in names:
        # A link to a directory that was already listed would list its files twice.
        if (folder := find(name)) is not None and folder not in seen:
            seen.add(folder)
            yield name, list_shown(name)
