"""Correct the reports and lock files that pip writes or prints for the user.

pip records URLs of the local index, which work only during the run, and locks only the
wheel that it selected. PEP 825, "Integration with pylock.toml": "either all variant
(and non-variant) wheels can be listed, or a subset of them", and the table
``packages.variants-json`` "MUST inline combined variant metadata".
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TextIO
from urllib.parse import urlsplit

import tomli_w
from packaging.utils import canonicalize_name
from simple_repository import model

from nvidia_variant_provider.errors import InputError, ProviderError
from nvidia_variant_provider.strict_json import open_regular

from ...files import real_path, replacing
from ...metadata.requirements import Work, extras_of, holds, parse_requirement
from ..http.urls import file_name, split_credentials
from ..server.local_index import LocalIndex
from ..server.served_locks import LockableRelease
from ..server.upstream import local_path
from .installed import label_of
from .locks import parse_toml
from .settings import find_interpreter

_START = "lock-version"
"""The start of pip's lock file; pip prints other lines before it."""

_FILE_URL = re.compile(r"\"(file:[^\"]*\.(?:whl|tar\.gz|zip))\"")

_STRONG = ("sha256", "sha384", "sha512")
"""The hash algorithms that pip accepts in a lock file."""

_PIECE = 1024 * 1024

Versions = Mapping[str, "str | None"]
"""The version of each package in the lock file; ``None`` if it is not given."""


class Written:
    """Replaces the temporary URLs in pip's reports and lock files.

    pip writes to a file or to stdout. Output for a pipe or a device is corrected before
    it is written there, because it cannot be read back.

    :param stream: the stream to which pip's output is printed.
    :param python: the target interpreter of pip.
    :param report: the path of the user's report; ``-`` for ``stream``.
    :param lock: the path of the user's lock file; ``-`` for ``stream``.
    :param adds: whether the lock file gets the other usable variants. It must not if
        hashes or dates limit the files of the run.
    """

    def __init__(
        self,
        local_index: LocalIndex,
        stream: TextIO,
        python: str,
        environ: Mapping[str, str],
        *,
        report: str | None = None,
        lock: str | None = None,
        adds: bool = True,
    ) -> None:
        self._adds = adds
        self._local_index = local_index
        self._stream = stream
        self._find_interpreter = cache(lambda: find_interpreter(python, environ))
        self._wanted = report
        self._lock = lock
        self._printed: list[str] = []
        self._variants: set[tuple[str, str]] = set()
        self.report = report
        """The path of pip's report, if any."""
        self.is_lock_printed = lock is not None and not _is_file(lock)
        """Whether pip prints a lock file."""
        self.remarks: list[str] = []

    @property
    def variants(self) -> tuple[str, ...]:
        """Variant wheels in pip's report and lock file, such as ``torch (cu128)``."""
        return tuple(
            f"{project} ({label})" for project, label in sorted(self._variants)
        )

    def arguments(self, folder: Path) -> list[str]:
        """Return arguments that make pip write its output where it can be read back.

        :param folder: the directory for this output.
        """
        arguments = []
        if self._wanted is not None and not _is_file(self._wanted):
            self.report = str(folder / "report.json")
            arguments += ["--report", self.report]
        if self.is_lock_printed:
            arguments += ["--output", "-"]
        return arguments

    def take(self, line: str) -> None:
        """Print a line of pip's stdout, or collect it if it belongs to a lock file."""
        if self._printed or line.startswith(_START):
            self._printed.append(line)
        else:
            self._print(line)

    def restore(self, *, succeeded: bool) -> None:
        """Correct pip's files; call this while the local index is serving.

        :param succeeded: whether pip succeeded. Otherwise pip writes no lock file, but
            may have written a report, because it does so before it installs.
        :raises InputError: a pipe or a device cannot be written.
        """
        if self.report is not None and (succeeded or os.path.isfile(self.report)):
            path = Path(self.report)
            self._change(path, self._put_back)
            if self._wanted is not None and self._wanted != self.report:
                self._write(self._wanted, path.read_text(encoding="utf-8"))
        if self._lock is None or not succeeded:
            return
        if self.is_lock_printed:
            text = self._complete("".join(self._printed), "the lock file")
            self._printed.clear()
            self._write(self._lock, text)
        else:
            self._change(Path(self._lock), self._complete)

    def restore_urls(self) -> None:
        """Correct only the URLs in pip's files, after a signal that ended pip."""
        for path in filter(None, (self._wanted, self._lock)):
            if os.path.isfile(path):  # opening a pipe could wait for its reader
                self._change(Path(path), self._put_back)

    def flush(self) -> None:
        """Print the lines that were collected but not written."""
        self._print("".join(self._printed))
        self._printed.clear()

    def _write(self, path: str, text: str) -> None:
        """Write to the stream, a pipe or a device.

        :raises InputError: the target cannot be written.
        """
        if path == "-":
            self._print(text if text.endswith("\n") else f"{text}\n")  # as pip does
            return
        try:
            with open(path, "wb") as file:
                file.write(text.encode("utf-8", "surrogateescape"))
        except OSError as error:
            message = f"cannot be written: {error.strerror}"
            raise InputError(message, path=path, hint="name a file") from None

    def _change(self, path: Path, change: Callable[[str, str], str]) -> None:
        try:
            # A stranger may have put a pipe in place of the file, and may put a link
            # there after the file was read.
            place = real_path(path)
            with open_regular(place) as file:
                text = file.read().decode()
            changed = change(text, str(path))
            if changed != text:
                with replacing(place, follows=False) as new:
                    new.write(changed.encode())
        except (OSError, ValueError, InputError) as error:
            reason = getattr(error, "message", error)
            self.remarks.append(f"{path}: the URLs could not be restored: {reason}")

    def _print(self, text: str) -> None:
        # Write bytes, because pip's output may be invalid in the stream's encoding.
        buffer = self._stream.buffer
        with suppress(BrokenPipeError):  # pip goes on, and its exit status counts
            self._stream.flush()
            buffer.write(text.encode("utf-8", "surrogateescape"))
            buffer.flush()

    def _put_back(self, text: str, name: str) -> str:
        """Replace the URLs of the local index in a text with the original URLs.

        The names of variant wheels, and the hashes of rewritten wheels, are also
        restored.

        :param name: the name of the text in remarks.
        """
        names: dict[str, str] = {}

        def put_back(match: re.Match[str]) -> str:
            url = match[0]
            original = self._local_index.original_url(url)
            if original is None:
                return url
            project = urlsplit(url).path.split("/")[-4]
            label = label_of(url)
            if label is not None:
                self._variants.add((project, label))
                names[file_name(url)] = file_name(original)
            return original

        here = re.escape(self._local_index.url)
        text = re.sub(rf"{here}/[^\s\"'#]*", put_back, text)
        for shown, original in names.items():
            text = text.replace(f'"{shown}"', f'"{original}"')
        for digest, original in self._local_index.rewritten.items():
            text = text.replace(digest, original)
        here_alone = {
            canonicalize_name(file_name(url).partition("-")[0])
            for url in _FILE_URL.findall(text)
        }
        if here_alone:
            projects = ", ".join(sorted(here_alone))
            what = f"URLs of files of this machine (file:) are in it for {projects}"
            self.remarks.append(f"{name}: {what}")
        return text

    def _complete(self, text: str, name: str) -> str:
        """Return a lock file with the original files, and the other usable variants.

        :param name: the name of the text in remarks.
        """
        try:
            document = parse_toml(text, "pylock.toml")
            packages = document["packages"]
            versions: dict[str, str | None] = {
                canonicalize_name(table["name"]): table.get("version")
                for table in packages
            }
            changed = False
            for table in packages:
                if not table.get("wheels"):
                    continue
                release = self._local_index.read_lockable(table["wheels"][0]["url"])
                if release is not None:
                    if left_out := self._add_wheels(table, release, versions):
                        what = f"wheels of {table['name']} are left out: {left_out}"
                        self.remarks.append(f"{name}: {what}")
                    changed = True
            if changed:
                text = tomli_w.dumps(document)
                if not self._adds:
                    what = "no other variants are added, since hashes or dates limit"
                    self.remarks.append(f"{name}: {what} files")
        except (ProviderError, AttributeError, KeyError, TypeError) as error:
            message = f"{name}: other variants could not be added: {error}"
            self.remarks.append(message)
        return self._put_back(text, name)

    def _add_wheels(
        self, table: dict[str, Any], release: LockableRelease, versions: Versions
    ) -> str:
        """Add the other usable wheels of a release with variants to its package.

        :returns: a text about the wheels that are left out, with reasons.
        """
        project, locked = table["name"], table["wheels"][0]
        interpreter = self._find_interpreter()
        left_out = _find_uncovered(release, versions, locked["name"])
        wheels = []
        for item in release.wheels:
            label, file = item.wheel.parts.label, item.file
            hashes = {key: file.hashes[key] for key in _STRONG if key in file.hashes}
            if item.name == locked["name"]:
                hashes = hashes or {
                    key: self._local_index.rewritten.get(digest, digest)
                    for key, digest in locked["hashes"].items()
                }
            elif (
                not self._adds
                or interpreter.rank(item.wheel.parts.tags) is None
                or not interpreter.is_allowed(file.requires_python)
                or file.yanked
                or label in left_out
            ):
                continue
            else:
                hashes = hashes or _hashes_of(file)
                if not hashes:
                    left_out[label] = "its index gives no hash"
                    continue
            wheels.append(_entry(file, hashes))
            if label is not None:
                self._variants.add((project, label))
        table["wheels"] = wheels
        if release.metadata is not None:
            table["variants-json"] = release.metadata
        return ", ".join(
            f"{label or 'the non-variant wheel'} ({why})"
            for label, why in left_out.items()
        )


def _is_file(path: str) -> bool:
    """Return whether a path is something other than a pipe, a device or ``-``."""
    if path == "-":
        return False
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return True  # pip creates the file or reports an error
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode)


def _hashes_of(file: model.File) -> dict[str, str]:
    """Compute the SHA-256 of a local file; the result is empty for other files."""
    if not file.url.startswith("file:"):
        return {}
    digest = hashlib.sha256()
    try:
        with open_regular(local_path(file.url)) as opened:
            while piece := opened.read(_PIECE):
                digest.update(piece)
    except OSError:
        return {}
    return {"sha256": digest.hexdigest()}


def _entry(file: model.File, hashes: Mapping[str, str]) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "name": file.filename,
        "url": split_credentials(file.url)[0],
    }
    if file.size is not None:
        entry["size"] = file.size
    return {**entry, "hashes": dict(hashes)}


def _find_uncovered(
    release: LockableRelease, versions: Versions, locked: str
) -> dict[str | None, str]:
    """Return a reason for each label whose requirements the lock file does not meet.

    pip installs only packages that are in the lock file.
    """
    labels = {item.name: item.wheel.parts.label for item in release.wheels}
    own = labels.get(locked)
    known = {_plain(text) for text in release.requires.get(own, ())}
    uncovered: dict[str | None, str] = {}
    work = Work()
    for label in dict.fromkeys(labels.values()):
        if label == own:
            continue
        if label not in release.requires:
            uncovered[label] = "its requirements are not known"
            continue
        for text in release.requires[label]:
            if _plain(text) not in known and not _is_covered(text, versions, work):
                what = text.partition(";")[0].strip()
                uncovered[label] = f"it requires {what}, which is not locked"
                break
    return uncovered


def _is_covered(text: str, versions: Versions, work: Work) -> bool:
    """Return whether the lock file meets a requirement, whichever extra is used.

    A requirement for which no work is left counts as one that is not met.
    """
    extras = extras_of(text)
    taken = work.take(len(extras) * len(text))
    requirement = parse_requirement(text) if taken else None
    if requirement is None or requirement.extras:
        return False
    if not any(holds(requirement, {"extra": x}) for x in extras):
        return True
    name = canonicalize_name(requirement.name)
    if name not in versions:
        return False
    version = versions[name]
    return version is None or requirement.specifier.contains(version, prereleases=True)


def _plain(text: str) -> str:
    return "".join(text.split())
