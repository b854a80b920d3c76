"""Printing: text for people, or the JSON report.

On a terminal, sentences are wrapped at words and rich draws the tables if it is
installed. Piped output is plain and has one line for each sentence and each row, so
that it stays the same for scripts, whatever the width of the window.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterable, Sequence

from nvidia_variant_provider.errors import printable

from .result import Result, Table
from .wrapping import column_widths, terminal_width, wrap_cell, wrap_line

__all__ = ["SCHEMA_VERSION", "complain", "render", "say"]

SCHEMA_VERSION = 1
"""The version of the JSON report, which ``schemas/report.schema.json`` describes."""

_GAP = 2
"""Columns between two cells of a table."""


def render(result: Result, *, command: str | None, as_json: bool) -> None:
    """Print ``result`` to stdout; its notes, and its errors as text, to stderr."""
    for note in result.notes:
        complain(f"warning: {note}")
    if as_json or result.as_json:
        report = {
            "schema_version": SCHEMA_VERSION,
            "command": command,
            "status": result.status,
            "data": result.data,
            "errors": [error.to_dict() for error in result.errors],
        }
        print(json.dumps(report, indent=2), flush=True)
        return
    width = terminal_width(sys.stdout)
    for block in result.text:
        if isinstance(block, Table):
            _print_table(block, width)
        else:
            wrapped = None if result.verbatim else width
            print("\n".join(_lines(printable(block), wrapped)))
    sys.stdout.flush()
    for line in result.asides:
        complain(line, wraps=False)
    if result.data is None:
        for error in result.errors:
            complain(f"error: {error}")


def say(lines: Iterable[str], *, aside: bool = False) -> None:
    """Print lines while a verb is still at work.

    The lines are written in one piece, so that the output of another program does
    not come between them.

    :param aside: print to stderr, because stdout is for a document.
    """
    stream = sys.stderr if aside else sys.stdout
    width = terminal_width(stream)
    printed = [part for line in lines for part in _lines(printable(line), width)]
    text = "".join(f"{line}\n" for line in printed)
    with contextlib.suppress(OSError):
        stream.write(text)
        stream.flush()


def complain(sentence: str, *, wraps: bool = True) -> None:
    """Print a sentence to stderr.

    Nothing happens where stderr cannot be written, since the exit code says the rest.

    :param wraps: whether the sentence is wrapped on a terminal.
    """
    width = terminal_width(sys.stderr) if wraps else None
    with contextlib.suppress(OSError):
        lines = _lines(printable(sentence), width)
        print("\n".join(lines), file=sys.stderr, flush=True)


def _lines(line: str, width: int | None) -> list[str]:
    return [line] if width is None else wrap_line(line, width)


def _print_table(table: Table, width: int | None) -> None:
    """Print a table, or its rows one below the other where it does not fit."""
    rows = [[printable(cell) for cell in row] for row in (table.header, *table.rows)]
    if width is None:
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            print(_aligned(row, widths))
        return
    fitting = column_widths(rows, width, gap=_GAP)
    if fitting is None:
        _print_stacked(rows, width)
    elif not _print_drawn(rows, fitting):
        for row in rows:
            _print_row(row, fitting)


def _print_drawn(rows: Sequence[Sequence[str]], widths: Sequence[int]) -> bool:
    """Print a table as rich draws it; ``False`` where rich is not installed."""
    try:
        from rich.box import SIMPLE_HEAD
        from rich.console import Console
        from rich.table import Table as RichTable
        from rich.text import Text
    except ImportError:
        return False
    drawn = RichTable(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=0)
    header, *others = rows
    for index, width in enumerate(widths):
        # The box itself draws one column between two cells.
        gap = _GAP - 1 if index < len(widths) - 1 else 0
        title = "\n".join(wrap_cell(header[index], width))
        drawn.add_column(Text(title), width=width + gap, overflow="fold")
    for row in others:
        # Plain strings would be read as markup, such as [bold].
        cells = zip(row, widths, strict=True)
        drawn.add_row(*(Text("\n".join(wrap_cell(*cell))) for cell in cells))
    # rich itself honours NO_COLOR.
    Console().print(drawn)
    return True


def _print_row(row: Sequence[str], widths: Sequence[int]) -> None:
    cells = [wrap_cell(cell, width) for cell, width in zip(row, widths, strict=True)]
    for number in range(max(map(len, cells))):
        line = [cell[number] if number < len(cell) else "" for cell in cells]
        print(_aligned(line, widths))


def _print_stacked(rows: Sequence[Sequence[str]], width: int) -> None:
    """Print each cell on a line of its own, after the title of its column."""
    header, *others = rows
    for row in others:
        for title, cell in zip(header, row, strict=True):
            if cell:
                line = f"{title}: {cell}" if title else f"  {cell}"
                print("\n".join(wrap_line(line, width)))
        print()


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
    return (" " * _GAP).join(cells).rstrip()
