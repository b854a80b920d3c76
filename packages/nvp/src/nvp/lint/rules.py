"""The rules of `validate`: what each code means, and how bad a finding of it is.

Codes are stable and never reused: NV1xx structure, NV2xx grammar, NV3xx meaning for
NVIDIA, NV4xx consistency of a release, NV5xx content of wheels. docs/rules.md declares
the rules and explains them; the wheel has a copy of that page.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from ..files import read_resource
from ..findings import Severity


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """One thing that is checked, as its section of docs/rules.md has it, in Markdown.

    :param title: what is wrong, in a few words.
    :param what: what the rule reports, in full sentences.
    :param effect: what uv and variantlib do, and what users notice.
    :param fix: what to do about it, beginning with ``Fix: ``.
    :param example: a piece of a document with the defect, and the remedy after an
        arrow; may be empty.
    """

    code: str
    severity: Severity
    title: str
    what: str
    effect: str
    fix: str
    example: str

    @property
    def name(self) -> str:
        """The title as one word, for SARIF: ``KeyGivenTwice``."""
        words = re.findall(r"[A-Za-z0-9]+", self.title)
        return "".join(word[0].upper() + word[1:] for word in words)

    def as_text(self) -> str:
        """Return the explanation as plain text, one paragraph for each part."""
        parts = (self.what, self.effect, self.fix, self.example)
        return "\n\n".join(part for part in parts if part)

    def as_markdown(self) -> str:
        """Return the explanation as Markdown, without a heading."""
        parts = [self.what, self.effect, self.fix]
        if self.example:
            parts.append(f"```text\n{self.example}\n```")
        return "\n\n".join(parts)


_SECTION = re.compile(
    r"### (?P<code>NV\d+): (?P<title>.+)\n\n"
    r'<a id="(?P=code)"></a>\n\n'
    r"(?P<severity>Error|Warning|Note)\. "
    r"(?P<what>(?s:.+?))\n\n(?P<effect>(?s:.+?))\n\n(?P<fix>Fix: (?s:.+?))\n"
    r"(?:\n```text\n(?P<example>(?s:.+?))\n```\n)?(?:\n|\Z)"
)


def _rules() -> Iterator[Rule]:
    for match in _SECTION.finditer(_read_page()):
        yield Rule(
            code=match["code"],
            severity=cast("Severity", match["severity"].lower()),
            title=match["title"],
            what=_one_line(match["what"]),
            effect=_one_line(match["effect"]),
            fix=_one_line(match["fix"]),
            example=match["example"] or "",
        )


def _read_page() -> str:
    try:
        return read_resource("lint", "rules.md")
    except OSError:
        # An editable installation runs the checkout, which has the page itself.
        checkout = os.path.join(os.path.dirname(__file__), *([os.pardir] * 5))
        with open(os.path.join(checkout, "docs", "rules.md"), encoding="utf-8") as page:
            return page.read()


def _one_line(paragraph: str) -> str:
    return paragraph.replace("\n", " ")


RULES: dict[str, Rule] = {rule.code: rule for rule in _rules()}
