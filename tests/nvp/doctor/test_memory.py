"""The GPU memory of a running program, by the fake NVML."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from support.native import Scenario, machine, needs_compiler
from support.native import environment as with_libraries
from support.processes import ends_soon
from support.stacks import machine as described
from support.stacks import make_stack

from nvidia_variant_provider.errors import InputError
from nvp.doctor.live import processes
from nvp.doctor.live.processes import Memory, watch_memory
from nvp.doctor.runner import diagnose, prove_live
from nvp.doctor.workloads import run_workloads

pytestmark = needs_compiler

MEBIBYTE = 1 << 20


def watched(scenario: Scenario, libraries: Path, tmp_path: Path) -> Memory:
    path = scenario.write(tmp_path / "scenario")
    with watch_memory(with_libraries(libraries, path), 60) as memory:
        pass
    return memory


def with_memory(**changes: str | int) -> Scenario:
    return machine("9.0", "9.0").but(
        nvml={
            "device.0.memory_used": 5 * MEBIBYTE,
            "device.1.memory_used": 7,
            **changes,
        }
    )


def test_the_peak_while_a_workload_runs(libraries: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    grows: Any = {"device.0.memory_growth": MEBIBYTE}
    scenario = with_memory(**grows).but(log=log).write(tmp_path / "scenario")
    # The workload ends after the fourth query to NVML.
    script = tmp_path / "workload.py"
    script.write_text(
        "import pathlib, time\n"
        f"log = pathlib.Path({str(log)!r})\n"
        "while log.read_text().count('nvmlDeviceGetMemoryInfo') < 8:\n"
        "    time.sleep(0.01)\n"
    )
    environ = {**os.environ, **with_libraries(libraries, scenario)}
    environment = described("12.9", "9.0", "9.0")
    stack = make_stack(tmp_path / "env", environment=environment, environ=environ)
    (record,) = run_workloads({f"{sys.executable} {script}": 60.0}, stack)
    assert record["outcome"] == "passed"
    assert record["gpu_memory_reason"] is None
    first, second = record["gpu_memory"]
    assert first["before"] == 5 * MEBIBYTE
    assert first["peak"] >= 7 * MEBIBYTE
    assert second == {"index": 1, "before": 7, "peak": 7}


def test_a_gpu_that_is_lost_hides_no_other(libraries: Path, tmp_path: Path) -> None:
    lost: Any = {"device.0.error.nvmlDeviceGetHandleByIndex_v2": 15}
    memory = watched(with_memory(**lost), libraries, tmp_path)
    assert memory.gpus == [{"index": 1, "before": 7, "peak": 7}]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("error.nvmlInitWithFlags", 9), "NVML returned the error 9"),
        (("error.nvmlDeviceGetMemoryInfo", 3), "NVML returned the error 3"),
        (("behaviour.nvmlInitWithFlags", "segv"), "NVML has crashed"),
        (("behaviour.nvmlInitWithFlags", "hang"), "NVML has not replied"),
    ],
)
def test_why_there_is_nothing(
    change: tuple[str, Any],
    reason: str,
    libraries: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if change[1] == "hang":
        monkeypatch.setattr(processes, "_START", 0.5)
    memory = watched(with_memory(**dict([change])), libraries, tmp_path)
    assert (memory.gpus, memory.reason) == (None, reason)


@pytest.mark.parametrize(
    ("line", "start"),
    [
        ("[" * 20_000, 0),
        ('{"gpus": [{"index": 1e999, "before": 0, "peak": 0}]}', 0),
        (f'{{"gpus": [{{"index": 0, "before": 0, "peak": {10**4000}}}]}}', 0),
        ('{"gpus": [{"index": -1, "before": 0, "peak": 0}]}', 0),
        ('{"error": "\\u001b[31m"}', 0),
        ("", 1 << 40),
    ],
)
def test_a_library_that_writes_for_nvml(
    line: str, start: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library of `LD_LIBRARY_PATH` can write to each file of its process."""
    program = f"import os; os.pwrite(1, {line!r}.encode() + b'\\n', {start})"
    monkeypatch.setattr(processes, "_PROGRAM", program)
    with watch_memory(os.environ, 60) as memory:
        pass
    assert (memory.gpus, memory.reason) == (None, "NVML's reply cannot be read")


def test_an_interrupt_while_the_child_starts(
    libraries: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, a child whose NVML hangs outlived the command."""
    pids: list[int] = []
    start = subprocess.Popen

    def start_slowly(*args: Any, **kwargs: Any) -> subprocess.Popen[bytes]:
        process = start(*args, **kwargs)
        pids.append(process.pid)
        signal.raise_signal(signal.SIGINT)
        return process

    monkeypatch.setattr(subprocess, "Popen", start_slowly)
    hangs: Any = {"behaviour.nvmlInitWithFlags": "hang"}
    with pytest.raises(KeyboardInterrupt):
        watched(with_memory(**hangs), libraries, tmp_path)
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


KILLED = """
import os, signal
from nvp.doctor.live import processes
processes._START = 0.5
with processes.watch_memory(os.environ, 60):
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        print(file.read(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and pidfd_open")
@pytest.mark.parametrize("calls", ["nvmlInitWithFlags", "nvmlDeviceGetMemoryInfo"])
def test_a_hanging_child_ends_with_its_parent(
    calls: str, libraries: Path, tmp_path: Path
) -> None:
    hangs: Any = {f"behaviour.{calls}": "hang"}
    path = with_memory(**hangs).write(tmp_path / "scenario")
    environ = {**os.environ, **with_libraries(libraries, path)}
    words = [sys.executable, "-c", KILLED]
    done = subprocess.run(
        words, env=environ, stdout=subprocess.PIPE, check=False, timeout=60
    )
    assert done.returncode == -signal.SIGKILL
    assert ends_soon(int(done.stdout))


def test_without_a_directory_for_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with watch_memory({}, 60) as memory:
        pass
    assert memory.gpus is None
    assert "cannot be started" in (memory.reason or "")
    diagnosis = diagnose(make_stack(tmp_path, environment=described("12.9", "9.0")))
    with pytest.raises(InputError, match="temporary files"):
        prove_live(diagnosis, 1)


def test_without_a_driver(tmp_path: Path) -> None:
    with watch_memory({"LD_LIBRARY_PATH": str(tmp_path)}, 60) as memory:
        pass
    assert memory.gpus is None
    assert memory.reason is not None
