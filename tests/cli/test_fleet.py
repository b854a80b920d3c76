"""The verb `fleet`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.command import Run

pytest.importorskip("ijson", reason="it reads long lists")

ROOT = Path(__file__).parents[2]
INVENTORIES = ROOT / "fixtures" / "inventories"
NODES = INVENTORIES / "kubernetes-nodes.json"
WORKSTATION = (INVENTORIES / "workstation.xml", INVENTORIES / "workstation.csv")


def two_nodes(folder: Path) -> Path:
    """Two machines that are alike, in a file."""
    document = json.loads(NODES.read_text())
    (node,) = [n for n in document["items"] if n["metadata"]["name"] == "h100-a"]
    other = json.loads(json.dumps(node).replace("h100-a", "h100-b"))
    path = folder / "two.json"
    path.write_text(json.dumps({"items": [node, other]}))
    return path


def test_groups_without_a_release(run: Run, tmp_path: Path) -> None:
    outcome = run("fleet", two_nodes(tmp_path))
    assert outcome.code == 0
    assert outcome.out.splitlines()[1].split() == (
        ["2", "h100-a", "CUDA", "12.9,", "compute", "capability", "9.0"]
    )


def test_every_machine_by_itself(run: Run, tmp_path: Path) -> None:
    outcome = run("fleet", two_nodes(tmp_path), "--per-machine", "--json")
    counts = {item["name"]: item["count"] for item in outcome.data["machines"]}
    assert counts == {"h100-a": 1, "h100-b": 1}


def test_the_build_of_each_machine(run: Run, torch: Path) -> None:
    outcome = run("fleet", NODES, *WORKSTATION, "--release", torch, "--json")
    assert outcome.code == 1, "the driver for CUDA 12.2 is too old for every build"
    selected = {item["name"]: item["selected"] for item in outcome.data["machines"]}
    assert selected == {
        "h100-a": "cu129",
        "a10-shared": "cu129",
        "a100-mig": "cu129",
        "old-labels": "00000000",
        "half-a-label": None,
        "workstation": "cu128",
    }
    for item in outcome.data["machines"]:
        if item["environment"]["cuda_driver_version"] is None:
            assert item["selected"] is None
            continue
        gpu = item["environment"]["gpus"][0]["compute_capability"]
        alone = run(
            *("resolve", torch, "--json"),
            *("--cuda-driver", item["environment"]["cuda_driver_version"]),
            *("--sm-arch", gpu),
        )
        assert item["selected"] == alone.data["selected"], item["name"]


def test_the_smallest_set_runs_where_any_gpu_build_does(run: Run, torch: Path) -> None:
    data = run("fleet", NODES, *WORKSTATION, "--release", torch, "--json").data
    assert data["smallest_set"] == ["cu128"]
    assert data["gains"] == {"cu128": 4}
    assert data["covering"] == ["00000000"]
    for item in data["machines"]:
        if item["selected"] not in (None, "00000000"):
            assert "cu128" not in item["rejected"], item["name"]


def test_a_file_that_cannot_be_read_does_not_hide_the_others(
    run: Run, tmp_path: Path
) -> None:
    outcome = run("fleet", tmp_path / "missing", NODES, "--json")
    assert outcome.code == 3
    assert len(outcome.data["machines"]) == 5
    (error,) = json.loads(outcome.out)["errors"]
    assert error["path"] == str(tmp_path / "missing")


def test_no_file_can_be_read(run: Run, tmp_path: Path) -> None:
    outcome = run("fleet", tmp_path / "missing")
    assert (outcome.code, outcome.out) == (3, "")
    assert "missing: cannot be read" in outcome.err


def test_a_name_in_two_inventories(run: Run, tmp_path: Path) -> None:
    outcome = run("fleet", NODES, two_nodes(tmp_path))
    assert outcome.code == 3
    assert "two machines have the name 'h100-a'" in outcome.err
