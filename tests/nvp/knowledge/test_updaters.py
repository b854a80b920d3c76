"""The scripts in ``tools/`` regenerate the checked-in tables."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tools import build_tables, measure
from tools.ptxas import fetch
from tools.records import KNOWLEDGE, SOURCES, is_measured, read, render

TOOLKITS = read(KNOWLEDGE / "toolkits.json")
PINS = read(SOURCES / "toolkits.json")


@pytest.mark.parametrize(
    ("path", "text"),
    build_tables.build(TOOLKITS).items(),
    ids=lambda value: value.name if isinstance(value, Path) else "",
)
def test_sources_give_the_checked_in_bytes(path: Path, text: str) -> None:
    """If this fails, run ``python -m tools.build_tables``."""
    assert path.read_text(encoding="utf-8") == text


@pytest.mark.parametrize("name", ["toolkits", "ptx_targets"])
def test_measured_tables_have_the_form_of_the_script(name: str) -> None:
    path = KNOWLEDGE / f"{name}.json"
    assert path.read_text(encoding="utf-8") == render(read(path))


def test_every_pinned_toolkit_is_measured() -> None:
    """If this fails, run ``python -m tools.measure``."""
    measured = [
        row["source"].split()[2].rstrip(",") for row in TOOLKITS if is_measured(row)
    ]
    assert measured == PINS["toolkits"]


def test_announced_toolkits_stand_until_they_are_measured() -> None:
    pinned = {"version": "13.4", "source": "ptxas of x==13.4.92", "date": "2026-11-21"}
    announced = {"version": "13.6", "source": "NVIDIA, release notes"}
    stale = {"version": "13.4", "source": "NVIDIA, an announcement"}
    both = measure.with_announced([pinned], [stale, announced])
    assert both == [
        {"version": "13.4", "source": "ptxas of x==13.4.92"},
        announced,
    ]
    ptxas = [row["ptxas"] for row in read(KNOWLEDGE / "ptx_targets.json")]
    assert ptxas == PINS["ptx_targets"]


@pytest.mark.parametrize("path", sorted(SOURCES.glob("*.json")), ids=lambda p: p.stem)
def test_each_document_has_a_url_and_a_day(path: Path) -> None:
    content = read(path)
    if path.stem == "torch_builds":
        # Each build has the commit and the script of its source.
        for labels in content["releases"].values():
            for build in labels.values():
                assert build["source"]
                assert build["confidence"]
        return
    documents = list(content.get("documents", {}).values())
    documents += [content["document"]] if "document" in content else []
    assert documents or path.stem in ("releases", "toolkits")
    for document in documents:
        assert document["url"].startswith("https://")
        assert document["title"]
        assert document["read"] >= "2026-11-20"


@pytest.mark.parametrize("name", ["drivers", "gpus"])
def test_each_source_record_has_a_document_or_says_what_is_not_known(name: str) -> None:
    content = read(SOURCES / f"{name}.json")
    sections = [value for value in content.values() if isinstance(value, list)]
    for record in (record for section in sections for record in section):
        if record["document"] is None:
            assert record["note"]
        else:
            assert record["document"] in content["documents"]


@pytest.mark.parametrize("row", TOOLKITS, ids=lambda row: str(row["version"]))
def test_measurements_agree_with_the_history_of_ptx(row: dict[str, Any]) -> None:
    """Two sources of the same facts: ``ptxas``, and the document that describes it."""
    releases = {r["cuda"]: r for r in read(SOURCES / "ptx_history.json")["releases"]}
    if row["version"] not in releases:
        pytest.skip("newer than the document")
    assert releases[row["version"]]["ptx_isa"] == row["ptx_isa"]
    added = set(releases[row["version"]]["new_targets"])
    if row["version"] == "12.8":
        added |= set(releases["12.7"]["new_targets"])  # 12.7 was never published
    older = [x for x in TOOLKITS if TOOLKITS.index(x) < TOOLKITS.index(row)]
    if older:
        known = {target for x in older for target in x["targets"]}
        assert set(row["targets"]) - known == added


def test_new_toolkit_changes_the_tables_that_depend_on_it() -> None:
    newer = {**TOOLKITS[-1], "version": "99.0", "targets": ["80", "90"]}
    gpus = json.loads(build_tables.build([*TOOLKITS, newer])[KNOWLEDGE / "gpus.json"])
    last = {row["compute_capability"]: row["last_toolkit"] for row in gpus}
    assert (last["7.0"], last["7.5"], last["9.0"]) == (
        "12.9",
        TOOLKITS[-1]["version"],
        None,
    )


def test_new_gpu_that_no_toolkit_compiles_for_says_to_measure_one() -> None:
    gpus = read(SOURCES / "gpus.json")
    gpu = {**gpus["gpus"][-1], "compute_capability": "99.9"}
    history = read(SOURCES / "ptx_history.json")
    with pytest.raises(SystemExit, match=r"compiles for 99\.9; add one"):
        build_tables.build_gpus(TOOLKITS, history, {**gpus, "gpus": [gpu]})


def test_new_gpu_without_a_known_driver_says_where_to_add_it() -> None:
    newer = {**TOOLKITS[-1], "version": "99.0", "targets": ["990"]}
    gpus = read(SOURCES / "gpus.json")
    gpu = {**gpus["gpus"][-1], "compute_capability": "99.0"}
    history, drivers = (
        read(SOURCES / "ptx_history.json"),
        read(SOURCES / "drivers.json"),
    )
    table = build_tables.build_gpus(
        [*TOOLKITS, newer], history, {**gpus, "gpus": [gpu]}
    )
    with pytest.raises(SystemExit, match=r"add CUDA 99\.0 to .*ptx_history\.json"):
        build_tables.build_gpu_drivers(table, [], history, drivers)


@pytest.mark.network
@pytest.mark.skipif(
    sys.platform != "linux", reason="the wheels contain programs for Linux"
)
class TestFreshRun:
    """A new run of ptxas gives the checked-in tables, for one toolkit each."""

    def test_toolkit(self, tmp_path: Path) -> None:
        (row,) = (row for row in TOOLKITS if row["version"] == "13.0")
        requirement = row["source"].split()[2].rstrip(",")
        fresh = measure.measure_toolkit(fetch(requirement, tmp_path))
        assert {**fresh, "date": row["date"]} == row

    def test_ptx_targets(self, tmp_path: Path) -> None:
        rows = read(KNOWLEDGE / "ptx_targets.json")
        (row,) = (row for row in rows if row["ptxas"] == "12.8.93")
        (pin,) = (pin for pin in PINS["toolkits"] if pin.endswith("==12.8.93"))
        fresh = measure.measure_ptx_targets(fetch(pin, tmp_path))
        assert {**fresh, "date": row["date"]} == row
