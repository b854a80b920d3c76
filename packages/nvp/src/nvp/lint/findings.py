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
    :param message: what is wrong, without a final full stop.
    :param hint: what to do next.
    :param member: the file inside the wheel ``path`` that ``place``, ``line`` and
        ``column`` refer to; ``None`` where ``path`` is the document itself.
    :param line: the line of the place in the document, from 1; ``None`` if unknown.
    :param column: the column, in characters from 1; ``None`` if unknown.
    """

    code: Code
    severity: Severity
    path: str
    place: str
    message: str
    hint: str
    member: str | None = None
    line: int | None = None
    column: int | None = None

    def to_dict(self) -> dict[str, str | int | None]:
        """Return the finding as it stands in the JSON report."""
        return {
            "code": self.code,
            "severity": self.severity,
            "path": self.path,
            "place": self.place,
            "message": self.message,
            "hint": self.hint,
            "member": self.member,
            "line": self.line,
            "column": self.column,
        }
