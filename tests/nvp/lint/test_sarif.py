"""The SARIF log: its structure, the help of rules, and the places of results."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from support.lint_cases import CASES, FOLDER, write_case
from support.wheels import publish

from nvp import api
from nvp.lint import output
from nvp.lint.findings import RULES, Finding
from nvp.lint.output import as_sarif


def finding(**changes: Any) -> Finding:
    values = {"path": "x", "place": "x", "message": "x", "hint": "x"}
    kind: dict[str, Any] = {"code": "NV304", "severity": "error"}
    return Finding(**(kind | values | changes))


def sarif(findings: list[Finding]) -> Any:
    return json.loads("\n".join(as_sarif(findings)))


@pytest.fixture
def every_finding(tmp_path: Path) -> list[Finding]:
    return api.validate([write_case(case, tmp_path) for case in CASES])


def test_sarif_structure(every_finding: list[Finding]) -> None:
    findings = every_finding
    log = sarif(findings)
    assert log["version"] == "2.1.0"
    assert log["$schema"].endswith("sarif-2.1.0.json")
    (run,) = log["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"] == "nvidia-variant-provider"
    assert re.match(r"[0-9]+\.", driver["version"])
    rules = [rule["id"] for rule in driver["rules"]]
    assert len(rules) == len(set(rules))
    assert set(rules) == {f.code for f in findings}
    levels = {"none", "note", "warning", "error"}
    for rule in driver["rules"]:
        assert rule["shortDescription"]["text"]
        assert rule["fullDescription"]["text"]
        assert rule["defaultConfiguration"]["level"] in levels
        assert re.fullmatch(f"https://[^ ]+/rules/#{rule['id']}", rule["helpUri"])
    assert len(run["results"]) == len(findings)
    for result in run["results"]:
        assert result["level"] in levels
        assert rules[result["ruleIndex"]] == result["ruleId"]
        assert result["message"]["text"]
        (location,) = result["locations"]
        assert location["physicalLocation"]["artifactLocation"]["uri"]
        for place in location.get("logicalLocations", []):
            assert place["fullyQualifiedName"]


def test_sarif_without_findings() -> None:
    (run,) = sarif([])["runs"]
    # Code scanning requires the key, and closes alerts if the list is empty.
    assert run["results"] == []
    assert run["tool"]["driver"]["rules"] == []


@pytest.mark.parametrize(
    "path",
    [
        "dist/torch-2.9.1-variants.json",
        "a b/c.json",
        "a#b.json",
        "a?b.json",
        "a%20b.json",
        "é.json",
        "a\nb.json",
        '"<>.json',
    ],
)
def test_sarif_paths_are_uri_references(path: str) -> None:
    (run,) = sarif([finding(path=path)])["runs"]
    location = run["results"][0]["locations"][0]["physicalLocation"]
    uri = location["artifactLocation"]["uri"]
    # RFC 3986: a relative path, with everything else percent-encoded.
    assert re.fullmatch(r"(?:[A-Za-z0-9._~!$&'()*+,;=:@/-]|%[0-9A-F]{2})+", uri)
    assert unquote(uri) == path


def test_sarif_keeps_the_url_of_a_page() -> None:
    url = "https://example.org/simple/torch/"
    (run,) = sarif([finding(path=url)])["runs"]
    location = run["results"][0]["locations"][0]["physicalLocation"]
    assert location["artifactLocation"]["uri"] == url


def test_rules_of_the_log_explain_themselves(every_finding: list[Finding]) -> None:
    (run,) = sarif(every_finding)["runs"]
    for entry in run["tool"]["driver"]["rules"]:
        rule = RULES[entry["id"]]
        assert re.fullmatch(r"[A-Z][A-Za-z0-9]+", entry["name"])
        assert entry["shortDescription"] == {"text": rule.title}
        assert entry["fullDescription"] == {"text": f"{rule.what} {rule.effect}"}
        for form in ("text", "markdown"):
            for part in (rule.what, rule.effect, rule.fix, rule.example):
                assert part in entry["help"][form]
        assert entry["defaultConfiguration"] == {"level": rule.severity}


def test_regions_are_lines_and_columns_of_the_document() -> None:
    (run,) = sarif(api.validate([FOLDER / "NV102-key-twice.json"]))["runs"]
    assert run["columnKind"] == "unicodeCodePoints"
    (location,) = run["results"][0]["locations"]
    region = location["physicalLocation"]["region"]
    assert region == {"startLine": 19, "startColumn": 5}
    assert location["logicalLocations"] == [{"fullyQualifiedName": "variants.cu12"}]


def test_no_region_points_into_a_wheel(tmp_path: Path) -> None:
    document = json.loads((FOLDER / "NV305-upper-bound.json").read_bytes())
    publish(tmp_path, document, "torch", "2.9.1")
    wheels = (tmp_path / "torch").glob("*-cu12.whl")
    (run,) = sarif(api.validate(wheels, select=["NV305"]))["runs"]
    (location,) = run["results"][0]["locations"]
    assert "region" not in location["physicalLocation"]
    (logical,) = location["logicalLocations"]
    place = "variants.cu12.nvidia.cuda_version_upper_bound"
    member, name = logical["fullyQualifiedName"].split(": ")
    assert re.fullmatch(r"variant\.json:[0-9]+:[0-9]+", member)
    assert name == place


def test_findings_without_a_place_have_no_region() -> None:
    (run,) = sarif([finding(place="", line=None, column=None)])["runs"]
    (location,) = run["results"][0]["locations"]
    assert location == {"physicalLocation": {"artifactLocation": {"uri": "x"}}}


def test_a_log_has_no_more_results_than_services_accept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A document of 3 MB made a log of 150 MB with 1.4 GB of memory."""
    monkeypatch.setattr(output, "_MOST_RESULTS", 2)
    levels = ("note", "warning", "error", "note")
    (run,) = sarif([finding(severity=level) for level in levels])["runs"]
    assert [item["level"] for item in run["results"]] == ["error", "warning"]
    (note,) = run["invocations"][0]["toolExecutionNotifications"]
    assert note["message"]["text"].startswith("the 2 least severe findings are left ")
