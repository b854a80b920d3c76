"""Detection: presence check, child process, deadline.

The native libraries are the compiled ones of tests/native, loaded by the real
nvidia-ml-py through the loader path.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
from support.native import Scenario, environment, machine, needs_compiler

from nvidia_variant_provider.detection import detect
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
    """The root of a machine with an NVIDIA driver."""
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvidiactl").touch()
    return tmp_path


class TestPresence:
    def test_nothing(self, tmp_path: Path) -> None:
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
    def test_traces(self, path: str, tmp_path: Path) -> None:
        trace = tmp_path / path
        trace.parent.mkdir(parents=True)
        trace.touch()
        assert find_traces({SYSROOT: str(tmp_path)}) == [str(trace)]

    def test_macos_has_none(
        self, sysroot: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # The real platform cannot be had here.
        monkeypatch.setattr(sys, "platform", "darwin")
        assert find_traces({SYSROOT: str(sysroot)}) == []

    def test_windows_looks_for_the_libraries(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # The real platform cannot be had here.
        monkeypatch.setattr(sys, "platform", "win32")
        (tmp_path / "System32").mkdir()
        assert find_traces({"SYSTEMROOT": str(tmp_path)}) == []
        library = tmp_path / "System32" / "nvcuda.dll"
        library.touch()
        assert find_traces({"SYSTEMROOT": str(tmp_path)}) == [str(library)]


def test_without_traces_no_process_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nvidia_variant_provider.detection.probe", None)
    found = detect(os.environ)
    assert (found.reason, found.cuda_driver_version, found.gpus) == (
        "no-device",
        None,
        (),
    )


def test_with_both_values_forced_nothing_is_asked(
    sysroot: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "nvidia_variant_provider.detection.probe", None)
    found = detect({CUDA: "12.9", SM: "9.0", SYSROOT: str(sysroot)})
    assert (found.source, found.reason) == ("forced", None)


@pytest.mark.parametrize("text", ["x", "0", "-1", "nan", "inf", "1e9"])
@linux
def test_malformed_deadline(text: str, sysroot: Path) -> None:
    with pytest.raises(OverrideError, match=TIMEOUT):
        detect({SYSROOT: str(sysroot), TIMEOUT: text})


@linux
@needs_compiler
class TestNvml:
    @pytest.fixture(autouse=True)
    def place(self, libraries: Path, sysroot: Path) -> None:
        self.libraries, self.sysroot = libraries, sysroot

    def variables(self, scenario: Scenario) -> dict[str, str]:
        path = scenario.write(self.sysroot / "scenario.txt")
        return {SYSROOT: str(self.sysroot), **environment(self.libraries, path)}

    def test_gpus(self) -> None:
        found = detect(self.variables(machine("7.5", "9.0", cuda_version=12080)))
        assert found.cuda_driver_version == CudaVersion(12, 8)
        assert found.kernel_driver_version == "575.57.08"
        assert (found.source, found.reason) == ("nvml", None)
        assert found.gpus == (
            Gpu(index=0, name="Fake GPU 0", compute_capability=ComputeCapability(7, 5)),
            Gpu(index=1, name="Fake GPU 1", compute_capability=ComputeCapability(9, 0)),
        )

    def test_one_value_forced(self) -> None:
        variables = self.variables(machine("7.5", cuda_version=12080))
        found = detect({**variables, CUDA: "13.0"})
        assert found.source == "forced+nvml"
        assert found.compute_capabilities == (ComputeCapability(7, 5),)
        found = detect({**variables, SM: "9.0"})
        assert found.source == "nvml+forced"
        assert found.cuda_driver_version == CudaVersion(12, 8)

    def test_driver_without_gpu(self) -> None:
        found = detect(self.variables(machine()))
        assert found.cuda_driver_version == CudaVersion(12, 9)
        assert (found.gpus, found.reason) == ((), "no-gpu")

    def test_a_lost_gpu_does_not_hide_the_others(self) -> None:
        error = {"device.1.error.nvmlDeviceGetHandleByIndex_v2": 15}
        found = detect(self.variables(machine("9.0", "9.0", "9.0").but(nvml=error)))
        assert [gpu.reason for gpu in found.gpus] == [None, "gpu-lost", None]
        assert found.reason is None

    def test_the_mask_of_the_running_program_does_not_count(self) -> None:
        variables = self.variables(machine("9.0"))
        assert detect({**variables, "CUDA_VISIBLE_DEVICES": ""}).reason is None

    def test_noise_on_stdout_does_not_corrupt_the_answer(self) -> None:
        noise = {"behaviour.nvmlInitWithFlags": 'print {"gpus": []}'}
        found = detect(self.variables(machine("9.0").but(nvml=noise)))
        assert len(found.gpus) == 1

    @pytest.mark.parametrize("behaviour", ["sleep", "hang"])
    def test_a_hang_ends_with_the_deadline(self, behaviour: str) -> None:
        hang = {"behaviour.nvmlInitWithFlags": behaviour}
        variables = self.variables(machine("9.0").but(nvml=hang))
        start = time.monotonic()
        found = detect({**variables, TIMEOUT: "0.5"})
        # Not a speed test: without the deadline this call never returns.
        assert time.monotonic() - start < 10
        assert (found.reason, found.source) == ("timeout", None)

    @pytest.mark.parametrize("behaviour", ["segv", "abort", "exit 0", "exit 3"])
    def test_a_crash_is_a_reason(self, behaviour: str) -> None:
        crash = {"behaviour.nvmlInitWithFlags": behaviour}
        fails = {"error.cuInit": 999}
        scenario = machine("9.0").but(nvml=crash, cuda=fails)
        assert detect(self.variables(scenario)).reason == "crashed"
