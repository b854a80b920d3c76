"""Reports of a store: releases with their changes, an HTML page, and exports.

The suffix of an export selects its form: ``.parquet``, ``.jsonl`` and ``.csv`` have a
row for each target of each library, and ``.json`` is the table of builds.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from typing import IO, Any, TypeAlias

from packaging.utils import canonicalize_version
from packaging.version import Version

from nvidia_variant_provider.errors import (
    MissingExtraError,
    UsageError,
    listed,
    shown,
)

from ..builds.needs import needs_of_report
from ..files import harmless, replacing
from ..gpu_code.report import target_key
from ..index.http.urls import is_http, server_of
from ..knowledge.builds import BuildRecord, needs_in_table
from ..matrix.style import as_csv, as_html, as_legend, as_page
from ..wheels.archive import platform_of
from .model import ProjectSummary, ReleaseSummary
from .store import Store

logger = logging.getLogger(__name__)


def count_wheels(store: Store) -> dict[str, float]:
    """Return the counts of a store under their names in the report of ``census``.

    ``bytes_read`` and ``seconds`` are sums over the wheels.
    """
    counts: dict[str, float] = dict.fromkeys(("inspected", "skipped", "failed"), 0)
    wheels, size, seconds = 0, 0, 0.0
    for row in store.rows(
        "SELECT status, count(*) AS wheels, sum(bytes_read) AS size, "
        "sum(seconds) AS seconds FROM wheels GROUP BY status"
    ):
        counts[row["status"]] += row["wheels"]
        wheels += row["wheels"]
        size += int(row["size"])
        seconds += row["seconds"]
    times = round(1000 * seconds) / 1000  # fails for infinity, unlike two arguments
    return {"wheels": wheels, **counts, "bytes_read": size, "seconds": times}


# The order matters: a strange file may repeat keys, and each repeated library would get
# all repeated targets, while a search for a whole key finds one library.
_TARGETS = """
SELECT DISTINCT target
FROM targets CROSS JOIN libraries USING (wheel, path, copy)
WHERE wheel = ? AND count > stubs AND NOT vendored AND NOT is_test(libraries.path)
"""


def summarize(store: Store) -> Iterator[ProjectSummary]:
    """Yield the summary of each project of a store, sorted by name."""
    with store.intact():
        for project, rows in groupby(store.wheels(), key=itemgetter("project")):
            builds = [_release(store, row) for row in rows]
            builds.sort(key=lambda item: (item.label or "", item.platform))
            builds.sort(key=lambda item: Version(item.version), reverse=True)
            releases = tuple(_with_changes(builds))
            yield ProjectSummary(project=str(project), releases=releases)


def _release(store: Store, row: Mapping[str, object]) -> ReleaseSummary:
    found = store.rows(_TARGETS, [row["id"]] if row["status"] == "inspected" else [0])
    return ReleaseSummary(
        version=str(row["version"]),
        label=_text(row["label"]),
        platform=str(row["tags"]).rpartition("-")[2],
        cuda=_text(row["cuda"]),
        targets=tuple(sorted((item["target"] for item in found), key=target_key)),
        status=str(row["status"]),
        reason=_text(row["reason"]),
    )


def _with_changes(builds: Sequence[ReleaseSummary]) -> Iterator[ReleaseSummary]:
    """Return each build, with the targets gained and lost since the previous release.

    Builds with the same label and processor are compared. The rest of a platform tag,
    such as ``manylinux2014``, changes between releases.
    """
    # For each label and processor: the last inspected build with its version, and the
    # build of the release before it.
    known: dict[
        tuple[str | None, str],
        tuple[Version, ReleaseSummary, ReleaseSummary | None],
    ] = {}
    changed: list[ReleaseSummary] = []
    for item in reversed(builds):
        key, version = (item.label, _processor(item)), Version(item.version)
        older = None
        if item.status == "inspected":
            if last := known.get(key):
                older = last[2] if last[0] == version else last[1]
            known[key] = version, item, older
        if older is None:
            changed.append(item)
            continue
        both = {*item.targets} & {*older.targets}
        gained = tuple(t for t in item.targets if t not in both)
        lost = tuple(t for t in older.targets if t not in both)
        changed.append(replace(item, gained=gained, lost=lost))
    return reversed(changed)


def _processor(item: ReleaseSummary) -> str:
    for name in ("x86_64", "aarch64", "amd64", "arm64"):
        if item.platform.endswith(name):
            return f"{item.platform[:3]}{name}"
    return item.platform


def _text(value: object) -> str | None:
    return None if value is None else str(value)


_TILES = {
    (True, False): ("code", "t2", "SASS (machine code)"),
    (True, True): ("code +PTX", "t2 ptx", "SASS, and PTX that newer GPUs can use"),
    (False, True): ("PTX", "t3 ptx", "PTX alone, which the driver compiles"),
}
"""The text, CSS classes and meaning of a tile. The key is whether a build has SASS, and
whether it has PTX, for a target."""

_MOST_COLUMNS = 200
"""The maximum number of columns for targets; real projects have at most forty."""

_LOST = ("lost", "cpu", "nothing now; the release before had code")


def census_page(projects: Iterable[ProjectSummary]) -> Iterator[str]:
    """Return the lines of the HTML page, in ASCII.

    Each project has a table with a row for each build, and a column for each GPU that
    any of its builds has code for.
    """
    return as_page(
        title="Census of GPU code",
        heading="Census of GPU code",
        lead="The GPU code of each build: a column for each compute capability, "
        "such as 90 for 9.0.",
        body=itertools.chain(
            as_legend((*_TILES.values(), _LOST)),
            (line for project in projects for line in _section(project)),
        ),
    )


def _section(project: ProjectSummary) -> Iterator[str]:
    yield f"<h2>{as_html(project.project)}</h2>"
    builds = project.with_gpu_code
    others = [item for item in project.releases if not item.targets]
    if builds:
        numbers = list(dict.fromkeys(t.partition("_")[0] for t in project.targets))
        numbers.sort(key=lambda number: (int(number.rstrip("af")), number))
        if len(numbers) > _MOST_COLUMNS:
            yield f"<p>Only {_MOST_COLUMNS} of {len(numbers)} targets are shown.</p>"
            del numbers[_MOST_COLUMNS:]
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
            # Let a platform wrap at its underscores on a narrow screen.
            f'<td class="about">{as_html(text or "-").replace("_", "_<wbr>")}</td>'
            for text in (item.label, item.platform, item.cuda)
        ),
    ]
    targets = {*item.targets}
    lost = {target.partition("_")[0] for target in item.lost}
    for number in numbers:
        has = f"{number}_real" in targets, f"{number}_virtual" in targets
        tile = _TILES.get(has) or (_LOST if number in lost else None)
        cells.append(f'<td class="{tile[1]}">{tile[0]}</td>' if tile else "<td></td>")
    return f"<tr>{''.join(cells)}</tr>"


def _others(items: Sequence[ReleaseSummary]) -> Iterator[str]:
    """Yield sentences about the builds that have no row."""
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
    return listed(list(dict.fromkeys(names)), 10)


COLUMNS: Mapping[str, str] = {
    "project": "string",
    "version": "string",
    "label": "string",
    "filename": "string",
    "tags": "string",
    "url": "string",
    "sha256": "string",
    "hashed": "bool",
    "size": "int64",
    "upload_time": "string",
    "cuda": "string",
    "complete": "bool",
    "library": "string",
    "vendored": "bool",
    "tests": "bool",
    "target": "string",
    "count": "int64",
    "stubs": "int64",
    "ptx_isa": "string",
}
"""The columns of an export, with their types in Arrow."""

_ROWS = """
SELECT path AS library, vendored, is_test(libraries.path) AS tests,
       target, count, stubs, ptx_isa
FROM targets CROSS JOIN libraries USING (wheel, path, copy)
WHERE wheel = ?
ORDER BY path, copy, target
"""

_LONGEST = 500
"""The maximum length of a text in a row. The texts of a wheel are repeated for each of
its targets, and its URL may have 64 KiB."""

_BATCH = 16 * 1024 * 1024
"""The approximate size of the rows in memory at a time, in characters."""


def export(store: Store, path: str) -> int:
    """Export a store to a file, which is written atomically.

    :param path: the file, whose suffix selects the form.
    :returns: the number of rows.
    :raises UsageError: the suffix is unknown.
    :raises InputError: the file cannot be written.
    :raises MissingExtraError: Parquet needs the extra ``census``.
    """
    writers: Mapping[str, Callable[[Store, IO[bytes]], int]] = {
        ".parquet": _write_parquet,
        ".jsonl": _write_lines,
        ".csv": _write_csv,
        ".json": _write_builds,
    }
    ending = os.path.splitext(path)[1].lower()
    if ending not in writers:
        message = f"the ending {ending or '(none)'!r} is not known"
        raise UsageError(message, path=path, hint=f"use one of {', '.join(writers)}")
    # The order matters: `replacing` would report an invalid row as an invalid path.
    with replacing(path) as file, store.intact():
        return writers[ending](store, file)


def target_rows(store: Store) -> Iterator[dict[str, Any]]:
    """Yield a row for each target of each library, sorted by project and file."""
    for wheel in store.wheels("status = 'inspected'"):
        about = {name: _cell(wheel[name], name) for name in [*COLUMNS][:12]}
        for row in store.rows(_ROWS, [wheel["id"]]):
            yield {**about, **{name: _cell(row[name], name) for name in row.keys()}}  # noqa: SIM118


def _cell(value: Any, column: str) -> Any:
    """Return a value with the type of its column, and a long text without its end."""
    if value is None:
        return None
    if COLUMNS[column] == "string":
        return value if len(value) <= _LONGEST else f"{value[:_LONGEST]}..."
    return bool(value) if COLUMNS[column] == "bool" else int(value)


def _write_lines(store: Store, file: IO[bytes]) -> int:
    count = 0
    for row in target_rows(store):
        line = harmless(json.dumps(row, separators=(",", ":")))
        file.write(line.encode() + b"\n")
        count += 1
    return count


def _write_csv(store: Store, file: IO[bytes]) -> int:
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    writer = csv.DictWriter(text, COLUMNS)
    writer.writeheader()
    count = 0
    for row in target_rows(store):
        writer.writerow(
            {k: as_csv(v) if isinstance(v, str) else v for k, v in row.items()}
        )
        count += 1
    # Leave the file open, because the caller moves it into place.
    text.detach()
    return count


def _write_parquet(store: Store, file: IO[bytes]) -> int:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        message = f"Parquet needs the extra census: {error.name} is not installed"
        hint = "pip install 'nvp[census]'"
        raise MissingExtraError(message, hint=hint) from None
    types = {"string": pa.string(), "int64": pa.int64(), "bool": pa.bool_()}
    schema = pa.schema([(name, types[kind]) for name, kind in COLUMNS.items()])
    count = size = 0

    def number_of(row: Mapping[str, object]) -> int:
        nonlocal size
        size += 1000 + sum(len(x) for x in row.values() if isinstance(x, str))
        return size // _BATCH

    with parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        for _, rows in groupby(target_rows(store), key=number_of):
            batch = list(rows)
            writer.write_table(pa.Table.from_pylist(batch, schema=schema))
            count += len(batch)
    return count


def _write_builds(store: Store, file: IO[bytes]) -> int:
    records = build_table(store)
    lines = harmless(",\n".join(json.dumps(record.to_dict()) for record in records))
    file.write(f'{{"records": [\n{lines}\n]}}\n'.encode())
    return len(records)


_OF_BUILDS = """
status = 'inspected' AND complete AND (hashed OR NOT EXISTS (
    SELECT 1 FROM wheels AS other
    WHERE other.key = 'sha256:' || wheels.sha256 || '#' || wheels.filename))
"""
"""The rows for the table of builds: without those of a wheel that was also hashed."""


_Build: TypeAlias = tuple[str, str, str, str]
"""The project, canonical version, label (may be empty) and platform of a build."""


def build_table(store: Store) -> list[BuildRecord]:
    """Return the table of builds, from regular wheels that were read completely.

    Variant wheels are left out, because a release's variants.json has more facts. If a
    server has several wheels of a build, the last file name represents it. Builds that
    differ between two servers or wheels of one name are left out, with a warning.
    """
    builds: dict[_Build, dict[str, BuildRecord]] = {}
    files: dict[tuple[object, str], str] = {}
    disputed = set()
    with store.intact():
        for row in store.wheels(_OF_BUILDS):
            record = _record(store, row)
            if record is None:
                continue
            # The keys are texts: a stranger can choose versions with equal hashes.
            version = canonicalize_version(Version(record.version))
            build = record.project, version, record.label or "", record.platform
            url, file = row["url"], row["filename"]
            server = server_of(url) if is_http(url) else os.path.dirname(url)
            records = builds.setdefault(build, {})
            is_again = files.get((build, server)) == file
            if is_again and _differ(records[server], record):
                disputed.add(build)
            records[server], files[build, server] = record, file
    for build, records in builds.items():
        first, *others = records.values()
        if any(_differ(first, other) for other in others):
            disputed.add(build)
    if disputed:
        lost = [next(iter(builds[x].values())) for x in sorted(disputed, key=_order_of)]
        names = [
            f"{x.project} {x.version}{f'+{x.label}' if x.label else ''}" for x in lost
        ]
        logger.warning(
            "builds are left out, because wheels differ: %s", shown(listed(names, 10))
        )
    kept = sorted(builds.keys() - disputed, key=_order_of)
    return [list(builds[build].values())[-1] for build in kept]


def _order_of(build: _Build) -> tuple[str, Version, str, str]:
    project, version, label, platform = build
    return project, Version(version), label, platform


def _differ(one: BuildRecord, other: BuildRecord) -> bool:
    """Return whether two records for a build have other needs, or hashes of a file."""
    hashes = dict(other.wheels)
    return one.needs.to_dict() != other.needs.to_dict() or any(
        hashes.get(name, sha256) != sha256 for name, sha256 in one.wheels.items()
    )


def _record(store: Store, row: Any) -> BuildRecord | None:
    platform = platform_of(row["tags"].rpartition("-")[2])
    is_variant = f"-{row['label']}.whl" in row["filename"]
    if platform is None or is_variant:
        return None
    needs = needs_of_report(store.report(row["id"]))
    if needs is None:
        return None
    date = row["inspected_at"].partition("T")[0]
    return BuildRecord(
        project=row["project"],
        version=row["version"],
        label=row["label"],
        platform=platform,
        needs=needs_in_table(needs, date),
        wheels={row["filename"]: row["sha256"]} if row["sha256"] else {},
        source="inspected",
        date=date,
    )
