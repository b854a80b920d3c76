"""Install from lock files (``pylock.toml``), including variant wheels.

https://packaging.python.org/en/latest/specifications/pylock-toml/ defines the format.
PEP 825, "Integration with pylock.toml", adds ``packages.variants-json``, which contains
the metadata since August 2026 and referred to a file before. The PEP allows that
"either all variant (and non-variant) wheels can be listed, or a subset of them".

pip rejects the names of variant wheels, so it gets a copy of the lock file. There, the
wheel for this machine has its name and URL on the local index, and the names of the
other wheels have a platform that pip does not install. All else is unchanged, so pip
refuses every defect of the lock file.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import tomli_w
from packaging.utils import canonicalize_name
from simple_repository import model

from nvidia_variant_provider.errors import InputError, NothingFitsError, join
from nvidia_variant_provider.metadata import document as metadata_files
from nvidia_variant_provider.strict_json import read_bytes

from ...pins import documents
from ...pins.reading import LIMIT
from ...pins.targets import PinTarget
from ...wheels.archive import parse_wheel_name
from ..http.urls import absolute_url, file_name, find_other, is_http
from ..selection.renaming import find_label
from ..selection.shown import ShownRelease
from ..selection.wheel_files import may_be_build
from ..server.local_index import LocalIndex
from ..server.served_locks import LockedPage
from ..server.upstream import local_path
from .settings import Interpreter, check_locks, find_interpreter

_NAME = re.compile(r"pylock(\.[^.]+)?\.toml")
_EXTRAS = re.compile(r"(.+?)(\[[^\[\]]*\])?")
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+!~-]*")
_HINT = "make the lock file again"
_WITH_PATHS = ("archive", "directory", "sdist", "vcs", "variants-json")


@dataclass(frozen=True, kw_only=True, slots=True)
class LockedFile:
    """A file in a lock file.

    :param url: the URL, which starts with ``file:`` for a local file.
    :param hashes: the hashes, keyed by algorithm.
    :param place: the place in the lock file, for errors.
    :param text: the inlined content, if any; the URL is then empty.
    :param table: the file's table in the document, which `LockCopies` changes.
    """

    name: str
    url: str
    hashes: Mapping[str, str]
    place: str
    text: str | None = None
    table: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class LockedPackage:
    """A package of a lock file that has wheels.

    :param table: the package's table in the document, which `LockCopies` changes.
    :param variants_json: the metadata of the variants, if any.
    """

    name: str
    version: str
    table: dict[str, Any]
    wheels: tuple[LockedFile, ...]
    variants_json: LockedFile | None

    @property
    def labels(self) -> frozenset[str]:
        """The labels of the variant wheels."""
        labels = (find_label(wheel.name) for wheel in self.wheels)
        return frozenset(label for label in labels if label is not None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Lock:
    """A lock file.

    :param document: the content of the file, with absolute paths.
    :param packages: the packages with wheels and a version.
    """

    path: str
    document: dict[str, Any]
    packages: tuple[LockedPackage, ...]


def is_lock(path: str) -> bool:
    """Return whether pip treats a file with this name as a lock file."""
    return not is_http(path) and bool(_NAME.fullmatch(local_path(path).name))


def read_lock(path: str) -> Lock:
    """Read a lock file.

    :raises InputError: the file is unreadable, or its wheels are invalid.
    """
    try:
        text = read_bytes(local_path(path), limit=LIMIT).decode("utf-8")
    except UnicodeDecodeError:
        raise _invalid("not UTF-8", path) from None
    document = parse_toml(text, path)
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

    :param path: the path of the file, for errors.
    :raises InputError: the text is not TOML, or would take too much memory or time.
    """
    try:
        return documents.parse_toml(text)
    except InputError as error:
        raise _invalid(error.message, path) from None


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
    read, where = None, join(place, "variants-json")
    parts = metadata_files.MetadataName(name=name, version=version).normalized()
    expected = metadata_files.metadata_name(parts.name, parts.version) if parts else ""
    if metadata is not None and not _FILE_NAME.fullmatch(expected):
        raise _invalid("the name or the version is not valid", path, where)
    if isinstance(metadata, dict) and "variants" in metadata:
        # PEP 825 of August 2026: tools "MUST validate this table".
        metadata_files.read_parsed(metadata, path=path)
        text = json.dumps(metadata, default=str)
        read = LockedFile(name=expected, url="", hashes={}, place=where, text=text)
    elif metadata is not None:
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
    for key in ("name", "path", "url"):
        value = table.get(key, key)
        if not isinstance(value, str) or not value:
            raise _invalid("empty, or not a string", path, join(place, key))
    _resolve(table, folder)
    # The specification: a path takes precedence over a URL.
    location = table.get("path")
    url = Path(location).as_uri() if location else table.get("url", "")
    hashes = table.get("hashes")
    if not url.startswith(("http:", "https:", "file:")):
        raise _invalid("there is neither a path nor a URL", path, place)
    if absolute_url(url, "") is None or "%00" in url:
        raise _invalid("not a URL", path, place)
    if (
        not isinstance(hashes, dict)
        or not hashes
        or not all(isinstance(digest, str) for digest in hashes.values())
    ):
        raise _invalid("there are no hashes", path, join(place, "hashes"))
    given = name or table.get("name") or file_name(url)
    if not _FILE_NAME.fullmatch(given):
        raise _invalid("not the name of a file", path, join(place, "name"))
    return LockedFile(name=given, url=url, hashes=hashes, place=place, table=table)


def _resolve(table: dict[str, Any], folder: str) -> None:
    """Make the table's path absolute, because pip reads a copy in another directory."""
    location = table.get("path")
    if isinstance(location, str):
        table["path"] = os.path.join(folder, location)


def _invalid(message: str, path: str, place: str | None = None) -> InputError:
    return InputError(message, path=path, place=place, hint=_HINT)


@dataclass(frozen=True, kw_only=True, slots=True)
class LockCopies:
    """The lock files of a command line, and their copies for pip.

    Like pip, combine the extras and groups of all options that name a lock file.

    :param folder: the directory of the copies.
    :param paths: the directories of pip and other packages.
    :param copied: receives the path of each copy, keyed by the path of the original.
    :param locks: the lock files, in the order of the local index.
    :param numbers: the positions in ``locks``, keyed by path.
    :param copies: the paths of the copies, keyed by the position in ``locks``.
    :param extras: the extras to install, for each lock file.
    :param groups: the dependency groups to install, for each lock file.
    """

    local_index: LocalIndex
    folder: Path
    paths: Sequence[str]
    copied: dict[str, str]
    locks: list[Lock] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)
    copies: dict[int, Path] = field(default_factory=dict)
    extras: list[set[str]] = field(default_factory=list)
    groups: list[set[str]] = field(default_factory=list)

    def add(self, text: str, group: str | None = None) -> str | None:
        """Add a lock file, and return its path for pip; ``None`` for any other file.

        `fill` writes the copy later, when the local index is serving.

        :param text: the value of ``-r``: a path, perhaps with extras.
        :param group: a dependency group, if ``text`` is part of a value of ``--group``.
        :raises InputError: the lock file cannot be read, or is not valid.
        :raises UsageError: this pip does not support lock files.
        """
        match = _EXTRAS.fullmatch(text)
        path, extras = (match[1], match[2] or "") if match else (text, "")
        if not is_lock(path):
            return None
        key = os.path.join(os.getcwd(), Path(path))
        if key not in self.numbers:
            self.numbers[key] = self._read(path)
        number = self.numbers[key]
        names = extras.strip("[]").split(",")
        self.extras[number].update(canonicalize_name(x.strip()) for x in names if x)
        defaults = self.locks[number].document.get("default-groups")
        found = defaults if isinstance(defaults, list) else []
        found = found if group is None else [group]
        self.groups[number].update(canonicalize_name(str(x)) for x in found)
        copy = self.copies.get(number)
        return text if copy is None else f"{copy}{extras}"

    def _read(self, path: str) -> int:
        lock = read_lock(path)
        folder = self.folder / f"lock-{len(self.locks)}"
        folder.mkdir()
        number = self.local_index.locks.add(_files(lock, folder))
        self.locks.append(lock)
        self.extras.append(set())
        self.groups.append(set())
        if any(map(self._is_ours, lock.packages)):
            check_locks(self.paths, path)
            # pip recognizes a lock file by its name, so keep the name.
            self.copies[number] = folder / Path(path).name
            self.copied[path] = str(self.copies[number])
        return number

    def fill(self, python: str, environ: Mapping[str, str], *, judges: bool) -> None:
        """Write the copies; the local index must be serving.

        :param python: the target interpreter.
        :param judges: judge the builds, for messages at the end of the run. A build
            that cannot run is installed anyway, because the user has locked it.
        :raises InputError: a file differs from its entry in the lock file.
        :raises NothingFitsError: no wheel of a package fits this machine.
        """
        if not self.locks:
            return
        interpreter = find_interpreter(python, environ)
        target = PinTarget(variables=interpreter.variables, ranks={})
        for number, lock in enumerate(self.locks):
            chosen = frozenset(self.extras[number]), frozenset(self.groups[number])
            judged = set()
            for package in lock.packages:
                if is_ours := number in self.copies and self._is_ours(package):
                    _hide(package)
                marker = str(package.table.get("marker", ""))
                if not target.holds(marker, *chosen):
                    continue  # pip skips it too
                may_be = any(may_be_build(wheel.name) for wheel in package.wheels)
                # A project has one page here, although it may have many packages.
                if judges and may_be and package.name not in judged:
                    judged.add(package.name)
                    self.local_index.locks.judge(number, package.name)
                if is_ours:
                    self._select(number, package, interpreter)
            if number in self.copies:
                text = tomli_w.dumps(lock.document)
                self.copies[number].write_text(text, encoding="utf-8")

    def _is_ours(self, package: LockedPackage) -> bool:
        """Return whether pip needs the local index to install a package's wheels."""
        return bool(package.labels) or not all(
            self.local_index.is_reachable(wheel.url) for wheel in package.wheels
        )

    def _select(
        self, number: int, package: LockedPackage, interpreter: Interpreter
    ) -> None:
        """Let pip select the wheel for this machine, or the sdist if there is none."""
        path, locks = self.locks[number].path, self.local_index.locks
        if (file := package.variants_json) is not None and file.text is None:
            body = locks.read_file(number, package.name, file.name)
            _verify(body, file, package, path)
        page = locks.read(number, package.name)
        release = page.find_release(package.version)
        if release is not None and release.problem:
            message = f"{package.name} {package.version}: {release.problem}"
            raise InputError(message, path=path)
        wheel = _best(page, package, interpreter)
        if wheel is None:
            if "sdist" in package.table:
                return
            raise _nothing(path, package, release)
        locked, shown = wheel
        if release is not None and not shown.hashes:
            if "sha256" not in locked.hashes:
                message = f"{locked.name} needs a sha256, since it is rewritten"
                raise InputError(message, path=path, place=locked.place)
            # The index verifies the original wheel; pip verifies the rewritten one.
            folder = self.copies[number].parent
            saved = locks.save(number, package.name, shown.filename, folder)
            locked.table["hashes"] = {"sha256": saved}
        locked.table.pop("path", None)
        locked.table.update(name=shown.filename, url=shown.url)


def _hide(package: LockedPackage) -> None:
    """Let pip check all wheels of a package, but select none of them."""
    for wheel in package.wheels:
        stem = wheel.name.removesuffix(".whl")
        label = find_label(wheel.name)
        stem = stem if label is None else stem.removesuffix(f"-{label}")
        if stem != wheel.name:  # pip refuses other names
            wheel.table["name"] = f"{stem.rpartition('-')[0]}-hidden.whl"


def _verify(body: bytes, file: LockedFile, package: LockedPackage, path: str) -> None:
    """Compare the metadata of the variants with the hashes of the lock file.

    :raises InputError: a hash differs.
    """
    if algorithm := find_other(body, file.hashes):
        message = f"the file of {package.name} {package.version} has another"
        raise _invalid(f"{message} {algorithm} now", path, file.place)


def _files(lock: Lock, folder: Path) -> dict[str, list[model.File]]:
    """Map each project to its files, and write inlined metadata into ``folder``."""
    files: dict[str, list[model.File]] = {}
    for number, package in enumerate(lock.packages):
        named, metadata = list(package.wheels), package.variants_json
        if metadata is not None and metadata.text is not None:
            path = folder / f"{number}.json"  # the own name may be too long
            path.write_text(metadata.text, "utf-8")
            metadata = replace(metadata, url=path.as_uri())
        named += [metadata] if metadata is not None else []
        files.setdefault(package.name, []).extend(
            model.File(
                filename=item.name,
                url=item.url,
                hashes={key: text.lower() for key, text in item.hashes.items()},
            )
            for item in named
        )
    return files


def _best(
    page: LockedPage, package: LockedPackage, interpreter: Interpreter
) -> tuple[LockedFile, model.File] | None:
    """Return the wheel that pip would select: the first one with the best tags."""
    usable = []
    for wheel in package.wheels:
        if wheel.name in page.files and wheel.name.endswith(".whl"):
            rank = interpreter.rank(parse_wheel_name(wheel.name).tags)
            if rank is not None:
                usable.append((rank, *page.files[wheel.name], wheel))
    if not usable:
        return None
    best = min(usable, key=lambda item: item[:2])
    return best[3], best[2]


def _nothing(
    path: str, package: LockedPackage, release: ShownRelease | None
) -> NothingFitsError:
    name = f"{package.name} {package.version}"
    message = f"no wheel of {name} in it is for this interpreter and machine"
    if release is not None and release.resolution is not None:
        for label, reasons in release.resolution.rejected.items():
            if label in package.labels and reasons:
                message += f"; {label} does not fit: {reasons[0].sentence}"
                break
    hint = "make the lock file again on this machine"
    return NothingFitsError(message, path=path, hint=hint)
