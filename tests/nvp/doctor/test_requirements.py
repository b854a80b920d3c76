"""ND304 and ND403, and the requirements that they look at."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.stacks import Installed, make_stack, run_checks

TORCH = Installed(
    name="torch",
    version="2.15.0",
    requires=[
        "triton==3.9.0; platform_system != 'nowhere'",
        "cuda-toolkit[cublas]==13.2.*",
        "nvidia-nccl-cu13>=2; extra == 'distributed'",
        "filelock",
        "nvidia-nothing==1.0; python_version < '3.8'",
    ],
)
TOOLKIT = Installed(
    name="cuda-toolkit",
    version="13.2.2",
    requires=[
        "nvidia-cublas==13.4.*; extra == 'cublas'",
        "nvidia-cufft==12.*; extra == 'cufft'",
    ],
)
CUBLAS = Installed(name="nvidia-cublas", version="13.4.1.3")
TRITON = Installed(name="triton", version="3.9.0+git1")

TRIGGERS = {
    "ND304": (TORCH, TOOLKIT, TRITON, Installed(name="nvidia-cublas", version="13.3")),
    "ND403": (TORCH, TOOLKIT, CUBLAS, Installed(name="triton", version="3.8.0")),
}
NEAR_MISSES = {
    "ND304": (TORCH, TOOLKIT, CUBLAS, TRITON),
    "ND403": (TORCH, TOOLKIT, CUBLAS, TRITON),
}


@pytest.mark.parametrize("code", TRIGGERS)
def test_a_trigger_is_the_only_finding(code: str, tmp_path: Path) -> None:
    (finding,) = run_checks(make_stack(tmp_path, *TRIGGERS[code]))
    assert finding.code == code
    assert finding.hint.startswith(f"nvp pip --python {tmp_path}")


@pytest.mark.parametrize("code", NEAR_MISSES)
def test_a_near_miss_is_not_reported(code: str, tmp_path: Path) -> None:
    findings = run_checks(make_stack(tmp_path, *NEAR_MISSES[code]))
    assert code not in [finding.code for finding in findings]


def test_what_is_missing_is_told(tmp_path: Path) -> None:
    (finding,) = run_checks(make_stack(tmp_path, TORCH, CUBLAS, TRITON))
    assert finding.code == "ND304"
    assert finding.message == (
        "torch 2.15.0 requires cuda-toolkit==13.2.*, and cuda-toolkit is not installed"
    )


def test_requirements_that_cannot_be_read_are_passed_over(tmp_path: Path) -> None:
    installed = Installed(requires=["nvidia-x =", "(" * 5000, "nvidia-y; a == b"])
    assert run_checks(make_stack(tmp_path, installed)) == []
