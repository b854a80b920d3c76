"""Find traces of an NVIDIA driver, and its variables, without loading anything."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SYSROOT = "NV_VARIANT_PROVIDER_SYSROOT"
"""The environment variable for another root directory; tests set it."""

# Desktop drivers create /dev/nvidia*, Tegra drivers /dev/nvhost*, nvmap and nvgpu.
# WSL shows every GPU of its host, of any vendor, through /dev/dxg.
_DEVICE_PREFIXES = ("nvidia", "nvhost", "nvmap", "nvgpu")
_FILES = ("dev/dxg", "proc/driver/nvidia")
_WINDOWS_LIBRARIES = ("nvml.dll", "nvcuda.dll")

_NEEDED = ("SYSTEMROOT", "WINDIR", "PROGRAMFILES")
_OF_THE_DRIVER = ("CUDA_", "NV_", "NVIDIA_", "NVML_")
"""The prefixes of variables that NVIDIA's libraries read, such as
``CUDA_MPS_PIPE_DIRECTORY``."""

_OF_TOOLS = ("CUDA_COREDUMP", "CUDA_ENABLE_", "CUDA_INJECTION", "CUDA_LOG_FILE")
"""The prefixes of variables with which these libraries load tools and write files."""

_SECRET = ("TOKEN", "SECRET", "PASS", "PWD", "KEY", "CREDENTIAL", "AUTH")
"""Parts of names of variables that no library needs, such as ``NVIDIA_API_KEY``."""


def find_traces(environ: Mapping[str, str]) -> list[str]:
    """Return the paths that hint at an NVIDIA driver, or an empty list.

    On Linux these are device nodes and ``/proc/driver/nvidia``, on Windows the
    driver's libraries in System32. On macOS the list is always empty: macOS 10.13
    was the last version with an NVIDIA driver.
    """
    if sys.platform == "win32":
        system = os.path.join(environ.get("SYSTEMROOT", r"C:\Windows"), "System32")
        paths = [os.path.join(system, name) for name in _WINDOWS_LIBRARIES]
        return [path for path in paths if os.path.exists(path)]
    if sys.platform == "darwin":
        return []
    root = system_root(environ)
    devices = os.path.join(root, "dev")
    try:
        names = sorted(os.listdir(devices))
    except (FileNotFoundError, NotADirectoryError):
        names = []
    except OSError:
        # Treat an unreadable directory as a trace, so the libraries are queried.
        return [devices]
    nodes = [
        os.path.join(devices, name)
        for name in names
        if name.startswith(_DEVICE_PREFIXES)
    ]
    files = [os.path.join(root, path) for path in _FILES]
    return nodes + [path for path in files if os.path.exists(path)]


def is_wsl_only(traces: Sequence[str]) -> bool:
    """Return whether the only trace is WSL's device, which GPUs of any vendor share."""
    return all(os.path.basename(path) == "dxg" for path in traces)


def kernel_driver_version(environ: Mapping[str, str]) -> str | None:
    """Return the version of the loaded kernel driver, such as ``575.57.08``.

    The file with the version exists only on Linux; elsewhere the result is ``None``.
    """
    path = os.path.join(system_root(environ), "proc/driver/nvidia/version")
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            line = file.readline(1000)
    except OSError:
        return None
    # The line has one of two forms:
    # NVRM version: NVIDIA UNIX x86_64 Kernel Module  575.57.08  Sat May 24 ...
    # NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release ...
    for word in line.split():
        if word.count(".") in (1, 2) and word.replace(".", "").isdigit():
            return word
    return None


def library_path(environ: Mapping[str, str]) -> str | None:
    """Return the ``LD_LIBRARY_PATH`` for the driver's libraries, ``None`` if unset.

    Under WSL, the directory of WSL's libraries comes first: any other libcuda needs a
    Linux kernel driver, which WSL does not have. Directories named ``stubs`` are left
    out, because the libcuda that toolkits put there is for linking and cannot run.
    Relative directories are left out too: they depend on the current directory, whose
    files may be a stranger's, and the result is cached for other directories.
    """
    given = environ.get("LD_LIBRARY_PATH")
    # The loader splits at semicolons too.
    folders = filter(os.path.isabs, (given or "").replace(";", ":").split(":"))
    kept = [item for item in folders if "stubs" not in item.split("/")]
    root = system_root(environ)
    if os.path.exists(os.path.join(root, "dev/dxg")):
        kept.insert(0, os.path.join(root, "usr/lib/wsl/lib"))
    return ":".join(kept) if kept or given is not None else None


def child_variables(
    environ: Mapping[str, str], *, complete: bool = False
) -> dict[str, str]:
    """Return the environment variables of a child that queries the driver.

    NVIDIA's libraries may read these variables, or Windows needs them to load a
    library. All other variables, such as an installer's passwords, are removed.

    :param complete: pass all variables, for a child that the user requested.
    """
    # A process can inherit a variable whose name is empty or contains "=", but cannot
    # pass such a variable to a child.
    variables = {
        name: value
        for name in tuple(environ)
        if (value := environ.get(name)) is not None  # a thread may remove it
        and name
        and "=" not in name
        and (complete or name in _NEEDED or name.startswith(_OF_THE_DRIVER))
        and (complete or not name.startswith(("NV_VARIANT_PROVIDER_", *_OF_TOOLS)))
        and (complete or not may_be_secret(name))
    }
    # This variable hides GPUs from one process, but other processes use the build too.
    variables.pop("CUDA_VISIBLE_DEVICES", None)
    # Number the GPUs as NVML does.
    variables["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    path = library_path(environ)
    if path is not None:
        variables["LD_LIBRARY_PATH"] = path
    return variables


def may_be_secret(name: str) -> bool:
    """Return whether the name of a variable looks like that of a secret."""
    return any(part in name.upper() for part in _SECRET)


def system_root(environ: Mapping[str, str]) -> str:
    """Return the root directory of the system, which is ``/`` except in tests."""
    return environ.get(SYSROOT) or "/"
