"""The store of a census: one SQLite file, written in one transaction per wheel.

A killed process leaves all finished wheels in the store. SQLite uses a write-ahead log,
so readers do not wait for the writer.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from datetime import datetime, timezone
from typing import Any

from nvidia_variant_provider.errors import InputError, ProviderError, redacted, shown
from nvidia_variant_provider.strict_json import LARGE_BYTES, open_regular, parse_json

from .. import __version__
from ..files import is_planted, read_resource
from ..gpu_code.report import Defect, LibraryReport, WheelReport, is_test, target_key
from .model import Outcome, Wheel

APPLICATION = 0x4E565043
"""``PRAGMA application_id`` of a store, to recognize it among SQLite files."""

_SQL = read_resource("census", "tables.sql")
MIGRATIONS = re.split("^-- Version .*", _SQL, flags=re.MULTILINE)[1:]
"""SQL that migrates from version N-1 to N; version 0 is an empty file."""

VERSION = len(MIGRATIONS)
"""``PRAGMA user_version`` of an up-to-date store."""


def with_copies(
    libraries: Iterable[LibraryReport],
) -> Iterator[tuple[int, LibraryReport]]:
    """Yield each library with its number among libraries with the same name, from 0.

    A damaged archive may have several members with the same name.
    """
    counts: Counter[str] = Counter()
    for library in libraries:
        yield counts[library.path], library
        counts[library.path] += 1


_OF_WHEEL = ("project", "version", "label", "filename", "tags", "size", "upload_time")
_OF_OUTCOME = ("status", "reason", "may_pass", "cuda", "bytes_read", "hashed")
_OF_LIBRARY = ("path", "format", "machine", "size", "unchecked")
_COUNTS = ("lto", "unknown", "compression")
"""All these columns have the names of fields. The columns of `_COUNTS` contain JSON."""


def wheel_row(outcome: Outcome, inspected_by: str) -> dict[str, object]:
    """Return the row of ``wheels`` for an outcome."""
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


def _load(text: Any) -> Any:
    try:
        return parse_json(text, limit=LARGE_BYTES)
    except InputError as error:  # `Store.intact` names the file
        raise ValueError(error.message) from None


def read_library(row: Any, targets: Iterable[Any]) -> LibraryReport:
    """Return a library, given its row and the rows of its targets."""
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
        **{name: _load(row[name]) for name in _COUNTS},
        needed=tuple(_load(row["needed"])),
        defects=tuple(Defect(**item) for item in _load(row["defects"])),
    )


READER = 2
"""The version of the reader. Raise it when the results of `gpu_code` change: wheels
with results of an older version are read again."""

_HINT = "name a store that census has made, or another file"
_INVALID = (
    *(ArithmeticError, AttributeError, LookupError),
    *(RecursionError, TypeError, ValueError),
)
"""The errors of code that reads a row which no census has written."""

_BUSY = 10_000
"""The time to wait for another writer, in milliseconds."""

_MEMORY = 2**28
"""The maximum memory of SQLite in bytes: values in a stranger's store may be huge."""

_TABLES = "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY name"

_NAMES_ANOTHER = bytes.fromhex("d9d505f920a163d7")
"""The last bytes of a rollback journal that names another file for SQLite to delete."""


class Store:
    """An open store; use it in a ``with`` block, in one thread.

    :param path: the path of the file.
    :param create: whether to create a missing file.
    :raises InputError: the file is not a store, has a newer version, is locked, or
        cannot be written.
    """

    def __init__(self, path: str, *, create: bool = True) -> None:
        self._path = path
        message = _why_no_file(path, create=create)
        if message is not None:
            raise InputError(message, path=path or "''", hint=_HINT)
        with self._errors():
            # SQLite would take a name such as ":memory:" for a database in memory.
            place = os.path.abspath(path)
            self._connection = sqlite3.connect(place, timeout=_BUSY / 1000)
            self._connection.isolation_level = None
            self._connection.row_factory = sqlite3.Row
            self._connection.create_function("is_test", 1, is_test, deterministic=True)
        try:
            self._prepare()
        except BaseException:
            self._connection.close()
            raise

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; every row has already been written."""
        self._connection.close()

    def _prepare(self) -> None:
        with self._errors():
            # No signal would end SQLite in a list of tables without end.
            self._connection.set_progress_handler(lambda: 1, 1_000_000)
            # Another process may be making the store: look at one state of it.
            self._connection.execute("BEGIN")
            version = self._pragma("user_version")
            application = self._pragma("application_id")
            tables = [*map(tuple, self._connection.execute(_TABLES))]
            self._connection.execute("COMMIT")
            self._connection.set_progress_handler(None, 0)
        if application != APPLICATION and (version or tables):
            raise InputError("it is not a store", path=self._path, hint=_HINT)
        if version > VERSION:
            message = f"it is a store of version {version}, and {VERSION} is known"
            hint = "pip install --upgrade nvp"
            raise InputError(message, path=self._path, hint=hint)
        if tables != _tables_of(version):
            # To read a view or to join tables with other keys might never end.
            message = "its tables are not those of a census"
            raise InputError(message, path=self._path, hint=_HINT)
        with self._errors():
            self._connection.execute(f"PRAGMA hard_heap_limit = {_MEMORY}")
            # A page of the file that is linked again and again has rows without end.
            if self._connection.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
                raise sqlite3.DatabaseError("it is damaged")
            self._connection.execute("PRAGMA foreign_keys = ON")
            # A power failure may lose the last wheels, which are then read again.
            self._connection.execute("PRAGMA synchronous = NORMAL")
            if version == VERSION:
                return
            with suppress(sqlite3.OperationalError):  # another process is doing it
                self._connection.execute("PRAGMA journal_mode = WAL")
            with self._transaction():
                # Another process may have migrated the store since the first look.
                version = self._pragma("user_version")
                for script in MIGRATIONS[version:]:
                    for statement in filter(str.strip, script.split(";")):
                        self._connection.execute(statement)
                self._connection.execute(f"PRAGMA application_id = {APPLICATION}")
                self._connection.execute(f"PRAGMA user_version = {VERSION}")

    def is_known(self, wheel: Wheel) -> bool:
        """Return whether a wheel need not be read again.

        A wheel is read again if it is new, if its outcome is not final, or if an older
        reader has read it. Unless all its bytes were hashed, it is also read again if
        its size or time has changed. A fully hashed wheel with the same file name and
        hash, even from another URL, makes reading unnecessary.
        """
        rows = self.rows(
            "SELECT may_pass, inspected_by, hashed, size, upload_time FROM wheels "
            "WHERE key IN (?, ?) AND filename = ?",
            [wheel.key, wheel.hash_key, wheel.filename],
        )
        return any(self._counts(wheel, row) for row in tuple(rows))

    def _counts(self, wheel: Wheel, row: sqlite3.Row) -> bool:
        if row["may_pass"]:
            return False
        same = (getattr(wheel, x) in (None, row[x]) for x in ("size", "upload_time"))
        if not (row["hashed"] or all(same)):
            return False
        with self.intact():
            return int(row["inspected_by"].partition(" ")[0]) >= READER

    def add(self, outcome: Outcome) -> None:
        """Store the outcome of a wheel, and delete an earlier outcome.

        A temporary failure does not replace an earlier result.
        """
        wheel, report = outcome.wheel, outcome.report
        # Keep a row whose key is the hash if it may come from another URL, unless the
        # key of this outcome is also the hash.
        url = None if wheel.has_secrets else wheel.url
        keys = [outcome.key, wheel.key, wheel.hash_key, url]
        same = "(key IN (?, ?) OR (key = ? AND url = ?))"
        with self._errors(), self._transaction():
            if report is None and outcome.may_pass:
                sql = f"SELECT count(*) FROM wheels WHERE {same} AND status != 'failed'"  # noqa: S608
                if self._value(sql, keys):
                    return
            self._connection.execute(
                f"DELETE FROM wheels WHERE {same}",  # noqa: S608  # constant
                _storable(keys),
            )
            number = self._insert(
                "wheels", [wheel_row(outcome, f"{READER} {__version__}")]
            )
            if report is not None:
                for copy, library in with_copies(report.libraries):
                    self._insert("libraries", [library_row(number, copy, library)])
                    self._insert("targets", target_rows(number, copy, library))
            self._insert("claims", claim_rows(number, outcome))

    def rows(self, sql: str, values: Iterable[object] = ()) -> Iterator[sqlite3.Row]:
        """Yield the rows of a query, one by one."""
        with self._errors():
            # "yield from" would close the cursor, which fails if the store is closed.
            for row in self._connection.execute(sql, _storable(values)):  # noqa: UP028
                yield row

    def wheels(self, where: str = "1", values: Iterable[object] = ()) -> Iterator[Any]:
        """Yield the rows of ``wheels``, sorted by project, file name and key."""
        return self.rows(
            f"SELECT * FROM wheels WHERE {where} "  # noqa: S608  # the condition is constant
            "ORDER BY project, filename, key",
            values,
        )

    def report(self, wheel: int) -> WheelReport:
        """Return the report of `inspect` for a wheel.

        :param wheel: the ``id`` of the wheel in the store.
        """
        with self.intact():
            (row,) = self.rows("SELECT * FROM wheels WHERE id = ?", [wheel])
            targets: dict[tuple[str, int], list[sqlite3.Row]] = {}
            for item in self.rows("SELECT * FROM targets WHERE wheel = ?", [wheel]):
                targets.setdefault((item["path"], item["copy"]), []).append(item)
            libraries = self.rows(
                "SELECT * FROM libraries WHERE wheel = ? ORDER BY path, copy", [wheel]
            )
            return WheelReport(
                path=row["filename"],
                kind="wheel",
                size=row["size"] or 0,
                members=row["members"],
                libraries=tuple(
                    read_library(item, targets.pop((item["path"], item["copy"]), ()))
                    for item in libraries
                ),
                defects=tuple(Defect(**item) for item in _load(row["defects"])),
                requires=tuple(_load(row["requires"])),
            )

    def _insert(self, table: str, rows: Iterable[Mapping[str, object]]) -> int:
        number = 0
        for row in rows:
            names = ", ".join(row)
            marks = ", ".join("?" * len(row))
            cursor = self._connection.execute(
                f"INSERT INTO {table} ({names}) VALUES ({marks})",  # noqa: S608
                _storable(row.values()),
            )
            number = cursor.lastrowid or 0
        return number

    def _pragma(self, name: str) -> int:
        return self._value(f"PRAGMA {name}")

    def _value(self, sql: str, values: Iterable[object] = ()) -> int:
        return int(self._connection.execute(sql, _storable(values)).fetchone()[0])

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
    def intact(self) -> Iterator[None]:
        """Turn errors that an invalid row causes into an `InputError`.

        :raises InputError: the block failed to read a row.
        """
        try:
            yield
        except ProviderError:
            raise
        except _INVALID as error:
            reason = shown(f"{type(error).__name__}: {error}", 150)[1:-1]
            message = f"a row is not what a census has written: {reason}"
            hint = "take another store, or make a new one"
            raise InputError(message, path=self._path, hint=hint) from None

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            # Python fails to decode a message of SQLite that quotes damaged text.
            text, hint = str(error), _HINT
            if "locked" in text:
                hint = "wait until the other census has ended"
            elif "full" in text or "I/O" in text:
                hint = "free some space, and run the same command again"
            message = f"the store cannot be used: {text}"
            raise InputError(message, path=self._path, hint=hint) from None


def _tables_of(version: int) -> list[tuple[object, ...]]:
    """Return the tables and indexes of a store of this version."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript("".join(MIGRATIONS[:version]))
        return [*map(tuple, connection.execute(_TABLES))]


def _why_no_file(path: str, *, create: bool) -> str | None:
    if not path or "\0" in path:
        return "the path has a NUL character" if path else "the path is empty"
    if is_planted(path):
        return "it is a link of another user"
    if not os.path.exists(path):
        return None if create else "there is no such store"
    if not os.path.isfile(path):
        return "it is not a regular file"
    real = os.path.realpath(path)
    if any(is_planted(f"{real}-{end}", real) for end in ("wal", "journal", "shm")):
        return "another user has put a journal beside it"
    try:
        with open_regular(f"{real}-journal") as journal:
            # SQLite deletes files that a journal names. A census journal names no file.
            size = journal.seek(0, os.SEEK_END)
            journal.seek(max(size - len(_NAMES_ANOTHER), 0))
            if journal.read() != _NAMES_ANOTHER:
                return None
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"its journal cannot be read: {error.strerror or error}"
    return "its journal is not one of a census, and would delete another file"


def _storable(values: Iterable[object]) -> tuple[object, ...]:
    """Return values that SQLite accepts: texts without lone surrogates.

    Names of local files that are not UTF-8 contain lone surrogates in Python.
    """
    return tuple(
        value.encode("utf-8", "backslashreplace").decode("utf-8")
        if isinstance(value, str) and not value.isascii()
        else value
        for value in values
    )
