"""Parsing the TOML of lock files, which consist mostly of lists of files.

`tomllib` takes two seconds for a lock file of 400 packages with all their wheels. Tools
write each file of a package on its own line, as an inline table of simple strings. Such
lists are read with regular expressions. `tomllib` reads all other text, including lists
with other lines, so the result is the same as with `tomllib` alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from nvidia_variant_provider import strict_toml
from nvidia_variant_provider.errors import InputError

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
