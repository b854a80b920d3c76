"""What is read of installed files, kept until one of them changes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Iterable
from typing import Any

from .. import __version__
from .distributions import Distribution, RecordedFile

__all__ = ["kept_path", "read_kept", "write_kept"]

logger = logging.getLogger(__name__)

_LONGEST = 16 * 1024 * 1024
"""The most bytes that are kept of one distribution. The report of 10,560 loose cubins
has 6 MB."""


def kept_path(
    folder: str | None,
    kind: str,
    distribution: Distribution,
    files: Iterable[RecordedFile],
) -> str | None:
    """Return where what was read of exactly these files is kept.

    RECORD has the hash of each file. A file that was changed after it had been
    installed has another size or another time.

    :param folder: ``None`` keeps nothing.
    :param kind: what was read.
    :returns: ``None`` where nothing is kept, or a file is missing.
    """
    if folder is None:
        return None
    state = hashlib.sha256(f"{__version__}\n{kind}\n{distribution.name}\n".encode())
    state.update(distribution.metadata)
    for item in files:
        try:
            status = os.stat(distribution.locate(item.path))
        except (OSError, ValueError):
            return None
        line = f"{item.path}\0{item.digest}\0{status.st_size}\0{status.st_mtime_ns}"
        state.update(f"{line}\n".encode("utf-8", "surrogateescape"))
    return os.path.join(folder, f"{state.hexdigest()}.json")


def read_kept(path: str | None) -> Any:
    """Read what is kept; ``None`` where there is nothing that can be used."""
    if path is None:
        return None
    try:
        with open(path, "rb") as file:
            return json.loads(file.read(_LONGEST + 1))
    except OSError:
        return None
    except ValueError as error:
        # A full disk may have cut it.
        logger.info("%s cannot be used: %r", path, error)
        return None


def write_kept(path: str | None, document: object) -> None:
    """Keep a document; a cache that cannot be written is not an error."""
    if path is None:
        return
    text = json.dumps(document, separators=(",", ":")).encode()
    folder = os.path.dirname(path)
    with contextlib.suppress(OSError):
        os.makedirs(folder, mode=0o700, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=folder)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(text)
            os.replace(name, path)
        except OSError:
            os.unlink(name)
            raise
