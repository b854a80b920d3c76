"""Builds for different backends in one installation of pip."""

from __future__ import annotations

import pytest

from nvp.index.pip.explain import find_mixed
from nvp.index.pip.installed import Installed


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
