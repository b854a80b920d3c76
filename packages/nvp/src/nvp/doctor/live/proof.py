"""Trials on each GPU: a context, the kernel in each form, the kernels of libraries."""

from __future__ import annotations

import math
import os
import re
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from nvidia_variant_provider.errors import DetectionError, UsageError, printable
from nvidia_variant_provider.machine import reasons
from nvidia_variant_provider.machine.environment import (
    ComputeCapability,
    Environment,
    Gpu,
)

from ..model import Stack
from .kernels import Library, find_libraries, isa_versions, ptx_of
from .processes import ChildReport, Task, ask_driver, ask_torch, bindings_folders

__all__ = ["GpuProof", "Proof", "Trial", "check_possible", "prove"]

CONTEXT = "context"
"""The name of the first trial on each GPU."""

Status: TypeAlias = Literal[
    "passed", "refused", "failed", "timeout", "crashed", "skipped"
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """What came of one trial.

    :param status: ``refused`` is what the driver does with PTX that is newer than it.
    :param error: the name of the driver's error, or a clause; ``None`` if it passed.
    :param code: the number of the driver's error; -1 for other errors.
    :param seconds: how long it took; ``None`` where it did not end.
    """

    status: Status
    error: str | None = None
    code: int = 0
    seconds: float | None = None
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        """Whether something is wrong."""
        return self.status in ("failed", "timeout", "crashed")

    def to_dict(self) -> dict[str, object]:
        """Return the trial as it stands in the JSON report."""
        return {"status": self.status, "error": self.error, "seconds": self.seconds}


@dataclass(frozen=True, kw_only=True, slots=True)
class LibraryTrial:
    """One cubin of a library, loaded.

    :param path: the library, in its distribution.
    :param target: that of the cubin; ``None`` where none was loaded.
    """

    distribution: str
    path: str
    target: str | None
    trial: Trial


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuProof:
    """The trials on one GPU.

    :param count: how many GPUs the driver shows; ``None`` where it did not say it.
    :param bindings: the version of cuda-python; ``None`` where the child did not come
        that far.
    :param ptx: by version of PTX, ascending.
    """

    gpu: Gpu
    count: int | None
    bindings: str | None
    context: Trial
    machine_code: Trial
    ptx: Mapping[str, Trial]
    libraries: tuple[LibraryTrial, ...]

    def to_dict(self) -> dict[str, object]:
        """Return the trials as they stand in the JSON report."""
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
                    **item.trial.to_dict(),
                }
                for item in self.libraries
            ],
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Proof:
    """All trials.

    :param torch: the steps of torch by name; ``None`` where it is not installed.
    """

    gpus: tuple[GpuProof, ...]
    torch: Mapping[str, Trial] | None
    seconds: float

    def to_dict(self) -> dict[str, object]:
        """Return ``live`` of the JSON report."""
        bindings = next((gpu.bindings for gpu in self.gpus if gpu.bindings), None)
        return {
            "cuda_python": bindings,
            "seconds": round(self.seconds, 3),
            "gpus": [gpu.to_dict() for gpu in self.gpus],
            "torch": None if self.torch is None else _torch_dict(self.torch),
        }


def time_of(line: Mapping[str, Any], name: str) -> float | None:
    """Return the seconds in a line of a child, which may have anything there."""
    value = line.get(name)
    return value if isinstance(value, float) and math.isfinite(value) else None


def _torch_dict(trials: Mapping[str, Trial]) -> dict[str, object]:
    """Return what torch has reported, which may be anything."""
    loaded = trials["import"].more
    listed = (
        trials["arch_list"].more.get("arch_list") if "arch_list" in trials else None
    )
    asked = trials["available"].more.get("available") if "available" in trials else None
    return {
        "version": _text(loaded.get("version")),
        "cuda": _text(loaded.get("cuda")),
        "arch_list": [str(item) for item in listed]
        if isinstance(listed, list)
        else None,
        "available": asked if isinstance(asked, bool) else None,
        "steps": [{"name": name, **t.to_dict()} for name, t in trials.items()],
    }


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


_UNSUPPORTED_PTX = 222
"""``CUDA_ERROR_UNSUPPORTED_PTX_VERSION``: "the provided PTX was compiled with an
unsupported toolchain"."""

_MOST_STARTS = 8
"""How often a child is started for one GPU: after a kernel that failed, and after a
crash, the other tasks need a new one."""

_STEP = re.compile("import|arch_list|available|matmul [0-9]{1,4}|compile|end")
"""The steps of `torch_program`, and what `_trials` calls what comes after them."""

_LONGEST = 500
"""The most characters of an error."""


def check_possible(environment: Environment, *, is_here: bool) -> None:
    """Check that there is a GPU to run code on, and what is needed for it.

    :raises UsageError: the machine is another one.
    :raises MissingExtraError: cuda-python is not installed.
    :raises DetectionError: this machine has no GPU, or the driver cannot be asked.
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


def prove(stack: Stack, seconds: float) -> Proof:
    """Run code on each GPU of this machine.

    :param seconds: the deadline for each GPU, and for torch.
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
    assert capability is not None  # noqa: S101  # the caller leaves out the others
    tasks = []
    for version in isa_versions():
        path = os.path.join(folder, f"{capability.sm}-{version}.ptx")
        with open(path, "w", encoding="ascii") as file:
            file.write(ptx_of(version, capability))
        tasks.append(Task(name=f"ptx {version}", kind="ptx", path=path))
    # The oldest PTX is what every driver reads.
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
            LibraryTrial(
                distribution=item.distribution,
                path=item.path,
                target=item.target,
                trial=Trial(status="skipped", error=item.why)
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
    """Carry out tasks on a GPU, in as many children as that takes."""
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
        # The first context tells how long one takes. A later one counts where it fails:
        # the GPU may have been lost.
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
    """Return the trials of a child by name.

    :param expected: what a child begins with, whatever happens.
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
