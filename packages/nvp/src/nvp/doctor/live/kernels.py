"""The code that the live proof loads: a kernel of its own, and cubins of libraries.

The kernel is PTX of each version. There is no machine code in this package: the
driver's own linker makes it from the PTX (``cuLink...``), for exactly the GPU that is
there, whatever GPU that is. Cubins of a toolkit would be binaries that nobody can
review, for those GPUs only that the toolkit knew, and a driver runs those of its own
CUDA major version and of older ones only. The cubins of the installed libraries, one of
each, show that machine code from toolkits loads.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from nvidia_variant_provider.machine.environment import ComputeCapability

from ...gpu_code.extraction import ExtractionError, extract_cubin
from ...gpu_code.report import LibraryReport
from ...gpu_code.units import Unit, split_units
from ...knowledge.tables import PTX, runs_machine_code, toolkits
from ..distributions import Distribution
from ..model import Stack
from .processes import Task

__all__ = ["Library", "find_libraries", "isa_versions", "ptx_of"]

_OLDEST_TARGET = 50
"""Each version of PTX from 4.0 on has the target sm_50, and every GPU since runs it."""

_PTX = """\
.version {isa}
.target sm_{target}
.address_size 64

.visible .entry nvp_probe(
    .param .u64 numbers,
    .param .u32 factor
)
{{
    .reg .b32 %r<7>;
    .reg .b64 %rd<5>;

    ld.param.u64 %rd1, [numbers];
    ld.param.u32 %r1, [factor];
    cvta.to.global.u64 %rd2, %rd1;
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.s32 %r5, %r2, %r3, %r4;
    mad.lo.s32 %r6, %r5, %r1, 7;
    mul.wide.s32 %rd3, %r5, 4;
    add.s64 %rd4, %rd2, %rd3;
    st.global.u32 [%rd4], %r6;
    ret;
}}
"""
"""Thread ``i`` of all blocks writes ``i * factor + 7`` to ``numbers[i]``."""


def isa_versions() -> tuple[str, ...]:
    """Return the versions of PTX that the known toolkits emit, ascending."""
    versions = sorted({toolkit.ptx_isa for toolkit in toolkits().values()})
    return tuple(f"{major}.{minor}" for major, minor in versions)


def ptx_of(isa: str, capability: ComputeCapability) -> str:
    """Return the kernel in a version of PTX, for a GPU or for those before it."""
    return _PTX.format(isa=isa, target=min(_OLDEST_TARGET, int(capability.sm)))


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
    library = fitting[0]
    driver = stack.environment.cuda_driver_version
    if unit.by_cuda and driver is not None:
        # A program loads the one that is for its CUDA.
        library = next(
            (
                item
                for item in fitting
                if all(major <= driver.major for major in item.cuda_runtime)
            ),
            library,
        )
    place = distribution.locate(library.path)
    try:
        cubin = extract_cubin(place, lambda t: runs_machine_code(t, capability))
        if cubin is not None:
            with open(path, "wb") as file:
                file.write(cubin.data)
    except (ExtractionError, OSError, ValueError) as error:
        return Library(
            distribution=distribution.name, path=library.path, why=str(error)
        )
    if cubin is None:
        why = "it has only code that has to be linked first"
        return Library(distribution=distribution.name, path=library.path, why=why)
    return Library(
        distribution=distribution.name,
        path=library.path,
        target=cubin.target,
        task=Task(name=os.path.basename(path), kind="load", path=path),
    )


def _fits(library: LibraryReport, capability: ComputeCapability) -> bool:
    kernels = (target.partition("_") for target in library.kernels)
    return any(
        kind == "real" and runs_machine_code(number, capability)
        for number, _, kind in kernels
    )
