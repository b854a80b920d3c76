"""What a store holds, as files for other programs.

The ending of the name tells the form: ``.parquet``, ``.jsonl`` and ``.csv`` have a row
for each target of each library, and ``.json`` is the table of builds.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import os
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any

from packaging.version import Version

from nvidia_variant_provider.errors import MissingExtraError, UsageError

from ..builds.needs import needs_of_report
from ..files import replacing
from ..knowledge.builds import BuildRecord, needs_in_table
from ..wheels.archive import platform_of
from .store import Store

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
"""The columns of a row, with their types as Arrow names them."""

_ROWS = """
SELECT project, version, label, filename, tags, url, sha256, hashed,
       wheels.size AS size, upload_time, cuda, complete,
       targets.path AS library, vendored, is_test(targets.path) AS tests,
       target, count, stubs, ptx_isa
FROM targets
JOIN libraries USING (wheel, path, copy)
JOIN wheels ON wheels.id = wheel
WHERE status = 'inspected'
ORDER BY project, filename, key, targets.path, copy, target
"""

_BATCH = 16_384
"""Rows that are in memory at a time."""


def export(store: Store, path: str) -> int:
    """Write a file, completely or not at all.

    :param path: its ending says which form it gets.
    :returns: how many rows it has.
    :raises UsageError: the ending is not known.
    :raises InputError: it cannot be written.
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
        known = ", ".join(writers)
        message = f"the ending {ending or '(none)'!r} is not known"
        raise UsageError(message, path=path, hint=f"use one of {known}")
    with replacing(path) as file:
        return writers[ending](store, file)


def target_rows(store: Store) -> Iterator[dict[str, Any]]:
    """Yield a row for each target of each library, by project, file and library."""
    for row in store.rows(_ROWS):
        values = dict(row)
        for name in ("hashed", "complete", "vendored", "tests"):
            values[name] = bool(values[name])
        yield values


def _write_lines(store: Store, file: IO[bytes]) -> int:
    count = 0
    for row in target_rows(store):
        file.write(json.dumps(row, separators=(",", ":")).encode() + b"\n")
        count += 1
    return count


def _write_csv(store: Store, file: IO[bytes]) -> int:
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    writer = csv.DictWriter(text, COLUMNS)
    writer.writeheader()
    count = 0
    for row in target_rows(store):
        writer.writerow(row)
        count += 1
    # The file stays open: the caller puts it in its place.
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
    types = {"string": pa.string(), "int64": pa.int64()}
    types["bool"] = pa.bool_()
    schema = pa.schema([(name, types[kind]) for name, kind in COLUMNS.items()])
    rows, count = target_rows(store), 0
    with parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        while batch := list(itertools.islice(rows, _BATCH)):
            writer.write_table(pa.Table.from_pylist(batch, schema=schema))
            count += len(batch)
    return count


def _write_builds(store: Store, file: IO[bytes]) -> int:
    records = build_table(store)
    lines = ",\n".join(json.dumps(record.to_dict()) for record in records)
    file.write(f'{{"records": [\n{lines}\n]}}\n'.encode())
    return len(records)


def build_table(store: Store) -> list[BuildRecord]:
    """Return the table of builds of ordinary wheels that could be read completely.

    Wheels with a variant label have a variants.json, which says more. Of several wheels
    of one build, the one whose name is last has its record.
    """
    records: dict[tuple[str, Version, str, str], BuildRecord] = {}
    with store.intact():
        for row in store.wheels("status = 'inspected' AND complete"):
            record = _record(store, row)
            if record is not None:
                version, label = Version(record.version), record.label or ""
                records[record.project, version, label, record.platform] = record
        return [records[key] for key in sorted(records)]


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
