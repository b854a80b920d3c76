"""NVML, through nvidia-ml-py. Runs in the child process only.

Only version, count, handle, name and capability are asked: other calls fail
under MIG or without permissions. A GPU that cannot be read is reported and
never hides the others. The codes are those of `reasons`.
"""

from __future__ import annotations

import pynvml
from answer import (  # type: ignore[import-not-found]  # beside the child's script
    UNKNOWN_ERROR,
    cuda_version,
    document,
    fill_gpus,
    set_capability,
    text,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

_REASONS = {
    pynvml.NVML_ERROR_NOT_SUPPORTED: "not-supported",
    pynvml.NVML_ERROR_NO_PERMISSION: "no-permission",
    pynvml.NVML_ERROR_INSUFFICIENT_POWER: "insufficient-power",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "driver-not-loaded",
    pynvml.NVML_ERROR_TIMEOUT: "timeout",
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "no-nvml",
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: "not-supported",
    pynvml.NVML_ERROR_GPU_IS_LOST: "gpu-lost",
    pynvml.NVML_ERROR_RESET_REQUIRED: "reset-required",
    pynvml.NVML_ERROR_OPERATING_SYSTEM: "no-permission",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "driver-mismatch",
}


def ask() -> Iterator[dict[str, Any]]:
    """What NVML says, as documents that are more complete each time."""
    answer: dict[str, Any] = document("nvml")
    try:
        # Initialising attaches to no GPU this way, so that a lost one is no error.
        pynvml.nvmlInitWithFlags(pynvml.NVML_INIT_FLAG_NO_GPUS)
    except pynvml.NVMLError as error:
        answer["reason"] = _reason(error)
        yield answer
        return
    answer["kernel_driver_version"] = _name(pynvml.nvmlSystemGetDriverVersion)
    try:
        answer["cuda_driver_version"] = cuda_version(_cuda_version())
        if answer["cuda_driver_version"] is None:
            answer["reason"] = UNKNOWN_ERROR
    except pynvml.NVMLError as error:
        # Here NVML itself is there: it is libcuda that it has not found.
        missing = error.value == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND
        answer["reason"] = "no-user-driver" if missing else _reason(error)
    yield answer
    try:
        count = pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError as error:
        answer["reason"] = answer["reason"] or _reason(error)
        yield answer
        return
    yield from fill_gpus(answer, count, _fill)


def _cuda_version() -> int:
    try:
        return int(pynvml.nvmlSystemGetCudaDriverVersion_v2())
    except pynvml.NVMLError as error:
        if error.value != pynvml.NVML_ERROR_FUNCTION_NOT_FOUND:
            # Version 1 makes up an answer where libcuda is missing (NVML's
            # documentation), so it is asked only where there is no version 2.
            raise
    return int(pynvml.nvmlSystemGetCudaDriverVersion())


def _fill(found: dict[str, Any]) -> None:
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(found["index"])
        numbers = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    except pynvml.NVMLError as error:
        found["reason"] = _reason(error)
        return
    set_capability(found, numbers)
    found["name"] = _name(pynvml.nvmlDeviceGetName, handle)


def _name(question: Callable[..., bytes | str], *arguments: object) -> str | None:
    """A text for people: nothing depends on it, so that no error counts."""
    try:
        return text(question(*arguments))  # type: ignore[no-any-return]
    except (pynvml.NVMLError, UnicodeDecodeError):
        return None


def _reason(error: pynvml.NVMLError) -> str:
    # Not str(error): for a code that it does not know it asks the library again.
    reason: str = _REASONS.get(error.value, UNKNOWN_ERROR)
    return reason
