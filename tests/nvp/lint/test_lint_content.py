"""NV5xx: the GPU code of wheels compared to their declared properties."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.command import Run
from support.containers import container, library
from support.content_cases import CASES, STATIC
from support.documents import document as document_of
from support.documents import nvidia
from support.gpu_wheels import PLAIN, PLAIN_SO, Wheel, one

from nvp import api
from nvp.gpu_code import compression, inspection
from nvp.gpu_code.inspection import Progress
from nvp.lint.findings import RULES, Finding
from nvp.lint.runner import check_paths

COMMAND = "validate"


def content(path: Path) -> list[Finding]:
    findings = api.validate([path], select=["NV4", "NV5"])
    for finding in findings:
        assert finding.severity == RULES[finding.code].severity
        assert finding.path == str(path)
        assert finding.message
        assert finding.hint
    return findings


@pytest.mark.parametrize("name", CASES)
def test_wheel_triggers_the_rule(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    findings = content(case.trigger.write(tmp_path))
    assert {f.code for f in findings} == {name[:5], *case.others}
    text = " ".join(f.message + f.hint for f in findings if f.code == name[:5])
    assert [part for part in case.says if part not in text] == []


@pytest.mark.parametrize(
    ("name", "index"),
    [(name, index) for name, case in CASES.items() for index in range(len(case.near))],
)
def test_near_miss_does_not_trigger_the_rule(
    name: str, index: int, tmp_path: Path
) -> None:
    findings = content(CASES[name].near[index].write(tmp_path))
    assert name[:5] not in {f.code for f in findings}


def test_every_rule_has_a_trigger_and_a_near_miss() -> None:
    rules = {code for code in RULES if code.startswith("NV5")}
    assert {name[:5] for name in CASES} == rules
    assert all(case.near for case in CASES.values())


def test_a_true_wheel_has_no_finding(tmp_path: Path) -> None:
    path = Wheel(libraries=PLAIN_SO, label="cu135", lower="13.5", sm=PLAIN).write(
        tmp_path
    )
    assert content(path) == []
    # A directory with the wheel is checked in the same way.
    assert [f for f in api.validate([tmp_path]) if f.code.startswith("NV5")] == []


@pytest.mark.parametrize("value", [[], {}, ["75_real"], 1.5, None])
def test_a_value_that_is_no_text_is_a_finding(value: object, tmp_path: Path) -> None:
    variant = {"nvidia": {**nvidia("13.5")["nvidia"], "sm_arch": [value]}}
    wheel = Wheel(libraries=PLAIN_SO, label="cu135", variant=variant)
    findings = api.validate([wheel.write(tmp_path)])
    assert {finding.code for finding in findings} == {"NV108"}


def test_a_wrong_checksum_is_a_finding(tmp_path: Path) -> None:
    path = Wheel(libraries=PLAIN_SO, label=None).write(tmp_path)
    data = bytearray(path.read_bytes())
    data[data.index(b"\x7fELF") + 100] ^= 1
    path.write_bytes(data)
    assert {f.code for f in content(path)} >= {"NV512"}


def test_nv307_does_not_apply_to_a_library_for_each_cuda(tmp_path: Path) -> None:
    libraries = {
        "demo/lib_cuda118.so": library("80_real"),
        "demo/lib_cuda128.so": library("80_real", "120_real"),
    }
    wheel = Wheel(libraries=libraries, lower="11.8", sm=["80_real", "120_real"])
    path = wheel.write(tmp_path)
    assert "NV307" not in {f.code for f in api.validate([path])}
    assert "NV307" in {f.code for f in api.validate([path], ignore=["NV5"])}


def test_nv307_applies_where_the_libraries_cannot_be_read(tmp_path: Path) -> None:
    libraries = {
        "demo/lib_cuda118.so": library("80_real"),
        "demo/lib_cuda128.so": library("80_real", "120_real"),
        "demo/other.so": library("80_real", "90_real")[:-9],
    }
    wheel = Wheel(libraries=libraries, lower="11.8", sm=["80_real", "120_real"])
    codes = {f.code for f in api.validate([wheel.write(tmp_path)])}
    assert {"NV307", "NV512"} <= codes


@pytest.mark.parametrize(
    ("wheel", "advice"),
    [
        # The hint is the lowest bound of `inspect`, not the oldest toolkit for the
        # targets.
        (
            Wheel(libraries=one("80_real", isa=(8, 7)), sm=["80_real"], lower="12.6"),
            "a lower bound of 12.0 would reach them",
        ),
        (
            Wheel(
                libraries=one("80_real", "90_virtual", isa=(8, 7)),
                sm=["80_real"],
                lower="12.4",
            ),
            "a lower bound of 12.0 would reach them",
        ),
        (Wheel(libraries=STATIC, sm=["80_real"], lower="12.0"), None),
        # NV506 and NV505 already report that the bound is too low.
        (Wheel(libraries=STATIC, sm=["80_real"], lower="11.8"), None),
        (Wheel(libraries=PLAIN_SO, sm=PLAIN, lower="13.2"), None),
        (Wheel(libraries=PLAIN_SO, sm=PLAIN[:3], lower="12.9"), None),
    ],
)
def test_a_bound_is_loosened_to_what_the_bytes_allow(
    wheel: Wheel, advice: str | None, tmp_path: Path
) -> None:
    path = wheel.write(tmp_path)
    # The metadata file of the release repeats the bound.
    document = document_of({"cu130": nvidia(wheel.lower, sm=wheel.sm)})
    (tmp_path / "demo-1.0-variants.json").write_text(json.dumps(document))
    for target in (path, tmp_path):
        hints = [f.hint for f in api.validate([target]) if f.code == "NV310"]
        assert hints == ([advice] if advice else [])


def test_one_wrong_spelling_is_one_finding(tmp_path: Path) -> None:
    targets = ["75_real", "80_real", "90_real", "100_real"]
    for python in ("cp311", "cp312"):
        Wheel(
            libraries=one(*targets, "120_virtual", isa=(9, 0)),
            sm=["sm_75", *targets[1:], "120_virtual"],
            tag=f"{python}-{python}-linux_x86_64",
        ).write(tmp_path)
    document = document_of(
        {"cu130": nvidia("13.0", sm=["sm_75", *targets[1:], "120_virtual"]), "null": {}}
    )
    Wheel(libraries={}, label="null", variant={}, tag="py3-none-any").write(tmp_path)
    (tmp_path / "demo-1.0-variants.json").write_text(json.dumps(document))
    findings = api.validate([tmp_path], ignore=["NV206"])
    assert [(f.code, f.hint) for f in findings] == [("NV302", "did you mean 75_real?")]


def test_a_narrow_label_is_one_finding_and_can_be_marked(
    run: Run, tmp_path: Path
) -> None:
    targets = ["75_real", "80_real", "90_real", "100_real", "120_real", "120_virtual"]
    path = Wheel(libraries=one(*targets), label="cu130_hopper", sm=["90_real"]).write(
        tmp_path
    )
    (finding,) = [f for f in api.validate([path]) if f.severity == "warning"]
    assert finding.code == "NV502"
    assert "75_real, 80_real, 100_real, 120_real, 120_virtual" in finding.message
    assert run(path, "--strict").code == 1
    assert run(path, "--strict", "--ignore", "NV502:cu130_hopper").code == 0
    assert run(path, "--strict", "--ignore", "NV5:cu130_*,NV1").code == 0
    assert run(path, "--strict", "--ignore", "NV502:cu130").code == 1
    assert run(path, "--strict", "--ignore", "NV599:cu130").code == 2


def test_damaged_library_in_a_folder_does_not_hide_the_rest(tmp_path: Path) -> None:
    CASES["NV512"].trigger.write(tmp_path)
    CASES["NV507"].trigger.write(tmp_path)
    codes = {finding.code for finding in api.validate([tmp_path])}
    assert {"NV512", "NV507"} <= codes


def test_a_wheel_that_costs_too_much_to_read_is_not_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few kilobytes could take minutes, so NV512 reports that reading was stopped."""
    monkeypatch.setattr(compression, "STEPS", 5)
    wheel = Wheel(libraries={"demo/lib.so": container() * 1000}, sm=["90_real"])
    findings = [f for f in api.validate([wheel.write(tmp_path)]) if f.code[:3] == "NV5"]
    assert [item.code for item in findings] == ["NV512"]
    assert "not everything was read" in findings[0].message


@pytest.mark.parametrize(
    "options", [{"ignore": ["NV5"]}, {"select": ["NV3"]}, {"select": ["NV4", "NV1"]}]
)
def test_libraries_are_read_only_for_rules_that_need_them(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("read")

    monkeypatch.setattr(inspection, "inspect_path", refuse)
    path = CASES["NV507"].trigger.write(tmp_path)
    api.validate([path], **options)
    api.validate([tmp_path], **options)
    with pytest.raises(AssertionError, match="read"):
        api.validate([path])


def test_reading_of_each_wheel_can_be_watched(tmp_path: Path) -> None:
    path = CASES["NV507"].trigger.write(tmp_path)
    names: list[str] = []
    steps: list[tuple[int, int]] = []

    @contextmanager
    def watch(name: str) -> Iterator[Progress]:
        names.append(name)
        yield lambda done, total: steps.append((done, total))

    check_paths([path], watch=watch)
    assert names == [str(path)]
    done, total = steps[-1]
    assert 0 < done <= total
    check_paths([path], watch=watch, ignore=["NV5"])
    assert names == [str(path)]


def test_command_fails_for_a_false_claim(run: Run, tmp_path: Path) -> None:
    path = CASES["NV501"].trigger.write(tmp_path)
    assert run(path).code == 1
    assert run(path, "--ignore", "NV5").code == 0
    report = json.loads(run(path, "--json").out)
    assert {f["code"] for f in report["data"]["findings"]} >= {"NV501"}
