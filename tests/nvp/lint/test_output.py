"""``validate``: exit codes, the choice of rules, and the forms of the report."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.lint_cases import lint_document, write_case

from nvp import api
from nvp.cli import main
from nvp.findings import SEVERITIES
from nvp.lint.documents import check_text
from nvp.lint.findings import Collector, Finding
from nvp.lint.output import as_github, as_sarif, as_text
from nvp.lint.runner import selected

CLEAN = "clean.json"
ERRORS = "NV304-empty-range.json"  # NV304 and the warning NV315
WARNINGS = "NV305-upper-bound.json"
NOTES = "NV310-strict-bound.json"
TEXTS = ["code", "severity", "path", "place", "message", "hint"]
KEYS = [*TEXTS, "member", "line", "column"]

# Texts with characters that have a meaning in some form of the report.
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


@pytest.fixture(autouse=True)
def documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start each test in a directory with the documents."""
    for name in (CLEAN, ERRORS, WARNINGS, NOTES):
        write_case(name.removesuffix(".json"), tmp_path)
    monkeypatch.chdir(tmp_path)


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
    # The last --format on the command line counts.
    exit_code, out, err = validate(*form, *arguments)
    assert exit_code == code
    assert bool(err) is (code == 2 and form != ["--json"])
    assert bool(out) is not bool(err)


def test_paths_that_cannot_be_read_are_findings(validate: Any, tmp_path: Path) -> None:
    code, out, _ = validate("--json", tmp_path / "missing.json", CLEAN, tmp_path)
    assert (code, codes(out)) == (1, ["NV100", "NV100"])


# The choice of rules


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
def test_the_longer_of_two_prefixes_counts(
    select: list[str], ignore: list[str], kept: bool
) -> None:
    assert selected("NV304", select, ignore) is kept
    findings = api.validate([ERRORS], select=select, ignore=ignore)
    assert ("NV304" in {f.code for f in findings}) is kept


@pytest.mark.parametrize(
    "arguments",
    [
        ["--select", "NV304,NV315"],
        ["--select", "nv304", "--select", " NV315 "],
        ["--select", "NV3"],
        ["--ignore", "NV1,NV2", "--ignore", "NV4"],
    ],
)
def test_several_codes_can_be_selected(arguments: list[str], validate: Any) -> None:
    _, out, _ = validate(ERRORS, "--json", *arguments)
    assert codes(out) == ["NV304", "NV315"]


def test_findings_are_sorted_and_without_duplicates() -> None:
    paths = [WARNINGS, ERRORS, WARNINGS]
    findings = api.validate(paths)
    assert findings == api.validate(paths[::-1])
    assert [(Path(f.path).name, f.code) for f in findings] == [
        (ERRORS, "NV304"),
        (ERRORS, "NV315"),
        (WARNINGS, "NV305"),
    ]


def test_log_says_what_is_checked_and_how_many_findings_there_are(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", logger="nvp.lint")
    api.validate([WARNINGS, ERRORS])
    assert caplog.messages == [
        f"checking {WARNINGS}",
        f"{WARNINGS}: 1 finding",
        f"checking {ERRORS}",
        f"{ERRORS}: 2 findings",
    ]


# JSON


def test_json_report_has_the_keys_of_its_schema(validate: Any) -> None:
    code, out, err = validate(ERRORS, "--json")
    report = json.loads(out)
    assert (code, err) == (1, "")
    assert (report["command"], report["status"]) == ("validate", "findings")
    assert list(report["data"]) == ["findings", "unchecked"]
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


@pytest.mark.parametrize("form", ["text", "json", "github", "sarif"])
@pytest.mark.parametrize(
    "url",
    [
        "ftp://user:s3cret@h/torch-1.0-py3-none-any.whl",
        "file://user:s3cret@h/x.whl",
        "ftp://user:s3cret@h/torch-1.0-variants.json",
    ],
)
def test_no_report_has_the_password_of_a_url(
    url: str, form: str, validate: Any
) -> None:
    code, out, err = validate("--format", form, url)
    assert code == 1
    assert "s3cret" not in out + err
    assert url.rpartition("/")[2] in out


@pytest.mark.parametrize("text", NASTY)
@pytest.mark.parametrize("form", ["text", "github", "sarif"])
def test_every_finding_is_one_line_whatever_it_contains(
    text: str, form: str, validate: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    findings = [finding(text), finding("b")]
    monkeypatch.setattr("nvp.lint.runner.check_paths", lambda *_, **__: findings)
    code, out, _ = validate(CLEAN, "--format", form)
    assert code == 1
    lines = out.removesuffix("\n").split("\n")
    # No line break of terminals, of Python or of GitHub is left in a finding.
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


def test_labels_and_file_names_inject_no_workflow_command(
    validate: Any, tmp_path: Path
) -> None:
    label = "cu12\n::error file=x::injected\r::warning::too"
    document = lint_document("clean")
    document["variants"][label] = document["variants"]["cu12"]
    path = tmp_path / "a\n::error title=b::c, d.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    _, out, _ = validate(path, "--format", "github")
    assert len(out.splitlines()) == len(api.validate([path])) >= 2
    for line in out.splitlines():
        match = re.fullmatch(r"::(error|warning|notice) file=([^:,]*),(.*)", line)
        assert match
        assert re.fullmatch(r"(?:[a-zA-Z]+=[^:,]*,?)+::.*", match[3])


@given(st.text(), st.text())
def test_github_escapes_can_be_undone(path: str, message: str) -> None:
    (line,) = as_github([finding("x", path=path, message=message)])
    head, _, data = line.removeprefix("::error ").partition("::")
    fields = dict(part.split("=", 1) for part in head.split(","))
    # urllib's unquote would decode further escapes.
    assert _unescaped(fields["file"]) == path
    assert message in _unescaped(data)
    assert not set("\r\n") & set(line)


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("100%", "100%25"),
        ("100%25", "100%2525"),
        ("a%0Ab", "a%250Ab"),
        ("a\nb", "a%0Ab"),
        ("a\rb", "a%0Db"),
    ],
)
def test_github_message_is_escaped_once(text: str, escaped: str) -> None:
    (line,) = as_github([finding("x", place="", message=text)])
    assert line.endswith(f"::{escaped}; x")


def test_github_properties_escape_their_separators() -> None:
    (line,) = as_github([finding("x", path="a:b,c%2Cd")])
    assert line.startswith("::error file=a%3Ab%2Cc%252Cd,title=NV304::")


def test_a_sarif_message_has_no_links_of_strangers() -> None:
    (item,) = json.loads(
        "\n".join(as_sarif([finding("x", message="'[a](https://b.test)' is wrong")]))
    )["runs"][0]["results"]
    assert item["message"]["text"] == "'[a] (https://b.test)' is wrong; x"


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
    (warning,) = api.validate([WARNINGS])
    assert first == (
        f"{WARNINGS}:23:37: variants.cu12.nvidia.cuda_version_upper_bound: "
        f"NV305 warning: {warning.message}; {warning.hint}"
    )
    assert last == "1 warning"


def test_standard_input_is_called_stdin(
    fixtures: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = fixtures / "variants-json" / "torch-2.8.0-variants.json"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(path.read_bytes())))
    assert main(["validate", "-"]) == 1
    out = capsys.readouterr().out
    assert out.startswith("stdin:2:16: $schema: NV106 error: ")
    assert "; rewrite it: nvp upgrade -\n" in out


def test_the_command_of_a_hint_names_the_file(fixtures: Path, tmp_path: Path) -> None:
    path = tmp_path / "a b" / "torch-2.8.0-variants.json"
    path.parent.mkdir()
    old = fixtures / "variants-json" / "torch-2.8.0-variants.json"
    path.write_bytes(old.read_bytes())
    (found,) = [x for x in api.validate([path]) if x.code == "NV106"]
    assert found.hint == f"rewrite it: nvp upgrade '{path}'"


def test_the_command_of_a_hint_quotes_a_name_of_a_page(fixtures: Path) -> None:
    old = fixtures / "variants-json" / "torch-2.8.0-variants.json"
    collector = Collector("https://index.test/$(id)-variants.json")
    check_text(old.read_bytes(), collector)
    (found,) = [x for x in collector.findings if x.code == "NV106"]
    assert found.hint.endswith(": nvp upgrade '$(id)-variants.json'")
