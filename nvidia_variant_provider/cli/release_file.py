"""The release that a verb gets as its FILE."""

from __future__ import annotations

import os

from ..errors import InputError, UsageError, shown
from ..metadata import VariantsMetadata, read_metadata
from ..metadata.names import SUFFIX
from ..strict_json import read_bytes, read_stdin, unreadable

__all__ = ["read_release"]


def read_release(file: str) -> VariantsMetadata:
    """Read the metadata of a release.

    :param file: a metadata file, a folder that holds exactly one, or ``-`` for stdin.
    :raises InputError: the metadata cannot be read, or is not valid.
    :raises UsageError: the folder holds several metadata files.
    """
    if file == "-":
        return read_metadata(read_stdin(), path="stdin")
    if not os.path.isdir(file):
        return _read_file(file)
    try:
        names = sorted(name for name in os.listdir(file) if name.endswith(SUFFIX))
    except OSError as error:
        raise unreadable(error, file) from None
    if not names:
        message = f"the folder has no file *{SUFFIX}"
        raise InputError(message, path=file, hint="name the file itself")
    if len(names) > 1:
        listed = ", ".join(shown(name) for name in names[:5])
        more = ", ..." if len(names) > 5 else ""
        message = f"the folder has {len(names)} files *{SUFFIX}: {listed}{more}"
        raise UsageError(message, path=file, hint="name one of the files")
    return _read_file(os.path.join(file, names[0]))


def _read_file(path: str) -> VariantsMetadata:
    # read_metadata() takes a path that starts with "{" for a JSON text.
    return read_metadata(read_bytes(path), path=path)
