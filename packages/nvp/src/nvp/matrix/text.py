"""The matrix, and the differences between two releases, as text and as Markdown.

Pairs with the same change and cause are described together. The text counts the pairs
with each change, without judging the release.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import TypeAlias

from nvidia_variant_provider.errors import printable
from nvidia_variant_provider.metadata.model import NULL_LABELS

from ..knowledge.tables import NATIVE, PTX
from .cells import CPU, NO_BUILD, UNKNOWN, Cell, list_gpus, span
from .changes import CHANGES, LOST, SAME, Differences, IndexDifferences, PairChange
from .grid import (
    UNSUPPORTED,
    Drivers,
    Grid,
    architectures,
    branches,
    caption,
    meaning,
)
from .style import as_code, as_markdown, markdown_table

WIDTH = 80
"""The default width of text in columns; long labels may exceed it."""

NO_LABEL = "no label"

_GAP = 2
"""The number of columns between two cells."""


def text_blocks(
    grid: Grid, *, width: int = WIDTH
) -> list[tuple[Sequence[str], Sequence[Sequence[str]]]]:
    """Return the merged table: rows are bands of GPUs, columns are bands of drivers.

    The table is split if the columns do not fit side by side. Each part fits ``width``
    or has a single column.

    :param width: the number of columns of the terminal.
    :returns: the header and the rows of each part.
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
    return [
        (
            ("GPU", "", *map(span, columns)),
            [
                (*name, *(caption(grid.at(column, row)) for column in columns))
                for name, row in zip(names[1:], rows, strict=True)
            ],
        )
        for columns in blocks
    ]


def legend(grid: Grid) -> list[str]:
    """Return the meaning of each mark in the grid."""
    kinds = {kind for cell in grid.cells.values() for kind in _kinds(cell)}
    bands = product(grid.driver_bands, grid.gpu_bands)
    if any(grid.at(column, row) is None for column, row in bands):
        kinds.add("gap")
    lines = {
        NATIVE: "name only: this build, with machine code for the GPU or no targets",
        PTX: "*: this build has only PTX for the GPU, which the driver compiles",
        CPU: "cpu: a build that does not use the GPU",
        NO_LABEL: "(none): no label fits, so an installer takes the non-variant wheel",
        NO_BUILD: "none: no build of the release runs on the GPU",
        UNKNOWN: "?: it is unknown whether this build runs on the GPU",
        "gap": f"-: {UNSUPPORTED}",
        "would be": f"[...]: {UNSUPPORTED}; this is what it would get",
    }
    return [line for kind, line in lines.items() if kind in kinds]


def _kinds(cell: Cell) -> Iterator[str]:
    regular = cell.how in (NO_BUILD, UNKNOWN)
    yield NO_LABEL if cell.label is None and not regular else cell.how
    if not cell.exists:
        yield "would be"


def markdown(grid: Grid) -> list[str]:
    """Return lines of Markdown, with a row for each driver."""
    columns = grid.gpu_bands
    heads = [_joined(f"GPU {span(band)}", architectures(band)) for band in columns]
    rows = [
        [
            _joined(str(cuda), branches((cuda,))),
            *(_cell(grid.at((cuda,), band)) for band in columns),
        ]
        for cuda in grid.drivers
    ]
    # The Markdown table has (PTX) instead of "*", which would begin emphasis.
    legend_lines = [line.replace("*:", "(PTX):", 1) for line in legend(grid)]
    return [
        f"# {as_markdown(grid.title)}: the build for each driver and GPU",
        "",
        *markdown_table(["CUDA version of the driver", *heads], rows),
        "",
        *(f"- {as_markdown(line)}" for line in (*legend_lines, *grid.notes)),
    ]


def _joined(first: str, second: str) -> str:
    return as_markdown(f"{first} ({second})" if second else first)


def _cell(cell: Cell | None) -> str:
    if cell is None or cell.label is None or cell.how == CPU:
        return as_markdown(caption(cell))
    marks = {PTX: " (PTX)", UNKNOWN: " (?)"}
    text = as_code(cell.label) + marks.get(cell.how, "")
    return text if cell.exists else f"\\[{text}\\]"


_LABEL = 12
"""The width of ``workaround: `` in columns."""


Group: TypeAlias = Sequence[PairChange]
"""Pairs with the same old build, new build and cause.

All pairs of a group exist, or all are impossible. The output shows the reason of the
first pair for the whole group.
"""


def make_groups(pairs: Group, *, with_same: bool = False) -> Sequence[Group]:
    """Return the groups of pairs, most severe change first.

    :param with_same: whether to include pairs that stay the same.
    """
    members_of: dict[object, list[PairChange]] = {}
    for pair in pairs:
        if pair.change == SAME and not with_same:
            continue
        picks = tuple(
            (NULL_LABELS[0] if cell.label in NULL_LABELS else cell.label, cell.how)
            for cell in (pair.old, pair.new)
        )
        key = pair.exists, pair.change, picks, pair.causes
        members_of.setdefault(key, []).append(pair)
    # Within one change, the largest group comes first. The sort is stable, so groups of
    # equal size stay in the order of their first pairs.
    return sorted(
        members_of.values(),
        key=lambda g: (not g[0].exists, CHANGES.index(g[0].change), -len(g)),
    )


def _title(pair: PairChange) -> str:
    return pair.change if pair.exists else f"{pair.change}, if it existed"


def text_lines(
    differences: Differences, *, with_same: bool = False, width: int = WIDTH
) -> list[str]:
    """Return the differences as lines; only long names make a line exceed ``width``."""
    lines = [f"{printable(differences.old)} -> {printable(differences.new)}", ""]
    for group in make_groups(differences.pairs, with_same=with_same):
        first = group[0]
        picks = f"{caption(first.old)} -> {caption(first.new)}"
        lines.append(f"{_title(first)}: {picks}")
        for name, sentence in _facts(differences, group):
            lines += textwrap.wrap(
                printable(sentence),
                width,
                initial_indent=f"  {name + ':':{_LABEL}}",
                subsequent_indent=" " * (_LABEL + 2),
                break_long_words=False,
                break_on_hyphens=False,
            )
        lines.append("")
    return [*lines, _counts(differences)]


def markdown_lines(differences: Differences, *, with_same: bool = False) -> list[str]:
    """Return the differences as lines of Markdown, for release notes."""
    old, new = map(as_markdown, (differences.old, differences.new))
    lines = [f"# {old} to {new}: which machines get another build", ""]
    for group in make_groups(differences.pairs, with_same=with_same):
        first = group[0]
        title = _title(first).capitalize()
        lines.append(f"## {title}: {_coded(first.old)} to {_coded(first.new)}")
        lines.append("")
        lines += [
            f"- **{name}**: {as_markdown(sentence)}"
            for name, sentence in _facts(differences, group)
        ]
        lines.append("")
    return [*lines, as_markdown(_counts(differences))]


def index_lines(
    differences: IndexDifferences,
    *,
    with_same: bool = False,
    width: int | None = None,
    as_markdown: bool = False,
) -> list[str]:
    """Return the lines of each project that changes, followed by a summary."""
    lines: list[str] = []
    for item in differences.projects.values():
        if not with_same and all(pair.change == SAME for pair in item.pairs):
            continue
        if as_markdown:
            lines += markdown_lines(item, with_same=with_same)
        else:
            lines += text_lines(item, with_same=with_same, width=width or WIDTH)
        lines.append("")
    changed = sum(
        any(pair.change != SAME for pair in item.pairs)
        for item in differences.projects.values()
    )
    same = len(differences.projects) + len(differences.unchanged) - changed
    counts = differences.counts.items()
    counted = ", ".join(f"{n} {change}" for change, n in counts if change != SAME)
    noun = "project changes" if changed == 1 else "projects change"
    platform = differences.platform or "this platform"
    lines.append(
        f"{changed} {noun} and {same} stay the same, for wheels of {platform}: "
        f"{counted} pairs"
    )
    return lines


def _facts(differences: Differences, group: Group) -> Iterator[tuple[str, str]]:
    """Yield ``(name, sentence)``, with a name such as ``reason`` or ``workaround``."""
    first = group[0]
    for rectangle in differences.where(group):
        yield "pairs", rectangle
    reasons = dict.fromkeys(pair.reason for pair in group)
    if first.reason is not None:
        # The sentence has the numbers of the first pair, so name that pair.
        pair = f"driver {first.new.cuda}, GPU {first.new.capability}"
        example = "" if len(reasons) == 1 else f"with {pair}: "
        yield "reason", f"{example}{first.reason}"
    if first.change == LOST:
        yield "default", meaning(first.new)
    for sentence in _apart(differences, group, lambda pair: pair.workaround):
        yield "workaround", sentence
    for sentence in _apart(differences, group, lambda pair: pair.risk):
        yield "open risk", sentence


def _apart(
    differences: Differences, group: Group, field: Callable[[PairChange], Sequence[str]]
) -> Iterator[str]:
    """Yield each sentence of a field, prefixed with its pairs unless all have it."""
    pairs_of: dict[str, list[PairChange]] = {}
    for pair in group:
        for sentence in field(pair):
            pairs_of.setdefault(sentence, []).append(pair)
    for sentence, pairs in pairs_of.items():
        where = ""
        if len(pairs) < len(group):
            where = f"{_shortest(differences, group, pairs)}: "
        yield f"{where}{sentence}"


def _shortest(differences: Differences, group: Group, pairs: Group) -> str:
    """Describe ``pairs`` by GPU only, if the group has no other pairs of these GPUs."""
    gpus = {pair.new.capability for pair in pairs}
    if sum(pair.new.capability in gpus for pair in group) == len(pairs):
        known = sorted({pair.new.capability for pair in group})
        return list_gpus([pair.key for pair in pairs], known)
    return "; ".join(differences.where(pairs))


def _counts(differences: Differences) -> str:
    counted = ", ".join(f"{n} {change}" for change, n in differences.counts.items())
    existing = sum(pair.exists for pair in differences.pairs)
    others = len(differences.pairs) - existing
    more = f"; {others} more cannot exist" if others else ""
    return f"{counted}, of {existing} pairs{more}"


def _coded(cell: Cell) -> str:
    if cell.label is None or cell.how == CPU:
        return as_markdown(caption(cell))
    return as_code(caption(cell))
