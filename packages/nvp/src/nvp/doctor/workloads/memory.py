"""Watch the memory of the GPUs while a program runs, from a child process.

NVML is never loaded into this process, as for detection: it can hang or crash.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import IO

from nvidia_variant_provider.detection.probe import bindings_folder, child_variables

__all__ = ["Memory", "watch_memory"]

_PROGRAM = """\
import sys
sys.path += sys.argv[2:]
from nvp.doctor.live.memory import main
main(float(sys.argv[1]))
"""
"""The program of the child process; see `detection.probe.BOOTSTRAP`."""

_PARENT_OF_PACKAGE = os.path.abspath(
    os.path.join(os.path.dirname(__file__), *[os.pardir] * 3)
)

_START = 5
"""The seconds that NVML has for its start; without persistence it can take longer."""

_LATE = 60
"""The seconds after which the child ends by itself when nobody has ended it."""


@dataclass(kw_only=True, slots=True)
class Memory:
    """What NVML has said; it is complete when the context has ended.

    :param gpus: for each GPU its ``index``, and the bytes that all programs together
        have used: ``before`` at the start, and ``peak`` at most. ``None`` where NVML
        did not say it.
    :param reason: why there is nothing.
    """

    gpus: list[dict[str, int]] | None = None
    reason: str | None = None


@contextlib.contextmanager
def watch_memory(environ: Mapping[str, str], seconds: float) -> Iterator[Memory]:
    """Sample the memory in use of each GPU while the context lasts.

    :param seconds: how long the context lasts at most.
    """
    memory = Memory()
    bindings = bindings_folder()
    if bindings is None or not sys.executable:
        memory.reason = "nvidia-ml-py is not installed"
        yield memory
        return
    command = [sys.executable, "-I", "-S", "-c", _PROGRAM, str(seconds + _LATE)]
    command += [_PARENT_OF_PACKAGE, bindings]
    # A file instead of a pipe: the child never waits for a reader.
    with tempfile.TemporaryFile() as output:
        try:
            child = subprocess.Popen(  # noqa: S603  # this interpreter with this package's program
                command,
                env=child_variables(environ),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.DEVNULL,
            )
        except (OSError, ValueError) as error:
            memory.reason = f"the child process cannot be started: {error}"
            yield memory
            return
        try:
            # Without this the program could use memory before the first sample.
            _await_first_line(child, output)
            yield memory
        finally:
            has_crashed = child.poll() not in (None, 0)
            child.kill()
            # A child that is stuck in the driver cannot be killed; it is abandoned.
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(timeout=2)
            output.seek(0)
            _fill(memory, output.read(), has_crashed=has_crashed)


def _await_first_line(child: subprocess.Popen[bytes], output: IO[bytes]) -> None:
    end = time.monotonic() + _START
    while time.monotonic() < end and child.poll() is None:
        if os.fstat(output.fileno()).st_size:
            return
        time.sleep(0.02)


def _fill(memory: Memory, output: bytes, *, has_crashed: bool) -> None:
    # The text after the last line end is an unfinished line.
    lines = output.split(b"\n")[:-1]
    if not lines:
        memory.reason = "NVML has crashed" if has_crashed else "NVML has not replied"
        return
    try:
        document = json.loads(lines[-1])
        if "error" in document:
            memory.reason = f"NVML returned the error {document['error']}"
        else:
            memory.gpus = [
                {name: int(gpu[name]) for name in ("index", "before", "peak")}
                for gpu in document["gpus"]
            ]
    except (ValueError, KeyError, TypeError):
        memory.reason = "NVML's reply cannot be read"
