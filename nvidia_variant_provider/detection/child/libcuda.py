"""Query the CUDA driver through ctypes. This module runs in the child process only.

``cuInit`` can hang, and CUDA does not work in a process that forks after it, so only
the child process may call it. Numbers and signatures are those of the CUDA driver API.
"""

from __future__ import annotations

import ctypes
import os
import sys

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
    from collections.abc import Iterator
    from typing import Any

_REASONS = {
    34: reasons.NO_USER_DRIVER,  # CUDA_ERROR_STUB_LIBRARY
    35: reasons.DRIVER_MISMATCH,  # CUDA_ERROR_INSUFFICIENT_DRIVER
    46: reasons.GPU_LOST,  # CUDA_ERROR_DEVICE_UNAVAILABLE
    100: reasons.NO_GPU,  # CUDA_ERROR_NO_DEVICE
    802: reasons.NOT_READY,  # CUDA_ERROR_SYSTEM_NOT_READY
    803: reasons.DRIVER_MISMATCH,  # CUDA_ERROR_SYSTEM_DRIVER_MISMATCH
    804: reasons.COMPAT_NOT_SUPPORTED,  # CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE
    805: reasons.MPS_UNREACHABLE,  # CUDA_ERROR_MPS_CONNECTION_FAILED
}
_NO_FUNCTION = -1
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR


class _CudaError(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.reason = _REASONS.get(code, reasons.UNKNOWN_ERROR)


class _Driver:
    """The library of the CUDA driver; its methods raise `_CudaError` for an error code.

    :raises OSError: the library cannot be loaded.
    """

    def __init__(self) -> None:
        if sys.platform == "win32":
            # Name the directory, because the DLL search path may find another
            # nvcuda.dll first.
            system = os.environ.get("SYSTEMROOT", r"C:\Windows")  # noqa: TID251  # a process of its own
            path = os.path.join(system, "System32", "nvcuda.dll")
            self._library: ctypes.CDLL = ctypes.WinDLL(path)
        else:
            self._library = ctypes.CDLL("libcuda.so.1")

    def call(self, function: str, *arguments: object) -> None:
        """Call a function of the driver."""
        try:
            code = getattr(self._library, function)(*arguments)
        except AttributeError:
            raise _CudaError(_NO_FUNCTION) from None
        if code:
            raise _CudaError(code)

    def number(self, function: str, *arguments: object) -> int:
        """Return the number that ``function(int *result, ...)`` writes."""
        result = ctypes.c_int(-1)
        self.call(function, ctypes.byref(result), *arguments)
        return result.value


def ask() -> Iterator[dict[str, Any]]:
    """Query libcuda; yield the same document again whenever it has new facts."""
    document = empty_document("libcuda")
    version = None
    try:
        driver = _Driver()
    except OSError:
        document["reason"] = reasons.NO_USER_DRIVER
        yield document
        return
    try:
        # libcuda returns a version even if no kernel driver is loaded. Report the
        # version only if the driver works, with or without a GPU.
        version = format_cuda_version(driver.number("cuDriverGetVersion"))
        document["reason"] = None if version else reasons.UNKNOWN_ERROR
        driver.call("cuInit", 0)
        document["cuda_driver_version"] = version
        yield document
        count = driver.number("cuDeviceGetCount")
    except _CudaError as error:
        if error.reason == reasons.NO_GPU:
            document["cuda_driver_version"] = version
        document["reason"] = document["reason"] or error.reason
        yield document
        return
    yield from fill_gpus(document, count, lambda gpu: _ask_gpu(driver, gpu))


def _ask_gpu(driver: _Driver, gpu: dict[str, Any]) -> None:
    try:
        device = driver.number("cuDeviceGet", gpu["index"])
        numbers = [
            driver.number("cuDeviceGetAttribute", attribute, device)
            for attribute in (_MAJOR, _MINOR)
        ]
    except _CudaError as error:
        gpu["reason"] = error.reason
        return
    set_capability(gpu, numbers)
    name = ctypes.create_string_buffer(256)
    try:
        driver.call("cuDeviceGetName", name, len(name), device)
    except _CudaError:
        return  # the name is informational: no decision depends on it
    gpu["name"] = to_text(name.value)
