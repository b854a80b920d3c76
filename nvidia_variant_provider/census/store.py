"""The store of a census: one SQLite file, written in one transaction per wheel.

A process that is killed at any moment leaves the wheels that it had finished. SQLite
keeps a write-ahead log, so that readers do not wait for the writer.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from types import TracebackType
from typing import Any

from .. import __version__
from ..errors import InputError
from ..gpu_code.report import Defect, LibraryReport, WheelReport
from ..redaction import redacted
from .model import Outcome, Wheel
from .schema import APPLICATION, MIGRATIONS, VERSION

__all__ = ["READER", "Store"]

READER = 1
"""The version of the reader. It rises when `gpu_code` finds other things in the same
wheel, and wheels that an older reader has read are read again."""

_HINT = "name a store that census has made, or another file"
_BUSY = 10_000
"""Milliseconds to wait for another process that writes."""


class Store:
    """An open store; use it in a ``with`` block, in one thread.

    :param path: a file that is made where there is none.
    :param create: whether it may be made.
    :raises InputError: the file is not a store, is of a newer version, is locked, or
        cannot be written.
    """

    def __init__(self, path: str, *, create: bool = True) -> None:
        self._path = path
        if not create and not os.path.isfile(path):
            raise InputError("there is no such store", path=path, hint=_HINT)
        with self._errors():
            self._connection = sqlite3.connect(path, timeout=_BUSY / 1000)
            self._connection.isolation_level = None
            self._connection.row_factory = sqlite3.Row
        try:
            self._prepare()
        except BaseException:
            self._connection.close()
            raise

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; everything is written already."""
        self._connection.close()

    def _prepare(self) -> None:
        with self._errors():
            version = self._pragma("user_version")
            application = self._pragma("application_id")
            tables = self._value("SELECT count(*) FROM sqlite_master")
        if application != APPLICATION and (version or tables):
            raise InputError("it is not a store", path=self._path, hint=_HINT)
        if version > VERSION:
            message = f"it is a store of version {version}, and {VERSION} is known"
            hint = "pip install --upgrade nvidia-variant-provider"
            raise InputError(message, path=self._path, hint=hint)
        with self._errors():
            self._connection.execute("PRAGMA foreign_keys = ON")
            # What is written survives the end of this process. A power failure may take
            # the last wheels, which are read again then; it damages nothing.
            self._connection.execute("PRAGMA synchronous = NORMAL")
            if version == VERSION:
                return
            self._connection.execute("PRAGMA journal_mode = WAL")
            with self._transaction():
                for script in MIGRATIONS[version:]:
                    for statement in filter(str.strip, script.split(";")):
                        self._connection.execute(statement)
                self._connection.execute(f"PRAGMA application_id = {APPLICATION}")
                self._connection.execute(f"PRAGMA user_version = {VERSION}")

    def is_known(self, wheel: Wheel) -> bool:
        """Return whether a wheel does not have to be read again.

        It has to if it is new, if it failed for a reason that may have passed, or if
        an older reader has read it. Where nothing gives its hash, it also has to if its
        size or its time is another one.
        """
        with self._errors():
            row = self._connection.execute(
                "SELECT status, may_pass, inspected_by, size, upload_time FROM wheels "
                "WHERE key = ?",
                [wheel.key],
            ).fetchone()
        if row is None or (row["status"] == "failed" and row["may_pass"]):
            return False
        if wheel.sha256 is None:
            now = (wheel.size, wheel.upload_time)
            pairs = zip(now, (row["size"], row["upload_time"]), strict=True)
            if any(value is not None and value != before for value, before in pairs):
                return False
        return int(row["inspected_by"].partition(" ")[0]) >= READER

    def add(self, outcome: Outcome) -> None:
        """Write what became of a wheel, in place of what is there of it."""
        with self._errors(), self._transaction():
            self._connection.execute(
                "DELETE FROM wheels WHERE key = ?", [outcome.wheel.key]
            )
            number = self._insert("wheels", [_wheel_row(outcome)])
            report = outcome.report
            if report is not None:
                for library in report.libraries:
                    self._insert("libraries", [_library_row(number, library)])
                    self._insert("targets", _target_rows(number, library))
            self._insert("claims", _claim_rows(number, outcome))

    def rows(self, sql: str, values: Iterable[object] = ()) -> Iterator[sqlite3.Row]:
        """Yield the rows of a query, one by one."""
        with self._errors():
            yield from self._connection.execute(sql, tuple(values))

    def wheels(self, where: str = "1", values: Iterable[object] = ()) -> Iterator[Any]:
        """Yield the rows of ``wheels``, by project, file name and hash."""
        return self.rows(
            f"SELECT * FROM wheels WHERE {where} "  # noqa: S608  # it is the code's own
            "ORDER BY project, filename, key",
            values,
        )

    def report(self, wheel: int) -> WheelReport:
        """Return what was found in a wheel, as `inspect` reported it.

        :param wheel: its ``id``.
        """
        (row,) = self.rows("SELECT * FROM wheels WHERE id = ?", [wheel])
        targets: dict[str, list[sqlite3.Row]] = {}
        for item in self.rows("SELECT * FROM targets WHERE wheel = ?", [wheel]):
            targets.setdefault(item["path"], []).append(item)
        return WheelReport(
            path=row["filename"],
            kind="wheel",
            size=row["size"] or 0,
            members=row["members"],
            libraries=tuple(
                _read_library(item, targets.get(item["path"], ()))
                for item in self.rows(
                    "SELECT * FROM libraries WHERE wheel = ? ORDER BY path", [wheel]
                )
            ),
            defects=tuple(Defect(**item) for item in json.loads(row["defects"])),
            requires=tuple(json.loads(row["requires"])),
        )

    def _insert(self, table: str, rows: Iterable[Mapping[str, object]]) -> int:
        number = 0
        for row in rows:
            names = ", ".join(row)
            marks = ", ".join("?" * len(row))
            cursor = self._connection.execute(
                f"INSERT INTO {table} ({names}) VALUES ({marks})",  # noqa: S608
                tuple(row.values()),
            )
            number = cursor.lastrowid or 0
        return number

    def _pragma(self, name: str) -> int:
        return self._value(f"PRAGMA {name}")

    def _value(self, sql: str) -> int:
        return int(self._connection.execute(sql).fetchone()[0])

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Say in one line what SQLite could not do."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            message = f"the store cannot be used: {error}"
            text = str(error)
            hint = _HINT
            if "locked" in text:
                hint = "wait until the other census has ended"
            elif "full" in text or "I/O" in text:
                hint = "free some space, and run the same command again"
            raise InputError(message, path=self._path, hint=hint) from None


def _wheel_row(outcome: Outcome) -> dict[str, object]:
    wheel, report = outcome.wheel, outcome.report
    return {
        "key": wheel.key,
        "sha256": wheel.sha256,
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
        "inspected_by": f"{READER} {__version__}",
    }


def _library_row(wheel: int, library: LibraryReport) -> dict[str, object]:
    return {
        "wheel": wheel,
        "path": library.path,
        "format": library.format,
        "machine": library.machine,
        "size": library.size,
        "vendored": library.vendored,
        "needed": json.dumps(list(library.needed)),
        "defects": json.dumps([item.to_dict() for item in library.defects]),
    }


def _target_rows(wheel: int, library: LibraryReport) -> Iterator[dict[str, object]]:
    for target, count in library.targets.items():
        isa = library.ptx_isa.get(target)
        yield {
            "wheel": wheel,
            "path": library.path,
            "target": target,
            "count": count,
            "stubs": library.stubs.get(target, 0),
            "ptx_isa": ",".join(isa) if isa else None,
        }


def _claim_rows(wheel: int, outcome: Outcome) -> Iterator[dict[str, object]]:
    for bound, claim in outcome.claims.items():
        yield {
            "wheel": wheel,
            "bound": bound,
            "cuda_version_lower_bound": claim.lower_bound,
            "reason": claim.reason,
            "sm_arch": json.dumps(list(claim.sm_arch)),
        }


def _read_library(row: Any, targets: Iterable[Any]) -> LibraryReport:
    listed = list(targets)
    return LibraryReport(
        path=row["path"],
        format=row["format"],
        machine=row["machine"],
        size=row["size"],
        vendored=bool(row["vendored"]),
        targets={item["target"]: item["count"] for item in listed},
        stubs={item["target"]: item["stubs"] for item in listed if item["stubs"]},
        ptx_isa={
            item["target"]: tuple(item["ptx_isa"].split(","))
            for item in listed
            if item["ptx_isa"]
        },
        needed=tuple(json.loads(row["needed"])),
        defects=tuple(Defect(**item) for item in json.loads(row["defects"])),
    )
