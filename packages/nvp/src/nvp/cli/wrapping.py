"""Lines and tables that fit a terminal.

Output that is piped has one line for each sentence, so that ``grep`` and scripts
find it whole; only a terminal gets wrapped lines. A number is never cut in two,
because each part of a cut version reads as another version.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import IO

__all__ = ["column_widths", "terminal_width", "wrap_cell", "wrap_line"]

DEFAULT = 80
"""The columns of a terminal that does not say how wide it is."""

NARROWEST = 20
"""Columns below which lines are left to the terminal, which cuts them anywhere."""

_LONG = 24
"""Letters of a word beyond which a table may break it after punctuation."""

# These are not compiled here, since only tables on a terminal need them.
_WORD = r"\S+\s*"
_PART = r"[^/\\_,;:=-]*[/\\_,;:=-]*"


def terminal_width(stream: IO[str]) -> int | None:
    """Return the columns of a terminal, or ``None`` where ``stream`` is not one."""
    try:
        if not stream.isatty():
            return None
    except ValueError:  # it was closed
        return None
    try:
        # shutil.get_terminal_size would ask stdout, which may be a pipe.
        columns = int(os.environ.get("COLUMNS") or 0) or _columns_of(stream)
    except ValueError:
        columns = _columns_of(stream)
    return columns if columns >= NARROWEST else None


def _columns_of(stream: IO[str]) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        return DEFAULT


def wrap_line(line: str, width: int, *, hang: str = "  ") -> list[str]:
    """Break a line at its spaces.

    A word that is longer than the line, such as a path, is left whole. So is the
    frame of ``#`` around the properties of a build, which is 80 columns wide.

    :param hang: what all lines but the first begin with, after the line's own indent.
    """
    if len(line) <= width or line.startswith("####"):
        return [line]
    import textwrap

    indent = line[: len(line) - len(line.lstrip())]
    return textwrap.wrap(
        line,
        width,
        subsequent_indent=f"{indent}{hang}",
        break_long_words=False,
        break_on_hyphens=False,
        drop_whitespace=True,
    ) or [line]


def column_widths(
    rows: Sequence[Sequence[str]], width: int, *, gap: int
) -> list[int] | None:
    """Return the widths of a table's columns, or ``None`` where they do not fit.

    The widest columns give way first, but none becomes narrower than its longest
    word.

    :param rows: the cells, those of the header as well.
    :param gap: the columns between two cells.
    """
    columns = list(zip(*rows, strict=True))
    widths = [max(map(len, cells)) for cells in columns]
    least = [max(map(_longest_part, cells)) for cells in columns]
    room = width - gap * (len(columns) - 1)
    if sum(least) > room:
        return None
    while sum(widths) > room:
        spare = [have - need for have, need in zip(widths, least, strict=True)]
        widest = max(
            (index for index, free in enumerate(spare) if free),
            key=lambda index: widths[index],
        )
        widths[widest] -= 1
    return widths


def wrap_cell(text: str, width: int) -> list[str]:
    """Break a cell at spaces, and long words such as paths after punctuation."""
    lines = [""]
    for word in re.findall(_WORD, text):
        for part in _parts(word) if len(word.rstrip()) > width else [word]:
            if lines[-1] and len(lines[-1]) + len(part.rstrip()) > width:
                lines.append("")
            lines[-1] += part
    return [line.rstrip() for line in lines]


def _longest_part(text: str) -> int:
    words = [word.rstrip() for word in re.findall(_WORD, text)]
    return max(
        (
            max(map(len, _parts(word))) if len(word) > _LONG else len(word)
            for word in words
        ),
        default=0,
    )


def _parts(word: str) -> list[str]:
    return [part for part in re.findall(_PART, word) if part]
