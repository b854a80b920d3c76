"""Fake ``libnvidia-ml.so.1`` and ``libcuda.so.1``, for tests without a driver.

Both are compiled from the C files in ``tests/native``. They answer from the text file
that the environment variable ``NV_FAKE_SCENARIO`` names, read when the library is
loaded (or on the first call, if the variable is set only then)::

    # a comment; in values, \\xNN is a byte and \\\\ a backslash
    log = /absolute/path                  # each load and each call appends one line
    LIB.cuda_version = 12090              # LIB is nvml or cuda
    LIB.count = 2                         # -2147483648 .. 4294967295
    LIB.device.N.capability = 9.0         # N is an index, or * for every device
    LIB.device.N.name = NVIDIA H100
    cuda.device.N.result = wrong          # the last number of each kernel is wrong
    cuda.device.N.lost = /path            # the first launch fails and makes this file,
                                          # and then every call for the device fails
    cuda.ptx_isa = 8.8                    # the newest PTX that the driver compiles
    nvml.device.N.memory_used = 1000000   # in bytes, at the first call
    nvml.device.N.memory_growth = 4096    # more at each call
    nvml.driver_version = 575.57.08
    nvml.nvml_version = 12.575.57.08
    nvml.libcuda = present | missing
    nvml.known_cuda_version = 13000       # what the old query says without libcuda
    LIB.error.FUNCTION = 18               # the code that the call returns
    LIB.behaviour.FUNCTION = sleep | sleep SECONDS | slow MILLISECONDS | hang | segv
                           | abort | exit STATUS | print TEXT
    LIB.behaviour.load = ...              # the same, when the library is loaded
    LIB.device.N.error.FUNCTION, LIB.device.N.behaviour.FUNCTION   # for one device

(The comments at the ends of lines are for the reader; a file has comments on lines of
their own.) An unknown key, a key given twice, a malformed value, a missing file, and a
value that is asked for and not given, all abort the process with a message on stderr
and, where there is a log, a ``FATAL`` line in it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    Value = str | bytes | int | Path

NVML_SONAME = "libnvidia-ml.so.1"
CUDA_SONAME = "libcuda.so.1"
VARIABLE = "NV_FAKE_SCENARIO"

_DEVICE_FUNCTIONS: dict[str, tuple[str, ...]] = {
    "nvml": (
        "nvmlDeviceGetHandleByIndex_v2",
        "nvmlDeviceGetName",
        "nvmlDeviceGetCudaComputeCapability",
        "nvmlDeviceGetMemoryInfo",
    ),
    "cuda": (
        "cuDeviceGet",
        "cuDeviceGetAttribute",
        "cuDeviceGetName",
        "cuDevicePrimaryCtxRetain",
        "cuDevicePrimaryCtxRelease_v2",
        "cuCtxSetCurrent",
        "cuCtxSynchronize",
        "cuMemAlloc_v2",
        "cuMemFree_v2",
        "cuMemcpyDtoH_v2",
        "cuModuleLoadData",
        "cuModuleLoadDataEx",
        "cuModuleUnload",
        "cuModuleGetFunction",
        "cuLinkCreate_v2",
        "cuLinkAddData_v2",
        "cuLinkComplete",
        "cuLinkDestroy",
        "cuLaunchKernel",
    ),
}
FUNCTIONS: dict[str, tuple[str, ...]] = {
    "nvml": (
        "nvmlInitWithFlags",
        "nvmlInit_v2",
        "nvmlShutdown",
        "nvmlErrorString",
        "nvmlSystemGetDriverVersion",
        "nvmlSystemGetNVMLVersion",
        "nvmlSystemGetCudaDriverVersion",
        "nvmlSystemGetCudaDriverVersion_v2",
        "nvmlDeviceGetCount_v2",
        *_DEVICE_FUNCTIONS["nvml"],
    ),
    "cuda": (
        "cuInit",
        "cuDriverGetVersion",
        "cuDeviceGetCount",
        "cuGetErrorName",
        "cuGetProcAddress_v2",
        *_DEVICE_FUNCTIONS["cuda"],
    ),
}
_PLAIN_KEYS: dict[str, tuple[str, ...]] = {
    "nvml": (
        "driver_version",
        "nvml_version",
        "cuda_version",
        "known_cuda_version",
        "libcuda",
        "count",
    ),
    "cuda": ("cuda_version", "count", "ptx_isa"),
}


def cc_available() -> bool:
    """Return whether this machine can compile and load the fake libraries."""
    return sys.platform == "linux" and shutil.which("cc") is not None


needs_compiler = pytest.mark.skipif(
    # CI requires a compiler, because skipped tests would hide that nothing was tested.
    not cc_available() and "CI" not in os.environ,
    reason="needs Linux and the C compiler cc (Debian package gcc)",
)


def compile_libraries(folder: Path, *, without: Collection[str] = ()) -> None:
    """Compile both libraries into ``folder``.

    :param without: entry points to leave out of the libraries.
    """
    unknown = set(without).difference(*FUNCTIONS.values())
    if unknown:
        raise ValueError(f"no such entry points: {sorted(unknown)}")
    sources = Path(__file__).resolve().parents[1] / "native"
    for soname, files in (
        (NVML_SONAME, ("fake_nvml.c",)),
        (CUDA_SONAME, ("fake_cuda.c", "fake_modules.c")),
    ):
        subprocess.run(
            [
                *("cc", "-std=c11", "-O1", "-Wall", "-Wextra", "-Werror"),
                *("-shared", "-fPIC", f"-Wl,-soname,{soname}"),
                *(f"-DWITHOUT_{function}" for function in without),
                *("-o", str(folder / soname)),
                *(str(sources / name) for name in (*files, "scenario.c")),
                "-ldl",
            ],
            check=True,
        )


def environment(folder: Path, scenario: Path) -> dict[str, str]:
    """Return the variables with which a process loads the fake libraries."""
    return {"LD_LIBRARY_PATH": str(folder), VARIABLE: str(scenario)}


@dataclass(frozen=True)
class Scenario:
    """A scenario file; the keys of ``nvml`` and ``cuda`` are without that prefix."""

    nvml: Mapping[str, Value] = field(default_factory=dict)
    cuda: Mapping[str, Value] = field(default_factory=dict)
    log: Path | None = None

    def but(
        self,
        *,
        both: Mapping[str, Value | None] | None = None,
        nvml: Mapping[str, Value | None] | None = None,
        cuda: Mapping[str, Value | None] | None = None,
        log: Path | None = None,
    ) -> Scenario:
        """Return the scenario with some keys changed, or removed by ``None``."""
        return replace(
            self,
            nvml=_merged(self.nvml, both, nvml),
            cuda=_merged(self.cuda, both, cuda),
            log=log or self.log,
        )

    def text(self) -> str:
        """Return the text of the file.

        :raises ValueError: a key does not exist.
        """
        lines = [] if self.log is None else [f"log = {_escaped(self.log)}"]
        for library, values in (("nvml", self.nvml), ("cuda", self.cuda)):
            for key, value in values.items():
                if not _is_key(library, key):
                    raise ValueError(f"no such key: {library}.{key}")
                lines.append(f"{library}.{key} = {_escaped(value)}")
        return "".join(f"{line}\n" for line in lines)

    def write(self, path: Path) -> Path:
        """Write the file, and return its path."""
        path.write_text(self.text(), encoding="ascii")
        return path


def machine(
    *capabilities: str,
    cuda_version: int = 12090,
    driver_version: str = "575.57.08",
    ptx_isa: str = "8.8",
    log: Path | None = None,
) -> Scenario:
    """Return a healthy machine, with a GPU for each compute capability."""
    both: dict[str, Value] = {"cuda_version": cuda_version, "count": len(capabilities)}
    for index, capability in enumerate(capabilities):
        both[f"device.{index}.capability"] = capability
        both[f"device.{index}.name"] = f"Fake GPU {index}"
    nvml: dict[str, Value] = {
        "driver_version": driver_version,
        "nvml_version": f"{cuda_version // 1000}.{driver_version}",
    }
    return Scenario(nvml={**nvml, **both}, cuda={**both, "ptx_isa": ptx_isa}, log=log)


def _merged(*layers: Mapping[str, Value | None] | None) -> dict[str, Value]:
    merged = {key: value for layer in layers for key, value in (layer or {}).items()}
    return {key: value for key, value in merged.items() if value is not None}


def _is_key(library: str, key: str) -> bool:
    plain, functions = _PLAIN_KEYS[library], (*FUNCTIONS[library], "load")
    about_device = re.fullmatch(r"device\.(?:\*|0|[1-9][0-9]{0,8})\.(.+)", key)
    if about_device is not None:
        key = about_device[1]
        names = {
            "nvml": ("memory_used", "memory_growth"),
            "cuda": ("result", "lost"),
        }[library]
        plain, functions = ("capability", "name", *names), _DEVICE_FUNCTIONS[library]
    kind, dot, function = key.partition(".")
    if not dot:
        return key in plain
    silent = kind == "error" and function in ("nvmlErrorString", "load")
    return kind in ("error", "behaviour") and function in functions and not silent


def _escaped(value: Value) -> str:
    raw = (
        value
        if isinstance(value, bytes)
        else str(value).encode(errors="surrogateescape")
    )
    if b"\0" in raw:
        raise ValueError("a value cannot hold a NUL")
    last = len(raw) - 1
    return "".join(
        f"\\x{byte:02x}"
        if not 32 <= byte < 127 or byte == 0x5C or (byte == 32 and at in (0, last))
        else chr(byte)
        for at, byte in enumerate(raw)
    )
