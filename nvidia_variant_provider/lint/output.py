"""Findings as text, GitHub workflow commands, or SARIF 2.1.0."""

from __future__ import annotations

import json
import os
import urllib.parse
from collections import Counter
from collections.abc import Sequence
from typing import Any

from .._version import __version__
from .findings import Finding
from .rules import NOTE, RULES, SEVERITIES, Code

__all__ = ["as_github", "as_sarif", "as_text"]


def as_text(findings: Sequence[Finding]) -> list[str]:
    """A line each, then how many there are of each severity."""
    lines = [
        f"{_where(finding)}: {finding.code} {finding.severity}: {finding.message}; "
        f"{finding.hint}"
        for finding in findings
    ]
    counts = Counter(finding.severity for finding in findings)
    total = [f"{counts[s]} {s}{'s'[: counts[s] != 1]}" for s in SEVERITIES if counts[s]]
    return [*lines, ", ".join(total) or "no findings"]


def as_github(findings: Sequence[Finding]) -> list[str]:
    """Workflow commands, which GitHub shows as annotations."""
    words = {NOTE: "notice"}
    return [
        f"::{words.get(finding.severity, finding.severity)} "
        f"file={_property(finding.path)},title={_property(finding.code)}::"
        f"{_data(_message(finding))}"
        for finding in findings
    ]


def as_sarif(findings: Sequence[Finding]) -> list[str]:
    """A SARIF 2.1.0 log, as code scanning takes it; one line of JSON each line."""
    used = sorted({finding.code for finding in findings})
    driver = {
        "name": "nvidia-variant-provider",
        "version": __version__,
        "rules": [_sarif_rule(code) for code in used],
    }
    log = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": driver},
                "results": [_sarif_result(f, used.index(f.code)) for f in findings],
            }
        ],
    }
    return json.dumps(log, indent=2).splitlines()


def _sarif_rule(code: Code) -> dict[str, Any]:
    rule = RULES[code]
    return {
        "id": code,
        "shortDescription": {"text": rule.title},
        "fullDescription": {"text": f"{rule.title}. Clients: {rule.clients}."},
        "defaultConfiguration": {"level": rule.severity},
    }


def _sarif_result(finding: Finding, index: int) -> dict[str, Any]:
    location: dict[str, Any] = {
        "physicalLocation": {"artifactLocation": {"uri": _uri(finding.path)}}
    }
    if finding.place:
        location["logicalLocations"] = [{"fullyQualifiedName": finding.place}]
    return {
        "ruleId": finding.code,
        "ruleIndex": index,
        "level": finding.severity,
        "message": {"text": f"{finding.message}; {finding.hint}"},
        "locations": [location],
    }


def _uri(path: str) -> str:
    if path.startswith(("http://", "https://")):
        return path
    return urllib.parse.quote(path.replace(os.sep, "/"), errors="replace")


def _where(finding: Finding) -> str:
    return f"{finding.path}: {finding.place}" if finding.place else finding.path


def _message(finding: Finding) -> str:
    place = f"{finding.place}: " if finding.place else ""
    return f"{place}{finding.message}; {finding.hint}"


def _data(text: str) -> str:
    # GitHub's own escapes; a line end would start another command.
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
