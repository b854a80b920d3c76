"""Findings in JSON texts have the line and the column of their place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.lint_cases import CASES, FOLDER, write_case
from support.wheels import publish

from nvp import api
from nvp.lint import findings
from nvp.lint.findings import Collector, Finding, find_positions
from nvp.lint.output import as_github, as_text

UPPER = FOLDER / "NV305-upper-bound.json"
PLACE = "variants.cu12.nvidia.cuda_version_upper_bound"


def only(path: Path, code: str) -> Finding:
    (finding,) = api.validate([path], select=[code])
    return finding


@pytest.mark.parametrize(
    ("name", "line", "text"),
    [
        ("NV106-old-version", 2, '"https://'),
        ("NV108-null", 23, "null"),
        ("NV305-upper-bound", 23, "["),
        ("NV206-not-sorted", 23, "["),
        # These findings point at the key, because the key is wrong.
        ("NV109-unknown-key", 46, '"comment"'),
        ("NV102-key-twice", 19, '"cu12"'),
        # A missing key points at the object that lacks it.
        ("NV107-key-missing", 1, "{"),
        # The finding points at the place where the text stops being JSON.
        ("NV100-not-json", 16, ""),
    ],
)
def test_line_and_column_of_a_finding(
    name: str, line: int, text: str, tmp_path: Path
) -> None:
    path = write_case(name, tmp_path)
    finding = only(path, name[:5])
    assert finding.line == line
    assert finding.column is not None
    source = path.read_text(encoding="utf-8-sig").splitlines()[line - 1]
    assert source[finding.column - 1 :].startswith(text)


def test_every_position_is_in_the_file(tmp_path: Path) -> None:
    for finding in api.validate([write_case(case, tmp_path) for case in CASES]):
        if finding.line is None:
            assert "not UTF-8" in finding.message
            assert finding.column is None
            continue
        text = Path(finding.path).read_text(encoding="utf-8-sig")
        assert 1 <= finding.line <= len(text.splitlines())
        assert finding.column is not None
        assert 1 <= finding.column <= len(text.splitlines()[finding.line - 1]) + 1


def test_text_has_the_position_after_the_path() -> None:
    line = as_text([only(UPPER, "NV305")])[0]
    assert line.startswith(f"{UPPER}:23:37: {PLACE}: NV305 warning: ")


def test_github_annotation_has_the_position() -> None:
    (line,) = as_github([only(UPPER, "NV305")])
    assert line.startswith(f"::warning file={UPPER},line=23,col=37,title=NV305::")


def test_a_file_that_cannot_be_read_has_no_position(tmp_path: Path) -> None:
    finding = only(tmp_path / "missing.json", "NV100")
    assert (finding.line, finding.column, finding.member) == (None, None, None)
    assert as_text([finding])[0].startswith(f"{finding.path}: NV100 error: ")
    assert "line=" not in as_github([finding])[0]


def test_positions_in_a_wheel_are_those_of_variant_json(tmp_path: Path) -> None:
    document = json.loads(UPPER.read_bytes())
    publish(tmp_path, document, "torch", "2.9.1")
    (path,) = (tmp_path / "torch").glob("*-cu12.whl")
    finding = only(path, "NV305")
    assert finding.member == "variant.json"
    assert finding.line is not None
    where = f"variant.json:{finding.line}:{finding.column}"
    assert as_text([finding])[0].startswith(f"{path}: {where}: {PLACE}: NV305 ")
    # An annotation of a binary file has no line.
    assert "line=" not in as_github([finding])[0]


def test_a_finding_about_a_missing_wheel_points_into_the_metadata(
    tmp_path: Path,
) -> None:
    document = json.loads((FOLDER / "clean.json").read_bytes())
    publish(tmp_path, document, "torch", "2.9.1")
    folder = tmp_path / "torch"
    (folder / "torch-2.9.1-py3-none-any-cu12.whl").unlink()
    index = folder / "torch-2.9.1-variants.json"
    text = json.dumps(document, indent=2)
    index.write_text(text, encoding="utf-8")
    finding = only(folder, "NV402")
    assert finding.path == str(index)
    position = find_positions(text, ["variants.cu12"])["variants.cu12"]
    assert (finding.line, finding.column) == position.value


def test_findings_about_files_have_no_position(tmp_path: Path) -> None:
    folder = tmp_path / "torch"
    folder.mkdir()
    (folder / "Torch-2.9.1-variants.json").write_bytes(b"{}")
    assert only(folder, "NV401").line is None


def test_positions_are_looked_up_once_and_only_for_findings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls: list[int] = []

    def count(text: str, places: Any) -> Any:
        calls.append(len(places))
        return find_positions(text, places)

    monkeypatch.setattr(findings, "find_positions", count)
    assert api.validate([FOLDER / "clean.json"], ignore=["NV313"]) == []
    assert calls == []
    found = api.validate([write_case("NV304-empty-range", tmp_path)])
    assert calls == [len({finding.place for finding in found})]


def test_a_finding_without_a_document_keeps_its_place() -> None:
    collector = Collector("file")
    collector.add("NV410", "", "message", "hint")
    (finding,) = collector.findings
    assert (finding.place, finding.line, finding.column) == ("", None, None)
