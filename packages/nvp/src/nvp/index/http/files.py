"""The files of an index, as a page or a folder lists them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from nvidia_variant_provider.errors import InputError, redacted

from .urls import is_http


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexFile:
    """A file that a project page or a folder lists.

    :param url: its URL with everything secret in it, or the path of a local file.
    :param page: the URL of the page, after redirects; ``None`` where no server lists
        the file.
    :param time: when it was uploaded or written, in seconds since 1970; ``None`` if
        unknown.
    :param sha256: its hash, if the page gives it.
    :param size: its bytes; ``None`` if unknown.
    """

    name: str
    url: str = field(repr=False)
    page: str | None = None
    time: float | None = None
    sha256: str | None = None
    size: int | None = None

    @property
    def path(self) -> str:
        """The path of the file, or its URL without secrets, for messages."""
        return redacted(self.url) if is_http(self.url) else self.url


def local_file(path: str, sha256: str | None = None) -> IndexFile:
    """Return a file of a folder; what is wrong with it shows when it is read."""
    time = size = None
    try:
        status = os.stat(path)
        time, size = status.st_mtime, status.st_size
    except (OSError, ValueError):
        pass
    name = os.path.basename(path)
    return IndexFile(name=name, url=path, time=time, sha256=sha256, size=size)


def list_names(folder: str) -> list[str]:
    """Return the names in a folder, sorted.

    :raises InputError: it cannot be read.
    """
    try:
        return sorted(os.listdir(folder))
    except OSError as error:
        message = f"cannot be read: {error.strerror}"
        raise InputError(message, path=folder, hint="check the folder") from None
