"""The contents of a store, as files for other programs."""

from __future__ import annotations

import csv
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version
from support.containers import BINARIES
from support.html_page import Page

from nvidia_variant_provider.errors import InputError, UsageError
from nvp import api
from nvp.builds.needs import needs_of_report
from nvp.census import report
from nvp.census.model import Outcome, ProjectSummary, ReleaseSummary, Wheel
from nvp.census.report import (
    COLUMNS,
    build_table,
    census_page,
    export,
    summarize,
)
from nvp.census.store import Store
from nvp.gpu_code.report import WheelReport

PLATFORM = "manylinux_2_28_x86_64"


def add(
    store: Store,
    version: str,
    *binaries: str,
    label: str | None = None,
    platform: str = PLATFORM,
    project: str = "demo",
    host: str = "example.com",
    hashed: bool = False,
    sha256: str | None = None,
) -> None:
    """Add a wheel with some of the small binaries in it."""
    libraries = [api.inspect(BINARIES / name).libraries[0] for name in binaries]
    local = f"+{label}" if label else ""
    filename = f"{project}-{version}{local}-cp312-cp312-{platform}.whl"
    wheel = Wheel(
        project=project,
        version=version,
        filename=filename,
        tags=f"cp312-cp312-{platform}",
        url=f"https://{host}/{filename}",
        label=label,
        sha256=sha256 or hashlib.sha256(filename.encode()).hexdigest(),
    )
    report = WheelReport(path=filename, kind="wheel", libraries=tuple(libraries))
    outcome = Outcome(wheel=wheel, status="inspected", report=report, cuda="13.0")
    store.add(replace(outcome, hashed=hashed))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(str(tmp_path / "census.sqlite")) as opened:
        add(opened, "1.0", "plain.so", "ptx-only.so")
        add(opened, "1.1", "plain.so", label="cu130")
        yield opened


def rows_of(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".parquet":
        parquet = pytest.importorskip("pyarrow.parquet", reason="it reads Parquet")
        rows: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
        return rows
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    with open(path, newline="") as file:
        return [typed(row) for row in csv.DictReader(file)]


def typed(row: dict[str, str]) -> dict[str, Any]:
    """Convert a value of CSV, which has only texts, and an empty text for a missing
    value."""
    readers: dict[str, Callable[[str], object]] = {
        "int64": int,
        "bool": lambda text: text == "True",
        "string": str,
    }
    return {
        name: readers[kind](row[name]) if row[name] else None
        for name, kind in COLUMNS.items()
    }


def test_all_forms_have_the_same_rows(store: Store, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="it writes Parquet")
    exported = []
    for ending in ("parquet", "jsonl", "csv"):
        path = tmp_path / f"rows.{ending}"
        count = export(store, str(path))
        exported.append(rows_of(path))
        assert count == len(exported[-1])
    assert exported[0] == exported[1] == exported[2]
    targets = {(row["version"], row["target"]) for row in exported[0]}
    assert ("1.1", "90_real") in targets
    assert set(exported[0][0]) == set(COLUMNS)


def test_a_row_says_what_inspect_found(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    export(store, str(path))
    (library,) = api.inspect(BINARIES / "plain.so").libraries
    found = {
        row["target"]: (row["count"], row["stubs"])
        for row in rows_of(path)
        if row["version"] == "1.1"
    }
    assert found == {
        target: (count, library.stubs.get(target, 0))
        for target, count in library.targets.items()
    }


def test_the_table_of_builds_says_what_the_wheels_need(store: Store) -> None:
    old, labelled = build_table(store)
    assert (old.version, old.label) == ("1.0", None)
    assert (labelled.version, labelled.label) == ("1.1", "cu130")
    expected = needs_of_report(
        WheelReport(
            path="x",
            kind="wheel",
            libraries=api.inspect(BINARIES / "plain.so").libraries,
        )
    )
    assert expected is not None
    assert labelled.needs.pieces == expected.pieces
    assert labelled.needs.cuda == expected.cuda


def test_the_table_has_no_claims_of_another_index(store: Store) -> None:
    """The hash of a wheel that was read in parts is that of any page."""
    before = build_table(store)
    add(store, "1.1", "plain.so", label="cu130", host="mirror.example")
    assert build_table(store) == before
    for host in ("a.example", "other.example", "zzz.example"):
        add(store, "1.1", "ptx-only.so", label="cu130", host=host)
    assert build_table(store) == before[:1]
    add(store, "1.1", "plain.so", label="cu130", host="zzz.example", hashed=True)
    assert build_table(store) == before


@pytest.mark.parametrize("hashed", [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("host", ["a.example", "zzz.example"])
@pytest.mark.parametrize("binary", ["plain.so", "ptx-only.so"])
def test_no_index_decides_about_a_build_of_another(
    store: Store,
    hashed: tuple[bool, bool],
    host: str,
    binary: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An index can list any build, with the hash of its own wheel."""
    before = build_table(store)
    add(store, "1.1", "plain.so", label="cu130", hashed=hashed[0])
    assert build_table(store) == before
    assert not caplog.messages
    build = {"label": "cu130", "host": host, "hashed": hashed[1], "sha256": "0" * 64}
    add(store, "1.1", binary, **build)  # type: ignore[arg-type]
    assert build_table(store) == before[:1]
    assert "demo 1.1+cu130" in caplog.text


def test_versions_with_equal_hashes_are_not_compared_with_each_other(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[object] = []
    equal = Version.__eq__

    def counted(one: Version, other: object) -> bool:
        compared.append(other)
        return equal(one, other)

    versions = [str(n * (2**61 - 1)) for n in range(1, 50)]
    assert len({hash(Version(version)) for version in versions}) == 1
    for version in versions:
        add(store, version, "plain.so")
    add(store, f"{versions[0]}.0", "plain.so", host="other.example")
    monkeypatch.setattr(Version, "__eq__", counted)
    table = build_table(store)
    assert [item.version for item in table][2:] == [f"{versions[0]}.0", *versions[1:]]
    assert len(compared) < 10 * len(versions)


def test_a_later_file_name_of_another_index_decides_nothing(store: Store) -> None:
    before = build_table(store)
    add(store, "1.0", "plain.so", "ptx-only.so", platform="manylinux_2_40_x86_64")
    assert [item.needs for item in build_table(store)] == [x.needs for x in before]
    late = {"platform": "manylinux_2_99_x86_64", "host": "b.example"}
    add(store, "1.0", "ptx-only.so", **late)  # type: ignore[arg-type]
    assert build_table(store) == before[1:]


def test_the_table_is_that_of_the_package(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "builds.json"
    assert export(store, str(path)) == 2
    document = json.loads(path.read_text())
    assert document["records"] == [item.to_dict() for item in build_table(store)]
    assert path.read_text().count("\n") == 4, "there is one record on each line"


def test_a_file_is_replaced_completely_or_not_at_all(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("old")

    def fail(*_: object, **_options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(InputError, match="cannot be written: No space left"):
        export(store, str(path))
    assert path.read_text() == "old"
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize("name", ["rows", "rows.txt", ".csv"])
def test_an_unknown_ending(name: str, store: Store, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="ending"):
        export(store, str(tmp_path / name))


def test_a_device_is_not_replaced(store: Store, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(InputError, match="not a regular file"):
        export(store, str(tmp_path / "pipe.csv"))


def test_a_folder_that_does_not_exist(store: Store, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        export(store, str(tmp_path / "missing" / "rows.csv"))


class TestSummary:
    def test_what_a_release_has_lost(self, store: Store) -> None:
        add(store, "2.0", "plain.so", platform="manylinux2014_x86_64")
        add(store, "2.1", "new-80.cubin")
        (project,) = summarize(store)
        newest, before, *_ = project.releases
        assert newest.version == "2.1"
        assert newest.gained == ()
        assert "90_real" in newest.lost
        assert before.version == "2.0"
        # The release is compared with 1.0, because 1.1 has another label.
        assert before.lost == ("80_virtual",)

    def test_projects_are_sorted(self, store: Store) -> None:
        add(store, "1.0", "plain.so", project="another")
        projects = [item.project for item in summarize(store)]
        assert projects == ["another", "demo"]

    def test_a_failed_wheel_is_listed_and_not_compared(self, store: Store) -> None:
        wheel = Wheel(
            project="demo",
            version="3.0",
            filename=f"demo-3.0-cp312-cp312-{PLATFORM}.whl",
            tags=f"cp312-cp312-{PLATFORM}",
            url="x",
        )
        store.add(Outcome(wheel=wheel, status="failed", reason="gone"))
        (project,) = summarize(store)
        assert project.releases[0].reason == "gone"
        assert project.releases[0].lost == ()

    def test_an_empty_store(self, tmp_path: Path) -> None:
        with Store(str(tmp_path / "empty.sqlite")) as empty:
            assert list(summarize(empty)) == []


def test_the_page_is_whole_and_escapes_what_others_wrote(store: Store) -> None:
    wheel = Wheel(
        project="demo",
        version="3.0",
        filename=f"demo-3.0-cp312-cp312-{PLATFORM}.whl",
        tags=f"cp312-cp312-{PLATFORM}",
        url="x",
    )
    store.add(Outcome(wheel=wheel, status="failed", reason="<script>alert(1)</script>"))
    add(store, "2.0", "new-80.cubin")
    page = "\n".join(census_page(summarize(store)))
    assert page.isascii()
    assert "<script" not in page
    read = Page(page)
    assert not read.open, "every element has its end"
    assert "lost" in read.tables["census"][-3]


def test_libraries_of_tests_are_told_apart(store: Store, tmp_path: Path) -> None:
    """The report counts the same libraries as `inspect`, and the rows have all of
    them."""
    libraries = tuple(
        replace(api.inspect(BINARIES / name).libraries[0], path=f"demo/{path}")
        for name, path in {"ptx-only.so": "lib.so", "plain.so": "Tests/x.so"}.items()
    )
    report = WheelReport(path="x.whl", kind="wheel", libraries=libraries)
    wheel = Wheel(
        project="demo", version="3.0", filename="x.whl", tags="a-b-c", url="https://x/x"
    )
    store.add(Outcome(wheel=wheel, status="inspected", report=report))
    (project,) = summarize(store)
    assert project.releases[0].targets == tuple(report.targets)
    path = tmp_path / "rows.jsonl"
    export(store, str(path))
    rows = [row for row in rows_of(path) if row["version"] == "3.0"]
    assert {row["library"] for row in rows if row["tests"]} == {"demo/Tests/x.so"}
    assert {row["library"] for row in rows if not row["tests"]} == {"demo/lib.so"}


def test_a_version_that_no_census_has_written(store: Store, tmp_path: Path) -> None:
    store._connection.execute("UPDATE wheels SET version = 'not a version'")
    with pytest.raises(InputError, match="a row is not what a census has written"):
        list(summarize(store))
    path = tmp_path / "builds.json"
    with pytest.raises(InputError, match="a row is not what a census has written"):
        export(store, str(path))
    assert not path.exists()


def test_builds_are_not_compared_in_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    many, made = 300, [0]

    def counted(text: str) -> Version:
        made[0] += 1
        return Version(text)

    monkeypatch.setattr(report, "Version", counted)
    builds = [
        ReleaseSummary(
            version=version,
            label=None,
            platform=f"manylinux_2_{number}_x86_64",
            cuda=None,
            targets=(target,),
        )
        for version, target in (("2.0", "90_real"), ("1.0", "80_real"))
        for number in range(many)
    ]
    changed = list(report._with_changes(builds))
    assert {(item.gained, item.lost) for item in changed[:many]} == {
        (("90_real",), ("80_real",))
    }
    assert changed[many:] == builds[many:]
    assert made[0] < 10 * many


def test_targets_are_not_compared_in_pairs() -> None:
    made = [0]

    class Counted(str):
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            made[0] += 1
            return str.__eq__(self, other)

    builds = [
        ReleaseSummary(
            version=version,
            label=None,
            platform="linux_x86_64",
            cuda=None,
            targets=tuple(Counted(f"{number}_real") for number in numbers),
        )
        for version, numbers in (("2.0", range(500)), ("1.0", range(300, 800)))
    ]
    newer, _ = report._with_changes(builds)
    assert (len(newer.gained), len(newer.lost)) == (300, 300)
    assert made[0] < 10_000


def test_long_rows_are_written_a_few_at_a_time(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(report, "_BATCH", 1500)
    count = export(store, str(tmp_path / "rows.parquet"))
    written = parquet.ParquetFile(tmp_path / "rows.parquet")
    assert count == written.metadata.num_rows > written.num_row_groups > 1


@pytest.mark.parametrize("ending", ["jsonl", "csv"])
def test_long_texts_of_a_wheel_are_not_repeated(
    store: Store, tmp_path: Path, ending: str
) -> None:
    path = tmp_path / f"rows.{ending}"
    add(store, "1.2", "plain.so", host="a" * 60_000)
    count = export(store, str(path))
    assert count > 4
    assert path.stat().st_size < 2_000 * count
    assert {len(row["url"]) for row in rows_of(path)} > {503}


def test_a_page_has_a_limited_number_of_columns() -> None:
    builds = [
        ReleaseSummary(
            version=f"{number}.0",
            label=None,
            platform="linux_x86_64",
            cuda=None,
            targets=(f"{number}_real",),
        )
        for number in range(1000)
    ]
    page = "\n".join(
        census_page([ProjectSummary(project="demo", releases=tuple(builds))])
    )
    assert "Only 200 of 1000 targets are shown." in page
    assert page.count('<th scope="col">') == 204
