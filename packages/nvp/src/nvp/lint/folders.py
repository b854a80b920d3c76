"""Checking wheels and folders: those of one project, and folders of project folders."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

from nvidia_variant_provider.errors import InputError
from nvidia_variant_provider.metadata.document import SUFFIX

from ..wheels.names import parse_wheel_name
from .files import IndexFile, Reading, local_file
from .findings import Collector, Finding
from .release import ProjectFiles, check_project
from .wheel import check_wheel

__all__ = [
    "MAX_PROJECTS",
    "check_folder",
    "check_wheel_path",
    "list_folder",
    "too_many_projects",
]

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
    for project in list_folder(path, reading, most=MAX_PROJECTS):
        yield from check_project(project)


def list_folder(
    path: str, reading: Reading, *, most: int | None = None
) -> Iterator[ProjectFiles]:
    """Yield the files of a folder, or of each project folder in it.

    :param most: how many project folders are listed; all by default.
    :raises InputError: the folder cannot be read.
    """
    names = _list(path)
    if any(name.endswith((SUFFIX, ".whl")) for name in names):
        yield ProjectFiles(path=path, files=_index_files(path, names, reading))
        return
    projects = [name for name in names if os.path.isdir(os.path.join(path, name))]
    listed = False
    for position, name in enumerate(projects[:most], 1):
        folder = os.path.join(path, name)
        findings: list[Finding] = []
        files = None
        try:
            entries = _list(folder)
        except InputError as error:
            findings = _unreadable(folder, error)
        else:
            # An index also holds folders of other things, and projects without wheels.
            if not any(entry.endswith((SUFFIX, ".whl")) for entry in entries):
                continue
            logger.info("checking the project %s", name)
            files = _index_files(folder, entries, reading)
        listed = True
        yield ProjectFiles(
            path=folder,
            files=files,
            findings=findings,
            position=position,
            total=len(projects),
        )
    if most is not None and len(projects) > most:
        findings = too_many_projects(path, len(projects), most)
        yield ProjectFiles(path=path, findings=findings)
    elif not listed:
        yield ProjectFiles(path=path, files=[])


def check_wheel_path(path: str, reading: Reading) -> list[Finding]:
    """Check one wheel by itself: its name, ``variant.json``, METADATA and code."""
    try:
        name = parse_wheel_name(os.path.basename(path))
    except InputError as error:
        collector = Collector(path)
        collector.add_error("NV411", error)
        return collector.findings
    return check_wheel(local_file(path, reading), name).findings


def too_many_projects(path: str, count: int, most: int) -> list[Finding]:
    """Return the finding that not every project of an index was checked."""
    collector = Collector(path)
    message = f"only {most} of {count} projects were checked"
    collector.add("NV100", "", message, "name the other projects themselves")
    return collector.findings


def _list(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", path=path) from None


def _index_files(path: str, names: list[str], reading: Reading) -> list[IndexFile]:
    return [local_file(os.path.join(path, name), reading) for name in names]


def _unreadable(path: str, error: InputError) -> list[Finding]:
    collector = Collector(path)
    collector.add_error("NV100", error)
    return collector.findings
