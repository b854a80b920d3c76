"""Is there any trace of an NVIDIA driver? Asked before anything is loaded."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["SYSROOT", "find_traces"]

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
        system = os.path.join(environ.get("SystemRoot", r"C:\Windows"), "System32")
        paths = [os.path.join(system, name) for name in _WINDOWS_LIBRARIES]
        return [path for path in paths if os.path.exists(path)]
    if sys.platform == "darwin":
        return []
    root = environ.get(SYSROOT) or "/"
    devices = os.path.join(root, "dev")
    try:
        names = sorted(os.listdir(devices))
    except OSError:
        names = []
    found = [
        os.path.join(devices, name)
        for name in names
        if name.startswith(_DEVICE_PREFIXES)
    ]
    paths = [os.path.join(root, path) for path in _FILES]
    return found + [path for path in paths if os.path.exists(path)]
