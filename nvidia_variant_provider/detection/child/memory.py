"""Watch how much memory of each GPU is in use. This module runs in the child only.

It prints a line of JSON at the start and whenever a peak has grown; the last complete
line counts. It ends with its parent, or when its seconds are over.
"""

from __future__ import annotations

import json
import os
import sys
import time

import pynvml

__all__ = ["main"]

_INTERVAL = 0.1
"""The seconds between two samples. A peak that is shorter can be missed."""


def main(seconds: float) -> None:
    """Print the memory in use at the start, and each new peak.

    The driver's own error code stands for the memory where NVML does not say it.
    """
    parent = os.getppid()
    end = time.monotonic() + seconds
    try:
        pynvml.nvmlInit()
        handles = [
            pynvml.nvmlDeviceGetHandleByIndex(index)
            for index in range(pynvml.nvmlDeviceGetCount())
        ]
        gpus = [
            {"index": index, "before": used, "peak": used}
            for index, used in enumerate(map(_used, handles))
        ]
    except pynvml.NVMLError as error:
        # Do not use str(error): for an unknown code it calls the library once more.
        _print({"error": int(error.value)})
        return
    _print({"gpus": gpus})
    while time.monotonic() < end and os.getppid() == parent:
        time.sleep(_INTERVAL)
        grown = False
        for gpu, handle in zip(gpus, handles, strict=True):
            try:
                used = _used(handle)
            except pynvml.NVMLError:
                continue
            grown = grown or used > gpu["peak"]
            gpu["peak"] = max(gpu["peak"], used)
        if grown:
            _print({"gpus": gpus})


def _used(handle: object) -> int:
    return int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)


def _print(document: dict[str, object]) -> None:
    sys.stdout.write(f"{json.dumps(document)}\n")
    sys.stdout.flush()
