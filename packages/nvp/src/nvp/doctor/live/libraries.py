"""The cubins that the live proof loads: one of each library that is installed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from nvidia_variant_provider.machine.environment import ComputeCapability

from ...gpu_code.extraction import ExtractionError, extract_cubin
from ...gpu_code.report import LibraryReport
from ...gpu_code.units import Unit, split_units
from ...knowledge.tables import PTX, runs_machine_code
from ..distributions import Distribution
from ..stack import Stack
from .processes import Task

__all__ = ["Library", "find_libraries"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Library:
    """A library of which a cubin is loaded.

    :param task: loads it; ``None`` where there is nothing to load.
    :param why: why there is nothing to load.
    """

    distribution: str
    path: str
    target: str | None = None
    task: Task | None = None
    why: str = ""


def find_libraries(
    stack: Stack, capability: ComputeCapability, folder: str
) -> Iterator[Library]:
    """Yield a library for each unit of GPU code in a stack.

    :param folder: where the cubins are written.
    """
    number = 0
    for distribution, report in stack.with_gpu_code():
        for unit in split_units(report):
            number += 1
            path = os.path.join(folder, f"{capability.sm}-{number}.cubin")
            yield _library(stack, distribution, unit, capability, path)


def _library(
    stack: Stack,
    distribution: Distribution,
    unit: Unit,
    capability: ComputeCapability,
    path: str,
) -> Library:
    """Take a cubin that fits out of a library, and write it to ``path``."""
    fitting = [item for item in unit.libraries if _fits(item, capability)]
    if not fitting:
        has_ptx = unit.how(capability) == PTX
        why = (
            "it has only PTX for this GPU" if has_ptx else "it has no code for this GPU"
        )
        return Library(distribution=distribution.name, path=unit.name, why=why)
    chosen = fitting[0]
    driver = stack.environment.cuda_driver_version
    if unit.by_cuda and driver is not None:
        # A program loads the one that is for its CUDA.
        chosen = next(
            (
                item
                for item in fitting
                if all(major <= driver.major for major in item.cuda_runtime)
            ),
            chosen,
        )
    place = distribution.locate(chosen.path)
    try:
        cubin = extract_cubin(place, lambda t: runs_machine_code(t, capability))
        if cubin is not None:
            with open(path, "wb") as file:
                file.write(cubin.data)
    except (ExtractionError, OSError, ValueError) as error:
        return Library(distribution=distribution.name, path=chosen.path, why=str(error))
    if cubin is None:
        why = "it has only code that has to be linked first"
        return Library(distribution=distribution.name, path=chosen.path, why=why)
    return Library(
        distribution=distribution.name,
        path=chosen.path,
        target=cubin.target,
        task=Task(name=os.path.basename(path), kind="load", path=path),
    )


def _fits(library: LibraryReport, capability: ComputeCapability) -> bool:
    kernels = (target.partition("_") for target in library.kernels)
    return any(
        kind == "real" and runs_machine_code(number, capability)
        for number, _, kind in kernels
    )
