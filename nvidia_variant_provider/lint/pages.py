"""Checking pages of an index: the page of a project, or the root page."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from ..errors import InputError
from ..index.http.urls import redacted
from ..metadata.names import SUFFIX
from ..wheels.variant_json import WheelContent, read_wheel
from .collector import Collector
from .findings import Finding
from .folders import MAX_PROJECTS, too_many_projects
from .index_files import IndexFile
from .release import check_files

if TYPE_CHECKING:
    from ..index.http.blocking import BlockingClient, RemoteFile, RemotePage

__all__ = ["Connect", "check_page"]

logger = logging.getLogger(__name__)

Connect = Callable[[], "BlockingClient"]
"""Makes the client that reads pages."""


def check_page(url: str, connect: Connect) -> Iterator[Finding]:
    """Check the files that a project page lists, or every project of an index.

    The pages of an index are read one after the other. A project whose page cannot be
    read is a finding, and the others are checked all the same.

    :param url: a project page or the root page of an index.
    :param connect: makes the client that reads the pages and the files.
    """
    with connect() as client:
        page = _read(url, client)
        if isinstance(page, Collector):
            yield from page.findings
        elif page.projects and not any(map(_is_checked, page.files)):
            yield from _check_projects(url, page.projects, client)
        else:
            yield from _check_project(url, page.files, client)


def _check_projects(
    root: str, projects: Sequence[str], client: BlockingClient
) -> Iterator[Finding]:
    for url in projects[:MAX_PROJECTS]:
        page = _read(url, client)
        if isinstance(page, Collector):
            yield from page.findings
        else:
            yield from _check_project(url, page.files, client, may_be_empty=True)
    if len(projects) > MAX_PROJECTS:
        yield from too_many_projects(redacted(root), len(projects))


def _read(url: str, client: BlockingClient) -> RemotePage | Collector:
    """Return the page, or a collector with the finding that it cannot be read."""
    logger.debug("reading the page %s", redacted(url))
    try:
        return client.read_page(url)
    except InputError as error:
        collector = Collector(redacted(url))
        collector.add_error("NV100", error)
        return collector


def _check_project(
    url: str,
    files: Sequence[RemoteFile],
    client: BlockingClient,
    *,
    may_be_empty: bool = False,
) -> Iterator[Finding]:
    listed = (_index_file(file, client) for file in files)
    return check_files(redacted(url), listed, may_be_empty=may_be_empty)


def _is_checked(file: RemoteFile) -> bool:
    return file.name.endswith((".whl", SUFFIX))


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
