"""Upgrading one metadata file, or the metadata of all releases in a directory.

In a directory, a release with wheels gets its metadata from the wheels: installers read
``variant.json`` of the wheel that they select, and fail if it contradicts the metadata.
Everything is read and written below the `Root`.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from nvidia_variant_provider.errors import InputError
from nvidia_variant_provider.metadata import VariantsMetadata, versions
from nvidia_variant_provider.metadata.document import (
    SUFFIX,
    metadata_name,
    parse_metadata_name,
    read_parsed,
)
from nvidia_variant_provider.strict_json import (
    parse_json,
    read_stream,
)

from ..directories import Root, list_names
from ..files import harmless
from ..metadata.checking import to_text
from ..signals import reading
from ..wheels.archive import parse_wheel_name
from ..wheels.variant_json import combine, read_wheel_metadata
from .remarks import (
    Remark,
    Upgrade,
    find_overruled,
    rewrite_for_uv,
    without_repeats,
)
from .upgrade import find_unread, upgrade

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class UpgradedFile:
    """The result of upgrading one metadata file.

    :param path: the path of the file, or the name of the text.
    :param old_version: the version of the old file; ``None`` if the file was missing or
        unreadable.
    :param text: the upgraded document; ``None`` if there is none.
    :param changed: whether the text differs from the bytes of the file.
    :param losses: statements that the upgraded document does not contain.
    :param notes: additions to the document, and limits of the result.
    :param problems: reasons why there is no upgraded document.
    """

    path: str
    old_version: str | None = None
    text: str | None = None
    changed: bool = False
    losses: tuple[Remark, ...] = ()
    notes: tuple[Remark, ...] = ()
    problems: tuple[Remark, ...] = ()

    @property
    def new_version(self) -> str | None:
        """The version of the upgraded document; ``None`` if there is none."""
        return None if self.text is None else str(versions.WRITTEN)

    @property
    def document(self) -> dict[str, Any] | None:
        """The upgraded document, parsed; ``None`` if there is none."""
        if self.text is None:
            return None
        document: dict[str, Any] = json.loads(self.text)
        return document

    def to_dict(self) -> dict[str, object]:
        """Return the file as an object of the JSON report."""
        return {
            "path": self.path,
            "from": self.old_version,
            "to": self.new_version,
            "changed": self.changed,
            "losses": [remark.to_dict() for remark in self.losses],
            "notes": [remark.to_dict() for remark in self.notes],
            "problems": [remark.to_dict() for remark in self.problems],
        }


def upgrade_text(name: str, data: bytes, *, for_uv: bool = False) -> UpgradedFile:
    """Return the upgraded metadata of a file, as `nvp.api.upgrade` does.

    :param name: the path of the file, or a name for messages.
    """
    document = parse_json(data, name)
    metadata = read_parsed(document, path=name)
    try:
        outcome = upgrade(metadata, document)
    except InputError as error:
        error.path = name
        raise
    if for_uv:
        outcome = rewrite_for_uv(outcome)
    file = UpgradedFile(
        path=name,
        old_version=str(metadata.schema),
        losses=without_repeats(outcome.losses),
        notes=without_repeats(outcome.notes),
        problems=without_repeats(outcome.problems),
    )
    return _with_metadata(file, outcome.metadata, data)


def upgrade_folder(
    folder: str, *, write: bool = True, for_uv: bool = False
) -> list[UpgradedFile]:
    """Upgrade the releases of a directory, as `nvp.api.upgrade_index` does."""
    root = Root(folder)
    above = Root(os.path.dirname(root.path), root)
    names = list_names(folder, dir_fd=root.dir_fd)
    files = upgrade_files(above, folder, names, for_uv)
    if not files:
        message = f"the directory has no file *{SUFFIX} and no wheel with a label"
        raise InputError(message, path=folder, hint="name the directory of a project")
    for file in files:
        if write and file.changed and file.text is not None:
            root.write(file.path, harmless(file.text).encode())
    return files


def upgrade_files(
    root: Root, folder: str, names: Iterable[str], for_uv: bool
) -> list[UpgradedFile]:
    """Return the upgraded metadata of the releases in ``names``, without writing it.

    :param root: contains all files.
    """
    releases, misnamed = _group(folder, names)
    files = [_upgrade_release(root, folder, release, for_uv) for release in releases]
    return sorted([*misnamed, *files], key=lambda file: file.path)


@dataclass(kw_only=True, slots=True)
class _Release:
    """The files of one release.

    :param name: the expected name of its metadata file.
    :param files: the names of its metadata files.
    :param wheels: the names of its variant wheels, with their labels.
    """

    name: str
    files: list[str] = field(default_factory=list)
    wheels: list[tuple[str, str]] = field(default_factory=list)


def _group(
    folder: str, names: Iterable[str]
) -> tuple[list[_Release], list[UpgradedFile]]:
    """Return the releases of a directory, and the files with malformed names."""
    releases: dict[tuple[str, str], _Release] = {}
    misnamed: list[UpgradedFile] = []
    for name in names:
        try:
            release, label = _parse_name(name)
        except InputError as error:
            problem = Remark.from_error(error)
            path = os.path.join(folder, name)
            misnamed.append(UpgradedFile(path=path, problems=(problem,)))
            continue
        if release is None:
            continue
        own = releases.setdefault(release, _Release(name=metadata_name(*release)))
        if label is None:
            own.files.append(name)
        else:
            own.wheels.append((name, label))
    return list(releases.values()), misnamed


def _parse_name(file_name: str) -> tuple[tuple[str, str] | None, str | None]:
    """Return the project and version of a file, and the label of a variant wheel.

    Non-variant wheels and other files belong to no release.
    """
    if file_name.endswith(".whl"):
        wheel = parse_wheel_name(file_name)
        release = wheel.name, wheel.version
        return (None if wheel.label is None else release), wheel.label
    if not file_name.endswith(SUFFIX):
        return None, None
    name = parse_metadata_name(file_name)
    normalized = name.normalized() if name is not None else None
    if normalized is None:
        message = f"not of the form {metadata_name('{name}', '{version}')}"
        raise InputError(message, path=file_name, hint="rename the file")
    return (normalized.name, normalized.version), None


def _upgrade_release(
    root: Root, folder: str, release: _Release, for_uv: bool
) -> UpgradedFile:
    """Return the upgraded file of a release, made from its wheels if it has any."""
    name = release.files[0] if release.files else release.name
    path = os.path.join(folder, name)
    file = UpgradedFile(path=path)
    if len(release.files) > 1:
        message = f"{' and '.join(release.files)} are for the same release"
        problem = Remark(place=name, message=message, hint="keep one of them")
        return replace(file, problems=(problem,))
    data: bytes | None = None
    old: UpgradedFile | None = None
    unreadable_old: tuple[Remark, ...] = ()
    if release.files:
        try:
            with root.open(path) as opened:
                data = read_stream(opened, path)
            old = upgrade_text(path, data, for_uv=for_uv)
        except InputError as error:
            error.path = None
            unreadable_old = (Remark.from_error(error),)
            # A file that cannot be opened cannot be replaced either. A malformed file
            # can be replaced: its content does not matter if the release has wheels.
            if not release.wheels or data is None:
                return replace(file, problems=unreadable_old)
    if not release.wheels:
        return old or file
    logger.info("reading %d wheels for %s", len(release.wheels), path)
    outcome = _read_wheels(root, folder, release.wheels)
    if for_uv:
        outcome = rewrite_for_uv(outcome)
    file = replace(
        file,
        losses=without_repeats(unreadable_old, outcome.losses),
        notes=outcome.notes,
        problems=outcome.problems,
    )
    return _merge(file, old, outcome.metadata, data)


def _merge(
    file: UpgradedFile,
    old: UpgradedFile | None,
    metadata: VariantsMetadata | None,
    data: bytes | None,
) -> UpgradedFile:
    """Complete the file made from the wheels; report lost statements of the old file.

    :param data: the bytes of the old file.
    """
    if old is not None:
        # Problems of the old file become losses: the new file is made from the wheels.
        known = {*file.problems}
        left_open = [item for item in old.problems if item not in known]
        losses = without_repeats(file.losses, old.losses, left_open)
        file = replace(file, old_version=old.old_version, losses=losses)
    file = _with_metadata(file, metadata, data)
    if old is None or old.document is None or file.document is None:
        return file
    overruled = find_overruled(old.document, file.document)
    return replace(file, losses=(*file.losses, *overruled))


def _with_metadata(
    file: UpgradedFile, metadata: VariantsMetadata | None, data: bytes | None
) -> UpgradedFile:
    if metadata is None:
        return file
    text = to_text(metadata)
    return replace(file, text=text, changed=text.encode() != data)


def _read_wheels(root: Root, folder: str, wheels: Sequence[tuple[str, str]]) -> Upgrade:
    """Return the merged and upgraded metadata of the wheels of a release.

    Wheels of the same schema version are combined before the upgrade, which then
    compares the order of all their labels.
    """
    losses: list[Remark] = []
    notes: list[Remark] = []
    problems: list[Remark] = []
    by_version: dict[tuple[int, int, int], list[tuple[str, VariantsMetadata]]] = {}
    for name, label in wheels:
        logger.debug("reading variant.json of %s", name)
        try:
            path = os.path.join(folder, name)
            with reading(path), root.open(path) as file:
                metadata, document = read_wheel_metadata(path, label, file)
        except InputError as error:
            error.path = name
            problems.append(Remark.from_error(error))
            continue
        losses += find_unread(document, metadata)
        by_version.setdefault(metadata.schema.number, []).append((name, metadata))
    upgraded: list[tuple[str, VariantsMetadata]] = []
    for _, group in sorted(by_version.items()):
        merged, errors = combine(group)
        problems += map(Remark.from_error, errors)
        if errors:
            continue
        first_wheel = group[0][0]
        try:
            outcome = upgrade(merged)
        except InputError as error:
            error.path = first_wheel
            problems.append(Remark.from_error(error))
            continue
        losses += outcome.losses
        notes += outcome.notes
        problems += outcome.problems
        if outcome.metadata is not None:
            upgraded.append((first_wheel, outcome.metadata))
    result = None
    if not problems:
        result, errors = combine(upgraded)
        problems += map(Remark.from_error, errors)
    return Upgrade(
        metadata=None if problems else result,
        losses=without_repeats(losses),
        notes=without_repeats(notes),
        problems=without_repeats(problems),
    )
