"""The tables of a store, and the rows that hold what was found in a wheel."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from typing import Any

from nvidia_variant_provider.errors import redacted

from ..gpu_code.report import Defect, LibraryReport, target_key
from .model import Outcome

APPLICATION = 0x4E565043
"""``PRAGMA application_id`` of a store, which tells it from other SQLite files."""

_FIRST = """
CREATE TABLE wheels (
    id INTEGER PRIMARY KEY,
    key TEXT NOT NULL UNIQUE,
    sha256 TEXT,
    project TEXT NOT NULL,
    version TEXT NOT NULL,
    label TEXT,
    filename TEXT NOT NULL,
    tags TEXT NOT NULL,
    url TEXT NOT NULL,
    size INTEGER,
    upload_time TEXT,
    status TEXT NOT NULL CHECK (status IN ('inspected', 'skipped', 'failed')),
    reason TEXT,
    may_pass INTEGER NOT NULL,
    complete INTEGER NOT NULL,
    cuda TEXT,
    requires TEXT NOT NULL,
    members INTEGER NOT NULL,
    defects TEXT NOT NULL,
    bytes_read INTEGER NOT NULL,
    seconds REAL NOT NULL,
    inspected_at TEXT NOT NULL,
    inspected_by TEXT NOT NULL
);
CREATE INDEX wheels_by_project ON wheels (project, version);
CREATE TABLE libraries (
    wheel INTEGER NOT NULL REFERENCES wheels (id) ON DELETE CASCADE,
    path TEXT NOT NULL,
    format TEXT NOT NULL,
    machine TEXT NOT NULL,
    size INTEGER NOT NULL,
    vendored INTEGER NOT NULL,
    needed TEXT NOT NULL,
    defects TEXT NOT NULL,
    PRIMARY KEY (wheel, path)
) WITHOUT ROWID;
CREATE TABLE targets (
    wheel INTEGER NOT NULL REFERENCES wheels (id) ON DELETE CASCADE,
    path TEXT NOT NULL,
    target TEXT NOT NULL,
    count INTEGER NOT NULL,
    stubs INTEGER NOT NULL,
    ptx_isa TEXT,
    PRIMARY KEY (wheel, path, target)
) WITHOUT ROWID;
CREATE INDEX targets_by_target ON targets (target);
CREATE TABLE claims (
    wheel INTEGER NOT NULL REFERENCES wheels (id) ON DELETE CASCADE,
    bound TEXT NOT NULL CHECK (bound IN ('strict', 'relaxed')),
    cuda_version_lower_bound TEXT,
    reason TEXT NOT NULL,
    sm_arch TEXT NOT NULL,
    PRIMARY KEY (wheel, bound)
) WITHOUT ROWID;
"""

_SECOND = """
CREATE TABLE new_libraries (
    wheel INTEGER NOT NULL REFERENCES wheels (id) ON DELETE CASCADE,
    path TEXT NOT NULL,
    copy INTEGER NOT NULL,
    format TEXT NOT NULL,
    machine TEXT NOT NULL,
    size INTEGER NOT NULL,
    vendored INTEGER NOT NULL,
    needed TEXT NOT NULL,
    lto TEXT NOT NULL,
    unknown TEXT NOT NULL,
    compression TEXT NOT NULL,
    sections TEXT NOT NULL,
    unchecked INTEGER NOT NULL,
    defects TEXT NOT NULL,
    PRIMARY KEY (wheel, path, copy)
) WITHOUT ROWID;
INSERT INTO new_libraries
SELECT wheel, path, 0, format, machine, size, vendored, needed, '{}', '{}', '{}', '{}',
       0, defects
FROM libraries;
DROP TABLE libraries;
ALTER TABLE new_libraries RENAME TO libraries;
CREATE TABLE new_targets (
    wheel INTEGER NOT NULL REFERENCES wheels (id) ON DELETE CASCADE,
    path TEXT NOT NULL,
    copy INTEGER NOT NULL,
    target TEXT NOT NULL,
    count INTEGER NOT NULL,
    stubs INTEGER NOT NULL,
    ptx_isa TEXT,
    PRIMARY KEY (wheel, path, copy, target)
) WITHOUT ROWID;
INSERT INTO new_targets
SELECT wheel, path, 0, target, count, stubs, ptx_isa FROM targets;
DROP TABLE targets;
ALTER TABLE new_targets RENAME TO targets;
CREATE INDEX targets_by_target ON targets (target);
CREATE INDEX wheels_by_url ON wheels (url);
CREATE TABLE declared (
    wheel INTEGER PRIMARY KEY REFERENCES wheels (id) ON DELETE CASCADE,
    every_file INTEGER NOT NULL,
    sha256 TEXT,
    unhashed TEXT,
    message TEXT,
    hint TEXT,
    folder TEXT,
    name TEXT,
    version TEXT,
    requires TEXT NOT NULL,
    tags TEXT,
    variant_json BLOB
);
"""
"""``copy`` tells members of an archive that have the same name."""

_THIRD = """
DROP TABLE declared;
DROP INDEX wheels_by_url;
"""
"""``declared`` had what wheels say about themselves, for an option that is gone."""

_FOURTH = """
CREATE TABLE new_libraries (
    wheel INTEGER NOT NULL REFERENCES wheels (id) ON DELETE CASCADE,
    path TEXT NOT NULL,
    copy INTEGER NOT NULL,
    format TEXT NOT NULL,
    machine TEXT NOT NULL,
    size INTEGER NOT NULL,
    vendored INTEGER NOT NULL,
    needed TEXT NOT NULL,
    lto TEXT NOT NULL,
    unknown TEXT NOT NULL,
    compression TEXT NOT NULL,
    unchecked INTEGER NOT NULL,
    defects TEXT NOT NULL,
    PRIMARY KEY (wheel, path, copy)
) WITHOUT ROWID;
INSERT INTO new_libraries
SELECT wheel, path, copy, format, machine, size, vendored, needed, lto, unknown,
       compression, unchecked, defects
FROM libraries;
DROP TABLE libraries;
ALTER TABLE new_libraries RENAME TO libraries;
"""
"""The column ``sections`` went: nothing used it."""

MIGRATIONS = (_FIRST, _SECOND, _THIRD, _FOURTH)
"""What makes version N of the tables from version N-1; 0 is an empty file. Never change
an entry: people have stores that were made with it."""

VERSION = len(MIGRATIONS)
"""``PRAGMA user_version`` of a store that is up to date."""


def with_copies(
    libraries: Iterable[LibraryReport],
) -> Iterator[tuple[int, LibraryReport]]:
    """Yield libraries with the number of each among those of the same name.

    A damaged archive may have several members of one name.
    """
    counts: Counter[str] = Counter()
    for library in libraries:
        yield counts[library.path], library
        counts[library.path] += 1


_OF_WHEEL = ("project", "version", "label", "filename", "tags", "size", "upload_time")
_OF_OUTCOME = ("status", "reason", "may_pass", "cuda", "bytes_read")
_OF_LIBRARY = ("path", "format", "machine", "size", "unchecked")
_COUNTS = ("lto", "unknown", "compression")
"""The columns that are fields of the same name; those of `_COUNTS` are JSON."""


def wheel_row(outcome: Outcome, inspected_by: str) -> dict[str, object]:
    """Return the row of ``wheels`` for what became of a wheel."""
    wheel, report = outcome.wheel, outcome.report
    return {
        "key": wheel.key,
        "sha256": wheel.hash,
        **_fields(wheel, _OF_WHEEL),
        "url": redacted(wheel.url),
        **_fields(outcome, _OF_OUTCOME),
        "complete": report is not None and report.complete,
        "requires": json.dumps([] if report is None else list(report.requires)),
        "members": 0 if report is None else report.members,
        "defects": json.dumps(
            [] if report is None else [item.to_dict() for item in report.defects]
        ),
        "seconds": round(outcome.seconds, 3),
        "inspected_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "inspected_by": inspected_by,
    }


def _fields(record: object, names: Iterable[str]) -> dict[str, object]:
    return {name: getattr(record, name) for name in names}


def library_row(wheel: int, copy: int, library: LibraryReport) -> dict[str, object]:
    """Return the row of a library in ``libraries``."""
    return {
        "wheel": wheel,
        "copy": copy,
        **_fields(library, _OF_LIBRARY),
        "vendored": library.vendored,
        "needed": json.dumps(list(library.needed)),
        **{name: json.dumps(dict(getattr(library, name))) for name in _COUNTS},
        "defects": json.dumps([item.to_dict() for item in library.defects]),
    }


def target_rows(
    wheel: int, copy: int, library: LibraryReport
) -> Iterator[dict[str, object]]:
    """Yield the rows of a library in ``targets``."""
    for target, count in library.targets.items():
        isa = library.ptx_isa.get(target)
        yield {
            "wheel": wheel,
            "path": library.path,
            "copy": copy,
            "target": target,
            "count": count,
            "stubs": library.stubs.get(target, 0),
            "ptx_isa": ",".join(isa) if isa else None,
        }


def claim_rows(wheel: int, outcome: Outcome) -> Iterator[dict[str, object]]:
    """Yield the rows of a wheel in ``claims``."""
    for bound, claim in outcome.claims.items():
        yield {
            "wheel": wheel,
            "bound": bound,
            "cuda_version_lower_bound": claim.lower_bound,
            "reason": claim.reason,
            "sm_arch": json.dumps(list(claim.sm_arch)),
        }


def read_library(row: Any, targets: Iterable[Any]) -> LibraryReport:
    """Return a library from its row and those of its targets."""
    listed = sorted(targets, key=lambda item: target_key(item["target"]))
    return LibraryReport(
        **{name: row[name] for name in _OF_LIBRARY},
        vendored=bool(row["vendored"]),
        targets={item["target"]: item["count"] for item in listed},
        stubs={item["target"]: item["stubs"] for item in listed if item["stubs"]},
        ptx_isa={
            item["target"]: tuple(item["ptx_isa"].split(","))
            for item in listed
            if item["ptx_isa"]
        },
        **{name: json.loads(row[name]) for name in _COUNTS},
        needed=tuple(json.loads(row["needed"])),
        defects=tuple(Defect(**item) for item in json.loads(row["defects"])),
    )
