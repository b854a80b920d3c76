"""The URLs of the real files in what pip has written: a report or a lock file.

pip records the URLs of the local index, which has ended by the time somebody reads
them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote, urlsplit

from .reports import label_of

__all__ = ["restore", "restore_file"]


def restore(
    text: str, here: str, find_original: Callable[[str], str | None]
) -> tuple[str, frozenset[tuple[str, str]]]:
    """Return the text with the URLs of the real files.

    The names of variant wheels, which the local index changes, become the real ones.

    :param here: what the URLs of the local index start with.
    :param find_original: returns the URL of the real file; ``None`` where it is not
        known, and then the text keeps the URL.
    :returns: the text, and the project and label of each variant wheel in it.
    """
    names: dict[str, str] = {}
    variants: set[tuple[str, str]] = set()

    def put_back(match: re.Match[str]) -> str:
        url = match[0]
        original = find_original(url)
        if original is None:
            return url
        label = label_of(url)
        if label is not None:
            variants.add((urlsplit(url).path.split("/")[-4], label))
            names[_file_name(url)] = _file_name(original)
        return original

    text = re.sub(rf"{re.escape(here)}/[^\s\"'#]*", put_back, text)
    for name, original in names.items():
        text = text.replace(f'"{name}"', f'"{original}"')
    return text, frozenset(variants)


def restore_file(
    path: Path, here: str, find_original: Callable[[str], str | None]
) -> frozenset[tuple[str, str]]:
    """Put the URLs of the real files into a file; return its variant wheels."""
    try:
        text = path.read_text(encoding="utf-8")
        restored, variants = restore(text, here, find_original)
        if restored != text:
            path.write_text(restored, encoding="utf-8")
    except (OSError, ValueError):
        return frozenset()
    return variants


def _file_name(url: str) -> str:
    return unquote(urlsplit(url).path.rpartition("/")[2])
