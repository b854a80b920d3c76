"""Query NVML through nvidia-ml-py. This module runs in the child process only.

The module calls only the functions for versions, the number of GPUs, and the handle,
name and capability of a GPU. Other functions fail under MIG or without permissions.
A GPU that cannot be read is reported and never hides the others.
"""

from __future__ import annotations

import pynvml

from ...machine import reasons
from .documents import (
    empty_document,
    fill_gpus,
    format_cuda_version,
    set_capability,
    to_text,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

_REASONS = {
    pynvml.NVML_ERROR_NOT_SUPPORTED: reasons.NOT_SUPPORTED,
    pynvml.NVML_ERROR_NO_PERMISSION: reasons.NO_PERMISSION,
    pynvml.NVML_ERROR_INSUFFICIENT_POWER: reasons.INSUFFICIENT_POWER,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: reasons.DRIVER_NOT_LOADED,
    pynvml.NVML_ERROR_TIMEOUT: reasons.TIMEOUT,
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: reasons.NO_NVML,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: reasons.NOT_SUPPORTED,
    pynvml.NVML_ERROR_GPU_IS_LOST: reasons.GPU_LOST,
    pynvml.NVML_ERROR_RESET_REQUIRED: reasons.RESET_REQUIRED,
    # The operating system or a cgroup has blocked the request.
    pynvml.NVML_ERROR_OPERATING_SYSTEM: reasons.NO_PERMISSION,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: reasons.DRIVER_MISMATCH,
}


def ask() -> Iterator[dict[str, Any]]:
    """Query NVML; yield the same document again whenever it has new facts."""
    document = empty_document("nvml")
    try:
        # With this flag, NVML does not attach to the GPUs at start, so a lost GPU does
        # not make the start fail.
        pynvml.nvmlInitWithFlags(pynvml.NVML_INIT_FLAG_NO_GPUS)
    except pynvml.NVMLError as error:
        document["reason"] = _reason(error)
        yield document
        return
    document["kernel_driver_version"] = _name(pynvml.nvmlSystemGetDriverVersion)
    try:
        document["cuda_driver_version"] = format_cuda_version(_cuda_version())
        if document["cuda_driver_version"] is None:
            document["reason"] = reasons.UNKNOWN_ERROR
    except pynvml.NVMLError as error:
        # NVML itself is loaded, so this error means that NVML did not find libcuda.
        missing = error.value == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND
        document["reason"] = reasons.NO_USER_DRIVER if missing else _reason(error)
    yield document
    try:
        count = pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError as error:
        document["reason"] = document["reason"] or _reason(error)
        yield document
        return
    yield from fill_gpus(document, count, _ask_gpu)


def _cuda_version() -> int:
    try:
        return int(pynvml.nvmlSystemGetCudaDriverVersion_v2())
    except pynvml.NVMLError as error:
        if error.value != pynvml.NVML_ERROR_FUNCTION_NOT_FOUND:
            # Do not call version 1: without libcuda, it returns a version that NVML
            # supports (see NVML's documentation), not the version of this driver.
            raise
    return int(pynvml.nvmlSystemGetCudaDriverVersion())


def _ask_gpu(gpu: dict[str, Any]) -> None:
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(gpu["index"])
        numbers = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    except pynvml.NVMLError as error:
        gpu["reason"] = _reason(error)
        return
    set_capability(gpu, numbers)
    gpu["name"] = _name(pynvml.nvmlDeviceGetName, handle)


def _name(question: Callable[..., bytes | str], *arguments: object) -> str | None:
    """Return the text that an NVML function returns; ``None`` after an error."""
    try:
        return to_text(question(*arguments))
    except (pynvml.NVMLError, UnicodeDecodeError):
        return None


def _reason(error: pynvml.NVMLError) -> str:
    # Do not use str(error): for an unknown code it calls the library once more.
    return _REASONS.get(error.value, reasons.UNKNOWN_ERROR)
