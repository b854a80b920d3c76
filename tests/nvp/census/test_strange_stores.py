"""A store from another person cannot run an endless query, or delete another file."""

from __future__ import annotations

import os
import sqlite3
import struct
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from support.command import Run
from support.containers import BINARIES

from nvidia_variant_provider.errors import InputError
from nvp import api
from nvp.census.model import Outcome, Wheel
from nvp.census.report import export
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
        ("DROP TABLE targets", "CREATE TABLE targets AS SELECT * FROM claims"),
        (
            "ALTER TABLE libraries RENAME TO kept",
            "CREATE TABLE Libraries (path PRIMARY KEY, Wheel)",
        ),
        # A join of two such tables would have the square of their rows.
        (
            "CREATE TABLE new (wheel, path, copy, target, count, stubs, ptx_isa, id, "
            "PRIMARY KEY (wheel, id)) WITHOUT ROWID",
            "DROP TABLE targets",
            "ALTER TABLE new RENAME TO targets",
        ),
        ("DROP TABLE wheels", "PRAGMA user_version = 6"),
    ],
)
def test_a_store_that_computes_its_rows(path: str, changes: tuple[str, ...]) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for change in changes:
            connection.execute(change)
    with pytest.raises(InputError, match="its tables are not those of a census"):
        Store(path)


def test_a_page_that_is_linked_again_and_again(path: str) -> None:
    """Twenty levels of such pages would have more rows than a program can read."""
    with Store(path) as store:
        (row,) = store.rows("SELECT rootpage FROM sqlite_master WHERE name = 'wheels'")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
    data = bytearray(Path(path).read_bytes())
    (size,) = struct.unpack(">H", data[16:18])
    start = (row["rootpage"] - 1) * size
    leaf, number = data[start : start + size], len(data) // size + 1
    cells = b"".join(struct.pack(">IB", number, key) for key in range(100))
    first = size - len(cells)
    head = struct.pack(">BHHHBI", 5, 0, 100, first, 0, number)
    places = struct.pack(">100H", *range(first, size, 5))
    data[start : start + size] = (head + places).ljust(first, b"\0") + cells
    data[28:32] = struct.pack(">I", number)
    Path(path).write_bytes(data + leaf)
    with pytest.raises(InputError, match="cannot be used: it is damaged"):
        Store(path)


def test_a_list_of_tables_without_end(path: str) -> None:
    """SQLite reads the whole list in one step, which no signal ends."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
        names = [*connection.execute("SELECT name, sql IS NULL FROM sqlite_master")]
    data = bytearray(Path(path).read_bytes())
    (size,) = struct.unpack(">H", data[16:18])
    pages = len(data) // size
    count, first = struct.unpack(">HH", data[103:107])
    offsets = struct.unpack(f">{count}H", data[108 : 108 + 2 * count])
    (index,) = (n for n, (name, empty) in enumerate(names) if empty and "wh" in name)

    def page(places: Sequence[int], kind: int, content: bytes, more: bytes) -> bytes:
        head = struct.pack(">BHHHB", kind, 0, len(places), size - len(content), 0)
        body = head + more + struct.pack(f">{len(places)}H", *places)
        return body.ljust(size - len(content), b"\0") + content

    rows = bytes(data[first:size])
    added = [page(offsets, 13, rows, b""), page([offsets[index]] * 40, 13, rows, b"")]
    for _ in range(5):  # each page names the one before it 300 times
        child = pages + len(added)
        cells = b"".join(struct.pack(">IB", child, key % 128) for key in range(300))
        places = range(size - len(cells), size, 5)
        added.append(page(places, 5, cells, struct.pack(">I", child)))
    top = struct.pack(">IB", pages + 1, 1)
    last = struct.pack(">I", pages + len(added))
    whole = page([size - 5], 5, top, last)
    data[100:size] = whole[: size - 105] + top
    data[28:32] = struct.pack(">I", pages + len(added))
    Path(path).write_bytes(data + b"".join(added))
    with pytest.raises(InputError, match="cannot be used: interrupted"):
        Store(path)


def test_an_error_that_is_not_utf_8(path: str) -> None:
    data = Path(path).read_bytes()
    assert b"CREATE TABLE claims" in data
    Path(path).write_bytes(data.replace(b"TABLE claims", b"TABLE\xffclaims"))
    with pytest.raises(InputError, match="the store cannot be used"):
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
    # Without the name, this is the journal of a killed census.
    Path(f"{path}-journal").write_bytes(unfinished[:-16])
    Store(path, create=False).close()
    Path(f"{path}-journal").touch()
    Store(path, create=False).close()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
def test_a_journal_that_waits(path: str) -> None:
    os.mkfifo(f"{path}-journal")
    with pytest.raises(InputError, match="journal cannot be read: not a regular file"):
        Store(path)


@pytest.fixture
def filled(path: str) -> str:
    report = api.inspect(BINARIES / "plain.so")
    (library,) = report.libraries
    report = replace(report, libraries=(replace(library, path="=1+1\n.so"),))
    wheel = Wheel(
        project="demo",
        version="1.0",
        filename="demo-1.0-py3-none-linux_x86_64.whl",
        tags="py3-none-linux_x86_64",
        url="https://example.com/demo-1.0-py3-none-linux_x86_64.whl",
        sha256="0" * 64,
    )
    with Store(path) as store:
        store.add(Outcome(wheel=wheel, status="inspected", report=report, cuda="12.8"))
    return path


@pytest.mark.parametrize(
    ("change", "options"),
    [
        ("UPDATE wheels SET sha256 = X'FF00'", ["--export", "rows.jsonl"]),
        ("UPDATE wheels SET sha256 = X'FF00'", ["--export", "builds.json"]),
        ("UPDATE wheels SET size = 9e999", ["--export", "rows.jsonl"]),
        ("UPDATE targets SET count = 9e999", ["--export", "rows.csv"]),
        ("UPDATE targets SET count = 'x'", ["--export", "rows.jsonl"]),
        ("UPDATE wheels SET seconds = 9e999", ["--report", "--json"]),
        ("UPDATE wheels SET bytes_read = -9e999", ["--report", "--json"]),
        pytest.param(
            "UPDATE targets SET count = 9e999",
            ["--export", "rows.parquet"],
            marks=pytest.mark.skipif(
                find_spec("pyarrow") is None, reason="the extra is not installed"
            ),
        ),
        ("UPDATE wheels SET cuda = 'x'", ["--report"]),
        ("UPDATE wheels SET cuda = 'x'", ["--report", "--json"]),
        ("UPDATE targets SET target = 'x' || target", ["--report", "--format", "html"]),
        (
            "UPDATE libraries SET defects = replace(hex(zeroblob(50000)), '0', '[')",
            ["--export", "builds.json"],
        ),
        (
            "UPDATE libraries SET needed = "
            """'[' || replace(hex(zeroblob(400000)), '0', '"",') || '""]'""",
            ["--export", "builds.json"],
        ),
    ],
)
def test_rows_that_no_census_has_written(
    run: Run, filled: str, tmp_path: Path, change: str, options: list[str]
) -> None:
    with closing(sqlite3.connect(filled, isolation_level=None)) as connection:
        connection.execute(change)
    options = [str(tmp_path / x) if "." in x else x for x in options]
    result = run("census", "-o", filled, *options)
    assert result.code == 3
    assert "a row is not what a census has written" in result.out + result.err


def test_a_name_in_csv_is_no_formula(filled: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    with Store(filled) as store:
        export(store, str(path))
    assert ",'=1+1\\n.so," in path.read_text()


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_a_name_in_an_export_is_no_command_of_a_ci_service(
    filled: str, tmp_path: Path, ending: str
) -> None:
    with closing(sqlite3.connect(filled, isolation_level=None)) as connection:
        for table in ("libraries", "targets"):
            connection.execute(f"UPDATE {table} SET path = '##vso[task.x]y.so'")
    path = tmp_path / f"rows.{ending}"
    with Store(filled) as store:
        assert export(store, str(path)) > 0
    assert "##vso[" not in path.read_text()
    assert r"\u0023#vso[task.x]y.so" in path.read_text()


_REPEATED = {
    "libraries": "'a.so', 0, 'elf', '', {}, 0, '[]', '{{}}', '{{}}', '{{}}', 0, '[]'",
    "targets": "'a.so', 0, '90_real', {}, 0, ''",
}


def test_rows_with_the_same_key(path: str, filled: str, tmp_path: Path) -> None:
    """A file can have such rows, although its tables do not allow them."""
    for table, values in _REPEATED.items():
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            (sql,) = connection.execute(
                "SELECT sql FROM sqlite_master WHERE name = ?", [table]
            ).fetchone()
            rows = connection.execute(f"SELECT * FROM {table}").description
        # SQLite stores rows in the same way if all columns belong to the key.
        key = ", ".join(row[0] for row in rows)
        wide = f"{sql.partition('PRIMARY KEY')[0]}PRIMARY KEY ({key})) WITHOUT ROWID"
        for text in (wide, sql):
            with closing(sqlite3.connect(path, isolation_level=None)) as connection:
                if text == sql:
                    connection.execute(f"DELETE FROM {table}")
                    for number in range(9):
                        row = values.format(number)
                        connection.execute(f"INSERT INTO {table} VALUES (1, {row})")
                connection.execute("PRAGMA writable_schema = ON")
                change = "UPDATE sqlite_master SET sql = ? WHERE name = ?"
                connection.execute(change, [text, table])
    out = tmp_path / "rows.jsonl"
    with Store(filled) as store:
        assert export(store, str(out)) == 9
        targets = [len(item.targets) for item in store.report(1).libraries]
        assert targets == [1, *[0] * 8]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("", "the path is empty"),
        ("a\0b", "the path has a NUL character"),
        (os.devnull, "it is not a regular file"),
        (os.path.join("nowhere", "x"), "unable to open database file"),
    ],
)
@pytest.mark.skipif(os.name == "nt", reason="the null device has another type there")
def test_what_cannot_be_a_store(
    path: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=message):
        Store(path)
    assert not list(tmp_path.iterdir())
