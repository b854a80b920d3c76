"""The files of an index in a directory or a saved page: names, hashes, METADATA."""

from __future__ import annotations

import gzip
import hashlib
import logging
import math
import os
import tarfile
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

from packaging.utils import (
    InvalidSdistFilename,
    canonicalize_name,
    canonicalize_version,
    parse_sdist_filename,
)
from packaging.version import InvalidVersion, Version
from simple_repository import model
from simple_repository.content_negotiation import Format

from nvidia_variant_provider.errors import InputError, printable, shown
from nvidia_variant_provider.metadata.document import (
    SUFFIX,
    metadata_name,
    parse_metadata_name,
)
from nvidia_variant_provider.strict_json import (
    LARGE_BYTES,
    MAX_BYTES,
    open_regular,
    read_bytes,
)

from ...directories import Root, list_folders
from ...files import real_path
from ...signals import count_input, go_on
from ...wheels.archive import (
    MAX_MEMBER,
    explained,
    first_header,
    open_wheel,
    parse_wheel_name,
    read_dist_info,
    read_member,
)
from ..http.pages import parse_page, parse_projects
from ..http.urls import (
    HTML_PAGE,
    JSON_PAGE,
    METADATA,
    REFUSED,
    UpstreamError,
    is_file_name,
    path_of_file_url,
)
from ..selection.pieces import ANY, SERVED, is_of_index

logger = logging.getLogger(__name__)

SDISTS = (".tar.gz", ".zip")

PAGES = {JSON_PAGE: Format.JSON_V1, HTML_PAGE: Format.HTML_V1}
"""The pages of a directory, in the order in which they are written."""

_LARGEST_SDIST = 2 * 1024**3
_MOST_MEMBERS = 100_000
"""The limits of a source distribution up to its PKG-INFO: its size in bytes after
decompression, and its number of members. Each limit is several seconds of work."""

_NAMING = (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME)
_WITHOUT_DATA = (
    *(tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.DIRTYPE),
    *(tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE),
)
"""The kinds of members with the name of the next member, and those without data."""

_LONGEST_HEADER = 1024 * 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedFile:
    """A file that a page links to.

    :param folder: the name of the directory in the root; empty for the root itself.
    :param project: the normalized name of the project.
    :param same: the identity of the file: an index can have only one file with it. It
        has no numbers, because a stranger can choose numbers with equal hashes.
    """

    folder: str
    name: str
    project: str
    version: Version
    same: tuple[object, ...]

    @property
    def url(self) -> str:
        """The URL relative to the page of the project."""
        # The name of a directory may not be UTF-8.
        folder = f"../{quote(os.fsencode(self.folder), '')}/" if self.folder else "../"
        return ("" if self.folder == self.project else folder) + quote(self.name, "")


def parse_file(folder: str, name: str) -> ListedFile | None:
    """Parse the name of a file; ``None`` for a kind that pages do not list.

    :raises InputError: the name is malformed.
    """
    key: tuple[object, ...]
    if name.endswith(".whl"):
        wheel = parse_wheel_name(name)
        key = (str(wheel.build), wheel.tags, wheel.label)
        project, text = wheel.name, wheel.version
    elif name.endswith(SUFFIX):
        given = parse_metadata_name(name)
        if given is None or given.normalized() != given:
            message = f"not of the form {{name}}-{{version}}{SUFFIX}"
            hint = "use lower case, and _ for - and . in the name, as wheels do"
            raise InputError(message, hint=hint)
        key = (SUFFIX,)
        project, text = given.name, given.version.replace("_", "-")
    elif name.endswith(SDISTS):
        try:
            project, version = parse_sdist_filename(name)
        except (InvalidSdistFilename, InvalidVersion):
            message = "not the name of a source distribution"
            raise InputError(message, hint="rename or remove it") from None
        text, key = str(version), (name.endswith(".zip"),)
    else:
        return None
    if not (is_file_name(name) and name.isprintable()):
        message = "the name is not UTF-8, or has control characters"
        raise InputError(message, hint="rename the file")
    project, version = canonicalize_name(project), Version(text)
    return ListedFile(
        folder=folder,
        name=name,
        project=project,
        version=version,
        same=(project, canonicalize_version(version), *key),
    )


def stat_of(file: int) -> tuple[int, int, float]:
    """Return the size, the ``st_mtime_ns`` and the last change in s of an open file."""
    status = os.fstat(file)
    # On Windows, programs that copy files can set all timestamps: trust no timestamp.
    changed = status.st_ctime if os.name == "posix" else float("inf")
    return status.st_size, status.st_mtime_ns, max(status.st_mtime, changed)


def read_file(
    root: Root, file: BinaryIO, known: model.File | None, entry: model.File
) -> tuple[model.File, bytes | None]:
    """Return the entry of a file for a page, and METADATA if it must be written.

    :param root: the directory of the index.
    :param file: the open file; a metadata file must already be written.
    :param known: the entry of an earlier run, if the file has not changed since.
    :param entry: the entry without values from the content of the file.
    :raises InputError: the file cannot be read.
    """
    path = file.name
    signed = True if root.has(f"{path}.asc") else None
    entry = replace(entry, gpg_sig=signed)
    is_wheel = path.endswith(".whl")
    try:
        beside = metadata_hash(root, path) if is_wheel else None
        if known is not None and known.dist_info_metadata == beside:
            requires = known.requires_python
            entry = replace(entry, hashes=known.hashes, requires_python=requires)
            return replace(entry, dist_info_metadata=beside), None
        logger.debug("reading %s", path)
        entry = replace(entry, hashes={"sha256": _digest(file)})
        file.seek(0)
        if not is_wheel:
            metadata = _read_pkg_info(file) if path.endswith(SDISTS) else b""
            return replace(entry, requires_python=_requires_python(metadata)), None
        with open_wheel(file) as archive:
            found = read_dist_info(archive, "METADATA")
    except OSError as error:
        message = f"cannot be read: {error.strerror or error}"
        raise InputError(message, hint="check the file") from None
    if found is None:
        raise InputError("has no *.dist-info/METADATA", hint="build the wheel again")
    hashes = {"sha256": hashlib.sha256(found).hexdigest()}
    requires = _requires_python(found)
    entry = replace(entry, dist_info_metadata=hashes, requires_python=requires)
    return entry, None if beside == hashes else found


def metadata_hash(root: Root, wheel: str) -> dict[str, str] | None:
    """Return the hash of the METADATA file of a wheel; ``None`` if there is none."""
    path = wheel + METADATA
    if not root.has(path):
        return None
    with root.open(path) as file:
        return {"sha256": _digest(file)}


def _digest(file: BinaryIO) -> str:
    digest = hashlib.sha256()
    count_input(file.name, os.fstat(file.fileno()).st_size)
    while piece := file.read(1 << 20):
        go_on()
        digest.update(piece)
    return digest.hexdigest()


def _requires_python(metadata: bytes) -> str | None:
    text = " ".join(first_header(metadata, "Requires-Python").split())
    return printable(text) or None


def _read_pkg_info(file: BinaryIO) -> bytes:
    """Return PKG-INFO of a source distribution; empty if it has none.

    :raises InputError: the archive cannot be read.
    """
    if file.name.endswith(".zip"):
        with open_wheel(file) as archive:
            for member in archive.infolist():
                if _is_pkg_info(member.filename):
                    return read_member(archive, member, "PKG-INFO")
        return b""
    with explained(), gzip.GzipFile(fileobj=file) as data:
        try:
            return _find_pkg_info(data)
        except (tarfile.TarError, gzip.BadGzipFile) as error:
            reason = shown(str(error) or type(error).__name__, 100)
            message = f"not a readable archive: {reason}"
            raise InputError(message, hint="build or upload it again") from None


def _find_pkg_info(data: gzip.GzipFile) -> bytes:
    """Return PKG-INFO of a tar archive; empty if it has none.

    `tarfile.open` is not suitable: pax headers and lists of holes can make it use any
    amount of time and memory, and negative sizes make it read members again.

    :raises tarfile.TarError: the archive is damaged or too large.
    """
    name = ""
    for _ in range(_MOST_MEMBERS):
        go_on()
        head = data.read(tarfile.BLOCKSIZE)
        if head and not any(head):
            return b""
        item = tarfile.TarInfo.frombuf(head, "utf-8", "surrogateescape")
        size = 0 if item.type in _WITHOUT_DATA else item.size
        after = data.tell() + size + -size % tarfile.BLOCKSIZE
        names = item.type in _NAMING
        if names and size > _LONGEST_HEADER:
            raise tarfile.ReadError("a header is too large")
        if size < 0 or after > _LARGEST_SDIST:
            raise tarfile.ReadError(f"more than {_LARGEST_SDIST >> 30} GiB")
        if names:
            text = data.read(size)
            before, found, path = text.partition(b" path=")
            if item.type == tarfile.GNUTYPE_LONGNAME:
                name = os.fsdecode(text.partition(b"\0")[0])
            elif found and before.rpartition(b"\n")[2].isdigit():
                name = os.fsdecode(path.partition(b"\n")[0])
        else:
            if _is_pkg_info((name or item.name).removeprefix("./")):
                # Follow no link: its target may be missing, or the link itself.
                if not item.isreg():
                    raise tarfile.ReadError("PKG-INFO is not a regular file")
                return data.read(min(size, MAX_MEMBER))
            name = ""
        while data.tell() < after and data.read(min(after - data.tell(), 1 << 20)):
            go_on()
    raise tarfile.ReadError(f"more than {_MOST_MEMBERS} members")


def _is_pkg_info(member: str) -> bool:
    return member.count("/") == 1 and member.endswith("/PKG-INFO")


def read_index(path: str) -> dict[str, list[model.File]]:
    """Return the files of each project of an index, keyed by normalized name.

    :param path: a saved page; or a directory that has pages or files, also in its
        subdirectories. If a directory has a page, files that the page does not list are
        ignored. A directory without any file is an index without projects.
    :raises InputError: a page or directory cannot be read, or has only other files.
    """
    is_folder = os.path.isdir(path)
    index = path if is_folder else os.path.dirname(os.path.abspath(path))
    local = LocalFiles(Path(real_path(index)))
    if is_folder:
        pages: list[str] = []
        listed: list[str] = []
        for folder, names in list_folders(path):
            page = next((name for name in reversed(PAGES) if name in names), None)
            if page is not None:
                pages.append(os.path.join(path, folder, page))
            else:
                paths = [os.path.join(path, folder, name) for name in names]
                listed += filter(os.path.isfile, paths)
        if not pages and not listed:
            return {}
        files = [file for page in pages for file in _read_page(page, local)]
        for place in map(Path, map(os.path.abspath, listed)):
            size = place.stat().st_size
            file = model.File(place.name, place.as_uri(), hashes={}, size=size)
            files.append(local.read(file))
    else:
        files = _read_page(path, local)
    projects: dict[str, dict[str, model.File]] = {}
    for file in files:
        with suppress(InputError):
            parsed = parse_file("", file.filename)
            if parsed is not None:
                known = projects.setdefault(parsed.project, {})
                known.setdefault(file.filename, file)
    if not projects:
        message = "there is no wheel, source distribution or link to one"
        raise InputError(message, path=path, hint="name an index or a project page")
    return {project: [*known.values()] for project, known in projects.items()}


def same_files(one: Iterable[model.File], two: Iterable[model.File]) -> bool:
    """Return whether two pages list the same files, with the same attributes."""
    before, after = (
        {
            (x.filename, x.hashes.get("sha256") or x.size, x.requires_python, x.yanked)
            for x in files
        }
        for files in (one, two)
    )
    return before == after


def without_ignored(
    before: Sequence[model.File], after: Sequence[model.File]
) -> Sequence[model.File]:
    """Return ``after`` without the variants whose metadata only ``before`` has.

    Installers pass over variants without metadata, although nvp can read the wheels.
    """
    lost = {x.filename for x in before if x.filename.endswith(SUFFIX)}
    lost -= {x.filename for x in after}
    if not lost:
        return after
    return [file for file in after if _metadata_of(file.filename) not in lost]


def _metadata_of(name: str) -> str | None:
    """Return the name of the metadata file of a variant; ``None`` for other files."""
    with suppress(InputError):
        wheel = parse_wheel_name(name)
        if wheel.label is not None:
            return metadata_name(wheel.name, wheel.version)
    return None


def _read_page(path: str, local: LocalFiles) -> list[model.File]:
    data = read_bytes(path, limit=LARGE_BYTES)
    is_html = data.lstrip()[:1] == b"<"
    form = Format.HTML_V1 if is_html else Format.JSON_V1
    place = os.path.abspath(path)
    url = Path(place).as_uri()
    try:
        page = parse_page(data, form.value, url, "page")
    except InputError as error:
        with suppress(InputError):
            if not is_html:
                parse_projects(data, form.value, url)
                return []  # The list of projects has no files.
        message = "is not a project page"
        raise InputError(message, path=path, hint="save the page again") from error
    folder, files = Path(place).parent, []
    for file in page.files:
        beside = folder / os.path.basename(file.filename)
        url = beside.as_uri() if os.path.isfile(beside) else file.url
        files.append(local.read(replace(file, url=url)))
    return files


class LocalFiles:
    """Looks at the local files that the pages of an index name.

    :param index: the directory of the index without links; see `is_of_index`.
    :param seconds: the maximum processor time of this thread.
    """

    def __init__(self, index: Path, seconds: float = math.inf) -> None:
        self._index = index
        self._folders: dict[str, bool] = {}
        self._digests: dict[tuple[int, int], str] = {}
        self._latest = time.thread_time() + seconds

    def check(self, file: model.File) -> model.File:
        """Mark a local file that the index must not name with `REFUSED`.

        :raises UpstreamError: the time is over.
        """
        if not file.url.startswith("file:"):
            return file
        if time.thread_time() > self._latest:
            message = "a page names files in too many directories, or behind long links"
            hint = "put the files into the directory of the project"
            raise UpstreamError(message, path=str(self._index), hint=hint)
        path = path_of_file_url(file.url)
        ends = ("", METADATA) if path.endswith(".whl") else ("",)
        found = [path + end for end in ends if os.path.isfile(path + end)]
        is_inside = all(map(self._has, found))
        return file if is_inside else replace(file, url=REFUSED + file.url)

    def _has(self, path: str) -> bool:
        """Return whether a file belongs to the index, as `is_of_index` does."""
        # The file may be a link. On Windows, each file may have several names.
        if os.name == "nt" or os.path.islink(path):
            return is_of_index(Path(path), self._index)
        # Look at each directory once: behind a link, it can be thousands deep.
        folder, name = os.path.split(path)
        if folder not in self._folders:
            self._folders[folder] = is_of_index(Path(folder), self._index, ANY)
        return self._folders[folder] and SERVED.fullmatch(name) is not None

    def read(self, file: model.File) -> model.File:
        """Do the same as `check`, and give metadata files their hash, to be compared.

        Each metadata file is read once. One that is too large to be used is not read.
        """
        file = self.check(file)
        if not file.url.startswith("file:"):
            return file
        path = path_of_file_url(file.url)
        if os.path.isfile(path) and path.endswith(SUFFIX) and not file.hashes:
            with open_regular(path) as opened:
                status = os.fstat(opened.fileno())
                key = status.st_dev, status.st_ino
                if status.st_size <= MAX_BYTES:
                    if key not in self._digests:
                        self._digests[key] = _digest(opened)
                    file = replace(file, hashes={"sha256": self._digests[key]})
        return file
