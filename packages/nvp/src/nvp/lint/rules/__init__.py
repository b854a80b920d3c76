"""The rule table: every code that a finding can have.

Codes are stable and never reused: NV1xx structure, NV2xx grammar, NV3xx meaning for
NVIDIA, NV4xx consistency of a release, NV5xx content of wheels. The page docs/rules.md
has a section for each rule, and is made from this table by `page`.
"""

from __future__ import annotations

from collections.abc import Mapping

from .content import CONTENT_RULES
from .grammar import GRAMMAR_RULES
from .meaning import MEANING_RULES
from .model import ERROR, NOTE, SEVERITIES, WARNING, Code, Rule, Severity
from .release import RELEASE_RULES
from .structure import STRUCTURE_RULES

__all__ = [
    "ERROR",
    "NOTE",
    "RULES",
    "SEVERITIES",
    "WARNING",
    "Code",
    "Rule",
    "Severity",
]

RULES: Mapping[Code, Rule] = {
    rule.code: rule
    for rule in (
        *STRUCTURE_RULES,
        *GRAMMAR_RULES,
        *MEANING_RULES,
        *RELEASE_RULES,
        *CONTENT_RULES,
    )
}
