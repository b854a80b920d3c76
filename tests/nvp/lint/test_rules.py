"""The rule table: each rule has one check, and each check has one rule."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from typing import Any, get_args

from support.paths import ROOT

from nvp import lint
from nvp.lint.collector import Checks, Collector, Problem
from nvp.lint.rules import RULES, SEVERITIES
from nvp.lint.rules.model import Code
from nvp.lint.rules.page import rules_page

# The reader of documents reports these itself, and what cannot be opened has no check.
BY_THE_READER = {
    code for code in RULES if code.startswith(("NV1", "NV2")) and code != "NV114"
} | {"NV411"}


def modules() -> list[Any]:
    return [
        importlib.import_module(info.name)
        for info in pkgutil.iter_modules(lint.__path__, f"{lint.__name__}.")
    ]


def families() -> list[Checks[Any]]:
    """Return every collection of checks, once each."""
    members = [m for module in modules() for _, m in inspect.getmembers(module)]
    return list({id(m): m for m in members if isinstance(m, Checks)}.values())


def registered() -> dict[str, Any]:
    pairs = [pair for family in families() for pair in family]
    codes = [code for code, _ in pairs]
    assert len(codes) == len(set(codes)), "a rule has two checks"
    return dict(pairs)


def test_code_type_lists_the_codes_of_the_table() -> None:
    assert list(get_args(Code)) == list(RULES)


def test_every_rule_has_a_check_of_its_own() -> None:
    checks = registered()
    assert checks.keys() == RULES.keys() - BY_THE_READER
    assert len(set(checks.values())) == len(checks)


def test_checks_are_named_after_their_rule_and_say_what_they_report() -> None:
    for code, check in registered().items():
        assert check.__name__ == f"check_{code.lower()}"
        assert check.__doc__
        assert check.__doc__.startswith("Report "), code


def test_checks_run_in_order_and_report_their_own_code() -> None:
    checks: Checks[str] = Checks()

    @checks.rule("NV402")
    def check_nv402(subject: str) -> list[Problem]:
        return [Problem("place", f"first of {subject}", "hint")]

    @checks.rule("NV401")
    def check_nv401(subject: str) -> list[Problem]:
        return [Problem("", f"second of {subject}", "hint")]

    collector = Collector("file")
    checks.run("x", collector)
    assert [(f.code, f.path, f.place, f.message) for f in collector.findings] == [
        ("NV402", "file", "place", "first of x"),
        ("NV401", "file", "", "second of x"),
    ]


# The texts


def test_rules_have_a_family_and_a_severity() -> None:
    for code, rule in RULES.items():
        assert re.fullmatch(r"NV[1-5][0-9]{2}", code)
        assert rule.code == code
        assert rule.severity in SEVERITIES
        assert rule.title
        assert rule.clients
    assert list(RULES) == sorted(RULES)


def test_rules_page_is_made_from_the_rule_table() -> None:
    text = (ROOT / "docs" / "rules.md").read_text(encoding="utf-8")
    assert text == rules_page(), "run: python -m nvp.lint.rules.page docs/rules.md"


def test_rules_page_has_a_section_and_a_row_for_each_rule() -> None:
    text = rules_page()
    sections = re.split(r"^### ", text, flags=re.MULTILINE)[1:]
    headings = [section.splitlines()[0] for section in sections]
    assert headings == [f"{code}: {rule.title}" for code, rule in RULES.items()]
    rows = [line for line in text.splitlines() if line.startswith("| [NV")]
    assert rows == [
        f"| [{code}](#{code}) | {rule.severity} | {rule.title} | {rule.clients} |"
        for code, rule in RULES.items()
    ]
    for section, (code, rule) in zip(sections, RULES.items(), strict=True):
        assert f'<a id="{code}"></a>' in section
        assert f"\n{rule.severity.capitalize()}. " in section
        assert "\nFix: " in section
        assert rule.example in section


def test_rule_texts_are_sentences() -> None:
    for rule in RULES.values():
        assert rule.what.endswith("."), rule.code
        assert rule.effect.endswith("."), rule.code
        assert rule.fix.endswith("."), rule.code
        assert not rule.title.endswith("."), rule.code
        assert not rule.clients.endswith("."), rule.code
