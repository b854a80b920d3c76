"""What the tests of the command line share."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.command import Outcome, Run

from nvidia_variant_provider.cli import main


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: object) -> Outcome:
        code = main(list(map(str, arguments)))
        return Outcome(code, *capsys.readouterr())

    return call


@pytest.fixture
def torch(fixtures: Path) -> Path:
    return fixtures / "variants-json" / "torch-2.8.0-variants.json"
