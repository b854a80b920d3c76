"""``doctor``: whether the installed stack can use the GPUs of a machine."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence

from nvidia_variant_provider.errors import UsageError

from . import doctor_evidence, machine
from .live_text import live_lines
from .parsers import add_examples, add_jobs, require_jobs
from .progress import progress_bar
from .result import Result

__all__ = ["configure_parser", "execute"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..doctor.runner import Diagnosis
    from ..doctor.toolchain.finding import Toolchain
    from ..doctor.toolchain.programs import Program

_LONGEST = 86_400
"""A day, in seconds."""


def configure_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of the verb."""
    parser.add_argument(
        "--python",
        metavar="PATH",
        help="the interpreter or the environment to look at; the checks run no "
        "Python code of it (default: the activated environment)",
    )
    add_jobs(parser)
    parser.add_argument(
        "--live",
        action="store_true",
        help="run small kernels on the GPUs of this machine, load code of each "
        "library, and run torch; needs the extra live",
    )
    parser.add_argument(
        "--live-timeout",
        metavar="SECONDS",
        type=float,
        default=180.0,
        help="the most seconds of --live for each GPU, and for torch "
        "(default: %(default)g)",
    )
    doctor_evidence.add_options(parser)
    machine.add_options(parser)
    add_examples(
        parser,
        "doctor",
        "doctor --python .venv --cuda-driver 12.8 --sm-arch 9.0",
        "doctor --python .venv --live",
        "doctor --workload 'python t.py' --receipt stack.json",
    )


def execute(options: argparse.Namespace, environ: Mapping[str, str]) -> Result:
    """Run all checks; ``data`` has what they found, and what the stack consists of."""
    from ..api import doctor

    jobs = require_jobs(options)
    # The comparison is false for "nan" as well.
    if not 0 < options.live_timeout <= _LONGEST:
        hint = f"give seconds, up to {_LONGEST}"
        raise UsageError("--live-timeout must be more than 0", hint=hint)
    is_here = not _names_another_machine(options)
    evidence = doctor_evidence.evidence_of(options, is_here=is_here)
    with doctor_evidence.ending_children():
        diagnosis = doctor(
            options.python,
            environment=machine.find_environment(options, environ),
            is_here=is_here,
            machine_options=machine.words_of(options),
            environ=environ,
            jobs=jobs,
            watch=lambda name: progress_bar(f"reading {name}"),
            live=options.live_timeout if options.live else None,
            evidence=evidence,
        )
    written, errors = doctor_evidence.write_receipts(diagnosis, options.receipt)
    exit_code = 1 if diagnosis.has_errors else 0
    return Result(
        exit_code=errors[0].exit_code if errors else exit_code,
        data=diagnosis.to_dict(),
        text=[*_text(diagnosis, written)],
        notes=[*diagnosis.notes, *map(str, errors)],
        errors=errors,
    )


def _names_another_machine(options: argparse.Namespace) -> bool:
    given = (options.cuda_driver, options.sm_arch, options.environment)
    return any(item is not None for item in given)


def _text(diagnosis: Diagnosis, written: Sequence[str]) -> Iterator[str]:
    stack = diagnosis.stack
    driver = stack.environment.cuda_driver_version
    yield f"Driver:      {f'CUDA {driver}' if driver else 'none'}"
    for gpu in stack.environment.gpus:
        capability = gpu.compute_capability or "unknown"
        name = gpu.name or "a GPU"
        yield f"GPU {gpu.index}:       {name}, compute capability {capability}"
    yield f"Environment: {stack.installation.prefix}"
    builds = [f"{item.name} {item.version}" for item, _ in stack.with_gpu_code()]
    yield f"GPU code in: {', '.join(builds) or 'no distribution'}"
    tools = ", ".join(_tools(diagnosis.stack.toolchain))
    if tools:
        yield f"Toolchain:   {tools}"
    if diagnosis.live is not None:
        yield from live_lines(diagnosis.live)
    yield from doctor_evidence.text(diagnosis)
    yield from written
    for finding in diagnosis.findings:
        yield ""
        yield f"{finding.code} {finding.severity}: {finding.message}"
        if finding.path:
            yield f"  in {finding.path}"
        yield f"  {finding.hint}"
    yield ""
    yield _summary(diagnosis)
    environment = stack.environment
    if driver is None or not environment.compute_capabilities:
        what = "NVIDIA driver" if driver is None else "GPU"
        yield (
            f"There is no {what}, so that no build was compared with one; "
            "--cuda-driver and --sm-arch name another machine."
        )


def _tools(toolchain: Toolchain) -> Iterator[str]:
    """Yield what compiles for torch and Triton; nothing where neither is installed."""
    torch, triton = toolchain.torch, toolchain.triton
    if torch is not None and torch.cuda is not None:
        yield f"torch for CUDA {torch.cuda}"
    for assembler in toolchain.assemblers:
        if assembler.gpus and triton is not None:
            yield f"{assembler.tool} {_cuda(assembler.used)} for {triton.name}"
    if torch is not None:
        for program in toolchain.nvcc[:1]:
            yield f"nvcc {_cuda(program)} for extensions"


def _cuda(program: Program) -> str:
    if program.cuda is None:
        return "of an unknown CUDA"
    return f"of CUDA {program.cuda}"


def _summary(diagnosis: Diagnosis) -> str:
    if not diagnosis.findings:
        read = " in what could be read" if diagnosis.notes else ""
        return f"No check found anything wrong{read}."
    counts = []
    for severity in ("error", "warning", "note"):
        count = sum(item.severity == severity for item in diagnosis.findings)
        if count:
            counts.append(f"{count} {severity}{'s' if count > 1 else ''}")
    return f"Found {', '.join(counts)}."
