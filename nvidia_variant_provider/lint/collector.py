"""Collecting findings about one file."""

from __future__ import annotations

from .findings import RULES, Finding

__all__ = ["Collector"]


class Collector:
    """The findings about one file, folder or page.

    :param path: its name, for the findings.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.findings: list[Finding] = []

    def add(self, code: str, place: str, message: str, hint: str) -> None:
        """Add a finding of a rule."""
        self.findings.append(
            Finding(
                code=code,
                severity=RULES[code].severity,
                path=self.path,
                place=place,
                message=message,
                hint=hint,
            )
        )
