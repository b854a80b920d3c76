"""Checking a project page of an index, as `check_folder` checks a folder."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ..errors import InputError
from ..index.http.urls import redacted
from ..wheels.reading import WheelContent, read_wheel
from .collector import Collector
from .findings import Finding
from .index_files import IndexFile
from .release import check_files

if TYPE_CHECKING:
    from ..index.http.blocking import BlockingClient, RemoteFile

__all__ = ["Connect", "check_page"]

Connect = Callable[[], "BlockingClient"]
"""Makes the client that reads pages."""


def check_page(url: str, connect: Connect) -> Iterator[Finding]:
    """Check the files that a project page lists.

    :param connect: makes the client that reads the page and its files.
    """
    with connect() as client:
        try:
            files = client.read_page(url)
        except InputError as error:
            collector = Collector(redacted(url))
            collector.add_error("NV100", error)
            yield from collector.findings
            return
        yield from check_files(redacted(url), (_index_file(f, client) for f in files))


def _index_file(file: RemoteFile, client: BlockingClient) -> IndexFile:
    def open_wheel() -> WheelContent:
        with io.BufferedReader(client.open(file.url)) as wheel:
            return read_wheel(wheel)

    return IndexFile(
        name=file.name,
        path=redacted(file.url),
        time=file.time,
        read=lambda: client.read(file.url),
        open_wheel=open_wheel,
    )
