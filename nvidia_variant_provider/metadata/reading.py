"""Reading variant metadata of every schema version into one model.

One reader serves all versions: it reads each key that any version defines, and the
version decides which keys are rejected. An error carries its place, such as
``variants.cu126.nvidia.sm_arch[2]``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ..errors import InputError
from ..strict_json import parse_json, read_bytes
from .defects import Reporter
from .document_reader import read_document
from .model import VariantsMetadata
from .names import parse_metadata_name

__all__ = ["metadata_from_dict", "read_metadata", "read_parsed"]


def read_metadata(
    source: str | bytes | os.PathLike[str] | Mapping[str, Any],
    *,
    path: str | None = None,
) -> VariantsMetadata:
    """Return the metadata of a file, a JSON text, or a parsed document.

    :param source: a path, a JSON text or a document; a string that starts with ``{``
        is a JSON text, any other string is a path.
    :param path: the name to use in messages for a text or a document.
    :raises InputError: the source cannot be read, or is not valid.
    """
    if isinstance(source, Mapping):
        return read_parsed(source, path=path)
    if isinstance(source, bytes) or (
        isinstance(source, str) and source.lstrip().startswith("{")
    ):
        return read_parsed(parse_json(source, path), path=path)
    path = str(source)
    return read_parsed(parse_json(read_bytes(source), path), path=path)


def read_parsed(document: object, *, path: str | None = None) -> VariantsMetadata:
    """Return the metadata of what `parse_json` returned, whatever its type is.

    `read_metadata` would take a document that is only a string for a path.

    :param path: the name to use in messages; it may name the project and the release.
    :raises InputError: the document is not valid.
    """
    release = parse_metadata_name(os.path.basename(path)) if path else None
    name, version = (release.name, release.version) if release else (None, None)
    try:
        return metadata_from_dict(document, name=name, version=version)
    except InputError as error:
        error.path = error.path or path
        raise


def metadata_from_dict(
    document: object, *, name: str | None = None, version: str | None = None
) -> VariantsMetadata:
    """Return the metadata of a parsed document.

    :param name: the project, if it is known.
    :param version: the release, if it is known.
    :raises InputError: the first defect of the document, with its place.
    """
    return read_document(document, Reporter(), name=name, version=version)
