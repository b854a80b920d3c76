"""List the wheels of an index for a census, project by project.

The index is on a server (PEP 503, PEP 691) or in a directory. A directory contains
wheels, or a directory for each project with its wheels or an ``index.html``.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from string import ascii_lowercase
from typing import TypeAlias

from packaging.utils import InvalidName, canonicalize_name, canonicalize_version
from packaging.version import InvalidVersion, Version

from nvidia_variant_provider.errors import InputError, UsageError, redacted, shown
from nvidia_variant_provider.strict_json import LARGE_BYTES, read_bytes

from ..directories import list_names
from ..files import real_path
from ..index.http.urls import (
    HTML_PAGE,
    IndexFile,
    UpstreamError,
    is_http,
    local_file,
    path_of_file_url,
    split_credentials,
    why_no_index,
)
from ..wheels.archive import WheelName, parse_wheel_name
from .model import Options, Wheel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..index.http.blocking import BlockingClient, RemotePage

logger = logging.getLogger(__name__)

Connect = Callable[[], "BlockingClient"]
"""A function that creates the client for pages."""

_MOST_PAGES = 4
"""The maximum number of concurrent requests for pages of a server. Pages are small, so
a few concurrent requests hide their latency."""

_LARGEST = 2**63 - 1
"""The largest integer that SQLite can store; a page may list a larger size."""

_GONE = (404, 410)

_Found: TypeAlias = "tuple[str, Sequence[IndexFile], InputError | None]"
"""A project, its files, and the error if not all files could be listed."""

_Build: TypeAlias = "tuple[str, str | None, str | None]"
"""The platforms, the variant label and the local version of a wheel."""

_Listed: TypeAlias = "tuple[int, _Build, Wheel]"
"""The newest Python of a wheel, its build, and the wheel."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Project:
    """A project, and its wheels to read.

    :param error: why the page or a directory of the project could not be read.
    :param position: the number of the project, from 1.
    :param total: the number of projects.
    """

    name: str
    wheels: Sequence[Wheel] = ()
    error: InputError | None = None
    position: int = 1
    total: int = 1


def list_projects(index: str, options: Options, connect: Connect) -> Iterator[Project]:
    """Yield the projects of an index; each page is read when its project is requested.

    :param index: the URL of a root page, a directory, or its ``file:`` URL.
    :raises InputError: the index itself cannot be read or has no projects.
    :raises UsageError: a name or the index is malformed.
    """
    names = [_normalized(name) for name in dict.fromkeys(options.projects)]
    if is_http(index):
        root = f"{index.rstrip('/')}/"
        projects = _of_server(root, names, options, connect)
        root, _ = split_credentials(root)
    else:
        path = _local_path(index)
        if path is None or not os.path.isdir(path):
            message, hint = why_no_index(index)
            raise UsageError(message, path=index, hint=hint)
        root = os.path.abspath(path)
        projects = _of_folder(root, names, options)
    return (_with_index(project, root) for project in projects)


def _with_index(project: Project, index: str) -> Project:
    wheels = [replace(wheel, index=index) for wheel in project.wheels]
    return replace(project, wheels=wheels)


def _local_path(location: str) -> str | None:
    """Return the path of a directory or a ``file:`` URL; ``None`` for other URLs."""
    if location.startswith("file:"):
        return path_of_file_url(location)
    return None if "://" in location else location


def _normalized(name: str) -> str:
    try:
        return canonicalize_name(name, validate=True)
    except InvalidName:
        message = f"{shown(name)} is not the name of a project"
        hint = "give only the name, without a version"
        raise UsageError(message, path="--project", hint=hint) from None


def _of_server(
    root: str, names: Sequence[str], options: Options, connect: Connect
) -> Iterator[Project]:
    with connect() as client:
        pages: Sequence[str] = [f"{root}{name}/" for name in names]
        if not names:
            first = client.read_page(root)
            pages = first.projects
            files = [file for file in _files_of(first) if file.name.endswith(".whl")]
            if files:
                # The URL is a project page, or a page for pip's --find-links.
                yield from _of_files(files, names, options)
                return
            if not pages:
                message = "is not the root page of an index: it links no project"
                hint = "give the URL of a simple index (PEP 503, PEP 691)"
                raise InputError(message, path=root, hint=hint)
        # Respect the user's limit of requests per server.
        read = client.read_pages(pages, at_once=min(_MOST_PAGES, options.per_host))
        found = (_found(url, page, root, is_named=bool(names)) for url, page in read)
        yield from _projects(found, len(pages), options)


def _found(
    url: str, page: RemotePage | UpstreamError, root: str, *, is_named: bool
) -> _Found:
    name = canonicalize_name(url.rstrip("/").rpartition("/")[2])
    logger.debug("the page of %s was read", name)
    if not isinstance(page, UpstreamError):
        return name, _files_of(page), None
    if is_named and page.status in _GONE:
        # The user may have misspelled the name.
        page.hint = f"check the name, and that {redacted(root)} is the index"
    return name, (), page


def _files_of(page: RemotePage) -> list[IndexFile]:
    # A page on a server must not refer to local files.
    return [file for file in page.files if is_http(file.url)]


def _of_folder(path: str, names: Sequence[str], options: Options) -> Iterator[Project]:
    root = Path(real_path(path))
    entries = list_names(path)
    wheels = [entry for entry in entries if entry.endswith(".whl")]
    if wheels:
        local = [local_file(os.path.join(path, name)) for name in wheels]
        yield from _of_files(local, names, options)
        return
    # Several directories belong to one project if their normalized names are equal.
    folders: dict[str, list[str]] = {}
    for entry in entries:
        folder = os.path.join(path, entry)
        if os.path.isdir(folder):
            folders.setdefault(canonicalize_name(entry), []).append(folder)
    if not folders:
        message = "it has neither wheels nor directories of projects"
        raise InputError(message, path=path, hint="name the directory of an index")
    names = names or sorted(folders)
    found = (_found_in(root, folders.get(name, ()), name) for name in names)
    yield from _projects(found, len(names), options)


def _found_in(root: Path, folders: Sequence[str], name: str) -> _Found:
    files: list[IndexFile] = []
    error = None
    if not folders:
        message = f"there is no directory of the project {name}"
        error = InputError(message, path=str(root), hint="check the name")
    try:
        for folder in folders:
            listed = _files_in(folder, name, root)
            files += filter(None, listed)
            if None in listed:
                message = "its page names files outside of the index"
                hint = "put them below the directory that contains the index"
                error = InputError(message, path=folder, hint=hint)
    except InputError as unreadable:
        error = unreadable
    return name, files, error


def _files_in(folder: str, project: str, root: Path) -> list[IndexFile | None]:
    """Return the wheels in a directory, or on its page.

    ``None`` replaces a file of this machine that the page must not name.
    """
    page = os.path.join(folder, HTML_PAGE)
    if not os.path.isfile(page):
        names = [name for name in list_names(folder) if name.endswith(".whl")]
        return [local_file(os.path.join(folder, name)) for name in names]
    from ..index.http.connecting import Nearness
    from ..index.http.pages import parse_page
    from ..index.selection.pieces import is_of_index

    body = read_bytes(page, limit=LARGE_BYTES)
    detail = parse_page(body, "text/html", Path(page).as_uri(), project)
    found: list[IndexFile | None] = []
    for file in detail.files:
        name, url, sha256 = file.filename, file.url, file.hashes.get("sha256")
        path = _local_path(url) or url
        if not name.endswith(".whl"):
            continue
        if is_http(url):
            # The page may be a copy of a stranger's, so it may name public servers, and
            # no user for other files of a server.
            found.append(
                IndexFile(
                    name=name,
                    url=url,
                    page=url,
                    near=Nearness.ELSEWHERE,
                    sha256=sha256,
                )
            )
        else:
            is_ours = is_of_index(Path(path), root)
            found.append(local_file(path, sha256) if is_ours else None)
    return found


def _of_files(
    files: Iterable[IndexFile], names: Sequence[str], options: Options
) -> Iterator[Project]:
    """Group the files of one directory or page by project, and yield the projects."""
    projects: dict[str, list[IndexFile]] = {}
    for file in files:
        name = canonicalize_name(file.name.partition("-")[0])
        projects.setdefault(name, []).append(file)
    names = names or sorted(projects)
    missing = {
        name: InputError(
            f"no file of the project {name} is listed", hint="check the name"
        )
        for name in names
        if name not in projects
    }
    found = ((name, projects.get(name, ()), missing.get(name)) for name in names)
    yield from _projects(found, len(names), options)


def _projects(
    found: Iterable[_Found], total: int, options: Options
) -> Iterator[Project]:
    for position, (name, files, error) in enumerate(found, 1):
        wheels = tuple(select_wheels(name, files, options))
        yield Project(
            name=name, wheels=wheels, error=error, position=position, total=total
        )


def select_wheels(
    project: str, files: Iterable[IndexFile], options: Options
) -> Iterator[Wheel]:
    """Yield the wheels to read, newest release first.

    :param project: the project of the page; files of other projects are skipped.
    """
    # The keys are texts: a stranger can choose versions with equal hashes.
    releases: dict[str, list[_Listed]] = {}
    for file in files:
        if not file.name.endswith(".whl"):
            continue
        try:
            name = parse_wheel_name(file.name)
            version = Version(name.version)
        except (InputError, InvalidVersion):
            continue
        if canonicalize_name(name.name) != canonicalize_name(project):
            continue
        listed = releases.setdefault(canonicalize_version(version.public), [])
        platforms = sorted({tag.platform for tag in name.tags})
        if any(map(options.allows, platforms)):
            # Keep no tags: a name may have a hundred, and a page 200,000 names.
            build = ".".join(platforms), name.label, version.local
            listed.append((_newest_python(name), build, _wheel(name, version, file)))

    def preference(text: str) -> tuple[bool, Version]:
        # Like installers, prefer final releases to pre-releases.
        version = Version(text)
        return not version.is_prerelease, version

    for text in sorted(releases, key=preference, reverse=True)[: options.releases]:
        wheels = _of_release(releases[text], options)
        yield from sorted(wheels, key=lambda wheel: wheel.filename)


def _of_release(listed: Sequence[_Listed], options: Options) -> Iterator[Wheel]:
    seen: set[_Build] = set()
    # Start with the newest Python: wheels for other Pythons have the same GPU code.
    for _, build, wheel in sorted(
        listed, key=lambda item: (item[0], item[2].filename), reverse=True
    ):
        if options.every_wheel or build not in seen:
            seen.add(build)
            yield wheel


def _wheel(name: WheelName, version: Version, file: IndexFile) -> Wheel:
    stem = file.name.removesuffix(".whl")
    tags = stem.split("-")[-3 - (name.label is not None) :][:3]
    return Wheel(
        project=canonicalize_name(name.name),
        version=str(Version(version.public)),
        label=name.label or version.local,
        filename=file.name,
        tags="-".join(tags),
        url=file.url,
        sha256=file.sha256,
        size=file.size if 0 <= (file.size or 0) <= _LARGEST else None,
        upload_time=_iso_of(file.time),
        page=file.page,
        near=file.near,
    )


def _iso_of(time: float | None) -> str | None:
    if time is None:
        return None
    try:
        return datetime.fromtimestamp(time, timezone.utc).isoformat()
    except (ValueError, OverflowError, OSError):  # it is not in the years 1 to 9999
        return f"{time} s"


def _newest_python(name: WheelName) -> int:
    # cp39 and cp312: the first digit is the major version.
    texts = {tag.interpreter.lstrip(ascii_lowercase) for tag in name.tags}
    numbers = [str(int(text)) for text in texts if text.isdecimal()]
    return max((int(n[0]) * 1000 + int(n[1:] or 0) for n in numbers), default=-1)
