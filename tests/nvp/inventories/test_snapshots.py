"""Files that describe one machine, as ``detect --json`` prints it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.builds import TORCH, machine

from nvidia_variant_provider.errors import InputError
from nvp import api


def test_a_bare_description_and_a_report_of_detect(tmp_path: Path) -> None:
    environment = machine("12.8", "8.0")
    bare, report = tmp_path / "bare.json", tmp_path / "report.json"
    bare.write_text(json.dumps(environment.to_dict()))
    data = {"schema_version": 1, "command": "detect"}
    report.write_text(json.dumps({**data, "data": environment.to_dict()}))
    expected = environment.replace(source="snapshot")
    assert api.read_environment(bare) == expected
    assert api.read_environment(str(report)) == expected


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (TORCH, "this is variant metadata, not a snapshot"),
        (
            {"schema_version": 1, "command": "properties"},
            "not the report of detect",
        ),
        ([], "top level: expected an object, found a list"),
    ],
)
def test_a_file_that_describes_no_machine_is_an_error(
    document: object, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps(document))
    with pytest.raises(InputError, match=message):
        api.read_environment(path)


def test_a_description_of_a_machine_is_not_metadata() -> None:
    with pytest.raises(InputError, match=r"not variant metadata; a snapshot .* --en"):
        api.resolve(machine("12.9", "9.0").to_dict())


def test_an_error_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('{"cuda_driver_version": 12.9, "gpus": []}')
    with pytest.raises(InputError) as caught:
        api.read_environment(path)
    assert str(caught.value).startswith(f"{path}: cuda_driver_version: expected")
