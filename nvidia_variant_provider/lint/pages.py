"""Checking pages of an index: the page of a project, or the root page."""

from __future__ import annotations

import io
import logging
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..errors import InputError
from ..index.http.urls import redacted
from ..metadata.names import SUFFIX
from .collector import Collector
from .findings import Finding
from .folders import MAX_PROJECTS, too_many_projects
from .index_files import IndexFile, OpenFile, Reading, SkippedError
from .release import check_files

if TYPE_CHECKING:
    from ..index.http.blocking import BlockingClient, RemoteFile, RemotePage

__all__ = ["Connect", "check_page"]

logger = logging.getLogger(__name__)

MAX_WHOLE = 4 * 1024**3
"""The most bytes of a wheel that is downloaded; the largest have about three GiB."""

_SPARE = 256 * 1024**2
"""Bytes that stay free in the temporary folder."""

_NO_HASH = "--no-hash is given, or NV417 is left out"
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
        page = _read(url, client)
        if isinstance(page, Collector):
            yield from page.findings
        elif page.projects and not any(map(_is_checked, page.files)):
            yield from _check_projects(url, page.projects, client, reading)
        else:
            yield from _check_project(url, page.files, client, reading)


def _check_projects(
    root: str, projects: Sequence[str], client: BlockingClient, reading: Reading
) -> Iterator[Finding]:
    for url in projects[:MAX_PROJECTS]:
        page = _read(url, client)
        if isinstance(page, Collector):
            yield from page.findings
        else:
            yield from _check_project(
                url, page.files, client, reading, may_be_empty=True
            )
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
    reading: Reading,
    *,
    may_be_empty: bool = False,
) -> Iterator[Finding]:
    listed = (_index_file(file, client, reading) for file in files)
    return check_files(redacted(url), listed, may_be_empty=may_be_empty)


def _is_checked(file: RemoteFile) -> bool:
    return file.name.endswith((".whl", SUFFIX))


def _index_file(
    file: RemoteFile, client: BlockingClient, reading: Reading
) -> IndexFile:
    return IndexFile(
        name=file.name,
        path=redacted(file.url),
        time=file.time,
        read=lambda: client.read(file.url),
        open_wheel=lambda: _open(file, client, reading),
        reading=reading,
        listed=True,
        sha256=file.sha256,
    )


@contextmanager
def _open(
    file: RemoteFile, client: BlockingClient, reading: Reading
) -> Iterator[OpenFile]:
    """Open a wheel of a page: all of it for its hash, or only the parts that are read.

    :raises SkippedError: the server sends only whole files, and this is too large.
    """
    from ..index.http.urls import NoRangesError

    path = redacted(file.url)
    if file.sha256 is not None and reading.hashes:
        with _downloaded(file, client, reading) as copy:
            if copy is not None:
                yield copy
                return
        reading.unchecked.add("the sha256", _TOO_LARGE, path)
    elif file.sha256 is not None:
        reading.unchecked.add("the sha256", _NO_HASH, path)
    try:
        parts = client.open(file.url)
    except NoRangesError as error:
        logger.info("%s: %s; reading all of it", path, error.message)
    else:
        # Reading ahead pays only where one reader goes from start to end.
        with io.BufferedReader(parts) as wheel:
            yield OpenFile(source=wheel, jobs=1)
        return
    with _downloaded(file, client, reading) as copy:
        if copy is None:
            raise SkippedError(f"{_TOO_LARGE}, and the server does not send parts")
        yield copy


@contextmanager
def _downloaded(
    file: RemoteFile, client: BlockingClient, reading: Reading
) -> Iterator[OpenFile | None]:
    """Provide a copy of a wheel that is removed again; ``None`` if it is too large."""
    from ..index.http.downloading import TooLargeError

    with tempfile.TemporaryFile(prefix="nvidia-variant-provider-") as copy:
        free = shutil.disk_usage(tempfile.gettempdir()).free
        limit = min(MAX_WHOLE, max(0, free - _SPARE))
        try:
            with reading.watch(redacted(file.url)) as progress:
                digest = client.download(file.url, copy, limit=limit, progress=progress)
        except TooLargeError as error:
            logger.info("%s: %s", redacted(file.url), error.message)
            yield None
            return
        yield OpenFile(source=copy, sha256=digest, jobs=reading.jobs)
