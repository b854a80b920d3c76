"""Findings: what a rule reports about one place of a file."""

from __future__ import annotations

from dataclasses import dataclass

from .rules import Code, Severity

__all__ = ["Finding"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One defect in one place.

    :param path: the file, folder or page.
    :param place: the place in the document or in the folder; may be empty.
    """

    code: Code
    severity: Severity
    path: str
    place: str
    message: str
    hint: str

    def to_dict(self) -> dict[str, str]:
        """Return the finding as it stands in the JSON report."""
        return {
            "code": self.code,
            "severity": self.severity,
            "path": self.path,
            "place": self.place,
            "message": self.message,
            "hint": self.hint,
        }
