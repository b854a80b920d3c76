"""``--environment`` with inventories, and ``--node``."""

from __future__ import annotations

import pytest
from support.command import Run
from support.paths import FIXTURES

pytest.importorskip("yaml", reason="kubectl writes YAML as well")

FOLDER = FIXTURES / "inventories"
NODES = FOLDER / "kubernetes-nodes.json"


def test_a_node_of_several(run: Run) -> None:
    outcome = run("detect", "--environment", NODES, "--node", "h100-a")
    assert (outcome.code, outcome.err) == (0, "")
    assert "12.9" in outcome.out
    assert "9.0" in outcome.out


def test_what_the_inventory_leaves_open_is_a_warning(run: Run) -> None:
    outcome = run("properties", "--environment", NODES, "--node", "a100-mig")
    assert outcome.err == "warning: a100-mig: a GPU is split by MIG\n"
    assert "nvidia :: sm_arch :: 80_real" in outcome.out


@pytest.mark.parametrize(
    "name", ["pixi-info.json", "kubernetes-nodes.yaml", "snapshot.json"]
)
def test_an_inventory_of_one_machine_needs_no_name(run: Run, name: str) -> None:
    assert run("detect", "--environment", FOLDER / name).code == 0


def test_several_machines_and_no_name(run: Run) -> None:
    outcome = run("detect", "--environment", NODES)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err == (
        f"error: {NODES}: it describes 5 machines; choose one with --node: 'h100-a', "
        "'a10-shared', 'a100-mig', 'old-labels', 'half-a-label'\n"
    )


def test_a_name_that_is_not_there(run: Run) -> None:
    outcome = run("properties", "--environment", NODES, "--node", "h200")
    assert outcome.code == 2
    assert "it has no machine 'h200'; there are 'h100-a', 'a10-shared'" in outcome.err


def test_a_name_without_an_inventory(run: Run) -> None:
    outcome = run("detect", "--node", "h100-a")
    assert (outcome.code, outcome.err) == (
        2,
        "error: --node: names a machine, but there is no inventory; give "
        "--environment FILE\n",
    )


def test_flags_change_the_node(run: Run) -> None:
    chosen = ("--environment", NODES, "--node", "h100-a")
    outcome = run("detect", *chosen, "--cuda-driver", "13.0", "--json")
    assert outcome.data["cuda_driver_version"] == "13.0"
    assert outcome.data["source"] == "forced+snapshot"
