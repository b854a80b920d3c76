"""ND601 to ND603: findings from the trials of the live proof."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence

from nvidia_variant_provider.machine import reasons
from nvidia_variant_provider.machine.environment import (
    ComputeCapability,
    CudaVersion,
    Gpu,
)

from ...gpu_code.units import split_units
from ...knowledge.tables import PTX, driver_branches, parse_isa, ptx_versions
from ..commands import Advice, Command
from ..model import Finding, Stack, declare
from .proof import GpuProof, Proof, Trial

declare("ND601", "error", "No CUDA context can be created.")
declare("ND602", "note", "The driver refuses a version of PTX.")
declare("ND603", "error", "A kernel does not run.")

_LOOK = "look for lines with NVRM or Xid in the kernel log: sudo dmesg"
_HINTS = {
    # CUDA_ERROR_OUT_OF_MEMORY
    2: "end the programs that use the memory of the GPU, which nvidia-smi lists",
    # CUDA_ERROR_DEVICE_UNAVAILABLE
    46: "another program uses the GPU alone: nvidia-smi --query-gpu=compute_mode "
    "--format=csv shows that mode, and nvidia-smi lists the programs",
    # CUDA_ERROR_JIT_COMPILER_NOT_FOUND
    221: "install the driver's library libnvidia-ptxjitcompiler; in a container, start "
    "it with -e NVIDIA_DRIVER_CAPABILITIES=compute,utility",
    # CUDA may return the following codes although NVML works.
    802: reasons.explain(reasons.NOT_READY)[1],
    803: reasons.explain(reasons.DRIVER_MISMATCH)[1],
    804: "remove the libraries of cuda-compat from the loader path; where there are "
    "none, the driver was updated: reboot",
    805: reasons.explain(reasons.MPS_UNREACHABLE)[1],
}
_WAIT = "give it more time with --live-timeout; if nvidia-smi hangs as well, restart"


def find_live(stack: Stack, proof: Proof) -> Iterator[Finding]:
    """Yield the findings of a live proof: first the GPUs, then torch."""
    yield from _find_contexts(stack, proof)
    yield from _find_refused(stack, proof)
    for gpu in proof.gpus:
        yield from _find_kernels(gpu)
        yield from _find_libraries(stack, gpu)
    if proof.torch is not None:
        yield from _find_torch(stack, proof.torch)


def _find_contexts(stack: Stack, proof: Proof) -> Iterator[Finding]:
    """ND601: no context can be made on a GPU."""
    for item in proof.gpus:
        trial = item.context
        if trial.status != "passed":
            yield Finding.of(
                code="ND601",
                message=f"no CUDA context can be made on {_named(item.gpu)}: "
                f"{_error(trial)}",
                hint=_context_hint(stack, trial),
            )
    for gpu in stack.environment.gpus:
        if gpu.compute_capability is None:
            sentence, step = reasons.explain(gpu.reason or reasons.UNKNOWN_ERROR)
            yield Finding.of(
                code="ND601",
                message=f"no CUDA context was tried on {_named(gpu)}: {sentence} "
                f"({gpu.reason})",
                hint=step,
            )
    listed = len(stack.environment.gpus)
    counts = [item.count for item in proof.gpus if item.count is not None]
    if counts and max(counts) < listed:
        yield Finding.of(
            code="ND601",
            severity="warning",
            message=f"CUDA shows {max(counts)} GPU{'s' if max(counts) > 1 else ''} to "
            f"programs, and the driver lists {listed}",
            hint="nvidia-smi -L shows whether MIG is on, with which a program sees one "
            f"instance only; {_LOOK}",
        )


def _find_refused(stack: Stack, proof: Proof) -> Iterator[Finding]:
    """ND602: the driver rejects a version of PTX."""
    reported: set[tuple[str, ...]] = set()
    for item in proof.gpus:
        refused = tuple(v for v, t in item.ptx.items() if t.status == "refused")
        capability = item.gpu.compute_capability
        if not refused or capability is None:
            continue
        if refused not in reported:
            reported.add(refused)
            yield Finding.of(
                code="ND602",
                message=f"the driver does not compile PTX {_span(refused)} "
                "(CUDA_ERROR_UNSUPPORTED_PTX_VERSION, 222), that of CUDA "
                f"{_span([str(_toolkit(v)) for v in refused])}",
                hint="do nothing, unless a build has only such PTX for a GPU; "
                f"{_driver_for(_toolkit(refused[-1]))} compiles it",
            )
        yield from _find_blocked(stack, capability, refused)


def _find_blocked(
    stack: Stack, capability: ComputeCapability, refused: Sequence[str]
) -> Iterator[Finding]:
    """ND602 as an error: a build has only PTX that the driver rejects."""
    oldest = parse_isa(refused[0])
    for distribution, report in stack.with_gpu_code():
        units = split_units(report)
        blocked: list[tuple[str, CudaVersion]] = []
        for unit in units:
            if unit.how(capability) != PTX:
                continue
            needed = unit.jit_toolkit(capability)
            if needed is not None and ptx_versions()[needed] >= oldest:
                blocked.append((unit.libraries[0].path, needed))
        # An NVIDIA library selects among its files, so it fails only if all fail.
        if not blocked or (distribution.is_library and len(blocked) < len(units)):
            continue
        path, needed = blocked[0]
        yield Finding.of(
            code="ND602",
            severity="error",
            distribution=distribution.name,
            path=distribution.locate(path),
            message=f"{distribution.title} has only PTX of CUDA "
            f"{needed} for compute capability {capability}, and the driver has refused "
            "to compile such PTX",
            hint=Advice.of(stack.reinstall(distribution.name)).after(
                f"install {_driver_for(needed)}, or replace the build: "
            ),
        )


def _find_kernels(item: GpuProof) -> Iterator[Finding]:
    """ND603: the test kernel does not run."""
    if item.machine_code.failed:
        yield _broken("machine code that the driver linked", item, item.machine_code)
    # Report PTX versions with the same error together: the cause is usually the same.
    groups: dict[tuple[str, str | None], list[str]] = {}
    for version, trial in item.ptx.items():
        if trial.failed:
            groups.setdefault((trial.status, trial.error), []).append(version)
    for versions in groups.values():
        name = f"a kernel of PTX {_span(versions)}"
        yield _broken(name, item, item.ptx[versions[0]])


def _broken(what: str, item: GpuProof, trial: Trial) -> Finding:
    return Finding.of(
        code="ND603",
        message=f"{what} does not run on {_named(item.gpu)}: {_error(trial)}",
        hint=_hint(trial),
    )


def _find_libraries(stack: Stack, item: GpuProof) -> Iterator[Finding]:
    """ND603: the driver does not load the kernels of a library."""
    for library, trial in item.libraries:
        if trial.failed:
            distribution = stack.distributions[library.distribution]
            yield Finding.of(
                code="ND603",
                distribution=distribution.name,
                path=distribution.locate(library.path),
                message=f"{_named(item.gpu)} does not load the machine code for "
                f"{library.target} of {distribution.title}: "
                f"{_error(trial)}",
                hint=_HINTS.get(trial.code) or stack.reinstall(distribution.name),
            )


def _find_torch(stack: Stack, steps: Mapping[str, Trial]) -> Iterator[Finding]:
    """ND603: a step of the torch test program fails, or torch finds no GPU."""
    torch = stack.distributions["torch"]
    for name, trial in steps.items():
        if trial.failed:
            yield Finding.of(
                code="ND603",
                distribution="torch",
                path=torch.folder,
                message=f"torch {torch.version}: {_STEPS[name.partition(' ')[0]]} "
                f"failed: {_error(trial)}",
                hint=_torch_hint(stack, name, trial),
            )
    loaded, available = steps["import"], steps.get("available")
    # Skip a build without CUDA, which ND207 reports.
    if (
        available is not None
        and available.more.get("available") is False
        and loaded.more.get("cuda")
    ):
        mask = stack.environ.get("CUDA_VISIBLE_DEVICES")
        given = "" if mask is None else f", with CUDA_VISIBLE_DEVICES={mask!r}"
        yield Finding.of(
            code="ND603",
            distribution="torch",
            path=torch.folder,
            message=f"torch {torch.version} says that there is no GPU{given}: "
            + str(available.more.get("why") or "torch.cuda.is_available() is False"),
            hint=_whole(stack, "import torch; torch.cuda.init()")
            if mask is None
            else "unset CUDA_VISIBLE_DEVICES",
        )


_STEPS = {
    "import": "import torch",
    "arch_list": "torch.cuda.get_arch_list()",
    "available": "torch.cuda.is_available()",
    "matmul": "a matrix product on the GPU",
    "compile": "torch.compile",
    "end": "the end of the program",
}


def _torch_hint(stack: Stack, name: str, trial: Trial) -> str | Command:
    if trial.status == "timeout":
        return _WAIT
    if name == "import":
        return _whole(stack, "import torch")
    if name == "compile":
        return "look at the findings of ND4xx; TORCH_LOGS=inductor shows more"
    return stack.reinstall("torch")


def _whole(stack: Stack, code: str) -> str:
    command = shlex.join([stack.installation.python or "python", "-c", code])
    return f"see the whole error: {command}"


def _context_hint(stack: Stack, trial: Trial) -> str:
    driver = stack.environment.cuda_driver_version
    if trial.status == "failed" and trial.code < 0 and driver is not None:
        # The error comes from cuda-python, which may be newer than the driver.
        return (
            "install cuda-python for the driver: pip install "
            f"'cuda-python<{driver.major + 1}'"
        )
    return _hint(trial)


def _hint(trial: Trial) -> str:
    return _WAIT if trial.status == "timeout" else _HINTS.get(trial.code, _LOOK)


def _error(trial: Trial) -> str:
    number = f" ({trial.code})" if trial.code > 0 else ""
    return f"{trial.error}{number}"


def _named(gpu: Gpu) -> str:
    return f"GPU {gpu.index} ({gpu.name})" if gpu.name else f"GPU {gpu.index}"


def _span(versions: Sequence[str]) -> str:
    ends = dict.fromkeys([versions[0], versions[-1]])
    return " to ".join(ends)


def _toolkit(isa: str) -> CudaVersion:
    """Return the first toolkit in the table that emits a version of PTX."""
    wanted = parse_isa(isa)
    return next(cuda for cuda, isa in ptx_versions().items() if isa == wanted)


def _driver_for(cuda: CudaVersion) -> str:
    branches: Iterable[int] = (b for b, v in driver_branches().items() if v >= cuda)
    branch = min(branches, default=None)
    name = f"a driver for CUDA {cuda}"
    return f"{name} (branch {branch})" if branch is not None else name
