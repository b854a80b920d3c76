"""Checking a project page of an index, as `check_folder` checks a folder."""

from __future__ import annotations

import io
from collections.abc import Iterator

from ..errors import InputError
from ..index.http.byte_ranges import RangeFile, RemoteFile, fetch, read_page, redacted
from ..wheels.reading import WheelContent, read_wheel
from .collector import Collector
from .findings import Finding
from .index_files import IndexFile
from .release import check_files

__all__ = ["check_page"]


def check_page(url: str) -> Iterator[Finding]:
    """Check the files that a project page lists."""
    try:
        files = read_page(url)
    except InputError as error:
        collector = Collector(redacted(url))
        collector.add_error("NV100", error)
        yield from collector.findings
        return
    yield from check_files(redacted(url), map(_remote, files))


def _remote(file: RemoteFile) -> IndexFile:
    def open_wheel() -> WheelContent:
        with io.BufferedReader(RangeFile(file.url)) as wheel:
            return read_wheel(wheel)

    return IndexFile(
        name=file.name,
        path=redacted(file.url),
        time=file.time,
        read=lambda: fetch(file.url),
        open_wheel=open_wheel,
    )
