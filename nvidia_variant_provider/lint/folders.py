"""Checking wheels and folders: those of one project, and folders of project folders."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

from ..errors import InputError
from ..metadata.names import SUFFIX
from ..wheels.names import parse_wheel_name
from .collector import Collector
from .findings import Finding
from .index_files import Reading, local_file
from .release import check_files
from .wheel import check_wheel

__all__ = ["MAX_PROJECTS", "check_folder", "check_wheel_path", "too_many_projects"]

MAX_PROJECTS = 10_000
"""How many projects of an index are checked in one run."""

logger = logging.getLogger(__name__)


def check_folder(path: str, reading: Reading) -> Iterator[Finding]:
    """Check the files of a folder, as an index page would list them.

    A folder without wheels and metadata is the root of an index if it has folders that
    have some. Each of these is checked. One that cannot be read is a finding, and the
    others are checked all the same.

    :raises InputError: the folder cannot be read.
    """
    names = _list(path)
    if any(name.endswith((SUFFIX, ".whl")) for name in names):
        yield from _check_project(path, names, reading)
        return
    projects = [name for name in names if os.path.isdir(os.path.join(path, name))]
    checked = False
    for name in projects[:MAX_PROJECTS]:
        folder = os.path.join(path, name)
        try:
            files = _list(folder)
        except InputError as error:
            checked = True
            yield from _unreadable(folder, error)
            continue
        # An index also holds folders of other things, and projects without wheels.
        if any(file.endswith((SUFFIX, ".whl")) for file in files):
            checked = True
            logger.info("checking the project %s", name)
            yield from _check_project(folder, files, reading)
    if len(projects) > MAX_PROJECTS:
        yield from too_many_projects(path, len(projects))
    elif not checked:
        yield from check_files(path, [])


def check_wheel_path(path: str, reading: Reading) -> list[Finding]:
    """Check one wheel by itself: its name, ``variant.json``, METADATA and code."""
    try:
        name = parse_wheel_name(os.path.basename(path))
    except InputError as error:
        collector = Collector(path)
        collector.add_error("NV411", error)
        return collector.findings
    return check_wheel(local_file(path, reading), name).findings


def too_many_projects(path: str, count: int) -> list[Finding]:
    """Return the finding that not every project of an index was checked."""
    collector = Collector(path)
    message = f"only {MAX_PROJECTS} of {count} projects were checked"
    collector.add("NV100", "", message, "name the other projects themselves")
    return collector.findings


def _list(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", path=path) from None


def _check_project(path: str, names: list[str], reading: Reading) -> Iterator[Finding]:
    files = (local_file(os.path.join(path, name), reading) for name in names)
    return check_files(path, files)


def _unreadable(path: str, error: InputError) -> list[Finding]:
    collector = Collector(path)
    collector.add_error("NV100", error)
    return collector.findings
