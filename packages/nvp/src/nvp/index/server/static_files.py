"""The files of an index of static pages: their names, hashes and METADATA."""

from __future__ import annotations

import hashlib
import logging
import os
import tarfile
import zlib
from dataclasses import dataclass, replace
from email.parser import HeaderParser
from urllib.parse import quote

from packaging.utils import (
    InvalidSdistFilename,
    canonicalize_name,
    parse_sdist_filename,
)
from packaging.version import InvalidVersion, Version
from simple_repository import model

from nvidia_variant_provider.errors import InputError, shown
from nvidia_variant_provider.metadata.document import SUFFIX, parse_metadata_name
from nvidia_variant_provider.strict_json import open_regular

from ...wheels.archive import (
    MAX_MEMBER,
    explained,
    open_wheel,
    parse_wheel_name,
    read_dist_info,
)
from ..http.urls import is_file_name

logger = logging.getLogger(__name__)

METADATA = ".metadata"
"""What the name of a METADATA file has after the name of its wheel (PEP 658)."""

SDISTS = (".tar.gz", ".zip")

_BROKEN_SDIST = (tarfile.TarError, zlib.error, EOFError, OSError)


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedFile:
    """A file that a page links.

    :param folder: the name of its directory in the root, empty for the root.
    :param project: the normalized name of the project.
    :param same: equal for the files of which an index can have one.
    """

    folder: str
    name: str
    project: str
    version: Version
    same: tuple[object, ...]

    @property
    def url(self) -> str:
        """The URL relative to the page of the project."""
        folder = f"../{quote(self.folder, '')}/" if self.folder else "../"
        return ("" if self.folder == self.project else folder) + quote(self.name, "")


def parse_file(folder: str, name: str) -> ListedFile | None:
    """Return the file that a page lists; ``None`` for another kind of file.

    :raises InputError: the name has another form.
    """
    key: tuple[object, ...]
    if name.endswith(".whl"):
        wheel = parse_wheel_name(name)
        key = (wheel.build, wheel.tags, wheel.label)
        project, text = wheel.name, wheel.version.replace("_", "-")
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
    if not is_file_name(name):
        raise InputError("the name is not UTF-8", hint="rename the file")
    project, version = canonicalize_name(project), Version(text)
    return ListedFile(
        folder=folder,
        name=name,
        project=project,
        version=version,
        same=(project, version, *key),
    )


def stat_of(path: str) -> tuple[int, int, float]:
    """Return the size of a file, and when its content or its name has changed last."""
    status = os.stat(path)
    # Windows has no time that a program which copies files cannot set.
    changed = status.st_ctime if os.name == "posix" else float("inf")
    return status.st_size, status.st_mtime_ns, max(status.st_mtime, changed)


def read_file(
    path: str, known: model.File | None, entry: model.File
) -> tuple[model.File, bytes | None]:
    """Return the entry of a file for a page, and METADATA if it is to be written.

    :param path: the file, which is a metadata file only if the text is written already.
    :param known: the entry that an earlier run has written for the file as it is now.
    :param entry: the entry without what the content of the file tells.
    :raises InputError: the file cannot be read.
    """
    signed = True if os.path.isfile(f"{path}.asc") else None
    entry = replace(entry, gpg_sig=signed)
    is_wheel = path.endswith(".whl")
    try:
        beside = metadata_hash(path) if is_wheel else None
        if known is not None and known.dist_info_metadata == beside:
            requires = known.requires_python
            entry = replace(entry, hashes=known.hashes, requires_python=requires)
            return replace(entry, dist_info_metadata=beside), None
        logger.debug("reading %s", path)
        entry = replace(entry, hashes={"sha256": _digest(path)})
        if not is_wheel:
            metadata = _read_pkg_info(path) if path.endswith(SDISTS) else b""
            return replace(entry, requires_python=_requires_python(metadata)), None
        with open_wheel(path) as archive:
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


def metadata_hash(wheel: str) -> dict[str, str] | None:
    """Return the hash of the METADATA file of a wheel; ``None`` if there is none."""
    path = wheel + METADATA
    return {"sha256": _digest(path)} if os.path.lexists(path) else None


def _digest(path: str) -> str:
    digest = hashlib.sha256()
    with open_regular(path) as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def _requires_python(metadata: bytes) -> str | None:
    headers = HeaderParser().parsestr(metadata.decode("utf-8", "replace"))
    return " ".join(str(headers.get("Requires-Python", "")).split()) or None


def _read_pkg_info(path: str) -> bytes:
    """Return PKG-INFO of a source distribution; empty if it has none.

    :raises InputError: the archive cannot be read.
    """
    if path.endswith(".zip"):
        with open_wheel(path) as archive:
            for member in filter(_is_pkg_info, archive.namelist()):
                with archive.open(member) as file:
                    return file.read(MAX_MEMBER)
        return b""
    try:
        with explained(), open_regular(path) as raw, tarfile.open(fileobj=raw) as tar:
            for item in tar:
                if _is_pkg_info(item.name.removeprefix("./")):
                    info = tar.extractfile(item)
                    return b"" if info is None else info.read(MAX_MEMBER)
    except _BROKEN_SDIST as error:
        reason = shown(str(error) or type(error).__name__, 100)
        message = f"not a readable archive: {reason}"
        raise InputError(message, hint="build or upload it again") from None
    return b""


def _is_pkg_info(member: str) -> bool:
    return member.count("/") == 1 and member.endswith("/PKG-INFO")
