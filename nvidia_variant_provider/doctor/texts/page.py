"""The page docs/reference/doctor-checks.md, made from the texts of the checks.

``python -m nvidia_variant_provider.doctor.texts.page FILE`` writes the page to FILE.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from ..model import SEVERITIES, Check
from . import TEXTS

__all__ = ["checks_page"]

_INTRODUCTION = """\
# Checks of `doctor`

<!-- Made from the texts in nvidia_variant_provider/doctor/texts. To change the page,
edit them and run:
python -m nvidia_variant_provider.doctor.texts.page docs/reference/doctor-checks.md -->

Every finding of `doctor` has one of the codes on this page. The codes are stable, and
none is ever used again for something else. An error makes `doctor` end with exit code
1; a warning or a note does not.
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
    return "\n".join([_INTRODUCTION, *_index(), *_sections()])


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
    paragraphs = [f"{SEVERITIES[check.code].capitalize()}. {check.meaning}"]
    if check.seen:
        paragraphs.append(f"What users see: `{check.seen}`")
    paragraphs.append(f"What to do: {check.mend}")
    filled = [
        textwrap.fill(text, 88, break_long_words=False, break_on_hyphens=False)
        for text in paragraphs
    ]
    heading = f'### {check.code}: {check.title}\n\n<a id="{check.code}"></a>'
    return "\n\n".join([heading, *filled]) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(checks_page(), encoding="utf-8", newline="\n")
