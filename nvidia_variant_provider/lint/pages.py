"""Checking a project page of an index, as `check_folder` checks a folder."""

from __future__ import annotations

import io

from ..index.remote import RangeFile, RemoteFile, fetch, read_page
from .findings import Finding
from .release import IndexFile, check_files
from .wheels import WheelContent, read_wheel

__all__ = ["check_page"]


def check_page(url: str) -> list[Finding]:
    """Check the files that a project page lists.

    :raises InputError: the page cannot be read.
    """
    return check_files(url, map(_remote, read_page(url)))


def _remote(file: RemoteFile) -> IndexFile:
    def open_wheel() -> WheelContent:
        with io.BufferedReader(RangeFile(file.url)) as wheel:
            return read_wheel(wheel)

    return IndexFile(
        name=file.name,
        path=file.url,
        time=file.time,
        read=lambda: fetch(file.url),
        open_wheel=open_wheel,
    )
