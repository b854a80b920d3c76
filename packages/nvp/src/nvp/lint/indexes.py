"""Checking wheels, folders and pages: of one project, or of an index with several."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import replace

from nvidia_variant_provider.errors import InputError
from nvidia_variant_provider.metadata.document import SUFFIX

from ..index.http.files import IndexFile, list_names, local_file
from ..index.http.urls import redacted
from ..wheels.names import parse_wheel_name
from .files import Reading
from .findings import Collector, Finding
from .release import ProjectFiles, check_project
from .wheel import check_wheel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..index.http.blocking import BlockingClient

__all__ = ["MAX_PROJECTS", "Connect", "check_folder", "check_page", "check_wheel_path"]

logger = logging.getLogger(__name__)

MAX_PROJECTS = 10_000
"""How many projects of an index are checked in one run."""

Connect = Callable[[], "BlockingClient"]
"""Makes the client that reads pages."""


def check_wheel_path(path: str, reading: Reading) -> list[Finding]:
    """Check one wheel by itself: its name, ``variant.json``, METADATA and code."""
    try:
        name = parse_wheel_name(os.path.basename(path))
    except InputError as error:
        collector = Collector(path)
        collector.add_error("NV411", error)
        return collector.findings
    return check_wheel(local_file(path), name, reading).findings


def check_folder(path: str, reading: Reading) -> Iterator[Finding]:
    """Check the files of a folder, as an index page would list them.

    A folder without wheels and metadata is the root of an index if it has folders that
    have some. Each of these is checked. One that cannot be read is a finding, and the
    others are checked all the same.

    :raises InputError: the folder cannot be read.
    """
    for project in _list_folder(path):
        yield from check_project(project, reading)


def check_page(url: str, connect: Connect, reading: Reading) -> Iterator[Finding]:
    """Check the files that a project page lists, or every project of an index.

    The pages of an index are read one after the other. A project whose page cannot be
    read is a finding, and the others are checked all the same.

    :param url: a project page or the root page of an index.
    :param connect: makes the client that reads the pages and the files.
    :param reading: how much of each wheel is read.
    """
    with connect() as client:
        reading = replace(reading, client=client)
        for project in _list_pages(url, client):
            yield from check_project(project, reading)


def _list_folder(path: str) -> Iterator[ProjectFiles]:
    """Yield the files of a folder, or of each project folder in it."""
    names = list_names(path)
    if any(map(_is_checked, names)):
        yield ProjectFiles(path=path, files=_files_in(path, names))
        return
    projects = [name for name in names if os.path.isdir(os.path.join(path, name))]
    listed = False
    for name in projects[:MAX_PROJECTS]:
        folder = os.path.join(path, name)
        try:
            entries = list_names(folder)
        except InputError as error:
            yield ProjectFiles(path=folder, findings=_unreadable(folder, error))
        else:
            # An index also holds folders of other things, and projects without wheels.
            if not any(map(_is_checked, entries)):
                continue
            logger.info("checking the project %s", name)
            yield ProjectFiles(path=folder, files=_files_in(folder, entries))
        listed = True
    if len(projects) > MAX_PROJECTS:
        yield _too_many(path, len(projects))
    elif not listed:
        yield ProjectFiles(path=path, files=[])


def _list_pages(url: str, client: BlockingClient) -> Iterator[ProjectFiles]:
    """Yield the files of a project page, or of each project of an index."""
    path = redacted(url)
    logger.debug("reading the page %s", path)
    try:
        page = client.read_page(url)
    except InputError as error:
        yield ProjectFiles(path=path, findings=_unreadable(path, error))
        return
    projects = page.projects
    if not projects or any(_is_checked(file.name) for file in page.files):
        yield ProjectFiles(path=path, files=page.files)
        return
    for address, found in client.read_pages(projects[:MAX_PROJECTS], at_once=1):
        place = redacted(address)
        if isinstance(found, InputError):
            yield ProjectFiles(path=place, findings=_unreadable(place, found))
        else:
            yield ProjectFiles(path=place, files=found.files, may_be_empty=True)
    if len(projects) > MAX_PROJECTS:
        yield _too_many(path, len(projects))


def _is_checked(name: str) -> bool:
    return name.endswith((SUFFIX, ".whl"))


def _files_in(folder: str, names: list[str]) -> list[IndexFile]:
    return [local_file(os.path.join(folder, name)) for name in names]


def _unreadable(path: str, error: InputError) -> list[Finding]:
    collector = Collector(path)
    collector.add_error("NV100", error)
    return collector.findings


def _too_many(path: str, count: int) -> ProjectFiles:
    """Return the finding that not every project of an index was checked."""
    collector = Collector(path)
    message = f"only {MAX_PROJECTS} of {count} projects were checked"
    collector.add("NV100", "", message, "name the other projects themselves")
    return ProjectFiles(path=path, findings=collector.findings)
