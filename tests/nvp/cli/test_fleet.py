"""The command `fleet`."""

from __future__ import annotations

import csv
import json
import os
import platform
import re
import sys
from pathlib import Path

import pytest
from support.command import Run
from support.html_page import Page
from support.paths import ROOT
from support.wheels import stub_wheel, write_page

INVENTORIES = ROOT / "fixtures" / "inventories"
NODES = INVENTORIES / "kubernetes-nodes.json"
WORKSTATION = (INVENTORIES / "workstation.xml", INVENTORIES / "workstation.csv")


def two_nodes(folder: Path) -> Path:
    """Write a file with two machines that are alike."""
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
    outcome = run("fleet", NODES, two_nodes(tmp_path), "--json")
    assert outcome.code == 3
    assert "two.json: two machines have the name 'h100-a'; another" in outcome.err
    assert len(outcome.data["machines"]) == 5, "the first inventory is reported"


def test_the_smallest_change_for_machines_that_get_nothing(
    run: Run, torch: Path
) -> None:
    outcome = run("fleet", NODES, "--release", torch, "--explain")
    assert (
        "CUDA 12.2, compute capability 7.0: no build for the GPU fits; "
        "--minor-version-compatibility gets cu126; a driver for CUDA 12.6 gets cu126\n"
    ) in outcome.err
    assert "CUDA 12.2, compute capability 7.0: not cu126: it needs" in outcome.out
    data = run("fleet", NODES, "--release", torch, "--json").data
    drivers = {item["name"]: item["driver"] for item in data["machines"]}
    assert drivers["old-labels"] == "12.6"
    assert {drivers[name] for name in drivers if name != "old-labels"} == {None}
    labels = {item["name"]: item["with_compatibility"] for item in data["machines"]}
    assert labels["old-labels"] == "cu126"
    accepted = ("fleet", NODES, "--release", torch, "--minor-version-compatibility")
    selected = {
        item["name"]: item["selected"]
        for item in run(*accepted, "--json").data["machines"]
    }
    assert selected["old-labels"] == labels["old-labels"]


def test_nothing_is_guessed_about_a_gpu_that_is_not_described(
    run: Run, torch: Path
) -> None:
    outcome = run("fleet", WORKSTATION[0], "--release", torch)
    assert outcome.code == 0
    assert outcome.out.splitlines()[1].endswith("unknown")
    assert outcome.out.endswith(
        "Nothing is chosen: too little is known about each machine.\n"
    )
    message = (
        "workstation: the inventory does not say the compute capability of its GPU"
    )
    assert message in outcome.err
    assert "no build for the GPU fits" not in outcome.err


def test_the_last_line_is_the_next_step(
    run: Run, torch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a b.json").write_bytes(NODES.read_bytes())
    alone = run("fleet", "a b.json").out
    assert alone.endswith("to choose builds: nvp fleet 'a b.json' --project torch\n")
    start = f"nvp fleet 'a b.json' --release {torch}"
    out = run("fleet", "a b.json", "--release", torch).out
    assert out.endswith(f"the largest group: {start} --emit dockerfile\n")
    emitted = run("fleet", "a b.json", "--release", torch, "--emit", "dockerfile").out
    assert "nvp pip install --no-cache-dir torch==2.8.0" in emitted
    assert "Next:" not in emitted
    for form in ("markdown", "html", "csv", "json"):
        assert "Next:" not in run("fleet", NODES, "--format", form).out


@pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64",
    reason="the wheels are for Linux on x86_64",
)
def test_a_project_of_ordinary_wheels(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    python = f"cp3{sys.version_info.minor}"
    for version in ("2.8.0+cu126", "2.14.1+cu126", "2.15.0+cu130"):
        tag = f"{python}-{python}-manylinux_2_17_x86_64"
        stub_wheel(tmp_path / "torch", "torch", version, tag=tag)
    write_page(tmp_path / "torch")
    outcome = run("fleet", NODES, "--project", "torch", "-i", tmp_path, "--json")
    assert outcome.code == 0
    selected = {item["name"]: item["selected"] for item in outcome.data["machines"]}
    assert selected["h100-a"] == "2.14.1+cu126"
    assert selected["old-labels"] == "2.14.1+cu126"
    assert outcome.data["smallest_set"] == ["2.14.1+cu126"]
    one = ("fleet", NODES, "--project", "torch==2.15.0", "-i", tmp_path)
    outcome = run(*one)
    assert outcome.code == 1
    assert (
        "CUDA 12.9, compute capability 9.0: no build for the GPU fits; 2.14.1+cu126 "
        "runs with the installed driver; a driver for CUDA 13.0 gets 2.15.0+cu130\n"
    ) in outcome.err
    assert (
        "CUDA 12.2, compute capability 7.0: no build for the GPU fits; 2.14.1+cu126 "
        "runs with the installed driver\n"
    ) in outcome.err, "no driver that runs it supports the GPU"
    others = {
        item["name"]: item["of_another_release"]
        for item in run(*one, "--json").data["machines"]
    }
    assert set(others.values()) == {"2.14.1+cu126", None}
    assert others["half-a-label"] is None


def test_a_release_and_a_project(run: Run, torch: Path) -> None:
    assert run("fleet", NODES, "--release", torch, "--project", "torch").code == 2


def test_a_name_is_neither_a_formula_nor_a_command_of_a_log(
    run: Run, tmp_path: Path
) -> None:
    names = ["=cmd|'/C calc'!A0", "@x", "a\n::error::b", "a\r::error::b", "-", "a,b"]
    names += ["x; =1+1", "\uff1d1+1", "::error::c"]
    label = "nvidia.com/gpu.compute."
    nodes = [
        {
            "kind": "Node",
            "metadata": {
                "name": name,
                "labels": {f"{label}major": str(number), f"{label}minor": "0"},
            },
        }
        for number, name in enumerate(names, 7)
    ]
    path = tmp_path / "nodes.json"
    path.write_text(json.dumps({"apiVersion": "v1", "items": nodes}))
    lines = run("fleet", path, "--format", "csv").out.splitlines()
    found = [row["First machine"] for row in csv.DictReader(lines)]
    escaped = [r"a\n::error::b", r"a\r::error::b", "-", "a,b"]
    escaped += ["x;' =1+1", "'\uff1d1+1", "'::error::c"]
    assert sorted(found) == sorted(["'=cmd|'/C calc'!A0", "'@x", *escaped])
    assert not [line for line in lines if line.startswith(":")]


def test_every_format_has_every_group(run: Run, torch: Path) -> None:
    chosen = ("fleet", NODES, "--release", torch, "--format")
    names = {"h100-a", "a10-shared", "a100-mig", "old-labels", "half-a-label"}
    rows = list(csv.DictReader(run(*chosen, "csv").out.splitlines()))
    assert {row["First machine"] for row in rows} == names
    assert {row["Build"] for row in rows} == {"cu129", "00000000", "unknown"}
    markdown = run(*chosen, "markdown").out
    assert all(f"| {name} |" in markdown.replace("\\", "") for name in names)
    page = Page(run(*chosen, "html").out)
    assert page.open == []
    assert page.tags.isdisjoint({"script", "link", "img"})
    assert all(name in page.text for name in names)
    assert run(*chosen, "json").data["covering"] == ["00000000"]


def test_the_page_colours_builds_as_the_page_of_matrix(run: Run, torch: Path) -> None:
    files = (NODES, *WORKSTATION)
    text = run("fleet", *files, "--release", torch, "--format", "html").out
    page = Page(text)
    rows = {row[0]: row[1:] for row in page.tables["groups"][1:]}
    report = run("fleet", *files, "--release", torch, "--json").data
    assert len(rows) == len(report["machines"])
    assert rows["CUDA 12.9, compute capability 9.0"] == ["1", "cu129"]
    classes = dict(re.findall(r'<td class="(\w+)">([\w.]+)</td></tr>', text))
    assert {classes["cpu"], classes["gone"]} == {"00000000", "unknown"}
    assert {name for kind, name in classes.items() if kind.startswith("t")} == (
        {"cu128", "cu129"}
    )
    assert "torch 2.8.0" in page.text
    assert "no build for the GPU fits" in page.text
    alone = Page(run("fleet", *files, "--format", "html").out)
    assert alone.tables["groups"][0] == ["Driver and GPU", "Machines"]
    assert "Fewest builds" not in alone.text


def test_names_are_text_in_every_format(run: Run, tmp_path: Path, torch: Path) -> None:
    name = "<b>a</b>|`x`\x1b[31m\n- y: 'z'\n# w"
    document = json.loads(two_nodes(tmp_path).read_text())
    document["items"][0]["metadata"]["name"] = name
    path = tmp_path / "names.json"
    path.write_text(json.dumps(document))
    chosen = ("fleet", path, "--release", torch, "--per-machine")
    for words in ([], ["--format", "markdown"], ["--format", "html"]):
        out = run(*chosen, *words).out
        assert "\x1b" not in out
        assert "\n- y" not in out
    html = run(*chosen, "--format", "html").out
    assert "<b>a</b>" not in html
    assert "&lt;b&gt;a&lt;/b&gt;" in html
    for kind in ("env", "dockerfile", "affinity"):
        out = run(*chosen, "--emit", kind, "--node", name).out
        assert "- y:" not in out
        assert "<b>" not in out
