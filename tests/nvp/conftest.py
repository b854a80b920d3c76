"""Fixtures of all tests of nvp: no configuration of pip, and few starts of it."""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from nvp.index.pip.process import Pip

_Reply = subprocess.CompletedProcess[str] | None

_REPLIES: dict[str, _Reply] = {}

_NOT_OF_PIP = ("XDG_", "NV_VARIANT_PROVIDER_", "PYTEST_", "HOME", "USERPROFILE")

_FILES = ("-r", "-c", "--requirement", "--constraint")

_PLACES = re.compile(
    r"127\.0\.0\.1:\d+|/[^\"\s]*/pytest-\d+/(?:popen-gw\d+/)?[^/\"\s]+"
)
"""The server or the directory of a test, which a reply only repeats."""


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

    Without files, its reply depends on the question and on variables, but not on the
    port of a server.
    """
    ask = Pip._run_probe

    def remember(pip: Pip, question: Mapping[str, object]) -> _Reply:
        if "url" in question or _has_files(pip._environ, question):
            return ask(pip, question)
        names = (n for n in pip._environ if not n.startswith(_NOT_OF_PIP))
        environ = {name: pip._environ[name] for name in sorted(names)}
        text = json.dumps([pip._probe(), pip._search, question, environ])
        places = list(dict.fromkeys(_PLACES.findall(text)))
        marks = {place: f"<place {number}>" for number, place in enumerate(places)}

        def marked(text: str) -> str:
            return _PLACES.sub(lambda found: marks.get(found[0], found[0]), text)

        key = marked(text)
        if key not in _REPLIES:
            reply = ask(pip, question)
            if reply is not None:
                reply.stdout = marked(reply.stdout)
            _REPLIES[key] = reply
        reply = copy.copy(_REPLIES[key])
        if reply is not None:
            for place, mark in marks.items():
                reply.stdout = reply.stdout.replace(mark, place)
        return reply

    monkeypatch.setattr(Pip, "_run_probe", remember)


def _has_files(environ: Mapping[str, str], question: Mapping[str, object]) -> bool:
    netrc = Path(environ.get("HOME", "~")).expanduser() / ".netrc"
    words = question["arguments"]
    return (
        environ.get("PIP_CONFIG_FILE") != os.devnull
        or "NETRC" in environ
        or netrc.exists()
        or not isinstance(words, list)
        or any(word.startswith(_FILES) for word in words)
    )
