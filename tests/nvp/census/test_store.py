"""The store keeps its rows, regardless of the end of the process."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.containers import BINARIES, container, entry, library
from support.paths import ROOT
from support.wheels import stub_wheel

from nvidia_variant_provider.errors import InputError
from nvp import api
from nvp.census import store as store_module
from nvp.census.model import Claimed, Outcome, Status, Wheel
from nvp.census.store import APPLICATION, MIGRATIONS, VERSION, Store


def wheel(number: int = 1) -> Wheel:
    return Wheel(
        project="demo",
        version=f"1.{number}",
        filename=f"demo-1.{number}-py3-none-any.whl",
        tags="py3-none-any",
        url=f"https://example.com/demo-1.{number}-py3-none-any.whl",
        sha256=f"{number:064x}",
    )


def outcome(number: int = 1, status: Status = "inspected") -> Outcome:
    return Outcome(
        wheel=wheel(number),
        status=status,
        report=api.inspect(BINARIES / "plain.so") if status == "inspected" else None,
        claims={"strict": Claimed(lower_bound="13.0", reason="x", sm_arch=["80_real"])},
        cuda="13.0",
    )


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(str(tmp_path / "census.sqlite")) as opened:
        yield opened


def test_what_was_found_comes_back(store: Store) -> None:
    store.add(outcome())
    (row,) = store.wheels()
    assert (row["project"], row["version"], row["cuda"]) == ("demo", "1.1", "13.0")
    (expected,) = api.inspect(BINARIES / "plain.so").libraries
    (library,) = store.report(row["id"]).libraries
    assert library.targets == expected.targets
    assert library.kernels == expected.kernels
    assert library.ptx_isa == expected.ptx_isa
    assert library.needed == expected.needed
    (claim,) = store.rows("SELECT * FROM claims")
    assert claim["sm_arch"] == '["80_real"]'


def test_a_wheel_that_is_added_again_replaces_its_rows(store: Store) -> None:
    store.add(outcome())
    before = [tuple(row) for row in store.rows("SELECT * FROM targets")]
    store.add(outcome())
    after = [tuple(row) for row in store.rows("SELECT * FROM targets")]
    assert [row[1:] for row in before] == [row[1:] for row in after]
    assert len(list(store.wheels())) == 1


ELSEWHERE = replace(wheel(), url="https://other.example/demo.whl")


@pytest.mark.parametrize("hashed", [True, False])
@pytest.mark.parametrize("status", ["inspected", "skipped", "failed"])
def test_a_claimed_hash_says_nothing_of_another_url(
    status: Status, hashed: bool, store: Store
) -> None:
    """Only a hash of all bytes counts for other URLs, and none for another name."""
    store.add(replace(outcome(status=status), wheel=ELSEWHERE, hashed=hashed))
    assert store.is_known(ELSEWHERE)
    assert store.is_known(wheel()) is hashed
    named = replace(wheel(), filename="other-1.1-py3-none-any.whl", project="other")
    assert not store.is_known(named)
    assert not store.is_known(replace(ELSEWHERE, sha256=wheel(2).sha256))


def test_rows_of_one_wheel_replace_each_other(store: Store) -> None:
    def rows() -> list[tuple[str, str]]:
        return sorted((row["url"], row["status"]) for row in store.wheels())

    here, there = wheel().url, ELSEWHERE.url
    store.add(replace(outcome(status="skipped"), wheel=ELSEWHERE))
    store.add(outcome(status="skipped"))
    assert rows() == [(here, "skipped"), (there, "skipped")]
    store.add(replace(outcome(), hashed=True))
    assert rows() == [(here, "inspected"), (there, "skipped")]
    late = Outcome(wheel=wheel(), status="failed", may_pass=True)
    store.add(late)
    store.add(replace(late, hashed=True))
    assert rows() == [(here, "inspected"), (there, "skipped")]
    # A newer version of the reader reads the wheel again, partly.
    store.add(outcome(status="skipped"))
    assert rows() == [(here, "skipped"), (there, "skipped")]
    store.add(replace(outcome(), hashed=True))
    store.add(replace(outcome(), wheel=ELSEWHERE))
    assert rows() == [(here, "inspected"), (there, "inspected")]


@pytest.mark.parametrize(
    ("status", "may_pass", "known"),
    [
        ("inspected", False, True),
        ("inspected", True, False),
        ("skipped", False, True),
        ("failed", False, True),
        ("failed", True, False),
    ],
)
def test_which_wheels_are_read_again(
    status: Status, may_pass: bool, known: bool, store: Store
) -> None:
    assert not store.is_known(wheel())
    store.add(Outcome(wheel=wheel(), status=status, may_pass=may_pass))
    assert store.is_known(wheel()) is known


def test_a_newer_reader_reads_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.add(outcome())
    monkeypatch.setattr(store_module, "READER", store_module.READER + 1)
    assert not store.is_known(wheel())


def test_a_store_is_opened_again(tmp_path: Path) -> None:
    path = str(tmp_path / "census.sqlite")
    with Store(path) as first:
        first.add(outcome())
    with Store(path, create=False) as second:
        assert second.is_known(wheel())


KILLED = """
import os, signal, sys
sys.path[:0] = sys.argv[2:]
from test_store import outcome
from nvp.census.store import Store
with Store(sys.argv[1]) as store:
    store.add(outcome(1))
    store.add(outcome(2))
    store._connection.execute("BEGIN IMMEDIATE")
    store._connection.execute("DELETE FROM wheels")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(os.name == "nt", reason="there is no SIGKILL")
def test_a_kill_loses_only_what_was_not_finished(tmp_path: Path) -> None:
    path = str(tmp_path / "census.sqlite")
    folders = str(Path(__file__).parent), str(ROOT / "tests")
    done = subprocess.run(
        [sys.executable, "-c", KILLED, path, *folders], check=False, timeout=60
    )
    assert done.returncode == -signal.SIGKILL
    with Store(path) as store:
        assert [row["version"] for row in store.wheels()] == ["1.1", "1.2"]
        assert len(list(store.rows("SELECT * FROM targets WHERE wheel = 1"))) == 4


def test_what_is_not_a_store(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("hello " * 1000)
    other = tmp_path / "other.sqlite"
    connection = sqlite3.connect(other)
    connection.execute("CREATE TABLE notes (text)")
    connection.close()
    for path in (text, other, tmp_path):
        before = path.read_bytes() if path.is_file() else b""
        with pytest.raises(InputError) as caught:
            Store(str(path))
        assert caught.value.path == str(path)
        assert (path.read_bytes() if path.is_file() else b"") == before


def test_a_missing_store_is_not_made_to_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such store"):
        Store(str(tmp_path / "missing"), create=False)
    assert not list(tmp_path.iterdir())


def test_a_store_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    path = str(tmp_path / "census.sqlite")
    Store(path).close()
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {VERSION + 1}")
    connection.close()
    with pytest.raises(InputError, match=f"of version {VERSION + 1}"):
        Store(path)


def test_a_locked_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "census.sqlite")
    Store(path).close()
    monkeypatch.setattr(store_module, "_BUSY", 10)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with Store(path) as store, pytest.raises(InputError, match="locked") as caught:
        store.add(outcome())
    other.close()
    assert caught.value.hint == "wait until the other census has ended"


def test_a_store_of_the_first_version_is_migrated(tmp_path: Path) -> None:
    """Its rows stay, and the wheels are read again, because newer readers find more."""
    path = str(tmp_path / "census.sqlite")
    with closing(sqlite3.connect(path, isolation_level=None)) as first:
        first.executescript(MIGRATIONS[0])
        first.execute(f"PRAGMA application_id = {APPLICATION}")
        first.execute("PRAGMA user_version = 1")
        known = wheel()
        first.execute(
            "INSERT INTO wheels VALUES (7, ?, ?, 'demo', '1.1', NULL, ?, ?, ?, 9, "
            "NULL, 'inspected', NULL, 0, 1, '13.0', '[]', 3, '[]', 9, 0.1, "
            "'2026-01-01', '1 0.1.0')",
            [known.key, known.sha256, known.filename, known.tags, known.url],
        )
        first.execute(
            "INSERT INTO libraries VALUES "
            "(7, 'demo/lib.so', 'elf', 'x86_64', 8, 0, '[\"libc.so.6\"]', '[]')"
        )
        first.execute(
            "INSERT INTO targets VALUES (7, 'demo/lib.so', '80_real', 2, 1, NULL)"
        )
        first.execute("INSERT INTO claims VALUES (7, 'strict', '13.0', 'x', '[]')")
    with Store(path) as store:
        assert next(store.rows("PRAGMA user_version"))[0] == VERSION
        (library,) = store.report(7).libraries
        assert (library.path, library.machine) == ("demo/lib.so", "x86_64")
        assert (library.targets, library.stubs) == ({"80_real": 2}, {"80_real": 1})
        assert library.needed == ("libc.so.6",)
        assert library.lto == {}
        assert len(list(store.rows("SELECT * FROM claims"))) == 1
        assert not list(
            store.rows("SELECT * FROM sqlite_master WHERE name = 'declared'")
        )
        assert not store.is_known(known)
        store.add(outcome())
        assert len(list(store.wheels())) == 1
        assert len(list(store.rows("SELECT * FROM targets"))) == 4


def test_a_store_of_the_second_version_keeps_its_wheels(tmp_path: Path) -> None:
    """The second version has tables about the claims of wheels, which are dropped."""
    path, new = (str(tmp_path / f"{name}.sqlite") for name in ("census", "new"))
    with Store(new) as store:
        store.add(outcome())
        report = store.report(1)
    with closing(sqlite3.connect(path, isolation_level=None)) as second:
        numbers = f"PRAGMA application_id = {APPLICATION}; PRAGMA user_version = 2;"
        second.executescript("".join([numbers, *MIGRATIONS[:2]]))
        second.execute("ATTACH ? AS new", [new])
        for table in ("wheels", "libraries", "targets"):
            rows = second.execute(f"SELECT * FROM {table}").description
            names = ", ".join("'{}'" if x[0] == "sections" else x[0] for x in rows)
            second.execute(f"INSERT INTO {table} SELECT {names} FROM new.{table}")
    with Store(path) as store:
        assert next(store.rows("PRAGMA user_version"))[0] == VERSION
        assert store.is_known(wheel())
        assert store.report(1) == report


def test_rows_of_the_fourth_version_count_for_their_urls(tmp_path: Path) -> None:
    """Rows of this version do not record whether the bytes were hashed."""
    path = str(tmp_path / "census.sqlite")
    known = replace(wheel(), sha256="A" * 64)
    unnamed, late = (replace(wheel(number), sha256=None) for number in (2, 3))
    with closing(sqlite3.connect(path, isolation_level=None)) as fourth:
        for script in MIGRATIONS[:4]:
            fourth.executescript(script)
        fourth.execute(f"PRAGMA application_id = {APPLICATION}")
        fourth.execute("PRAGMA user_version = 4")
        for key, item, status in (
            (f"sha256:{known.hash}", known, "skipped"),
            (unnamed.url, unnamed, "skipped"),
            (late.url, late, "failed"),
        ):
            fourth.execute(
                "INSERT INTO wheels VALUES (NULL, ?, ?, 'demo', '1.1', NULL, ?, ?, ?, "
                "9, NULL, ?, NULL, 0, 1, NULL, '[]', 3, '[]', 9, 0.1, '2026-01-01', "
                "'2 0.1.0')",
                [key, item.hash, item.filename, item.tags, item.url, status],
            )
    with Store(path) as store:
        assert next(store.rows("PRAGMA user_version"))[0] == VERSION
        assert store.is_known(known)
        assert store.is_known(replace(known, sha256="a" * 64))
        assert store.is_known(unnamed)
        assert not store.is_known(late)
        assert not store.is_known(replace(known, url=ELSEWHERE.url))
        store.add(Outcome(wheel=known, status="skipped", hashed=True))
        assert [row["hashed"] for row in store.wheels()] == [1, 0, 0]


def test_a_report_comes_back_as_it_was(store: Store, tmp_path: Path) -> None:
    """The rules judge a wheel by its report, which may be new or from the store."""
    code = library("80_real", "90_virtual", isa=(9, 2))
    members = {
        "demo/a.so": code + container(entry(8)),
        "demo/b.so": code[:-9],
        "demo/kernels.cubin": b"\x7fELF broken",
        "demo/c.so": library() + container(entry(32)),
    }
    path = stub_wheel(tmp_path, "demo", "1.1", members=members, requires=["numpy"])
    with (
        zipfile.ZipFile(path, "a") as archive,
        pytest.warns(UserWarning, match="Duplicate name"),
    ):
        archive.writestr("demo/a.so", library("90_real"))
    report = replace(api.inspect(path), path=wheel().filename)
    assert [item.path for item in report.libraries].count("demo/a.so") == 2
    assert any(item.lto for item in report.libraries)
    assert any(item.unknown for item in report.libraries)
    assert report.all_defects
    store.add(Outcome(wheel=wheel(), status="inspected", report=report))
    (row,) = store.wheels()
    assert store.report(row["id"]) == replace(report, size=0)


@pytest.mark.parametrize(
    ("before", "now", "known"),
    [
        ({"size": 5}, {"size": 5}, True),
        ({"size": 5}, {"size": 6}, False),
        ({"upload_time": "a"}, {"upload_time": "b"}, False),
        ({"size": 5, "upload_time": "a"}, {"size": 5, "upload_time": "a"}, True),
        ({}, {}, True),
    ],
)
def test_a_file_that_was_not_hashed_has_to_be_the_same(
    store: Store, before: dict[str, Any], now: dict[str, Any], known: bool
) -> None:
    # The page of a directory may have the hash of another file.
    for unhashed in (replace(wheel(), sha256=None), wheel(2)):
        store.add(Outcome(wheel=replace(unhashed, **before), status="inspected"))
        assert store.is_known(replace(unhashed, **now)) is known


def test_a_page_says_nothing_of_a_file_that_it_gives_another_name(
    store: Store,
) -> None:
    """Any page may name a file of any index, whose own page may have no hashes."""
    honest = replace(wheel(), sha256=None)
    lie = replace(honest, filename="other-1.1-py3-none-any.whl", project="other")
    store.add(Outcome(wheel=lie, status="failed", reason="it is of another project"))
    assert store.is_known(lie)
    assert not store.is_known(honest)


@pytest.mark.parametrize("status", ["failed", "skipped"])
def test_a_failure_that_may_pass_replaces_no_inspected_wheel(
    store: Store, status: Status
) -> None:
    """A full disk has no room for a wheel whose server sends only whole files."""
    store.add(outcome())
    store.add(Outcome(wheel=wheel(), status=status, may_pass=True, reason="late"))
    (row,) = store.wheels()
    assert row["status"] == "inspected"
    store.add(Outcome(wheel=wheel(), status="failed", reason="damaged"))
    (row,) = store.wheels()
    assert row["status"] == "failed"


@pytest.mark.skipif(os.name == "nt", reason="no file has such a name there")
def test_a_store_is_always_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite would keep a store of this name in memory, and lose it."""
    monkeypatch.chdir(tmp_path)
    with Store(":memory:") as store:
        store.add(outcome())
    with Store(":memory:", create=False) as again:
        assert len(list(again.wheels())) == 1


def test_names_that_are_not_text(store: Store) -> None:
    """A directory whose name is not UTF-8 has lone surrogates in Python."""
    odd = replace(wheel(), sha256=None, url="/i\udcff/x.whl", upload_time="a", size=1)
    given = Outcome(wheel=odd, status="inspected")
    store.add(given)
    store.add(given)
    assert store.is_known(odd)
    (row,) = store.wheels()
    assert row["url"] == "/i\\udcff/x.whl"


def test_wheels_with_the_same_word_for_a_hash_are_two(store: Store) -> None:
    for name in ("a", "b"):
        odd = replace(wheel(), sha256="\x1b[31m", url=f"https://example.com/{name}.whl")
        assert not store.is_known(odd)
        store.add(Outcome(wheel=odd, status="skipped"))
    rows = list(store.wheels())
    assert [row["sha256"] for row in rows] == [None, None]


def test_capital_letters_are_the_same_hash(store: Store) -> None:
    store.add(Outcome(wheel=replace(wheel(), sha256="a" * 64), status="skipped"))
    assert store.is_known(replace(wheel(), sha256="A" * 64))


def test_rows_that_are_not_all_taken(tmp_path: Path) -> None:
    with Store(str(tmp_path / "census.sqlite")) as store:
        store.add(outcome(1))
        store.add(outcome(2))
        rows = store.wheels()
        next(rows)
    rows.close()  # type: ignore[attr-defined]  # it is a generator


def test_two_processes_make_one_store(tmp_path: Path) -> None:
    class Late(Store):
        def _transaction(self) -> Any:
            Store(path).close()
            return super()._transaction()

    path = str(tmp_path / "census.sqlite")
    Late(path).close()
