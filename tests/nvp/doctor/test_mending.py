"""The commands at the end of a diagnosis, which mend all of its findings."""

from __future__ import annotations

import pytest

from nvp.doctor.model import Finding, commands_of
from nvp.findings import Severity

PIP = "nvp pip --python /env"
AGAIN = f"{PIP} install --upgrade --force-reinstall"


def finding(hint: str, severity: Severity = "error") -> Finding:
    return Finding(code="ND201", severity=severity, message="it is wrong", hint=hint)


@pytest.mark.parametrize(
    ("hints", "commands"),
    [
        (["start the container again"], []),
        ([f"{AGAIN} torch", f"{AGAIN} vllm torch"], [f"{AGAIN} torch vllm"]),
        (
            [f"2.14.1 runs here: {AGAIN} --index-url u torch; or: {AGAIN} torch"],
            [f"{AGAIN} torch"],
        ),
        (
            [
                f"remove both: {PIP} uninstall --yes a b && {PIP} install a",
                f"{PIP} install --only-binary x x torch==2.8.0, which keeps torch, or "
                f"{PIP} install torch==2.6.0",
            ],
            [f"{PIP} uninstall --yes a b", f"{PIP} install a torch==2.6.0"],
        ),
        ([f"{PIP} install torch==2.8.0", f"{PIP} install torch==2.6.0"],
         [f"{PIP} install torch==2.8.0"]),
        ([f"{AGAIN} torch", f"{PIP} install nvidia-nccl-cu12==2.27.3 triton==3.4.0"],
         [f"{AGAIN} torch"]),
        ([f"{PIP} install --no-deps triton==3.5.0", f"{PIP} install jax[cuda13]"],
         [f"{PIP} install 'jax[cuda13]'", f"{PIP} install --no-deps triton==3.5.0"]),
        (["conda install --prefix /env 'pytorch=*=cuda*'"],
         ["conda install --prefix /env 'pytorch=*=cuda*'"]),
        ([f"{PIP} install a --sm-arch 9.0", f"{PIP} install b --sm-arch 9.0"],
         [f"{PIP} install --sm-arch 9.0 a b"]),
    ],
)  # fmt: skip
def test_one_command_installs_what_all_findings_need(
    hints: list[str], commands: list[str]
) -> None:
    assert commands_of(map(finding, hints)) == commands


def test_a_note_is_left_to_the_user() -> None:
    assert commands_of([finding(f"{PIP} install onnxruntime-gpu", "note")]) == []
