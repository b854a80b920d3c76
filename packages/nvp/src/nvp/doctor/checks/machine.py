"""ND1xx: whether the driver of this machine can be used, and programs see its GPUs."""

from __future__ import annotations

import os
from collections.abc import Iterator

from nvidia_variant_provider.machine import reasons
from nvidia_variant_provider.machine.environment import is_failure

from ..loader import LIBRARY_PATH, split_library_path
from ..model import Finding, Stack, check

_MASK = "CUDA_VISIBLE_DEVICES"
_SANDBOXES = {"SNAP": ("Snap", "snap"), "FLATPAK_ID": ("Flatpak", "flatpak")}
"""The variable that each sandbox sets, and its name."""

_CAPABILITIES = "NVIDIA_DRIVER_CAPABILITIES"
_NEEDED = ("compute", "utility")
_LACKS = {reasons.NO_USER_DRIVER: "compute", reasons.NO_NVML: "utility"}
_CONTAINER_FILES = (".dockerenv", "run/.containerenv")

_DRIVER = "libcuda.so.1"
_SMALLEST_DRIVER = 1024 * 1024
"""The stub of a toolkit has some 60 kB, and a driver's library has 20 MB and more."""

_CONSUMER = ("GeForce", "TITAN")
"""CUDA Compatibility: "The forward compatible upgrade is supported on data center GPUs
and on select NGC-Ready RTX boards"."""


@check("ND101", "error")
def find_unreadable_driver(stack: Stack) -> Iterator[Finding]:
    """A driver is there that could not be asked."""
    environment = stack.environment
    codes = [(environment.reason, "")]
    codes += [(gpu.reason, f"GPU {gpu.index}: ") for gpu in environment.gpus]
    for code, subject in codes:
        if is_failure(code):
            sentence, step = reasons.explain(code)
            message = f"{subject}{sentence} ({code})"
            yield Finding.of(code="ND101", message=message, hint=step)


@check("ND102", "error")
def find_missing_capabilities(stack: Stack) -> Iterator[Finding]:
    """A container without the capability compute or utility."""
    if not stack.is_here or not _is_container(stack):
        return
    given = stack.environ.get(_CAPABILITIES, "")
    names = {name.strip() for name in given.split(",") if name.strip()}
    lacking: list[str] = []
    if names and "all" not in names:
        lacking = [name for name in _NEEDED if name not in names]
    lacking = lacking or [
        name for reason, name in _LACKS.items() if stack.environment.reason == reason
    ]
    if lacking:
        wanted = ",".join(sorted({*names, *_NEEDED}))
        yield Finding.of(
            code="ND102",
            message="this container lacks the capability "
            f"{' and '.join(lacking)} of the NVIDIA driver",
            hint=f"start it with -e {_CAPABILITIES}={wanted}",
        )


@check("ND103", "error")
def find_stub_driver(stack: Stack) -> Iterator[Finding]:
    """A stub of libcuda stands where programs find it."""
    path = _first_driver(stack)
    if path is None:
        return
    real = os.path.realpath(path)
    if "stubs" in real.split(os.sep) or os.path.getsize(real) < _SMALLEST_DRIVER:
        yield Finding.of(
            code="ND103",
            path=path,
            message=f"programs find the stub {real} instead of the driver's libcuda: "
            "it serves for linking and cannot run anything",
            hint="remove its folder from LD_LIBRARY_PATH, or remove the file",
        )


@check("ND104", "error")
def find_compatibility_libraries(stack: Stack) -> Iterator[Finding]:
    """Libraries of cuda-compat that a GPU does not support."""
    environment = stack.environment
    path = _first_driver(stack)
    is_compat = path is not None and "compat" in os.path.realpath(path).split(os.sep)
    refused = environment.reason == reasons.COMPAT_NOT_SUPPORTED
    names = [gpu.name or "" for gpu in environment.gpus]
    consumer = [name for name in names if any(word in name for word in _CONSUMER)]
    if not refused and not (is_compat and consumer):
        return
    gpu = f"a {consumer[0]}" if consumer else "this GPU"
    yield Finding.of(
        code="ND104",
        path=path if is_compat else None,
        message=f"programs find the libraries of cuda-compat, and {gpu} does not "
        "support them: they are for data-centre GPUs",
        hint="remove the compat folder from LD_LIBRARY_PATH, and install a driver that "
        "is new enough",
    )


def _is_container(stack: Stack) -> bool:
    if stack.environ.get("NVIDIA_VISIBLE_DEVICES") or stack.environ.get("container"):
        return True
    return any(os.path.exists(os.path.join(stack.root, f)) for f in _CONTAINER_FILES)


def _first_driver(stack: Stack) -> str | None:
    """Return the libcuda that a program of this machine loads, if there is one."""
    if not stack.is_here:
        return None
    library_path = split_library_path(stack.environ.get(LIBRARY_PATH, ""))
    return stack.libraries.system.find(_DRIVER, library_path)


@check("ND105", "warning")
def find_hidden_gpus(stack: Stack) -> Iterator[Finding]:
    """The GPUs or the driver are hidden from programs."""
    if not stack.is_here:
        return
    mask = stack.environ.get(_MASK)
    # CUDA C++ Programming Guide: only devices before the first invalid index are seen.
    if mask is not None and stack.environment.gpus and mask.strip() in ("", "-1"):
        yield Finding.of(
            code="ND105",
            message=f"{_MASK}={mask} hides all GPUs of this machine from programs",
            hint=f"unset {_MASK}, or name the GPUs, such as {_MASK}=0",
        )
    for variable, (name, folder) in _SANDBOXES.items():
        python = os.path.realpath(stack.installation.python or "")
        if not (stack.environ.get(variable) and f"/{folder}/" in python):
            continue
        yield Finding.of(
            code="ND105",
            path=python,
            message=f"this Python is inside a {name}, which sees the libraries of the "
            "driver only where the package was given them",
            hint="use a Python outside of it, such as that of the system or of uv",
        )


@check("ND106", "error")
def find_linux_driver_in_wsl(stack: Stack) -> Iterator[Finding]:
    """A driver for Linux is installed inside WSL."""
    if not os.path.exists(os.path.join(stack.root, "dev/dxg")):
        return
    path = _first_driver(stack)
    # CUDA on WSL User Guide: "users must not install any NVIDIA GPU Linux driver
    # within WSL 2".
    if path is not None and "wsl" not in os.path.realpath(path).split(os.sep):
        yield Finding.of(
            code="ND106",
            path=path,
            message=f"programs find {path}, a driver for Linux, and WSL has that of "
            "Windows in /usr/lib/wsl/lib",
            hint="remove the driver's packages inside WSL, such as with apt purge "
            "'libnvidia-compute-*', and keep the driver of Windows",
        )
