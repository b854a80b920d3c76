"""The grammar of the texts in variant metadata, and the sentence about a wrong one.

Reading, linting, writing and the names of wheels all use these expressions.
"""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

from ..errors import shown

__all__ = ["GRAMMARS", "NAME", "VALUE", "Term", "explain"]

NAME = re.compile(r"[a-z0-9_]+")
"""PEP 825: namespaces and features match ``^[a-z0-9_]+$``."""

VALUE = re.compile(r"[a-z0-9_.]+")
"""PEP 825: values and labels match ``^[a-z0-9_.]+$``."""

Term: TypeAlias = Literal["label", "namespace", "feature", "value"]
"""What a text in variant metadata can be."""

GRAMMARS: dict[Term, re.Pattern[str]] = {
    "label": VALUE,
    "namespace": NAME,
    "feature": NAME,
    "value": VALUE,
}
"""The expression that the whole of such a text has to match."""


def explain(text: str, term: Term) -> str:
    """Return the sentence about a text that does not match its grammar."""
    allowed = "a-z, 0-9, _ and ." if GRAMMARS[term] is VALUE else "a-z, 0-9 and _"
    return f"{shown(text)} is not a {term}: use only {allowed}"
