"""The rule table: each rule has one check, and each check has one rule."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from typing import Any

import pytest
from support.paths import ROOT

from nvidia_variant_provider.metadata.versions import READ_BY_CLIENTS, WRITTEN
from nvp import lint
from nvp.lint.documents import CODES
from nvp.lint.findings import RULES, Checks, Collector, Problem

PAGE = (ROOT / "docs" / "rules.md").read_text(encoding="utf-8")

# The reader of documents reports these defects itself, and unreadable files have no
# check.
BY_THE_READER = {*CODES.values(), "NV100", "NV101", "NV102", "NV103", "NV411"}


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


def test_a_check_needs_a_rule_of_the_table() -> None:
    checks: Checks[str] = Checks()
    with pytest.raises(AssertionError, match="NV999"):
        checks.rule("NV999")(lambda _: [])


# The page that explains them


def test_rules_have_a_family_and_a_title_of_their_own() -> None:
    assert list(RULES) == sorted(RULES)
    for code, rule in RULES.items():
        assert re.fullmatch(r"NV[1-5][0-9]{2}", code)
        assert rule.title
        assert not rule.title.endswith(".")
    assert len({rule.name for rule in RULES.values()}) == len(RULES)


def test_page_lists_the_rules_that_are_no_errors() -> None:
    listed = {
        severity.lower(): codes.split(", ")
        for severity, codes in re.findall(
            r"^- (Warning|Note)s: (.+)\.$", PAGE, re.MULTILINE
        )
    }
    assert listed == {
        severity: [code for code, rule in RULES.items() if rule.severity == severity]
        for severity in ("warning", "note")
    }


def test_page_has_a_section_for_each_rule() -> None:
    sections = re.split(r"^### ", PAGE, flags=re.MULTILINE)[1:]
    for section, (code, rule) in zip(sections, RULES.items(), strict=True):
        head = f"{code}: {rule.title} {{ #{code} }}\n\n"
        assert section.startswith(f"{head}{rule.severity.capitalize()}. "), code
        assert all(len(line) <= 88 for line in section.split("```")[0].splitlines())


def test_the_whole_section_of_a_rule_is_its_explanation() -> None:
    for code, texts in RULES.items():
        assert texts.what.endswith("."), code
        assert texts.effect.endswith("."), code
        assert re.fullmatch(r"Fix: .+\.", texts.fix), code
        start = PAGE.index(f"{{ #{code} }}")
        end = re.compile(r"^#", re.MULTILINE).search(PAGE, start)
        section = PAGE[start : end and end.start()].rstrip()
        written = section.partition(f"{texts.severity.capitalize()}. ")[2]
        assert written.split() == texts.as_markdown().split()


def test_page_names_the_versions_that_are_read_and_written() -> None:
    assert f'"$schema": "{WRITTEN.url}"' in RULES["NV104"].example
    assert f"`/v{WRITTEN}.json`" in RULES["NV105"].what
    assert f"before {READ_BY_CLIENTS[0]}." in RULES["NV106"].what
    assert f"as version {READ_BY_CLIENTS[-1]}." in RULES["NV105"].effect
