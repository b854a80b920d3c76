"""ND401 and ND402: the ptxas that Triton makes machine code with."""

from __future__ import annotations

from collections.abc import Iterator

from nvidia_variant_provider.machine.environment import ComputeCapability

from ...gpu_code.units import first_toolkit
from ...knowledge.tables import gpu_models
from ..model import Finding, check
from ..stack import Stack
from ..toolchain.assemblers import Assembler
from ..toolchain.programs import Program
from ..toolchain.targets import compiles_for

_FIRST_WITH_FEATURES = ComputeCapability(9, 0)


@check("ND401", "error")
def find_old_assemblers(stack: Stack) -> Iterator[Finding]:
    """The ptxas that Triton uses does not know a GPU."""
    triton = stack.toolchain.triton
    for assembler in stack.toolchain.assemblers:
        program = assembler.used
        if triton is None or program.named_by == assembler.variable:
            continue
        if program.problem is not None:
            # The program for another machine may be right on it.
            elsewhere = program.failure == "foreign" and not stack.is_here
            if assembler.gpus and not elsewhere:
                yield Finding.of(
                    code="ND401",
                    distribution=triton.name,
                    path=program.path,
                    message=f"the {assembler.tool} of {triton.name} {triton.version} "
                    f"does not work: {program.problem}",
                    hint=stack.pip(
                        "install",
                        "--force-reinstall",
                        "--no-deps",
                        f"{triton.name}=={triton.version.partition('+')[0]}",
                    ),
                )
            continue
        unknown = _unknown(program, assembler)
        if unknown:
            yield Finding.of(
                code="ND401",
                distribution=triton.name,
                path=program.path,
                message=f"{triton.name} {triton.version} assembles for compute "
                f"capability {_listed(unknown)} with the {assembler.tool} of CUDA "
                f"{program.cuda}, which does not know it",
                hint=f"set {assembler.variable} to the ptxas of CUDA "
                f"{_needed(unknown)}, or install the release of torch, with the "
                f"{triton.name} that it requires, which supports this GPU",
            )


@check("ND402", "error")
def find_wrong_assembler_paths(stack: Stack) -> Iterator[Finding]:
    """TRITON_PTXAS_PATH or TRITON_PTXAS_BLACKWELL_PATH is wrong."""
    for assembler in stack.toolchain.assemblers:
        program = assembler.other
        if program is None or program.named_by != assembler.variable:
            continue
        if program.problem is not None:
            then = "Triton fails"
            if assembler.used is assembler.bundled:
                then = f"Triton uses its own of CUDA {assembler.bundled.cuda} instead"
            yield Finding.of(
                code="ND402",
                path=program.path,
                message=f"{assembler.variable} names a program that does not work: "
                f"{program.problem}, and {then}",
                hint=f"unset {assembler.variable}, or set it to the path of a ptxas",
            )
            continue
        unknown = _unknown(program, assembler)
        if unknown:
            yield Finding.of(
                code="ND402",
                path=program.path,
                message=f"{assembler.variable} names the ptxas of CUDA {program.cuda}, "
                f"which does not know compute capability {_listed(unknown)}",
                hint=f"unset {assembler.variable}, or set it to the ptxas of CUDA "
                f"{_needed(unknown)}",
            )


def _unknown(program: Program, assembler: Assembler) -> list[ComputeCapability]:
    """Return the GPUs that a program makes no machine code for."""
    if program.cuda is None:
        return []
    cuda = program.cuda
    return [
        gpu for gpu in assembler.gpus if compiles_for(cuda, gpu, _suffix(gpu)) is False
    ]


def _suffix(capability: ComputeCapability) -> str:
    # Triton, sm_arch_from_capability: 'suffix = "a" if capability >= 90 else ""'.
    return "a" if capability >= _FIRST_WITH_FEATURES else ""


def _listed(capabilities: list[ComputeCapability]) -> str:
    return ", ".join(map(str, capabilities))


def _needed(capabilities: list[ComputeCapability]) -> str:
    """Return the CUDA versions that know the GPUs, in words."""
    last = [
        model.last_toolkit
        for gpu in capabilities
        if (model := gpu_models().get(gpu)) is not None
    ]
    # CUDA 13 makes no code for GPUs before 7.5, which earlier releases know.
    ended = [version for version in last if version is not None]
    if ended:
        return f"{min(ended)} or older"
    targets = [f"{gpu.sm}{_suffix(gpu)}_real" for gpu in capabilities]
    first = [version for version in map(first_toolkit, targets) if version is not None]
    return f"{max(first)} or newer" if first else "that knows it"
