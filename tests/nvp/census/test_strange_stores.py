"""A store of a stranger runs no endless query, and deletes no other file."""

from __future__ import annotations

import os
import sqlite3
import struct
from contextlib import closing
from pathlib import Path

import pytest

from nvidia_variant_provider.errors import InputError
from nvp.census.store import Store

_ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c)"
_VIEW = f"CREATE VIEW wheels AS {_ENDLESS} SELECT kept.* FROM kept, c WHERE x < 0"
_MAGIC = bytes.fromhex("d9d505f920a163d7")


@pytest.fixture
def path(tmp_path: Path) -> str:
    path = str(tmp_path / "census.sqlite")
    Store(path).close()
    return path


@pytest.mark.parametrize(
    "changes",
    [
        ("ALTER TABLE wheels RENAME TO kept", _VIEW),
        ("CREATE TRIGGER t AFTER INSERT ON wheels BEGIN DELETE FROM wheels; END",),
        ("ALTER TABLE wheels ADD COLUMN more TEXT AS (hex(zeroblob(400000000)))",),
    ],
)
def test_a_store_that_computes_its_rows(path: str, changes: tuple[str, ...]) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for change in changes:
            connection.execute(change)
    with pytest.raises(InputError, match="it computes its rows"):
        Store(path)


def test_the_memory_of_a_value_is_bounded(path: str) -> None:
    with Store(path) as store, pytest.raises(MemoryError):
        next(store.rows("SELECT hex(zeroblob(400000000))"))


def journal(path: str, other: str) -> bytes:
    """Return the journal of an unfinished change that also concerns another file."""
    data = Path(path).read_bytes()
    (size,) = struct.unpack(">H", data[16:18])
    total = sum(data[place] for place in range(size - 200, 0, -200))
    head = struct.pack(">IIIII", 1, 0, len(data) // size, 512, size)
    page = struct.pack(">I", 1) + data[:size] + struct.pack(">I", total)
    name = os.fsencode(other)
    end = struct.pack(">II", len(name), sum(name)) + _MAGIC
    locked = struct.pack(">I", 2**30 // size + 1)
    return (_MAGIC + head).ljust(512, b"\0") + page + locked + name + end


def test_a_journal_that_names_another_file(path: str, tmp_path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
    letter = tmp_path / "letter"
    letter.write_text("dear")
    unfinished = journal(path, str(letter))
    Path(f"{path}-journal").write_bytes(unfinished)
    with pytest.raises(InputError, match="would delete another file"):
        Store(path, create=False)
    assert letter.read_text() == "dear"
    # Without the name, the journal is that of a census that was killed.
    Path(f"{path}-journal").write_bytes(unfinished[:-16])
    Store(path, create=False).close()
    Path(f"{path}-journal").touch()
    Store(path, create=False).close()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
def test_a_journal_that_waits(path: str) -> None:
    os.mkfifo(f"{path}-journal")
    with pytest.raises(InputError, match="journal cannot be read: not a regular file"):
        Store(path)
