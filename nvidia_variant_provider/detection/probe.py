"""Query the native libraries in child processes, which share one deadline.

NVML comes first. libcuda follows if NVML returns no CUDA version or no compute
capability, as on Jetsons without NVML and in containers without the driver
capability ``utility``.
"""

from __future__ import annotations

import os
import sys
import time

from ..light import Logger, loads
from ..machine import reasons
from ..machine.environment import Environment, detection_timeout
from .presence import child_variables, is_wsl_only, kernel_driver_version
from .spawn import run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_logger = Logger(__name__)

BOOTSTRAP = """\
import sys
sys.path += sys.argv[3:]
from nvidia_variant_provider.detection.child.main import main
main(sys.argv[1], int(sys.argv[2]))
"""
"""The program of the child process.

Its arguments are the library, the deadline in seconds, and the directories of this
package and of nvidia-ml-py. In isolated mode (``-I -S``), only the standard library is
on the path, without the current directory and ``PYTHONPATH``. The directories are added
at the end, so their files cannot replace a standard module.
"""

PARENT_OF_PACKAGE = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))
_LONGEST = 512 * 1024
"""The maximum length of a document, in bytes: 1,024 GPUs have up to 400 kB."""

_PENDING = "pending"
_PRECISE = (
    reasons.COMPAT_NOT_SUPPORTED,
    reasons.DRIVER_MISMATCH,
    reasons.MPS_UNREACHABLE,
    reasons.NOT_READY,
)
_SILENT = (reasons.NO_NVML, reasons.NO_BINDINGS, reasons.NOT_SUPPORTED)
"""Reason codes of NVML queries that return no facts about the machine."""


def probe(environ: Mapping[str, str], traces: Sequence[str]) -> Environment:
    """Return the facts from the native libraries, or the reason for their absence.

    :param traces: the paths from `find_traces`, at least one.
    """
    end = time.monotonic() + detection_timeout(environ)
    variables = child_variables(environ)
    nvml = _ask("nvml", variables, end)
    environment = nvml
    if nvml.cuda_driver_version is None or not nvml.compute_capabilities:
        environment = _better(nvml, _ask("libcuda", variables, end))
    if environment.reason == reasons.NO_NVML and is_wsl_only(traces):
        # WSL's device stands for a GPU of any vendor. Without NVIDIA's libraries, the
        # GPU is not from NVIDIA.
        environment = environment.replace(reason=reasons.NO_DEVICE)
    if environment.reason is None and not environment.compute_capabilities:
        # If no GPU can be read, the GPUs usually have the same reason: use the first.
        gpus = environment.gpus
        environment = environment.replace(
            reason=gpus[0].reason if gpus else reasons.NO_GPU
        )
    kernel = kernel_driver_version(environ) or nvml.kernel_driver_version
    has_facts = environment.cuda_driver_version is not None or environment.gpus
    return environment.replace(
        kernel_driver_version=kernel, source=environment.source if has_facts else None
    )


def _better(nvml: Environment, libcuda: Environment) -> Environment:
    """Return the more useful of two results; the result of NVML is incomplete."""
    if libcuda.cuda_driver_version is None:
        # If NVML has no useful reason, use libcuda's reason, unless libcuda is missing.
        if nvml.reason in _SILENT and libcuda.reason != reasons.NO_USER_DRIVER:
            return nvml.replace(reason=libcuda.reason)
        # libcuda distinguishes causes for which NVML has only one code, such as a
        # missing MPS server.
        said = {nvml.reason, *(gpu.reason for gpu in nvml.gpus)} - {None}
        if said == {reasons.UNKNOWN_ERROR} and libcuda.reason in _PRECISE:
            gpus = tuple(gpu.replace(reason=libcuda.reason) for gpu in nvml.gpus)
            return nvml.replace(reason=libcuda.reason, gpus=gpus)
        return nvml
    # libcuda returns a version even if no kernel driver is loaded, so a reason from
    # NVML takes precedence over a version without a GPU.
    silent = nvml.reason in (*_SILENT, reasons.CRASHED)
    return libcuda if libcuda.compute_capabilities or silent else nvml


def _ask(library: str, variables: Mapping[str, str], end: float) -> Environment:
    """Return the facts from a child process, or a reason code for a hang or a crash."""
    environment = _run_child(library, variables, end)
    _logger.info(
        "%s: CUDA %s, %d GPUs, reason %s",
        library,
        environment.cuda_driver_version or "none",
        len(environment.gpus),
        environment.reason or "none",
    )
    return environment


def _run_child(library: str, variables: Mapping[str, str], end: float) -> Environment:
    folders = [PARENT_OF_PACKAGE]
    if library == "nvml":
        bindings = bindings_folder()
        if bindings is None:
            return Environment(reason=reasons.NO_BINDINGS)
        folders.append(bindings)
    left = end - time.monotonic()
    if left <= 0:
        return Environment(reason=reasons.TIMEOUT)
    # In a program of PyInstaller and similar tools, the executable is that program.
    if not sys.executable or getattr(sys, "frozen", False):
        return Environment(reason=reasons.PROBE_FAILED)
    seconds = str(int(left) + 2)
    # -B: do not write bytecode into the installed packages.
    options = ["-I", "-S", "-B", "-c", BOOTSTRAP]
    command = [sys.executable, *options, library, seconds, *folders]
    _logger.debug("querying %s in a child process, for at most %.1f s", library, left)
    try:
        output, in_time = run(command, variables, left, last=b"end\n")
    except (OSError, ValueError) as error:
        _logger.info("the child process cannot be started: %s", error)
        return Environment(reason=reasons.PROBE_FAILED)
    return _read_output(output, in_time=in_time)


def _read_output(output: bytes, *, in_time: bool) -> Environment:
    """Return the last complete document in the output of `child.main`."""
    # Drop the text after the last line end: an unfinished line. The other lines are
    # not split: a driver can write millions of them.
    lines = output[: max(0, output.rfind(b"\n"))]
    ended = lines.endswith(b"\nend")
    if ended:
        lines = lines[:-4]
    broken = None if ended else reasons.CRASHED if in_time else reasons.TIMEOUT
    if in_time and lines[:6] not in (b"ready", b"ready\n"):
        return Environment(reason=reasons.PROBE_FAILED)
    start = lines.rfind(b"\n") + 1
    if not start or len(lines) - start > _LONGEST:
        return Environment(reason=broken or reasons.UNKNOWN_ERROR)
    try:
        environment = Environment.from_dict(
            loads(lines[start:].decode("ascii", "replace"))
        )
    except ValueError:
        return Environment(reason=broken or reasons.UNKNOWN_ERROR)
    gpus = tuple(
        gpu.replace(reason=broken) if gpu.reason == _PENDING else gpu
        for gpu in environment.gpus
    )
    environment = environment.replace(gpus=gpus)
    # If the version and a GPU are known, a hang or a crash concerns only other GPUs:
    # their entries contain the reason.
    if environment.cuda_driver_version is not None and environment.compute_capabilities:
        return environment
    return environment.replace(reason=environment.reason or broken)


def bindings_folder() -> str | None:
    """Return the directory of nvidia-ml-py, without importing nvidia-ml-py here."""
    from importlib.machinery import PathFinder

    path = [folder for folder in sys.path if _may_have_bindings(folder)]
    spec = PathFinder.find_spec("pynvml", path)
    if spec is None or spec.origin is None:
        return None
    folder = os.path.dirname(spec.origin)
    # In old releases of the distribution pynvml, pynvml is a package, not a module.
    return os.path.dirname(folder) if spec.submodule_search_locations else folder


def _may_have_bindings(folder: object) -> bool:
    """Return whether to search an entry of ``sys.path``, such as a directory.

    The current directory is skipped, however it is written: its files are not meant for
    this process, unless this package itself comes from there.
    """
    if not isinstance(folder, str):  # Python ignores such an entry
        return False
    try:
        return folder == PARENT_OF_PACKAGE or not os.path.samefile(folder or ".", ".")
    except OSError:  # a part of a zip file, or the name of an import hook
        return True
    except ValueError:  # a NUL byte, for which Python's search would fail
        return False
