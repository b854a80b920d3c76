"""The vocabulary of STYLE.md in everything that people read; a hook also runs this
file."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.paths import ROOT

STYLE = ROOT / "STYLE.md"
SOURCES = ("nvidia_variant_provider", "packages", "tools", "benchmarks", "tests")
NOT_PROSE = re.compile(
    # Code, URLs, links, replacement fields, and the names of parameters.
    r"``[^`]*``|`[^`\n]*`|https?://\S+|\]\([^)]*\)|\{[^{}]*\}|:param \w+:",
)


def read_rules(text: str) -> dict[str, str]:
    """Return the word to write for each term of the table that is always wrong."""
    table = text.partition("## Vocabulary\n")[2].partition("\n## ")[0]
    rules = {}
    for good, bad in re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", table, re.MULTILINE)[1:]:
        for term in re.sub(r"\*[^*]+\*|\([^)]*\)", "", bad).split(","):
            if term.strip():
                rules[term.strip()] = re.sub(r" \(.*", "", good)
    return rules


def pattern(term: str) -> str:
    """Return a pattern for a term with any ending of a verb or a noun."""
    return " ".join(rf"{re.escape(x)}(?:s|es|d|ed|ing)?" for x in term.split())


RULES = read_rules(STYLE.read_text(encoding="utf-8"))
TERM = re.compile(
    rf"(?<![\w.-])(?:{'|'.join(f'({pattern(term)})' for term in RULES)})(?![\w-])",
    re.IGNORECASE,
)


def prose_of_page(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a page, without its code."""

    def blank(match: re.Match[str]) -> str:
        return "\n" * match[0].count("\n")

    text = re.sub(r"^( *)```.*?^\1```", blank, text, flags=re.MULTILINE | re.DOTALL)
    return enumerate(text.splitlines(), 1)


TEXTS = (tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING))
BETWEEN_STATEMENTS = {tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}


def prose_of_module(text: str, *, is_test: bool) -> Iterator[tuple[int, str]]:
    """Yield the comments, the docstrings, and other strings with sentences, but no test
    data."""
    is_statement = True
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        is_text = token.type in TEXTS and (is_statement or not is_test)
        if token.type == tokenize.COMMENT or (is_text and " " in token.string):
            yield from enumerate(token.string.splitlines(), token.start[0])
        is_statement = token.type in BETWEEN_STATEMENTS


def problems(path: Path, text: str) -> Iterator[str]:
    """Return the changes to make, as ``path:line: write ... for ...``."""
    lines = prose_of_page(text)
    if path.suffix == ".py":
        lines = prose_of_module(text, is_test=path.parts[0] == "tests")
    for number, line in lines:
        for match in TERM.finditer(NOT_PROSE.sub(" ", line)):
            good = [*RULES.values()][(match.lastindex or 1) - 1]
            yield f"{path}:{number}: write {good!r} for {match[0]!r}"


def documents() -> list[Path]:
    """Return the pages and modules, but not the style guide, which names the words."""
    found = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("*/README.md")]
    for folder in SOURCES:
        found += [*ROOT.glob(f"{folder}/**/*.py"), *ROOT.glob(f"{folder}/**/*.md")]
    corpus = ROOT / "tests" / "corpus"
    left_out = {STYLE, Path(__file__), *corpus.rglob("*")}
    return [path for path in dict.fromkeys(found) if path not in left_out]


def test_the_vocabulary_is_kept() -> None:
    found = [
        problem
        for path in documents()
        for problem in problems(path.relative_to(ROOT), path.read_text("utf-8"))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("Mend the folder.", 2),
        ("Mending `the folder` of {folder}\n```\nverb\n```", 1),
        (
            "Ordinary wheels are settled; see [x](folder.md) at https://a.example/lane",
            2,
        ),
        ("The lock of a page, and a folderless command.", 0),
    ],
)
def test_a_term_is_found_in_prose_alone(text: str, count: int) -> None:
    assert len([*problems(Path("page.md"), text)]) == count
    module = f'"""{text}"""\nfolder = "folder"  # {text.splitlines()[0]}\n'
    wanted = count + len([*problems(Path("page.md"), text.splitlines()[0])])
    fenced = "verb" in text
    assert len([*problems(Path("module.py"), module)]) == wanted + fenced


def test_the_table_is_read() -> None:
    assert RULES["folder"] == "directory; current directory"
    assert {"verb", "mend", "lane", "stand-in"} <= RULES.keys()
    assert not {"page", "lock", "bound"} & RULES.keys()
