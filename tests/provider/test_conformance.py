"""The language-neutral cases of ``fixtures/provider``, against this provider.

``tools/conformance.py`` runs them against other implementations.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from support.conformance import Case, read_cases, variables_for
from support.native import compile_libraries, needs_compiler
from support.paths import FIXTURES, ROOT, SCHEMAS
from support.shared import shared_folder

from nvidia_variant_provider.errors import OverrideError, SelectionWarning
from nvidia_variant_provider.plugin import NvidiaVariantPlugin
from tools import conformance

CASES = read_cases()
FILES = sorted((FIXTURES / "provider").glob("*.json"))
SCHEMA = json.loads((SCHEMAS / "provider-cases.schema.json").read_bytes())
VALIDATOR = Draft202012Validator(SCHEMA)
PAGE = ROOT / "docs" / "explanation" / "differences.md"

WARNINGS = {
    "driver-newer-than-catalog": "the driver's CUDA .*: it counts as 1[25].20",
    "driver-older-than-catalog": "is older than 11.0",
    "capability-outside-catalog": "cannot name compute capability",
    "capability-without-driver": "has no effect: the driver's CUDA version",
    "gpus-not-covered": "does not cover GPUs that cannot be read",
    "newer-than-kernel-driver": "assumes cuda-compat libraries",
    "other-gpus": "sm_arch describes the GPU of compute capability",
}
"""The text of the warning of each kind; the other kinds are reason codes."""

ERRORS = {
    "not-a-version": "is not a CUDA version",
    "not-a-capability": "is not a compute capability",
    "not-a-switch": "is neither 0 nor 1",
}


@pytest.fixture(scope="session")
def compiled(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[tuple[str, ...]], Path]:
    def folder(without: tuple[str, ...]) -> Path:
        name = "-".join(["libraries-without", *without])
        fill = partial(compile_libraries, without=without)
        return shared_folder(tmp_path_factory, name, fill)

    return folder


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=needs_compiler if case.driver else [], id=str(case))
        for case in CASES
    ],
)
def test_the_provider_answers_the_case(
    case: Case,
    compiled: Callable[[tuple[str, ...]], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in variables_for(case, tmp_path, compiled).items():
        monkeypatch.setenv(name, value)
    if case.catalog is not None:
        assert listed(NvidiaVariantPlugin.get_all_configs()) == case.catalog
    if case.error is not None:
        with pytest.raises(OverrideError, match=ERRORS[case.error["kind"]]) as caught:
            NvidiaVariantPlugin.get_supported_configs()
        assert caught.value.path == case.error["variable"]
        return
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        supported = NvidiaVariantPlugin.get_supported_configs()
    assert listed(supported) == case.answer
    assert {item.category for item in seen} <= {SelectionWarning}
    texts = [str(item.message) for item in seen]
    assert len(texts) == len(case.warnings), texts
    for kind in case.warnings:
        pattern = WARNINGS.get(kind, f"^{kind}: ")
        assert any(re.search(pattern, text) for text in texts), (kind, texts)


def listed(features: list[Any]) -> list[dict[str, Any]]:
    return [
        {"name": one.name, "values": one.values, "multi_value": one.multi_value}
        for one in features
    ]


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.stem)
def test_the_files_follow_their_schema(file: Path) -> None:
    document = json.loads(file.read_bytes())
    VALIDATOR.validate(document)
    Draft202012Validator.check_schema(SCHEMA)
    names = [case["name"] for case in document["cases"]]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    "change",
    [
        {"error": {"variable": "NV_VARIANT_PROVIDER_X", "kind": "not-a-version"}},
        {"warnings": ["something"]},
        {"differs": {"0.0.1": "libcuda"}},
        {"variables": {"CUDA_VISIBLE_DEVICES": "0"}},
        {"answer": [{"name": "sm_arch", "values": [], "multi_value": True}]},
        {"answer": None},
        {"driver": {"nvml": None}},
    ],
    ids=str,
)
def test_the_schema_refuses_other_cases(change: dict[str, Any]) -> None:
    case = {"name": "a", "rule": "b", "variables": {}, "answer": [], "warnings": []}
    assert VALIDATOR.is_valid({"about": "c", "cases": [case]})
    assert not VALIDATOR.is_valid({"about": "c", "cases": [{**case, **change}]})


def test_every_answer_is_a_part_of_the_catalog() -> None:
    """PEP 817 requires a subset."""
    (catalog, *others) = [case.catalog for case in CASES if case.catalog is not None]
    assert all(other == catalog for other in others)
    known = {part["name"]: set(part["values"]) for part in catalog}
    for case in CASES:
        assert all(set(x["values"]) <= known[x["name"]] for x in case.answer), case


def test_the_page_has_each_difference_once_and_no_other() -> None:
    anchors = re.findall(r'<a id="([a-z0-9-]+)"></a>(.*)', PAGE.read_text())
    # A program that runs once for each case cannot have these differences.
    marked = {name for name, text in anchors if "(not in the cases)" in text}
    names = [name for name, _ in anchors]
    assert len(set(names)) == len(names)
    in_cases = {name for case in CASES for name in case.differs.values()}
    assert set(names) - marked == in_cases
    assert not marked & in_cases


class TestTool:
    """``python -m tools.conformance``."""

    def test_the_provider_agrees(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert conformance.main(["catalog"]) == 0
        assert capsys.readouterr().out == (
            "3 cases: 3 as expected, 0 with a listed difference, 0 that contradict the "
            "list\n"
        )

    def test_a_module_is_an_endpoint(self) -> None:
        words = ["--endpoint", "nvidia_variant_provider", "--python", sys.executable]
        assert conformance.main([*words, "catalog"]) == 0

    def run(self, code: str, *words: str) -> int:
        command = shlex.join([sys.executable, "-I", "-S", "-c", code])
        return conformance.main(["--command", command, *words, "catalog"])

    def test_a_difference_is_shown_with_both_answers(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        catalog = read_cases("catalog")[0].catalog
        code = f"print({json.dumps(json.dumps({'all': catalog, 'supported': []}))})"
        assert self.run(code) == 1
        out = capsys.readouterr().out
        assert "catalog: forced values: NOT LISTED\n" in out
        assert "  expected: cuda_version_lower_bound 12.9 12.8 12.7 ... 11 (33)" in out
        assert "  got: nothing\n" in out
        assert "3 cases: 1 as expected" in out

    @pytest.mark.parametrize(
        ("code", "message"),
        [
            ("raise SystemExit('broken')", "error: exit code 1: broken"),
            ("print('[]')", "error: stdout is not the document: '[]\\n'"),
        ],
    )
    def test_a_program_that_does_not_answer_differs(
        self, code: str, message: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert self.run(code) == 1
        assert f"  got: {message}\n" in capsys.readouterr().out

    def test_a_listed_difference_that_is_not_seen_is_an_error(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert conformance.main(["--listed", "0.0.2", "catalog"]) == 1
        assert "no difference, although one is LISTED" in capsys.readouterr().out
