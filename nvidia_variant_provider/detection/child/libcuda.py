"""The CUDA driver, through ctypes, where NVML cannot answer.

Runs in the child process only: ``cuInit`` can hang, and a process that forks
after it has a broken CUDA. Codes are those of `reasons`; numbers and signatures
are those of the CUDA driver API.
"""

from __future__ import annotations

import ctypes
import os
import sys

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
    from collections.abc import Iterator
    from typing import Any

_NO_DEVICE = 100
_REASONS = {
    34: "no-user-driver",  # CUDA_ERROR_STUB_LIBRARY
    35: "driver-mismatch",  # CUDA_ERROR_INSUFFICIENT_DRIVER
    46: "gpu-lost",  # CUDA_ERROR_DEVICE_UNAVAILABLE
    _NO_DEVICE: "no-gpu",
    802: "not-ready",  # CUDA_ERROR_SYSTEM_NOT_READY
    803: "driver-mismatch",  # CUDA_ERROR_SYSTEM_DRIVER_MISMATCH
    804: "compat-not-supported",  # CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE
    805: "mps-unreachable",  # CUDA_ERROR_MPS_CONNECTION_FAILED
}
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR


class _CudaError(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.reason = _REASONS.get(code, UNKNOWN_ERROR)


class _Driver:
    """The calls that are needed; each raises `_CudaError` instead of a code."""

    def __init__(self) -> None:
        if sys.platform == "win32":
            # Only System32 has the driver's; the search path may have others.
            system = os.environ.get("SYSTEMROOT", r"C:\Windows")  # noqa: TID251  # a process of its own
            path = os.path.join(system, "System32", "nvcuda.dll")
            self._library: ctypes.CDLL = ctypes.WinDLL(path)
        else:
            self._library = ctypes.CDLL("libcuda.so.1")

    def call(self, function: str, *arguments: object) -> None:
        try:
            code = getattr(self._library, function)(*arguments)
        except AttributeError:
            raise _CudaError(-1) from None
        if code:
            raise _CudaError(code)

    def number(self, function: str, *arguments: object) -> int:
        """What ``function(int *result, ...)`` gives."""
        result = ctypes.c_int(-1)
        self.call(function, ctypes.byref(result), *arguments)
        return result.value


def ask() -> Iterator[dict[str, Any]]:
    """What the CUDA driver says, as documents that are more complete each time."""
    answer: dict[str, Any] = document("libcuda")
    version = None
    try:
        driver = _Driver()
    except OSError:
        answer["reason"] = "no-user-driver"
        yield answer
        return
    try:
        # The version comes from the library alone; it counts only where the
        # driver works, or shows no GPU.
        version = cuda_version(driver.number("cuDriverGetVersion"))
        answer["reason"] = None if version else UNKNOWN_ERROR
        driver.call("cuInit", 0)
        answer["cuda_driver_version"] = version
        yield answer
        count = driver.number("cuDeviceGetCount")
    except _CudaError as error:
        if error.reason == _REASONS[_NO_DEVICE]:
            answer["cuda_driver_version"] = version
        answer["reason"] = answer["reason"] or error.reason
        yield answer
        return
    yield from fill_gpus(answer, count, lambda found: _fill(driver, found))


def _fill(driver: _Driver, found: dict[str, Any]) -> None:
    try:
        device = driver.number("cuDeviceGet", found["index"])
        numbers = [
            driver.number("cuDeviceGetAttribute", attribute, device)
            for attribute in (_MAJOR, _MINOR)
        ]
    except _CudaError as error:
        found["reason"] = error.reason
        return
    set_capability(found, numbers)
    name = ctypes.create_string_buffer(256)
    try:
        driver.call("cuDeviceGetName", name, len(name), device)
    except _CudaError:
        return  # a name is for people
    found["name"] = text(name.value)
