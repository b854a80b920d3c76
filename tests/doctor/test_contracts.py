"""What belongs to a check besides its function: a text, a test and the page."""

from __future__ import annotations

import re
from pathlib import Path

from nvidia_variant_provider.doctor.checks import CHECKS
from nvidia_variant_provider.doctor.model import SEVERITIES
from nvidia_variant_provider.doctor.texts import TEXTS
from nvidia_variant_provider.doctor.texts.page import checks_page

ROOT = Path(__file__).parents[2]


def test_each_check_has_a_text_in_the_same_order() -> None:
    assert set(CHECKS) <= set(TEXTS), "add a text to doctor/texts"
    assert list(TEXTS) == [code for code in SEVERITIES if code in TEXTS]


def test_the_docstring_of_a_check_names_its_code() -> None:
    for code, find in CHECKS.items():
        assert (find.__doc__ or "").startswith(f"{code}: "), find


def test_each_check_has_a_trigger_and_a_near_miss() -> None:
    tests = "\n".join(
        path.read_text() for path in Path(__file__).parent.glob("test_*.py")
    )
    for code in TEXTS:
        uses = re.findall(rf'"{code}"', tests)
        assert len(uses) >= 2, f"{code} needs a trigger and a near miss"


def test_the_page_is_made_from_the_texts() -> None:
    page = ROOT / "docs/reference/doctor-checks.md"
    assert page.read_text() == checks_page(), (
        "run: python -m nvidia_variant_provider.doctor.texts.page "
        "docs/reference/doctor-checks.md"
    )


def test_texts_are_sentences() -> None:
    for check in TEXTS.values():
        assert check.meaning.endswith("."), check.code
        assert check.mend.endswith("."), check.code
        assert not check.title.endswith("."), check.code
