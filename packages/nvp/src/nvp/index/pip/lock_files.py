"""Lock files (``pylock.toml``) with variant wheels, as PEP 825 describes them.

https://packaging.python.org/en/latest/specifications/pylock-toml/ is the format. PEP
825, "Integration with pylock.toml", adds the table ``packages.variants-json`` and
allows that "either all variant (and non-variant) wheels can be listed, or a subset of
them".
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from nvidia_variant_provider.errors import InputError, join, shown
from nvidia_variant_provider.metadata.document import metadata_name
from nvidia_variant_provider.strict_json import read_bytes

from ..http.urls import is_http
from ..selection.renaming import find_label
from ..server.upstream import local_path

__all__ = [
    "Lock",
    "LockedFile",
    "LockedPackage",
    "is_lock",
    "parse_toml",
    "read_lock",
    "split_extras",
    "write_toml",
]

_NAME = re.compile(r"pylock(\.[^.]+)?\.toml")
_EXTRAS = re.compile(r"(.+?)(\[[^\[\]]*\])?")
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+!~-]*")
_MAJOR = 1
_HINT = "make the lock file again"
_WITH_PATHS = ("archive", "directory", "sdist", "vcs", "variants-json")


@dataclass(frozen=True, kw_only=True, slots=True)
class LockedFile:
    """A file that a lock file names.

    :param url: its URL; that of a file of this machine starts with ``file:``.
    :param hashes: by algorithm.
    :param place: the place in the lock file.
    """

    name: str
    url: str
    hashes: Mapping[str, str]
    place: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LockedPackage:
    """A package of a lock file that has wheels.

    :param table: the table of the document, which may be changed.
    :param variants_json: the metadata of its variants.
    """

    name: str
    version: str
    table: dict[str, Any]
    wheels: tuple[LockedFile, ...]
    variants_json: LockedFile | None

    @property
    def labels(self) -> frozenset[str]:
        """The labels of its variant wheels."""
        labels = (find_label(wheel.name) for wheel in self.wheels)
        return frozenset(label for label in labels if label is not None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Lock:
    """A lock file.

    :param document: what it says, with absolute paths.
    :param packages: the packages that have wheels and a version.
    """

    path: str
    document: dict[str, Any]
    packages: tuple[LockedPackage, ...]


def split_extras(text: str) -> tuple[str, str]:
    """Split what ``-r`` takes into the path and the extras, such as ``[fast]``."""
    match = _EXTRAS.fullmatch(text)
    return (match[1], match[2] or "") if match else (text, "")


def is_lock(path: str) -> bool:
    """Return whether pip takes a file for a lock file, by its name."""
    return not is_http(path) and bool(_NAME.fullmatch(local_path(path).name))


def read_lock(path: str) -> Lock:
    """Read a lock file.

    :raises InputError: it cannot be read, or what it says of wheels is not valid.
    """
    document = parse_toml(_text(path), path)
    _check_version(document, path)
    folder = os.path.abspath(os.path.dirname(local_path(path)))
    packages = document.get("packages")
    if not isinstance(packages, list):
        raise _invalid("there is no list of packages", path, "packages")
    read = [
        _read_package(table, join("packages", number), folder, path)
        for number, table in enumerate(packages)
    ]
    return Lock(path=path, document=document, packages=tuple(filter(None, read)))


def parse_toml(text: str, path: str) -> dict[str, Any]:
    """Parse TOML.

    :param path: where it is from, for errors.
    :raises InputError: it is not TOML.
    """
    try:
        return _loads()(text)
    except (ValueError, RecursionError) as error:
        reason = (str(error).splitlines() or [""])[0]
        raise _invalid(f"not TOML: {shown(reason, 120)}", path) from None


def write_toml(document: Mapping[str, Any]) -> str:
    """Return the text of a document, as pip writes lock files."""
    import tomli_w

    text: str = tomli_w.dumps(document)
    return text


def _text(path: str) -> str:
    try:
        return read_bytes(local_path(path)).decode("utf-8")
    except UnicodeDecodeError:
        raise _invalid("not UTF-8", path) from None


def _loads() -> Callable[[str], dict[str, Any]]:
    if sys.version_info >= (3, 11):
        from tomllib import loads
    else:
        from tomli import loads
    reader: Callable[[str], dict[str, Any]] = loads
    return reader


def _check_version(document: Mapping[str, Any], path: str) -> None:
    """Check the version of the format.

    The specification: "If a tool doesn't support a major version, it MUST raise an
    error."
    """
    given = document.get("lock-version")
    try:
        version = Version(given) if isinstance(given, str) else None
    except InvalidVersion:
        version = None
    if version is None:
        raise _invalid("there is no version of the format", path, "lock-version")
    if version.major != _MAJOR:
        message = f"version {shown(given)} of the format is not supported"
        hint = "make the lock file again with a pip that writes version 1"
        raise InputError(message, path=path, place="lock-version", hint=hint)


def _read_package(
    table: object, place: str, folder: str, path: str
) -> LockedPackage | None:
    if not isinstance(table, dict):
        raise _invalid("not a table", path, place)
    name = table.get("name")
    if not isinstance(name, str) or not canonicalize_name(name).isascii():
        raise _invalid("there is no name", path, join(place, "name"))
    for key in _WITH_PATHS:
        if isinstance(table.get(key), dict):
            _resolve(table[key], folder)
    version, wheels = table.get("version"), table.get("wheels")
    if wheels is None or version is None:
        return None
    if not isinstance(wheels, list) or not isinstance(version, str):
        raise _invalid("the wheels or the version have another type", path, place)
    files = [
        _read_file(wheel, join(join(place, "wheels"), number), folder, path)
        for number, wheel in enumerate(wheels)
    ]
    metadata = table.get("variants-json")
    read = None
    if metadata is not None:
        expected = metadata_name(name, version)
        where = join(place, "variants-json")
        read = _read_file(metadata, where, folder, path, name=expected)
    return LockedPackage(
        name=canonicalize_name(name),
        version=version,
        table=table,
        wheels=tuple(files),
        variants_json=read,
    )


def _read_file(
    table: object, place: str, folder: str, path: str, *, name: str | None = None
) -> LockedFile:
    if not isinstance(table, dict):
        raise _invalid("not a table", path, place)
    _resolve(table, folder)
    location, url = table.get("path"), table.get("url")
    # The specification: a path goes before a URL.
    if isinstance(location, str):
        url = Path(location).as_uri()
    hashes = table.get("hashes")
    if not isinstance(url, str) or not url.startswith(("http:", "https:", "file:")):
        raise _invalid("there is neither a path nor a URL", path, place)
    if (
        not isinstance(hashes, dict)
        or not hashes
        or not all(isinstance(digest, str) for digest in hashes.values())
    ):
        raise _invalid("there are no hashes", path, join(place, "hashes"))
    given = name or table.get("name") or unquote(urlsplit(url).path.rpartition("/")[2])
    if not isinstance(given, str) or not _FILE_NAME.fullmatch(given):
        raise _invalid("not the name of a file", path, join(place, "name"))
    return LockedFile(name=given, url=url, hashes=hashes, place=place)


def _resolve(table: dict[str, Any], folder: str) -> None:
    """Make the path of a file absolute: the copy for pip is in another folder."""
    location = table.get("path")
    if isinstance(location, str):
        table["path"] = os.path.join(folder, location)


def _invalid(message: str, path: str, place: str | None = None) -> InputError:
    return InputError(message, path=path, place=place, hint=_HINT)
