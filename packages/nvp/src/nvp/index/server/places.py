"""The places that a user names: indexes and links, on servers and in directories."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import replace
from html import escape
from itertools import chain, islice, takewhile
from mimetypes import guess_type
from operator import attrgetter
from pathlib import Path
from urllib.parse import urlsplit

from packaging.utils import canonicalize_name, is_normalized_name
from packaging.version import Version
from simple_repository import errors, model
from simple_repository.components.core import RepositoryContainer, SimpleRepository

from nvidia_variant_provider.errors import InputError

from ...directories import list_opened
from ...files import real_path
from ...wheels.archive import parse_wheel_name, release_of_sdist
from ..http.client import Client
from ..http.kept_keys import LINKS, check_hashes
from ..http.pages import ACCEPT, parse_page
from ..http.threads import Share
from ..http.urls import (
    HTML_PAGE,
    REFUSED,
    CompleteResponse,
    TooLargeError,
    UpstreamError,
    file_name,
    is_http,
    split_credentials,
)
from ..selection.pieces import ANY, SERVED, IndexFile, is_of_index
from ..selection.renaming import find_label
from ..selection.shown import with_files
from ..selection.wheel_files import may_be_build
from .kept_pages import note
from .static_files import LocalFiles
from .upstream import (
    HttpUpstream,
    UnjudgedError,
    Upstream,
    list_folder,
    local_path,
    outside_of_index,
    read_page_file,
    refuse_near_files,
)

logger = logging.getLogger(__name__)

_METADATA = re.compile(r".+-(?P<version>[^-]+)-variants\.json")


def make_upstream(
    url: str, pair: tuple[str, str] | None, client: Client, *, links: bool = False
) -> HttpUpstream | FolderUpstream | LinksUpstream | None:
    """Create the upstream of an index or of a page of links, and store its credentials.

    :param url: the URL, perhaps with a user and a password, which override ``pair``.
    :param pair: pip's user and password for the URL, also used if the URL has a user
        without a password.
    :param links: whether the URL is a target of ``--find-links``.
    :returns: ``None`` for a URL that pip would not read, or a missing directory.
    """
    bare, own = split_credentials(url)
    if is_http(bare):
        if not client.is_allowed(bare):
            return None
        # pip reads no user without a password in the URL of a page of links.
        if own and (own[1] or not pair or (pair[0] != own[0] and not links)):
            pair = own
        if pair is not None:
            is_empty = not links and urlsplit(url).password is not None
            whole = own is not None and (bool(own[1]) or is_empty)
            client.logins.add(bare, pair, whole=whole)
    if links:
        return LinksUpstream(bare, client)
    if is_http(bare):
        return HttpUpstream(bare, client)
    folder = local_path(bare)
    return FolderUpstream(folder, client) if os.path.isdir(folder) else None


_ARCHIVE = re.compile(
    r".*-.*\.(whl|zip|tar|t[abglx]z2?|(tar\.)?(gz|bz2|xz|lz|lzma))", re.IGNORECASE
)
_PLAIN = re.compile(
    r"(?!.*-v?\d[^-]*-((a|b|c|r|rc|alpha|beta|pre|preview|post|rev|dev)(?![a-z])"
    r"|\d+(?!\d*\.\d))).*-[^-]+\.(tar\.gz|zip)|.*\.whl"
)
"""Distributions, and those that every pip finds: not ``demo-1.0-1.zip``, whose version
is 1 in a directory, and 1.0.post1 on a page."""

_ENDS = (".whl", ".zip", ".tar", *(f".t{x}" for x in ("gz", "bz", "lz", "xz", "bz2")))
_ENDS += tuple(f".tar.{x}" for x in ("gz", "bz2", "xz", "lz", "lzma"))
"""The ends of the names of files that pip can install."""


_MOST_PAGES = 64
"""The most pages of links in a directory; pip itself reads a directory with more."""

_LOOKING = 10.0
"""The maximum processor time in seconds for the links of a page. A mirror with 40,000
files in as many directories takes 3 s; each directory behind a link can take 0.03 s."""


def find_links_path(location: str) -> Path | None:
    """Return the path of a value of ``--find-links``, as pip finds it; or ``None``."""
    if is_http(location):
        return None
    try:
        text = os.fspath(local_path(location))
        path = Path(os.path.abspath(text))
        # Verdicts on the files of a page depend on all other pages.
        if sum(is_page(Path(name)) for name in _names_in(path)) > _MOST_PAGES:
            return None
        # Some pips list the directory behind a link, but take files beside the link.
        if os.pardir in text and os.path.realpath(text) != os.path.realpath(path):
            return None
        return path if os.path.isdir(path) or os.path.isfile(path) else None
    except (OSError, ValueError, RecursionError):  # a long chain of links, for example
        return None


def is_file_of_pip(url: str) -> bool:
    """Return whether pip takes the URL of links for a file that it can install.

    pip has its own order of files, pages and directories.
    """
    name = file_name(url.partition("#")[0].rstrip("/"))
    is_named = "egg=" in url.partition("#")[2]
    return is_named or (name.lower().endswith(_ENDS) and find_label(name) is None)


def is_page(path: Path) -> bool:
    """Return whether pip takes a file for a page of links, by its name."""
    return guess_type(path.name, strict=False)[0] == "text/html"


def _is_odd(path: Path) -> bool:
    """Return whether pip finds a file only by its name, or only some pips find it."""
    is_plain = _PLAIN.fullmatch(path.name) is not None and os.path.isfile(path)
    return _ARCHIVE.fullmatch(path.name) is not None and not is_plain


def _names_in(folder: Path) -> list[str]:
    """Return the names of the files in a directory; empty if it cannot be read."""
    try:
        return os.listdir(folder)
    except OSError:
        return []  # pip reports the error


def is_distribution(name: str) -> bool:
    """Return whether a file name is that of a wheel or a source distribution."""
    return name.endswith(".whl") or release_of_sdist(name) is not None


class FolderUpstream(Upstream):
    """An index in a directory: ``{project}/index.html``, or the files themselves."""

    def __init__(self, folder: str | os.PathLike[str], client: Client) -> None:
        super().__init__()
        # Like pip, resolve the URLs of a page against this path, even if it is a link.
        self.folder = Path(os.path.abspath(folder))
        self._index = Path(real_path(self.folder))
        self._client = client

    def _local(self, path: Path) -> model.LocalResource:
        if self.is_of_pip:
            return super()._local(path)
        return IndexFile(path, to_cache=False, index=self._index)

    async def _read_names(self) -> Iterable[str]:
        folder, names = await asyncio.to_thread(self._list, self.folder)
        shown = filter(is_normalized_name, sorted(names))
        return [name for name in shown if os.path.isdir(folder / name)]

    def _list(self, folder: Path) -> tuple[Path, Sequence[str]]:
        """Return a directory without links, and the names in it.

        :raises UpstreamError: it cannot be read, or may be a stranger's link to another
            user's directory.
        """
        try:
            path, names = list_opened(folder)
        except OSError as error:
            message = f"cannot be read: {error.strerror}"
            raise UpstreamError(message, path=str(folder)) from None
        if not (self.is_of_pip or is_of_index(Path(path), self._index, ANY)):
            raise outside_of_index(folder)
        return Path(path), names

    async def _read_page(self, project: str) -> model.ProjectDetail:
        note(0.0)
        page = await asyncio.to_thread(self._read, project)
        return await refuse_near_files(page, self._client)

    def _read(self, project: str) -> model.ProjectDetail:
        # The name is normalized, so it cannot lead out of the directory.
        page = self.folder / project / HTML_PAGE
        index = None if self.is_of_pip else self._index
        if os.path.exists(page):
            found = read_page_file(page, project, self.is_of_pip, index)
        elif os.path.isdir(page.parent):
            folder, names = self._list(page.parent)
            # A directory beside the index may also have files with private names.
            found = list_folder(folder, project, filter(SERVED.fullmatch, names))
        else:
            raise errors.PackageNotFoundError(project)
        if index is None:  # pip opens every file that a page names
            return found
        files = tuple(map(LocalFiles(index, _LOOKING).check, found.files))
        files = tuple(
            replace(file, size=None) if file.url.startswith(REFUSED) else file
            for file in files
        )
        return replace(found, files=files)


class LinksUpstream(Upstream):
    """The target of pip's ``--find-links``: a directory, or a page of links.

    :param location: a path or a URL, without credentials.
    :param client: reads the page, and has its credentials.
    """

    def __init__(self, location: str, client: Client) -> None:
        super().__init__()
        self.location = location
        self._client = client
        self._whole: model.ProjectDetail | None = None
        self._digest = b""  # of the page that pip has read last
        self._error: UnjudgedError | None = None  # why this program cannot read it
        self._names: list[tuple[str, int]] = []  # normalized, each with its position

    async def read_all(self) -> model.ProjectDetail:
        """Return the files of all projects, and cache them for pages of projects."""
        self._check_missed(LINKS)
        page = self._taken.get(LINKS) or self._whole or await self._read_whole()
        if page is not self._whole:
            self._whole = page
            names = (canonicalize_name(file.filename) for file in page.files)
            self._names = sorted((name, number) for number, name in enumerate(names))
        return page

    def miss(self, name: str, reason: str | None = None) -> None:  # noqa: ARG002
        """Do not read the page of all projects."""
        super().miss(LINKS, reason)

    async def take(self, reply: CompleteResponse, name: str) -> None:  # noqa: ARG002
        """Keep the page of all projects, which pip reads again for each project."""
        digest = hashlib.sha256(f"{reply.url} {reply.headers}".encode() + reply.body)
        if digest.digest() != self._digest:
            self._digest, self._whole, self._error = digest.digest(), None, None
            try:
                await super().take(reply, LINKS)
            except UnjudgedError as error:
                self._error = error
        if self._error is not None:
            self._missed[LINKS] = self._error
            raise self._error
        self._missed.pop(LINKS, None)

    async def _read_whole(self) -> model.ProjectDetail:
        url, name = self.location, file_name(self.location)
        if is_http(url):
            # Like pip, take the URL of a file for the file, with the hash in the URL.
            is_file = is_distribution(name)
            link = f'<a href="{escape(url)}"></a>' if is_file else ""
            own = parse_page(link.encode(), "text/html", url, LINKS, exact=True)
            if is_file and not await self._is_page():
                return own
            accept = ACCEPT if self.is_of_pip else "text/html"
            page = await self._fetch(self._client, url, accept, LINKS)
            return with_files(page, (*page.files, *own.files))
        note(0.0)
        path = local_path(url)
        if os.path.isdir(path):
            return await asyncio.to_thread(list_folder, path.resolve(), LINKS)
        try:
            found = await asyncio.to_thread(read_page_file, path, LINKS, self.is_of_pip)
        except UpstreamError as error:
            self._missed[LINKS] = error
            raise
        return await refuse_near_files(found, self._client)

    async def _is_page(self) -> bool:
        """Return whether the URL of a file is a page, too; pip asks the same."""
        try:
            async with self._client.stream(self.location) as response:
                kind: str = response.headers.get("content-type", "").lower()
                return kind.startswith(("text/html", "application/vnd.pypi.simple.v1"))
        except UpstreamError as error:
            if error.status == 401:
                raise
        return False  # pip reports an error if it selects the file

    async def _read_names(self) -> Iterable[str]:
        page = await self.read_all()
        names = (file.filename.partition("-")[0] for file in page.files)
        return set(map(canonicalize_name, names))

    async def _read_page(self, project: str) -> model.ProjectDetail:
        page = await self.read_all()
        start = f"{project}-"
        later = islice(self._names, bisect_left(self._names, (start,)), None)
        own = takewhile(lambda item: item[0].startswith(start), later)
        files = tuple(page.files[number] for number in sorted(n for _, n in own))
        try:
            check_hashes(files, project)
        except ValueError as error:
            raise TooLargeError(f"is refused: {error}", self.location) from None
        return replace(page, name=project, files=files)


class LocalLinksUpstream(LinksUpstream):
    """The directories and files of ``--find-links`` on one page, in pip's order.

    Of files that differ only in their paths, pip prefers the one with the first path.
    """

    def __init__(self, paths: Sequence[Path], client: Client) -> None:
        super().__init__(str(paths[0]), client)
        self._paths = paths

    async def _read_whole(self) -> model.ProjectDetail:
        note(0.0)
        return await asyncio.to_thread(self._list)

    def _list(self) -> model.ProjectDetail:
        files: dict[str, model.File] = {}
        found = [list_folder(path, LINKS).files for path in self._paths]
        for file in sorted(chain(*found), key=attrgetter("url")):
            files.setdefault(file.filename, file)
        last = tuple(reversed(files.values()))  # pip prefers the last of equal files
        return model.ProjectDetail(meta=model.Meta("1.0"), name=LINKS, files=last)


def join_paths(
    paths: Iterable[Path], client: Client, *, judges: bool
) -> tuple[LinksUpstream, dict[Path, list[LinksUpstream]], bool]:
    """Find the files and pages in directories of links.

    :param paths: the directories, and files that are no pages.
    :param judges: whether regular builds are judged, as variants always are.
    :returns: the upstream of all files and those of the pages in each directory, and
        whether pip should use them in place of the directories. It should not if no
        directory has builds, or if one has a file that not every pip finds there, or a
        page that only pip can read.
    """
    found = {path: [path / name for name in _names_in(path)] for path in paths}
    pages = {
        path: [
            # pip reads the page in a directory that has the name of a page.
            LinksUpstream(str(x / HTML_PAGE if os.path.isdir(x) else x), client)
            for x in inside
            if is_page(x)
        ]
        for path, inside in found.items()
    }
    names = [path.name for path in chain(*found.values())]
    joins = any(find_label(x) or (judges and may_be_build(x)) for x in names)
    joins = joins and not any(map(_is_odd, chain(*found.values())))

    async def read() -> None:
        for upstream in chain(*pages.values()):
            await upstream.read_all()

    if joins and any(pages.values()):
        try:
            asyncio.run(read())
        except InputError as error:
            logger.info("pip reads its links itself: %s", error)
            joins = False
    return LocalLinksUpstream([*found], client), pages, joins


class Remembering(RepositoryContainer):
    """Reads each page once for several components.

    :param only: a project, and the releases to which its page is limited.
    """

    def __init__(
        self,
        source: SimpleRepository,
        only: tuple[str, frozenset[Version]] | None = None,
    ) -> None:
        super().__init__(source)
        self._only = only
        self._pages: dict[str, asyncio.Task[model.ProjectDetail]] = {}

    async def get_project_page(
        self,
        project_name: str,
        *,
        request_context: model.RequestContext | None = None,  # noqa: ARG002
    ) -> model.ProjectDetail:
        """Return the page of a project."""
        name = canonicalize_name(project_name)
        if name not in self._pages:
            self._pages[name] = asyncio.ensure_future(self._read(name))
        with Share.waits():
            return await asyncio.shield(self._pages[name])  # others may wait, too

    async def _read(self, project: str) -> model.ProjectDetail:
        page = await self.source.get_project_page(project)
        if self._only is None or self._only[0] != project:
            return page
        versions = self._only[1]
        files = tuple(
            file for file in page.files if _release(file, project) in versions
        )
        return replace(page, files=files)


def _release(file: model.File, project: str) -> Version | None:
    """Return the release to which a file belongs; ``None`` if its name is invalid."""
    name = file.filename
    try:
        if name.endswith(".whl"):
            return Version(Version(parse_wheel_name(name).version).public)
        if match := _METADATA.fullmatch(name):
            return Version(match["version"])
        return release_of_sdist(name, project)
    except (InputError, ValueError):
        return None
