"""`matrix` and `diff` for releases on an index, ordinary wheels included."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...builds.releases import ListedBuild, ReleaseTable
from ...knowledge.tables import NATIVE
from ...matrix.cells import (
    CPU,
    NO_BUILD,
    UNKNOWN,
    Cell,
    Matrix,
    all_places,
    machine,
)
from ...matrix.changes import CHANGED, LOST, Differences, Lane, find_change
from ...matrix.lanes import Place
from .machines import judge_project, parse_project

__all__ = ["PLAIN", "compare_projects", "find_project_matrix"]

PLAIN = "plain"
"""What a build without a label is called."""

_MOST_BUILDS = 3
"""The builds that the reason of a lost lane names."""

_NUMBERS = re.compile(r"[0-9]+(?:\.[0-9]+)*[af]?")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Judged:
    """One release, judged for every driver with every GPU."""

    title: str
    tables: Mapping[Place, ReleaseTable]

    def cell(self, place: Place) -> Cell:
        build = _selected(self.tables[place])
        if build is None or build.verdict == "cannot":
            label, how = None, NO_BUILD
        else:
            label = build.label or PLAIN
            how = {"cpu": CPU, "unknown": UNKNOWN}.get(
                build.verdict, build.how or NATIVE
            )
        return Cell(cuda=place[0], capability=place[1], label=label, how=how)

    def builds(self, place: Place) -> Sequence[ListedBuild]:
        releases = self.tables[place].releases
        return releases[0].builds if releases else ()


def find_project_matrix(
    project: str,
    *,
    environ: Mapping[str, str],
    index_url: str | None = None,
    all_lanes: bool = False,
    cache: str | None = None,
) -> Matrix:
    """Return which build of a release on an index each driver and each GPU gets.

    :param project: such as ``torch==2.15.0``; without a version, the newest release
        that any machine runs.
    """
    judged = _judge(project, environ, index_url, all_lanes=all_lanes, cache=cache)
    count = len(all_places(all_lanes=True))
    descriptions = {
        build.label or PLAIN: f"CUDA {build.cuda}" if build.cuda else ""
        for place in judged.tables
        for build in judged.builds(place)
    }
    notes = {note for table in judged.tables.values() for note in table.notes}
    return Matrix(
        metadata=None,
        title=judged.title,
        builds=descriptions,
        notes=tuple(sorted(notes)),
        cells=tuple(map(judged.cell, judged.tables)),
        left_out=count - len(judged.tables),
        minor_version_compatibility=False,
    )


def compare_projects(
    old: str,
    new: str,
    *,
    environ: Mapping[str, str],
    index_url: str | None = None,
    all_lanes: bool = False,
    cache: str | None = None,
) -> Differences:
    """Return what the builds of a newer release on an index change.

    :param old: such as ``torch==2.14.1``.
    :param new: such as ``torch==2.15.0``.
    """
    before, after = (
        _judge(item, environ, index_url, all_lanes=all_lanes, cache=cache)
        for item in (old, new)
    )
    return Differences(
        old=before.title,
        new=after.title,
        lanes=tuple(_lane(before, after, place) for place in after.tables),
    )


def _judge(
    project: str,
    environ: Mapping[str, str],
    index_url: str | None,
    *,
    all_lanes: bool,
    cache: str | None,
) -> _Judged:
    name, version = parse_project(project)
    places = all_places(all_lanes=all_lanes)

    def judge(release: str | None, some: Sequence[Place]) -> list[ReleaseTable]:
        return judge_project(
            name,
            release,
            [machine(*place) for place in some],
            environ=environ,
            index_url=index_url,
            cache=cache,
        )

    if version is None:
        # The newest driver with the newest GPU runs the newest release.
        (table,) = judge(None, places[-1:])
        version = table.newest or table.releases[0].version
    tables = judge(version, places)
    return _Judged(
        title=f"{name} {version}", tables=dict(zip(places, tables, strict=True))
    )


def _selected(table: ReleaseTable) -> ListedBuild | None:
    """Return the build that an installer takes, where a machine has a choice."""
    if not table.releases:
        return None
    release = table.releases[0]
    return next((b for b in release.builds if b.file == release.selected), None)


def _lane(before: _Judged, after: _Judged, place: Place) -> Lane:
    was, now = before.cell(place), after.cell(place)
    change = find_change(was, now)
    if change == LOST:
        reasons = [
            (build.label or PLAIN, "; ".join(build.reasons))
            for build in after.builds(place)
            if build.verdict == "cannot"
        ][:_MOST_BUILDS]
        if not reasons:
            reasons = [(after.title, "it has no build for this platform and Python")]
        return Lane(
            old=was,
            new=now,
            change=change,
            reason="; ".join(f"{label}: {reason}" for label, reason in reasons),
            causes=tuple(f"{x}: {_NUMBERS.sub('', reason)}" for x, reason in reasons),
            workaround=tuple(_workarounds(before, after, was, place)),
            risk=("an installer takes a build all the same, and the GPU stays idle",),
        )
    reason = None
    if change == CHANGED:
        reason = f"{after.title} has other builds than {before.title}"
    return Lane(
        old=was,
        new=now,
        change=change,
        reason=reason,
        causes=() if reason is None else (reason,),
    )


def _workarounds(
    before: _Judged, after: _Judged, was: Cell, place: Place
) -> Sequence[str]:
    ways = []
    for cuda, capability in sorted(after.tables):
        if capability == place[1] and cuda > place[0]:
            cell = after.cell((cuda, capability))
            if cell.exists and cell.uses_gpu:
                ways.append(f"a driver for CUDA {cuda} gets {cell.label}")
                break
    return [*ways, f"stay with {before.title}: it has {was.label}"]
