"""Fixtures of all tests of releases."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping

import pytest

from nvp.index.pip.process import Pip

_REPLIES: dict[str, subprocess.CompletedProcess[str] | None] = {}

_NOT_OF_PIP = ("XDG_", "NV_VARIANT_PROVIDER_", "PYTEST_")


@pytest.fixture(autouse=True)
def no_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the user's indexes from pip."""
    for name in list(os.environ):
        if name.startswith("PIP_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)


@pytest.fixture(autouse=True)
def remembered_replies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Query the real pip once for each command, because its start takes half a second.

    Without configuration files, its reply depends on the question and on variables.
    """
    ask = Pip._run_probe

    def remember(
        pip: Pip, question: Mapping[str, object]
    ) -> subprocess.CompletedProcess[str] | None:
        names = (n for n in pip._environ if not n.startswith(_NOT_OF_PIP))
        environ = {name: pip._environ[name] for name in sorted(names)}
        key = json.dumps([pip._probe(), pip._search, question, environ])
        if key not in _REPLIES:
            _REPLIES[key] = ask(pip, question)
        return _REPLIES[key]

    monkeypatch.setattr(Pip, "_run_probe", remember)
