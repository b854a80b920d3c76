"""The image and the Pod of the documentation: each part by the rules of its reader."""

from __future__ import annotations

import functools
import io
import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from support.nodes import selected_nodes
from support.sessions import ROOT, run_page

from nvp import api

yaml = pytest.importorskip("yaml", reason="it parses what Kubernetes gets")

PAGE = ROOT / "docs" / "how-to" / "cluster-image.md"
INVENTORIES = ROOT / "fixtures" / "inventories"
SCHEMA = json.loads((ROOT / "fixtures/kubernetes/objects.schema.json").read_text())
KINDS = {
    ("v1", "Pod"): "io.k8s.api.core.v1.Pod",
    ("v1", "Node"): "io.k8s.api.core.v1.Node",
    **{
        (f"resource.k8s.io/{version}", "ResourceSlice"): (
            f"io.k8s.api.resource.{version}.ResourceSlice"
        )
        for version in ("v1", "v1beta1")
    },
}


@functools.cache
def made() -> dict[str, str]:
    """Return the files that the commands of the page write, by name."""
    if sys.platform == "win32":
        pytest.skip("the sessions are those of a POSIX shell")
    names = ("Dockerfile", "pod.yaml")
    shown = "".join(f"\n```console\n$ cat {name}\n```\n" for name in names)
    *_, first, second = run_page(PAGE.read_text(encoding="utf-8") + shown)
    return {
        name: step.output
        for name, (_, (step,)) in zip(names, (first, second), strict=True)
    }


def problems(document: Mapping[str, Any]) -> list[str]:
    """Compare an object with the schema of Kubernetes."""
    kind = KINDS[document["apiVersion"], document["kind"]]
    validator = Draft202012Validator({**SCHEMA, "$ref": f"#/$defs/{kind}"})
    return [error.message for error in validator.iter_errors(document)]


def test_the_pod_is_one_that_kubernetes_takes() -> None:
    pod = yaml.safe_load(made()["pod.yaml"])
    assert problems(pod) == []
    pod["spec"]["afinity"] = pod["spec"].pop("affinity")
    assert problems(pod) != [], "the schema refuses what it does not know"


def test_the_pod_runs_on_the_nodes_that_run_its_build() -> None:
    pod = yaml.safe_load(made()["pod.yaml"])
    nodes = json.loads((INVENTORIES / "kubernetes-nodes.json").read_text())["items"]
    fleet = api.fleet(
        api.read_machines(INVENTORIES / "kubernetes-nodes.json"),
        ROOT / "fixtures" / "published" / "torch-2.8.0-variants.json",
        per_machine=True,
    )
    build = pod["spec"]["containers"][0]["image"].partition(":")[2]
    assert selected_nodes(pod["spec"], nodes) == {
        choice.group.names[0]
        for choice in fleet.served
        if choice.selection is not None and build in choice.selection.gpu
    }
    resources = pod["spec"]["containers"][0]["resources"]
    for node in nodes:
        if node["metadata"]["name"] in selected_nodes(pod["spec"], nodes):
            assert set(resources["limits"]) <= set(node["status"]["capacity"])


def test_the_dockerfile_installs_the_release_with_the_variables() -> None:
    parser = pytest.importorskip("dockerfile_parse", reason="it parses the file")
    text = made()["Dockerfile"]
    parsed = parser.DockerfileParser(fileobj=io.BytesIO(text.encode()))
    steps = [
        (step["instruction"], step["value"])
        for step in parsed.structure
        if step["instruction"] != "COMMENT"
    ]
    assert [name for name, _ in steps] == ["FROM", "ARG", "ARG", "RUN"]
    forced = dict(value.split("=", 1) for name, value in steps if name == "ARG")
    assert forced == {
        "NV_VARIANT_PROVIDER_FORCE_CUDA_DRIVER_VERSION": "12.9",
        "NV_VARIANT_PROVIDER_FORCE_SM_ARCH": "9.0",
    }
    first, second = steps[-1][1].split(" && ")
    assert shlex.split(first)[-1] == "nvp"
    assert shlex.split(second)[-1] == "torch==2.8.0"


@pytest.mark.parametrize("name", ["nodes.json", "nodes.yaml", "resourceslices.json"])
def test_the_inventories_are_what_kubernetes_has(name: str) -> None:
    path: Path = INVENTORIES / f"kubernetes-{name}"
    items = yaml.safe_load(path.read_text())["items"]
    assert [message for item in items for message in problems(item)] == []
