"""Try each GPU: create a context, run a kernel, and load cubins of libraries.

The kernel is tried as PTX of every version. This package contains no machine code: the
driver's linker (``cuLink...``) makes the code from PTX for the actual GPU. Cubins from
a toolkit would be binaries without reviewable source, only for GPUs that the toolkit
supports, and only for drivers of the same or a newer CUDA major version. One cubin of
each installed library is loaded to try machine code from toolkits.
"""

from __future__ import annotations

import math
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from nvidia_variant_provider.errors import printable
from nvidia_variant_provider.machine.environment import ComputeCapability, Gpu

from ...files import read_resource
from ...gpu_code.compression import Budget
from ...gpu_code.extraction import ExtractionError, extract_cubin
from ...gpu_code.report import LibraryReport
from ...gpu_code.units import Unit, split_units
from ...knowledge.tables import PTX, ptx_versions, runs_machine_code
from ..distributions import Distribution
from ..model import Stack
from .processes import ChildReport, Task, ask_driver, ask_torch

_OLDEST_TARGET = 50
"""The target of the kernel: every PTX version since 4.0 supports it, and every newer
GPU runs it."""


_SECONDS = 10.0
"""The processor time of the search for cubins. It is the limit of the checks, too."""


def isa_versions() -> tuple[str, ...]:
    """Return the versions of PTX that the known toolkits emit, ascending."""
    versions = sorted(set(ptx_versions().values()))
    return tuple(f"{major}.{minor}" for major, minor in versions)


def ptx_of(isa: str, capability: ComputeCapability) -> str:
    """Return the test kernel in a PTX version, for a target not newer than the GPU."""
    target = str(min(_OLDEST_TARGET, int(capability.sm)))
    kernel = read_resource("doctor", "live", "kernel.txt")
    return kernel.replace("@isa", isa).replace("@target", target)


@dataclass(frozen=True, kw_only=True, slots=True)
class Library:
    """A library and the cubin to load from it.

    :param path: the path of the library in its distribution.
    :param target: the target of the cubin; ``None`` if there is no cubin to load.
    :param task: the task that loads the cubin; ``None`` if there is none.
    :param why: why there is no cubin to load.
    """

    distribution: str
    path: str
    target: str | None = None
    task: Task | None = None
    why: str = ""


def find_libraries(
    stack: Stack, capability: ComputeCapability, folder: str
) -> Iterator[Library]:
    """Yield a library for each unit of GPU code in a stack, with a cubin if possible.

    :param folder: the directory for the cubins.
    """
    number = 0
    budget = Budget()
    budget.until = time.process_time() + _SECONDS
    for distribution, report in stack.with_gpu_code():
        for unit in split_units(report):
            number += 1
            path = os.path.join(folder, f"{capability.sm}-{number}.cubin")
            yield _library(stack, distribution, unit, capability, path, budget=budget)


def _library(
    stack: Stack,
    distribution: Distribution,
    unit: Unit,
    capability: ComputeCapability,
    path: str,
    *,
    budget: Budget,
) -> Library:
    """Extract a cubin for a GPU from a unit's library, and write it to ``path``."""
    driver = stack.environment.cuda_driver_version

    def fits(target: str) -> bool | None:
        return runs_machine_code(target, capability, driver=driver)

    fitting = [item for item in unit.libraries if _may_fit(item, fits)]
    name = distribution.name
    if not fitting:
        kind = "only PTX" if unit.how(capability) == PTX else "no code"
        why = f"it has {kind} for this GPU"
        return Library(distribution=name, path=unit.name, why=why)
    library = fitting[0]
    if unit.by_cuda and driver is not None:
        # Prefer a library that the driver supports, as programs do.
        supported = [
            x for x in fitting if max(x.cuda_runtime, default=0) <= driver.major
        ]
        library = (supported or fitting)[0]
    place = distribution.locate(library.path)
    try:
        # If no cubin is known to fit, try a cubin that may fit.
        cubin = extract_cubin(place, lambda target: fits(target) is True, budget)
        cubin = cubin or extract_cubin(
            place, lambda target: fits(target) is None, budget
        )
        if cubin is not None:
            with open(path, "wb") as file:
                file.write(cubin.data)
    except (ExtractionError, OSError, ValueError) as error:
        return Library(distribution=name, path=library.path, why=str(error))
    if cubin is None:
        why = "it has only code that has to be linked first"
        return Library(distribution=name, path=library.path, why=why)
    return Library(
        distribution=name,
        path=library.path,
        target=cubin.target,
        task=Task(name=os.path.basename(path), kind="load", path=path),
    )


def _may_fit(library: LibraryReport, fits: Callable[[str], bool | None]) -> bool:
    kernels = (target.partition("_") for target in library.kernels)
    return any(kind == "real" and fits(t) is not False for t, _, kind in kernels)


CONTEXT = "context"
"""The name of the first trial on each GPU."""

Status: TypeAlias = Literal[
    "passed", "refused", "failed", "timeout", "crashed", "skipped"
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """The outcome of a trial.

    :param status: the kind of outcome; ``refused`` if the PTX is newer than the driver.
    :param error: the name of the driver's error, or a clause; ``None`` without error.
    :param code: the number of the driver's error; -1 for other errors.
    :param seconds: the duration; ``None`` if the trial did not end.
    """

    status: Status
    error: str | None = None
    code: int = 0
    seconds: float | None = None
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        """Whether the trial found a problem, unlike ``refused`` and ``skipped``."""
        return self.status in ("failed", "timeout", "crashed")

    def to_dict(self) -> dict[str, object]:
        """Return the trial for the JSON report."""
        return {"status": self.status, "error": self.error, "seconds": self.seconds}


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuProof:
    """The trials on one GPU.

    :param count: the number of GPUs that CUDA reports; ``None`` if unknown.
    :param bindings: the version of cuda-python; ``None`` if not reported.
    :param ptx: the trials of the kernel as PTX, keyed by PTX version, ascending.
    """

    gpu: Gpu
    count: int | None
    bindings: str | None
    context: Trial
    machine_code: Trial
    ptx: Mapping[str, Trial]
    libraries: tuple[tuple[Library, Trial], ...]

    def to_dict(self) -> dict[str, object]:
        """Return the trials for the JSON report."""
        capability = self.gpu.compute_capability
        return {
            "index": self.gpu.index,
            "name": self.gpu.name,
            "compute_capability": None if capability is None else str(capability),
            "context": self.context.to_dict(),
            "machine_code": self.machine_code.to_dict(),
            "ptx": [
                {
                    "version": version,
                    **trial.to_dict(),
                    "compiled": time_of(trial.more, "compiled"),
                }
                for version, trial in self.ptx.items()
            ],
            "libraries": [
                {
                    "distribution": item.distribution,
                    "path": item.path,
                    "target": item.target,
                    **trial.to_dict(),
                }
                for item, trial in self.libraries
            ],
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Proof:
    """All trials of a live proof.

    :param torch: the trials of torch, keyed by step; ``None`` without torch.
    """

    gpus: tuple[GpuProof, ...]
    torch: Mapping[str, Trial] | None
    seconds: float

    def to_dict(self) -> dict[str, object]:
        """Return the value of ``live`` in the JSON report."""
        bindings = next((gpu.bindings for gpu in self.gpus if gpu.bindings), None)
        return {
            "cuda_python": bindings,
            "seconds": round(self.seconds, 3),
            "gpus": [gpu.to_dict() for gpu in self.gpus],
            "torch": None if self.torch is None else _torch_dict(self.torch),
        }


def time_of(line: Mapping[str, Any], name: str) -> float | None:
    """Return a time in seconds from a child's line; ``None`` if invalid."""
    value = line.get(name)
    return value if isinstance(value, float) and math.isfinite(value) else None


def _torch_dict(trials: Mapping[str, Trial]) -> dict[str, object]:
    """Return the valid values from torch's report, and the trial of each step."""
    told: dict[str, Any] = {}
    for step, name, kind in (
        ("import", "version", str),
        ("import", "cuda", str),
        ("arch_list", "arch_list", list),
        ("available", "available", bool),
    ):
        value = trials[step].more.get(name) if step in trials else None
        told[name] = value if isinstance(value, kind) else None
    if told["arch_list"] is not None:
        told["arch_list"] = [str(item) for item in told["arch_list"]]
    steps = [{"name": name, **trial.to_dict()} for name, trial in trials.items()]
    return {**told, "steps": steps}


_UNSUPPORTED_PTX = 222
"""``CUDA_ERROR_UNSUPPORTED_PTX_VERSION``: "the provided PTX was compiled with an
unsupported toolchain"."""

_MOST_STARTS = 8
"""The maximum number of children for one GPU: after a failed kernel or a crash, the
remaining tasks need a new child."""

_STEP = re.compile("import|arch_list|available|matmul [0-9]{1,4}|compile|end")
"""The steps of `torch_program`, and ``end`` for its exit after the steps."""

_LONGEST = 500
"""The maximum length of an error in characters."""


def prove(stack: Stack, seconds: float) -> Proof:
    """Run code on each GPU of this machine.

    :param seconds: the time limit for each GPU, and for torch.
    """
    started = time.monotonic()
    with tempfile.TemporaryDirectory(
        prefix="nvp-live-", ignore_cleanup_errors=True
    ) as folder:
        gpus = []
        libraries: dict[ComputeCapability, list[Library]] = {}
        for gpu in stack.environment.gpus:
            capability = gpu.compute_capability
            if capability is None:
                continue
            if capability not in libraries:
                libraries[capability] = list(find_libraries(stack, capability, folder))
            gpus.append(_prove_gpu(stack, gpu, libraries[capability], seconds, folder))
        torch = None
        if "torch" in stack.distributions and stack.installation.python:
            report = ask_torch(stack.installation, stack.environ, seconds, folder)
            trials = _trials(report, ("import",), seconds)
            torch = {n: t for n, t in trials.items() if _STEP.fullmatch(n)}
    return Proof(gpus=tuple(gpus), torch=torch, seconds=time.monotonic() - started)


def _prove_gpu(
    stack: Stack,
    gpu: Gpu,
    libraries: Sequence[Library],
    seconds: float,
    folder: str,
) -> GpuProof:
    capability = gpu.compute_capability
    assert capability is not None  # noqa: S101  # the caller skips other GPUs
    tasks = []
    for version in isa_versions():
        path = os.path.join(folder, f"{capability.sm}-{version}.ptx")
        with open(path, "w", encoding="ascii") as file:
            file.write(ptx_of(version, capability))
        tasks.append(Task(name=f"ptx {version}", kind="ptx", path=path))
    # Link the oldest PTX version, which every driver reads.
    linked = Task(name="machine code", kind="link", path=tasks[0].path)
    loads = [item.task for item in libraries if item.task is not None]
    trials, report = _run(
        gpu.index, [linked, *loads, *tasks], stack.environ, seconds, folder
    )
    count = trials[CONTEXT].more.get("count")
    bindings = report.first.get("ready")
    return GpuProof(
        gpu=gpu,
        count=count if isinstance(count, int) and count >= 0 else None,
        bindings=bindings if isinstance(bindings, str) else None,
        context=trials[CONTEXT],
        machine_code=trials[linked.name],
        ptx={v: trials[t.name] for v, t in zip(isa_versions(), tasks, strict=True)},
        libraries=tuple(
            (
                item,
                Trial(status="skipped", error=item.why)
                if item.task is None
                else trials[item.task.name],
            )
            for item in libraries
        ),
    )


def _run(
    index: int,
    tasks: Sequence[Task],
    environ: Mapping[str, str],
    seconds: float,
    folder: str,
) -> tuple[dict[str, Trial], ChildReport]:
    """Run tasks on a GPU, in as many children as necessary."""
    end = time.monotonic() + seconds
    trials: dict[str, Trial] = {}
    first = ChildReport()
    left = list(tasks)
    for start in range(_MOST_STARTS):
        report = ask_driver(
            index, left, environ, max(0, end - time.monotonic()), folder
        )
        news = _trials(report, (CONTEXT,), seconds)
        has_context = news[CONTEXT].status == "passed"
        # Keep the trial of the first context, with its duration, unless a later context
        # fails: the GPU may have been lost.
        if start == 0:
            first = report
        elif has_context:
            del news[CONTEXT]
        trials |= news
        left = [task for task in left if task.name not in trials]
        if report.done or report.stopped == "timeout" or not has_context or not news:
            break
    why = "no context" if trials[CONTEXT].status != "passed" else "no try was left"
    for task in left:
        trials[task.name] = Trial(status="skipped", error=why)
    return trials, first


def _trials(
    report: ChildReport, expected: Sequence[str], seconds: float
) -> dict[str, Trial]:
    """Return the trials of a child, keyed by name.

    :param expected: the tasks with which every child begins.
    """
    trials = {name: _ended(line) for name, line in report.ends.items()}
    stuck = report.unfinished
    if stuck is None and report.stopped:
        stuck = next((name for name in expected if name not in trials), "end")
    if stuck is not None and report.stopped is not None:
        late = report.stopped == "timeout"
        trials[stuck] = Trial(
            status=report.stopped,
            error=f"it did not end within {seconds:g} seconds"
            if late
            else "the process that ran it crashed",
            code=-1,
        )
    for name in expected:
        trials.setdefault(name, Trial(status="skipped", error="it was not tried"))
    return trials


def _ended(line: Mapping[str, Any]) -> Trial:
    error, code = line.get("error"), line.get("code")
    number = code if isinstance(code, int) else 0
    refused = number == _UNSUPPORTED_PTX
    return Trial(
        status="refused" if refused else "passed" if error is None else "failed",
        error=None if error is None else printable(str(error))[:_LONGEST],
        code=number,
        seconds=time_of(line, "seconds"),
        more=line,
    )
