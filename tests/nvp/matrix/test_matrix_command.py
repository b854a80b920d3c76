"""The command `matrix` and the function `api.matrix`."""

from __future__ import annotations

import json
import os
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from support.command import Run
from support.html_page import Page

from nvidia_variant_provider.metadata import read_metadata
from nvp import api
from nvp.knowledge.tables import can_exist, driver_versions
from nvp.matrix.cells import all_capabilities

COMMAND = "matrix"


@pytest.fixture
def torch(fixtures: Path) -> Path:
    """Return the path of the metadata of torch 2.9.1."""
    return fixtures / "variants-json" / "torch-2.9.1-variants.json"


class TestApi:
    def test_the_command_prints_what_the_function_returns(
        self, run: Run, torch: Path
    ) -> None:
        builds = api.matrix(torch)
        assert builds.to_dict() == json.loads(run(torch, "--json").out)["data"]
        assert builds.metadata == read_metadata(torch)
        assert builds.minor_version_compatibility is False

    def test_the_opt_in_comes_from_the_given_variables(self, torch: Path) -> None:
        name = "NV_VARIANT_PROVIDER_MINOR_VERSION_COMPATIBILITY"
        relaxed = api.matrix(torch, environ={name: "1"})
        assert relaxed.minor_version_compatibility is True
        assert relaxed.cells != api.matrix(torch, environ={}).cells

    def test_every_form_of_a_release_is_accepted(self, torch: Path) -> None:
        text = torch.read_text()
        forms = [str(torch), text, text.encode(), json.loads(text)]
        expected = api.matrix(read_metadata(torch)).cells
        assert all(api.matrix(form).cells == expected for form in forms)


class TestCommand:
    def test_the_report_has_every_cell(self, run: Run, torch: Path) -> None:
        outcome = run(torch, "--json")
        report = json.loads(outcome.out)
        assert (report["command"], report["status"]) == ("matrix", "ok")
        assert run(torch, "--format", "json") == outcome
        data = report["data"]
        assert list(data) == ["cells"]
        assert {tuple(cell) for cell in data["cells"]} == {
            ("cuda", "sm", "label", "how", "exists")
        }
        cell = {"cuda": "12.9", "sm": "9.0", "label": "cu128", "how": "native"}
        assert {**cell, "exists": True} in data["cells"]
        assert len(data["cells"]) == sum(
            can_exist(cuda, gpu)
            for cuda in driver_versions()
            for gpu in all_capabilities()
        )

    @pytest.mark.parametrize("form", ["text", "markdown", "html", "svg", "json"])
    def test_a_file_has_what_would_be_printed(
        self, form: str, run: Run, torch: Path, tmp_path: Path
    ) -> None:
        printed = run(torch, "--format", form)
        path = tmp_path / "out"
        path.write_text("old")
        outcome = run(torch, "--format", form, "-o", path)
        assert (outcome.code, outcome.out, outcome.err) == (0, f"{path}: written\n", "")
        assert path.read_text(encoding="utf-8") == printed.out
        assert run(torch, "--format", form, "-o", "-") == printed
        assert os.listdir(tmp_path) == ["out"]

    def test_a_report_and_a_file_in_one_run(self, run: Run, torch: Path) -> None:
        outcome = run(torch, "--json", "--format", "svg", "-o", "x.svg")
        assert json.loads(outcome.out)["command"] == "matrix"
        ET.fromstring(Path("x.svg").read_text())

    @pytest.mark.parametrize("target", ["missing/out", ".", "nul\0"])
    def test_an_output_that_cannot_be_written(
        self, target: str, run: Run, torch: Path
    ) -> None:
        outcome = run(torch, "-o", target)
        assert (outcome.code, outcome.out) == (3, "")
        assert ": cannot be written: " in outcome.err
        assert outcome.err.count("\n") == 1
        assert os.listdir() == []

    def test_minor_version_compatibility(
        self, run: Run, torch: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plain, relaxed = run(torch), run(torch, "--minor-version-compatibility")
        assert plain.out != relaxed.out
        assert "Minor-version compatibility is on" in relaxed.out
        name = "NV_VARIANT_PROVIDER_MINOR_VERSION_COMPATIBILITY"
        monkeypatch.setenv(name, "1")
        assert run(torch) == relaxed

    def test_errors_of_input_and_usage(self, run: Run) -> None:
        assert run("missing").code == 3
        assert run().code == 2
        assert run("x", "--format", "pdf").code == 2

    @pytest.mark.skipif(os.name == "nt", reason="Windows has no such file names")
    def test_a_hostile_file_name_is_escaped(self, run: Run, torch: Path) -> None:
        path = Path("<img src=x onerror=1>\u2028-1-variants.json")
        path.write_text(torch.read_text())
        page = Page(run(path, "--format", "html").out)
        assert "img" not in page.tags
        assert "<img src=x onerror=1>\\u2028 1" in page.text
        ET.fromstring(run(path, "--format", "svg").out)
        assert "<img" not in run(path, "--format", "markdown").out
