"""NVML, through nvidia-ml-py. Runs in the child process only.

Only version, count, handle, name and capability are asked: other calls fail
under MIG or without permissions. A GPU that cannot be read is reported and
never hides the others.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pynvml

# Codes are those of reasons.py, which this script cannot import.
_REASONS = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "no-nvml",
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: "not-supported",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "driver-not-loaded",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "driver-mismatch",
    pynvml.NVML_ERROR_NO_PERMISSION: "no-permission",
    pynvml.NVML_ERROR_GPU_IS_LOST: "gpu-lost",
    pynvml.NVML_ERROR_NOT_SUPPORTED: "not-supported",
    pynvml.NVML_ERROR_TIMEOUT: "timeout",
}


def query() -> dict[str, Any]:
    """The document of the child.

    Keys: ``cuda_driver_version`` (the driver's integer, or null),
    ``kernel_driver_version``, ``reason`` and ``gpus`` (``index``, ``name``,
    ``compute_capability`` as two integers, ``reason``).
    """
    answer: dict[str, Any] = {
        "cuda_driver_version": None,
        "kernel_driver_version": None,
        "reason": None,
        "gpus": [],
    }
    try:
        # Without GPUs attached, initialisation still succeeds with this flag.
        pynvml.nvmlInitWithFlags(pynvml.NVML_INIT_FLAG_NO_GPUS)
    except pynvml.NVMLError as error:
        answer["reason"] = _reason(error)
        return answer
    # The CUDA version decides; this one, and a GPU's name, are for people.
    with suppress(pynvml.NVMLError):
        answer["kernel_driver_version"] = _text(pynvml.nvmlSystemGetDriverVersion())
    try:
        answer["cuda_driver_version"] = _cuda_version()
    except pynvml.NVMLError as error:
        missing = error.value == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND
        answer["reason"] = "no-user-driver" if missing else _reason(error)
    try:
        count = pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError as error:
        answer["reason"] = answer["reason"] or _reason(error)
        count = 0
    answer["gpus"] = [_gpu(index) for index in range(count)]
    return answer


def _cuda_version() -> int:
    try:
        return int(pynvml.nvmlSystemGetCudaDriverVersion_v2())
    except pynvml.NVMLError as error:
        if error.value != pynvml.NVML_ERROR_FUNCTION_NOT_FOUND:
            # Version 1 makes up an answer where libcuda is missing (NVML's
            # documentation), so it is asked only where there is no version 2.
            raise
    return int(pynvml.nvmlSystemGetCudaDriverVersion())


def _gpu(index: int) -> dict[str, Any]:
    gpu: dict[str, Any] = {
        "index": index,
        "name": None,
        "compute_capability": None,
        "reason": None,
    }
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        gpu["compute_capability"] = list(
            pynvml.nvmlDeviceGetCudaComputeCapability(handle)
        )
    except pynvml.NVMLError as error:
        gpu["reason"] = _reason(error)
        return gpu
    with suppress(pynvml.NVMLError):
        gpu["name"] = _text(pynvml.nvmlDeviceGetName(handle))
    return gpu


def _reason(error: pynvml.NVMLError) -> str:
    return _REASONS.get(error.value, "unknown-error")


def _text(value: bytes | str) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
