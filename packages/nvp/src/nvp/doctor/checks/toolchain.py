"""ND4xx: whether the toolchain of the stack fits the GPUs and the driver."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from nvidia_variant_provider.errors import shown
from nvidia_variant_provider.machine.environment import (
    ComputeCapability,
    CudaVersion,
)

from ...gpu_code.units import first_toolkit
from ...knowledge.tables import gpu_models
from ..assemblers import Assembler
from ..commands import Advice, Command
from ..model import Finding, Stack, check
from ..nvidia import project_for
from ..programs import Program
from ..toolchain import (
    VARIABLE,
    compiles_for,
    driver_for_ptx,
    is_older_than,
)

_FIRST_WITH_FEATURES = ComputeCapability(9, 0)


@check("ND401", "error")
def find_old_assemblers(stack: Stack) -> Iterator[Finding]:
    """The ptxas that Triton uses does not know a GPU."""
    triton = stack.toolchain.triton
    for assembler in stack.toolchain.assemblers:
        program = assembler.used
        # The program may be torch's ptxas, which takes precedence over Triton's.
        owner = stack.distributions.get(program.named_by)
        if triton is None or owner is None:
            continue
        if program.problem is not None:
            # A program for another platform may run on the machine that is checked.
            elsewhere = program.failure == "foreign" and not stack.is_here
            if assembler.gpus and not elsewhere:
                yield Finding.of(
                    code="ND401",
                    distribution=owner.name,
                    path=program.path,
                    message=f"the {assembler.tool} of {owner.title} "
                    f"does not work: {program.problem}",
                    hint=Command(("chmod", "+x", program.path))
                    if os.path.isfile(program.path) and not _may_run(program.path)
                    else stack.restore(owner),
                )
            continue
        unknown = _unknown(program, assembler)
        if unknown:
            brought = "" if owner is triton else f" that {owner.title} brings"
            yield Finding.of(
                code="ND401",
                distribution=owner.name,
                path=program.path,
                message=f"{triton.title} assembles for compute "
                f"capability {_listed(unknown)} with the {assembler.tool} of CUDA "
                f"{program.cuda}{brought}, which does not know it",
                hint=_other_assembler(stack, assembler, unknown).before(
                    "; or install the release of torch, with the "
                    f"{triton.name} that it requires, which supports this GPU"
                ),
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
                hint=_other_assembler(stack, assembler, unknown).after(
                    f"unset {assembler.variable}, or "
                ),
            )


def _may_run(path: str) -> bool:
    return bool(os.stat(path).st_mode & 0o111) or os.name == "nt"


def _other_assembler(
    stack: Stack, assembler: Assembler, gpus: list[ComputeCapability]
) -> Advice:
    """Return the advice to install a ptxas that supports the GPUs."""
    said = f"set {assembler.variable} to the ptxas of CUDA {_needed(gpus)}"
    first = [x for gpu in gpus if (x := first_toolkit(f"{gpu.sm}{_suffix(gpu)}_real"))]
    driver = stack.environment.cuda_driver_version
    if not first or not _needed(gpus).endswith(" or newer"):
        return Advice(said)
    # A driver does not load code from a toolkit of a newer CUDA major version.
    major = max(max(first).major, min(driver.major, 13) if driver else 12)
    floor = max(CudaVersion(major, 0), *first)
    project = "nvidia-cuda-nvcc" + ("" if major > 12 else f"-cu{major}")
    place = f"cu{major}" if major > 12 else "cuda_nvcc"
    path = os.path.join(stack.installation.folders[0], "nvidia", place, "bin", "ptxas")
    install = stack.pip("install", f"{project}>={floor}")
    export = Command(("export", f"{assembler.variable}={path}"))
    return Advice(f"{said}: {install} && {export}", (install, export))


def _unknown(program: Program, assembler: Assembler) -> list[ComputeCapability]:
    """Return the GPUs for which a program cannot make machine code."""
    cuda = program.cuda
    return [
        gpu
        for gpu in assembler.gpus
        if cuda is not None and compiles_for(cuda, gpu, _suffix(gpu)) is False
    ]


def _suffix(capability: ComputeCapability) -> str:
    # Triton, sm_arch_from_capability: 'suffix = "a" if capability >= 90 else ""'.
    return "a" if capability >= _FIRST_WITH_FEATURES else ""


def _listed(capabilities: Iterable[ComputeCapability]) -> str:
    return ", ".join(map(str, capabilities))


def _needed(capabilities: list[ComputeCapability]) -> str:
    """Return the CUDA versions that support the GPUs, such as ``12.8 or newer``."""
    last = [
        model.last_toolkit
        for gpu in capabilities
        if (model := gpu_models().get(gpu)) is not None
    ]
    # CUDA 13 has dropped GPUs below compute capability 7.5.
    ended = [version for version in last if version is not None]
    if ended:
        return f"{min(ended)} or older"
    targets = [f"{gpu.sm}{_suffix(gpu)}_real" for gpu in capabilities]
    first = [version for version in map(first_toolkit, targets) if version is not None]
    return f"{max(first)} or newer" if first else "that knows it"


@check("ND404", "warning")
def find_other_compilers(stack: Stack) -> Iterator[Finding]:
    """Nvcc or NVRTC has another CUDA major version than torch."""
    torch = stack.toolchain.torch
    if torch is None or torch.cuda is None:
        return
    for program in stack.toolchain.nvcc if stack.builds_here else ():
        # torch, _check_cuda_version: another major version is an error when an
        # extension is built, and another minor version is a warning.
        if program.cuda is not None and program.cuda.major != torch.cuda.major:
            yield Finding.of(
                code="ND404",
                path=program.path,
                message=f"the nvcc of {program.named_by} is of CUDA {program.cuda}, "
                f"and torch {torch.version} is for CUDA {torch.cuda}",
                hint=f"install CUDA {torch.cuda}, and set CUDA_HOME to its directory",
            )
    nvrtc = [(item, item.cuda) for item in stack.toolchain.nvrtc if item.cuda]
    if any(cuda.major == torch.cuda.major for _, cuda in nvrtc) or _has_nvrtc(stack):
        return
    own = stack.distributions["torch"]
    wanted = project_for(stack, "libnvrtc.so", own, torch.cuda.major)
    for item, cuda in nvrtc:
        yield Finding.of(
            code="ND404",
            distribution=item.distribution.name,
            path=item.distribution.folder,
            message=f"the only NVRTC that is installed is of CUDA {cuda}, and "
            f"torch {torch.version} is for CUDA {torch.cuda}",
            hint=stack.pip("install", wanted or "nvidia-cuda-nvrtc"),
        )


@check("ND405", "error")
def find_newer_toolchain(stack: Stack) -> Iterator[Finding]:
    """This toolchain compiles code that is too new for the driver."""
    driver = stack.environment.cuda_driver_version
    if driver is None or not stack.environment.compute_capabilities:
        return
    yield from _newer_assemblers(stack, driver)
    yield from _newer_nvrtc(stack, driver)
    # Check nvcc only if extensions of torch are built on this machine.
    if stack.toolchain.torch is not None and stack.builds_here:
        for program in stack.toolchain.nvcc[:1]:
            if program.cuda is not None:
                yield from _newer_nvcc(stack, program, program.cuda, driver)


@check("ND406", "warning")
def find_left_out_gpus(stack: Stack) -> Iterator[Finding]:
    """TORCH_CUDA_ARCH_LIST leaves out a GPU."""
    architectures = stack.toolchain.architectures
    if architectures is None or stack.toolchain.torch is None:
        return
    if architectures.unknown:
        entries = ", ".join(map(shown, architectures.unknown[:3]))
        yield Finding.of(
            code="ND406",
            message=f"{VARIABLE} has entries that torch refuses: {entries}",
            hint="write one semicolon or one space between two entries, such as "
            f"{_wanted(stack) or '8.0'};9.0+PTX",
        )
        return
    nvcc = next((program.cuda for program in stack.toolchain.nvcc), None)
    driver = stack.environment.cuda_driver_version
    left_out = [
        gpu
        for gpu in stack.environment.compute_capabilities
        if not (
            architectures.has_code_for(gpu, nvcc, driver)
            or architectures.has_ptx_for(gpu)
        )
    ]
    if left_out:
        yield Finding.of(
            code="ND406",
            message=f"{VARIABLE} is {shown(architectures.text)}, which leaves out "
            f"compute capability {_listed(left_out)}",
            hint=f"add {';'.join(map(str, reversed(left_out)))} to it, or unset it, "
            "before you build an extension",
        )


def _has_nvrtc(stack: Stack) -> bool:
    """Return whether torch bundles NVRTC, or requires an installed distribution of it.

    ND304 reports a required distribution that is missing or has the wrong version.
    """
    torch = stack.distributions["torch"]
    if any(item.path.startswith("torch/lib/libnvrtc") for item in torch.files):
        return True
    names = {item.distribution.name for item in stack.toolchain.nvrtc}
    return any(
        need.user.name == "torch" and need.name in names for need in stack.requirements
    )


def _newer_assemblers(stack: Stack, driver: CudaVersion) -> Iterator[Finding]:
    """Report assemblers of Triton whose machine code the driver cannot load.

    A driver loads machine code from any minor version of its own CUDA major version,
    but not from a newer major version.
    """
    for assembler in stack.toolchain.assemblers:
        cuda = assembler.used.cuda
        if not assembler.gpus or cuda is None or cuda.major <= driver.major:
            continue
        yield Finding.of(
            code="ND405",
            distribution=getattr(stack.toolchain.triton, "name", None),
            path=assembler.used.path,
            message=f"Triton assembles for compute capability "
            f"{_listed(assembler.gpus)} with the {assembler.tool} of CUDA "
            f"{cuda}, and the driver is for CUDA {driver}",
            hint=f"install a driver for CUDA {cuda.major}, or set {assembler.variable} "
            f"to the ptxas of CUDA {driver.major}",
        )


def _newer_nvrtc(stack: Stack, driver: CudaVersion) -> Iterator[Finding]:
    """Report GPUs newer than NVRTC, if the driver is too old for the PTX from NVRTC."""
    for item in stack.toolchain.nvrtc:
        if item.cuda is None or driver_for_ptx(item.cuda) <= driver:
            continue
        newer = _newer_gpus(stack, item.cuda)
        if newer:
            yield Finding.of(
                code="ND405",
                distribution=item.distribution.name,
                path=item.distribution.folder,
                message=f"NVRTC of CUDA {item.cuda} has only PTX for compute "
                f"capability {_listed(newer)}, which needs a driver for "
                f"CUDA {driver_for_ptx(item.cuda)}; this one is for CUDA {driver}",
                hint=f"install a driver for CUDA {driver_for_ptx(item.cuda)} or newer",
            )


def _newer_nvcc(
    stack: Stack, program: Program, cuda: CudaVersion, driver: CudaVersion
) -> Iterator[Finding]:
    needed = driver_for_ptx(cuda)
    if cuda.major > driver.major:
        yield Finding.of(
            code="ND405",
            severity="warning",
            path=program.path,
            message=f"extensions that the nvcc of CUDA {cuda} builds need a driver "
            f"for CUDA {cuda.major}, and this one is for CUDA {driver}",
            hint=f"build extensions with CUDA {driver.major}: install it, and set "
            "CUDA_HOME to its directory",
        )
    elif needed > driver:
        only_ptx = _only_ptx(stack, cuda, driver)
        gpus = f" for compute capability {_listed(only_ptx)}"
        kind = f"the only code{gpus}" if only_ptx else "a program without machine code"
        yield Finding.of(
            code="ND405",
            severity=None if only_ptx else "note",
            path=program.path,
            message=f"the PTX of the nvcc of CUDA {cuda} needs a driver for CUDA "
            f"{needed}, and this one is for CUDA {driver}: "
            f"{kind} does not run",
            hint=f"install a driver for CUDA {needed} or newer, or set {VARIABLE} to "
            f"{_wanted(stack)} before you build an extension",
        )


def _only_ptx(
    stack: Stack, cuda: CudaVersion, driver: CudaVersion
) -> list[ComputeCapability]:
    """Return the GPUs for which extensions built on this machine have only PTX."""
    architectures = stack.toolchain.architectures
    if architectures is None:
        return _newer_gpus(stack, cuda)
    return [
        gpu
        for gpu in stack.environment.compute_capabilities
        if architectures.has_ptx_for(gpu)
        and not architectures.has_code_for(gpu, cuda, driver)
    ]


def _newer_gpus(stack: Stack, cuda: CudaVersion) -> list[ComputeCapability]:
    """Return the GPUs that are newer than a release of CUDA."""
    capabilities = stack.environment.compute_capabilities
    return [gpu for gpu in capabilities if is_older_than(cuda, gpu)]


def _wanted(stack: Stack) -> str:
    """Return a value of TORCH_CUDA_ARCH_LIST with machine code for all GPUs."""
    return ";".join(map(str, reversed(stack.environment.compute_capabilities)))
