"""Files of the user's cache: what was read once, such as METADATA of a wheel.

A cache that cannot be read or written is not an error: what it would hold is read
again.
"""

from __future__ import annotations

import contextlib
import os
import tempfile

__all__ = ["load", "store"]


def load(path: str | os.PathLike[str] | None, longest: int) -> bytes | None:
    """Return a file of the cache; ``None`` if it is missing or too long."""
    if path is None:
        return None
    try:
        with open(path, "rb") as file:
            content = file.read(longest + 1)
    except OSError:
        return None
    return content if len(content) <= longest else None


def store(path: str | os.PathLike[str] | None, content: bytes) -> None:
    """Write a file of the cache, completely or not at all."""
    if path is None:
        return
    folder = os.path.dirname(path)
    with contextlib.suppress(OSError):
        os.makedirs(folder, mode=0o700, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=folder)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            os.replace(name, path)
        except OSError:
            os.unlink(name)
            raise
