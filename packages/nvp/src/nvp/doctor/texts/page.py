"""The page docs/reference/doctor-checks.md, made from the texts of the checks.

``python -m nvp.doctor.texts.page FILE`` writes the page to FILE.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from ...matrix.escaping import as_code
from ..model import SEVERITIES, Check
from . import TEXTS

__all__ = ["checks_page"]

_INTRODUCTION = """\
# Checks of `doctor`

<!-- Made from the texts in packages/nvp/src/nvp/doctor/texts. To change the page,
edit them and run:
python -m nvp.doctor.texts.page docs/reference/doctor-checks.md -->

Every finding of `doctor` has one of the codes on this page. The codes are stable, and
none is ever used again for something else. An error makes `doctor` end with exit code
1; a warning or a note does not. [Texts of errors](#texts-of-errors) at the end of the
page lists what programs say, with the codes to look at.
"""

_FAMILIES = {
    "ND1": "## ND1xx: Machine\n",
    "ND2": "## ND2xx: Builds\n",
    "ND3": "## ND3xx: Libraries\n",
    "ND4": "## ND4xx: Toolchain\n",
    "ND5": "## ND5xx: ABI\n",
    "ND6": "## ND6xx: Live proof and workloads\n",
    "ND7": "## ND7xx: Receipts\n",
}


def checks_page() -> str:
    """Return the page as Markdown."""
    return "\n".join([_INTRODUCTION, *_index(), *_sections(), *_errors()])


def _index() -> Iterator[str]:
    yield "| Code | Severity | When it is reported |"
    yield "|---|---|---|"
    for code, check in TEXTS.items():
        yield f"| [{code}](#{code}) | {SEVERITIES[code]} | {check.title} |"
    yield ""


def _sections() -> Iterator[str]:
    family = ""
    for code, check in TEXTS.items():
        if code[:3] != family:
            family = code[:3]
            yield _FAMILIES[family]
        yield _section(check)


def _section(check: Check) -> str:
    heading = f'### {check.code}: {check.title}\n\n<a id="{check.code}"></a>'
    parts = [heading]
    parts.append(_fill(f"{SEVERITIES[check.code].capitalize()}. {check.meaning}"))
    if check.seen:
        # Each text stands on one line, so that a search for it finds it.
        texts = "\n".join(check.seen)
        parts += ["What users see:", f"```text\n{texts}\n```"]
    parts.append(_fill(f"What to do: {check.mend}"))
    return "\n\n".join(parts) + "\n"


def _fill(text: str) -> str:
    return textwrap.fill(text, 88, break_long_words=False, break_on_hyphens=False)


def _errors() -> Iterator[str]:
    """Yield a table of all texts of errors, with the checks to look at."""
    codes: dict[str, list[str]] = {}
    for code, check in TEXTS.items():
        for text in check.seen:
            codes.setdefault(text, []).append(f"[{code}](#{code})")
    yield "## Texts of errors\n"
    yield "| What a program says | Where to look |"
    yield "|---|---|"
    for text in sorted(codes, key=str.lower):
        shown = re.sub(" {2,}", " ", text)
        yield f"| {as_code(shown)} | {', '.join(codes[text])} |"
    yield ""


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(checks_page(), encoding="utf-8", newline="\n")
