"""Correct the reports and lock files that pip writes or prints for the user.

pip records URLs of the local index, which work only during the run, and locks only the
wheel that it selected. PEP 825, "Integration with pylock.toml": "either all variant
(and non-variant) wheels can be listed, or a subset of them", and the table
``packages.variants-json`` "MUST inline combined variant metadata".
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, TextIO
from urllib.parse import urlsplit

import tomli_w
from packaging.utils import canonicalize_name
from simple_repository import model

from nvidia_variant_provider.errors import InputError, ProviderError
from nvidia_variant_provider.strict_json import open_regular

from ...metadata.requirements import Work, extras_of, holds, parse_requirement
from ..http.kept_keys import is_yanked
from ..http.urls import file_name, split_credentials
from ..server.local_index import LocalIndex
from ..server.served_locks import LockableRelease
from ..server.upstream import local_path
from .installed import label_of
from .locks import parse_toml
from .settings import find_interpreter

_NO_WAIT: int = getattr(os, "O_NONBLOCK", 0)
"""The flag with which opening a pipe does not wait for its reader."""

_FILE_URL = re.compile(r"\"(file:[^\"]*\.(?:whl|tar\.gz|zip))\"")

_STRONG = ("sha256", "sha384", "sha512")
"""The hash algorithms that pip accepts in a lock file."""

_PIECE = 1024 * 1024

Versions = Mapping[str, "str | None"]
"""The version of each package in the lock file; ``None`` if it is not given."""


class Written:
    """Replaces the temporary URLs in pip's report or lock file.

    pip writes the file into a private directory, since these URLs are secret. The
    corrected text is written to the user's path once, in the way of pip, which follows
    links: only what the user's pip says is written there, and nothing of that path is
    read.

    :param stream: the stream to which pip's output is printed.
    :param python: the target interpreter of pip.
    :param path: the path of pip's own file, in the private directory.
    :param place: the path that the user gave; ``-`` for ``stream``.
    :param is_lock: whether pip writes a lock file, not a report.
    :param adds: whether the lock file gets the other usable variants. It must not if
        hashes or dates limit the files of the run.
    :raises InputError: the user's path cannot be written. pip alone would fail after it
        has resolved the requirements, and before it installs.
    """

    def __init__(
        self,
        local_index: LocalIndex,
        stream: TextIO,
        python: str,
        environ: Mapping[str, str],
        *,
        path: str,
        place: str,
        is_lock: bool,
        adds: bool = True,
    ) -> None:
        self._adds = adds
        self._local_index = local_index
        self._stream = stream
        self._find_interpreter = cache(lambda: find_interpreter(python, environ))
        self._path = Path(path)
        self._place = place
        self._is_lock = is_lock
        self._variants: set[tuple[str, str]] = set()
        self.remarks: list[str] = []
        if place != "-":
            with _writing(place):
                _check_place(place)

    @property
    def variants(self) -> tuple[str, ...]:
        """Variant wheels in pip's report and lock file, such as ``torch (cu128)``."""
        return tuple(
            f"{project} ({label})" for project, label in sorted(self._variants)
        )

    def restore(self, *, succeeded: bool) -> None:
        """Write the user's file; call this while the local index is serving.

        :param succeeded: whether pip succeeded, so that there must be a lock file. pip
            writes a report before it installs, so there may be one after a failure.
        :raises InputError: the file cannot be written.
        """
        if self._path.exists() or (self._is_lock and succeeded):
            self._write(self._complete if self._is_lock else self._put_back)

    def restore_urls(self) -> None:
        """Write the user's file with the original URLs, after a signal to pip."""
        if self._path.exists():
            with suppress(InputError):
                self._write(self._put_back, waits=False)

    def _write(self, change: Callable[[str, str], str], *, waits: bool = True) -> None:
        """Write the user's file.

        :param waits: wait for the reader of a pipe, as pip does.
        """
        with _writing(self._place):
            content = self._path.read_bytes()
        name = f"the {self._path.stem}" if self._place == "-" else self._place
        text = change(content.decode("utf-8", "surrogateescape"), name)
        if self._place == "-":
            self._print(text if text.endswith("\n") else f"{text}\n")  # as pip does
            return
        flag = 0 if waits else _NO_WAIT
        with (
            _writing(self._place),
            open(
                self._place, "wb", opener=lambda x, y: os.open(x, y | flag, 0o666)
            ) as file,
        ):
            file.write(text.encode("utf-8", "surrogateescape"))

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
                    what = "no other variants are added, since hashes or dates may"
                    self.remarks.append(f"{name}: {what} limit files")
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
                or is_yanked(file)
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


@contextmanager
def _writing(place: str) -> Iterator[None]:
    """Replace an error of the system with one that names the user's path."""
    try:
        yield
    except (OSError, ValueError) as error:
        # A path with a NUL byte raises ValueError, which has no strerror.
        message = f"cannot be written: {getattr(error, 'strerror', None) or error}"
        raise InputError(message, path=place, hint="name a file") from None


def _check_place(place: str) -> None:
    """Check that pip could write a file, without a change.

    Pipes and devices are not opened: their readers would notice it.

    :raises OSError, ValueError: pip could not write the file.
    """
    try:
        mode = os.stat(place).st_mode
    except FileNotFoundError:
        folder = os.path.dirname(os.path.realpath(place))
        os.stat(folder)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES)) from None
    else:
        if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
            # With O_CREAT, Linux refuses files of strangers in shared directories.
            os.close(os.open(place, os.O_WRONLY | os.O_CREAT | _NO_WAIT, 0o666))


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
