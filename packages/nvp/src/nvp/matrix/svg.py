"""The matrix as one SVG drawing that looks like the HTML page."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from .grid import Grid, architectures, branches, caption, meaning
from .html import legend_items, tile_classes
from .lanes import span
from .style import as_html, svg_css, tone_classes

__all__ = ["svg_drawing"]

_MARGIN = 24
_ROW = 46
_GAP = 4
_SMALL_LETTER = 6.3
"""The average width of a letter at 11 px in a proportional font."""

_LETTER = 8.0
"""The width of a letter at 13 px in a monospaced font."""


def svg_drawing(grid: Grid) -> list[str]:
    """Return the lines of the drawing, which are ASCII.

    SVG cannot wrap text or measure it, so sizes are computed from the number of
    letters.
    """
    rows, columns = grid.gpu_bands, grid.driver_bands
    cells = [caption(grid.at(column, row)) for row in rows for column in columns]
    texts = [*cells, *map(span, columns), *map(branches, columns)]
    column_width = max(84, round(max(map(len, texts)) * _LETTER) + 24)
    abouts = [architectures(row) for row in rows]
    first = max(96, round(max(map(len, abouts)) * _SMALL_LETTER) + 16)
    table = first + len(columns) * column_width
    title_width = round(len(grid.title) * 11.5)
    width = max(table, title_width, 460) + 2 * _MARGIN
    top = _MARGIN + 92
    legend, below = _legend(grid, top + len(rows) * _ROW + 30, width)
    notes, height = _notes(grid, below + 6, width)
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" aria-labelledby="title">',
        f'<title id="title">{as_html(grid.title)}: the build for each driver and '
        "GPU</title>",
        "<style>",
        *svg_css(),
        "</style>",
        f'<rect class="page" width="{width}" height="{height}"/>',
        f'<text class="head" x="{_MARGIN}" y="{_MARGIN + 18}">'
        f"{as_html(grid.title)}</text>",
        f'<text class="small" x="{_MARGIN}" y="{_MARGIN + 38}">CUDA version of the '
        "driver across, compute capability of the GPU down</text>",
        *_heads(grid, first, column_width, top),
        *_rows(grid, first, column_width, top),
        *legend,
        *notes,
        "</svg>",
    ]


def _heads(grid: Grid, first: int, column_width: int, top: int) -> Iterator[str]:
    for index, band in enumerate(grid.driver_bands):
        x = _MARGIN + first + index * column_width + (column_width - _GAP) / 2
        yield f'<text class="name mid" x="{x}" y="{top - 24}">{span(band)}</text>'
        yield f'<text class="small mid" x="{x}" y="{top - 9}">{branches(band)}</text>'


def _rows(grid: Grid, first: int, column_width: int, top: int) -> Iterator[str]:
    tones = tone_classes(grid.labels)
    for number, row in enumerate(grid.gpu_bands):
        y = top + number * _ROW
        yield f'<text class="name" x="{_MARGIN}" y="{y + 19}">{span(row)}</text>'
        about = as_html(architectures(row))
        yield f'<text class="small" x="{_MARGIN}" y="{y + 34}">{about}</text>'
        for index, column in enumerate(grid.driver_bands):
            cell = grid.at(column, row)
            title = f"CUDA {span(column)}, GPU {span(row)}: {meaning(cell)}"
            yield from _tile(
                caption(cell),
                tile_classes(cell, tones),
                title=title,
                box=(
                    _MARGIN + first + index * column_width,
                    y,
                    column_width - _GAP,
                    _ROW - _GAP,
                ),
            )


def _tile(
    text: str, classes: str, *, title: str, box: tuple[int, int, int, int]
) -> Iterator[str]:
    x, y, width, height = box
    yield '<g class="tile">'
    yield f"<title>{as_html(title)}</title>"
    yield (
        f'<rect class="{classes}" x="{x + 1}" y="{y + 1}" width="{width - 2}" '
        f'height="{height - 2}" rx="5"/>'
    )
    if "ptx" in classes.split():
        bar = f'x="{x + 5}" y="{y + 5}" width="3" height="{height - 10}"'
        yield f'<rect class="bar" {bar}/>'
    kind = f' class="{classes}"' if classes in ("cpu", "gone") else ""
    middle = f'x="{x + width / 2}" y="{y + height / 2 + 4.5}"'
    yield f"<text{kind} {middle}>{as_html(text)}</text>"
    yield "</g>"


def _legend(grid: Grid, top: int, width: int) -> tuple[list[str], int]:
    """Return the lines of the legend, and the y coordinate below it."""
    items = legend_items(grid)
    widest = max(len(sign) for sign, _, _ in items)
    key = min(width // 2, max(56, round(widest * _LETTER) + 20))
    lines: list[str] = []
    for sign, classes, words in items:
        box = (_MARGIN, top - 17, key, 25)
        lines += _tile(sign, classes, title=words, box=box)
        x = _MARGIN + key + 10
        wrapped = _wrapped(words, width - _MARGIN - x)
        lines += _small(wrapped, x, top)
        top += max(30, 15 * len(wrapped) + 10)
    return lines, top


def _notes(grid: Grid, top: int, width: int) -> tuple[list[str], int]:
    """Return the lines of the notes, and the height of the drawing with them."""
    lines: list[str] = []
    for note in grid.notes:
        wrapped = _wrapped(note, width - 2 * _MARGIN)
        lines += _small(wrapped, _MARGIN, top)
        top += 15 * len(wrapped) + 6
    return lines, top + _MARGIN - 15


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, max(20, round(width / _SMALL_LETTER)))


def _small(lines: list[str], x: int, top: int) -> Iterator[str]:
    for number, line in enumerate(lines):
        y = top + 15 * number
        yield f'<text class="small" x="{x}" y="{y}">{as_html(line)}</text>'
