"""What is read of installed files, kept until one of them changes."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterable
from typing import Any

from .. import __version__
from ..kept_files import load, store
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
    content = load(path, _LONGEST)
    if content is None:
        return None
    try:
        return json.loads(content)
    except ValueError as error:
        # A full disk may have cut it.
        logger.info("%s cannot be used: %r", path, error)
        return None


def write_kept(path: str | None, document: object) -> None:
    """Keep a document; a cache that cannot be written is not an error."""
    # The report of 10,560 cubins takes long to write as JSON, so look first.
    if path is None:
        return
    store(path, json.dumps(document, separators=(",", ":")).encode())
