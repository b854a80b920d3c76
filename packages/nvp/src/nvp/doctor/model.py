"""What a check is, and what it reports."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .stack import Stack

__all__ = ["SEVERITIES", "Check", "Code", "Find", "Finding", "Severity"]

Severity = Literal["error", "warning", "note"]

Code = Literal[
    "ND101",
    "ND102",
    "ND103",
    "ND104",
    "ND201",
    "ND202",
    "ND203",
    "ND204",
    "ND205",
    "ND206",
    "ND207",
    "ND301",
    "ND302",
    "ND303",
    "ND304",
    "ND401",
    "ND402",
    "ND403",
    "ND404",
    "ND405",
    "ND406",
    "ND501",
    "ND502",
    "ND503",
    "ND601",
    "ND602",
    "ND603",
    "ND604",
    "ND605",
    "ND701",
]
"""The code of a check. Mypy refuses a code that is not in this list."""

SEVERITIES: Mapping[Code, Severity] = {
    "ND101": "error",
    "ND102": "error",
    "ND103": "error",
    "ND104": "error",
    "ND201": "error",
    "ND202": "error",
    "ND203": "warning",
    "ND204": "warning",
    "ND205": "error",
    "ND206": "error",
    "ND207": "warning",
    "ND301": "error",
    "ND302": "warning",
    "ND303": "warning",
    "ND304": "error",
    "ND401": "error",
    "ND402": "error",
    "ND403": "error",
    "ND404": "warning",
    "ND405": "error",
    "ND406": "warning",
    "ND501": "error",
    "ND502": "error",
    "ND503": "error",
    "ND601": "error",
    "ND602": "note",
    "ND603": "error",
    "ND604": "error",
    "ND605": "warning",
    "ND701": "warning",
}
"""How bad a finding of each check is, unless the finding itself says otherwise."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing that is wrong with a stack.

    :param code: the check that found it.
    :param message: what is wrong, in one sentence without a full stop.
    :param hint: what to do next, as a command where there is one.
    :param distribution: the normalized name of the distribution that it is about.
    :param path: the file or the folder that it is about.
    :param own_severity: the severity of this finding, where it is not that of the
        check.
    """

    code: Code
    message: str
    hint: str
    distribution: str | None = None
    path: str | None = None
    own_severity: Severity | None = None

    @property
    def severity(self) -> Severity:
        """How bad it is."""
        return self.own_severity or SEVERITIES[self.code]

    def to_dict(self) -> dict[str, str | None]:
        """Return the finding as it stands in the JSON report."""
        return {
            "code": self.code,
            "severity": self.severity,
            "distribution": self.distribution,
            "path": self.path,
            "message": self.message,
            "hint": self.hint,
        }


Find: TypeAlias = "Callable[[Stack], Iterable[Finding]]"
"""Looks at a stack, and yields what is wrong."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One thing that is checked, with the texts that explain it.

    The texts are Markdown. docs/reference/doctor-checks.md is made of them.

    :param title: when it is reported, in a few words.
    :param meaning: what it means, in full sentences.
    :param seen: the texts of the errors that users see; may be empty.
    :param mend: what to do about it, in full sentences.
    """

    code: Code
    title: str
    meaning: str
    mend: str
    seen: tuple[str, ...] = ()
