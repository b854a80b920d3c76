"""Printing: text for people, or the JSON report.

Tables are drawn by rich when it is installed and the output is a terminal;
piped output is plain, so that it stays the same for scripts.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterable, Sequence

from ..errors import printable
from .result import Result, Table

__all__ = ["SCHEMA_VERSION", "complain", "render", "say"]

SCHEMA_VERSION = 1
"""Of the JSON report, `schemas/report.schema.json`."""


def render(result: Result, *, command: str | None, as_json: bool) -> None:
    """Print ``result`` to stdout; its notes, and its errors as text, to stderr."""
    for note in result.notes:
        complain(f"warning: {printable(note)}")
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
    for block in result.text:
        if isinstance(block, Table):
            _print_table(block)
        else:
            print(printable(block))
    sys.stdout.flush()
    if result.data is None:
        for error in result.errors:
            complain(f"error: {printable(str(error))}")


def say(lines: Iterable[str], *, aside: bool = False) -> None:
    """Print lines while a verb is still at work; in one piece, among others' output.

    :param aside: to stderr, where stdout is for a document.
    """
    text = "".join(f"{printable(line)}\n" for line in lines)
    stream = sys.stderr if aside else sys.stdout
    with contextlib.suppress(OSError):
        stream.write(text)
        stream.flush()


def complain(line: str) -> None:
    """Print a line to stderr, if that takes it; the exit code says the rest."""
    with contextlib.suppress(OSError):
        print(line, file=sys.stderr, flush=True)


def _print_table(table: Table) -> None:
    if sys.stdout.isatty():
        try:
            from rich.box import SIMPLE_HEAD
            from rich.console import Console
            from rich.table import Table as RichTable
            from rich.text import Text
        except ImportError:
            pass
        else:
            drawn = RichTable(box=SIMPLE_HEAD, pad_edge=False)
            for title in table.header:
                # On a narrow terminal a number goes on below: cut it is another one.
                drawn.add_column(title, overflow="fold")
            for row in table.rows:
                # Plain strings would be read as markup: [bold] and the like.
                drawn.add_row(*(Text(printable(cell)) for cell in row))
            # rich itself honours NO_COLOR and the terminal's width.
            Console().print(drawn)
            return
    rows = [[printable(cell) for cell in row] for row in (table.header, *table.rows)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print(_aligned(row, widths))


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
    return "  ".join(cells).rstrip()
