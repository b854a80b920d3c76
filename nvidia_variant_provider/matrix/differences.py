"""The difference of two releases as plain text and as Markdown.

Lanes with the same outcome for the same cause are told together; there is a
count of each change, and no verdict over them.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from ..errors import printable
from ..machine.environment import ComputeCapability, CudaVersion
from ..metadata.model import NULL_LABELS
from .cells import CPU
from .changes import CHANGES, LOST, SAME, Lane
from .escaping import as_code, as_markdown
from .grid import caption, meaning
from .lanes import describe_lanes, list_gpus

__all__ = ["Differences", "Group", "make_groups", "markdown_lines", "text_lines"]

_WIDTH = 80
_LABEL = 12
"""Columns that ``workaround: `` takes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Differences:
    """Two releases and all their lanes."""

    old: str
    new: str
    lanes: Sequence[Lane]

    @property
    def drivers(self) -> list[CudaVersion]:
        """All of them, ascending."""
        return sorted({cuda for cuda, _ in map(_key, self.lanes)})

    @property
    def gpus(self) -> list[ComputeCapability]:
        """All of them, ascending."""
        return sorted({gpu for _, gpu in map(_key, self.lanes)})

    @property
    def counts(self) -> dict[str, int]:
        """How many lanes have each change, also those that none has."""
        found = Counter(lane.change for lane in self.lanes)
        return {change: found[change] for change in CHANGES}

    def where(self, lanes: Collection[Lane]) -> list[str]:
        """The rectangles that make up ``lanes``."""
        keys = {lane.key for lane in lanes}
        return describe_lanes(keys, drivers=self.drivers, gpus=self.gpus)


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Lanes that have the same change, of the same picks, for the same cause."""

    lanes: tuple[Lane, ...]

    @property
    def first(self) -> Lane:
        """The lane whose reason stands for all."""
        return self.lanes[0]


def make_groups(lanes: Sequence[Lane], *, with_same: bool = False) -> list[Group]:
    """The groups, lost lanes first; lanes that stay the same only if asked."""
    found: dict[object, list[Lane]] = {}
    for lane in lanes:
        if lane.change == SAME and not with_same:
            continue
        picks = tuple(_pick(cell.label, cell.how) for cell in (lane.old, lane.new))
        found.setdefault((lane.change, picks, lane.causes), []).append(lane)
    groups = [Group(lanes=tuple(members)) for members in found.values()]
    # The largest first; the sort is stable for the rest.
    groups.sort(key=lambda g: (CHANGES.index(g.first.change), -len(g.lanes)))
    return groups


def text_lines(differences: Differences, *, with_same: bool = False) -> list[str]:
    """Lines of at most 80 columns, where the names let them."""
    lines = [f"{printable(differences.old)} -> {printable(differences.new)}", ""]
    for group in make_groups(differences.lanes, with_same=with_same):
        first = group.first
        lines.append(f"{first.change}: {caption(first.old)} -> {caption(first.new)}")
        for name, sentence in _facts(differences, group):
            lines += textwrap.wrap(
                printable(sentence),
                _WIDTH,
                initial_indent=f"  {name + ':':{_LABEL}}",
                subsequent_indent=" " * (_LABEL + 2),
                break_long_words=False,
                break_on_hyphens=False,
            )
        lines.append("")
    return [*lines, _counts(differences)]


def markdown_lines(differences: Differences, *, with_same: bool = False) -> list[str]:
    """Lines of Markdown, for release notes."""
    old, new = map(as_markdown, (differences.old, differences.new))
    lines = [f"# {old} to {new}: which machines get another build", ""]
    for group in make_groups(differences.lanes, with_same=with_same):
        first = group.first
        title = first.change.capitalize()
        lines.append(f"## {title}: {_coded(first, old=True)} to {_coded(first)}")
        lines.append("")
        lines += [
            f"- **{name}**: {as_markdown(sentence)}"
            for name, sentence in _facts(differences, group)
        ]
        lines.append("")
    return [*lines, as_markdown(_counts(differences))]


def _facts(differences: Differences, group: Group) -> Iterator[tuple[str, str]]:
    """``(name, sentence)``: default, workaround and risk are never mixed."""
    first = group.first
    for rectangle in differences.where(group.lanes):
        yield "lanes", rectangle
    reasons = dict.fromkeys(lane.reason for lane in group.lanes)
    if first.reason is not None:
        # A sentence has the numbers of its lane: say which one that is.
        example = "" if len(reasons) == 1 else f"with {_lane(first)}: "
        yield "reason", f"{example}{first.reason}"
    if first.change == LOST:
        yield "default", meaning(first.new)
    for sentence in _apart(differences, group, lambda lane: lane.workaround):
        yield "workaround", sentence
    for sentence in _apart(differences, group, lambda lane: lane.risk):
        yield "open risk", sentence


def _apart(
    differences: Differences, group: Group, field: Callable[[Lane], Sequence[str]]
) -> Iterator[str]:
    """The sentences of one field, with where they hold when not everywhere."""
    found: dict[str, list[Lane]] = {}
    for lane in group.lanes:
        for sentence in field(lane):
            found.setdefault(sentence, []).append(lane)
    for sentence, lanes in found.items():
        where = ""
        if len(lanes) < len(group.lanes):
            where = f"{_shortest(differences, group, lanes)}: "
        yield f"{where}{sentence}"


def _shortest(differences: Differences, group: Group, lanes: Sequence[Lane]) -> str:
    """Part of a group: by its GPUs alone when all their lanes are in it."""
    gpus = {lane.new.capability for lane in lanes}
    if sum(lane.new.capability in gpus for lane in group.lanes) == len(lanes):
        return list_gpus(map(_key, lanes), differences.gpus)
    return "; ".join(differences.where(lanes))


def _counts(differences: Differences) -> str:
    counted = ", ".join(f"{n} {change}" for change, n in differences.counts.items())
    return f"{counted}, of {len(differences.lanes)} lanes"


def _lane(lane: Lane) -> str:
    return f"driver {lane.new.cuda}, GPU {lane.new.capability}"


def _coded(lane: Lane, *, old: bool = False) -> str:
    cell = lane.old if old else lane.new
    if cell.label is None or cell.how == CPU:
        return as_markdown(caption(cell))
    return as_code(caption(cell))


def _pick(label: str | None, how: str) -> tuple[str | None, str]:
    return (NULL_LABELS[0] if label in NULL_LABELS else label), how


def _key(lane: Lane) -> tuple[CudaVersion, ComputeCapability]:
    return lane.key
