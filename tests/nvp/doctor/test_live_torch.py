"""ND603 for torch: its child process, with a fake of torch."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from support.containers import library
from support.grids import some_of
from support.live import LiveMachine, torch_build
from support.native import machine, needs_compiler
from support.stacks import Installed

pytest.importorskip("cuda.bindings.driver")

pytestmark = needs_compiler

HANG = 5
"""The deadline for hangs, in seconds."""

ONE = machine("9.0", cuda_version=13050, ptx_isa="9.5")


def torch() -> Installed:
    return torch_build({"torch/lib/libtorch_cuda.so": library("90_real")})


def test_torch_runs_on_each_gpu(
    live: LiveMachine, report_schema: Draft202012Validator
) -> None:
    live.install(torch())
    outcome = live.doctor(ONE, "--json")
    assert (outcome.code, outcome.data["checks"]) == (0, [])
    report_schema.validate(json.loads(outcome.out))
    told = outcome.data["live"]["torch"]
    assert (told["version"], told["cuda"]) == ("2.9.0+cu128", "12.8")
    assert told["arch_list"] == ["sm_90", "sm_120"]
    assert told["available"] is True
    steps = [(item["name"], item["status"]) for item in told["steps"]]
    names = ("import", "arch_list", "available", "matmul 0", "matmul 1", "compile")
    assert steps == [(name, "passed") for name in names]
    text = live.doctor(ONE).out
    assert "Live, torch: import in " in text
    assert "matrix product right on 2 of 2 GPUs, built for sm_90 sm_120" in text


FAILURES = {
    "raises": "import torch failed: ImportError: libcudart.so.13: cannot open shared "
    "object file",
    "exits": "import torch failed: SystemExit: 3",
    "crashes": "import torch failed: the process that ran it crashed",
    "hangs": f"import torch failed: it did not end within {HANG} seconds",
    "no kernel": "a matrix product on the GPU failed: RuntimeError: CUDA error: no "
    "kernel image",
    "wrong": "a matrix product on the GPU failed: ArithmeticError: wrong result",
    "no compiler": "torch.compile failed: RuntimeError: Failed to find C compiler",
    "unavailable": "says that there is no GPU: RuntimeError: The NVIDIA driver on your "
    "system is too old",
}


@pytest.mark.parametrize("mode", FAILURES)
def test_what_torch_does_wrong_is_a_finding(
    live: LiveMachine, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setenv("TORCH_MODE", mode)
    live.install(torch())
    deadline = HANG if mode == "hangs" else 60
    outcome = live.doctor(ONE, "--json", "--live-timeout", deadline)
    checks = outcome.data["checks"]
    assert {item["code"] for item in checks} == {"ND603"}
    assert {item["distribution"] for item in checks} == {"torch"}
    assert FAILURES[mode] in checks[0]["message"]
    assert "\n" not in checks[0]["message"]
    assert checks[0]["hint"]
    assert outcome.code == 1


def test_a_mask_is_named_where_torch_sees_no_gpu(
    live: LiveMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_MODE", "unavailable")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    live.install(torch())
    finding, hidden = live.doctor(ONE, "--json").data["checks"]
    assert hidden["code"] == "ND105"
    assert "with CUDA_VISIBLE_DEVICES='-1'" in finding["message"]
    assert finding["hint"] == "unset CUDA_VISIBLE_DEVICES"


def test_a_build_of_torch_for_cpus_is_not_reported_twice(
    live: LiveMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_MODE", "cpu")
    live.install(torch())
    outcome = live.doctor(ONE, "--json")
    assert "ND603" not in [item["code"] for item in outcome.data["checks"]]
    assert outcome.data["live"]["torch"]["available"] is False


def test_noise_of_torch_is_not_read(
    live: LiveMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_MODE", "prints")
    live.install(torch())
    assert live.doctor(ONE, "--json").data["checks"] == []


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["starts", "starts a daemon"])
def test_programs_that_torch_has_started_are_ended(
    mode: str, live: LiveMachine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TORCH_MODE", mode)
    monkeypatch.setenv("TORCH_CHILD", str(tmp_path / "child"))
    live.install(torch())
    live.doctor(ONE, "--live-timeout", HANG)
    assert int((tmp_path / "child").read_text()) > 0
    live.wait_for_processes()


@pytest.mark.slow
def test_an_interpreter_that_prints_without_end(live: LiveMachine) -> None:
    live.install(torch())
    python = live.prefix / "bin/python"
    python.unlink()
    python.write_text("#!/bin/sh\nwhile :; do echo garbage; done\n")
    os.chmod(python, 0o755)
    outcome = live.doctor(ONE, "--json", "--live-timeout", HANG)
    (finding,) = outcome.data["checks"]
    assert "import torch failed" in finding["message"]
    live.wait_for_processes()


@pytest.mark.parametrize(
    "end",
    some_of(
        (
            (case,)
            for case in (
                {"version": {}, "cuda": [1], "seconds": "x"},
                {"seconds": float("nan"), "error": None},
                {"seconds": 10**400, "error": {"a": 1}, "code": "x"},
                {"seconds": True, "error": "\x1b[31m\n" + "x" * 1000, "code": 1.5},
                {"version": "\ud800", "cuda": "12.8"},
            )
        ),
        3,
    ),
)
def test_an_interpreter_whose_report_has_values_of_wrong_types(
    live: LiveMachine,
    report_schema: Draft202012Validator,
    tmp_path: Path,
    end: dict[str, object],
) -> None:
    lines = []
    for name in ("", "other", "import", "arch_list", "available", "matmul x"):
        line = {"arch_list": [1, {}], "available": "no", **end, "end": name}
        lines += [json.dumps({"begin": name}), json.dumps(line)]
    lines += ["{}", json.dumps({"done": True})]
    (tmp_path / "lines").write_text("\n".join(lines) + "\n")
    live.install(torch())
    python = live.prefix / "bin/python"
    python.unlink()
    python.write_text(f"#!/bin/sh\nexec /bin/cat {tmp_path / 'lines'}\n")
    os.chmod(python, 0o755)
    outcome = live.doctor(ONE, "--json")
    assert outcome.code in (0, 1)
    report = json.loads(outcome.out)
    report_schema.validate(report)
    assert "NaN" not in outcome.out
    assert all(len(item["message"]) < 700 for item in report["data"]["checks"])
    assert "Live, torch: " in live.doctor(ONE).out


def test_the_folder_of_the_program_is_not_imported_from(
    live: LiveMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The directory has modules such as `model`, and a program may have the same names.
    monkeypatch.setenv("TORCH_MODE", "")
    build = torch()
    code = build.files["torch/__init__.py"] + b"\nimport model\n"
    files = {**build.files, "torch/__init__.py": code, "model.py": b"ours = False\n"}
    live.install(Installed(name="torch", version=build.version, files=files))
    assert live.doctor(ONE, "--json").data["checks"] == []


def test_torch_without_an_interpreter_is_not_run(live: LiveMachine) -> None:
    live.install(torch())
    (live.prefix / "bin/python").unlink()
    assert live.doctor(ONE, "--json").data["live"]["torch"] is None
