"""Helpers for the readers of pins: typed values, and the lines of packages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from nvidia_variant_provider.errors import InputError, join, shown
from nvidia_variant_provider.strict_json import as_list, as_object, as_string

from .model import Pin, PinnedWheel
from .toml_text import AGAIN

if TYPE_CHECKING:
    from packaging.version import Version

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,198}[A-Za-z0-9])?")
_SHA256 = re.compile("[0-9a-f]{64}")
_LONG_NUMBER = re.compile("[0-9]{20}")


def read_name(table: Mapping[str, Any], place: str) -> str:
    """Return the normalized name of a package.

    :raises InputError: the name is missing or invalid.
    """
    name = text_at(table, "name", place)
    return check_name(as_string(name, join(place, "name")), place)


def check_name(name: str, place: str) -> str:
    """Return the normalized form of a project name.

    :raises InputError: the text is not a valid project name.
    """
    if not name.isascii() or not _NAME.fullmatch(name):
        raise InputError(f"{shown(name)} is not the name of a project", place=place)
    return normalized(name)


@lru_cache(maxsize=4096)
def normalized(name: str) -> str:
    """Return the normalized form of a name."""
    return re.sub("[-_.]+", "-", name).lower()


@lru_cache(maxsize=4096)
def version_of(text: str) -> Version | None:
    """Parse a version; ``None`` if the text is not a version."""
    from packaging.version import Version

    if len(text) > 200 or _LONG_NUMBER.search(text):
        return None
    try:
        return Version(text)
    except ValueError:
        return None


def text_at(table: Mapping[str, Any], key: str, place: str) -> str | None:
    """Return a string in a table; ``None`` if it is missing.

    :raises InputError: the value has another type.
    """
    value = table.get(key)
    if value is None or isinstance(value, str):
        return value
    return as_string(value, join(place, key))


def tables_at(
    table: Mapping[str, Any], key: str, place: str = ""
) -> Iterable[tuple[str, Mapping[str, Any]]]:
    """Yield the place and the content of each table in a list.

    :raises InputError: the value is not a list of tables.
    """
    if key not in table:
        return
    here = join(place, key)
    for number, item in enumerate(as_list(table[key], here)):
        where = f"{here}[{number}]"
        yield where, as_object(item, where)


def lists_at(
    table: Mapping[str, Any], key: str, place: str = ""
) -> Iterable[tuple[str, str, list[Any]]]:
    """Yield the name, the place and the items of each list in a table.

    :raises InputError: the value is not a table of lists.
    """
    if key not in table:
        return
    here = join(place, key)
    for name, items in as_object(table[key], here).items():
        where = join(here, name)
        yield name, where, as_list(items, where)


def read_wheel(table: Mapping[str, Any], place: str, *keys: str) -> PinnedWheel | None:
    """Return the wheel that a table describes; ``None`` for other files.

    :param keys: the keys for the name, URL or path of the file, best first.
    :raises InputError: a value has the wrong type.
    """
    texts = [text for key in keys if (text := text_at(table, key, place)) is not None]
    if not texts:
        raise InputError("there is neither a name nor a URL", place=place, hint=AGAIN)
    name = file_name(texts[0])
    if not name.endswith(".whl"):
        return None
    hashes = table.get("hashes")
    given = text_at(table, "hash", place) or ""
    if isinstance(hashes, dict):
        given = f"sha256:{hashes.get('sha256')}"
    size = table.get("size")
    return PinnedWheel(
        filename=name,
        url=next((text for text in texts if "/" in text), None),
        sha256=next(iter(sha256_of([given])), None),
        size=size if isinstance(size, int) and not isinstance(size, bool) else None,
    )


def sha256_of(hashes: Iterable[object]) -> frozenset[str]:
    """Return the SHA-256 hashes among strings such as ``sha256:3f1c...``."""
    found = set()
    for item in hashes:
        kind, _, digest = str(item).replace("=", ":", 1).partition(":")
        if kind == "sha256" and _SHA256.fullmatch(digest := digest.lower()):
            found.add(digest)
    return frozenset(found)


def file_name(url: str) -> str:
    """Return the file name in a URL or path."""
    path = url.partition("#")[0].partition("?")[0] if "://" in url else url
    name = re.split(r"[/\\]", path)[-1] if "\\" in path else path.rpartition("/")[2]
    return unquote(name) if "%" in name else name


def origin_of(source: Mapping[str, Any], place: str, *keys: str) -> str | None:
    """Return the origin of a package: the first value that ``source`` has for ``keys``.

    :raises InputError: a value is not a string.
    """
    texts = (text_at(source, key, place) for key in keys)
    return next((text for text in texts if text is not None), None)


def find_lines(text: str, header: str, count: int) -> Sequence[int | None]:
    """Return the line number of each ``[[header]]`` table of a file.

    The line is that of the key ``name`` if it comes first, or else that of the header.

    :param count: the number of tables. If the number of headers differs, for example
        because a multi-line string contains one, every line number is ``None``.
    """
    pattern = rf"^[ \t]*\[\[[ \t]*{header}[ \t]*\]\](?:[^\n]*\n(?=[ \t]*name\b))?"
    ends = [match.end() for match in re.finditer(pattern, text, re.MULTILINE)]
    if len(ends) != count:
        return [None] * count
    lines, line, at = [], 1, 0
    for end in ends:
        line += text.count("\n", at, end)
        at = end
        lines.append(line)
    return lines


def by_name(names: Iterable[str]) -> dict[str, list[int]]:
    """Return the positions of each name."""
    numbers: dict[str, list[int]] = {}
    for number, name in enumerate(names):
        numbers.setdefault(name, []).append(number)
    return numbers


def unversioned(pins: Iterable[Pin]) -> list[str]:
    """Return a note for each unreadable version of a package from an index."""
    return [
        f"{pin.name}: its version cannot be read"
        for pin in pins
        if pin.version is None and not pin.is_project and pin.origin is None
    ]
