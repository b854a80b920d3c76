"""What the tests of the maintainers' verbs share."""

from __future__ import annotations

import pytest
from support.command import Outcome, Run

from nvidia_variant_provider.cli import main


@pytest.fixture
def run(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the verb that the test's module names in ``VERB``."""

    def call(*arguments: object) -> Outcome:
        code = main([request.module.VERB, *map(str, arguments)])
        return Outcome(code, *capsys.readouterr())

    return call
