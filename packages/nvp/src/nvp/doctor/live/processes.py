"""Start the child processes of ``nvp doctor``, and read their reports.

One child runs code on a GPU, one runs torch, and one watches the memory of the GPUs.
The main process loads neither the driver nor torch. If a child hangs, crashes or prints
garbage, this is reported as its outcome.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.util import find_spec
from typing import IO, Any, Literal

from nvidia_variant_provider.detection.presence import child_variables
from nvidia_variant_provider.detection.probe import bindings_folder
from nvidia_variant_provider.errors import (
    DetectionError,
    MissingExtraError,
    UsageError,
)
from nvidia_variant_provider.machine import reasons
from nvidia_variant_provider.machine.environment import Environment
from nvidia_variant_provider.strict_json import as_integer, parse_json

from ..installation import Installation
from ..programs import LINGER, end_family, running, started

logger = logging.getLogger(__name__)

_BOOTSTRAP = """\
import sys
sys.path += sys.argv[3:]
from nvp.doctor.live.child import main
main(int(sys.argv[1]), sys.argv[2])
"""
"""The program of the child that calls the driver; see `detection.probe.BOOTSTRAP`."""

_PARENT_OF_PACKAGE = os.path.abspath(
    os.path.join(os.path.dirname(__file__), *[os.pardir] * 3)
)
_TORCH_PROGRAM = os.path.join(os.path.dirname(__file__), "torch_program.py")

Stop = Literal["timeout", "crashed"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """A task for the child on a GPU.

    :param kind: ``ptx`` and ``link`` run the test kernel, and ``load`` loads machine
        code.
    :param path: the file with the PTX or the machine code.
    """

    name: str
    kind: Literal["ptx", "link", "load"]
    path: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ChildReport:
    """The report of a child.

    :param first: the first JSON line from the child.
    :param ends: the lines of the steps that ended, keyed by the name of the step.
    :param unfinished: the step that began but did not end.
    :param done: ``False`` if a new child must be started for the remaining steps.
    :param stopped: why the child did not finish; ``None`` if it did.
    """

    first: Mapping[str, Any] = field(default_factory=dict)
    ends: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    unfinished: str | None = None
    done: bool = True
    stopped: Stop | None = None


def check_possible(environment: Environment, *, is_here: bool) -> None:
    """Check that there is a GPU, and that cuda-python is installed.

    :raises UsageError: the environment describes another machine.
    :raises MissingExtraError: cuda-python is not installed.
    :raises DetectionError: this machine has no GPU, or the driver cannot be queried.
    """
    if not is_here or "forced" in (environment.source or ""):
        raise UsageError(
            "--live runs code on the GPUs of this machine, and another machine is "
            "named or forced",
            hint="leave out --cuda-driver, --sm-arch, --environment and the variables "
            "NV_VARIANT_PROVIDER_FORCE_...",
        )
    bindings_folders()
    if not environment.gpus:
        reason = environment.reason or reasons.NO_GPU
        sentence, step = reasons.explain(reason)
        raise DetectionError(f"--live needs a GPU: {sentence} ({reason})", hint=step)


def bindings_folders() -> list[str]:
    """Return the directories from which the child imports cuda-python.

    :raises MissingExtraError: cuda-python is not installed, or too old.
    """
    folder = _folder_of("cuda.bindings.driver")
    if folder is None:
        raise MissingExtraError(
            "--live needs the extra live: cuda-python is not installed",
            hint="pip install 'nvp[live]'",
        )
    # cuda.bindings imports cuda.pathfinder, which is in another distribution.
    return list(dict.fromkeys([folder, _folder_of("cuda.pathfinder") or folder]))


def _folder_of(module: str) -> str | None:
    try:
        spec = find_spec(module)
    except ImportError:  # the parent package is not installed
        return None
    if spec is None or spec.origin is None:
        return None
    depth = module.count(".") + bool(spec.submodule_search_locations)
    parts = [os.path.dirname(spec.origin), *[os.pardir] * depth]
    return os.path.abspath(os.path.join(*parts))


def ask_driver(
    index: int,
    tasks: Sequence[Task],
    environ: Mapping[str, str],
    seconds: float,
    folder: str,
) -> ChildReport:
    """Start a child that creates a context on a GPU and runs tasks; return its report.

    :param index: the number of the GPU, in the order of the PCI bus.
    :param seconds: the time limit of the child.
    :param folder: the directory for the file with the tasks.
    """
    descriptor, path = tempfile.mkstemp(".json", dir=folder)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(list(map(asdict, tasks)), file)
    variables = {
        **child_variables(environ, complete=True),
        # Make the driver compile the PTX instead of using its cache.
        "CUDA_CACHE_DISABLE": "1",
        # Load kernels immediately: CUDA 12.2 and newer would wait for the first call.
        "CUDA_MODULE_LOADING": "EAGER",
    }
    command = [sys.executable, "-I", "-S", "-c", _BOOTSTRAP]
    command += [str(index), path, _PARENT_OF_PACKAGE, *bindings_folders()]
    logger.info("GPU %d: %d tasks in a child process", index, len(tasks))
    return _ask(command, variables, seconds)


def ask_torch(
    installation: Installation,
    environ: Mapping[str, str],
    seconds: float,
    folder: str,
) -> ChildReport:
    """Run a short torch program with the interpreter of a stack.

    The program gets the user's environment variables, like other programs of the stack.

    :param folder: the directory for the caches of torch and Triton.
    """
    variables = {k: v for k, v in environ.items() if k and "=" not in k}
    variables |= {
        "TORCHINDUCTOR_CACHE_DIR": os.path.join(folder, "inductor"),
        "TRITON_CACHE_DIR": os.path.join(folder, "triton"),
        # Do not start a process pool for one small kernel.
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }
    python = installation.python or ""
    command = [python, "-B", _TORCH_PROGRAM]
    logger.info("torch of %s in a child process", python)
    return _ask(command, variables, seconds)


_LONGEST_LINE = 8 * 1024
"""The maximum length of a line, in bytes. An error has 500 characters, each with up to
12 bytes."""

_MOST = 1024 * 1024
"""The maximum output of a child, in bytes. A library needs up to 600."""


def _ask(
    command: list[str], variables: Mapping[str, str], seconds: float
) -> ChildReport:
    end, pipes = time.monotonic() + seconds, set[str]()
    try:
        # End all programs, because torch's compilers start some.
        with running(
            command,
            pipes,
            _MOST,
            end=partial(end_family, pipes=pipes),
            env=variables,
            stderr=subprocess.DEVNULL,
        ) as child:
            child.wait(end)
            is_late = child.thread.is_alive()
    except (OSError, ValueError) as error:
        logger.info("the child process cannot be started: %s", error)
        return ChildReport(stopped="crashed", done=False)
    child.close(time.monotonic() + LINGER)
    return _parse(bytes(child.output), "timeout" if is_late else "crashed")


def _parse(output: bytes, stopped: Stop) -> ChildReport:
    """Parse the JSON lines from a child, and skip other output.

    :param stopped: why the child ended, if its last line is missing.
    """
    first: Mapping[str, Any] | None = None
    ends: dict[str, Mapping[str, Any]] = {}
    begun: str | None = None
    for text in output.split(b"\n"):
        # Skip other lines quickly: parsing each line of endless output takes a minute.
        if not text.startswith(b"{") or len(text) > _LONGEST_LINE:
            continue
        try:
            line: Any = json.loads(text)
        except (ValueError, RecursionError):
            continue
        first = line if first is None else first
        if isinstance(line.get("begin"), str):
            begun = line["begin"]
        elif begun is not None and line.get("end") == begun:
            ends[begun], begun = line, None
        elif isinstance(line.get("done"), bool):
            return ChildReport(first=first, ends=ends, done=line["done"])
    return ChildReport(
        first=first or {}, ends=ends, unfinished=begun, done=False, stopped=stopped
    )


_PROGRAM = """\
import sys
sys.path += sys.argv[2:]
from nvp.doctor.live.memory import main
main(float(sys.argv[1]))
"""
"""The program of the child that watches the memory; see `detection.probe.BOOTSTRAP`."""

_START = 5
"""The longest wait for the start of NVML, in seconds; without persistence mode, the
start can take longer."""

_LONGEST = 256 * 1024
"""The maximum length of the last line, in bytes: 1,024 GPUs have 64 KiB."""

_LATE = 60
"""A child that its parent has not killed ends this many seconds past its deadline."""


@dataclass(kw_only=True, slots=True)
class Memory:
    """The memory usage from NVML, set when the context of `watch_memory` ends.

    :param gpus: for each GPU its ``index``, and the bytes that all programs together
        used: ``before`` at the start, and ``peak`` as the maximum. ``None`` without a
        result.
    :param reason: why there is no result.
    """

    gpus: list[dict[str, int]] | None = None
    reason: str | None = None


@contextlib.contextmanager
def watch_memory(environ: Mapping[str, str], seconds: float) -> Iterator[Memory]:
    """Sample the memory in use on each GPU until the context ends.

    :param seconds: the maximum duration of the context.
    """
    memory = Memory()
    bindings = bindings_folder()
    if bindings is None or not sys.executable:
        memory.reason = "nvidia-ml-py is not installed"
        yield memory
        return
    command = [sys.executable, "-I", "-S", "-c", _PROGRAM, str(seconds + _LATE)]
    command += [_PARENT_OF_PACKAGE, bindings]
    with contextlib.ExitStack() as stack:
        try:
            # Use a file instead of a pipe, so the child never waits for a reader.
            output = stack.enter_context(tempfile.TemporaryFile())

            def end(child: subprocess.Popen[bytes], mark: str) -> None:
                has_crashed = child.poll() not in (None, 0)
                end_family(child, mark)
                output.seek(max(0, output.seek(0, os.SEEK_END) - _LONGEST))
                _fill(memory, output.read(_LONGEST), has_crashed=has_crashed)

            child = stack.enter_context(
                started(
                    command,
                    end,
                    env=child_variables(environ),
                    stdout=output,
                    stderr=subprocess.DEVNULL,
                )
            )
        except (OSError, ValueError) as error:  # such as a full disk
            memory.reason = f"the child process cannot be started: {error}"
            yield memory
            return
        # Wait, or the program could use memory before the first sample.
        _await_first_line(child, output)
        yield memory


def _await_first_line(child: subprocess.Popen[bytes], output: IO[bytes]) -> None:
    end = time.monotonic() + _START
    while time.monotonic() < end and child.poll() is None:
        if os.fstat(output.fileno()).st_size:
            return
        time.sleep(0.02)


def _fill(memory: Memory, output: bytes, *, has_crashed: bool) -> None:
    # Drop the text after the last line end, which is an unfinished line.
    lines = output.split(b"\n")[:-1]
    if not lines:
        memory.reason = "NVML has crashed" if has_crashed else "NVML has not replied"
        return
    try:
        document = parse_json(lines[-1])
        if "error" in document:
            memory.reason = f"NVML returned the error {_size(document['error'])}"
        else:
            memory.gpus = [
                {name: _size(gpu[name]) for name in ("index", "before", "peak")}
                for gpu in document["gpus"]
            ]
    except (ValueError, KeyError, TypeError):
        memory.reason = "NVML's reply cannot be read"


def _size(value: object) -> int:
    """Return a number of NVML, which has at most 64 bits.

    :raises ValueError: a library has written something else.
    """
    number = as_integer(value, "")
    if not 0 <= number < 1 << 64:
        raise ValueError(value)
    return number
