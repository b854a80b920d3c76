"""The parts of a check besides its function: a section of the page, and a test."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest
from support.paths import ROOT

from nvp.doctor.checks import CHECKS

PAGE = (ROOT / "docs/reference/doctor-checks.md").read_text()
ERRORS = (ROOT / "docs/reference/errors.md").read_text()
HERE = Path(__file__).parent

# These modules declare the checks that need more than a stack.
import_module("nvp.doctor.runner")
import_module("nvp.doctor.live.findings")


def _sections() -> list[str]:
    return re.split("^### ", PAGE, flags=re.MULTILINE)[1:]


def _title(code: str) -> str:
    return CHECKS[code].title.removesuffix(".")


def _same(text: str, other: str) -> bool:
    """Return whether two titles are the same; each may begin with a capital."""
    return text[:1].lower() + text[1:] == other[:1].lower() + other[1:]


def test_the_page_lists_the_checks_that_are_no_errors() -> None:
    listed = {
        severity.lower(): re.split(r",\s+", codes)
        for severity, codes in re.findall(
            r"^- (Warning|Note)s: ([^.]+)\.$", PAGE, re.MULTILINE
        )
    }
    assert listed == {
        severity: [code for code in sorted(CHECKS) if CHECKS[code].severity == severity]
        for severity in ("warning", "note")
    }


def test_the_page_has_a_section_for_each_check() -> None:
    section = r"^### (ND\d+): (.+) \{ #(ND\d+) \}\n\n(\w+)\. "
    sections = re.findall(section, PAGE, re.MULTILINE)
    assert [code for code, *_ in sections] == sorted(CHECKS)
    for code, title, anchor, severity in sections:
        assert (anchor, severity.lower()) == (code, CHECKS[code].severity)
        assert _same(title, _title(code)), code


def test_each_section_says_what_to_do_in_sentences() -> None:
    for section in _sections():
        _, *paragraphs = re.split(r"\n\n", section.partition("\n## ")[0].strip())
        advice = paragraphs[-1]
        assert advice.startswith("Fix: "), section[:5]
        assert advice.endswith("."), section[:5]


def test_the_table_of_errors_names_causes_checks_and_fixes() -> None:
    rows = re.findall(
        r"^\| `+(.+?)`+ \| (.+): (\[.+) \| (.+) \|$", ERRORS, re.MULTILINE
    )
    assert len({text for text, *_ in rows}) == len(rows) >= 70
    assert len(rows) == len(re.findall(r"^\| `", ERRORS, re.MULTILINE))
    for text, _, checks, fix in rows:
        links = re.findall(r"\[(ND\d+)\]\(doctor-checks.md#\1\)", checks)
        assert len(links) == checks.count(",") + 1, text
        assert set(links) <= CHECKS.keys(), text
        assert re.match("[a-z]+ [a-z`]", fix), text


def test_each_check_that_needs_only_a_stack_has_a_function() -> None:
    without = {code for code, check in CHECKS.items() if check.find is None}
    assert without == {"ND601", "ND602", "ND603", "ND604", "ND605", "ND701"}


def test_each_check_has_a_trigger_and_a_near_miss() -> None:
    tests = "\n".join(path.read_text() for path in HERE.glob("test_*.py"))
    for code in CHECKS:
        uses = re.findall(rf'"{code}"', tests)
        assert len(uses) >= 2, f"{code} needs a trigger and a near miss"


@pytest.mark.parametrize(
    "text",
    [
        # The most frequent errors, in the form that people paste into a search.
        "no kernel image is available for execution on the device",
        "the provided PTX was compiled with an unsupported toolchain",
        "libcudart.so.12: cannot open shared object file: No such file or directory",
        "libcuda.so.1: cannot open shared object file: No such file or directory",
        "libnvidia-ml.so.1: cannot open shared object file: No such file or directory",
        "torch.cuda.is_available() is False",
        "Torch not compiled with CUDA enabled",
        "The NVIDIA driver on your system is too old",
        "CUDA driver version is insufficient for CUDA runtime version",
        "Found no NVIDIA driver on your system",
        "is not compatible with the current PyTorch installation",
        "Value 'sm_121a' is not defined for option 'gpu-name'",
        "Failed to initialize NVML: Driver/library version mismatch",
        "Failed to initialize NVML: Unknown Error",
        "CUDA_ERROR_UNKNOWN (999)",
        "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803)",
        "forward compatibility was attempted on non supported HW",
        "CUDA_ERROR_MPS_CONNECTION_FAILED (805)",
        "GPU is lost",
        "The detected CUDA version",
        "operator torchvision::nms does not exist",
        "flash_attn_2_cuda",
    ],
)
def test_the_page_has_the_texts_that_users_search_for(text: str) -> None:
    (row,) = (line for line in ERRORS.splitlines() if text in line)
    assert re.search(r"\[(ND[0-9]{3})\]\(doctor-checks.md#\1\)", row)
