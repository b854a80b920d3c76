"""Faults of drivers, as scenarios for the fake libraries.

Each row is a fault that users have reported, or that a native library may have at any
time. ``tests/provider/detection/test_faults.py`` checks the results, and
``benchmarks/detection.py`` prints the results and their times.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from support.native import CUDA_SONAME, NVML_SONAME, Scenario, machine

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["FAULTS", "Fault"]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A scenario and the expected result of ``detect``.

    :param without: entry points that the libraries lack.
    :param absent: libraries that are not installed at all.
    :param variables: environment variables in addition to those that the fakes need.
    :param cuda: the CUDA version of the driver, or ``None``.
    :param gpus: a compute capability or a reason code for each GPU.
    :param reason: the reason code of the whole result, or ``None``.
    :param source: the source of the result, such as ``nvml``, or ``None``.
    :param code: the exit code.
    """

    scenario: Scenario
    without: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    cuda: str | None
    gpus: tuple[str, ...] = ()
    reason: str | None
    source: str | None
    code: int


HEALTHY = machine("9.0")
TWO = machine("9.0", "9.0")
BOTH = (NVML_SONAME, CUDA_SONAME)
V2 = "nvmlSystemGetCudaDriverVersion_v2"
HANDLE = "nvmlDeviceGetHandleByIndex_v2"
CAPABILITY = "nvmlDeviceGetCudaComputeCapability"


def works(scenario: Scenario, source: str = "nvml", **changes: object) -> Fault:
    """Return a fault that does not prevent a complete result."""
    answer: dict[str, object] = {"cuda": "12.9", "gpus": ("9.0",), **changes}
    return Fault(scenario=scenario, reason=None, source=source, code=0, **answer)  # type: ignore[arg-type]


def fails(scenario: Scenario, reason: str, **changes: object) -> Fault:
    """Return a fault after which the CUDA version is unknown."""
    answer: dict[str, object] = {"cuda": None, "source": None, "code": 4, **changes}
    return Fault(scenario=scenario, reason=reason, **answer)  # type: ignore[arg-type]


def nvml(key: str, value: str | int, scenario: Scenario = HEALTHY) -> Scenario:
    """Return a scenario with one key of NVML changed."""
    return scenario.but(nvml={key: value})


def both(nvml_error: int, cuda_error: int) -> Scenario:
    """Return a scenario in which both libraries fail to initialize, with these
    codes."""
    return HEALTHY.but(
        nvml={"error.nvmlInitWithFlags": nvml_error},
        cuda={"error.cuInit": cuda_error},
    )


FAULTS: dict[str, Fault] = {
    # One of the two libraries is missing or does not work.
    "healthy": works(HEALTHY),
    "container without utility capability": works(
        HEALTHY, "libcuda", absent=(NVML_SONAME,)
    ),
    "device nodes, no library": fails(HEALTHY, "no-nvml", absent=BOTH),
    "container without compute capability": fails(
        nvml("libcuda", "missing"),
        "no-user-driver",
        absent=(CUDA_SONAME,),
        gpus=("9.0",),
        source="nvml",
    ),
    "Jetson: NVML says not supported": works(
        nvml("error.nvmlInitWithFlags", 3, machine("8.7")),
        "libcuda",
        gpus=("8.7",),
    ),
    "Jetson: capability not supported": works(
        nvml(f"device.*.error.{CAPABILITY}", 3, machine("11.0")),
        "libcuda",
        gpus=("11.0",),
    ),
    "masked by CUDA_VISIBLE_DEVICES": works(
        HEALTHY,
        "libcuda",
        absent=(NVML_SONAME,),
        variables={"CUDA_VISIBLE_DEVICES": ""},
    ),
    # The version is missing or wrong.
    "old NVML without the v2 query": works(HEALTHY, without=(V2,)),
    "the v1 query makes up a version": fails(
        HEALTHY.but(nvml={"libcuda": "missing", "known_cuda_version": 13000}),
        "no-user-driver",
        absent=(CUDA_SONAME,),
        gpus=("9.0",),
        source="nvml",
    ),
    "garbage CUDA version": fails(
        HEALTHY.but(both={"cuda_version": 999999999}),
        "unknown-error",
        gpus=("9.0",),
        source="nvml",
    ),
    "CUDA version 0": fails(
        HEALTHY.but(both={"cuda_version": 0}),
        "unknown-error",
        gpus=("9.0",),
        source="nvml",
    ),
    "NVML without its init": works(HEALTHY, "libcuda", without=("nvmlInitWithFlags",)),
    # The driver refuses.
    "library mismatch after an update": fails(both(18, 803), "driver-mismatch"),
    "kernel driver not loaded": fails(both(9, 100), "driver-not-loaded"),
    "unknown error after a daemon reload": fails(both(999, 999), "unknown-error"),
    "no permission": fails(both(4, 999), "no-permission"),
    "MPS server gone": fails(
        HEALTHY.but(cuda={"error.cuInit": 805}),
        "mps-unreachable",
        absent=(NVML_SONAME,),
    ),
    "MPS server gone, and NVML silent": fails(both(999, 805), "mps-unreachable"),
    "MPS server gone, and NVML knows the version": Fault(
        scenario=HEALTHY.but(
            nvml={f"device.*.error.{HANDLE}": 999}, cuda={"error.cuInit": 805}
        ),
        cuda="12.9",
        gpus=("mps-unreachable",),
        reason="mps-unreachable",
        source="nvml",
        code=4,
    ),
    "cuda-compat on a GPU that it does not support": fails(
        HEALTHY.but(cuda={"error.cuInit": 804}),
        "compat-not-supported",
        absent=(NVML_SONAME,),
    ),
    "fabric manager not started": fails(
        HEALTHY.but(cuda={"error.cuInit": 802}), "not-ready", absent=(NVML_SONAME,)
    ),
    "stub of libcuda": fails(
        HEALTHY.but(cuda={"error.cuInit": 34}), "no-nvml", absent=(NVML_SONAME,)
    ),
    # Some of the GPUs cannot be read.
    "driver without GPU": Fault(
        scenario=machine(), cuda="12.9", reason="no-gpu", source="nvml", code=0
    ),
    "one of two GPUs lost": works(
        nvml(f"device.1.error.{HANDLE}", 15, TWO), gpus=("9.0", "gpu-lost")
    ),
    "the only GPU lost": Fault(
        scenario=HEALTHY.but(
            nvml={f"device.0.error.{HANDLE}": 15}, cuda={"error.cuInit": 100}
        ),
        cuda="12.9",
        gpus=("gpu-lost",),
        reason="gpu-lost",
        source="nvml",
        code=4,
    ),
    "MIG: no permission for one GPU": works(
        nvml(f"device.0.error.{CAPABILITY}", 4, TWO), gpus=("no-permission", "9.0")
    ),
    "power cable missing": works(
        nvml(f"device.0.error.{HANDLE}", 8, TWO), gpus=("insufficient-power", "9.0")
    ),
    "GPU needs a reset": works(
        nvml(f"device.0.error.{HANDLE}", 16, TWO), gpus=("reset-required", "9.0")
    ),
    "garbage capability": works(
        nvml("device.0.capability", "250.7", TWO), gpus=("unknown-error", "9.0")
    ),
    "garbage GPU count": Fault(
        scenario=HEALTHY.but(both={"count": 4000000000}),
        cuda="12.9",
        reason="unknown-error",
        source="nvml",
        code=4,
    ),
    "64 GPUs": works(machine(*["9.0"] * 64), gpus=("9.0",) * 64),
    "name that is not UTF-8": works(HEALTHY.but(both={"device.0.name": b"\xff\xfe"})),
    "very long name": works(HEALTHY.but(both={"device.0.name": "x" * 5000})),
    # A library hangs, crashes or prints something.
    "NVML hangs when it starts": fails(
        nvml("behaviour.nvmlInitWithFlags", "sleep"), "timeout"
    ),
    "NVML hangs and ignores signals": fails(
        nvml("behaviour.nvmlInitWithFlags", "hang"), "timeout"
    ),
    "NVML hangs while it is loaded": fails(nvml("behaviour.load", "sleep"), "timeout"),
    "NVML hangs at the second GPU": Fault(
        scenario=nvml(f"device.1.behaviour.{HANDLE}", "sleep", TWO),
        cuda="12.9",
        gpus=("9.0", "timeout"),
        reason=None,
        source="nvml",
        code=0,
    ),
    "cuInit hangs": fails(
        HEALTHY.but(cuda={"behaviour.cuInit": "sleep"}),
        "timeout",
        absent=(NVML_SONAME,),
    ),
    "slow start": works(nvml("behaviour.nvmlInitWithFlags", "slow 300")),
    "NVML segfaults": works(nvml("behaviour.nvmlInitWithFlags", "segv"), "libcuda"),
    "NVML segfaults at the second GPU": Fault(
        scenario=nvml(f"device.1.behaviour.{HANDLE}", "segv", TWO),
        cuda="12.9",
        gpus=("9.0", "crashed"),
        reason=None,
        source="nvml",
        code=0,
    ),
    "NVML calls exit": works(nvml(f"behaviour.{V2}", "exit 0"), "libcuda"),
    "both libraries crash": fails(
        HEALTHY.but(
            nvml={"behaviour.nvmlInitWithFlags": "abort"},
            cuda={"behaviour.cuInit": "segv"},
        ),
        "crashed",
    ),
    "noise on stdout": works(
        nvml("behaviour.nvmlInitWithFlags", 'print {"cuda_driver_version": "1.0"}')
    ),
}
