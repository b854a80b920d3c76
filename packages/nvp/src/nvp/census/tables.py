"""The tables of a store, and the rows that hold what was found in a wheel."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from typing import Any

from nvidia_variant_provider.errors import redacted

from ..files import read_resource
from ..gpu_code.report import Defect, LibraryReport, target_key
from .model import Outcome

APPLICATION = 0x4E565043
"""``PRAGMA application_id`` of a store, which tells it from other SQLite files."""

_SQL = read_resource("census", "tables.sql")
MIGRATIONS = re.split("^-- Version .*", _SQL, flags=re.MULTILINE)[1:]
"""What makes version N of the tables from version N-1; 0 is an empty file."""

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
_OF_OUTCOME = ("status", "reason", "may_pass", "cuda", "bytes_read", "hashed")
_OF_LIBRARY = ("path", "format", "machine", "size", "unchecked")
_COUNTS = ("lto", "unknown", "compression")
"""The columns that are fields of the same name; those of `_COUNTS` are JSON."""


def wheel_row(outcome: Outcome, inspected_by: str) -> dict[str, object]:
    """Return the row of ``wheels`` for what became of a wheel."""
    wheel, report = outcome.wheel, outcome.report
    return {
        "key": outcome.key,
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
