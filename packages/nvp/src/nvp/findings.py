"""Findings of `doctor` and `validate`, and which of them fail a run.

A finding is one problem. `validate` reports problems at a place in a file, and `doctor`
reports problems of an installed distribution, so each command has its own subclass of
`Finding`. This module has the shared parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

from nvidia_variant_provider.errors import redacted
from nvidia_variant_provider.machine.environment import ComputeCapability, CudaVersion

Severity = Literal["error", "warning", "note"]

ERROR: Severity = "error"
WARNING: Severity = "warning"
NOTE: Severity = "note"
SEVERITIES: tuple[Severity, ...] = (ERROR, WARNING, NOTE)
"""All severities, most severe first."""


class Reported:
    """A record whose fields all appear in JSON reports."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Return every field under its own name, with versions as text."""
        return {x.name: _plain(getattr(self, x.name)) for x in fields(self)}  # type: ignore[arg-type]


def _plain(value: Any) -> Any:
    if isinstance(value, (CudaVersion, ComputeCapability)):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return list(map(_plain, value))
    return value.to_dict() if hasattr(value, "to_dict") else value


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """A problem that a rule or a check found.

    :param code: the stable code of this rule or check.
    :param message: the problem, without a final period.
    :param hint: the next step, if possible a command.
    """

    REPORTED: ClassVar[tuple[str, ...]] = ("code", "severity", "message", "hint")
    """The fields of the JSON report, in order."""

    code: str
    severity: Severity
    message: str
    hint: str

    def to_dict(self) -> dict[str, str | int | None]:
        """Return the finding for the JSON report."""
        return {name: getattr(self, name) for name in self.REPORTED}


_LONGEST = 2_000
"""The maximum length of a text for people, in characters."""


def shortened(text: str) -> str:
    """Return a text without its middle if it is long: its end often says the most.

    Passwords near the cut are redacted first, because nothing marks a part of one.
    """
    if len(text) <= _LONGEST:
        return text
    cut = _LONGEST // 2 + 2
    start, end = redacted(text[:_LONGEST]), redacted(text[-_LONGEST:])
    return f"{start[:-cut]}...{end[cut:]}"


def fails(findings: Iterable[Finding], *, strict: bool = False) -> bool:
    """Return whether findings fail a run: errors do, warnings only with ``strict``."""
    failing = (ERROR, WARNING) if strict else (ERROR,)
    return any(finding.severity in failing for finding in findings)
