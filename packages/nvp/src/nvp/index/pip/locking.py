"""Installing from lock files: the copies of them that pip reads.

pip refuses the names of variant wheels. In its copy of a lock file, each package with
variants has the one wheel that this machine gets, under the name and at the URL by
which the local index shows it, and with the hash of the lock file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version
from simple_repository import model

from nvidia_variant_provider.errors import InputError, NothingFitsError, UsageError

from ...wheels.names import parse_wheel_name
from ..selection.choice import Choice
from ..selection.wheel_files import may_be_build
from ..server.local_index import LocalIndex
from ..server.locking import LockedPage
from .interpreter import Interpreter, find_interpreter
from .lock_files import (
    Lock,
    LockedFile,
    LockedPackage,
    is_lock,
    read_lock,
    split_extras,
    write_toml,
)

__all__ = ["LockCopies"]

_FIRST_PIP = Version("26.1")
"""The first pip that installs from lock files; it calls that experimental."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Copy:
    lock: Lock
    path: Path
    number: int


@dataclass(frozen=True, kw_only=True, slots=True)
class LockCopies:
    """The lock files of a command line that pip reads as copies.

    :param folder: where the copies are.
    :param paths: the folders in which pip and other packages are.
    :param copied: called with the path of each file, and of its copy.
    """

    local_index: LocalIndex
    folder: Path
    paths: Sequence[str]
    copied: Callable[[str, str], None]
    locks: list[Lock] = field(default_factory=list)
    copies: list[_Copy] = field(default_factory=list)

    def judge(self) -> None:
        """Find out what the builds in the lock files need, for what is told at the end.

        A build that cannot run is installed nevertheless, since the user has locked it.
        """
        for number, lock in enumerate(self.locks):
            for package in lock.packages:
                if any(may_be_build(wheel.name) for wheel in package.wheels):
                    self.local_index.locks.judge(number, package.name)

    def add(self, text: str) -> str | None:
        """Return what pip gets in place of a lock file; ``None`` for another file.

        The copy is written by `fill`, when the index serves.

        :param text: what ``-r`` takes: a path, perhaps with extras.
        :raises InputError: the lock file cannot be read, or is not valid.
        :raises UsageError: this pip does not install from lock files.
        """
        path, extras = split_extras(text)
        if not is_lock(path):
            return None
        lock = read_lock(path)
        number = self.local_index.locks.add(_files(lock))
        self.locks.append(lock)
        if not any(map(self._is_ours, lock.packages)):
            return text
        _check_pip(self.paths, path)
        # pip knows a lock file by its name.
        folder = self.folder / f"lock-{number}"
        folder.mkdir()
        copy = folder / Path(path).name
        self.copies.append(_Copy(lock=lock, path=copy, number=number))
        self.copied(path, str(copy))
        return f"{copy}{extras}"

    def fill(self, python: str, environ: Mapping[str, str]) -> None:
        """Write the copies.

        :param python: the interpreter that is installed for.
        :raises InputError: what a lock file names is not what it should be.
        :raises NothingFitsError: no wheel of a package is for this machine.
        """
        if not self.copies:
            return
        interpreter = find_interpreter(python, environ)
        for copy in self.copies:
            for package in copy.lock.packages:
                if self._is_ours(package):
                    wheel = self._choose(copy, package, interpreter)
                    if wheel is not None:
                        package.table["wheels"] = [wheel]
                        package.table.pop("variants-json", None)
            copy.path.write_text(write_toml(copy.lock.document), encoding="utf-8")

    def _is_ours(self, package: LockedPackage) -> bool:
        """Return whether pip alone could not install a package from its wheels."""
        return bool(package.labels) or not all(
            self.local_index.is_reachable(wheel.url) for wheel in package.wheels
        )

    def _choose(
        self, copy: _Copy, package: LockedPackage, interpreter: Interpreter
    ) -> dict[str, Any] | None:
        """Return the wheel for this machine; ``None`` where pip takes an sdist."""
        if package.variants_json is not None:
            self._verify(copy, package, package.variants_json)
        page = self.local_index.locks.read(copy.number, package.name)
        choice = _choice(page, package)
        if choice is not None and choice.problem:
            message = f"{package.name} {package.version}: {choice.problem}"
            raise InputError(message, path=copy.lock.path)
        wheel = _best(page, package, interpreter)
        if wheel is None:
            if "sdist" in package.table:
                package.table.pop("variants-json", None)
                package.table.pop("wheels")
                return None
            raise _nothing(copy.lock.path, package, choice)
        locked, file = wheel
        hashes = dict(locked.hashes)
        if choice is not None and not file.hashes:
            if "sha256" not in hashes:
                message = f"{locked.name} needs a sha256, since it is rewritten"
                raise InputError(message, path=copy.lock.path, place=locked.place)
            # The hash of the original is verified on the way.
            saved = self.local_index.locks.save(
                copy.number, package.name, file.filename, copy.path.parent
            )
            hashes = {"sha256": saved}
        return {"name": file.filename, "url": file.url, "hashes": hashes}

    def _verify(self, copy: _Copy, package: LockedPackage, file: LockedFile) -> None:
        """Compare the metadata of the variants with the hashes of the lock file."""
        body = self.local_index.locks.read_file(copy.number, package.name, file.name)
        for algorithm, expected in file.hashes.items():
            try:
                actual = hashlib.new(algorithm, body, usedforsecurity=False).hexdigest()
            except (ValueError, TypeError):
                continue  # The specification allows algorithms of other tools.
            if actual != expected.lower():
                raise InputError(
                    f"the file of {package.name} {package.version} has another "
                    f"{algorithm} now",
                    path=copy.lock.path,
                    place=file.place,
                    hint="make the lock file again",
                )


def _check_pip(paths: Sequence[str], lock: str) -> None:
    """Check that pip knows lock files.

    :raises UsageError: it takes every file for a requirements file.
    """
    for pip in distributions(name="pip", path=list(paths)):
        if Version(pip.version) < _FIRST_PIP:
            message = f"pip {pip.version} does not install from lock files"
            hint = f"upgrade it: python -m pip install 'pip>={_FIRST_PIP}'"
            raise UsageError(message, path=lock, hint=hint)
        return


def _files(lock: Lock) -> dict[str, list[model.File]]:
    files: dict[str, list[model.File]] = {}
    for package in lock.packages:
        named = [*package.wheels, package.variants_json]
        files.setdefault(package.name, []).extend(
            model.File(
                filename=item.name,
                url=item.url,
                hashes={key: text.lower() for key, text in item.hashes.items()},
            )
            for item in named
            if item is not None
        )
    return files


def _choice(page: LockedPage, package: LockedPackage) -> Choice | None:
    try:
        version = Version(package.version)
    except InvalidVersion:
        return None
    for choice in page.choices.values():
        if Version(choice.version) == version:
            return choice
    return None


def _best(
    page: LockedPage, package: LockedPackage, interpreter: Interpreter
) -> tuple[LockedFile, model.File] | None:
    """Return the wheel that pip would take: that with the best tags, then the first."""
    locked = {wheel.name: wheel for wheel in package.wheels}
    usable = []
    for place, (name, file) in enumerate(page.files.items()):
        if name in locked and name.endswith(".whl"):
            rank = interpreter.rank(parse_wheel_name(name).tags)
            if rank is not None:
                usable.append((rank, place, locked[name], file))
    if not usable:
        return None
    best = min(usable, key=lambda item: item[:2])
    return best[2], best[3]


def _nothing(
    path: str, package: LockedPackage, choice: Choice | None
) -> NothingFitsError:
    name = f"{package.name} {package.version}"
    message = f"no wheel of {name} in it is for this interpreter and machine"
    resolution = choice.resolution if choice is not None else None
    if resolution is not None:
        for label, reasons in resolution.rejected.items():
            if label in package.labels and reasons:
                message += f"; {label} does not fit: {reasons[0].sentence}"
                break
    hint = "make the lock file again on this machine"
    return NothingFitsError(message, path=path, hint=hint)
