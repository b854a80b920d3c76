"""Helpers for the readers of pins: lock files in TOML, typed values, and lines.

`tomllib` takes two seconds for a lock file of 400 packages with all their wheels. Tools
write each file of a package on its own line, as an inline table of simple strings. Such
lists are read with regular expressions. `tomllib` reads all other text, including lists
with other lines, so the result is the same as with `tomllib` alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from nvidia_variant_provider import strict_toml
from nvidia_variant_provider.errors import InputError, join, shown
from nvidia_variant_provider.strict_json import as_list, as_object, as_string

from .model import Pin, PinnedWheel

if TYPE_CHECKING:
    from packaging.version import Version

AGAIN = "make the lock file again"

_TEXT = r'"[^"\\\x00-\x08\x0a-\x1f\x7f]*"'
_SIMPLE = rf"[A-Za-z0-9_-]+ = (?:{_TEXT}|0|[1-9][0-9]{{0,15}})"
_FLAT = rf"\{{ ?{_SIMPLE}(?:, {_SIMPLE})* ?\}}"
_PAIR = rf"[A-Za-z0-9_-]+ = (?:{_TEXT}|0|[1-9][0-9]{{0,15}}|{_FLAT})"
_LINE = rf"[ \t]+\{{ ?{_PAIR}(?:, {_PAIR})* ?\}},?"
_HEAD = re.compile(r"^([A-Za-z0-9_-]+) = \[\n", re.MULTILINE)
# Match one line at a time: a repeated group takes 60 bytes for each character.
_ROW = re.compile(rf"{_LINE}\n")
_END = re.compile(r"\]$", re.MULTILINE)
_ITEM = re.compile(rf"([A-Za-z0-9_-]+) = (?:({_TEXT})|([0-9]+)|({_FLAT}))(?:, | ?\}})")

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


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML.

    :raises InputError: the text is not TOML, or would need too much memory.
    """
    lists: dict[str, list[dict[str, Any]]] = {}
    # Do not replace a list if it may be part of a multi-line string.
    plain = '"""' in text or "'''" in text
    rest = text if plain else "".join(_set_aside(text, lists))
    try:
        document = strict_toml.parse_toml(rest)
    except InputError as error:
        raise InputError(error.message, hint=AGAIN) from None
    if lists:
        _put_back(document, lists)
    return document


def _set_aside(text: str, lists: dict[str, list[dict[str, Any]]]) -> Iterator[str]:
    """Yield a text in pieces, with a placeholder instead of each list of files.

    :param lists: receives the lists, keyed by placeholder.
    """
    # The text must not contain the placeholders of lists, also not with escapes.
    mark = os.urandom(16).hex()
    written = 0
    for head in _HEAD.finditer(text):
        at, rows = head.end(), list[str]()
        while row := _ROW.match(text, at):
            rows.append(row[0].rstrip("\n"))
            at = row.end()
        end = _END.match(text, at)
        # A comma is missing, or a key occurs twice: tomllib reports this.
        if not rows or not end or not all(x.endswith(",") for x in rows[:-1]):
            continue
        items = [_read_table(row) for row in rows]
        found = [item for item in items if item is not None]
        if len(found) < len(items):
            continue
        lists[placeholder := f"{mark}{len(lists)}"] = found
        yield text[written : head.start()]
        yield f'{head[1]} = "{placeholder}"'
        written = end.end()
    yield text[written:]


def _read_table(text: str) -> dict[str, Any] | None:
    """Read an inline table; ``None`` if a key occurs twice."""
    table: dict[str, Any] = {}
    count = 0
    for key, string, number, inner in _ITEM.findall(text, text.index("{") + 1):
        count += 1
        if string:
            table[key] = string[1:-1]
        else:
            table[key] = int(number) if number else _read_table(inner)
    return table if len(table) == count and None not in table.values() else None


def _put_back(
    document: dict[str, Any], lists: Mapping[str, list[dict[str, Any]]]
) -> None:
    waiting: list[Any] = [document]
    while waiting:
        item = waiting.pop()
        pairs = item.items() if isinstance(item, dict) else enumerate(item)
        for key, value in [*pairs]:
            if isinstance(value, (dict, list)):
                waiting.append(value)
            elif isinstance(value, str) and value in lists:
                item[key] = lists[value]
