"""The wheels of an index, one project after the other.

The index is on a server (PEP 503, PEP 691) or in a folder. A folder has the wheels
themselves, or a folder for each project with its wheels or an ``index.html``.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from packaging.utils import InvalidName, canonicalize_name

from nvidia_variant_provider.errors import InputError, UsageError, shown
from nvidia_variant_provider.strict_json import LARGE_BYTES, read_bytes

from ..index.http.files import IndexFile, list_names, local_file
from ..index.http.urls import (
    UpstreamError,
    is_http,
    path_of_file_url,
    redacted,
    why_no_index,
)
from .model import Wheel
from .selecting import Choice, select_wheels

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..index.http.blocking import BlockingClient, RemotePage

__all__ = ["Connect", "Project", "list_projects", "local_path", "pages_at_once"]

logger = logging.getLogger(__name__)

Connect = Callable[[], "BlockingClient"]
"""Makes the client that reads pages."""

_MOST_PAGES = 4

_PAGE = "index.html"
_GONE = (404, 410)


@dataclass(frozen=True, kw_only=True, slots=True)
class Project:
    """The wheels of one project that are to be read.

    :param error: why its page or a folder of it could not be read.
    :param position: which of the projects it is, from 1 on.
    :param total: how many projects there are.
    """

    name: str
    wheels: Sequence[Wheel] = ()
    error: InputError | None = None
    position: int = 1
    total: int = 1


def pages_at_once(per_host: int) -> int:
    """Return how many pages of a server are requested at the same time.

    Pages are small. So a few requests at a time hide how long each of them takes, and
    a server gets no more of them than the user allows for wheels.
    """
    return min(_MOST_PAGES, per_host)


def list_projects(
    index: str,
    names: Sequence[str],
    choice: Choice,
    connect: Connect,
    *,
    at_once: int = 1,
) -> Iterator[Project]:
    """Yield each project of an index; its page is read when it is asked for.

    :param index: the URL of a root page, a folder, or its ``file:`` URL.
    :param names: the projects to read; empty for all that the index lists.
    :param at_once: how many pages are requested at the same time.
    :raises InputError: the index itself cannot be read, or there is no project in it.
    :raises UsageError: a name or the index is malformed.
    """
    projects = [_normalized(name) for name in dict.fromkeys(names)]
    if is_http(index):
        return _of_server(index, projects, choice, connect, at_once)
    path = local_path(index)
    if path is None or not os.path.isdir(path):
        message, hint = why_no_index(index)
        raise UsageError(message, path=redacted(index), hint=hint)
    return _of_folder(path, projects, choice)


def local_path(location: str) -> str | None:
    """Return the path of a folder or a ``file:`` URL; ``None`` for other URLs."""
    if location.startswith("file:"):
        return path_of_file_url(location)
    return None if "://" in location else location


def _normalized(name: str) -> str:
    try:
        return canonicalize_name(name, validate=True)
    except InvalidName:
        message = f"{shown(name)} is not the name of a project"
        hint = "give the name alone, without a version"
        raise UsageError(message, path="--project", hint=hint) from None


def _of_server(
    index: str,
    names: Sequence[str],
    choice: Choice,
    connect: Connect,
    at_once: int,
) -> Iterator[Project]:
    root = f"{index.rstrip('/')}/"
    with connect() as client:
        if names:
            pages: Sequence[str] = [f"{root}{name}/" for name in names]
        else:
            first = client.read_page(root)
            pages = first.projects
            files = [file for file in _files_of(first) if file.name.endswith(".whl")]
            if files:
                # This is the page of a project, or one for pip's --find-links.
                yield from _sorted_by_project(files, choice)
                return
            if not pages:
                message = "is not the root page of an index: it links no project"
                hint = "give the URL of a simple index (PEP 503, PEP 691)"
                raise InputError(message, path=redacted(root), hint=hint)
        read = client.read_pages(pages, at_once=at_once)
        for number, (url, page) in enumerate(read, 1):
            name = canonicalize_name(url.rstrip("/").rpartition("/")[2])
            logger.debug("the page of %s was read", name)
            error, wheels = None, tuple[Wheel, ...]()
            if isinstance(page, InputError):
                error = _explained(page, root, named=bool(names))
            else:
                wheels = tuple(select_wheels(name, _files_of(page), choice))
            yield Project(
                name=name,
                wheels=wheels,
                error=error,
                position=number,
                total=len(pages),
            )


def _explained(error: InputError, root: str, *, named: bool) -> InputError:
    """Say in an error that an index has no such project, as many users misspell one."""
    if named and isinstance(error, UpstreamError) and error.status in _GONE:
        error.hint = f"check the name, and that {redacted(root)} is the index"
    return error


def _files_of(page: RemotePage) -> list[IndexFile]:
    # A page on a server does not name files of this machine.
    return [file for file in page.files if is_http(file.url)]


def _of_folder(path: str, names: Sequence[str], choice: Choice) -> Iterator[Project]:
    path = os.path.abspath(path)
    entries = list_names(path)
    wheels = [entry for entry in entries if entry.endswith(".whl")]
    if wheels:
        local = (local_file(os.path.join(path, name)) for name in wheels)
        yield from _sorted_by_project(local, choice, names)
        return
    folders: dict[str, list[str]] = {}
    for entry in entries:
        if os.path.isdir(os.path.join(path, entry)):
            folders.setdefault(canonicalize_name(entry), []).append(entry)
    if not folders:
        message = "it has neither wheels nor folders of projects"
        raise InputError(message, path=path, hint="name the folder of an index")
    chosen = names or sorted(folders)
    for number, name in enumerate(chosen, 1):
        paths = [os.path.join(path, folder) for folder in folders.get(name, ())]
        files, error = _files_in_all(paths, name)
        if not paths:
            message = f"there is no folder of the project {name}"
            error = InputError(message, path=path, hint="check the name")
        yield Project(
            name=name,
            wheels=tuple(select_wheels(name, files, choice)),
            error=error,
            position=number,
            total=len(chosen),
        )


def _files_in_all(
    folders: Sequence[str], project: str
) -> tuple[list[IndexFile], InputError | None]:
    """Return the files of a project, and why one of its folders cannot be read.

    There are several folders where names differ only in a way that does not count.
    """
    files: list[IndexFile] = []
    try:
        for folder in folders:
            files += _files_in(folder, project)
    except InputError as error:
        return files, error
    return files, None


def _files_in(folder: str, project: str) -> list[IndexFile]:
    page = os.path.join(folder, _PAGE)
    if not os.path.isfile(page):
        names = [name for name in list_names(folder) if name.endswith(".whl")]
        return [local_file(os.path.join(folder, name)) for name in names]
    from pathlib import Path

    from ..index.http.pages import parse_page

    body = read_bytes(page, limit=LARGE_BYTES)
    detail = parse_page(body, "text/html", Path(page).as_uri(), project)
    return [
        IndexFile(
            name=file.filename,
            url=file.url,
            sha256=file.hashes.get("sha256"),
        )
        if is_http(file.url)
        else local_file(local_path(file.url) or file.url, file.hashes.get("sha256"))
        for file in detail.files
        if file.filename.endswith(".whl")
    ]


def _sorted_by_project(
    files: Iterable[IndexFile], choice: Choice, names: Sequence[str] = ()
) -> Iterator[Project]:
    """Yield the projects of files that lie or are listed in one place."""
    projects: dict[str, list[IndexFile]] = {}
    for file in files:
        project = canonicalize_name(file.name.partition("-")[0])
        if not names or project in names:
            projects.setdefault(project, []).append(file)
    chosen = names or sorted(projects)
    for number, name in enumerate(chosen, 1):
        error = None
        if name not in projects:
            message, hint = f"no file of the project {name} is listed", "check the name"
            error = InputError(message, hint=hint)
        yield Project(
            name=name,
            wheels=tuple(select_wheels(name, projects.pop(name, ()), choice)),
            error=error,
            position=number,
            total=len(chosen),
        )
