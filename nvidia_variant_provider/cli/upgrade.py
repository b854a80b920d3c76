"""``upgrade``: rewrite variant metadata in the current schema."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..errors import InputError, UsageError
from ..metadata.names import SUFFIX
from ..metadata.versions import WRITTEN
from .parsers import add_examples
from .result import Result

if TYPE_CHECKING:
    from ..upgrading.upgrade import Remark, Upgrade

__all__ = ["configure_parser", "execute"]

FINDINGS = 1

_VERSION = str(WRITTEN)


@dataclass(kw_only=True, slots=True)
class _File:
    """What became of one file; ``text`` is ``None`` when it is not to be written."""

    path: str
    old: str | None = None
    text: str | None = None
    changed: bool = False
    losses: list[Remark] = field(default_factory=list)
    notes: list[Remark] = field(default_factory=list)
    problems: list[Remark] = field(default_factory=list)

    def add(self, found: Upgrade) -> None:
        """Take over the remarks, each of them once."""
        for mine, theirs in (
            (self.losses, found.losses),
            (self.notes, found.notes),
            (self.problems, found.problems),
        ):
            mine += [remark for remark in theirs if remark not in mine]

    def to_dict(self) -> dict[str, object]:
        return {
            "path": self.path,
            "from": self.old,
            "to": None if self.text is None else _VERSION,
            "changed": self.changed,
            "losses": [remark.to_dict() for remark in self.losses],
            "notes": [remark.to_dict() for remark in self.notes],
            "problems": [remark.to_dict() for remark in self.problems],
        }

    def sentences(self) -> list[str]:
        """The remarks for people, with the file that they are about."""
        remarks = (*self.problems, *self.losses, *self.notes)
        found = [f"{self.path}: {remark}" for remark in remarks]
        if self.problems:
            found.append(f"{self.path}: nothing was written")
        return found


def configure_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of the verb."""
    parser.add_argument(
        "path",
        metavar="FILE",
        help="a {name}-{version}-variants.json, or - for stdin; with --index, a folder",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="OUT",
        help="write to this file, completely or not at all (default: stdout)",
    )
    parser.add_argument(
        "--to",
        default=_VERSION,
        choices=[_VERSION],
        help="the schema version to write (default: %(default)s)",
    )
    parser.add_argument(
        "--index",
        action="store_true",
        help="upgrade all metadata files of a folder in place; a release whose wheels "
        "are in the folder gets a file made from them",
    )
    add_examples(
        parser,
        "upgrade torch-2.8.0-variants.json --output new.json",
        "upgrade --index dist/",
    )


def execute(options: argparse.Namespace, environ: Mapping[str, str]) -> Result:  # noqa: ARG001
    """``data`` is each file with what changed, and the document if not written."""
    if options.index:
        if options.output is not None:
            message = "--index writes each file in its place"
            raise UsageError(message, path="--output", hint="leave --output out")
        return _index(options.path)
    if os.path.isdir(options.path):
        hint = "name a file in it, or add --index"
        raise UsageError("this is a folder", path=options.path, hint=hint)
    return _single(options.path, options.output)


def _single(path: str, output: str | None) -> Result:
    import json

    from ..metadata.writing import replace_file
    from ..strict_json import read_bytes, read_stdin

    if path != "-":
        name, data = path, read_bytes(path)
    else:
        name, data = "stdin", read_stdin()
    file = _upgraded(name, data)
    text: list[str] = []
    if file.text is not None and output is not None:
        replace_file(output, file.text)
        text = [f"{output}: {_what_happened(file)}"]
    elif file.text is not None:
        text = file.text.splitlines()
    shown = output is None and file.text is not None
    return _result([file], text, json.loads(file.text or "") if shown else None)


def _upgraded(name: str, data: bytes) -> _File:
    """The metadata in the current version.

    :raises InputError: it cannot be read.
    """
    from ..metadata import read_metadata
    from ..metadata.writing import to_text
    from ..strict_json import parse_json
    from ..upgrading.upgrade import upgrade

    metadata = read_metadata(data, path=name)
    try:
        found = upgrade(metadata, parse_json(data))
    except InputError as error:
        error.path = name
        raise
    file = _File(path=name, old=str(metadata.schema))
    file.add(found)
    if found.metadata is not None:
        file.text = to_text(found.metadata)
        file.changed = file.text.encode() != data
    return file


def _index(folder: str) -> Result:
    from ..metadata.writing import replace_file
    from ..strict_json import unreadable
    from ..upgrading.upgrade import Remark

    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise unreadable(error, folder) from None
    files: list[_File] = []
    releases: dict[tuple[str, str], _Release] = {}
    for name in names:
        try:
            key, label = _release_of(name)
        except InputError as error:
            problem = Remark.from_error(error)
            files.append(_File(path=os.path.join(folder, name), problems=[problem]))
            continue
        if key is not None:
            release = releases.setdefault(key, _Release())
            if name.endswith(SUFFIX):
                release.files.append(name)
            elif label is not None:
                release.wheels.append((name, label))
    for key, release in releases.items():
        if release.files or release.wheels:
            files.append(_rebuilt(folder, key, release))
    if not files:
        message = f"the folder has no file *{SUFFIX} and no wheel with a label"
        raise InputError(message, path=folder, hint="name the folder of a project")
    files.sort(key=lambda file: file.path)
    for file in files:
        if file.changed and file.text is not None:
            replace_file(file.path, file.text)
    return _result(files, [f"{file.path}: {_what_happened(file)}" for file in files])


@dataclass(kw_only=True, slots=True)
class _Release:
    """The metadata files of one release, and its wheels with their labels."""

    files: list[str] = field(default_factory=list)
    wheels: list[tuple[str, str]] = field(default_factory=list)


def _release_of(name: str) -> tuple[tuple[str, str] | None, str | None]:
    """Project and version that a file belongs to, and the label of a wheel.

    :raises InputError: a wheel or a metadata file with a name of another form.
    """
    from ..metadata.names import parse_metadata_name
    from ..wheels.archive import parse_wheel_name

    if name.endswith(".whl"):
        wheel = parse_wheel_name(name)
        return (wheel.name, wheel.version), wheel.label
    if not name.endswith(SUFFIX):
        return None, None
    given = parse_metadata_name(name)
    parts = given.normalized() if given is not None else None
    if parts is None:
        raise InputError(
            f"not of the form {{name}}-{{version}}{SUFFIX}",
            path=name,
            hint="rename it",
        )
    return (parts.name, parts.version), None


def _rebuilt(folder: str, key: tuple[str, str], release: _Release) -> _File:
    """The file of one release, from its wheels where they are there."""
    from ..metadata.writing import to_text
    from ..strict_json import read_bytes
    from ..upgrading.upgrade import Remark

    name = release.files[0] if release.files else f"{key[0]}-{key[1]}{SUFFIX}"
    path = os.path.join(folder, name)
    file = _File(path=path)
    if len(release.files) > 1:
        message = f"{' and '.join(release.files)} are for the same release"
        hint = "keep one of them"
        file.problems.append(Remark(place=name, message=message, hint=hint))
        return file
    data = None
    old: _File | None = None
    if release.files:
        try:
            data = read_bytes(path)
            old = _upgraded(path, data)
        except InputError as error:
            error.path = None
            remark = Remark.from_error(error)
            if not release.wheels or data is None:
                file.problems.append(remark)
                return file
            file.losses.append(remark)
    if not release.wheels:
        return old or file
    found = _from_wheels(folder, release.wheels)
    file.add(found)
    if old is not None:
        file.old = old.old
        file.losses += [x for x in old.losses if x not in file.losses]
        # What the old file does not say is no matter any more: the wheels do.
        file.losses += [x for x in old.problems if x not in file.problems]
    if found.metadata is not None:
        file.text = to_text(found.metadata)
        file.changed = file.text.encode() != data
        if old is not None and old.text is not None:
            file.losses += _overruled(old.text, file.text)
    return file


def _from_wheels(folder: str, wheels: list[tuple[str, str]]) -> Upgrade:
    """What the wheels of a release say together, in the current version.

    Those of one version are combined first, so that priorities are judged by all
    labels that they order.
    """
    from ..metadata import VariantsMetadata
    from ..upgrading.upgrade import Remark, Upgrade, find_unread, upgrade
    from ..wheels.variant_json import combine, read_wheel_metadata

    groups: dict[tuple[int, int, int], list[tuple[str, VariantsMetadata]]] = {}
    collected = _File(path=folder)
    for name, label in wheels:
        try:
            path = os.path.join(folder, name)
            metadata, document = read_wheel_metadata(path, label)
        except InputError as error:
            error.path = name
            collected.problems.append(Remark.from_error(error))
            continue
        unread = find_unread(document, metadata)
        collected.losses += [x for x in unread if x not in collected.losses]
        groups.setdefault(metadata.schema.number, []).append((name, metadata))
    upgraded: list[tuple[str, VariantsMetadata]] = []
    for _, group in sorted(groups.items()):
        merged, errors = combine(group)
        collected.problems += map(Remark.from_error, errors)
        if errors:
            continue
        try:
            found = upgrade(merged)
        except InputError as error:
            error.path = group[0][0]
            collected.problems.append(Remark.from_error(error))
            continue
        collected.add(found)
        if found.metadata is not None:
            upgraded.append((group[0][0], found.metadata))
    result = None
    if not collected.problems:
        result, errors = combine(upgraded)
        collected.problems += map(Remark.from_error, errors)
    return Upgrade(
        metadata=None if collected.problems else result,
        losses=tuple(collected.losses),
        notes=tuple(collected.notes),
        problems=tuple(collected.problems),
    )


def _overruled(old_text: str, new_text: str) -> list[Remark]:
    """What the old file said and the wheels do not."""
    import json

    from ..errors import join
    from ..upgrading.upgrade import Remark

    old: dict[str, Any] = json.loads(old_text)
    new: dict[str, Any] = json.loads(new_text)
    remarks = []
    for section in ("default-priorities", "providers", "variants"):
        for key, value in old[section].items():
            if new[section].get(key) == value:
                continue
            gone = key not in new[section]
            message = "no wheel here has it" if gone else "the wheels say otherwise"
            hint = "left out" if gone else "replaced by what they say"
            # A longer list of namespaces, say, may give another order.
            place = join(section, key)
            remarks.append(
                Remark(place=place, message=message, hint=hint, reorders=True)
            )
    return remarks


def _what_happened(file: _File) -> str:
    if file.text is None:
        return "not written"
    if file.old is None:
        return f"made from the wheels, in version {_VERSION}"
    if not file.changed:
        return f"already as in version {_VERSION}"
    return f"from version {file.old} to {_VERSION}"


def _result(
    files: list[_File], text: list[str], document: dict[str, Any] | None = None
) -> Result:
    findings = any(file.losses or file.problems for file in files)
    return Result(
        exit_code=FINDINGS if findings else 0,
        data={"files": [file.to_dict() for file in files], "document": document},
        text=text,
        verbatim=document is not None,
        notes=[sentence for file in files for sentence in file.sentences()],
    )
