"""The store keeps what was found, whatever happens to the process."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.containers import BINARIES

from nvidia_variant_provider import api
from nvidia_variant_provider.census import store as store_module
from nvidia_variant_provider.census.model import Claimed, Outcome, Status, Wheel
from nvidia_variant_provider.census.schema import VERSION
from nvidia_variant_provider.census.store import Store
from nvidia_variant_provider.errors import InputError


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


@pytest.mark.parametrize(
    ("status", "may_pass", "known"),
    [
        ("inspected", False, True),
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
sys.path.insert(0, sys.argv[2])
from census.test_store import outcome
from nvidia_variant_provider.census.store import Store
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
    tests = str(Path(__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", KILLED, path, tests], check=False, timeout=60
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
