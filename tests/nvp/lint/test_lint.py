"""The rules for documents: each has a trigger and a near miss, and misses nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from support.lint_cases import (
    CASES,
    FOLDER,
    expected,
    lint_document,
    lint_text,
)
from support.paths import ROOT

from nvidia_variant_provider.errors import InputError
from nvidia_variant_provider.metadata import read_metadata
from nvp.findings import ERROR, NOTE
from nvp.lint.documents import check_text
from nvp.lint.findings import RULES, Collector, Finding

CODES = [code for code in RULES if code < "NV4"]
NEAR_MISS = "-near-miss"


def lint(data: bytes | object) -> list[Finding]:
    collector = Collector("file")
    text = data if isinstance(data, bytes) else json.dumps(data).encode()
    check_text(text, collector)
    for finding in collector.findings:
        assert finding.path == "file"
        assert finding.severity == RULES[finding.code].severity
        assert finding.message
        assert finding.hint
    return collector.findings


def clean() -> Any:
    return lint_document("clean")


@cache
def schema() -> Draft202012Validator:
    path = ROOT / "schemas" / "variants-json" / "v0.2.0.schema.json"
    return Draft202012Validator(json.loads(path.read_bytes()))


# The fixtures


@pytest.mark.parametrize("case", CASES)
def test_findings_of_a_case(case: str) -> None:
    found = [(f.code, f.severity, f.place) for f in lint(lint_text(case))]
    assert sorted(found) == expected(case)


def test_the_clean_document_has_not_even_a_note() -> None:
    assert lint(lint_text("clean")) == []


def test_a_file_is_a_case_of_the_table_and_changes_nothing_there() -> None:
    """The table does not repeat the cases of files."""
    files = {path.stem for path in FOLDER.glob("*.json")} - {"clean", "mutations"}
    for name in files:
        assert not CASES[name].keys() & {"rename", "remove", "set"}, name
    for name, case in CASES.items():
        assert case.keys() <= {"rename", "remove", "set", "note", "findings"}, name


@pytest.mark.parametrize("code", CODES)
def test_every_rule_has_a_trigger_and_a_near_miss(code: str) -> None:
    triggers = [case for case in CASES if case.startswith(code)]
    near = f"{code}{NEAR_MISS}"
    assert near in triggers
    triggers.remove(near)
    assert triggers
    for case in triggers:
        assert code in {found for found, _, _ in expected(case)}
    assert code not in {found for found, _, _ in expected(near)}


def test_a_case_with_findings_of_other_rules_has_a_note() -> None:
    for case in CASES:
        others = {code for code, _, _ in expected(case)} - {case[:5]}
        assert not others or CASES[case].get("note"), case


# Arbitrary documents

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=9), inner, max_size=4)
    ),
    max_leaves=9,
)


def containers(value: Any) -> Iterator[tuple[Any, Any]]:
    """Return each place below ``value``, as its container and the key in that."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in list(items):
        yield value, key
        if isinstance(item, (dict, list)):
            yield from containers(item)


def with_static_provider() -> Any:
    document = clean()
    document["default-priorities"]["namespace"].append("x86_64")
    document["providers"]["x86_64"] = {
        "static-properties": {"level": ["v3", "v2"], "vendor": ["intel"]},
        "feature-order": ["level", "vendor"],
        "optional": False,
    }
    document["variants"]["cpu"] = {"x86_64": {"level": ["v3"]}}
    return document


PLACES = len(list(containers(with_static_provider())))


def is_refused(data: bytes) -> bool:
    try:
        read_metadata(data)
    except InputError:
        return True
    return False


def check_no_defect_is_missed(document: Any) -> None:
    data = json.dumps(document).encode()
    errors = [f for f in lint(data) if f.severity == ERROR]
    if is_refused(data):
        assert errors
    if not schema().is_valid(document):
        assert errors


@given(st.integers(0, PLACES - 1), VALUES)
def test_no_defect_is_missed_with_any_value_in_any_place(
    place: int, value: object
) -> None:
    document = with_static_provider()
    container, key = list(containers(document))[place]
    # A newer version is accepted, but this schema is not for it.
    if key != "$schema":
        container[key] = value
        check_no_defect_is_missed(document)


@given(st.integers(0, PLACES - 1), VALUES, st.text(max_size=9))
def test_no_defect_is_missed_with_any_key_in_any_object(
    place: int, value: object, key: str
) -> None:
    document = with_static_provider()
    container, there = list(containers(document))[place]
    inner = container[there]
    if isinstance(inner, dict):
        inner[key] = value
    elif isinstance(inner, list):
        inner.append(value)
    check_no_defect_is_missed(document)


@pytest.mark.parametrize("place", range(PLACES))
def test_no_defect_is_missed_with_any_place_left_out(place: int) -> None:
    document = with_static_provider()
    container, key = list(containers(document))[place]
    del container[key]
    check_no_defect_is_missed(document)


@given(VALUES)
@settings(deadline=None)
def test_an_arbitrary_value_is_an_error(value: object) -> None:
    data = json.dumps(value).encode()
    assert {f.severity for f in lint(data)} >= {ERROR}
    assert is_refused(data)


@given(st.binary(max_size=60))
@example(b"")
@example(b"\xef\xbb\xbf")
@example(b"\xff\xfe{\x00}\x00")
@example(b'"\\ud800"')
@example(b"[" * 100_000)
@example(b"9" * 10_000)
@example(b'{"a": Infinity, "a": -Infinity}')
def test_arbitrary_bytes_are_an_error(data: bytes) -> None:
    assert {f.severity for f in lint(data)} >= {ERROR}


@given(st.data())
def test_damage_that_the_reader_refuses_is_an_error(data: st.DataObject) -> None:
    text = bytearray(lint_text("clean"))
    for _ in range(data.draw(st.integers(1, 3))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    findings = lint(bytes(text))
    if is_refused(bytes(text)):
        assert {f.severity for f in findings} >= {ERROR}


@pytest.mark.parametrize("key", ["requires", "enable-if"])
def test_a_marker_that_is_nested_too_deeply_is_an_error(key: str) -> None:
    marker = "(" * 3000 + "python_version > '3'" + ")" * 3000
    document = clean()
    document["providers"]["nvidia"][key] = (
        [f"nvidia-variant-provider; {marker}"] if key == "requires" else marker
    )
    assert {f.severity for f in lint(document)} >= {ERROR}


def test_a_target_without_any_toolkit_is_not_reported_twice() -> None:
    """NV307 reports a target that no toolkit of the major emits, so NV308 does not."""
    document = clean()
    features = {"cuda_version_lower_bound": ["13.0"], "sm_arch": ["70_real", "90_real"]}
    document["variants"]["cu130"] = {"nvidia": features}
    codes = {finding.code for finding in lint(document)}
    assert "NV307" in codes
    assert "NV308" not in codes


def test_many_findings_of_one_long_key_stay_small() -> None:
    document = clean()
    document["variants"]["x" * 200_000] = {"nvidia": {"sm_arch": [1] * 1000}}
    findings = lint(document)
    assert len(findings) >= 1000
    assert sum(len(f.place) + len(f.message) for f in findings) < 1_000_000


def test_a_key_given_twice_among_many_takes_linear_time() -> None:
    """A quadratic search would take a minute here."""
    keys = ", ".join(f'"k{index}": 1' for index in range(50_000))
    findings = lint(f'{{{keys}, "k0": 2}}'.encode())
    assert [f.place for f in findings if f.code == "NV102"] == ["k0"]


@pytest.mark.slow
def test_a_second_namespace_with_many_values_is_bounded() -> None:
    """Each label has its own value in that namespace, which is tried with all GPUs."""
    document = with_static_provider()
    levels = [f"v{index}" for index in range(1000)]
    document["providers"]["x86_64"] = {"static-properties": {"level": levels}}
    for level in levels:
        properties = {**document["variants"]["cu12"], "x86_64": {"level": [level]}}
        document["variants"][f"cu12_{level}"] = properties
    assert {f.severity for f in lint(document)} <= {NOTE, "warning"}


def test_a_page_that_was_saved_as_metadata_is_recognised() -> None:
    (finding,) = lint(b"\n<!DOCTYPE html><title>404 Not Found</title>")
    assert finding.code == "NV100"
    assert "page in HTML" in finding.hint
