"""The output of ``fleet --emit``, checked with the labels of the nodes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from support.command import Run
from support.nodes import selected_nodes
from support.paths import FIXTURES

yaml = pytest.importorskip("yaml", reason="it parses what Kubernetes gets")

NODES = FIXTURES / "inventories" / "kubernetes-nodes.json"
PUBLISHED = FIXTURES / "published" / "torch-2.8.0-variants.json"


@pytest.mark.parametrize("node", ["h100-a", "old-labels"])
def test_the_affinity_selects_exactly_the_machines_that_run_the_build(
    run: Run, node: str
) -> None:
    chosen = ("fleet", NODES, "--release", PUBLISHED)
    out = run(*chosen, "--emit", "affinity", "--node", node).out
    nodes = json.loads(NODES.read_text())["items"]
    selected = selected_nodes(yaml.safe_load(out), nodes)
    data = run(*chosen, "--json").data
    (label,) = [m["selected"] for m in data["machines"] if m["name"] == node]
    assert out.startswith(f"# nodes that run {label}\n")
    assert selected == {
        machine["name"]
        for machine in data["machines"]
        if machine["selected"] and label not in machine["rejected"]
    }
    assert node in selected


def test_the_variables_force_the_machine(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = run("fleet", NODES, "--emit", "env", "--node", "old-labels").out
    for line in out.splitlines():
        monkeypatch.setenv(*line.split("=", 1))
    data = run("detect", "--json").data
    assert data["cuda_driver_version"] == "12.2"
    assert [gpu["compute_capability"] for gpu in data["gpus"]] == ["7.0"]


def test_the_lines_of_a_dockerfile(run: Run) -> None:
    out = run("fleet", NODES, "--release", PUBLISHED, "--emit", "dockerfile").out
    assert "ARG NV_VARIANT_PROVIDER_FORCE_CUDA_DRIVER_VERSION=12.9\n" in out
    assert "nvp pip install --no-cache-dir torch==2.8.0\n" in out


def test_the_label_of_a_variant_is_no_part_of_its_version(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    chosen = (
        "fleet",
        NODES,
        "--project",
        "gpu-demo",
        "-i",
        FIXTURES / "index",
        "--emit",
    )
    assert run(*chosen, "affinity").out.startswith("# nodes that run 1.0+cu129\n")
    out = run(*chosen, "dockerfile").out
    assert "pip install --no-cache-dir gpu-demo==1.0\n" in out


def test_the_index_of_the_lines(run: Run) -> None:
    chosen = ("fleet", NODES, "--release", PUBLISHED, "--emit", "dockerfile", "-i")
    out = run(*chosen, "https://wheels.example.com/a b'c/simple").out
    assert (
        """--index-url 'https://wheels.example.com/a b'"'"'c/simple' torch==""" in out
    )
    out = run(*chosen, "https://user:secret@wheels.example.com/simple").out
    assert "secret@" not in out
    assert "user" not in out
    assert "# Put the password of the index into a secret of the build.\n" in out
    assert "--index-url" not in run(*chosen, "/srv/wheels").out


@pytest.mark.parametrize(
    "name",
    [
        "x'; touch y; '-1.0-variants.json",
        "x\nRUN touch y\n-1.0-variants.json",
        "torch @ https:__touch.example-1.0-variants.json",
    ],
)
@pytest.mark.skipif(os.name == "nt", reason="Windows has no such names")
def test_the_name_of_a_file_is_no_command(run: Run, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(PUBLISHED.read_bytes())
    outcome = run("fleet", NODES, "--release", path, "--emit", "dockerfile")
    assert "touch" not in outcome.out
    assert (outcome.code, outcome.out) == (3, "")
    assert "is not a name with a version" in outcome.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--emit", "affinity"], "--emit: there is no build for the GPU of h100-a"),
        (["--emit", "env", "--node", "x"], "--node: no machine is called 'x'; there"),
        (["--node", "h100-a"], "--node: it is for --emit; give --emit as well"),
        (["--emit", "env", "--format", "csv"], "--format: the output of --emit has"),
    ],
)
def test_errors(run: Run, words: list[str], message: str) -> None:
    outcome = run("fleet", NODES, *words)
    assert (outcome.code, outcome.out) == (2, "")
    assert message in outcome.err
