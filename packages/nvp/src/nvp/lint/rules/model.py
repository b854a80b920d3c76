"""What a rule is: its code, its severity and the texts that explain it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ...findings import ERROR, NOTE, SEVERITIES, WARNING, Severity

__all__ = [
    "ERROR",
    "NOTE",
    "SEVERITIES",
    "WARNING",
    "Code",
    "Rule",
    "Severity",
]

Code = str
"""The code of a rule, such as ``NV301``."""


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
