"""Faults that users have reported: detection returns the facts and the reason of each.

The faults are those of `support.faults`, made by the fake libraries of tests/native.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.faults import FAULTS, Fault
from support.grids import some_of
from support.native import compile_libraries, environment, machine, needs_compiler
from support.shared import shared_folder

from nvidia_variant_provider.detection import detect
from nvidia_variant_provider.detection.probe import bindings_folder
from nvidia_variant_provider.errors import SelectionWarning
from nvidia_variant_provider.machine import reasons
from nvidia_variant_provider.machine.environment import Environment
from nvidia_variant_provider.plugin import NvidiaVariantPlugin
from nvp.cli import main

pytestmark = needs_compiler

HANG = 2.0
"""The deadline for hangs, in seconds. Other faults have more time, for busy
machines."""


@pytest.fixture(scope="session")
def libraries_without(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[tuple[str, ...]], Path]:
    def folder(without: tuple[str, ...]) -> Path:
        return shared_folder(
            tmp_path_factory,
            "-".join(["libraries-without", *without]),
            partial(compile_libraries, without=without),
        )

    return folder


@pytest.fixture
def variables(
    tmp_path: Path, libraries_without: Callable[[tuple[str, ...]], Path]
) -> Callable[[Fault], dict[str, str]]:
    """Return the variables of a machine with an NVIDIA device and a fault."""

    def call(fault: Fault) -> dict[str, str]:
        device = tmp_path / "root" / "dev" / "nvidia0"
        device.parent.mkdir(parents=True)
        device.touch()
        libraries = tmp_path / "libraries"
        libraries.mkdir()
        for library in libraries_without(fault.without).iterdir():
            if library.name in fault.absent:
                # The loader stops at this file, so it does not find a real driver.
                (libraries / library.name).touch()
            else:
                (libraries / library.name).symlink_to(library)
        scenario = fault.scenario.but(log=tmp_path / "log").write(tmp_path / "scenario")
        return {
            "NV_VARIANT_PROVIDER_SYSROOT": str(tmp_path / "root"),
            "NV_VARIANT_PROVIDER_DETECT_TIMEOUT": str(
                HANG if "timeout" in (fault.reason, *fault.gpus) else 60
            ),
            "NV_VARIANT_PROVIDER_NO_CACHE": "1",
            **environment(libraries, scenario),
            **fault.variables,
        }

    return call


def gpus(detected: Environment) -> tuple[str, ...]:
    return tuple(str(gpu.compute_capability or gpu.reason) for gpu in detected.gpus)


@pytest.mark.parametrize("name", FAULTS)
def test_fault_has_its_facts_and_reason(
    name: str, variables: Callable[[Fault], dict[str, str]], tmp_path: Path
) -> None:
    fault = FAULTS[name]
    start = time.monotonic()
    detected = detect(variables(fault))
    # The limit is not for speed: only the deadline ends a hang.
    assert time.monotonic() - start < 50
    cuda = detected.cuda_driver_version
    assert (str(cuda) if cuda else None, gpus(detected)) == (fault.cuda, fault.gpus)
    assert (detected.reason, detected.source) == (fault.reason, fault.source)
    log = tmp_path / "log"
    assert not log.exists() or "FATAL" not in log.read_text()


@pytest.mark.parametrize("name", some_of(((name,) for name in FAULTS), 7))
def test_fault_has_its_exit_code_and_next_step(
    name: str,
    variables: Callable[[Fault], dict[str, str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fault = FAULTS[name]
    for key, value in variables(fault).items():
        monkeypatch.setenv(key, value)
    assert main(["detect"]) == fault.code
    out, err = capsys.readouterr()
    assert err == ""
    if fault.reason is not None:
        sentence, step = reasons.explain(fault.reason)
        assert f"{fault.reason}: {sentence}\nNext: {step}\n" in out
    for gpu in fault.gpus:
        if "." not in gpu:
            assert reasons.explain(gpu)[0] in out


def test_every_reason_has_a_sentence_and_a_next_step() -> None:
    codes = {
        value
        for name, value in vars(reasons).items()
        if name.isupper() and isinstance(value, str)
    }
    used = {fault.reason for fault in FAULTS.values()}
    used |= {gpu for f in FAULTS.values() for gpu in f.gpus if "." not in gpu}
    assert used - {None} <= codes
    for code in codes:
        sentence, step = reasons.explain(code)
        assert sentence != f"reason {code}"  # the sentence of an unknown code
        assert step


def test_an_answer_that_is_empty_for_a_reason_warns(
    variables: Callable[[Fault], dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = FAULTS["library mismatch after an update"]
    for key, value in variables(fault).items():
        monkeypatch.setenv(key, value)
    with pytest.warns(SelectionWarning, match=r"^driver-mismatch: .* reboot"):
        assert NvidiaVariantPlugin.get_supported_configs() == []


class TestFiles:
    """Facts from the file system, in addition to those of the libraries."""

    @pytest.fixture(autouse=True)
    def place(self, variables: Callable[[Fault], dict[str, str]]) -> None:
        self.make = variables

    def variables(self, **changes: object) -> dict[str, str]:
        healthy = {"cuda": "12.9", "reason": None, "source": "nvml", "code": 0}
        return self.make(Fault(scenario=machine("9.0"), **{**healthy, **changes}))  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        "line",
        [
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu Feb 22\n",
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.14  "
            "Release Build  (dvs-builder@U16)  Thu Feb 22\n",
        ],
    )
    def test_kernel_driver_version(self, line: str) -> None:
        variables = self.variables()
        version = Path(variables["NV_VARIANT_PROVIDER_SYSROOT"], "proc/driver/nvidia")
        version.mkdir(parents=True)
        (version / "version").write_text(line + "GCC version:  gcc 12.2.0\n")
        assert detect(variables).kernel_driver_version == "550.54.14"

    def test_without_the_file_nvml_gives_the_kernel_driver_version(self) -> None:
        assert detect(self.variables()).kernel_driver_version == "575.57.08"

    def test_wsl_loads_the_libraries_of_its_own_folder(self, tmp_path: Path) -> None:
        variables = self.variables()
        root = Path(variables["NV_VARIANT_PROVIDER_SYSROOT"])
        (root / "dev" / "nvidia0").rename(root / "dev" / "dxg")
        (root / "usr/lib/wsl").mkdir(parents=True)
        (tmp_path / "libraries").rename(root / "usr/lib/wsl/lib")
        wrong = tmp_path / "wrong"
        wrong.mkdir()
        (wrong / "libnvidia-ml.so.1").touch()
        detected = detect({**variables, "LD_LIBRARY_PATH": str(wrong)})
        assert gpus(detected) == ("9.0",)

    def test_wsl_without_nvidia_libraries_has_no_nvidia_device(self) -> None:
        variables = self.variables(absent=("libnvidia-ml.so.1", "libcuda.so.1"))
        root = Path(variables["NV_VARIANT_PROVIDER_SYSROOT"])
        (root / "dev" / "nvidia0").rename(root / "dev" / "dxg")
        assert detect(variables).reason == "no-device"

    def test_stubs_are_never_loaded(self, tmp_path: Path) -> None:
        variables = self.variables()
        stubs = tmp_path / "cuda" / "lib64" / "stubs"
        stubs.mkdir(parents=True)
        for name in ("libnvidia-ml.so.1", "libcuda.so.1"):
            (stubs / name).touch()
        for sign in ":;":
            path = f"{stubs}{sign}{variables['LD_LIBRARY_PATH']}"
            assert gpus(detect({**variables, "LD_LIBRARY_PATH": path})) == ("9.0",)

    @pytest.mark.parametrize("path", [".", "", "./", "sub/.."])
    def test_libraries_of_the_working_folder_are_never_loaded(self, path: str) -> None:
        Path("sub").mkdir()
        for name in ("libnvidia-ml.so.1", "libcuda.so.1"):
            Path(name).touch()  # the loader would stop at this file
        variables = self.variables()
        for sign in ":;":
            joined = f"{path}{sign}{variables['LD_LIBRARY_PATH']}"
            assert gpus(detect({**variables, "LD_LIBRARY_PATH": joined})) == ("9.0",)

    @pytest.mark.parametrize("library", ["nvml", "libcuda"])
    def test_a_module_in_the_working_folder_is_not_loaded(self, library: str) -> None:
        for name in (
            *("pynvml", "json", "ctypes", "signal", "nvidia_variant_provider"),
            *("nvml", "libcuda", "documents", "light", "sitecustomize"),
        ):
            Path(f"{name}.py").write_text("raise SystemExit(7)")
        absent = () if library == "nvml" else ("libnvidia-ml.so.1",)
        variables = {
            **self.variables(absent=absent, source=library),
            "PYTHONPATH": os.getcwd(),
        }
        detected = detect(variables)
        assert (detected.source, gpus(detected)) == (library, ("9.0",))

    def test_bindings_in_the_working_folder_are_not_found(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        Path("pynvml.py").touch()
        (tmp_path / "link").symlink_to(os.getcwd())
        found = bindings_folder()
        here = ("", ".", "./", os.getcwd(), f"{os.getcwd()}/", str(tmp_path / "link"))
        others: tuple[Any, ...] = ("/nowhere", "\0", [], None, b"x")
        for folder in (*here, *others):
            monkeypatch.setattr(sys, "path", ["/nowhere", folder, *sys.path])
            assert bindings_folder() == found not in here


@pytest.mark.skipif(sys.platform != "linux", reason="needs prctl and /proc")
@pytest.mark.parametrize("call", ["nvmlInitWithFlags", "load"])
def test_a_child_that_ignores_signals_ends_with_its_parent(
    call: str, variables: Callable[[Fault], dict[str, str]]
) -> None:
    scenario = machine("9.0").but(nvml={f"behaviour.{call}": "hang"})
    given = variables(replace(FAULTS["healthy"], scenario=scenario))
    words = [sys.executable, "-m", "nvidia_variant_provider"]
    with subprocess.Popen(words, env={**os.environ, **given}) as parent:
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
        alarm, ignored = 1 << signal.SIGALRM - 1, 0
        end = time.monotonic() + 30
        while not ignored & alarm and time.monotonic() < end:
            for pid in children.read_text().split():
                status = Path(f"/proc/{pid}/status").read_text()
                ignored = int(status.partition("SigIgn:")[2].split()[0], 16)
        child = os.pidfd_open(int(pid))
        parent.kill()
    try:
        assert select.select([child], [], [], 10)[0]
    finally:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(child, signal.SIGKILL)
        os.close(child)


def test_nvml_gets_only_the_calls_that_are_needed(
    variables: Callable[[Fault], dict[str, str]], tmp_path: Path
) -> None:
    detect(variables(FAULTS["healthy"]))
    assert (tmp_path / "log").read_text().split("\n") == [
        "load nvml",
        "nvmlInitWithFlags",
        "nvmlSystemGetDriverVersion",
        "nvmlSystemGetCudaDriverVersion_v2",
        "nvmlDeviceGetCount_v2",
        "nvmlDeviceGetHandleByIndex_v2",
        "nvmlDeviceGetCudaComputeCapability",
        "nvmlDeviceGetName",
        "",
    ]
