"""Every metadata file of ``fixtures/`` has the results in the file next to it.

The cases of ``NAME-variants.json`` are in ``NAME-variants.expected.json``, so a new
case is two files and no code. ``fixtures/README.md`` explains the keys.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.paths import FIXTURES

from nvidia_variant_provider import api
from nvidia_variant_provider.machine.environment import (
    ComputeCapability,
    CudaVersion,
    Environment,
    Gpu,
)
from nvidia_variant_provider.resolution.inputs import Priorities

FOLDER = FIXTURES / "variants-json"
METADATA = sorted(FOLDER.rglob("*-variants.json"))
TUTORIAL = FOLDER / "torch-2.8.0-variants.json"
KEYS = {"note", "environment", "supported", "enable_optional", "every_gpu"}


def expectation(path: Path) -> Path:
    return path.with_suffix(".expected.json")


def read_cases(path: Path) -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = json.loads(expectation(path).read_bytes())
    return cases


def all_cases() -> Iterator[Any]:
    for path in METADATA:
        # `test_each_file_has_expectations` reports files without expectations.
        for case in read_cases(path) if expectation(path).exists() else ():
            machine = case["environment"]
            gpus = machine.get("sm_arch", ["no gpu"])
            words = [machine.get("cuda_driver_version", "no driver"), *gpus]
            name = path.relative_to(FOLDER).as_posix().removesuffix("-variants.json")
            yield pytest.param(path, case, id=f"{name}-{' '.join(words)}")


def to_environment(machine: dict[str, Any]) -> Environment:
    assert machine.keys() <= {"cuda_driver_version", "sm_arch"}
    version = machine.get("cuda_driver_version")
    return Environment(
        cuda_driver_version=None if version is None else CudaVersion.parse(version),
        gpus=tuple(
            Gpu(index=index, compute_capability=ComputeCapability.parse(text))
            for index, text in enumerate(machine.get("sm_arch", ()))
        ),
    )


@pytest.fixture(autouse=True)
def linux(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluate environment markers for Linux x86_64, on every platform of the tests."""
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")


@pytest.mark.parametrize(("path", "case"), list(all_cases()))
def test_compatible_labels_are_as_expected(path: Path, case: dict[str, Any]) -> None:
    # A misspelt key would change its case, which might still pass.
    assert case.keys() <= KEYS | {"compatible"}
    labels = json.loads(path.read_bytes())["variants"].keys()
    resolution = api.resolve(
        path,
        environment=to_environment(case["environment"]),
        supported=case.get("supported"),
        enable_optional=case.get("enable_optional", False),
        every_gpu=case.get("every_gpu", False),
        priorities=Priorities(),
        environ={},
    )
    assert list(resolution.compatible) == case["compatible"]
    assert set(resolution.rejected) == labels - set(case["compatible"])
    assert all(resolution.rejected.values())


def test_each_file_has_expectations() -> None:
    assert TUTORIAL in METADATA
    assert {expectation(path) for path in METADATA} == set(
        FOLDER.rglob("*.expected.json")
    )
    assert all(read_cases(path) for path in METADATA)


def test_tutorial_is_unchanged() -> None:
    """The file equals the one of the tutorial, byte for byte."""
    digest = hashlib.sha256(TUTORIAL.read_bytes()).hexdigest()
    assert digest == "de0dd7b27baeaeca6c8e2697c4ab3afb8fc9aebc8b1546fbc6225c5c2cf5ed87"


@pytest.mark.parametrize(
    "path",
    [path for path in METADATA if path.parent.name.startswith("schema-")],
    ids=lambda path: path.parent.name,
)
def test_schema_version_does_not_change_the_order(path: Path) -> None:
    """The expectation of each version equals that of the tutorial's file."""
    text = expectation(path).read_text(encoding="utf-8")
    old = expectation(TUTORIAL).read_text(encoding="utf-8")
    assert text.replace('"00000000"', '"null"') == old.replace('"00000000"', '"null"')
