"""Findings as a SARIF 2.1.0 log, which code scanning services read."""

from __future__ import annotations

import json
import os
import urllib.parse
from collections.abc import Sequence
from typing import Any

from .._version import __version__
from .findings import Finding
from .rules import RULES, explain

__all__ = ["as_sarif"]


def as_sarif(findings: Sequence[Finding]) -> list[str]:
    """Return the lines of a SARIF log."""
    used = sorted({finding.code for finding in findings})
    driver = {
        "name": "nvidia-variant-provider",
        "version": __version__,
        "rules": [_rule(code) for code in used],
    }
    log = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": driver},
                # Columns count characters, and not the code units of UTF-16.
                "columnKind": "unicodeCodePoints",
                "results": [_result(f, used.index(f.code)) for f in findings],
            }
        ],
    }
    return json.dumps(log, indent=2).splitlines()


def _rule(code: str) -> dict[str, Any]:
    rule, text = RULES[code], explain(code)
    return {
        "id": code,
        "name": rule.name,
        "shortDescription": {"text": rule.title},
        "fullDescription": {"text": f"{text.what} {text.effect}"},
        "help": {"text": text.as_text(), "markdown": text.as_markdown()},
        "defaultConfiguration": {"level": rule.severity},
    }


def _result(finding: Finding, index: int) -> dict[str, Any]:
    physical: dict[str, Any] = {"artifactLocation": {"uri": _uri(finding.path)}}
    place = finding.place
    if finding.member is not None:
        # A region in a wheel would point into a compressed archive.
        position = "" if finding.line is None else f":{finding.line}:{finding.column}"
        place = f"{finding.member}{position}: {place}" if place else finding.member
    elif finding.line is not None:
        region = {"startLine": finding.line, "startColumn": finding.column}
        physical["region"] = region
    location: dict[str, Any] = {"physicalLocation": physical}
    if place:
        location["logicalLocations"] = [{"fullyQualifiedName": place}]
    return {
        "ruleId": finding.code,
        "ruleIndex": index,
        "level": finding.severity,
        "message": {"text": f"{finding.message}; {finding.hint}"},
        "locations": [location],
    }


def _uri(path: str) -> str:
    """Return the path as a URI reference (RFC 3986), relative where the path is."""
    if path.startswith(("http://", "https://")):
        return path
    return urllib.parse.quote(path.replace(os.sep, "/"), errors="replace")
