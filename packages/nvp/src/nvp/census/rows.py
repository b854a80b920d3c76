"""The rows of a store, made of what was found in a wheel, and read back."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timezone
from typing import Any

from nvidia_variant_provider.redaction import redacted

from ..gpu_code.report import Defect, LibraryReport, WheelReport, target_key
from ..lint.facts import Unread, WheelFacts
from ..wheels.variant_json import WheelContent
from .model import Outcome

__all__ = [
    "claim_rows",
    "declared_rows",
    "library_row",
    "read_facts",
    "read_library",
    "target_rows",
    "wheel_row",
    "with_copies",
]


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


def wheel_row(outcome: Outcome, inspected_by: str) -> dict[str, object]:
    """Return the row of ``wheels`` for what became of a wheel."""
    wheel, report = outcome.wheel, outcome.report
    return {
        "key": wheel.key,
        "sha256": wheel.hash,
        "project": wheel.project,
        "version": wheel.version,
        "label": wheel.label,
        "filename": wheel.filename,
        "tags": wheel.tags,
        "url": redacted(wheel.url),
        "size": wheel.size,
        "upload_time": wheel.upload_time,
        "status": outcome.status,
        "reason": outcome.reason,
        "may_pass": outcome.may_pass,
        "complete": report is not None and report.complete,
        "cuda": outcome.cuda,
        "requires": json.dumps([] if report is None else list(report.requires)),
        "members": 0 if report is None else report.members,
        "defects": json.dumps(
            [] if report is None else [item.to_dict() for item in report.defects]
        ),
        "bytes_read": outcome.bytes_read,
        "seconds": round(outcome.seconds, 3),
        "inspected_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "inspected_by": inspected_by,
    }


def library_row(wheel: int, copy: int, library: LibraryReport) -> dict[str, object]:
    """Return the row of a library in ``libraries``."""
    return {
        "wheel": wheel,
        "path": library.path,
        "copy": copy,
        "format": library.format,
        "machine": library.machine,
        "size": library.size,
        "vendored": library.vendored,
        "needed": json.dumps(list(library.needed)),
        "lto": json.dumps(dict(library.lto)),
        "unknown": json.dumps(dict(library.unknown)),
        "compression": json.dumps(dict(library.compression)),
        "sections": json.dumps(dict(library.sections)),
        "unchecked": library.unchecked,
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


def declared_rows(wheel: int, outcome: Outcome) -> Iterator[dict[str, object]]:
    """Yield the row of ``declared``, if the wheel was read for the rules of `lint`."""
    facts = outcome.facts
    if facts is None or facts.skipped is not None:
        return
    content, unread = facts.content, facts.unread
    row: dict[str, object] = {
        "wheel": wheel,
        "every_file": outcome.every_file,
        "sha256": facts.sha256,
        "unhashed": facts.unhashed,
        "message": None if unread is None else unread.message,
        "hint": None if unread is None else unread.hint,
        "requires": "[]",
    }
    if content is not None:
        row |= {
            "folder": content.folder,
            "name": content.name,
            "version": content.version,
            "requires": json.dumps(list(content.requires)),
            "tags": None if content.tags is None else json.dumps(list(content.tags)),
            "variant_json": content.variant_json,
        }
    yield row


def read_library(row: Any, targets: Iterable[Any]) -> LibraryReport:
    """Return a library from its row and those of its targets."""
    listed = sorted(targets, key=lambda item: target_key(item["target"]))
    return LibraryReport(
        path=row["path"],
        format=row["format"],
        machine=row["machine"],
        size=row["size"],
        vendored=bool(row["vendored"]),
        targets={item["target"]: item["count"] for item in listed},
        lto=json.loads(row["lto"]),
        stubs={item["target"]: item["stubs"] for item in listed if item["stubs"]},
        ptx_isa={
            item["target"]: tuple(item["ptx_isa"].split(","))
            for item in listed
            if item["ptx_isa"]
        },
        compression=json.loads(row["compression"]),
        sections=json.loads(row["sections"]),
        needed=tuple(json.loads(row["needed"])),
        unknown=json.loads(row["unknown"]),
        unchecked=row["unchecked"],
        defects=tuple(Defect(**item) for item in json.loads(row["defects"])),
    )


def read_facts(row: Any, report: Callable[[], WheelReport]) -> WheelFacts:
    """Return what was found in a wheel from its row in ``declared``.

    :param report: returns the GPU code, which takes more queries.
    """
    unread = None
    if row["message"] is not None:
        unread = Unread(message=row["message"], hint=row["hint"])
    if row["folder"] is None:
        return WheelFacts(sha256=row["sha256"], unread=unread)
    tags = row["tags"]
    return WheelFacts(
        sha256=row["sha256"],
        unhashed=row["unhashed"],
        content=WheelContent(
            variant_json=row["variant_json"],
            folder=row["folder"],
            name=row["name"],
            version=row["version"],
            requires=tuple(json.loads(row["requires"])),
            tags=None if tags is None else json.loads(tags),
        ),
        report=report(),
        unread=unread,
    )
