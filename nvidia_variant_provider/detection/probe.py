"""Asking the native libraries in child processes, with one deadline for all.

NVML is asked first, and libcuda where NVML knows no CUDA version or no compute
capability: Jetsons without NVML, containers without the capability "utility".
"""

from __future__ import annotations

import os
import sys
import time

from ..machine import reasons
from ..machine.environment import Environment
from ..machine.overrides import detection_timeout
from .presence import is_wsl_only, kernel_driver_version, library_path
from .quick_json import loads
from .spawn import run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["probe"]

_CHILD = os.path.join(
    os.path.dirname(os.path.abspath(__file__)), "child", "__main__.py"
)
_PENDING = "pending"
_SILENT = (reasons.NO_NVML, reasons.NO_BINDINGS, reasons.NOT_SUPPORTED)


def probe(environ: Mapping[str, str], traces: Sequence[str]) -> Environment:
    """What the native libraries say about this machine, or why they do not.

    :param traces: of `find_traces`, not empty.
    """
    end = time.monotonic() + detection_timeout(environ)
    variables = _variables(environ)
    nvml = _ask("nvml", variables, end)
    found = nvml
    if nvml.cuda_driver_version is None or not nvml.compute_capabilities:
        libcuda = _ask("libcuda", variables, end)
        found = _better(nvml, libcuda)
    if found.reason == reasons.NO_NVML and is_wsl_only(traces):
        # WSL shows its host's GPU of any make; without NVIDIA's libraries it is
        # none of NVIDIA's.
        found = found.replace(reason=reasons.NO_DEVICE)
    if found.reason is None and not found.compute_capabilities:
        # GPUs of which none can be read have the same cause, as a rule.
        reason = found.gpus[0].reason if found.gpus else reasons.NO_GPU
        found = found.replace(reason=reason)
    kernel = kernel_driver_version(environ) or nvml.kernel_driver_version
    known = found.cuda_driver_version is not None or found.gpus
    return found.replace(
        kernel_driver_version=kernel, source=found.source if known else None
    )


def _better(nvml: Environment, libcuda: Environment) -> Environment:
    """The answer to go by, where NVML's is not complete."""
    if libcuda.cuda_driver_version is None:
        # Where NVML is not there to say why, what libcuda says is more telling,
        # unless it is not there either.
        if nvml.reason in _SILENT and libcuda.reason != reasons.NO_USER_DRIVER:
            return nvml.replace(reason=libcuda.reason)
        return nvml
    # A version alone is nothing to go by when NVML says what is wrong: libcuda
    # knows its own also where no kernel driver is loaded.
    silent = nvml.reason in (*_SILENT, reasons.CRASHED)
    return libcuda if libcuda.compute_capabilities or silent else nvml


def _variables(environ: Mapping[str, str]) -> dict[str, str]:
    # A name that is empty or has a "=" can be inherited, but not passed on.
    variables = {k: v for k, v in environ.items() if k and "=" not in k}
    # The mask is for the program that runs now, not for what gets installed.
    variables.pop("CUDA_VISIBLE_DEVICES", None)
    # Indices as NVML counts.
    variables["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    path = library_path(environ)
    if path is not None:
        variables["LD_LIBRARY_PATH"] = path
    return variables


def _ask(library: str, variables: Mapping[str, str], end: float) -> Environment:
    """The last document of a child; a hang or a crash becomes its reason."""
    bindings = _bindings_folder()
    if library == "nvml" and bindings is None:
        return Environment(reason=reasons.NO_BINDINGS)
    left = end - time.monotonic()
    if left <= 0:
        return Environment(reason=reasons.TIMEOUT)
    if not sys.executable:
        return Environment(reason=reasons.PROBE_FAILED)
    command = [sys.executable, "-I", "-S", _CHILD, library, bindings or ""]
    try:
        output, in_time = run([*command, str(int(left) + 2)], variables, left)
    except (OSError, ValueError):
        return Environment(reason=reasons.PROBE_FAILED)
    # What follows the last line end is half a document.
    *lines, _ = output.decode("ascii", "replace").split("\n")
    ended = lines[-1:] == ["end"]
    if ended:
        lines.pop()
    broken = None if ended else reasons.CRASHED if in_time else reasons.TIMEOUT
    if in_time and lines[:1] != ["ready"]:
        return Environment(reason=reasons.PROBE_FAILED)
    if len(lines) < 2:
        return Environment(reason=broken or reasons.UNKNOWN_ERROR)
    try:
        found = Environment.from_dict(loads(lines[-1]))
    except ValueError:
        return Environment(reason=broken or reasons.UNKNOWN_ERROR)
    gpus = tuple(
        gpu.replace(reason=broken) if gpu.reason == _PENDING else gpu
        for gpu in found.gpus
    )
    found = found.replace(gpus=gpus)
    # With an answer, only the GPUs that are missing from it have a reason.
    if found.cuda_driver_version is not None and found.compute_capabilities:
        return found
    return found.replace(reason=found.reason or broken)


def _bindings_folder() -> str | None:
    """The folder of nvidia-ml-py, without importing it here."""
    from importlib.machinery import PathFinder

    # What lies in the working folder is not for this process.
    path = sys.path[1:] if sys.path[:1] in ([""], [_working_folder()]) else sys.path
    spec = PathFinder.find_spec("pynvml", path)
    if spec is None or spec.origin is None:
        return None
    folder = os.path.dirname(spec.origin)
    # Old releases of the distribution pynvml bring it as a package.
    return os.path.dirname(folder) if spec.submodule_search_locations else folder


def _working_folder() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return None
