"""The matrix as plain text and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..knowledge.tables import NATIVE, PTX
from .cells import CPU, NO_BUILD, UNKNOWN, Cell, span
from .grid import UNSUPPORTED, Drivers, Gpus, Grid, architectures, branches, caption
from .style import as_code, as_markdown, markdown_table

WIDTH = 80
"""The width of the text form, as far as the names of labels allow it."""

NO_LABEL = "no label"

_GAP = 2
"""Columns between two cells."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """A table that is as wide as asked, or has a single column."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]


def text_blocks(grid: Grid, *, width: int = WIDTH) -> list[Block]:
    """Return the merged table: a row for each band of GPUs, a column for drivers.

    There are several blocks if the columns do not fit next to each other.

    :param width: the columns of the terminal.
    """
    rows = grid.gpu_bands
    names = [("GPU", ""), *((span(band), architectures(band)) for band in rows)]
    first = sum(max(len(row[part]) for row in names) for part in (0, 1)) + _GAP
    blocks: list[list[Drivers]] = []
    used = width
    for band in grid.driver_bands:
        needed = _GAP + max(
            len(span(band)), *(len(caption(grid.at(band, row))) for row in rows)
        )
        if used + needed > width:
            blocks.append([])
            used = first
        blocks[-1].append(band)
        used += needed
    return [_block(grid, rows, columns) for columns in blocks]


def _block(grid: Grid, rows: Sequence[Gpus], columns: Sequence[Drivers]) -> Block:
    return Block(
        header=("GPU", "", *map(span, columns)),
        rows=[
            (
                span(row),
                architectures(row),
                *(caption(grid.at(column, row)) for column in columns),
            )
            for row in rows
        ],
    )


def legend(grid: Grid) -> list[str]:
    """Return what the marks mean, for those that the grid has."""
    kinds = {kind for cell in grid.cells.values() for kind in _kinds(cell)}
    if _has_gaps(grid):
        kinds.add("gap")
    lines = {
        NATIVE: "a name alone: this build, which has machine code or does not say",
        PTX: "*: this build has only PTX for the GPU, which the driver compiles",
        CPU: "cpu: a build that does not use the GPU",
        NO_LABEL: "(none): no label fits, so an installer takes the non-variant wheel",
        NO_BUILD: "none: no build of the release runs on the GPU",
        UNKNOWN: "?: nothing says whether this build runs on the GPU",
        "gap": f"-: {UNSUPPORTED}",
        "would be": f"[...]: {UNSUPPORTED}; this is what it would get",
    }
    return [line for kind, line in lines.items() if kind in kinds]


def _kinds(cell: Cell) -> Iterator[str]:
    ordinary = cell.how in (NO_BUILD, UNKNOWN)
    yield NO_LABEL if cell.label is None and not ordinary else cell.how
    if not cell.exists:
        yield "would be"


def _has_gaps(grid: Grid) -> bool:
    """Tell whether some field of the merged table has no cell."""
    return any(
        grid.at(column, row) is None
        for row in grid.gpu_bands
        for column in grid.driver_bands
    )


def markdown(grid: Grid) -> list[str]:
    """Return lines of Markdown, with a row for each driver to search for."""
    columns = grid.gpu_bands
    heads = [_joined(f"GPU {span(band)}", architectures(band)) for band in columns]
    rows = [
        [
            _joined(str(cuda), branches((cuda,))),
            *(_cell(grid.at((cuda,), band)) for band in columns),
        ]
        for cuda in grid.drivers
    ]
    return [
        f"# {as_markdown(grid.title)}: the build for each driver and GPU",
        "",
        *markdown_table(["CUDA version of the driver", *heads], rows),
        "",
        *(f"- {as_markdown(line)}" for line in (*_marks(grid), *grid.notes)),
    ]


def _joined(first: str, second: str) -> str:
    return as_markdown(f"{first} ({second})" if second else first)


def _cell(cell: Cell | None) -> str:
    if cell is None or cell.label is None or cell.how == CPU:
        return as_markdown(caption(cell))
    marks = {PTX: " (PTX)", UNKNOWN: " (?)"}
    text = as_code(cell.label) + marks.get(cell.how, "")
    return text if cell.exists else f"\\[{text}\\]"


def _marks(grid: Grid) -> list[str]:
    # "*" would begin emphasis, so the Markdown table says PTX instead.
    return [line.replace("*:", "(PTX):", 1) for line in legend(grid)]
