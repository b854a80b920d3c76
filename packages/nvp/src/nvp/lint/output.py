"""Findings as text, and as workflow commands of GitHub."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ..findings import NOTE, SEVERITIES
from .findings import Finding
from .unchecked import Unchecked

__all__ = ["as_github", "as_text"]


def as_text(
    findings: Sequence[Finding], unchecked: Sequence[Unchecked] = ()
) -> list[str]:
    """Return a line for each finding, and then a summary.

    :param unchecked: what was not checked, which is the first part of the summary.
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
    """Return workflow commands, which GitHub shows as annotations of files."""
    commands = []
    for finding in findings:
        kind = "notice" if finding.severity == NOTE else finding.severity
        properties = {"file": finding.path}
        # The line is not one of the wheel where it is one of a member.
        if finding.line is not None and finding.member is None:
            properties |= {"line": str(finding.line), "col": str(finding.column)}
        properties["title"] = finding.code
        fields = ",".join(f"{k}={_property(v)}" for k, v in properties.items())
        place = f"{finding.place}: " if finding.place else ""
        message = _data(f"{place}{finding.message}; {finding.hint}")
        commands.append(f"::{kind} {fields}::{message}")
    return commands


def _where(finding: Finding) -> str:
    """Return ``path:line:column: place``, in the form that editors turn into links."""
    parts = [finding.path]
    position = "" if finding.line is None else f":{finding.line}:{finding.column}"
    if finding.member is None:
        parts[0] += position
    else:
        parts.append(f"{finding.member}{position}")
    if finding.place:
        parts.append(finding.place)
    return ": ".join(parts)


def _data(text: str) -> str:
    # GitHub decodes these three. A line end would start another command, and a bare
    # percent sign could be read as an escape.
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    # Colons and commas separate properties.
    return _data(text).replace(":", "%3A").replace(",", "%2C")
