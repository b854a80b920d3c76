"""The commands at the end of a diagnosis, which fix all of its findings."""

from __future__ import annotations

import shlex

import pytest

from nvp.doctor.commands import Advice, Command
from nvp.doctor.model import Finding, commands_of
from nvp.findings import Severity

PIP = "nvp pip --python /env"
AGAIN = f"{PIP} install --upgrade --force-reinstall"
TORCH = "--index-url https://example.org/cu126"


def command(text: str) -> Command:
    words = shlex.split(text)
    if words[:2] != ["nvp", "pip"]:
        return Command(tuple(words))
    machine = ("--sm-arch", "9.0") if text.endswith("--sm-arch 9.0") else ()
    last = len(words) - len(machine)
    return Command.of_pip(words[:4], *words[4:last], machine=machine)


def finding(hint: str, severity: Severity = "error") -> Finding:
    commands = tuple(map(command, hint.split(" && ")))
    assert " && ".join(map(str, commands)) == hint
    return Finding(
        code="ND201",
        severity=severity,
        message="it is wrong",
        hint=hint,
        commands=commands,
    )


@pytest.mark.parametrize(
    ("hints", "commands"),
    [
        ([f"{AGAIN} torch", f"{AGAIN} vllm torch"], [f"{AGAIN} torch vllm"]),
        ([f"{PIP} uninstall --yes a b && {PIP} install a", f"{PIP} install torch==2"],
         [f"{PIP} uninstall --yes a b", f"{PIP} install a torch==2"]),
        ([f"{PIP} install torch==2.8.0", f"{PIP} install torch==2.6.0"],
         [f"{PIP} install torch==2.8.0"]),
        ([f"{AGAIN} torch", f"{PIP} install nvidia-nccl-cu12==2.27.3 triton==3.4.0"],
         [f"{AGAIN} torch"]),
        ([f"{PIP} install --no-deps triton==3.5.0", f"{PIP} install 'jax[cuda13]'"],
         [f"{PIP} install 'jax[cuda13]'", f"{PIP} install --no-deps triton==3.5.0"]),
        (["conda install --prefix /env 'pytorch=*=cuda*'"],
         ["conda install --prefix /env 'pytorch=*=cuda*'"]),
        ([f"{PIP} install a --sm-arch 9.0", f"{PIP} install b --sm-arch 9.0"],
         [f"{PIP} install a b --sm-arch 9.0"]),
        ([f"{PIP} install 'a!=1'", f"{PIP} install 'a @ https://example.org/a.whl'"],
         [f"{PIP} install 'a!=1'"]),
        # The extras of a later command are kept.
        ([f"{AGAIN} 'a<2'", f"{PIP} install 'a[cuda]==1'", f"{PIP} install 'a[x]'"],
         [f"{AGAIN} 'a[cuda]<2'"]),
        # A command does not restore a project that another command replaces.
        ([f"{PIP} install --no-deps triton==3.3", f"{PIP} install triton==3.4"],
         [f"{PIP} install triton==3.4"]),
        # A project with its own index is not installed from another index.
        ([f"{PIP} install a", f"{PIP} install {TORCH} torch", f"{PIP} install torch b"],
         [f"{PIP} install {TORCH} torch", f"{PIP} install a b"]),
        ([f"{PIP} install nvidia-cuda-nvcc && export X=/env/ptxas", f"{PIP} install a"],
         [f"{PIP} install nvidia-cuda-nvcc a", "export X=/env/ptxas"]),
    ],
)  # fmt: skip
def test_one_command_installs_what_all_findings_need(
    hints: list[str], commands: list[str]
) -> None:
    assert commands_of(map(finding, hints)) == commands


def test_a_note_is_left_to_the_user() -> None:
    assert commands_of([finding(f"{PIP} install onnxruntime-gpu", "note")]) == []


def test_of_several_ways_one_is_to_be_run() -> None:
    ways = [command(f"{PIP} install {name}") for name in ("a", "b")]
    advice = Advice.first_of(Advice.of(ways[0]).after("do: "), *ways[1:]).before(".")
    assert advice.text == f"do: {ways[0]}; or {ways[1]}."
    assert advice.commands == (ways[0],)
