"""What ``*.dist-info`` of a wheel says: ``variant.json``, METADATA and WHEEL."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.message import Message
from email.parser import HeaderParser
from typing import IO, Any

from nvidia_variant_provider.errors import InputError, shown
from nvidia_variant_provider.metadata import VariantsMetadata
from nvidia_variant_provider.metadata.document import read_parsed
from nvidia_variant_provider.strict_json import parse_json

from .archive import open_wheel, parse_requires, read_dist_info

__all__ = [
    "WheelContent",
    "find_variant_markers",
    "read_content",
    "read_wheel",
    "read_wheel_metadata",
]

# PEP 825, "Environment markers".
_MARKERS = (
    "variant_label",
    "variant_namespaces",
    "variant_features",
    "variant_properties",
)

MAX_TAGS = 1000
"""The most tags of a wheel that are read; real wheels have fewer than twenty."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WheelContent:
    """What a wheel says about itself, unread and unchecked.

    :param variant_json: the bytes of ``*.dist-info/variant.json``; ``None`` when there
        is no such file.
    :param folder: the name of the ``*.dist-info`` folder that METADATA is in.
    :param name: the project, as METADATA says it; empty if it does not.
    :param version: the release, as METADATA says it; empty if it does not.
    :param requires: ``Requires-Dist`` of METADATA.
    :param tags: the tags in WHEEL, such as ``py3-none-any``; ``None`` when there is no
        such file, which older builders left out.
    """

    variant_json: bytes | None
    folder: str = ""
    name: str = ""
    version: str = ""
    requires: Sequence[str] = ()
    tags: Sequence[str] | None = None

    @property
    def markers(self) -> Sequence[str]:
        """The requirements that use variant markers."""
        return [text for text in self.requires if _has_variant_marker(text)]


def read_wheel(source: str | IO[bytes]) -> WheelContent:
    """Return what ``*.dist-info`` of a wheel says.

    :param source: a path, or an open file.
    :raises InputError: the archive cannot be read or has no METADATA.
    """
    with open_wheel(source) as archive:
        return read_content(archive)


def read_content(archive: zipfile.ZipFile) -> WheelContent:
    """Return what ``*.dist-info`` of an open archive says.

    :raises InputError: it has no METADATA. The caller explains what `zipfile` raises
        for damage, as `archive.explained` does.
    """
    metadata = read_dist_info(archive, "METADATA")
    if metadata is None:
        hint = "build the wheel again"
        raise InputError("has no *.dist-info/METADATA", hint=hint)
    wheel = read_dist_info(archive, "WHEEL")
    headers = _headers(metadata)
    return WheelContent(
        variant_json=read_dist_info(archive, "variant.json"),
        folder=next(filter(None, map(_metadata_folder, archive.namelist())), ""),
        name=str(headers.get("Name", "")).strip(),
        version=str(headers.get("Version", "")).strip(),
        requires=parse_requires(metadata),
        tags=None if wheel is None else _tags(wheel),
    )


def _headers(data: bytes) -> Message:
    return HeaderParser().parsestr(data.decode("utf-8", "replace"))


def _tags(wheel: bytes) -> list[str]:
    return [str(tag).strip() for tag in _headers(wheel).get_all("Tag", [])[:MAX_TAGS]]


def _metadata_folder(member: str) -> str | None:
    folder, _, name = member.partition("/")
    return folder if name == "METADATA" and folder.endswith(".dist-info") else None


def read_wheel_metadata(
    path: str | os.PathLike[str], label: str, file: IO[bytes] | None = None
) -> tuple[VariantsMetadata, Mapping[str, Any]]:
    """Return the metadata of a wheel, and the document that it was read from.

    :param label: the label in the name of the wheel.
    :param file: the open wheel; ``path`` is then only its name in messages.
    :raises InputError: the archive cannot be read, has no ``variant.json``, or has one
        that is not valid or is for another label.
    """
    name = str(path)
    try:
        with open_wheel(name if file is None else file) as archive:
            data = read_dist_info(archive, "variant.json")
    except InputError as error:
        error.path = name
        raise
    if data is None:
        message = "no file *.dist-info/variant.json in a wheel with a label"
        raise InputError(message, path=name, hint="build the wheel again")
    document = parse_json(data, f"{name}/variant.json")
    metadata = read_parsed(document, path=f"{name}/variant.json")
    # PEP 825: "it MUST contain exactly one entry, whose key is the variant label
    # present in that wheel's filename."
    if list(metadata.variants) != [label]:
        labels = ", ".join(map(shown, list(metadata.variants)[:5])) or "no label"
        message = f"it is for {labels}, but the wheel's name says {shown(label)}"
        hint = "build the wheel again, or rename it"
        raise InputError(message, path=name, place="variants", hint=hint)
    return metadata, document


def find_variant_markers(metadata: bytes) -> list[str]:
    """Return the requirements in METADATA that depend on the variant.

    Neither `packaging` nor a released installer can evaluate such markers.
    """
    return list(filter(_has_variant_marker, parse_requires(metadata)))


def _has_variant_marker(requirement: str) -> bool:
    return any(marker in requirement.partition(";")[2] for marker in _MARKERS)
