"""Parsing the TOML of lock files, which consist mostly of lists of files.

`tomllib` takes two seconds for a lock file of 400 packages with all their wheels. Tools
write each file of a package on its own line, as an inline table of simple strings. Such
lists are read with regular expressions. `tomllib` reads all other text, including lists
with other lines, so the result is the same as with `tomllib` alone.
"""

from __future__ import annotations

import re
import sys
from typing import Any

from nvidia_variant_provider.errors import InputError, shown

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

AGAIN = "make the lock file again"

_MOST_SIGNS = 500_000
"""The maximum number of characters that begin a value, outside the lists of files: each
value costs memory and time. A lock file of 200 packages has 30,000 of them."""

_DEEPEST = 50
"""The maximum number of parts of a dotted key: `tomllib` needs quadratic time."""

_LONGEST = 4000
"""The maximum number of digits in a number. Python reads longer numbers only in
hexadecimal form, and cannot print them. `tomllib` takes 150 bytes per digit."""

_DIGITS = re.compile("[0-9A-Fa-f_]+")
_PART = r"""(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')"""
_DOTTED = re.compile(rf"{_PART}(?:[ \t]*\.[ \t]*{_PART})*")
_TEXT = r'"[^"\\\x00-\x08\x0a-\x1f\x7f]*"'
_SIMPLE = rf"[A-Za-z0-9_-]+ = (?:{_TEXT}|0|[1-9][0-9]{{0,15}})"
_FLAT = rf"\{{ ?{_SIMPLE}(?:, {_SIMPLE})* ?\}}"
_PAIR = rf"[A-Za-z0-9_-]+ = (?:{_TEXT}|0|[1-9][0-9]{{0,15}}|{_FLAT})"
_LINE = rf"[ \t]+\{{ ?{_PAIR}(?:, {_PAIR})* ?\}},?"
_LIST = re.compile(rf"^([A-Za-z0-9_-]+) = \[\n((?:{_LINE}\n)+)\]$", re.MULTILINE)
_ITEM = re.compile(rf"([A-Za-z0-9_-]+) = (?:({_TEXT})|([0-9]+)|({_FLAT}))(?:, | ?\}})")
_MARK = "\x7fset aside\x7f"
"""The beginning of the placeholder for a list; the number of the list follows. Only
`tomllib` reads texts that already contain it."""


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML.

    :raises InputError: the text is not TOML, or would need too much memory.
    """
    lists: list[list[dict[str, Any]]] = []

    def set_aside(match: re.Match[str]) -> str:
        lines = match[2].split("\n")[:-1]
        items = [_read_table(line) for line in lines]
        found = [item for item in items if item is not None]
        # A comma is missing, or a key occurs twice: tomllib reports this.
        if len(found) < len(items) or not all(x.endswith(",") for x in lines[:-1]):
            return match[0]
        lists.append(found)
        return f'{match[1]} = "\\u007fset aside\\u007f{len(lists) - 1}"'

    # Do not replace a list if it may be part of a multi-line string.
    plain = '"""' in text or "'''" in text or "set aside" in text
    rest = text if plain else _LIST.sub(set_aside, text)
    check_toml(rest)
    try:
        document: dict[str, Any] = tomllib.loads(rest)
    except (ValueError, RecursionError) as error:
        deep = isinstance(error, RecursionError)
        reason = "nested too deeply" if deep else (str(error).splitlines() or [""])[0]
        raise InputError(f"not TOML: {shown(reason, 120)}", hint=AGAIN) from None
    if lists:
        _put_back(document, lists)
    return document


def check_toml(text: str) -> None:
    """Refuse a text for which `tomllib` would need too much memory or time.

    :raises InputError: the text is refused.
    """
    if sum(map(text.count, "{[,=.")) > _MOST_SIGNS:
        raise InputError("has too many values", hint=AGAIN)
    if _has_deep_keys(text):
        raise InputError("has keys of too many parts", hint=AGAIN)
    if _has_long_numbers(text):
        raise InputError(f"has a number of more than {_LONGEST} digits", hint=AGAIN)


def _has_deep_keys(text: str) -> bool:
    lines = (line for line in text.splitlines() if line.count(".") > _DEEPEST)
    keys = (match[0] for line in lines for match in _DOTTED.finditer(line))
    return any(len(re.findall(_PART, key)) > _DEEPEST for key in keys)


def _has_long_numbers(text: str) -> bool:
    lines = (line for line in text.splitlines() if len(line) > _LONGEST)
    numbers = (match[0] for line in lines for match in _DIGITS.finditer(line))
    return any(len(number) > _LONGEST for number in numbers)


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


def _put_back(document: dict[str, Any], lists: list[list[dict[str, Any]]]) -> None:
    waiting: list[Any] = [document]
    while waiting:
        item = waiting.pop()
        pairs = item.items() if isinstance(item, dict) else enumerate(item)
        for key, value in [*pairs]:
            if isinstance(value, (dict, list)):
                waiting.append(value)
            elif isinstance(value, str) and value.startswith(_MARK):
                item[key] = lists[int(value[len(_MARK) :])]
