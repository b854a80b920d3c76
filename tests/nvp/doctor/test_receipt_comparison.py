"""ND701 and ``diff`` of two receipts: the differences that matter, and the others."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.stacks import Installed, machine, make_stack

from nvp.doctor.receipts.comparing import compare, find_differences
from nvp.doctor.receipts.document import (
    comparison_lines,
    comparison_markdown,
)
from nvp.doctor.receipts.making import make_receipt
from nvp.doctor.runner import Evidence, add_evidence, diagnose

Change = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module")
def receipt(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    prefix = tmp_path_factory.mktemp("receipt") / "env"
    torch = Installed(name="torch", version="2.15.0+cu130", files={"t.py": b"1"})
    environ = {"TRITON_PTXAS_PATH": f"{prefix}/bin/ptxas"}
    stack = make_stack(
        prefix, torch, environment=machine("13.0", "9.0"), environ=environ
    )
    workload: dict[str, Any] = {
        "command": "python train.py",
        "outcome": "passed",
        "exit_code": 0,
        "signal": None,
        "error": None,
        "seconds": 1.5,
        "deadline": 600,
        "graph_breaks": [],
        "recompilations": [],
        "fallbacks": [],
        "autotuning": [],
        "totals": {
            "graph_breaks": 1,
            "recompilations": 0,
            "fallbacks": 0,
            "autotuning": 0,
        },
        "gpu_memory": [{"index": 0, "before": 1, "peak": 2}],
        "gpu_memory_reason": None,
    }
    receipt = make_receipt(
        stack,
        workloads=[workload],
        toolchain={"ptxas": [{"cuda": "13.0", "path": "/a", "seconds": 0.5}]},
        live={"ptx": [{"version": "9.0", "status": "passed", "seconds": 0.25}]},
    )
    return dict(receipt)


def changed(receipt: dict[str, Any], change: Change) -> dict[str, Any]:
    other = copy.deepcopy(receipt)
    change(other)
    return other


def messages(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    findings = list(find_differences(compare(old, new)))
    assert {finding.code for finding in findings} <= {"ND701"}
    assert all(finding.hint for finding in findings)
    return [finding.message for finding in findings]


def setting(*keys: str | int, to: object) -> Change:
    def change(receipt: dict[str, Any]) -> None:
        target: Any = receipt
        for key in keys[:-1]:
            target = target[key]
        target[keys[-1]] = to

    return change


def workload(key: str, to: object) -> Change:
    return setting("workloads", 0, key, to=to)


MATTER = {
    "the driver": (
        setting("environment", "cuda_driver_version", to="12.8"),
        "machine CUDA driver is 12.8, and the receipt has 13.0",
    ),
    "a GPU": (
        setting("environment", "gpus", 0, "compute_capability", to="12.0"),
        "gpu 0 is a GPU, compute capability 12.0, and the receipt has a GPU, compute "
        "capability 9.0",
    ),
    "a GPU that is gone": (
        setting("environment", "gpus", to=[]),
        "gpu 0 is not there, and the receipt has a GPU, compute capability 9.0",
    ),
    "a version": (
        setting("distributions", 0, "version", to="2.16.0"),
        "distribution torch is 2.16.0",
    ),
    "a label": (
        setting("distributions", 0, "label", to="cu129"),
        "distribution torch is 2.15.0+cu130 (cu129)",
    ),
    "other files of one version": (
        setting("distributions", 0, "record", to=f"sha256:{'0' * 64}"),
        "distribution torch is 2.15.0+cu130 sha256:000000000000",
    ),
    "a distribution that is gone": (
        setting("distributions", to=[]),
        "distribution torch is not there",
    ),
    "an override": (
        setting("overrides", 0, "value", to="/usr/bin/ptxas"),
        "override TRITON_PTXAS_PATH is /usr/bin/ptxas, and the receipt has "
        "{environment}/bin/ptxas",
    ),
    "an override that is gone": (
        setting("overrides", to=[]),
        "override TRITON_PTXAS_PATH is not there",
    ),
    "the toolchain": (
        setting("toolchain", "ptxas", 0, "cuda", to="13.1"),
        "toolchain ptxas[0].cuda is 13.1, and the receipt has 13.0",
    ),
    "the ABI": (setting("abi", to={"torch": "old"}), "abi torch is old"),
    "the live proof": (
        setting("live", "ptx", 0, "status", to="refused"),
        "live ptx[9.0].status is refused, and the receipt has passed",
    ),
    "a workload that fails": (
        workload("outcome", "failed"),
        "workload python train.py: it has passed, and fails now",
    ),
    "a workload that was not run": (
        setting("workloads", to=[]),
        "workload python train.py: it was not run",
    ),
    "more graph breaks": (
        setting("workloads", 0, "totals", "graph_breaks", to=3),
        "workload python train.py: 3 graph breaks instead of 1",
    ),
    "the version of Python": (
        setting("python", "version", to="3.12"),
        "python version is 3.12, and the receipt has 3.11",
    ),
}


@pytest.mark.parametrize("name", MATTER)
def test_a_difference_that_matters(name: str, receipt: dict[str, Any]) -> None:
    change, expected = MATTER[name]
    (message,) = messages(receipt, changed(receipt, change))
    assert message.startswith(expected)


NEAR_MISSES = {
    "nothing": setting("made_by", to="nvidia-variant-provider 0.1.0"),
    "the time": setting("made_at", to="2030-01-01T00:00:00Z"),
    "a reason": setting("distributions", 0, "reason", to="another"),
    "the branch of the driver": setting(
        "environment", "kernel_driver_version", to="580.1"
    ),
    "the directory of a program": setting("toolchain", "ptxas", 0, "path", to="/b"),
    "what the toolchain says of torch": setting(
        "toolchain", "torch", to={"version": "2.16.0"}
    ),
    "the time that a workload takes": workload("seconds", 99.5),
    "its memory": workload("gpu_memory", None),
    "the time of the live proof": setting("live", "ptx", 0, "seconds", to=9.75),
    "a live proof that nobody asked for": setting("live", to=None),
    "fewer graph breaks": setting("workloads", 0, "totals", "graph_breaks", to=0),
    "findings": setting("findings", to=[]),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_a_difference_that_does_not_matter(name: str, receipt: dict[str, Any]) -> None:
    comparison = compare(receipt, changed(receipt, NEAR_MISSES[name]))
    assert "ND701" not in [finding.code for finding in find_differences(comparison)]


def test_the_folder_of_the_environment_does_not_matter(
    receipt: dict[str, Any],
) -> None:
    prefix = receipt["python"]["prefix"]
    moved = changed(receipt, setting("python", "prefix", to="/elsewhere"))
    moved["overrides"][0]["value"] = receipt["overrides"][0]["value"].replace(
        prefix, "/elsewhere"
    )
    assert messages(receipt, moved) == []


def test_the_facts_of_two_receipts(receipt: dict[str, Any]) -> None:
    new = changed(receipt, workload("outcome", "timed-out"))
    new["distributions"][0]["version"] = "2.16.0"
    comparison = compare(receipt, new)
    assert comparison.has_lost_workloads
    assert comparison.counts["lost"] == 1
    lines = comparison_lines(comparison, with_same=False)
    assert lines[:4] == [
        "lost: workload python train.py",
        "  old: passed, 1 graph break",
        "  new: timed-out, 1 graph break",
        "  it has passed, and fails now",
    ]
    assert lines[-1] == "1 lost, 1 changed, 0 gained, 8 same, of 10 facts"
    table = comparison_markdown(comparison, with_same=True)
    assert sum(line.startswith("| same |") for line in table) == 8


def test_a_workload_that_passes_again_is_gained(receipt: dict[str, Any]) -> None:
    old = changed(receipt, workload("outcome", "failed"))
    (fact,) = [item for item in compare(old, receipt).facts if item.kind == "workload"]
    assert (fact.change, fact.matters) == ("gained", False)


def test_a_workload_that_keeps_failing_is_the_same(receipt: dict[str, Any]) -> None:
    old = changed(receipt, workload("outcome", "failed"))
    comparison = compare(old, copy.deepcopy(old))
    assert not comparison.has_lost_workloads
    assert comparison.counts["same"] == len(comparison.facts)


def test_an_item_that_is_new_leaves_the_others_alone(receipt: dict[str, Any]) -> None:
    new = copy.deepcopy(receipt)
    new["live"]["ptx"].insert(0, {"version": "8.8", "status": "passed"})
    facts = [fact for fact in compare(receipt, new).facts if fact.change != "same"]
    assert [(fact.name, fact.change) for fact in facts] == [
        ("ptx[8.8].version", "gained"),
        ("ptx[8.8].status", "gained"),
    ]


def test_a_receipt_is_the_same_as_itself(receipt: dict[str, Any]) -> None:
    assert set(compare(receipt, receipt).counts.values()) == {
        0,
        len(compare(receipt, receipt).facts),
    }


def test_an_override_may_be_empty(receipt: dict[str, Any]) -> None:
    new = changed(receipt, setting("overrides", 0, "value", to=""))
    (message,) = messages(receipt, new)
    assert "is an empty text" in message


def test_a_long_name_above_many_values(receipt: dict[str, Any]) -> None:
    values = {str(number): number for number in range(30_000)}
    other = {**receipt, "toolchain": {"a" * 100_000: values}}
    facts = compare(other, other).facts
    assert len(facts) < 11_000
    assert max(len(fact.name) for fact in facts) <= 500


def test_a_prefix_of_one_letter(receipt: dict[str, Any]) -> None:
    many = "a" * 300_000
    old = changed(receipt, setting("python", "prefix", to="a"))
    old["overrides"][0]["value"] = many
    (fact,) = [x for x in compare(old, receipt).facts if x.kind == "override"]
    assert fact.old == many


@pytest.mark.parametrize("unit", ["a", "\x7f", "\U0001f600\x7f"])
def test_a_long_text_of_a_receipt_is_cut(unit: str, receipt: dict[str, Any]) -> None:
    old = changed(receipt, setting("overrides", 0, "value", to=unit * 100_000))
    (message,) = messages(old, receipt)
    assert message.startswith("override TRITON_PTXAS_PATH is {environment}")
    assert message.endswith(unit)
    assert len(message) <= 2_000


def test_many_differences_are_not_all_reported(
    receipt: dict[str, Any], tmp_path: Path
) -> None:
    (item, *_) = receipt["distributions"]
    receipt["distributions"] = [{**item, "name": f"d{n}"} for n in range(5000)]
    diagnosis = add_evidence(diagnose(make_stack(tmp_path)), Evidence(against=receipt))
    assert sum(x.code == "ND701" for x in diagnosis.findings) == 100
    assert "only the first 100 findings of ND701 are reported" in diagnosis.notes


def test_a_receipt_does_not_name_the_server_of_a_package(tmp_path: Path) -> None:
    stack = make_stack(tmp_path, Installed(name="torch", version="2.8.0"))
    own = make_receipt(stack)
    (torch,) = own["distributions"]
    name = "torch @ https://host.example/torch.whl#"
    against = {**own, "distributions": [{**torch, "name": name}]}
    found = add_evidence(diagnose(stack), Evidence(against=against)).findings
    assert all("host.example" not in str(item.commands) for item in found)
    assert any("host.example" in item.message for item in found)
