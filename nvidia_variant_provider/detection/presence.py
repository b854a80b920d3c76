"""What the file system tells of an NVIDIA driver, before anything is loaded."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "SYSROOT",
    "find_traces",
    "is_wsl_only",
    "kernel_driver_version",
    "library_path",
]

SYSROOT = "NV_VARIANT_PROVIDER_SYSROOT"
"""Tests look for traces below this folder instead of the root."""

# Desktop drivers make /dev/nvidia*, Tegra's make /dev/nvhost*, nvmap and nvgpu;
# WSL shows every GPU of its host through /dev/dxg.
_DEVICE_PREFIXES = ("nvidia", "nvhost", "nvmap", "nvgpu")
_FILES = ("dev/dxg", "proc/driver/nvidia")
_WINDOWS_LIBRARIES = ("nvml.dll", "nvcuda.dll")


def find_traces(environ: Mapping[str, str]) -> list[str]:
    """Paths that hint at an NVIDIA driver; empty where nothing is there.

    On Linux device nodes and ``/proc/driver/nvidia``, on Windows the driver's
    libraries in System32. macOS has had no NVIDIA driver since 10.13: always
    empty there.
    """
    if sys.platform == "win32":
        system = os.path.join(environ.get("SYSTEMROOT", r"C:\Windows"), "System32")
        paths = [os.path.join(system, name) for name in _WINDOWS_LIBRARIES]
        return [path for path in paths if os.path.exists(path)]
    if sys.platform == "darwin":
        return []
    root = _root(environ)
    devices = os.path.join(root, "dev")
    try:
        names = sorted(os.listdir(devices))
    except (FileNotFoundError, NotADirectoryError):
        names = []
    except OSError:
        # Something is there that cannot be looked at: the libraries may know.
        return [devices]
    found = [
        os.path.join(devices, name)
        for name in names
        if name.startswith(_DEVICE_PREFIXES)
    ]
    paths = [os.path.join(root, path) for path in _FILES]
    return found + [path for path in paths if os.path.exists(path)]


def is_wsl_only(traces: Sequence[str]) -> bool:
    """Is WSL's device, which GPUs of every make have, the only trace?"""
    return all(os.path.basename(path) == "dxg" for path in traces)


def kernel_driver_version(environ: Mapping[str, str]) -> str | None:
    """The version of the loaded kernel driver, as ``575.57.08``; Linux only."""
    path = os.path.join(_root(environ), "proc/driver/nvidia/version")
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            line = file.readline(1000)
    except OSError:
        return None
    # NVRM version: NVIDIA UNIX x86_64 Kernel Module  575.57.08  Sat May 24 ...
    # NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release ...
    for word in line.split():
        if word.count(".") in (1, 2) and word.replace(".", "").isdigit():
            return word
    return None


def library_path(environ: Mapping[str, str]) -> str | None:
    """The ``LD_LIBRARY_PATH`` to load the driver's libraries with; ``None``: unset.

    Under WSL its own folder comes first: others hold a driver for a kernel that
    is not there. Folders of stubs, which toolkits bring for linking, are left
    out: their libcuda is none.
    """
    given = environ.get("LD_LIBRARY_PATH")
    folders = [item for item in (given or "").split(":") if item]
    kept = [item for item in folders if "stubs" not in item.split("/")]
    root = _root(environ)
    if os.path.exists(os.path.join(root, "dev/dxg")):
        kept.insert(0, os.path.join(root, "usr/lib/wsl/lib"))
    return ":".join(kept) if kept or given is not None else None


def _root(environ: Mapping[str, str]) -> str:
    return environ.get(SYSROOT) or "/"
