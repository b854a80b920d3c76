"""What a rule is: its code, its severity and the texts that explain it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

__all__ = [
    "ERROR",
    "NOTE",
    "SEVERITIES",
    "WARNING",
    "Code",
    "Rule",
    "Severity",
]

Severity = Literal["error", "warning", "note"]

ERROR: Severity = "error"
WARNING: Severity = "warning"
NOTE: Severity = "note"
SEVERITIES: tuple[Severity, ...] = (ERROR, WARNING, NOTE)
"""All severities, the worst first."""

Code = Literal[
    "NV100",
    "NV101",
    "NV102",
    "NV103",
    "NV104",
    "NV105",
    "NV106",
    "NV107",
    "NV108",
    "NV109",
    "NV110",
    "NV111",
    "NV112",
    "NV113",
    "NV114",
    "NV115",
    "NV116",
    "NV117",
    "NV118",
    "NV201",
    "NV202",
    "NV203",
    "NV204",
    "NV205",
    "NV206",
    "NV207",
    "NV208",
    "NV209",
    "NV210",
    "NV211",
    "NV301",
    "NV302",
    "NV303",
    "NV304",
    "NV305",
    "NV306",
    "NV307",
    "NV308",
    "NV309",
    "NV310",
    "NV311",
    "NV312",
    "NV313",
    "NV314",
    "NV315",
    "NV401",
    "NV402",
    "NV403",
    "NV404",
    "NV405",
    "NV406",
    "NV407",
    "NV408",
    "NV409",
    "NV410",
    "NV411",
    "NV412",
    "NV413",
    "NV414",
    "NV415",
    "NV416",
    "NV417",
    "NV418",
    "NV501",
    "NV502",
    "NV503",
    "NV504",
    "NV505",
    "NV506",
    "NV507",
    "NV508",
    "NV509",
    "NV510",
    "NV511",
    "NV512",
    "NV513",
    "NV514",
]
"""The code of a rule. Mypy refuses a code that is not in this list."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """One thing that is checked, and the texts that explain it.

    The texts are Markdown. docs/rules.md and the help of SARIF logs are made of them.

    :param title: what is wrong, in a few words.
    :param clients: what uv 0.13.8 and variantlib 0.2.2 do about the defect, in a few
        words. tests/peers/test_lint_peers.py measures it.
    :param what: what the rule reports, in full sentences.
    :param effect: what the clients do, and what users notice.
    :param fix: what to do about it; follows a colon, and ends with a full stop.
    :param example: a piece of a document with the defect, and the remedy after an
        arrow; may be empty.
    """

    code: Code
    severity: Severity
    title: str
    clients: str
    what: str
    effect: str
    fix: str
    example: str = ""

    @property
    def name(self) -> str:
        """The title as one word, for SARIF: ``KeyGivenTwice``."""
        words = re.findall(r"[A-Za-z0-9]+", self.title)
        return "".join(word[0].upper() + word[1:] for word in words)

    def as_text(self) -> str:
        """Return the explanation as plain text, one paragraph for each part."""
        parts = [self.what, self.effect, f"Fix: {self.fix}", self.example]
        return "\n\n".join(part for part in parts if part)

    def as_markdown(self) -> str:
        """Return the explanation as Markdown, without a heading."""
        parts = [self.what, self.effect, f"Fix: {self.fix}"]
        if self.example:
            parts.append(f"```text\n{self.example}\n```")
        return "\n\n".join(parts)
