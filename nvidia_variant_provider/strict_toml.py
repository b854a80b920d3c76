"""Parse TOML, and refuse texts that would need too much memory or time.

`tomllib` has no limits: a key of 20,000 parts has 40 kB, but takes 1.6 GB of memory.
"""

from __future__ import annotations

import re
import sys
from typing import Any

from .errors import InputError, printable

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_MOST_SIGNS = 500_000
"""The maximum number of characters that begin a value: each value costs memory and
time. A lock file of 200 packages has 30,000 outside its lists of files."""

_DEEPEST = 50
"""The maximum number of parts of a dotted key, which takes `tomllib` quadratic time."""

_LONGEST = 3500
"""The maximum length of a number in digits. Python cannot print a number of more than
4,300 decimal or 3,571 hexadecimal digits. `tomllib` takes 150 bytes for each digit."""

_HALF = 60
"""The number of characters of each end of a long reason, which may quote a key."""

_DIGITS = re.compile("[0-9A-Fa-f_]+")
_DOTTED = re.compile(r"[A-Za-z0-9_-]+(?:[ \t]*\.[ \t]*[A-Za-z0-9_-]+)*")
_STRING = re.compile(
    r"""#.*|(["'])(?:\1\1[\s\S]*?(?:\1{3,5}|\Z)|.*?(?:\1|$))""", re.MULTILINE
)
"""Matches comments, and strings without escapes. `tomllib` reads nothing after a string
that is not closed."""


def parse_toml(text: str | bytes) -> dict[str, Any]:
    """Parse TOML.

    :raises InputError: the text is not TOML, or would need too much memory or time. The
        message ends with the position of a syntax error: ``(at line 1, column 5)`` or
        ``(at end of document)``.
    """
    try:
        return _parse(text if isinstance(text, str) else text.decode())
    except RecursionError:
        reason = "nested too deeply"
    except InputError:
        raise
    except ValueError as error:
        reason = printable(str(error))
    if len(reason) > 2 * _HALF:
        reason = f"{reason[:_HALF]}...{reason[-_HALF:]}"
    raise InputError(f"not TOML: {reason}")


def _parse(text: str) -> dict[str, Any]:
    if sum(map(text.count, "{[,=.")) > _MOST_SIGNS:
        raise InputError("has too many values")
    # A string may be a part of a key, and may contain anything, such as quotes.
    bare = text.replace("\\\\", "_").replace('\\"', "_")
    for line in _STRING.sub("s", bare).split("\n"):
        if line.count(".") > _DEEPEST and _longest(_DOTTED, line, ".") > _DEEPEST:
            raise InputError("has keys of too many parts")
        if len(line) > _LONGEST and _longest(_DIGITS, line, "") > _LONGEST:
            raise InputError(f"has a number of more than {_LONGEST} digits")
    document: dict[str, Any] = tomllib.loads(text)
    return document


def _longest(pattern: re.Pattern[str], line: str, sign: str) -> int:
    """Return the highest number of ``sign`` in a match; "" counts the characters."""
    return max((match[0].count(sign) for match in pattern.finditer(line)), default=0)
