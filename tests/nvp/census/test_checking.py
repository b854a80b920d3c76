"""``validate INDEX --store STORE``: the same findings, and no wheel is read twice."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.command import Run
from support.containers import library
from support.content_cases import CASES
from support.damaged_index import damaged_index, serve_index
from support.stored_checks import check, labelled, same, wheel_bytes
from support.wheels import stub_wheel

from nvidia_variant_provider.errors import InputError
from nvp import api
from nvp.census import fact_reading
from nvp.census import store as store_module
from nvp.census.fact_reading import read_for_rules
from nvp.census.model import Wheel as ListedWheel
from nvp.census.reading import Meter
from nvp.census.store import Store
from nvp.index.http.blocking import BlockingClient
from nvp.index.threads import is_running
from nvp.lint.facts import Unread


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index with a defect of each kind; no test changes it."""
    return damaged_index(tmp_path_factory.mktemp("damaged"))


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_folder_has_the_same_findings(
    damaged: Path, jobs: int, tmp_path: Path
) -> None:
    expected = check(damaged)
    codes = {finding.code for finding in expected.findings}
    assert {code for code in codes if code.startswith(("NV4", "NV5"))} >= {
        *(f"NV4{n:02d}" for n in range(1, 17)),
        *(f"NV5{n:02d}" for n in range(1, 15)),
    }
    store = tmp_path / "census.sqlite"
    first = check(damaged, store, jobs=jobs)
    same(first, expected)
    assert first.read.outcomes
    second = check(damaged, store, jobs=jobs)
    same(second, expected)
    assert second.read.outcomes == []


def test_a_project_is_judged_after_the_listing_with_the_same_client(
    damaged: Path, tmp_path: Path
) -> None:
    """A client that the listing closed would have started another thread, or hung."""
    with serve_index(damaged) as server:
        url = f"{server.url}/simple/"
        check(url, tmp_path / "census.sqlite", hashes=False)
        assert wheel_bytes(server) > 0
    assert not is_running()


@pytest.mark.parametrize(
    "options",
    [{}, pytest.param({"hashes": False}, marks=pytest.mark.slow)],
    ids=["hashes", "parts"],
)
def test_a_server_has_the_same_findings(
    damaged: Path, options: dict[str, Any], tmp_path: Path
) -> None:
    store = tmp_path / "census.sqlite"
    with serve_index(damaged) as server:
        url = f"{server.url}/simple/"
        expected = check(url, **options)
        server.sent.clear()
        first = check(url, store, jobs=2, **options)
        same(first, expected)
        assert wheel_bytes(server) == first.read.bytes > 0
        server.sent.clear()
        second = check(url, store, jobs=2, **options)
        same(second, expected)
        # A wheel without a hash, a size and a time may be another one today.
        read = {outcome.wheel.filename for outcome in second.read.outcomes}
        assert read == {path.name for path in (damaged / "content01").glob("*.whl")}
        assert wheel_bytes(server) == second.read.bytes
        if not options:
            assert {"NV417", "NV418", "NV501"} <= {f.code for f in second.findings}


def test_a_second_run_reads_no_byte_of_a_wheel(damaged: Path, tmp_path: Path) -> None:
    """A counting server says so, and not the program that is tested."""
    index = tmp_path / "index"
    shutil.copytree(damaged, index, ignore=shutil.ignore_patterns("content01"))
    store = tmp_path / "census.sqlite"
    with serve_index(index) as server:
        first = check(f"{server.url}/simple/", store)
        wheels = sum(path.stat().st_size for path in index.rglob("*.whl"))
        assert wheel_bytes(server) == first.read.bytes
        assert 0 < wheel_bytes(server) <= wheels
        server.sent.clear()
        server.requests.clear()
        second = check(f"{server.url}/simple/", store)
        assert wheel_bytes(server) == 0
        assert not [line for line in server.requests if ".whl" in line]
        same(second, first)


@pytest.mark.slow
def test_a_real_cluster_has_the_same_findings(damaged: Path, tmp_path: Path) -> None:
    pytest.importorskip("distributed", reason="the extra census is not installed")
    from support.dask_cluster import dask_cluster

    expected = check(damaged)
    store = tmp_path / "census.sqlite"
    with dask_cluster(tmp_path) as cluster:
        first = check(damaged, store, dask=cluster.address)
        second = check(damaged, store, dask=cluster.address)
    same(first, expected)
    same(second, expected)
    assert second.read.outcomes == []


def test_what_a_census_has_read_is_not_read_again(tmp_path: Path, run: Run) -> None:
    """The two verbs share one store, and what one of them has read serves both."""
    folder, store = tmp_path / "index" / "demo", tmp_path / "census.sqlite"
    labelled(folder)
    stub_wheel(folder, "demo", "1.0", "null", variant_json={"variants": {"null": {}}})
    assert run("census", tmp_path / "index", "-o", store).code == 0
    checked = check(tmp_path / "index", store)
    assert checked.read.outcomes == []
    same(checked, check(tmp_path / "index"))
    (store).unlink()
    check(tmp_path / "index", store)
    outcome = run("census", tmp_path / "index", "-o", store)
    assert "2 known before" in outcome.out


def test_both_verbs_write_the_same_rows(tmp_path: Path) -> None:
    from support.census_runs import rows

    folder = tmp_path / "index" / "demo"
    for number, case in enumerate(CASES.values()):
        replace(case.trigger, label=f"x{number}").write(folder)
    stub_wheel(folder, "demo", "1.0", "null", variant_json={"variants": {"null": {}}})
    one, other = tmp_path / "one.sqlite", tmp_path / "other.sqlite"
    api.census(tmp_path / "index", one, every_wheel=True, jobs=1)
    check(tmp_path / "index", other)
    assert rows(one) == rows(other)
    assert len(rows(one)["targets"]) > 30


def test_files_that_a_census_leaves_out_are_read_once(tmp_path: Path, run: Run) -> None:
    """A census reads no file that is no library by its name; the rules need them."""
    folder, store = tmp_path / "index" / "demo", tmp_path / "census.sqlite"
    members = {"demo/data.bin": library("80_real")}
    labelled(folder, libraries=members, tag="py3-none-any")
    assert "1 skipped" in run("census", tmp_path / "index", "-o", store).out
    first = check(tmp_path / "index", store)
    assert len(first.read.outcomes) == 1
    assert "NV501" in {finding.code for finding in first.findings}
    second = check(tmp_path / "index", store)
    assert second.read.outcomes == []
    same(second, first)


def test_a_wheel_of_an_older_reader_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "census.sqlite"
    labelled(tmp_path / "demo")
    check(tmp_path / "demo", store)
    monkeypatch.setattr(store_module, "READER", store_module.READER + 1)
    again = check(tmp_path / "demo", store)
    assert len(again.read.outcomes) == 1
    assert check(tmp_path / "demo", store).read.outcomes == []


def test_a_file_that_has_changed_is_read_again(tmp_path: Path) -> None:
    store = tmp_path / "census.sqlite"
    labelled(tmp_path / "demo")
    check(tmp_path / "demo", store)
    labelled(tmp_path / "demo", sm=["80_real", "90_real", "100_real"])
    again = check(tmp_path / "demo", store)
    assert len(again.read.outcomes) == 1
    same(again, check(tmp_path / "demo"))


def test_hashes_in_the_page_of_a_folder_name_the_same_files(
    tmp_path: Path, run: Run
) -> None:
    """`census` reads ``index.html`` of a project's folder, and `validate` does not."""
    folder, store = tmp_path / "index" / "demo", tmp_path / "census.sqlite"
    path = labelled(folder)
    link = f'<a href="{path.name}#sha256={"0" * 64}">{path.name}</a>'
    (folder / "index.html").write_text(link)
    run("census", tmp_path / "index", "-o", store)
    checked = check(tmp_path / "index", store)
    assert checked.read.outcomes == []
    same(checked, check(tmp_path / "index"))


def test_a_file_that_changes_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = labelled(tmp_path)
    original = fact_reading._has_native

    def change(file: Any) -> bool:
        os.utime(path, (1, 1))
        return original(file)

    monkeypatch.setattr(fact_reading, "_has_native", change)
    wheel = ListedWheel(
        project="demo", version="1.0", filename=path.name, tags="a-b-c", url=str(path)
    )
    outcome = read_for_rules(wheel, Meter(60), BlockingClient, hashes=True)
    assert (outcome.status, outcome.may_pass) == ("failed", True)
    assert outcome.reason == "it has changed while it was read"
    assert outcome.facts is not None
    assert outcome.facts.unread == Unread(message=outcome.reason, hint="try again")


BAD_STORES: Sequence[tuple[str, str]] = [
    ("text", "file is not a database"),
    ("other", "it is not a store"),
    ("newer", "it is a store of version 99, and"),
    ("folder", "it is not a regular file"),
    ("locked", "database is locked"),
]


BAD = {
    "other": "CREATE TABLE x (y)",
    "newer": "PRAGMA user_version = 99",
    "locked": "BEGIN IMMEDIATE",
}


@pytest.mark.parametrize(("kind", "message"), BAD_STORES)
def test_a_bad_store(
    kind: str,
    message: str,
    tmp_path: Path,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(store_module, "_BUSY", 10)
    labelled(tmp_path / "demo")
    path = tmp_path / "census.sqlite"
    if kind == "text":
        path.write_text("no database" * 100)
    elif kind == "folder":
        path.mkdir()
    elif kind != "other":
        Store(str(path)).close()
    with ExitStack() as stack:
        if kind in BAD:
            connection = stack.enter_context(closing(sqlite3.connect(path)))
            connection.isolation_level = None
            connection.execute(BAD[kind])
        outcome = run("validate", tmp_path / "demo", "--store", path)
    assert outcome.code == InputError.exit_code
    assert outcome.out == ""
    (line,) = outcome.err.splitlines()
    assert line.startswith(f"error: {path}: ")
    assert message in line


@pytest.mark.parametrize("name", ["x.whl", "x-variants.json", "-", "nowhere", ""])
def test_a_store_is_for_an_index(name: str, tmp_path: Path, run: Run) -> None:
    if name.startswith("x"):
        (tmp_path / name).write_bytes(b"{}")
        name = str(tmp_path / name)
    store = tmp_path / "census.sqlite"
    outcome = run("validate", tmp_path, name, "--store", store)
    assert outcome.code == 2
    (line,) = outcome.err.splitlines()
    assert "--store is for an index" in line
    assert not store.exists()


def test_a_cluster_needs_a_store(tmp_path: Path, run: Run) -> None:
    outcome = run("validate", tmp_path, "--dask", "tcp://127.0.0.1:9")
    assert outcome.code == 2
    assert "--dask is for --store" in outcome.err


def test_the_verb(tmp_path: Path, run: Run) -> None:
    store = tmp_path / "census.sqlite"
    labelled(tmp_path / "index" / "demo")
    plain = run("validate", tmp_path / "index", "--json")
    stored = run(
        "validate", tmp_path / "index", "--store", store, "--json", "--jobs", 1
    )
    assert stored.code == plain.code == 1
    assert json.loads(stored.out) == json.loads(plain.out)
    text = run("validate", tmp_path / "index", "--store", store)
    assert text.out == run("validate", tmp_path / "index").out


def test_the_function(tmp_path: Path) -> None:
    labelled(tmp_path / "demo")
    findings = api.validate(
        [tmp_path / "demo"], store=tmp_path / "census.sqlite", jobs=1
    )
    assert findings == api.validate([tmp_path / "demo"])


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE wheels SET inspected_by = 'x'",
        "UPDATE wheels SET defects = '{'",
        "UPDATE wheels SET requires = '5'",
        "UPDATE libraries SET needed = '5'",
        "UPDATE libraries SET lto = '[]', defects = '[1]'",
        "UPDATE declared SET tags = '{'",
        "UPDATE declared SET requires = 'x'",
    ],
)
def test_rows_that_no_census_has_written(change: str, tmp_path: Path, run: Run) -> None:
    store = tmp_path / "census.sqlite"
    labelled(tmp_path / "demo")
    run("validate", tmp_path / "demo", "--store", store, "--jobs", 1)
    with closing(sqlite3.connect(store, isolation_level=None)) as connection:
        connection.execute(change)
    outcome = run("validate", tmp_path / "demo", "--store", store)
    assert outcome.code == InputError.exit_code
    (line,) = outcome.err.splitlines()
    assert f"{store}: a row is not what a census has written: " in line
