"""Watch the memory in use on each GPU. This module runs only in a child process.

`processes.watch_memory` starts the child. The child prints a line of JSON at the start
and whenever a peak has grown; the parent reads the last complete line. The child ends
after its time limit, or on Linux with its parent.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time

import pynvml

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_INTERVAL = 0.1
"""The seconds between two samples. A shorter peak can be missed."""


def main(seconds: float) -> None:
    """Print the memory in use at the start, and each new peak.

    If NVML cannot report the memory of any GPU, the error code is printed instead.
    """
    # NVML may hang in any call, so a thread ends the process.
    watch = threading.Timer(seconds, os._exit, (0,))
    watch.daemon = True
    watch.start()
    try:
        pynvml.nvmlInit()
        gpus = list(_readable_gpus(pynvml.nvmlDeviceGetCount()))
    except pynvml.NVMLError as error:
        # Do not use str(error), which calls the library again for an unknown code.
        _print({"error": int(error.value)})
        return
    documents = [gpu for gpu, _ in gpus]
    _print({"gpus": documents})
    while True:
        time.sleep(_INTERVAL)
        # Sample every GPU: any() would stop at the first new peak.
        if sum(_grows(gpu, handle) for gpu, handle in gpus):
            _print({"gpus": documents})


def _readable_gpus(count: int) -> Iterator[tuple[dict[str, int], object]]:
    """Yield each GPU whose memory is readable, with its handle.

    :raises NVMLError: there are GPUs, but no GPU has readable memory.
    """
    failure: pynvml.NVMLError | None = None
    readable = False
    for index in range(count):
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            used = _used(handle)
        except pynvml.NVMLError as error:
            failure = error
            continue
        readable = True
        yield {"index": index, "before": used, "peak": used}, handle
    if failure is not None and not readable:
        raise failure


def _grows(gpu: dict[str, int], handle: object) -> bool:
    """Update the peak of a GPU from a sample, and return whether the peak has grown."""
    try:
        used = _used(handle)
    except pynvml.NVMLError:
        return False
    before = gpu["peak"]
    gpu["peak"] = max(before, used)
    return used > before


def _used(handle: object) -> int:
    return int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)


def _print(document: Mapping[str, object]) -> None:
    sys.stdout.write(f"{json.dumps(document)}\n")
    sys.stdout.flush()
