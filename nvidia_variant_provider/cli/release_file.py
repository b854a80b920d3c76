"""The metadata that a verb is given as its FILE."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import InputError, UsageError, shown
from ..metadata import VariantsMetadata, read_metadata
from ..metadata.names import SUFFIX
from ..strict_json import read_stdin, unreadable

__all__ = ["read_release"]


def read_release(file: str) -> VariantsMetadata:
    """The metadata of a file, of a folder that holds one, or of ``-``: stdin.

    :raises InputError: it cannot be read, or is not valid.
    :raises UsageError: the folder holds several.
    """
    if file == "-":
        return read_metadata(read_stdin(), path="stdin")
    if not os.path.isdir(file):
        # A path, even when it starts as a JSON text does.
        return read_metadata(Path(file))
    try:
        names = sorted(name for name in os.listdir(file) if name.endswith(SUFFIX))
    except OSError as error:
        raise unreadable(error, file) from None
    if not names:
        message = f"the folder has no file *{SUFFIX}"
        raise InputError(message, path=file, hint="name the file itself")
    if len(names) > 1:
        found = ", ".join(shown(name) for name in names[:5])
        more = ", ..." if len(names) > 5 else ""
        message = f"the folder has {len(names)} files *{SUFFIX}: {found}{more}"
        raise UsageError(message, path=file, hint="name one of them")
    return read_metadata(Path(file, names[0]))
