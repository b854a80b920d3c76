"""Run code on one GPU. This module runs only in a child process; see `processes`.

The driver may hang, crash, or break the process for later calls. Therefore the child
announces each task before it starts the task, and then prints the outcome. Each line of
the output is a JSON object:

- ``{"ready": "13.4.4"}``, with the version of cuda-python, before the driver is called;
- ``{"begin": NAME}``, before a task;
- ``{"end": NAME, "error": null, "code": 0, "seconds": 0.1, ...}``, after the task;
- ``{"done": true}`` after the last task, or ``{"done": false}`` after a failed kernel,
  which makes the context unusable (CUDA driver API: "This leaves the process in an
  inconsistent state and any further CUDA work will return the same error").

The functions and the error numbers are those of the CUDA driver API.
"""

from __future__ import annotations

import ctypes
import json
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

_BLOCKS, _THREADS, _FACTOR = 2, 64, 3
_NAME = b"nvp_probe"
_WRONG = "wrong result"
_PTX = "ptx"


class _CudaError(Exception):
    """A failed call of the driver.

    :param text: the name of the error, such as ``CUDA_ERROR_OUT_OF_MEMORY``.
    :param code: the number of the error; -1 if the error is not from the driver.
    """

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.text = text
        self.code = code


class _BrokenContextError(_CudaError):
    """A kernel has failed, so this process cannot run further tasks."""


def main(index: int, file: str) -> None:
    """Run the tasks in a file on a GPU, and end the process.

    :param index: the number of the GPU.
    :param file: a JSON list of objects with ``name``, ``kind`` (``ptx``, ``link`` or
        ``load``) and ``path``.
    """
    # Native libraries print to descriptor 1. Keep the pipe to the parent under another
    # number, and let descriptor 1 point to stderr, which is discarded.
    pipe = os.dup(1)
    os.dup2(2, 1)

    def say(**line: object) -> None:
        data = f"{json.dumps(line)}\n".encode()
        while data:
            data = data[os.write(pipe, data) :]

    with open(file, encoding="utf-8") as stream:
        tasks: list[Mapping[str, str]] = json.load(stream)
    say(ready=_version())
    is_whole = _carry_out(index, tasks, say)
    say(done=is_whole)
    # Skip the exit handlers and the driver's threads, which are known to crash at exit.
    os._exit(0)


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("cuda-bindings")
    except metadata.PackageNotFoundError:
        return "unknown"


def _carry_out(
    index: int, tasks: list[Mapping[str, str]], say: Callable[..., None]
) -> bool:
    """Run the tasks on a GPU; return ``False`` if a failed kernel ended them early."""
    count = -1

    def make_context() -> dict[str, object]:
        nonlocal count
        driver = _driver()
        _call(driver.cuInit, 0)
        count = _call(driver.cuDeviceGetCount)
        device = _call(driver.cuDeviceGet, index)
        # Use the primary context, like the CUDA runtime, because the signature of
        # cuCtxCreate changed in CUDA 13.
        context = _call(driver.cuDevicePrimaryCtxRetain, device)
        _call(driver.cuCtxSetCurrent, context)
        _call(driver.cuCtxSynchronize)
        return {"count": count}

    if not _try("context", make_context, say, count=lambda: count):
        return True
    try:
        for task in tasks:
            _try(task["name"], partial(_run_task, task["kind"], task["path"]), say)
    except _BrokenContextError:
        return False
    return True


def _try(
    name: str,
    act: Callable[[], Mapping[str, object]],
    say: Callable[..., None],
    count: Callable[[], int] | None = None,
) -> bool:
    """Run a task, print its outcome, and return whether it succeeded."""
    say(begin=name)
    started = time.monotonic()
    outcome: dict[str, object] = {"error": None, "code": 0}
    broken: _BrokenContextError | None = None
    try:
        outcome.update(act())
    except _CudaError as error:
        outcome.update(error=error.text, code=error.code)
        broken = error if isinstance(error, _BrokenContextError) else None
    except Exception as error:  # noqa: BLE001  # cuda-python may raise anything
        outcome.update(error=f"{type(error).__name__}: {error}"[:300], code=-1)
    if count is not None:
        outcome["count"] = count()
    say(end=name, seconds=round(time.monotonic() - started, 6), **outcome)
    if broken is not None:
        raise broken
    return outcome["error"] is None


def _run_task(kind: str, path: str) -> dict[str, object]:
    with open(path, "rb") as file:
        image = file.read()
    if kind == _PTX:
        return _run_ptx(image)
    return _run_linked(image) if kind == "link" else _load(image)


def _run_ptx(text: bytes) -> dict[str, object]:
    started = time.monotonic()
    # PTX text must end with a zero byte. The parent has disabled the driver's cache, so
    # the duration is that of the compiler.
    module = _call(_driver().cuModuleLoadDataEx, text + b"\0", 0, [], [])
    seconds = time.monotonic() - started
    _run_kernel(module)
    return {"compiled": round(seconds, 6)}


def _run_linked(text: bytes) -> dict[str, object]:
    """Link PTX to machine code, load it and run it."""
    driver = _driver()
    state = _call(driver.cuLinkCreate, 0, [], [])
    kind = driver.CUjitInputType.CU_JIT_INPUT_PTX
    data = text + b"\0"
    _call(driver.cuLinkAddData, state, kind, data, len(data), _NAME, 0, [], [])
    place, size = _call(driver.cuLinkComplete, state)
    # The image belongs to the linker's state, so copy it before destroying the state.
    image = ctypes.string_at(int(place), size)
    _call(driver.cuLinkDestroy, state)
    _run_kernel(_call(driver.cuModuleLoadData, image))
    return {"size": size}


def _load(image: bytes) -> dict[str, object]:
    """Load machine code of a library without running it."""
    driver = _driver()
    module = _call(driver.cuModuleLoadData, image)
    _call(driver.cuModuleUnload, module)
    return {}


def _run_kernel(module: Any) -> None:
    """Run the kernel, and check its output."""
    driver = _driver()
    kernel = _call(driver.cuModuleGetFunction, module, _NAME)
    numbers = (ctypes.c_uint32 * (_BLOCKS * _THREADS))()
    memory = _call(driver.cuMemAlloc, ctypes.sizeof(numbers))
    pointer = ctypes.c_uint64(int(memory))
    factor = ctypes.c_uint32(_FACTOR)
    # The driver takes an array of pointers to the parameters.
    addresses = (ctypes.addressof(pointer), ctypes.addressof(factor))
    parameters = (ctypes.c_void_p * 2)(*addresses)
    try:
        _call(
            driver.cuLaunchKernel,
            *(kernel, _BLOCKS, 1, 1, _THREADS, 1, 1, 0, 0),
            *(ctypes.addressof(parameters), 0),
        )
        _call(driver.cuCtxSynchronize)
        size = ctypes.sizeof(numbers)
        _call(driver.cuMemcpyDtoH, ctypes.addressof(numbers), memory, size)
    except _CudaError as error:
        raise _BrokenContextError(error.text, error.code) from None
    _call(driver.cuMemFree, memory)
    _call(driver.cuModuleUnload, module)
    if list(numbers) != [i * _FACTOR + 7 for i in range(len(numbers))]:
        raise _CudaError(_WRONG, -1)


def _driver() -> Any:
    from cuda.bindings import driver

    return driver


def _call(function: Callable[..., Any], *arguments: object) -> Any:
    """Call a driver function; return its only value, or a tuple of its values."""
    error, *values = function(*arguments)
    if int(error):
        raise _CudaError(getattr(error, "name", str(error)), int(error))
    if len(values) == 1:
        return values[0]
    return tuple(values)
