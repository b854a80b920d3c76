"""Trials of the live proof, and how they stand in the report."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from nvidia_variant_provider.machine.environment import Gpu

__all__ = ["CONTEXT", "GpuProof", "LibraryTrial", "Proof", "Status", "Trial", "time_of"]

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
    """Return what torch said; it may have said anything."""
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
