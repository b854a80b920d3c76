"""Lock files that pip has written, completed for machines with other GPUs.

pip locks the one wheel that it took. PEP 825, "Integration with pylock.toml": "either
all variant (and non-variant) wheels can be listed, or a subset of them", and "If
variant wheels are listed for a given package, the tool SHOULD lock this file as well",
which is the metadata of the variants.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from packaging.utils import canonicalize_name
from simple_repository import model

from nvidia_variant_provider.errors import ProviderError

from ...metadata.requirements import parse_requirement
from ..http.urls import split_credentials
from ..selection.lockable import LockableRelease
from ..server.local_index import LocalIndex
from ..server.upstream import local_path
from .interpreter import Interpreter
from .lock_files import parse_toml, write_toml
from .restoring import Restored, restore

__all__ = ["complete"]

_EXTRA = re.compile(r"""extra\s*===?\s*["']([^"']*)""")

_STRONG = ("sha256", "sha384", "sha512")
"""The hashes with which pip installs from a lock file."""

_PIECE = 1024 * 1024

Versions = Mapping[str, "str | None"]
"""The version of each package of the lock file, if it has one."""


def complete(
    text: str, local_index: LocalIndex, find_interpreter: Callable[[], Interpreter]
) -> Restored:
    """Return a lock file with the real files, and with all variants that it can hold.

    Call it only while the index serves.

    :param find_interpreter: returns the interpreter that pip has locked for.
    """
    completion = _Completion(local_index, find_interpreter)
    try:
        document = parse_toml(text, "pylock.toml")
        if completion.complete(document["packages"]):
            text = write_toml(document)
    except (ProviderError, AttributeError, KeyError, TypeError) as error:
        completion.remarks.append(f"other variants could not be added: {error}")
    restored = restore(text, local_index)
    return replace(
        restored,
        variants=restored.variants | completion.variants,
        remarks=(*completion.remarks, *restored.remarks),
    )


class _Completion:
    """Adds the other wheels of each release with variants.

    :param find_interpreter: is called when there is such a release.
    """

    def __init__(
        self, local_index: LocalIndex, find_interpreter: Callable[[], Interpreter]
    ) -> None:
        self._local_index = local_index
        self._find_interpreter = find_interpreter
        self.remarks: list[str] = []
        self.variants: set[tuple[str, str]] = set()

    def complete(self, packages: Sequence[dict[str, Any]]) -> bool:
        """Complete the packages; return whether any of them has changed."""
        versions: dict[str, str | None] = {
            canonicalize_name(table["name"]): table.get("version") for table in packages
        }
        changed = False
        for table in packages:
            if not table.get("wheels"):
                continue
            release = self._local_index.read_lockable(table["wheels"][0]["url"])
            if release is not None:
                self._add(table, release, versions)
                changed = True
        return changed

    def _add(
        self, table: dict[str, Any], release: LockableRelease, versions: Versions
    ) -> None:
        project, taken = table["name"], table["wheels"][0]
        interpreter = self._find_interpreter()
        left_out = _find_uncovered(release, versions, taken["name"])
        wheels = []
        for item in release.wheels:
            label, file = item.wheel.parts.label, item.file
            hashes = {key: file.hashes[key] for key in _STRONG if key in file.hashes}
            if item.name == taken["name"]:
                hashes = hashes or {
                    key: self._local_index.rewritten.get(digest, digest)
                    for key, digest in taken["hashes"].items()
                }
            elif (
                interpreter.rank(item.wheel.parts.tags) is None
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
                self.variants.add((project, label))
        table["wheels"] = wheels
        if release.metadata is not None:
            entry = _entry(release.metadata, release.metadata.hashes)
            # This table has no name.
            del entry["name"]
            table["variants-json"] = entry
        if left_out:
            reasons = ", ".join(
                f"{label or 'the non-variant wheel'} ({why})"
                for label, why in left_out.items()
            )
            self.remarks.append(f"wheels of {project} are left out: {reasons}")


def _hashes_of(file: model.File) -> dict[str, str]:
    """Return the hash of a file of this machine; nothing for other files."""
    if not file.url.startswith("file:"):
        return {}
    digest = hashlib.sha256()
    try:
        with local_path(file.url).open("rb") as opened:
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
    release: LockableRelease, versions: Versions, taken: str
) -> dict[str | None, str]:
    """Find the labels whose requirements the lock file does not meet, with the reason.

    pip installs nothing from a lock file that is not in it.
    """
    labels = {item.name: item.wheel.parts.label for item in release.wheels}
    chosen = labels.get(taken)
    known = {_plain(text) for text in release.requires.get(chosen, ())}
    uncovered: dict[str | None, str] = {}
    for label in dict.fromkeys(labels.values()):
        if label == chosen:
            continue
        if label not in release.requires:
            uncovered[label] = "its requirements are not known"
            continue
        for text in release.requires[label]:
            if _plain(text) not in known and not _is_covered(text, versions):
                what = text.partition(";")[0].strip()
                uncovered[label] = f"it requires {what}, which is not locked"
                break
    return uncovered


def _is_covered(text: str, versions: Versions) -> bool:
    """Return whether the lock file meets a requirement, with any extra."""
    requirement = parse_requirement(text)
    if requirement is None or requirement.extras:
        return False
    if requirement.marker is not None:
        extras = ["", *_EXTRA.findall(str(requirement.marker))]
        try:
            if not any(requirement.marker.evaluate({"extra": x}) for x in extras):
                return True
        except ValueError:
            return False
    name = canonicalize_name(requirement.name)
    if name not in versions:
        return False
    version = versions[name]
    return version is None or requirement.specifier.contains(version, prereleases=True)


def _plain(text: str) -> str:
    return "".join(text.split())
