"""The work that `validate` does once for all files, and its number of threads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.containers import BINARIES, write_wheel
from support.documents import PROVIDER, document, nvidia
from support.paths import FIXTURES
from support.reports import lib
from support.reports import wheel as report_of

from nvidia_variant_provider.machine.environment import Environment
from nvidia_variant_provider.metadata import read_metadata
from nvidia_variant_provider.resolution import inputs
from nvidia_variant_provider.resolution.ordering import order
from nvp.cli import main
from nvp.gpu_code import claims, inspection
from nvp.gpu_code.report import LibraryReport, WheelReport
from nvp.lint import content, content_rules, files, selection
from nvp.lint.content import describe_wheel
from nvp.lint.content_rules import check_content
from nvp.lint.findings import Collector
from nvp.lint.runner import check_paths
from nvp.wheels.archive import parse_wheel_name

FIXTURE = FIXTURES / "variants-json"
FILE = FIXTURE / "torch-2.8.0-variants.json"

LABELED = "demo-1.0-py3-none-linux_x86_64-x.whl"


def test_the_answer_of_a_machine_is_computed_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[object] = []
    real = inputs.own_answer

    def counted(environment: Environment) -> inputs.Answer:
        asked.append(environment)
        return real(environment)

    monkeypatch.setattr(selection, "own_answer", counted)
    selection._answer.cache_clear()
    metadata = read_metadata(str(FILE))
    first = selection.find_shadowed(metadata)
    count = len(asked)
    assert count > 10
    assert selection.find_shadowed(metadata) == first
    assert len(asked) == count


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "demo-1.0-py3-none-any.whl"
    plain = (BINARIES / "plain.so").read_bytes()
    info = "demo-1.0.dist-info"
    members = {
        "demo/a.so": plain,
        "demo/b.so": plain,
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nTag: py3-none-any\n",
    }
    return write_wheel(path, members)


@pytest.mark.parametrize("jobs", [1, 3])
def test_members_are_read_by_as_many_jobs(
    jobs: int,
    wheel: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    used: list[object] = []
    real = inspection.inspect_path

    def noted(source: str, **options: object) -> WheelReport:
        used.append(options["jobs"])
        return real(source, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(inspection, "inspect_path", noted)
    main(["validate", str(wheel), "--jobs", str(jobs), "--format", "json"])
    printed = json.loads(capsys.readouterr().out)["data"]["findings"]
    findings = [f.to_dict() for f in check_paths([wheel], jobs=jobs)]
    assert [f["code"] for f in printed] == [f["code"] for f in findings]
    assert used == [jobs, jobs]


@pytest.mark.parametrize("command", ["validate", "inspect"])
def test_no_job_is_a_usage_error(
    command: str, wheel: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, str(wheel), "--jobs", "0"]) == 2
    assert "--jobs must be at least 1" in capsys.readouterr().err


def test_a_release_with_many_values_or_labels_is_not_ordered_for_each_label(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each try for NV315 orders all labels for every machine."""
    calls: list[object] = []

    def counted(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        return order(*arguments, **options)

    monkeypatch.setattr(selection, "order", counted)

    def orderings(labels: int, values: int) -> int:
        other = {"other": {"a": [f"{n}" for n in range(values)]}}
        bounds = ["12.6", "12.7", "12.8", "12.9"]
        metadata = document(
            {f"x{n}": {**nvidia(bounds[n % 4]), **other} for n in range(labels)},
            providers={"nvidia": PROVIDER, "other": {"requires": ["other"]}},
        )
        calls.clear()
        selection.find_shadowed(read_metadata(metadata))
        return len(calls)

    machines = orderings(4, 1)
    assert orderings(40, 1) == machines * 37
    for labels, values in ((40, 2000), (3000, 1)):
        tries = 5_000_000 // (labels * (values + 12) * machines)
        assert orderings(labels, values) == machines * (1 + tries)


def test_a_release_is_searched_once_for_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    real = files.Release.is_checked

    def counted(self: files.Release) -> bool:
        asked.append(self)
        return bool(real.__get__(self))

    monkeypatch.setattr(files.Release, "is_checked", property(counted))
    for number in range(1, 30):
        (tmp_path / f"demo-1.0-{number}-py3-none-any.whl").write_bytes(b"")
    (tmp_path / "demo-1.0-variants.json").write_text("{}")
    check_paths([tmp_path])
    assert 0 < len(asked) < 5


def declared(*values: str) -> dict[str, object]:
    return {"variants": {"x": {"nvidia": {"sm_arch": list(values)}}}}


@pytest.mark.parametrize("stubs", [{}, {"80_real": 1, "90_virtual": 1}])
def test_libraries_with_the_same_targets_are_compared_once(
    stubs: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wheel of a stranger has thousands of libraries, and thousands of values."""
    judged: list[object] = []
    for module, name in (
        (claims, "property_value"),
        (content, "reaches"),
        (content_rules, "_jit_toolkit"),
    ):
        real = getattr(module, name)

        def counted(*arguments: Any, real: Any = real) -> Any:
            judged.append(arguments)
            return real(*arguments)

        monkeypatch.setattr(module, name, counted)

    def steps(libraries: int, repeats: int) -> int:
        claims.values_of.cache_clear()
        paths = [f"demo/{n}.so" for n in range(libraries)]
        code = ("80_real", "90_virtual")
        items = [lib(*code, path=x, stubs=stubs, machine="x86_64") for x in paths]
        document = declared(*["70_real", "80_real", "90_virtual"] * repeats)
        report, name = report_of(*items, path=LABELED), parse_wheel_name(LABELED)
        wheel = describe_wheel(report, name, document)
        assert wheel is not None
        lacking = ["80_real", "90_virtual"] if stubs else ["70_real"]
        assert [item.value for item in wheel.shortfalls] == lacking
        for item in wheel.shortfalls:
            assert [unit.name for unit in item.units] == paths
        judged.clear()
        claims.values_of.cache_clear()
        outside, inside = Collector(LABELED), Collector(LABELED)
        check_content(report, name, document, outside=outside, inside=inside)
        return len(judged)

    assert 0 < steps(1, 1) == steps(9, 1) == steps(9, 9)


def test_foreign_libraries_are_not_compared_with_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: list[object] = []
    equal = LibraryReport.__eq__

    def counted(one: LibraryReport, other: object) -> bool:
        compared.append(other)
        return equal(one, other)

    monkeypatch.setattr(LibraryReport, "__eq__", counted)
    items = [
        lib("90_real", path=f"demo/{n}.so", machine=("x86_64", "aarch64")[n % 2])
        for n in range(50)
    ]
    report, name = report_of(*items, path=LABELED), parse_wheel_name(LABELED)
    outside, inside = Collector(LABELED), Collector(LABELED)
    check_content(report, name, declared("80_real"), outside=outside, inside=inside)
    assert [code for code, _ in outside.problems] == ["NV513"]
    assert "NV501" in [code for code, _ in inside.problems]
    assert compared == []
