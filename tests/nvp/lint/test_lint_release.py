"""NV4xx: the files of a release in a directory, with a trigger and a near miss each."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from support.release_cases import CASES, CLEAN, NAME, Folder, rename_index, without
from support.wheels import publish

from nvp import api
from nvp.findings import ERROR
from nvp.lint import runner
from nvp.lint import wheel as wheel_module
from nvp.lint.files import Reading
from nvp.lint.findings import RULES, Finding
from nvp.wheels.variant_json import read_wheel

ONLY_ON_PAGES = {"NV417", "NV418", "NV419", "NV421"}
"""The rules about pages, which test_page_content.py and test_pages.py test."""


def lint(path: Path) -> list[Finding]:
    # The wheels are stubs without libraries.
    return api.validate([path], ignore=["NV5"])


def of_the_release(findings: list[Finding]) -> set[str]:
    # The document causes other notes.
    return {
        f.code for f in findings if f.severity != "note" or f.code.startswith("NV4")
    }


def test_a_good_release_has_no_findings(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.settle()
    assert lint(folder.files) == []


@pytest.mark.parametrize("name", CASES)
def test_damaged_release_has_the_finding(name: str, tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.settle()
    CASES[name].damage(folder)
    if "NV410" not in name:
        folder.settle()
    findings = lint(folder.files)
    assert of_the_release(findings) == CASES[name].codes
    for finding in findings:
        assert finding.severity == RULES[finding.code].severity
        assert finding.path.startswith(str(folder.files))
        assert finding.message
        assert finding.hint


@pytest.mark.parametrize("name", CASES)
def test_near_miss_has_no_finding(name: str, tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.settle()
    CASES[name].near_miss(folder)
    if "NV410" not in name:
        folder.settle()
    assert of_the_release(lint(folder.files)) == set()


def test_every_rule_has_a_trigger_and_a_near_miss() -> None:
    families = {code for code in RULES if code.startswith("NV4")}
    assert {name[:5] for name in CASES} == families - ONLY_ON_PAGES
    assert all(name[:5] in row.codes for name, row in CASES.items())
    assert all(row.codes == {name[:5]} or row.why for name, row in CASES.items())


def test_a_metadata_file_with_a_capital_in_its_name_is_not_used(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    rename_index(folder, "Torch-2.9.1-variants.json")
    folder.settle()
    # The file is not read at all, so the wheels have no metadata.
    assert of_the_release(lint(folder.files)) == {"NV401", "NV409"}


@pytest.mark.parametrize("version", ["2.9.1RC1", "v2.9.1", "2.09.1", "2.9.1.post-1"])
def test_metadata_file_whose_version_is_not_normalised(
    version: str, tmp_path: Path
) -> None:
    document = json.dumps({**CLEAN, "variants": {"null": {}}})
    path = tmp_path / f"torch-{version}-variants.json"
    path.write_text(document, encoding="utf-8")
    assert "NV401" in {f.code for f in lint(tmp_path)}


def test_metadata_file_whose_name_is_normalised(tmp_path: Path) -> None:
    folder = Folder(tmp_path, name="My.Torch_Fork")
    assert folder.index.name == "my_torch_fork-2.9.1-variants.json"
    folder.settle()
    assert lint(folder.files) == []


def test_the_non_variant_wheel_is_a_fallback(tmp_path: Path) -> None:
    folder = Folder(tmp_path, {**CLEAN, **without("null")})
    folder.settle()
    assert lint(folder.files) == []
    (folder.files / "torch-2.9.1-py3-none-any.whl").unlink()
    assert {f.code for f in lint(folder.files)} == {"NV114"}
    # The file alone does not show that the wheel exists.
    assert {f.code for f in lint(folder.index)} == {"NV114"}


def test_releases_in_one_folder_are_checked_separately(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    publish(tmp_path, {**CLEAN, **without("cu13")}, NAME, "2.10.0")
    (folder.files / "torch-2.9.1-py3-none-any-cu13.whl").unlink()
    folder.settle()
    (finding,) = lint(folder.files)
    assert (finding.code, finding.path) == ("NV402", str(folder.index))


def test_a_defect_of_variant_json_is_reported_for_folder_and_wheel(
    tmp_path: Path,
) -> None:
    folder = Folder(tmp_path)
    own = folder.own("cu12")
    own["providers"]["nvidia"]["optional"] = True
    wheel = folder.wheel("cu12", variant_json=own)
    folder.settle()
    assert ("NV314", str(wheel)) in {(f.code, f.path) for f in lint(folder.files)}
    assert {f.code for f in lint(wheel)} == {"NV314"}


def test_rules_about_whole_releases_do_not_apply_to_one_wheel(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    assert lint(folder.wheel("cu13")) == []
    assert lint(folder.wheel("null")) == []


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"variants": []}', "null"])
def test_metadata_file_without_content_is_an_error(text: str, tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.index.write_text(text, encoding="utf-8")
    assert ERROR in {f.severity for f in lint(folder.files)}


@pytest.mark.parametrize("value", [[], {}, None, 1, {"nvidia": []}, {"nvidia": [[]]}])
def test_wrong_types_in_metadata_and_in_wheels_are_errors(
    value: object, tmp_path: Path
) -> None:
    folder = Folder(tmp_path)
    for key in ("default-priorities", "providers"):
        folder.wheel("cu12", variant_json=folder.own("cu12", **{key: value}))
        assert ERROR in {f.severity for f in lint(folder.files)}
        folder.write(**{key: value})
        assert ERROR in {f.severity for f in lint(folder.files)}
    for variants in (value, {"cu12": value}, {"cu12": {"nvidia": {"sm_arch": value}}}):
        folder.wheel("cu12", variant_json=folder.own("cu12", variants=variants))
        folder.write(variants=variants)
        assert ERROR in {f.severity for f in lint(folder.files)}


def test_folder_without_wheels_and_metadata(tmp_path: Path) -> None:
    def codes_and_paths() -> list[tuple[str, str]]:
        return [(finding.code, finding.path) for finding in lint(tmp_path)]

    assert codes_and_paths() == [("NV100", str(tmp_path))]
    (tmp_path / "README").write_text("", encoding="utf-8")
    (tmp_path / "torch").mkdir()
    assert codes_and_paths() == [("NV100", str(tmp_path))]


# The root of an index


def test_every_project_of_an_index_root_is_checked(tmp_path: Path) -> None:
    for name in ("alpha", "beta", "gamma"):
        publish(tmp_path, CLEAN, name, "1.0")
    (tmp_path / "beta" / "beta-1.0-py3-none-any-cu12.whl").unlink()
    # An index also has files of its own, projects without wheels, and other
    # directories.
    (tmp_path / "index.html").write_text("", encoding="utf-8")
    (tmp_path / "sources").mkdir()
    (tmp_path / "sources" / "sources-1.0.tar.gz").write_bytes(b"")
    (finding,) = (f for f in lint(tmp_path) if f.severity == ERROR)
    path = str(tmp_path / "beta" / "beta-1.0-variants.json")
    assert (finding.code, finding.path) == ("NV402", path)


def test_a_project_that_cannot_be_read_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("alpha", "beta", "gamma"):
        publish(tmp_path, CLEAN, name, "1.0")
    (tmp_path / "gamma" / "gamma-1.0-py3-none-any-cu12.whl").unlink()
    broken = str(tmp_path / "alpha")
    list_folder = os.listdir

    def fail(path: str) -> list[str]:
        if path == broken:
            raise PermissionError(13, "Permission denied")
        return list_folder(path)

    monkeypatch.setattr(os, "listdir", fail)
    codes = [f.code for f in lint(tmp_path) if f.severity == ERROR]
    assert codes == ["NV100", "NV402"]


def test_a_folder_with_wheels_is_not_an_index_root(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.settle()
    (folder.files / "old").mkdir()
    (folder.files / "old" / "old-1.0-variants.json").write_bytes(b"{")
    assert lint(folder.files) == []


def test_findings_of_an_index_root_come_one_project_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("alpha", "beta"):
        publish(tmp_path, CLEAN, name, "1.0")
        (tmp_path / name / f"{name}-1.0-py3-none-any-cu12.whl").unlink()
    opened: list[str] = []

    def note(path: str) -> Any:
        opened.append(Path(path).parent.name)
        return read_wheel(path)

    monkeypatch.setattr(wheel_module, "read_wheel", note)
    findings = runner.check_folder(str(tmp_path), Reading(content=False))
    assert next(f for f in findings if f.severity == ERROR).code == "NV402"
    assert set(opened) == {"alpha"}
