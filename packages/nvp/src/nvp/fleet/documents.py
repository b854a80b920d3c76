"""What the machines of a fleet get, as Markdown and CSV; `page` has the HTML."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from ..matrix.escaping import as_markdown

__all__ = ["TITLE", "csv_lines", "markdown_lines"]

Rows = Sequence[Sequence[str]]

TITLE = "Which build each machine gets"


def markdown_lines(
    header: Sequence[str], rows: Rows, notes: Sequence[str]
) -> list[str]:
    """Return the lines of a table in Markdown, with the summary below it."""
    table = [header, ["---"] * len(header), *(map(as_markdown, row) for row in rows)]
    lines = [f"| {' | '.join(row)} |" for row in table]
    return [f"# {TITLE}", "", *lines, "", *(f"- {as_markdown(n)}" for n in notes)]


def csv_lines(header: Sequence[str], rows: Rows) -> list[str]:
    """Return the lines of a table in CSV."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    return text.getvalue().splitlines()
