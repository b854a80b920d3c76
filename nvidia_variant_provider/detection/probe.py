"""Asking the native libraries in a child process, with a deadline.

A driver can hang for ever in the kernel, crash the process or print to stdout;
none of it may reach the installer.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from importlib.machinery import PathFinder

from ..documents import parse_json
from ..environment import ComputeCapability, CudaVersion, Environment, Gpu
from ..errors import OverrideError, shown
from . import reasons

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

__all__ = ["DEADLINE", "TIMEOUT", "deadline", "probe"]

TIMEOUT = "NV_VARIANT_PROVIDER_DETECT_TIMEOUT"
DEADLINE = 20.0
"""Seconds; 8 x A100 without persistence mode take longest, idle GPUs 1.5 s."""

_CHILD = os.path.join(os.path.dirname(os.path.abspath(__file__)), "child.py")


def deadline(environ: Mapping[str, str]) -> float:
    """Seconds that detection may take.

    :raises OverrideError: the variable holds no positive number.
    """
    text = environ.get(TIMEOUT)
    if not text:
        return DEADLINE
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 3600:  # also false for NaN
        message = f"{shown(text)} is not a number of seconds from 0 to 3600"
        raise OverrideError(message, path=TIMEOUT, hint="give a number, or unset it")
    return seconds


def probe(environ: Mapping[str, str]) -> Environment:
    """What NVML says about this machine, or why it said nothing."""
    seconds = deadline(environ)
    bindings = PathFinder.find_spec("pynvml")
    if bindings is None or bindings.origin is None:
        return Environment(reason=reasons.NO_BINDINGS)
    command = [sys.executable, "-I", "-S", _CHILD, os.path.dirname(bindings.origin)]
    # The mask is for the running program, not for what gets installed.
    variables = {k: v for k, v in environ.items() if k != "CUDA_VISIBLE_DEVICES"}
    answer = _run(command, variables, seconds)
    if isinstance(answer, str):
        return Environment(reason=answer)
    return _environment(answer)


def _run(
    command: list[str], variables: dict[str, str], seconds: float
) -> dict[str, Any] | str:
    """The child's JSON document, or a reason code."""
    end = time.monotonic() + seconds
    try:
        child = subprocess.Popen(  # noqa: S603  # our own script and interpreter
            command,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    except OSError:
        return reasons.UNKNOWN_ERROR
    try:
        output, _ = child.communicate(timeout=max(0.0, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        child.kill()
        # A child that is stuck in the kernel cannot die: waiting for it would
        # hang the installer as well. It is left to init.
        if child.stdout is not None:
            child.stdout.close()
        child.returncode = child.poll() or -9
        return reasons.TIMEOUT
    try:
        answer = parse_json(output)
    except ValueError:
        return reasons.CRASHED
    # A child that was killed after it had answered has not answered.
    return answer if child.returncode == 0 else reasons.CRASHED


def _environment(answer: dict[str, Any]) -> Environment:
    gpus = tuple(
        Gpu(
            index=gpu["index"],
            name=gpu["name"],
            compute_capability=(
                ComputeCapability(*gpu["compute_capability"])
                if gpu["compute_capability"]
                else None
            ),
            reason=gpu["reason"],
        )
        for gpu in answer["gpus"]
    )
    number = answer["cuda_driver_version"]
    cuda = CudaVersion.from_driver(number) if number else None
    reason = answer["reason"]
    if reason is None and not gpus:
        reason = reasons.NO_GPU
    return Environment(
        cuda_driver_version=cuda,
        kernel_driver_version=answer["kernel_driver_version"],
        source="nvml" if cuda or gpus else None,
        reason=reason,
        gpus=gpus,
    )
