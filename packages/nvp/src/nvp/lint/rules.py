"""The rules of `validate`: what each code means, and how bad a finding of it is.

Codes are stable and never reused: NV1xx structure, NV2xx grammar, NV3xx meaning for
NVIDIA, NV4xx consistency of a release, NV5xx content of wheels. This table declares a
rule. docs/rules.md explains each of them, and the wheel has a copy of that page.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from ..files import read_resource
from ..findings import ERROR, NOTE, WARNING, Severity


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """One thing that is checked.

    :param title: what is wrong, in a few words.
    """

    code: str
    severity: Severity
    title: str

    @property
    def name(self) -> str:
        """The title as one word, for SARIF: ``KeyGivenTwice``."""
        words = re.findall(r"[A-Za-z0-9]+", self.title)
        return "".join(word[0].upper() + word[1:] for word in words)


RULES: dict[str, Rule] = {}
for _code, _severity, _title in (
    ("NV100", ERROR, "cannot be read"),
    ("NV101", ERROR, "byte order mark"),
    ("NV102", ERROR, "key given twice"),
    ("NV103", ERROR, "NaN or Infinity"),
    ("NV104", ERROR, "no $schema"),
    ("NV105", ERROR, "unknown $schema"),
    ("NV106", ERROR, "old schema version"),
    ("NV107", ERROR, "key missing"),
    ("NV108", ERROR, "wrong type"),
    ("NV109", ERROR, "unknown key"),
    ("NV110", ERROR, "provider without exactly one source"),
    ("NV111", ERROR, "namespaces and providers differ"),
    ("NV112", ERROR, "undeclared namespace"),
    ("NV113", ERROR, "rules for null broken"),
    ("NV114", WARNING, "no fallback"),
    ("NV115", WARNING, "same properties twice"),
    ("NV116", ERROR, "feature-order incomplete"),
    ("NV117", ERROR, "key for another kind of provider"),
    ("NV118", ERROR, "label that static properties rule out"),
    ("NV201", ERROR, "malformed label"),
    ("NV202", ERROR, "label too long"),
    ("NV203", ERROR, "malformed namespace"),
    ("NV204", ERROR, "malformed feature"),
    ("NV205", ERROR, "malformed value"),
    ("NV206", NOTE, "values not sorted"),
    ("NV207", ERROR, "value given twice"),
    ("NV208", ERROR, "no value"),
    ("NV209", ERROR, "malformed plugin-api"),
    ("NV210", ERROR, "malformed requirement"),
    ("NV211", ERROR, "malformed marker"),
    ("NV301", ERROR, "unknown feature"),
    ("NV302", ERROR, "unknown value"),
    ("NV303", ERROR, "several values of a single-valued feature"),
    ("NV304", ERROR, "bounds that exclude each other"),
    ("NV305", WARNING, "upper bound excludes newer drivers"),
    ("NV306", WARNING, "no sm_arch"),
    ("NV307", ERROR, "target that no such toolkit emits"),
    ("NV308", WARNING, "target that the named toolkit does not emit"),
    ("NV309", WARNING, "label and lower bound differ"),
    ("NV310", NOTE, "lower bound stricter than needed"),
    ("NV311", ERROR, "only architecture-specific code"),
    ("NV312", WARNING, "GPU generation left out"),
    ("NV313", NOTE, "no PTX for newer GPUs"),
    ("NV314", ERROR, "provider that uv ignores"),
    ("NV315", WARNING, "label that nothing selects"),
    ("NV401", ERROR, "file name not normalised"),
    ("NV402", ERROR, "label without wheel"),
    ("NV403", ERROR, "wheel whose label is not listed"),
    ("NV404", ERROR, "wheel without variant.json"),
    ("NV405", ERROR, "wheel and index differ"),
    ("NV406", ERROR, "metadata that cannot be merged"),
    ("NV407", ERROR, "wheels of one label differ"),
    ("NV408", NOTE, "variant markers in METADATA"),
    ("NV409", ERROR, "no variants.json"),
    ("NV410", WARNING, "variants.json older than wheels"),
    ("NV411", ERROR, "file that cannot be read as a wheel"),
    ("NV412", ERROR, "variant.json of another label"),
    ("NV413", ERROR, "METADATA of another release"),
    ("NV414", WARNING, "WHEEL has other tags than the name"),
    ("NV415", WARNING, "wheel name not normalised"),
    ("NV416", WARNING, "requirements differ within a label"),
    ("NV417", ERROR, "wrong sha256 on the page"),
    ("NV418", WARNING, "no sha256 on the page"),
    ("NV501", ERROR, "declared code that is not there"),
    ("NV502", WARNING, "code that is not declared"),
    ("NV503", NOTE, "declared under another name"),
    ("NV504", ERROR, "declared PTX that is not there"),
    ("NV505", ERROR, "PTX newer than the lower bound"),
    ("NV506", ERROR, "lower bound below the linked CUDA"),
    ("NV507", ERROR, "architecture-specific code declared as plain"),
    ("NV508", ERROR, "declared target of empty cubins"),
    ("NV509", WARNING, "libraries that disagree"),
    ("NV510", ERROR, "GPU build without GPU code"),
    ("NV511", NOTE, "GPU code that nothing declares"),
    ("NV512", ERROR, "GPU code that cannot be read"),
    ("NV513", ERROR, "library of another machine"),
    ("NV514", ERROR, "requirements of another CUDA"),
):
    RULES[_code] = Rule(code=_code, severity=_severity, title=_title)


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """The section of docs/rules.md about one rule. The texts are Markdown.

    :param what: what the rule reports, in full sentences.
    :param effect: what uv and variantlib do, and what users notice.
    :param fix: what to do about it, beginning with ``Fix: ``.
    :param example: a piece of a document with the defect, and the remedy after an
        arrow; may be empty.
    """

    what: str
    effect: str
    fix: str
    example: str

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
    r'<a id="(?P<code>NV\d+)"></a>\n\n'
    r"(?:Error|Warning|Note)\. (?P<what>.+?)\n\n(?P<effect>.+?)\n\n(?P<fix>Fix: .+?)\n"
    r"(?:\n```text\n(?P<example>.+?)\n```\n)?(?:\n|\Z)",
    re.DOTALL,
)


def explain(code: str) -> Explanation:
    """Return what docs/rules.md says about a rule."""
    return _explanations()[code]


@cache
def _explanations() -> Mapping[str, Explanation]:
    return {
        match["code"]: Explanation(
            what=_one_line(match["what"]),
            effect=_one_line(match["effect"]),
            fix=_one_line(match["fix"]),
            example=match["example"] or "",
        )
        for match in _SECTION.finditer(_read_page())
    }


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
