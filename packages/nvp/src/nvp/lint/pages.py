"""Checking pages of an index: the page of a project, or the root page."""

from __future__ import annotations

import io
import logging
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from nvidia_variant_provider.errors import InputError
from nvidia_variant_provider.metadata.document import SUFFIX

from ..index.http.urls import redacted
from .files import IndexFile, OpenFile, Reading, SkippedError
from .findings import Collector, Finding
from .folders import MAX_PROJECTS, too_many_projects
from .release import ProjectFiles, check_project

if TYPE_CHECKING:
    from ..index.http.blocking import BlockingClient, RemoteFile, RemotePage

__all__ = ["Connect", "check_page", "list_page", "open_remote"]

logger = logging.getLogger(__name__)

MAX_WHOLE = 4 * 1024**3
"""The most bytes of a wheel that is downloaded; the largest have about three GiB."""

_SPARE = 256 * 1024**2
"""Bytes that stay free in the temporary folder."""

_TOO_LARGE = (
    f"files of more than {MAX_WHOLE >> 30} GiB, or for which there is no room in the "
    "temporary folder, are not downloaded"
)

Connect = Callable[[], "BlockingClient"]
"""Makes the client that reads pages."""


def check_page(url: str, connect: Connect, reading: Reading) -> Iterator[Finding]:
    """Check the files that a project page lists, or every project of an index.

    The pages of an index are read one after the other. A project whose page cannot be
    read is a finding, and the others are checked all the same.

    :param url: a project page or the root page of an index.
    :param connect: makes the client that reads the pages and the files.
    :param reading: how much of each wheel is read.
    """
    with connect() as client:
        for project in list_page(url, client, reading, most=MAX_PROJECTS):
            yield from check_project(project)


def list_page(
    url: str,
    client: BlockingClient,
    reading: Reading,
    *,
    most: int | None = None,
    at_once: int = 1,
) -> Iterator[ProjectFiles]:
    """Yield the files of a project page, or of each project of an index.

    :param most: how many projects of an index are listed; all by default.
    :param at_once: how many of its pages are requested at the same time.
    """
    page = _read(url, client)
    if isinstance(page, Collector):
        yield ProjectFiles(path=redacted(url), findings=page.findings)
    elif page.projects and not any(map(_is_checked, page.files)):
        urls = page.projects
        yield from _list_projects(
            url, urls, client, reading, most=most, at_once=at_once
        )
    else:
        yield ProjectFiles(
            path=redacted(url), files=_index_files(page, client, reading)
        )


def _list_projects(
    root: str,
    projects: Sequence[str],
    client: BlockingClient,
    reading: Reading,
    *,
    most: int | None,
    at_once: int,
) -> Iterator[ProjectFiles]:
    total = len(projects)
    pages = client.read_pages(projects[:most], at_once=at_once)
    for position, (url, page) in enumerate(pages, 1):
        findings: Sequence[Finding] = ()
        files = None
        if isinstance(page, InputError):
            findings = _unreadable(url, page).findings
        else:
            files = _index_files(page, client, reading)
        yield ProjectFiles(
            path=redacted(url),
            files=files,
            may_be_empty=True,
            findings=findings,
            position=position,
            total=total,
        )
    if most is not None and total > most:
        findings = too_many_projects(redacted(root), total, most)
        yield ProjectFiles(path=redacted(root), findings=findings)


def _read(url: str, client: BlockingClient) -> RemotePage | Collector:
    """Return the page, or a collector with the finding that it cannot be read."""
    logger.debug("reading the page %s", redacted(url))
    try:
        return client.read_page(url)
    except InputError as error:
        return _unreadable(url, error)


def _unreadable(url: str, error: InputError) -> Collector:
    collector = Collector(redacted(url))
    collector.add_error("NV100", error)
    return collector


def _index_files(
    page: RemotePage, client: BlockingClient, reading: Reading
) -> list[IndexFile]:
    return [_index_file(file, client, reading) for file in page.files]


def _is_checked(file: RemoteFile) -> bool:
    return file.name.endswith((".whl", SUFFIX))


def _index_file(
    file: RemoteFile, client: BlockingClient, reading: Reading
) -> IndexFile:
    return IndexFile(
        name=file.name,
        path=redacted(file.url),
        url=file.url,
        time=file.time,
        page=file.page,
        read=lambda: client.read(file.url, page=file.page),
        open_wheel=lambda: open_remote(
            file.url, file.sha256, client, reading, page=file.page
        ),
        reading=reading,
        listed=True,
        sha256=file.sha256,
        size=file.size,
    )


@contextmanager
def open_remote(
    url: str,
    sha256: str | None,
    client: BlockingClient,
    reading: Reading,
    *,
    page: str | None,
) -> Iterator[OpenFile]:
    """Open a wheel of a page: all of it for its hash, or only the parts that are read.

    :param sha256: the hash that the page gives, if it does.
    :param page: the URL of the page.
    :raises SkippedError: the server sends only whole files, and this is too large.
    """
    from ..index.http.urls import NoRangesError

    path = redacted(url)
    unhashed = None
    if sha256 is not None and reading.hashes:
        with _downloaded(url, client, reading, page) as copy:
            if copy is not None:
                yield copy
                return
        unhashed = _TOO_LARGE
    try:
        parts = client.open(url, page=page)
    except NoRangesError as error:
        logger.info("%s: %s; reading all of it", path, error.message)
    else:
        # Reading ahead pays only where one reader goes from start to end.
        with io.BufferedReader(parts) as wheel:
            yield OpenFile(source=wheel, unhashed=unhashed, jobs=1)
        return
    with _downloaded(url, client, reading, page) as copy:
        if copy is None:
            reason = f"{_TOO_LARGE}, and the server does not send parts"
            raise SkippedError(reason, unhashed)
        yield replace(copy, unhashed=unhashed)


@contextmanager
def _downloaded(
    url: str, client: BlockingClient, reading: Reading, page: str | None
) -> Iterator[OpenFile | None]:
    """Provide a copy of a wheel that is removed again; ``None`` if it is too large."""
    from ..index.http.urls import TooLargeError

    with tempfile.TemporaryFile(prefix="nvidia-variant-provider-") as copy:
        free = shutil.disk_usage(tempfile.gettempdir()).free
        limit = min(MAX_WHOLE, max(0, free - _SPARE))
        try:
            with reading.watch(redacted(url)) as progress:
                digest = client.download(
                    url, copy, limit=limit, page=page, progress=progress
                )
        except TooLargeError as error:
            logger.info("%s: %s", redacted(url), error.message)
            yield None
            return
        yield OpenFile(source=copy, sha256=digest, jobs=reading.jobs)
