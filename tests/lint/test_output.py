"""``validate``: exit codes, which rules count, and the forms of the report."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvidia_variant_provider.cli import main
from nvidia_variant_provider.lint.findings import Finding
from nvidia_variant_provider.lint.output import as_github, as_text
from nvidia_variant_provider.lint.rules import RULES, SEVERITIES
from nvidia_variant_provider.lint.rules.page import rules_page
from nvidia_variant_provider.lint.runner import check_paths, selected
from nvidia_variant_provider.lint.sarif import as_sarif

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "fixtures" / "lint"
CLEAN = FOLDER / "clean.json"
ERRORS = FOLDER / "NV304-empty-range.json"  # NV304 and the warning NV315
WARNINGS = FOLDER / "NV305-upper-bound.json"
NOTES = FOLDER / "NV310-strict-bound.json"
TEXTS = ["code", "severity", "path", "place", "message", "hint"]
KEYS = [*TEXTS, "member", "line", "column"]

# What a name can hold that some form of the report would take for its own.
NASTY = [
    "a\n::error file=x::injected",
    "a\r\n::set-output name=x::y",
    "a%0A::error::x",
    "a,title=b::c",
    "a\x1b[31m",
    "a\u2028b\x85c\x0bd",
    "a b#c?d%20e",
    '"]}',
    "\udcff",
    "é",
]


@pytest.fixture
def validate(capsys: pytest.CaptureFixture[str]) -> Any:
    def call(*arguments: object) -> tuple[int, str, str]:
        code = main(["validate", *map(str, arguments)])
        return code, *capsys.readouterr()

    return call


def codes(text: str) -> list[str]:
    return [finding["code"] for finding in json.loads(text)["data"]["findings"]]


# Exit codes


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ([CLEAN], 0),
        ([ERRORS], 1),
        ([CLEAN, ERRORS], 1),
        ([WARNINGS], 0),
        ([WARNINGS, "--strict"], 1),
        ([NOTES], 0),
        ([NOTES, "--strict"], 0),
        ([ERRORS, "--ignore", "NV304"], 0),
        ([ERRORS, "--ignore", "NV304", "--strict"], 1),
        ([ERRORS, "--ignore", "NV3", "--strict"], 0),
        ([ERRORS, "--select", "NV4"], 0),
        (["missing.json"], 1),
        (["missing.whl"], 1),
        ([], 2),
        ([CLEAN, "--select", "NV999"], 2),
        ([CLEAN, "--ignore", "NV999"], 2),
        ([CLEAN, "--select", ""], 2),
        ([CLEAN, "--ignore", "NV3,,NV4"], 2),
        ([CLEAN, "--select", "E501"], 2),
        ([CLEAN, "--format", "xml"], 2),
    ],
)
@pytest.mark.parametrize("form", [[], ["--json"], ["--format", "sarif"]])
def test_exit_code(
    arguments: list[object], code: int, form: list[str], validate: Any
) -> None:
    # The last --format counts.
    found, out, err = validate(*form, *arguments)
    assert found == code
    assert bool(err) is (code == 2 and form != ["--json"])
    assert bool(out) is not bool(err)


def test_what_cannot_be_read_is_a_finding(validate: Any, tmp_path: Path) -> None:
    code, out, _ = validate("--json", tmp_path / "missing.json", CLEAN, tmp_path)
    assert (code, codes(out)) == (1, ["NV100", "NV100"])


# Which rules count


@pytest.mark.parametrize(
    ("select", "ignore", "kept"),
    [
        ([], [], True),
        (["NV3"], [], True),
        (["NV304"], [], True),
        (["NV"], [], True),
        (["NV1"], [], False),
        (["NV1", "NV30"], [], True),
        ([], ["NV3"], False),
        ([], ["NV1"], True),
        (["NV304"], ["NV3"], True),
        (["NV3"], ["NV304"], False),
        (["NV3"], ["NV3"], False),
        (["NV"], ["NV3"], False),
    ],
)
def test_the_longer_prefix_counts(
    select: list[str], ignore: list[str], kept: bool
) -> None:
    assert selected("NV304", select, ignore) is kept
    found = {f.code for f in check_paths([ERRORS], select=select, ignore=ignore)}
    assert ("NV304" in found) is kept


@pytest.mark.parametrize(
    "arguments",
    [
        ["--select", "NV304,NV315"],
        ["--select", "nv304", "--select", " NV315 "],
        ["--select", "NV3"],
        ["--ignore", "NV1,NV2", "--ignore", "NV4"],
    ],
)
def test_several_codes(arguments: list[str], validate: Any) -> None:
    _, out, _ = validate(ERRORS, "--json", *arguments)
    assert codes(out) == ["NV304", "NV315"]


def test_findings_are_sorted_and_each_comes_once() -> None:
    paths = [WARNINGS, ERRORS, WARNINGS]
    found = check_paths(paths)
    assert found == check_paths(paths[::-1])
    assert [(Path(f.path).name, f.code) for f in found] == [
        (ERRORS.name, "NV304"),
        (ERRORS.name, "NV315"),
        (WARNINGS.name, "NV305"),
    ]


# JSON


def test_json_report(validate: Any) -> None:
    code, out, err = validate(ERRORS, "--json")
    report = json.loads(out)
    assert (code, err) == (1, "")
    assert (report["command"], report["status"]) == ("validate", "findings")
    assert list(report["data"]) == ["findings"]
    for finding in report["data"]["findings"]:
        assert list(finding) == KEYS
        assert all(isinstance(finding[key], str) for key in TEXTS)
        assert finding["member"] is None
        assert finding["line"] > 1
        assert finding["column"] > 1
    assert validate(CLEAN, "--json")[1].count('"findings": []') == 1


@pytest.mark.parametrize("arguments", [[ERRORS], [CLEAN], [CLEAN, "--select", "NV9"]])
def test_format_json_is_the_same(arguments: list[object], validate: Any) -> None:
    assert validate(*arguments, "--format", "json") == validate(*arguments, "--json")


# Text and GitHub


def finding(text: str, **changes: Any) -> Finding:
    values: dict[str, Any] = dict.fromkeys(TEXTS, text)
    return Finding(**(values | {"code": "NV304", "severity": "error"} | changes))


@pytest.mark.parametrize("text", NASTY)
@pytest.mark.parametrize("form", ["text", "github", "sarif"])
def test_one_line_a_finding(
    text: str, form: str, validate: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    findings = [finding(text), finding("b")]
    monkeypatch.setattr(
        "nvidia_variant_provider.lint.runner.check_paths", lambda *_, **__: findings
    )
    code, out, _ = validate(CLEAN, "--format", form)
    assert code == 1
    lines = out.removesuffix("\n").split("\n")
    # Whatever ends a line for a terminal, for Python or for a runner of workflows.
    assert out.splitlines() == lines
    assert all(line.isprintable() for line in lines)
    if form == "text":
        assert len(lines) == 3
        assert lines[-1] == "2 errors"
    elif form == "github":
        assert len(lines) == 2
        assert all(line.startswith("::error file=") for line in lines)
    else:
        log = json.loads(out)
        assert len(log["runs"][0]["results"]) == 2


def test_a_label_or_a_file_name_injects_nothing(validate: Any, tmp_path: Path) -> None:
    label = "cu12\n::error file=x::injected\r::warning::too"
    document = json.loads(CLEAN.read_bytes())
    document["variants"][label] = document["variants"]["cu12"]
    path = tmp_path / "a\n::error title=b::c, d.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    _, out, _ = validate(path, "--format", "github")
    assert len(out.splitlines()) == len(check_paths([path])) >= 2
    for line in out.splitlines():
        match = re.fullmatch(r"::(error|warning|notice) file=([^:,]*),(.*)", line)
        assert match
        assert re.fullmatch(r"(?:[a-zA-Z]+=[^:,]*,?)+::.*", match[3])


@given(st.text(), st.text())
def test_github_escapes(path: str, message: str) -> None:
    (line,) = as_github([finding("x", path=path, message=message)])
    head, _, data = line.removeprefix("::error ").partition("::")
    fields = dict(part.split("=", 1) for part in head.split(","))
    # unquote would also read an escape that was there before.
    assert _unescaped(fields["file"]) == path
    assert message in _unescaped(data)
    assert not set("\r\n") & set(line)


def _unescaped(text: str) -> str:
    codes = {"%25": "%", "%0D": "\r", "%0A": "\n", "%3A": ":", "%2C": ","}
    return re.sub("%(25|0D|0A|3A|2C)", lambda match: codes[match[0]], text)


def test_github_levels_and_empty_places() -> None:
    words = [
        as_github([finding("x", severity=severity, place="")])[0].split(" ")[0]
        for severity in SEVERITIES
    ]
    assert words == ["::error", "::warning", "::notice"]
    (line,) = as_github([finding("x", place="")])
    assert line.endswith("::x; x")


@pytest.mark.parametrize(
    ("severities", "last"),
    [
        ([], "no findings"),
        (["error"], "1 error"),
        (["note", "note", "warning"], "1 warning, 2 notes"),
        (["warning", "error", "error", "note"], "2 errors, 1 warning, 1 note"),
    ],
)
def test_text_counts(severities: list[str], last: str) -> None:
    lines = as_text([finding("x", severity=severity) for severity in severities])
    assert lines[-1] == last
    assert len(lines) == len(severities) + 1


def test_text_says_where_what_and_what_to_do(validate: Any) -> None:
    _, out, _ = validate(WARNINGS)
    first, last = out.splitlines()
    (found,) = check_paths([WARNINGS])
    assert first == (
        f"{WARNINGS}:23:37: variants.cu12.nvidia.cuda_version_upper_bound: "
        f"NV305 warning: {found.message}; {found.hint}"
    )
    assert last == "1 warning"


# SARIF


def sarif(findings: list[Finding]) -> Any:
    return json.loads("\n".join(as_sarif(findings)))


def every_finding() -> list[Finding]:
    return check_paths(FOLDER.glob("NV*.json"))


def test_sarif_structure() -> None:
    findings = every_finding()
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
    # Code scanning closes alerts by an empty list; without the key it refuses.
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
    (run,) = sarif([finding("x", path=path)])["runs"]
    location = run["results"][0]["locations"][0]["physicalLocation"]
    uri = location["artifactLocation"]["uri"]
    # RFC 3986: a relative path, with everything else percent-encoded.
    assert re.fullmatch(r"(?:[A-Za-z0-9._~!$&'()*+,;=:@/-]|%[0-9A-F]{2})+", uri)
    assert unquote(uri) == path


def test_sarif_keeps_the_url_of_a_page() -> None:
    url = "https://example.org/simple/torch/"
    (run,) = sarif([finding("x", path=url)])["runs"]
    location = run["results"][0]["locations"][0]["physicalLocation"]
    assert location["artifactLocation"]["uri"] == url


# The catalog


def test_rules_have_a_family_and_a_severity() -> None:
    for code, rule in RULES.items():
        assert re.fullmatch(r"NV[1-5][0-9]{2}", code)
        assert rule.code == code
        assert rule.severity in SEVERITIES
        assert rule.title
        assert rule.clients
    assert list(RULES) == sorted(RULES)


def test_rules_page_is_made_from_the_rule_table() -> None:
    text = (ROOT / "docs" / "rules.md").read_text(encoding="utf-8")
    assert text == rules_page(), (
        "run: python -m nvidia_variant_provider.lint.rules.page docs/rules.md"
    )


def test_rules_page_has_a_section_and_a_row_for_each_rule() -> None:
    text = rules_page()
    sections = re.split(r"^### ", text, flags=re.MULTILINE)[1:]
    headings = [section.splitlines()[0] for section in sections]
    assert headings == [f"{code}: {rule.title}" for code, rule in RULES.items()]
    rows = [line for line in text.splitlines() if line.startswith("| [NV")]
    assert rows == [
        f"| [{code}](#{code}) | {rule.severity} | {rule.title} | {rule.clients} |"
        for code, rule in RULES.items()
    ]
    for section, (code, rule) in zip(sections, RULES.items(), strict=True):
        assert f'<a id="{code}"></a>' in section
        assert f"\n{rule.severity.capitalize()}. " in section
        assert "\nFix: " in section
        assert rule.example in section


def test_rule_texts_are_sentences() -> None:
    for rule in RULES.values():
        assert rule.what.endswith("."), rule.code
        assert rule.effect.endswith("."), rule.code
        assert rule.fix.endswith("."), rule.code
        assert not rule.title.endswith("."), rule.code
        assert not rule.clients.endswith("."), rule.code


def test_standard_input(
    fixtures: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = fixtures / "variants-json" / "torch-2.8.0-variants.json"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(path.read_bytes())))
    assert main(["validate", "-"]) == 1
    assert capsys.readouterr().out.startswith("stdin:2:16: $schema: NV106 error: ")
