"""References in the pages of indexes, and the URLs and names that they stand for."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any
from urllib.parse import urljoin, urlsplit

__all__ = ["absolute_url", "is_file_name", "is_text"]

# Most URLs match this, and need no parsing: their port, for example, cannot be wrong.
_PLAIN_URL = re.compile(r"https?://[A-Za-z0-9.-]+/[!$-;=?-~]*")
# A file, possibly in another folder: only the folder has to be resolved, and once.
_PLAIN_PATH = re.compile(r"((?:[A-Za-z0-9._~/%+-]*/)?)([A-Za-z0-9_][A-Za-z0-9._~%+-]*)")

_LONGEST_NAME = 255
"""Characters of a file name: the limit of the usual file systems."""


def absolute_url(reference: Any, base: str) -> str | None:
    """Return the absolute URL of a link; ``None`` if it is not a URL."""
    if not isinstance(reference, str):
        return None
    if _PLAIN_URL.fullmatch(reference):
        return reference
    if match := _PLAIN_PATH.fullmatch(reference):
        folder = _folder(match[1] or "./", base)
        return None if folder is None else folder + match[2]
    return _join(reference, base)


@lru_cache(maxsize=1024)
def _folder(reference: str, base: str) -> str | None:
    return _join(reference, base)


def _join(reference: str, base: str) -> str | None:
    try:
        url = urljoin(base, reference.strip())
        parts = urlsplit(url)
        valid = parts.port is None or parts.port >= 0
    except ValueError:
        return None
    return url if valid and parts.scheme and is_text(url) else None


def is_text(value: Any) -> bool:
    """Return whether a value is text without lone surrogates, which JSON may have."""
    if not isinstance(value, str):
        return False
    try:
        return value.isascii() or bool(value.encode())
    except UnicodeEncodeError:
        return False


def is_file_name(name: str) -> bool:
    """Return whether a file system could have a file of that name.

    A version in a longer name may have more digits than Python converts.
    """
    return len(name) <= _LONGEST_NAME and is_text(name)
