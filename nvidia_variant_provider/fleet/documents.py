"""What the machines of a fleet get, as Markdown, CSV and one HTML page."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from ..matrix.escaping import as_html, as_markdown
from ..matrix.style import page_css

__all__ = ["csv_lines", "html_lines", "markdown_lines"]

Rows = Sequence[Sequence[str]]

_TITLE = "Which build each machine gets"


def markdown_lines(
    header: Sequence[str], rows: Rows, notes: Sequence[str]
) -> list[str]:
    """Return the lines of a table in Markdown, with the summary below it."""
    table = [header, ["---"] * len(header), *(map(as_markdown, row) for row in rows)]
    lines = [f"| {' | '.join(row)} |" for row in table]
    return [f"# {_TITLE}", "", *lines, "", *(f"- {as_markdown(n)}" for n in notes)]


def csv_lines(header: Sequence[str], rows: Rows) -> list[str]:
    """Return the lines of a table in CSV."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    return text.getvalue().splitlines()


def html_lines(header: Sequence[str], rows: Rows, notes: Sequence[str]) -> list[str]:
    """Return the lines of a page in the style of `matrix`, without other files."""
    heads = "".join(f'<th scope="col">{as_html(cell)}</th>' for cell in header)
    return [
        "<!doctype html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f"<title>{_TITLE}</title>",
        "<style>",
        *page_css(),
        "</style>",
        "</head>",
        "<body>",
        "<main>",
        f"<h1>{_TITLE}</h1>",
        '<div class="scroll"><table class="whole">',
        f"<thead><tr>{heads}</tr></thead>",
        "<tbody>",
        *(
            f"<tr>{''.join(f'<td>{as_html(cell)}</td>' for cell in row)}</tr>"
            for row in rows
        ),
        "</tbody></table></div>",
        '<ul class="notes">',
        *(f"<li>{as_html(note)}</li>" for note in notes),
        "</ul>",
        "</main>",
        "</body>",
        "</html>",
    ]
