"""What belongs to a check besides its function: a text, a test and the page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.paths import ROOT

from nvp.doctor.checks import CHECKS
from nvp.doctor.model import SEVERITIES
from nvp.doctor.texts import TEXTS
from nvp.doctor.texts.page import checks_page


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
        "run: python -m nvp.doctor.texts.page docs/reference/doctor-checks.md"
    )


def test_texts_are_sentences() -> None:
    for check in TEXTS.values():
        assert check.meaning.endswith("."), check.code
        assert check.mend.endswith("."), check.code
        assert not check.title.endswith("."), check.code


@pytest.mark.parametrize(
    "text",
    [
        # What people report most often, as they would paste it into a search.
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
    lines = checks_page().splitlines()
    explained = [line for line in lines if text in line and not line.startswith("|")]
    listed = [line for line in lines if text in line and line.startswith("| `")]
    assert explained
    assert listed
    assert all(re.search(r"\[ND[0-9]{3}\]\(#ND[0-9]{3}\)", line) for line in listed)
