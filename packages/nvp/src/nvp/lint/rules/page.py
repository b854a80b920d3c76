"""The page docs/rules.md, made from the rule table.

``python -m nvp.lint.rules.page FILE`` writes the page to FILE.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from . import RULES
from .model import Rule

__all__ = ["rules_page"]

_INTRODUCTION = """\
# Rules of `validate`

<!-- Made from the rule table in packages/nvp/src/nvp/lint/rules. To change it, edit
the table and run: python -m nvp.lint.rules.page docs/rules.md -->

Every finding of `validate` has one of the codes on this page. The codes are stable, and
none is ever used again for something else. "Both" are uv 0.13.8, with its preview of
wheel variants, and variantlib 0.2.2. What they do was measured with small releases that
have one defect each.

An error fails `validate`, a warning fails it with `--strict`, and a note never does.
`--select` and `--ignore` take codes and prefixes such as `NV3`; where two of them
match, the longer one counts. The folder `fixtures/lint/` has documents that break each
rule, and documents that just do not.

Findings say where they are: the path, the place in the document such as
`variants.cu126.nvidia`, and the line and the column where the document is JSON text.
For a wheel, the line is that of `variant.json` inside it.
"""

_FAMILIES = {
    "NV1": """\
## NV1xx: Structure

These rules are about what JSON gives: keys, types, and what belongs together.
""",
    "NV2": """\
## NV2xx: Grammar

These rules are about labels, names, values, references and requirements.
""",
    "NV3": """\
## NV3xx: Meaning for NVIDIA

These rules are about what labels promise and which machines they reach. Nothing here
stops an installer: users silently get the wrong build.
""",
    "NV4": """\
## NV4xx: Consistency of a release

These rules are about what a folder or a project page holds, metadata and wheels
together. For the root of an index, or a folder of project folders, every project is
checked.
""",
    "NV5": """\
## NV5xx: Content of wheels

These rules compare the GPU code in a wheel with what the wheel declares. All members
that may hold GPU code are read in full, which takes as long as unpacking the wheel;
with `--ignore NV5` none of them is read. Wheels on a project page are downloaded to the
temporary folder, one at a time, and their hashes are compared; with `--no-hash`, only
the parts that hold libraries and metadata are read. With both options only the list of
members and the metadata are. The summary says what was not checked.

Only libraries that the project built itself count, and each of them has to run: what
all of them have can be declared, and not what one of them has. Libraries that were
copied into the wheel, such as cuBLAS, have targets of their own. A program
loads one of several loose cubins, or of several libraries whose names differ only by
the number of a CUDA version or of a GPU (`lib_cuda126.so`, `sm90/ops.so`), so these
count together. Machine code for a family (`100f`) counts as plain code. `inspect` shows
what a wheel holds, and `inspect --suggest` shows what it could declare.
""",
}


def rules_page() -> str:
    """Return the page as Markdown."""
    return "\n".join([_INTRODUCTION, *_index(), *_sections()])


def _index() -> Iterator[str]:
    yield "| Code | Severity | What is wrong | What uv and variantlib do |"
    yield "|---|---|---|---|"
    for rule in RULES.values():
        yield (
            f"| [{rule.code}](#{rule.code}) | {rule.severity} | {rule.title} "
            f"| {rule.clients} |"
        )
    yield ""


def _sections() -> Iterator[str]:
    family = ""
    for code, rule in RULES.items():
        if code[:3] != family:
            family = code[:3]
            yield _FAMILIES[family]
        yield _section(rule)


def _section(rule: Rule) -> str:
    paragraphs = [
        f"{rule.severity.capitalize()}. {rule.what}",
        rule.effect,
        f"Fix: {rule.fix}",
    ]
    filled = [
        textwrap.fill(text, 88, break_long_words=False, break_on_hyphens=False)
        for text in paragraphs
    ]
    if rule.example:
        filled.append(f"```text\n{rule.example}\n```")
    heading = f'### {rule.code}: {rule.title}\n\n<a id="{rule.code}"></a>'
    return "\n\n".join([heading, *filled]) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(rules_page(), encoding="utf-8", newline="\n")
