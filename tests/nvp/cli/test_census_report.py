"""`census --report` and `census --export`, which only read a store."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import browser
from support.command import Run
from support.html_page import Page
from support.paths import ROOT

from nvp.census.model import ProjectSummary, ReleaseSummary
from nvp.census.report import census_page

PLATFORM = "manylinux_2_28_x86_64"


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
    page = Page(outcome.out)
    assert not page.open
    assert page.tables["census"] == [
        ["Release", "Build", "Platform", "CUDA", "75", "80", "90", "90a", "100a"],
        ["1.1", "-", PLATFORM, "13", *["lost"] * 3, "code +PTX", "code"],
        ["1.0", "-", PLATFORM, "13", "code", "code", "code +PTX", "", ""],
    ]
    legend = page.text.partition("demo-kernels")[0]
    assert all(words in legend for words in ("code +PTX", "PTX alone", "lost"))


def _wide(project: str, platform: str) -> ProjectSummary:
    targets = [f"{number}_real" for number in range(50, 121, 5)]
    release = ReleaseSummary(
        version="12.9.1.4",
        label="cu129",
        platform=platform,
        cuda="12.9",
        targets=(*targets, "90_virtual", "120_virtual"),
    )
    return ProjectSummary(project=project, releases=(release,))


@pytest.mark.slow
@pytest.mark.skipif(browser.PROGRAM is None, reason="there is no Chromium")
def test_a_page_on_wide_and_narrow_screens(tmp_path: Path) -> None:
    """The release and some columns are visible at 390 pixels, and all columns at
    1280."""
    path = tmp_path / "page.html"
    projects = _wide("one", PLATFORM), _wide("two", f"{PLATFORM}.manylinux2014_x86_64")
    path.write_text("\n".join(census_page(projects)))
    beyond = "[...document.querySelectorAll('.scroll')].map(e => e.scrollWidth - e.{})"
    with browser.running(str(tmp_path / "profile")) as tab:
        tab.open(path.as_uri(), width=1280)
        assert tab.evaluate(beyond.format("clientWidth")) == [0, 0]
        tab.open(path.as_uri(), width=390)
        assert tab.evaluate("document.documentElement.scrollWidth") == 390
        cells = "document.querySelectorAll('tbody tr:first-child > *')"
        assert tab.evaluate(f"{cells}[4].getBoundingClientRect().right") < 390
        tab.evaluate("document.querySelector('.scroll').scrollLeft = 1000")
        assert 0 <= tab.evaluate(f"{cells}[0].getBoundingClientRect().left") < 30
        assert tab.evaluate(f"{cells}[1].getBoundingClientRect().right") < 0


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
        (("index", "--report"), "--report and --export read only the store"),
        (("index", "--export", "x.csv"), "--report and --export read only the store"),
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
