"""What a rule reports about one place of a file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .. import findings

__all__ = ["Finding"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding(findings.Finding):
    """One defect in one place.

    :param path: the file, folder or page.
    :param place: the place in the document or in the folder; may be empty.
    :param member: the file inside the wheel ``path`` that ``place``, ``line`` and
        ``column`` refer to; ``None`` where ``path`` is the document itself.
    :param line: the line of the place in the document, from 1; ``None`` if unknown.
    :param column: the column, in characters from 1; ``None`` if unknown.
    """

    REPORTED: ClassVar = (
        *("code", "severity", "path", "place", "message", "hint"),
        *("member", "line", "column"),
    )

    path: str
    place: str
    member: str | None = None
    line: int | None = None
    column: int | None = None
