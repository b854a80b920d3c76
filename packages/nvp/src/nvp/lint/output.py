"""Findings as text, as GitHub workflow commands, and as a SARIF log.

Code scanning services read SARIF 2.1.0.
"""

from __future__ import annotations

import json
import os
import urllib.parse
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from .. import __version__
from ..files import page_url
from ..findings import NOTE, SEVERITIES
from .files import Unchecked
from .findings import RULES, Finding, Rule

_MOST_RESULTS = 25_000
"""The maximum number of results in a SARIF log. GitHub rejects a log with more."""


def as_text(
    findings: Sequence[Finding], unchecked: Sequence[Unchecked] = ()
) -> list[str]:
    """Return a line for each finding, followed by a summary.

    :param unchecked: the parts that were not checked, listed before the summary.
    """
    lines = [
        f"{_where(finding)}: {finding.code} {finding.severity}: {finding.message}; "
        f"{finding.hint}"
        for finding in findings
    ]
    counts = Counter(finding.severity for finding in findings)
    total = [f"{counts[s]} {s}{'s'[: counts[s] != 1]}" for s in SEVERITIES if counts[s]]
    return [*lines, *map(str, unchecked), ", ".join(total) or "no findings"]


def as_github(findings: Sequence[Finding]) -> list[str]:
    """Return workflow commands, which GitHub shows as file annotations."""
    commands = []
    for finding in findings:
        kind = "notice" if finding.severity == NOTE else finding.severity
        properties = {"file": finding.path}
        # A line number in a member of a wheel does not exist in the wheel file.
        if finding.line is not None and finding.member is None:
            properties |= {"line": str(finding.line), "col": str(finding.column)}
        properties["title"] = finding.code
        # Escape colons and commas, which separate properties.
        fields = ",".join(
            f"{k}={_data(v).replace(':', '%3A').replace(',', '%2C')}"
            for k, v in properties.items()
        )
        place = f"{finding.place}: " if finding.place else ""
        message = _data(f"{place}{finding.message}; {finding.hint}")
        commands.append(f"::{kind} {fields}::{message}")
    return commands


def _where(finding: Finding) -> str:
    """Return ``path:line:column: place``, a form that editors turn into links."""
    member = f": {finding.member}" if finding.member is not None else ""
    position = "" if finding.line is None else f":{finding.line}:{finding.column}"
    place = f": {finding.place}" if finding.place else ""
    return f"{finding.path}{member}{position}{place}"


def _data(text: str) -> str:
    # GitHub decodes these three escapes. A line break would start another command, and
    # a bare percent sign could begin an escape.
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def as_sarif(
    findings: Sequence[Finding],
    rules: Mapping[str, Rule] = RULES,
    page: str = "rules/",
) -> list[str]:
    """Return the lines of a SARIF log.

    :param rules: maps codes to rules; it must have the rule of each finding.
    :param page: the page of the site that explains the rules.
    """
    url = page_url(page)
    told: dict[str, Any] | None = None
    if len(findings) > _MOST_RESULTS:
        left = len(findings) - _MOST_RESULTS
        text = f"the {left:,} least severe findings are left out: see --format json"
        note = {"level": "warning", "message": {"text": text}}
        told = {"executionSuccessful": True, "toolExecutionNotifications": [note]}
        ordered = sorted(findings, key=lambda f: SEVERITIES.index(f.severity))
        findings = ordered[:_MOST_RESULTS]
    used = sorted({finding.code for finding in findings})
    driver = {
        "name": "nvidia-variant-provider",
        "version": __version__,
        "rules": [_rule(rules[code], f"{url}#{code}") for code in used],
    }
    log = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": driver},
                **({"invocations": [told]} if told else {}),
                # Columns count characters, not UTF-16 code units.
                "columnKind": "unicodeCodePoints",
                "results": [_result(f, used.index(f.code)) for f in findings],
            }
        ],
    }
    return json.dumps(log, indent=2).splitlines()


def _rule(rule: Rule, url: str) -> dict[str, Any]:
    return {
        "id": rule.code,
        "name": rule.name,
        "shortDescription": {"text": rule.title},
        "fullDescription": {"text": f"{rule.what} {rule.effect}"},
        "helpUri": url,
        "help": {"text": rule.as_text(), "markdown": rule.as_markdown()},
        "defaultConfiguration": {"level": rule.severity},
    }


def _result(finding: Finding, index: int) -> dict[str, Any]:
    physical: dict[str, Any] = {"artifactLocation": {"uri": _uri(finding.path)}}
    place = finding.place
    if finding.member is not None:
        # Add the position to the place: a region would point into a compressed file.
        position = "" if finding.line is None else f":{finding.line}:{finding.column}"
        place = f"{finding.member}{position}: {place}" if place else finding.member
    elif finding.line is not None:
        region = {"startLine": finding.line, "startColumn": finding.column}
        physical["region"] = region
    location: dict[str, Any] = {"physicalLocation": physical}
    if place:
        location["logicalLocations"] = [{"fullyQualifiedName": place}]
    text = f"{finding.message}; {finding.hint}"
    return {
        "ruleId": finding.code,
        "ruleIndex": index,
        "level": finding.severity,
        # Viewers show "[text](URL)" as a link (SARIF 2.1.0, section 3.11.6).
        "message": {"text": text.replace("](", "] (")},
        "locations": [location],
    }


def _uri(path: str) -> str:
    """Return the path as a URI reference (RFC 3986), relative if the path is."""
    if path.startswith(("http://", "https://")):
        return path
    return urllib.parse.quote(path.replace(os.sep, "/"), errors="replace")
