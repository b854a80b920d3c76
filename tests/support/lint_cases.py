"""The cases of fixtures/lint: documents with one defect each, and their findings.

The table ``mutations.json`` says how each document differs from ``clean.json``; see the
README there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support.paths import FIXTURES

__all__ = ["CASES", "FOLDER", "expected", "lint_document", "lint_text", "write_case"]

FOLDER = FIXTURES / "lint"

CASES: Mapping[str, Any] = json.loads((FOLDER / "mutations.json").read_bytes())
"""The table: the changes and the findings of each case, by name."""

_KEY = re.compile(r'"([^"]*)"|([^."]+)')


def lint_text(case: str) -> bytes:
    """Return the text of a document; ``clean`` is the one without a defect."""
    path = FOLDER / f"{case}.json"
    if path.exists():
        return path.read_bytes()
    return (json.dumps(_mutated(CASES[case]), indent=2) + "\n").encode()


def lint_document(case: str) -> Any:
    """Return the parsed document of a case."""
    return json.loads(lint_text(case))


def expected(case: str) -> list[tuple[str, str, str]]:
    """Return code, severity and place of each finding of a case, sorted."""
    return sorted(
        (code, level, place) for code, level, place in CASES[case]["findings"]
    )


def write_case(case: str, folder: Path) -> Path:
    """Write the document of a case to a file with its name."""
    path = folder / f"{case}.json"
    path.write_bytes(lint_text(case))
    return path


def _mutated(case: Mapping[str, Any]) -> Any:
    document = lint_document("clean")
    for place, name in case.get("rename", {}).items():
        parent, key = _find(document, place)
        items = [(name if old == key else old, value) for old, value in parent.items()]
        parent.clear()
        parent.update(items)
    for place in case.get("remove", ()):
        parent, key = _find(document, place)
        del parent[key]
    for place, value in case.get("set", {}).items():
        parent, key = _find(document, place)
        parent[key] = value
    return document


def _find(document: Any, place: str) -> tuple[dict[str, Any], str]:
    """Return the object that contains, or will contain, the last key of a place."""
    *parents, key = [quoted or plain for quoted, plain in _KEY.findall(place)]
    for name in parents:
        document = document[name]
    return document, key
