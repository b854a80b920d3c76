"""What the tests of the command line share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from referencing import Registry, Resource
from support.command import Outcome, Run

from nvidia_variant_provider.cli import main

SCHEMAS = Path(__file__).parents[2] / "schemas"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: object) -> Outcome:
        code = main(list(map(str, arguments)))
        return Outcome(code, *capsys.readouterr())

    return call


@pytest.fixture
def torch(fixtures: Path) -> Path:
    return fixtures / "variants-json" / "torch-2.8.0-variants.json"


@pytest.fixture(scope="session")
def report_schema() -> Draft202012Validator:
    schemas = [json.loads(path.read_text()) for path in SCHEMAS.glob("*.schema.json")]
    for schema in schemas:
        Draft202012Validator.check_schema(schema)
    registry: Registry[Any] = Registry().with_resources(
        (schema["$id"], Resource.from_contents(schema)) for schema in schemas
    )
    (report,) = (schema for schema in schemas if schema["title"] == "Report")
    return Draft202012Validator(report, registry=registry)
