"""`census --report` and `census --export`, which read a store alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.command import Run
from support.html_page import Page
from support.paths import ROOT


@pytest.fixture
def store(run: Run, tmp_path: Path) -> Path:
    path = tmp_path / "census.sqlite"
    assert run("census", ROOT / "fixtures" / "census", "-o", path).code == 0
    return path


def test_the_report_has_the_changes_of_a_release(run: Run, store: Path) -> None:
    outcome = run("census", "--report", "-o", store)
    assert outcome.code == 0
    lines = outcome.out.splitlines()
    assert lines[0] == "demo-kernels: CUDA 13"
    (newest,) = [line.split() for line in lines if line.startswith("1.1 ")]
    assert newest[-1] == "-90_virtual"


def test_the_report_as_json(run: Run, store: Path) -> None:
    data = run("census", "--report", "-o", store, "--json").data
    assert (data["wheels"], data["inspected"], data["skipped"]) == (3, 2, 1)
    names = [project["project"] for project in data["projects"]]
    assert names == ["demo-kernels", "demo-tools"]
    newest, _ = data["projects"][0]["releases"]
    assert "90_real" in newest["lost"]


def test_the_report_as_a_page(run: Run, store: Path) -> None:
    outcome = run("census", "--report", "--format", "html", "-o", store)
    assert not Page(outcome.out).open


def test_an_export_beside_the_report(run: Run, store: Path, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    data = run("census", "--report", "--export", path, "-o", store, "--json").data
    assert data["exported"] == {"path": str(path), "rows": 7}
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert {row["project"] for row in rows} == {"demo-kernels"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "there is no index to read"),
        (("index", "--report"), "--report and --export read the store alone"),
        (("index", "--export", "x.csv"), "--report and --export read the store alone"),
        (("index", "--format", "html"), "--format is for --report"),
    ],
)
def test_options_that_do_not_go_together(
    words: tuple[str, ...], message: str, run: Run, tmp_path: Path
) -> None:
    outcome = run("census", *words, "-o", tmp_path / "census.sqlite")
    assert outcome.code == 2
    assert message in outcome.err


def test_a_store_that_does_not_exist_is_not_made(run: Run, tmp_path: Path) -> None:
    outcome = run("census", "--report", "-o", tmp_path / "none")
    assert outcome.code == 3
    assert not list(tmp_path.iterdir())


def test_an_empty_store(run: Run, tmp_path: Path) -> None:
    (tmp_path / "index").mkdir()
    run("census", tmp_path / "index", "-o", tmp_path / "store")
    outcome = run("census", "--report", "-o", tmp_path / "store")
    assert (outcome.code, outcome.out) == (0, "The store has no wheel.\n")
