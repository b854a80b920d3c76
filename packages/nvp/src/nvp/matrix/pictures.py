"""The matrix as an HTML page without scripts, and as a similar SVG drawing."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence

from ..knowledge.tables import PTX
from .cells import CPU, NO_BUILD, UNKNOWN, Cell, span
from .grid import (
    UNSUPPORTED,
    Drivers,
    Gpus,
    Grid,
    architectures,
    branches,
    caption,
    meaning,
    products,
)
from .style import as_html, as_legend, as_notes, as_page, svg_css, tone_classes

_MARGIN = 24
_ROW = 46
_GAP = 4
_SMALL_LETTER = 6.3
"""The average width in pixels of a letter of 11 px in a proportional font."""

_LETTER = 8.0
"""The width in pixels of a letter of 13 px in a monospaced font."""


def html_page(grid: Grid) -> list[str]:
    """Return the lines of the HTML page, in ASCII."""
    title = as_html(grid.title)
    body = [
        *_table(grid, grid.gpu_bands, grid.driver_bands, name="merged"),
        "<h2>Legend</h2>",
        *as_legend(_legend_items(grid)),
        *as_notes(grid.notes),
        "<details>",
        "<summary>Every driver and every GPU</summary>",
        *_table(
            grid,
            [(gpu,) for gpu in grid.gpus],
            # The newest drivers come first, so columns that differ are visible without
            # scrolling.
            [(cuda,) for cuda in reversed(grid.drivers)],
            name="whole",
        ),
        "</details>",
    ]
    page = as_page(
        title=f"{title}: the build for each driver and GPU",
        heading=title,
        lead="Which build each machine gets: the CUDA version of its driver across, "
        "the compute capability of its GPU down.",
        body=body,
    )
    return list(page)


def _tile_classes(cell: Cell | None, tones: Mapping[str, str]) -> str:
    if cell is None or not cell.exists:
        return "gone"
    if cell.label is None or not cell.uses_gpu:
        return "cpu"
    return f"{tones[cell.label]} ptx" if cell.how == PTX else tones[cell.label]


def _legend_items(grid: Grid) -> list[tuple[str, str, str]]:
    """Return ``(sign, classes, words)`` for each kind of cell that the grid has."""
    tones = tone_classes(grid.labels)
    items = [
        (label, tones[label], grid.builds.get(label) or "uses the GPU")
        for label in grid.labels
    ]
    others: dict[str, tuple[str, str, str]] = {}
    for cell in grid.cells.values():
        sign = caption(cell)
        if not cell.exists:
            words = f"{UNSUPPORTED}; this is what it would get"
            others["[...]"] = ("[...]", "gone", words)
        elif cell.how in (NO_BUILD, UNKNOWN):
            others[sign] = (sign, _tile_classes(cell, tones), meaning(cell))
        elif cell.label is None:
            others[sign] = (sign, "cpu", "no label fits: the non-variant wheel")
        elif cell.how == CPU:
            others[sign] = (sign, "cpu", "does not use the GPU")
        elif cell.how == PTX and len(items) == len(grid.labels):
            words = "only PTX, which the driver compiles"
            items.append((sign, _tile_classes(cell, tones), words))
    if len(grid.cells) < len(grid.drivers) * len(grid.gpus):
        others["-"] = ("-", "gone", UNSUPPORTED)
    return [*items, *others.values()]


def _table(
    grid: Grid, rows: Sequence[Gpus], columns: Sequence[Drivers], *, name: str
) -> Iterator[str]:
    tones = tone_classes(grid.labels)
    yield (
        f'<div class="scroll" role="region" tabindex="0" aria-labelledby="{name}">'
        f'<table class="{name}">'
    )
    yield (
        f'<caption id="{name}">The build for each GPU (rows) and CUDA version of the '
        "driver (columns)</caption>"
    )
    heads = [_head("col", span(band), branches(band)) for band in columns]
    yield f'<thead><tr><th scope="col">GPU</th>{"".join(heads)}</tr></thead>'
    yield "<tbody>"
    for row in rows:
        about = products(row[0]) if name == "whole" else architectures(row)
        cells = [_cell(grid.at(column, row), tones, column, row) for column in columns]
        yield f"<tr>{_head('row', span(row), about)}{''.join(cells)}</tr>"
    yield "</tbody></table></div>"


def _head(scope: str, text: str, about: str) -> str:
    small = f" <small>{as_html(about)}</small>" if about else ""
    return f'<th scope="{scope}"><b>{as_html(text)}</b>{small}</th>'


def _cell(
    cell: Cell | None, tones: Mapping[str, str], column: Drivers, row: Gpus
) -> str:
    title = f"CUDA {span(column)}, GPU {span(row)}: {meaning(cell)}"
    return (
        f'<td class="{_tile_classes(cell, tones)}" title="{as_html(title)}">'
        f"{as_html(caption(cell))}</td>"
    )


def svg_drawing(grid: Grid) -> list[str]:
    """Return the lines of the SVG drawing, in ASCII.

    Sizes are computed from the number of letters, because SVG cannot wrap or measure
    text.
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
                _tile_classes(cell, tones),
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
    items = _legend_items(grid)
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
    """Return the lines of the notes, and the height of the whole drawing."""
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
