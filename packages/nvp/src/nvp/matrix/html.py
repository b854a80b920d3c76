"""The matrix as one HTML page, without scripts and without other files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ..knowledge.tables import PTX
from .cells import CPU, NO_BUILD, UNKNOWN, Cell
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
from .lanes import span
from .style import as_html, as_page, tone_classes

__all__ = ["html_page", "legend_items", "tile_classes"]


def html_page(grid: Grid) -> list[str]:
    """Return the lines of the page, which are ASCII."""
    title = as_html(grid.title)
    body = [
        *_table(grid, grid.gpu_bands, grid.driver_bands, name="merged"),
        "<h2>Legend</h2>",
        '<ul class="legend">',
        *(
            f'<li><span class="key {classes}">{as_html(sign)}</span> '
            f"<span>{as_html(words)}</span></li>"
            for sign, classes, words in legend_items(grid)
        ),
        "</ul>",
        *_notes(grid),
        "<details>",
        "<summary>Every driver and every GPU</summary>",
        *_table(
            grid,
            [(gpu,) for gpu in grid.gpus],
            # The newest drivers come first, since their columns differ and are then
            # in sight without scrolling.
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


def tile_classes(cell: Cell | None, tones: Mapping[str, str]) -> str:
    """Return the CSS classes of a cell's tile."""
    if cell is None or not cell.exists:
        return "gone"
    if cell.label is None or not cell.uses_gpu:
        return "cpu"
    return f"{tones[cell.label]} ptx" if cell.how == PTX else tones[cell.label]


def legend_items(grid: Grid) -> list[tuple[str, str, str]]:
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
            others[sign] = (sign, tile_classes(cell, tones), meaning(cell))
        elif cell.label is None:
            others[sign] = (sign, "cpu", "no label fits: the non-variant wheel")
        elif cell.how == CPU:
            others[sign] = (sign, "cpu", "does not use the GPU")
        elif cell.how == PTX and len(items) == len(grid.labels):
            words = "only PTX, which the driver compiles"
            items.append((sign, tile_classes(cell, tones), words))
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
        f'<td class="{tile_classes(cell, tones)}" title="{as_html(title)}">'
        f"{as_html(caption(cell))}</td>"
    )


def _notes(grid: Grid) -> Iterator[str]:
    if grid.notes:
        yield "<h2>Notes</h2>"
        yield '<ul class="notes">'
        for note in grid.notes:
            yield f"<li>{as_html(note)}</li>"
        yield "</ul>"
