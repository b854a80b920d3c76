"""Each form of inventory has a fixture with the machines that it describes."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pytest
from support.paths import FIXTURES

from nvidia_variant_provider.machine.environment import ComputeCapability, CudaVersion
from nvp import api
from nvp.inventories import commands

pytest.importorskip("yaml", reason="it reads YAML")

FIXTURES = FIXTURES / "inventories"
EXPECTED = sorted(FIXTURES.glob("*.expected.json"))


@pytest.mark.parametrize("expected", EXPECTED, ids=lambda path: path.name[:-14])
def test_the_machines_of_a_form(expected: Path) -> None:
    path = expected.with_name(expected.name.removesuffix(".expected.json"))
    machines = api.read_machines(path)
    assert [item.to_dict() for item in machines] == json.loads(expected.read_text())


def test_every_fixture_has_an_expected_result() -> None:
    names = {path.name for path in FIXTURES.iterdir()}
    forms = {name for name in names if not name.endswith(".expected.json")}
    assert {f"{name}.expected.json" for name in forms} == names - forms


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = api.read_machines(FIXTURES / "kubernetes-nodes.json")
    with open(FIXTURES / "kubernetes-nodes.json", "rb") as file:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(file))
        assert api.read_machines("-") == expected


def test_both_outputs_of_nvidia_smi_are_one_machine() -> None:
    (log,) = api.read_machines(FIXTURES / "workstation.xml")
    (query,) = api.read_machines(FIXTURES / "workstation.csv")
    for pair in ((log, query), (query, log)):
        merged = commands.merge(*pair)
        assert merged is not None
        environment = merged.environment
        assert environment.cuda_driver_version == CudaVersion(12, 8)
        assert environment.kernel_driver_version == "570.86.15"
        assert environment.reason is None
        assert environment.compute_capabilities == (
            ComputeCapability(8, 9),
            ComputeCapability(7, 5),
        )


def test_two_outputs_of_one_kind_are_not_merged() -> None:
    (log,) = api.read_machines(FIXTURES / "workstation.xml")
    (query,) = api.read_machines(FIXTURES / "workstation.csv")
    (other,) = api.read_machines(FIXTURES / "new-element.xml")
    assert commands.merge(log, log) is None
    assert commands.merge(query, query) is None
    assert commands.merge(other, query) is None, "they have different numbers of GPUs"


def test_a_byte_order_mark_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "workstation.csv"
    path.write_bytes(b"\xef\xbb\xbf" + (FIXTURES / "workstation.csv").read_bytes())
    assert api.read_machines(path) == api.read_machines(FIXTURES / "workstation.csv")
    path.write_bytes(b"\xef\xbb\xbf" + (FIXTURES / "snapshot.json").read_bytes())
    assert [item.name for item in api.read_machines(path)] == ["workstation"]


@pytest.mark.parametrize("mark", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize(
    "name",
    [
        "kubernetes-nodes.json",
        "kubernetes-nodes.yaml",
        "workstation.xml",
        "workstation.csv",
        "dcgm-metrics.txt",
    ],
)
def test_what_powershell_redirects_is_utf_16(
    name: str, mark: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    text = (FIXTURES / name).read_text()
    path.write_bytes(f"\ufeff{text}".encode(mark))
    assert api.read_machines(path) == api.read_machines(FIXTURES / name)


def test_nodes_and_slices_in_one_list(tmp_path: Path) -> None:
    nodes, slices = (
        json.loads((FIXTURES / f"kubernetes-{kind}.json").read_text())["items"]
        for kind in ("nodes", "resourceslices")
    )
    path = tmp_path / "both.json"
    path.write_text(json.dumps({"items": [*nodes, *slices]}))
    named = [item.name for item in api.read_machines(path)]
    expected = [
        item.name
        for kind in ("nodes", "resourceslices")
        for item in api.read_machines(FIXTURES / f"kubernetes-{kind}.json")
    ]
    assert named == expected
    # The slices of a node describe each of its devices, and count.
    renamed = json.dumps([*nodes, *slices]).replace("h100-a", "hopper-1")
    path.write_text(f'{{"items": {renamed}}}')
    machines = {item.name: item for item in api.read_machines(path)}
    assert len(machines) == len(expected) - 1
    alone = api.read_machines(FIXTURES / "kubernetes-resourceslices.json")
    assert machines["hopper-1"] in alone


def test_slices_in_yaml_have_generations_too(tmp_path: Path) -> None:
    path = FIXTURES / "kubernetes-resourceslices.json"
    other = tmp_path / "slices.yaml"
    # JSON is YAML, but begins with a brace: put a comment before it.
    other.write_text(f"# apiVersion:\n{path.read_text()}")
    assert api.read_machines(other) == api.read_machines(path)


def test_a_model_that_the_labels_leave_out_is_told(tmp_path: Path) -> None:
    document = json.loads((FIXTURES / "kubernetes-nodes.json").read_text())
    (node,) = [n for n in document["items"] if n["metadata"]["name"] == "h100-a"]
    node["status"]["capacity"]["nvidia.com/gpu"] = "12"
    path = tmp_path / "nodes.json"
    path.write_text(json.dumps({"items": [node]}))
    (machine,) = api.read_machines(path)
    assert machine.notes == (
        "it has 12 GPUs and its labels describe 8 of them: it may have several models",
    )


def test_the_descriptor_of_standard_input_stays_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with open(FIXTURES / "pixi-info.json", "rb") as file:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(file))
        api.read_machines("-")
        os.fstat(file.fileno())
