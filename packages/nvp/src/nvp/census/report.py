"""What a store says of each project: releases, their changes, and a page of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from operator import itemgetter

from packaging.version import Version

from ..findings import listed
from ..gpu_code.report import target_key
from ..matrix.style import as_html, as_page
from .store import Store


@dataclass(frozen=True, kw_only=True, slots=True)
class ReleaseSummary:
    """One build of a release: the wheels of one platform and label.

    :param platform: the platform tag of the wheel.
    :param cuda: the CUDA toolkit that it needs, or ``None`` where nothing names one.
    :param targets: what its own libraries have kernels for, such as ``90_real``.
    :param gained: targets that the release before did not have.
    :param lost: targets that the release before had.
    :param status: ``inspected``, ``skipped`` or ``failed``.
    :param reason: why it was skipped or failed.
    """

    version: str
    label: str | None
    platform: str
    cuda: str | None
    targets: tuple[str, ...]
    gained: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    status: str = "inspected"
    reason: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ProjectSummary:
    """The builds of a project, the newest release first."""

    project: str
    releases: tuple[ReleaseSummary, ...]

    @property
    def with_gpu_code(self) -> tuple[ReleaseSummary, ...]:
        """The builds that have kernels."""
        return tuple(item for item in self.releases if item.targets)

    @property
    def cuda(self) -> tuple[str, ...]:
        """The CUDA toolkits of all builds, ascending."""
        versions = {item.cuda for item in self.releases if item.cuda}
        return tuple(sorted(versions, key=Version))

    @property
    def targets(self) -> tuple[str, ...]:
        """The targets of all builds: machine code first, then PTX, both ascending."""
        union = {target for item in self.releases for target in item.targets}
        return tuple(sorted(union, key=target_key))

    def to_dict(self) -> dict[str, object]:
        """Return an element of ``projects`` in the report of ``census``."""
        return {
            "project": self.project,
            "cuda": list(self.cuda),
            "targets": list(self.targets),
            "releases": [asdict(item) for item in self.releases],
        }


def count_wheels(store: Store) -> dict[str, float]:
    """Return the counts of a store by the names that ``census`` reports.

    ``bytes_read`` and ``seconds`` are sums over the wheels.
    """
    counts: dict[str, float] = dict.fromkeys(("inspected", "skipped", "failed"), 0)
    wheels, size, seconds = 0, 0, 0.0
    for row in store.rows(
        "SELECT status, count(*) AS wheels, sum(bytes_read) AS size, "
        "sum(seconds) AS seconds FROM wheels GROUP BY status"
    ):
        counts[row["status"]] = row["wheels"]
        wheels += row["wheels"]
        size += row["size"]
        seconds += row["seconds"]
    times = round(seconds, 3)
    return {"wheels": wheels, **counts, "bytes_read": size, "seconds": times}


_TARGETS = """
SELECT wheel, target
FROM targets
JOIN libraries USING (wheel, path, copy)
JOIN wheels ON wheels.id = wheel
WHERE status = 'inspected' AND count > stubs AND NOT vendored
      AND NOT is_test(path)
"""


def summarize(store: Store) -> Iterator[ProjectSummary]:
    """Yield each project of a store, by name."""
    with store.intact():
        targets: dict[int, set[str]] = {}
        for row in store.rows(_TARGETS):
            targets.setdefault(row["wheel"], set()).add(row["target"])
        for project, rows in groupby(store.wheels(), key=itemgetter("project")):
            builds = [_release(row, targets.get(row["id"], ())) for row in rows]
            builds.sort(key=lambda item: (item.label or "", item.platform))
            builds.sort(key=lambda item: Version(item.version), reverse=True)
            releases = tuple(_with_changes(builds))
            yield ProjectSummary(project=str(project), releases=releases)


def _release(row: Mapping[str, object], targets: Iterable[str]) -> ReleaseSummary:
    return ReleaseSummary(
        version=str(row["version"]),
        label=_text(row["label"]),
        platform=str(row["tags"]).rpartition("-")[2],
        cuda=_text(row["cuda"]),
        targets=tuple(sorted(targets, key=target_key)),
        status=str(row["status"]),
        reason=_text(row["reason"]),
    )


def _with_changes(builds: Sequence[ReleaseSummary]) -> Iterator[ReleaseSummary]:
    """Compare each build with the same build of the release before.

    Platform tags change from release to release (``manylinux2014_x86_64``), so the
    processor at the end of the tag is what has to be the same.
    """
    for place, item in enumerate(builds):
        older = next(
            (
                other
                for other in builds[place + 1 :]
                if other.label == item.label
                and _processor(other) == _processor(item)
                and Version(other.version) < Version(item.version)
                and other.status == item.status == "inspected"
            ),
            None,
        )
        if older is None:
            yield item
            continue
        gained = tuple(t for t in item.targets if t not in older.targets)
        lost = tuple(t for t in older.targets if t not in item.targets)
        yield replace(item, gained=gained, lost=lost)


def _processor(item: ReleaseSummary) -> str:
    for name in ("x86_64", "aarch64", "amd64", "arm64"):
        if item.platform.endswith(name):
            return f"{item.platform[:3]}{name}"
    return item.platform


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def census_page(projects: Iterable[ProjectSummary]) -> Iterator[str]:
    """Return the lines of the page, which are ASCII.

    There is a table for each project, with a row for each build and a column for each
    GPU that any of its builds has code for.
    """
    return as_page(
        title="Census of GPU code",
        heading="Census of GPU code",
        lead='The targets for which each build has kernels: "code" is machine code, '
        "and PTX is what a driver compiles.",
        body=(line for project in projects for line in _section(project)),
    )


def _section(project: ProjectSummary) -> Iterator[str]:
    yield f"<h2>{as_html(project.project)}</h2>"
    builds = project.with_gpu_code
    others = [item for item in project.releases if not item.targets]
    if builds:
        numbers = list(dict.fromkeys(t.partition("_")[0] for t in project.targets))
        numbers.sort(key=lambda number: (int(number.rstrip("af")), number))
        yield '<div class="scroll" tabindex="0"><table class="census">'
        yield "<thead><tr>"
        titles = ["Release", "Build", "Platform", "CUDA", *numbers]
        yield "".join(f'<th scope="col">{as_html(title)}</th>' for title in titles)
        yield "</tr></thead>"
        yield "<tbody>"
        for item in builds:
            yield _table_row(item, numbers)
        yield "</tbody></table></div>"
    for sentence in _others(others):
        yield f"<p>{as_html(sentence)}</p>"


def _table_row(item: ReleaseSummary, numbers: Sequence[str]) -> str:
    cells = [
        f'<th scope="row">{as_html(item.version)}</th>',
        *(
            f"<td>{as_html(text or '-')}</td>"
            for text in (item.label, item.platform, item.cuda)
        ),
    ]
    for number in numbers:
        if f"{number}_real" in item.targets:
            cells.append('<td class="tile t2">code</td>')
        elif f"{number}_virtual" in item.targets:
            cells.append('<td class="tile t3 ptx">PTX</td>')
        elif any(target.partition("_")[0] == number for target in item.lost):
            cells.append('<td class="tile cpu">lost</td>')
        else:
            cells.append("<td></td>")
    return f"<tr>{''.join(cells)}</tr>"


def _others(items: Sequence[ReleaseSummary]) -> Iterator[str]:
    """Say in sentences what became of the builds that have no row."""
    without = [item for item in items if item.status == "inspected"]
    if without:
        yield f"Without kernels: {_listed(without)}."
    for status in ("skipped", "failed"):
        reasons: dict[str, list[ReleaseSummary]] = {}
        for item in items:
            if item.status == status:
                reasons.setdefault(item.reason or "no reason", []).append(item)
        for reason, alike in reasons.items():
            yield f"{status.capitalize()}, because {reason}: {_listed(alike)}."


def _listed(items: Sequence[ReleaseSummary]) -> str:
    names = [f"{item.version} {item.label or ''}".strip() for item in items]
    distinct = list(dict.fromkeys(names))
    return listed(distinct, 10)
