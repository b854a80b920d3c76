"""The explanation of a build, and the advice to get a better one."""

from __future__ import annotations

from typing import Any

import pytest
from support.builds import gpu_build, machine, metadata

from nvidia_variant_provider.metadata import read_metadata
from nvidia_variant_provider.resolution.inputs import Priorities
from nvidia_variant_provider.resolution.resolver import resolve_metadata
from nvp.cli.build_text import why_no_gpu
from nvp.index.selection.shown import ShownRelease, explain_refused
from nvp.index.selection.visibility import PageVerdicts

BUILDS = {
    "both": gpu_build("12.9", "80_real", "90_real"),
    "one": gpu_build("12.8", "90_real"),
    "null": {},
}


def advice(builds: dict[str, Any], *capabilities: str, **options: Any) -> str:
    """Return the last line of the explanation for a machine with driver 12.6."""
    resolution = resolve_metadata(
        read_metadata(metadata(builds)), machine("12.6", *capabilities), **options
    )
    assert resolution.selected == "null"
    return why_no_gpu("torch==1.0", resolution)[-1].strip()


def test_the_nearest_driver_that_helps() -> None:
    assert advice(BUILDS, "9.0") == (
        "what would change it: --minor-version-compatibility gets one; "
        "a driver for CUDA 12.8 or newer gets one"
    )


def test_advice_keeps_every_gpu() -> None:
    """A build for only one of the GPUs would be refused again."""
    assert advice(BUILDS, "9.0", "8.0", every_gpu=True) == (
        "what would change it: --minor-version-compatibility gets both; "
        "a driver for CUDA 12.9 or newer gets both"
    )
    assert advice({"one": BUILDS["one"], "null": {}}, "9.0", "8.0", every_gpu=True) == (
        "no newer driver changes that: no build has code for each GPU"
    )


def test_advice_keeps_the_priorities_of_the_user() -> None:
    preferred = Priorities(
        features={"nvidia": ("cuda_version_lower_bound", "sm_arch")},
        properties={"nvidia": {"cuda_version_lower_bound": ("12.9",)}},
    )
    assert advice(BUILDS, "9.0", priorities=preferred).startswith(
        "what would change it: --minor-version-compatibility gets both; "
    )


@pytest.mark.parametrize("answers", [{"other": {"feature": ["yes"]}}, {}])
def test_advice_keeps_other_namespaces(answers: dict[str, Any]) -> None:
    """A build that also needs another provider helps only users with this provider."""
    needs_both = {**gpu_build("12.8", "90_real"), "other": {"feature": ["yes"]}}
    document = metadata({"gpu": needs_both, "null": {}})
    resolution = resolve_metadata(
        read_metadata(document), machine("12.6", "9.0"), supported=answers
    )
    helps = "gets gpu" in why_no_gpu("torch==1.0", resolution)[-1]
    assert helps == bool(answers)


def test_few_reasons_of_a_label_are_printed() -> None:
    """A release of a stranger wrote 7 MB to the terminal."""
    build = {"nvidia": {f"f{number}": ["a"] for number in range(20)}}
    resolution = resolve_metadata(
        read_metadata(metadata({"gpu": build, "null": {}})), machine("12.6", "9.0")
    )
    lines = why_no_gpu("torch==1.0", resolution)
    assert sum("gpu does not fit:" in line for line in lines) == 8
    assert "  gpu has 12 more reasons" in lines


def test_few_reasons_against_a_requested_label_are_printed() -> None:
    """Each page of a stranger wrote 18 MB, which were kept to be printed once."""
    build = {"nvidia": {f"f{number}": ["a"] for number in range(20)}}
    resolution = resolve_metadata(
        read_metadata(metadata({"gpu": build})), machine("12.6", "9.0")
    )
    shown = ShownRelease(project="torch", version="1.0", resolution=resolution)
    text = explain_refused("gpu", PageVerdicts(project="torch"), [shown])
    assert text is not None
    assert text.startswith("torch==1.0: gpu does not fit this machine: it needs nvidia")
    assert text.count(";") == 7
