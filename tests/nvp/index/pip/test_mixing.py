"""Builds for different backends in one installation of pip."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nvp.index.pip.explain import find_mixed
from nvp.index.pip.installed import Installed, read_report


def took(project: str, version: str, *requires: str) -> Installed:
    return Installed(project=project, version=version, label=None, requires=requires)


@pytest.mark.parametrize(
    ("torch", "vision", "mixed"),
    [
        ("2.10.0+cu126", "0.25.0+cu126", False),
        ("2.10.0+cu130", "0.25.0+cu126", True),
        ("2.10.0+cpu", "0.25.0+cu126", True),
        ("2.x+cu126", "0.25.0+pt210cu126", False),  # pip before 24.1 installs it
        # The backend of a build without a label is unknown.
        ("2.10.0", "0.25.0+cu126", False),
        ("2.10.0+cu126", "0.25.0", False),
        ("2.10.0+cu126", "0.25.0+pt210cu130", True),
    ],
)
def test_torchvision_with_torch(torch: str, vision: str, mixed: bool) -> None:
    installed = [
        took("torchvision", vision, "numpy", "torch==2.10.0"),
        took("torch", torch, "sympy"),
    ]
    sentences = find_mixed(installed)
    assert bool(sentences) is mixed
    if mixed:
        assert sentences[0].startswith(
            f"torchvision {vision} is a build for {vision.partition('+')[2]}, and "
            "torch, which it requires,"
        )


def test_projects_that_do_not_require_each_other() -> None:
    assert find_mixed([took("torch", "2.10.0+cu130"), took("demo", "1+cu126")]) == []


@pytest.mark.parametrize("url", ["file:///a-1.whl", "http://[", 1, None])
@pytest.mark.parametrize("value", [1, "1.0", None, ["a", 1], {"a": 1}])
def test_a_report_that_a_stranger_has_changed(
    url: object, value: Any, tmp_path: Path
) -> None:
    """In a directory such as ``/tmp``, the report may be the file of a stranger."""
    path = tmp_path / "report.json"
    metadata = dict.fromkeys(("version", "requires_dist", "provides_extra"), value)
    item = {"metadata": {"name": "a", **metadata}, "download_info": {"url": url}}
    path.write_text(json.dumps({"install": [item, item]}))
    installed = read_report(str(path))
    assert not any("+" in each.version for each in installed)
    assert find_mixed(installed) == []
