"""ND601 to ND603: ``doctor --live`` with fakes for the driver's libraries."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from support.command import Outcome
from support.containers import library
from support.gpu_wheels import binary
from support.live import LiveMachine
from support.native import Scenario, machine, needs_compiler
from support.stacks import Installed

from nvp.doctor.live import processes
from nvp.doctor.live.proof import isa_versions

pytest.importorskip("cuda.bindings.driver")

pytestmark = needs_compiler

HANG = 3
"""The deadline for hangs, in seconds."""

ONE = machine("9.0", cuda_version=13050, ptx_isa="9.5")
TWO = machine("9.0", "9.0", cuda_version=13050, ptx_isa="9.5")
OLD = machine("9.0", cuda_version=12080, ptx_isa="8.7")

NATIVE = Installed(files={"demo/lib.so": binary("arch-specific.so")})


def findings(outcome: Outcome) -> list[dict[str, Any]]:
    return [dict(item) for item in outcome.data["checks"]]


def gpu(outcome: Outcome, index: int = 0) -> Any:
    return outcome.data["live"]["gpus"][index]


def test_a_healthy_gpu_is_proven(
    live: LiveMachine, report_schema: Draft202012Validator
) -> None:
    live.install(NATIVE)
    outcome = live.doctor(ONE, "--json")
    assert (outcome.code, findings(outcome)) == (0, [])
    report_schema.validate(json.loads(outcome.out))
    proof = gpu(outcome)
    assert proof["context"]["status"] == proof["machine_code"]["status"] == "passed"
    assert [item["version"] for item in proof["ptx"]] == list(isa_versions())
    assert {item["status"] for item in proof["ptx"]} == {"passed"}
    assert all(item["compiled"] <= item["seconds"] for item in proof["ptx"])
    (loaded,) = proof["libraries"]
    assert (loaded["distribution"], loaded["target"]) == ("demo", "90a")
    assert loaded["status"] == "passed"
    assert "cuLaunchKernel" in live.log
    text = live.doctor(ONE).out
    assert "machine code runs, PTX 6.0 to 9.5 runs (compiled in at most " in text
    assert "code of 1 of 1 libraries loads" in text
    assert "No check found anything wrong." in text


ERRORS: dict[str, tuple[str, Scenario, str]] = {
    "no memory": (
        "ND601",
        ONE.but(cuda={"error.cuDevicePrimaryCtxRetain": 2}),
        "no CUDA context can be made on GPU 0 (Fake GPU 0): CUDA_ERROR_OUT_OF_MEMORY "
        "(2)",
    ),
    "exclusive use": (
        "ND601",
        ONE.but(cuda={"error.cuDevicePrimaryCtxRetain": 46}),
        "CUDA_ERROR_DEVICE_UNAVAILABLE (46)",
    ),
    "an unknown error": (
        "ND601",
        ONE.but(cuda={"error.cuInit": 4242}),
        "no CUDA context can be made on GPU 0",
    ),
    "cuInit crashes": (
        "ND601",
        ONE.but(cuda={"behaviour.cuInit": "segv"}),
        "the process that ran it crashed",
    ),
    "the driver ends the process": (
        "ND601",
        ONE.but(cuda={"behaviour.cuInit": "exit 0"}),
        "the process that ran it crashed",
    ),
    "cuInit hangs": (
        "ND601",
        ONE.but(cuda={"behaviour.cuInit": "hang"}),
        f"it did not end within {HANG} seconds",
    ),
    "no compiler": (
        "ND603",
        ONE.but(cuda={"error.cuModuleLoadDataEx": 221}),
        "a kernel of PTX 6.0 to 9.5 does not run on GPU 0 (Fake GPU 0): "
        "CUDA_ERROR_JIT_COMPILER_NOT_FOUND (221)",
    ),
    "no linker": (
        "ND603",
        ONE.but(cuda={"error.cuLinkComplete": 999}),
        "machine code that the driver linked does not run on GPU 0",
    ),
    "the kernel hangs": (
        "ND603",
        ONE.but(cuda={"behaviour.cuLaunchKernel": "sleep"}),
        f"it did not end within {HANG} seconds",
    ),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if "kernel hangs" in name else [])
        for name in ERRORS
    ],
)
def test_what_the_driver_does_wrong_is_a_finding(live: LiveMachine, name: str) -> None:
    code, scenario, message = ERRORS[name]
    deadline = HANG if "hang" in name else 60
    outcome = live.doctor(scenario, "--json", "--live-timeout", deadline)
    (finding,) = findings(outcome)
    assert (finding["code"], finding["severity"]) == (code, "error")
    assert message in finding["message"]
    assert finding["hint"]
    assert outcome.code == 1
    text = live.doctor(scenario, "--live-timeout", deadline).out
    assert f"{code} error: {finding['message']}" in text


def test_noise_of_the_driver_is_not_read(live: LiveMachine) -> None:
    noise = {"behaviour.cuInit": 'print {"end": "context", "error": "noise"}'}
    outcome = live.doctor(ONE.but(cuda=noise), "--json")
    assert findings(outcome) == []
    assert gpu(outcome)["context"]["error"] is None


def test_a_wrong_result_is_a_finding_of_each_kernel(live: LiveMachine) -> None:
    outcome = live.doctor(ONE.but(cuda={"device.0.result": "wrong"}), "--json")
    messages = [item["message"] for item in findings(outcome)]
    assert messages == [
        "machine code that the driver linked does not run on GPU 0 (Fake GPU 0): "
        "wrong result",
        "a kernel of PTX 6.0 to 9.5 does not run on GPU 0 (Fake GPU 0): wrong result",
    ]


def test_ptx_that_the_driver_refuses_is_a_note(live: LiveMachine) -> None:
    outcome = live.doctor(OLD, "--json")
    (finding,) = findings(outcome)
    assert (finding["code"], finding["severity"]) == ("ND602", "note")
    assert "PTX 8.8 to 9.5" in finding["message"]
    assert "CUDA 12.9 to 13.5" in finding["message"]
    assert outcome.code == 0
    refused = [i["version"] for i in gpu(outcome)["ptx"] if i["status"] == "refused"]
    assert refused == ["8.8", "9.0", "9.1", "9.2", "9.3", "9.4", "9.5"]


def test_refused_ptx_is_an_error_where_a_build_has_nothing_else(
    live: LiveMachine,
) -> None:
    files = {"demo/lib.so": library("90_virtual", isa=(8, 8))}
    live.install(Installed(files=files))
    codes = [(i["code"], i["severity"]) for i in findings(live.doctor(OLD, "--json"))]
    assert codes == [("ND205", "error"), ("ND602", "error"), ("ND602", "note")]
    # A driver that compiles the PTX loads all code that the GPU needs.
    newer = OLD.but(both={"cuda_version": 12090}, cuda={"ptx_isa": "8.8"})
    codes = [(i["code"], i["severity"]) for i in findings(live.doctor(newer, "--json"))]
    assert codes == [("ND204", "warning"), ("ND602", "note")]


def test_code_of_a_library_that_does_not_load_is_a_finding(live: LiveMachine) -> None:
    live.install(NATIVE)
    broken = {"device.0.error.cuModuleLoadData": 209}
    outcome = live.doctor(ONE.but(cuda=broken), "--json")
    finding = findings(outcome)[-1]
    assert (finding["code"], finding["distribution"]) == ("ND603", "demo")
    assert finding["message"] == (
        "GPU 0 (Fake GPU 0) does not load the machine code for 90a of demo 1.0: "
        "CUDA_ERROR_NO_BINARY_FOR_GPU (209)"
    )
    assert Path(finding["path"]).name == "lib.so"


def test_a_crash_hides_nothing_of_the_other_trials(live: LiveMachine) -> None:
    live.install(NATIVE)
    # The driver crashes only on PTX.
    crash = {"device.0.behaviour.cuModuleLoadDataEx": "abort"}
    outcome = live.doctor(ONE.but(cuda=crash), "--json")
    proof = gpu(outcome)
    assert proof["machine_code"]["status"] == "passed"
    states = [item["status"] for item in proof["ptx"]]
    assert states[:8] == ["crashed"] * 8
    assert set(states[8:]) == {"skipped"}
    assert [item["status"] for item in proof["libraries"]] == ["passed"]
    (finding,) = findings(outcome)
    assert "a kernel of PTX 6.0 to 7.1 does not run" in finding["message"]


def test_a_gpu_that_is_lost_in_the_middle(live: LiveMachine) -> None:
    lost = TWO.but(cuda={"device.0.lost": live.folder / "lost"})
    outcome = live.doctor(lost, "--json")
    codes = [item["code"] for item in findings(outcome)]
    assert codes == ["ND601", "ND603"]
    contexts = [gpu(outcome, index)["context"]["status"] for index in (0, 1)]
    assert contexts == ["failed", "passed"]
    assert gpu(outcome)["machine_code"]["error"] == "CUDA_ERROR_LAUNCH_FAILED"
    assert {item["status"] for item in gpu(outcome)["ptx"]} == {"skipped"}


def test_fewer_gpus_than_the_driver_lists_are_a_warning(live: LiveMachine) -> None:
    outcome = live.doctor(TWO.but(cuda={"count": 1}), "--json")
    first, second = findings(outcome)
    assert (first["code"], first["severity"]) == ("ND601", "error")
    assert "GPU 1 (Fake GPU 1): CUDA_ERROR_INVALID_DEVICE (101)" in first["message"]
    assert (second["code"], second["severity"]) == ("ND601", "warning")
    assert "CUDA shows 1 GPU to programs, and the driver lists 2" in second["message"]


def test_a_driver_without_libcuda(live: LiveMachine) -> None:
    live.remove_driver()
    outcome = live.doctor(ONE, "--json")
    assert [item["code"] for item in findings(outcome)][-1] == "ND601"
    assert gpu(outcome)["context"]["status"] == "failed"


def test_libraries_without_code_for_the_gpu_are_skipped(live: LiveMachine) -> None:
    live.install(
        Installed(name="ptx", files={"ptx/a.so": binary("ptx-only.so")}),
        Installed(name="other", files={"other/a.so": library("70_real")}),
        Installed(name="broken", files={"broken/a.so": library("90_real")}),
    )
    reasons = {
        item["distribution"]: item["error"]
        for item in gpu(live.doctor(ONE, "--json"))["libraries"]
    }
    assert reasons["ptx"] == "it has only PTX for this GPU"
    assert reasons["other"] == "it has no code for this GPU"
    assert reasons["broken"]


def test_nothing_is_left_behind(
    live: LiveMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = live.folder / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    live.install(NATIVE)
    live.doctor(ONE)
    live.doctor(ONE.but(cuda={"behaviour.cuInit": "hang"}), "--live-timeout", HANG)
    assert list(folder.iterdir()) == []
    live.wait_for_processes()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_child_and_removes_its_files(
    live: LiveMachine, number: signal.Signals
) -> None:
    folder = live.folder / "temporary"
    folder.mkdir()
    ONE.but(cuda={"behaviour.cuInit": "hang"}, log=live.folder / "log").write(
        live.folder / "scenario"
    )
    live.install()
    command = [sys.executable, "-m", "nvp", "doctor", "--live"]
    process = subprocess.Popen(
        [*command, "--python", str(live.prefix)],
        env={**os.environ, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        while not (live.folder / "log").exists() or "cuInit" not in live.log:
            assert process.poll() is None
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (out, "Traceback" in err) == ("", False)
    assert process.returncode == 128 + number
    assert list(folder.iterdir()) == []
    live.wait_for_processes()


def test_without_a_gpu_there_is_one_line(live: LiveMachine) -> None:
    (live.folder / "root/dev/nvidia0").unlink()
    outcome = live.doctor(ONE)
    assert (outcome.code, outcome.out) == (4, "")
    assert outcome.err.startswith("error: --live needs a GPU: ")
    assert len(outcome.err.splitlines()) == 1


@pytest.mark.parametrize(
    "options",
    [("--cuda-driver", "12.9", "--sm-arch", "9.0"), ("--sm-arch", "9.0")],
)
def test_another_machine_cannot_be_proven(
    live: LiveMachine, options: tuple[str, ...]
) -> None:
    outcome = live.doctor(ONE, *options)
    assert (outcome.code, outcome.out) == (2, "")
    assert "--live runs code on the GPUs of this machine" in outcome.err


def test_a_forced_machine_cannot_be_proven(
    live: LiveMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NV_VARIANT_PROVIDER_FORCE_SM_ARCH", "9.0")
    assert live.doctor(ONE).code == 2


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "1e9", "x"])
def test_a_deadline_has_to_be_a_number_of_seconds(
    live: LiveMachine, seconds: str
) -> None:
    try:
        code = live.doctor(ONE, f"--live-timeout={seconds}").code
    except SystemExit as error:
        code = int(str(error.code))
    assert code == 2


def test_the_extra_is_named_where_it_is_missing(
    live: LiveMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "find_spec", lambda _: None)
    outcome = live.doctor(ONE)
    assert (outcome.code, outcome.out) == (2, "")
    assert "the extra live: cuda-python is not installed" in outcome.err
    assert len(outcome.err.splitlines()) == 1


@pytest.mark.parametrize(
    "code",
    [
        "print('garbage', flush=True)",
        'print(\'{"begin": "context"}\\n[1]\\n{}\\nnull\\n\' * 9, flush=True)',
        "print('[' * 100000, flush=True)",
        "import os; os.write(1, bytes(range(256)) * 64)",
        "import os\nwhile True: os.write(1, b'x' * 65536)",
    ],
)
def test_a_child_that_prints_garbage_is_a_crash(
    live: LiveMachine, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    monkeypatch.setattr(processes, "_BOOTSTRAP", code)
    outcome = live.doctor(ONE, "--json")
    (finding,) = findings(outcome)
    assert finding["code"] == "ND601"
    assert "crashed" in finding["message"]


def test_a_long_line_of_a_child_is_not_read() -> None:
    """A stranger's torch had a list of 2,000,000 targets in the report."""
    begun = b'{"begin": "arch_list"}'
    end = b'{"end": "arch_list", "arch_list": [%s]}'
    lines = [begun, end % b", ".join([b'"sm_90"'] * 1_000)]
    assert processes._parse(b"\n".join(lines), "crashed").ends == {}
    lines[1] = end % b", ".join([b'"sm_90"'] * 100)
    assert list(processes._parse(b"\n".join(lines), "crashed").ends) == ["arch_list"]


_LINES = st.sampled_from(
    [
        b'{"ready": "1"}',
        b'{"begin": "context"}',
        b'{"end": "context", "error": null}',
        b'{"begin": 3}',
        b'{"end": []}',
        b'{"done": true}',
        b'{"done": 1}',
        b"[]",
    ]
)


@given(lines=st.lists(_LINES | st.binary(max_size=20)))
def test_whatever_a_child_prints_is_read(lines: list[bytes]) -> None:
    report = processes._parse(b"\n".join(lines), "crashed")
    # Only the last line of a child shows that the child has finished.
    assert (report.stopped is None) == (
        b'{"done": true}' in b"\n".join(lines).split(b"\n")
    )
    assert set(report.ends) <= {"context"}
    assert report.unfinished in (None, "context")
