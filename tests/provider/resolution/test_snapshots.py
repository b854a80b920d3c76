"""Real machines, described in files with their expected results next to them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from support.paths import ROOT

from nvidia_variant_provider import api
from nvidia_variant_provider.machine.environment import Environment
from nvidia_variant_provider.machine.supported import left_out, supported_features

FOLDER = ROOT / "fixtures" / "environments"
SNAPSHOTS = sorted(
    path.stem for path in FOLDER.glob("*.json") if ".expected" not in path.name
)
OPT_IN = {"NV_VARIANT_PROVIDER_MINOR_VERSION_COMPATIBILITY": "1"}

each = pytest.mark.parametrize("name", SNAPSHOTS)


def read(name: str) -> Any:
    return json.loads((FOLDER / f"{name}.json").read_text())


def resolve(name: str, version: str, **options: Any) -> list[str]:
    path = ROOT / "fixtures" / "variants-json" / f"torch-{version}-variants.json"
    environment = Environment.from_dict(read(name))
    return list(api.resolve(path, environment=environment, **options).compatible)


def test_each_machine_has_expectations() -> None:
    assert len(SNAPSHOTS) >= 16
    assert {f"{name}.expected" for name in SNAPSHOTS} | set(SNAPSHOTS) == {
        path.stem for path in FOLDER.iterdir()
    }


@each
def test_each_file_is_valid_and_survives_a_round_trip(name: str) -> None:
    document = read(name)
    schema = json.loads((ROOT / "schemas" / "environment.schema.json").read_text())
    Draft202012Validator(schema).validate(document)
    assert Environment.from_dict(document).to_dict() == document


@each
def test_best_values_and_notes_are_as_expected(name: str) -> None:
    environment = Environment.from_dict(read(name))
    features, notes = supported_features(environment)
    notes += left_out(environment)
    best = {feature.name: feature.values[0] for feature in features}
    best.pop("cuda_version_upper_bound", None)
    expected = read(f"{name}.expected")
    assert list(best.values()) == expected["best"]
    assert len(notes) == len(expected["notes"])
    for note, text in zip(notes, expected["notes"], strict=True):
        assert text in note


@each
def test_selected_builds_of_torch_are_as_expected(name: str) -> None:
    expected = read(f"{name}.expected")
    assert resolve(name, "2.8.0") == expected["torch-2.8.0"]
    assert resolve(name, "2.9.1") == expected["torch-2.9.1"]
    every = resolve(name, "2.8.0", every_gpu=True)
    assert every == expected["torch-2.8.0 every GPU"]
    relaxed = expected.get("torch-2.8.0 minor-version compatibility")
    if relaxed is not None:
        assert resolve(name, "2.8.0", environ=OPT_IN) == relaxed
