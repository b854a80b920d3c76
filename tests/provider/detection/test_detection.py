"""Detection: the search for traces, the child process and the deadline.

The tests compile the native libraries from ``tests/native``. The real nvidia-ml-py
loads them through ``LD_LIBRARY_PATH``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import pytest
from support.native import Scenario, machine, needs_compiler
from support.native import environment as with_libraries

from nvidia_variant_provider.detection import detect, probe
from nvidia_variant_provider.detection.presence import find_traces
from nvidia_variant_provider.errors import OverrideError
from nvidia_variant_provider.machine.environment import (
    ComputeCapability,
    CudaVersion,
    Gpu,
)

CUDA = "NV_VARIANT_PROVIDER_FORCE_CUDA_DRIVER_VERSION"
SM = "NV_VARIANT_PROVIDER_FORCE_SM_ARCH"
SYSROOT = "NV_VARIANT_PROVIDER_SYSROOT"
TIMEOUT = "NV_VARIANT_PROVIDER_DETECT_TIMEOUT"

linux = pytest.mark.skipif(sys.platform != "linux", reason="Linux device nodes")


@pytest.fixture
def sysroot(tmp_path: Path) -> Path:
    """Return the root directory of a machine with an NVIDIA driver."""
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvidiactl").touch()
    return tmp_path


class TestPresence:
    def test_a_machine_without_an_nvidia_driver_has_none(self, tmp_path: Path) -> None:
        (tmp_path / "dev").mkdir()
        (tmp_path / "dev" / "null").touch()
        assert find_traces({SYSROOT: str(tmp_path)}) == []
        assert find_traces({SYSROOT: str(tmp_path / "missing")}) == []

    @linux
    @pytest.mark.parametrize(
        "path",
        [
            "dev/nvidiactl",
            "dev/nvidia0",
            "dev/dxg",
            "dev/nvhost-ctrl-gpu",
            "dev/nvmap",
            "proc/driver/nvidia",
        ],
    )
    def test_each_trace_is_found(self, path: str, tmp_path: Path) -> None:
        trace = tmp_path / path
        trace.parent.mkdir(parents=True)
        trace.touch()
        assert find_traces({SYSROOT: str(tmp_path)}) == [str(trace)]

    def test_macos_has_no_traces(
        self, sysroot: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # The tests run on another system: pretend to be on this one.
        monkeypatch.setattr(sys, "platform", "darwin")
        assert find_traces({SYSROOT: str(sysroot)}) == []

    def test_windows_looks_for_the_libraries(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # The tests run on another system: pretend to be on this one.
        monkeypatch.setattr(sys, "platform", "win32")
        (tmp_path / "System32").mkdir()
        assert find_traces({"SYSTEMROOT": str(tmp_path)}) == []
        library = tmp_path / "System32" / "nvcuda.dll"
        library.touch()
        assert find_traces({"SYSTEMROOT": str(tmp_path)}) == [str(library)]


def test_without_traces_no_process_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nvidia_variant_provider.detection.probe", None)
    environment = detect(os.environ)
    assert (environment.reason, environment.cuda_driver_version, environment.gpus) == (
        "no-device",
        None,
        (),
    )


def test_with_both_values_forced_no_process_is_started(
    sysroot: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "nvidia_variant_provider.detection.probe", None)
    environment = detect({CUDA: "12.9", SM: "9.0", SYSROOT: str(sysroot)})
    assert (environment.source, environment.reason) == ("forced", None)


@pytest.mark.parametrize("text", ["x", "0", "-1", "nan", "inf", "1e9"])
@linux
def test_malformed_deadline_is_an_error(text: str, sysroot: Path) -> None:
    with pytest.raises(OverrideError, match=TIMEOUT):
        detect({SYSROOT: str(sysroot), TIMEOUT: text})


@linux
@needs_compiler
class TestLogging:
    """Detection logs if the process has imported `logging`, and never imports it."""

    def variables(self, libraries: Path, sysroot: Path) -> dict[str, str]:
        path = machine("9.0").write(sysroot / "scenario.txt")
        return {SYSROOT: str(sysroot), **with_libraries(libraries, path)}

    def test_log_says_what_was_asked_and_what_came_back(
        self, libraries: Path, sysroot: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level("DEBUG", "nvidia_variant_provider.detection"):
            detect(self.variables(libraries, sysroot))
        assert f"traces of an NVIDIA driver: {sysroot}/dev/nvidiactl" in caplog.text
        assert "querying nvml in a child process" in caplog.text
        assert "nvml: CUDA 12.9, 1 GPUs, reason none" in caplog.text
        assert "environment: CUDA 12.9, kernel driver 575.57.08" in caplog.text

    def test_log_names_the_file_of_a_kept_result(
        self,
        libraries: Path,
        sysroot: Path,
        tmp_path: Path,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        variables = self.variables(libraries, sysroot)
        variables["XDG_CACHE_HOME"] = str(tmp_path / "cache")
        detect(variables)
        with caplog.at_level("INFO", "nvidia_variant_provider.detection"):
            detect(variables)
        assert "using the cached result in" in caplog.text
        assert "child process" not in caplog.text

    def test_a_plugin_answer_does_not_import_logging(
        self, libraries: Path, sysroot: Path
    ) -> None:
        code = (
            "import sys; from nvidia_variant_provider.plugin import *\n"
            "assert NvidiaVariantPlugin.get_supported_configs()\n"
            "print('logging' in sys.modules)"
        )
        done = subprocess.run(
            [sys.executable, "-I", "-c", code],
            env=self.variables(libraries, sysroot),
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == "False\n"


@linux
@needs_compiler
class TestNvml:
    @pytest.fixture(autouse=True)
    def place(self, libraries: Path, sysroot: Path) -> None:
        self.libraries, self.sysroot = libraries, sysroot

    def variables(self, scenario: Scenario) -> dict[str, str]:
        path = scenario.write(self.sysroot / "scenario.txt")
        return {SYSROOT: str(self.sysroot), **with_libraries(self.libraries, path)}

    def test_every_fact_is_read(self) -> None:
        environment = detect(self.variables(machine("7.5", "9.0", cuda_version=12080)))
        assert environment.cuda_driver_version == CudaVersion(12, 8)
        assert environment.kernel_driver_version == "575.57.08"
        assert (environment.source, environment.reason) == ("nvml", None)
        assert environment.gpus == (
            Gpu(index=0, name="Fake GPU 0", compute_capability=ComputeCapability(7, 5)),
            Gpu(index=1, name="Fake GPU 1", compute_capability=ComputeCapability(9, 0)),
        )

    def test_one_forced_value_replaces_one_fact(self) -> None:
        variables = self.variables(machine("7.5", cuda_version=12080))
        environment = detect({**variables, CUDA: "13.0"})
        assert environment.source == "forced+nvml"
        assert environment.compute_capabilities == (ComputeCapability(7, 5),)
        environment = detect({**variables, SM: "9.0"})
        assert environment.source == "nvml+forced"
        assert environment.cuda_driver_version == CudaVersion(12, 8)

    def test_a_driver_without_a_gpu_has_a_reason(self) -> None:
        environment = detect(self.variables(machine()))
        assert environment.cuda_driver_version == CudaVersion(12, 9)
        assert (environment.gpus, environment.reason) == ((), "no-gpu")

    def test_a_lost_gpu_does_not_hide_the_others(self) -> None:
        error = {"device.1.error.nvmlDeviceGetHandleByIndex_v2": 15}
        environment = detect(
            self.variables(machine("9.0", "9.0", "9.0").but(nvml=error))
        )
        assert [gpu.reason for gpu in environment.gpus] == [None, "gpu-lost", None]
        assert environment.reason is None

    def test_cuda_visible_devices_is_ignored(self) -> None:
        variables = self.variables(machine("9.0"))
        assert detect({**variables, "CUDA_VISIBLE_DEVICES": ""}).reason is None

    def test_output_of_the_library_does_not_corrupt_the_documents(self) -> None:
        noise = {"behaviour.nvmlInitWithFlags": 'print {"gpus": []}'}
        environment = detect(self.variables(machine("9.0").but(nvml=noise)))
        assert len(environment.gpus) == 1

    @pytest.mark.parametrize("behaviour", ["sleep", "hang"])
    def test_a_hang_ends_with_the_deadline(self, behaviour: str) -> None:
        hang = {"behaviour.nvmlInitWithFlags": behaviour}
        variables = self.variables(machine("9.0").but(nvml=hang))
        start = time.monotonic()
        environment = detect({**variables, TIMEOUT: "0.5"})
        # The limit is not for speed: without the deadline the call would never return.
        assert time.monotonic() - start < 10
        assert (environment.reason, environment.source) == ("timeout", None)

    @pytest.mark.parametrize("behaviour", ["segv", "abort", "exit 0", "exit 3"])
    def test_a_crash_is_a_reason(self, behaviour: str) -> None:
        crash = {"behaviour.nvmlInitWithFlags": behaviour}
        fails = {"error.cuInit": 999}
        scenario = machine("9.0").but(nvml=crash, cuda=fails)
        assert detect(self.variables(scenario)).reason == "crashed"


@linux
@pytest.mark.parametrize(
    "text", [b"[],", b'{"a":0},', b"\n", b"[", b" ", b'"\\u0000",']
)
def test_a_library_that_writes_for_the_child(
    text: bytes, sysroot: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library of `LD_LIBRARY_PATH` can write to the pipe, at most 8 MiB."""
    output = b"ready\n[" + text * (8_000_000 // len(text)) + b"0]\nend\n"
    monkeypatch.setattr(probe, "run", lambda *_, **__: (output, True))
    tracemalloc.start()
    reason = detect({SYSROOT: str(sysroot), "HOME": ""}).reason
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert reason == "unknown-error"
    assert peak < 24 << 20


@linux
def test_1024_gpus_are_read(sysroot: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = '{{"index": {}, "name": "{}", "compute_capability": "9.0", "reason": null}}'
    gpus = ", ".join(gpu.format(index, "x" * 256) for index in range(1024))
    document = f'{{"cuda_driver_version": "12.9", "gpus": [{gpus}]}}'
    output = f"ready\n{document}\nend\n".encode()
    monkeypatch.setattr(probe, "run", lambda *_, **__: (output, True))
    assert len(detect({SYSROOT: str(sysroot), "HOME": ""}).gpus) == 1024
