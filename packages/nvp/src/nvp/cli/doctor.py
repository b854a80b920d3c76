"""``doctor``: check whether the installed stack can use the GPUs of a machine.

The command can also run workloads of the user, and write a receipt with the results.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import shlex
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nvidia_variant_provider.errors import InputError, UsageError, printable, shown

from .arguments import (
    add_machine_options,
    add_options,
    find_environment,
    require_positive,
    words_of,
)
from .parsers import add_examples
from .render import Result, progress_bar

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvidia_variant_provider.machine.environment import Environment

    from ..doctor.programs import Program
    from ..doctor.runner import Diagnosis, Evidence
    from ..doctor.toolchain import Toolchain


_LONGEST = 86_400
"""The longest time limit of ``--live``: a day, in seconds."""


_OPTIONS = """
--python PATH
  interpreter or environment to check, without running its Python code (default: the
  activated environment)
--jobs
--all
  check nvcc even if no distribution was installed from source and no --workload is
  given
--live
  run small kernels on the GPUs, load code of each library, and run torch; needs the
  extra live
--live-timeout SECONDS
  time limit of --live for each GPU, and for torch (default: %(default)g)
--report FILE
  write machine, versions and findings as Markdown for an issue tracker, without names
  of users or home directories
--share
  print the same report, short enough for a comment
"""

_EVIDENCE = """
--workload COMMAND...
  run this command in the environment, and report its result, graph breaks and GPU
  memory; may be repeated
--deadline SECONDS
  kill a workload after this time (default: 600, or the receipt's)
--receipt FILE...
  write a receipt of the stack to FILE.json, or for people to FILE.md; may be repeated
--reason TEXT...
  reason for the stack, kept in the receipt; NAME=TEXT is for a distribution or an
  environment variable; may be repeated
--against FILE
  compare the stack with this receipt, and run its workloads again
"""


def configure_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_options(
        parser, _OPTIONS, live_timeout={"type": _live_seconds, "default": 180.0}
    )
    group = parser.add_argument_group("workloads and receipts")
    add_options(group, _EVIDENCE, deadline={"type": _seconds})
    add_machine_options(parser)
    add_examples(
        parser,
        "doctor",
        "doctor --python .venv --cuda-driver 12.8 --sm-arch 9.0",
        "doctor --python .venv --live",
        "doctor --workload 'python t.py' --receipt stack.json",
    )


def execute(options: argparse.Namespace, environ: Mapping[str, str]) -> Result:
    """Run all checks; ``data`` has the findings and the content of the stack."""
    from ..api import doctor

    require_positive(options, "jobs")
    is_here = not words_of(options)
    evidence = _evidence_of(options, is_here=is_here)
    diagnosis = doctor(
        options.python,
        environment=find_environment(options, environ),
        is_here=is_here,
        machine_options=words_of(options),
        environ=environ,
        jobs=options.jobs,
        watch=lambda name: progress_bar(f"reading {name}"),
        live=options.live_timeout if options.live else None,
        everything=options.all,
        evidence=evidence,
    )
    written, errors = _write_receipts(diagnosis, options.receipt)
    if options.report is not None:
        from ..doctor.issue import issue_lines
        from ..files import replace_file

        with _collecting(errors):
            lines = issue_lines(diagnosis, environ)
            replace_file(options.report, "\n".join(lines) + "\n")
            written.append(f"Report:      {printable(options.report)}")
    if options.share:
        from ..doctor.issue import LONGEST_SHARED, issue_lines

        text = issue_lines(diagnosis, environ, most=LONGEST_SHARED)
    else:
        text = [*_text(diagnosis, written)]
    exit_code = 1 if diagnosis.has_errors else 0
    notes = [*diagnosis.notes, *map(str, errors)]
    if diagnosis.unfinished is not None:  # one of the notes already
        errors.append(diagnosis.unfinished)
    return Result(
        exit_code=errors[0].exit_code if errors else exit_code,
        data=diagnosis.to_dict(),
        text=text,
        notes=notes,
        following=None if options.share else _following(diagnosis, options),
        errors=errors,
    )


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
        yield from _live_lines(diagnosis.live)
    yield from _workload_lines(diagnosis)
    yield from written
    for finding in diagnosis.findings:
        yield ""
        yield f"{finding.code} {finding.severity}: {finding.message}"
        if finding.path:
            yield f"  in {finding.path}"
        yield f"  {finding.hint}"
    yield ""
    yield _summary(diagnosis)
    yield from _commands(diagnosis)
    what = _lacking(stack.environment)
    if what is not None:
        yield f"No {what} was found, so no build was compared with one."


def _lacking(environment: Environment) -> str | None:
    if environment.cuda_driver_version is None:
        return "NVIDIA driver"
    return None if environment.compute_capabilities else "GPU"


def _following(diagnosis: Diagnosis, options: argparse.Namespace) -> str:
    """Return the next step, with a command that can be copied."""
    words = ["nvp", "doctor", *(["--python", options.python] if options.python else [])]
    if diagnosis.findings:
        again = shlex.join([*words, *words_of(options)])
        return f"follow the hints above, then check again: {again}"
    if _lacking(diagnosis.stack.environment):
        words += ["--cuda-driver", "12.8", "--sm-arch", "9.0"]
        return f"to compare with another machine: {shlex.join(words)}"
    return "nothing to do; to check a lock file: nvp check uv.lock"


def _tools(toolchain: Toolchain) -> Iterator[str]:
    """Yield phrases on the CUDA version of torch, and on the available compilers."""
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
        return "of an unknown CUDA version"
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


def _commands(diagnosis: Diagnosis) -> Iterator[str]:
    """Yield the commands that fix several findings together."""
    from ..doctor.model import commands_of

    commands = commands_of(diagnosis.findings)
    if commands and len(diagnosis.findings) > 1:
        yield "Do this:"
        yield from (f"  {command}" for command in commands)


def _live_lines(live: Mapping[str, Any]) -> Iterator[str]:
    """Yield lines about the results of the live checks.

    :param live: ``data.live`` of the report.
    """
    for gpu in live["gpus"]:
        label = f"Live, GPU {gpu['index']}:"
        yield f"{label:13}{', '.join(_gpu_clauses(gpu))}"
    if live["torch"] is not None:
        torch = live["torch"]
        clauses = [
            f"{step['name']} in {_duration(step)}"
            if step["status"] == "passed"
            else f"{step['name']} failed"
            for step in torch["steps"]
            if step["name"] in _SHOWN
        ]
        clauses += _products(torch["steps"])
        targets = torch["arch_list"]
        if targets:
            clauses.append(f"built for {' '.join(targets)}")
        yield f"Live, torch: {', '.join(clauses)}"


_SHOWN = ("import", "compile")


def _gpu_clauses(gpu: Mapping[str, Any]) -> Iterator[str]:
    context = gpu["context"]
    if context["status"] != "passed":
        yield f"no context ({context['error']})"
        return
    yield f"context in {_duration(context)}"
    linked = gpu["machine_code"]
    does = "runs" if linked["status"] == "passed" else "does not run"
    yield f"machine code {does}"
    yield from _ptx_clauses(gpu["ptx"])
    trials = [item["status"] for item in gpu["libraries"]]
    tried = [status for status in trials if status != "skipped"]
    if tried:
        loaded = tried.count("passed")
        yield f"code of {loaded} of {len(tried)} libraries loads"
    if len(tried) < len(trials):
        yield f"{len(trials) - len(tried)} libraries have nothing to load"


def _ptx_clauses(trials: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    words = {
        "passed": "runs",
        "refused": "is refused",
        "skipped": "was not tried",
        "failed": "fails",
    }
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for trial in trials:
        word = words.get(trial["status"], trial["status"])
        groups.setdefault(word, []).append(trial)
    for word, group in groups.items():
        ends = dict.fromkeys([group[0]["version"], group[-1]["version"]])
        times = [item["compiled"] for item in group if item["compiled"] is not None]
        took = f" (compiled in at most {max(times) * 1000:.0f} ms)" if times else ""
        yield f"PTX {' to '.join(ends)} {word}{took}"


def _products(steps: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    products = [step for step in steps if step["name"].startswith("matmul")]
    if products:
        right = sum(step["status"] == "passed" for step in products)
        yield f"matrix product right on {right} of {len(products)} GPUs"


def _duration(trial: Mapping[str, Any]) -> str:
    return f"{trial['seconds'] or 0:.2f} s"


def _evidence_of(options: argparse.Namespace, *, is_here: bool) -> Evidence | None:
    """Return the workloads and receipts from the options; ``None`` if there are none.

    :param is_here: whether the diagnosis is about this machine.
    :raises UsageError: options contradict each other, or a command is malformed.
    :raises InputError: a receipt cannot be read or written.
    """
    if options.reason and not options.receipt:
        message = "--reason: there is no receipt that would have it"
        raise UsageError(message, hint="add --receipt FILE.json")
    if not (options.workload or options.receipt or options.against is not None):
        if options.deadline is not None:
            message = "--deadline: there is no workload"
            raise UsageError(message, hint="add --workload COMMAND")
        return None
    from ..doctor.receipts.document import check_target
    from ..doctor.receipts.making import read_receipt
    from ..doctor.runner import Evidence
    from ..doctor.workloads import split_command

    if options.workload and not is_here:
        message = "--workload: the options name another machine, and it would run here"
        hint = "leave out --cuda-driver, --sm-arch, --no-gpu and --environment"
        raise UsageError(message, hint=hint)
    for command in options.workload:
        split_command(command)
    for path in options.receipt:
        check_target(path)
    against = None if options.against is None else read_receipt(options.against)
    return Evidence(
        workloads=options.workload,
        deadline=options.deadline,
        reasons=options.reason,
        with_receipt=bool(options.receipt),
        against=against,
        starting=_tell if sys.stderr.isatty() else None,
    )


def _workload_lines(diagnosis: Diagnosis) -> Iterator[str]:
    for record in diagnosis.workloads:
        words = [f"{record['outcome']} after {record['seconds']:.1f} s"]
        for name in ("graph_breaks", "fallbacks", "recompilations"):
            count = record["totals"][name]
            if count:
                singular = name.replace("_", " ").removesuffix("s")
                words.append(f"{count} {singular}{'s' if count > 1 else ''}")
        words += [
            f"at most {gpu['peak'] >> 20:,} MiB in use on GPU {gpu['index']}"
            for gpu in record["gpu_memory"] or ()
        ]
        yield f"Workload:    {printable(record['command'])}: {', '.join(words)}"


def _write_receipts(
    diagnosis: Diagnosis, paths: Sequence[str]
) -> tuple[list[str], list[InputError]]:
    """Write the receipt of a diagnosis to each path, atomically.

    :returns: messages for users, and the errors.
    """
    from ..doctor.receipts.document import to_text
    from ..files import replace_file

    receipt = diagnosis.receipt
    errors: list[InputError] = []
    lines: list[str] = []
    if receipt is None:
        return lines, errors
    for path in paths:
        with _collecting(errors):
            replace_file(path, to_text(receipt, path))
            lines.append(f"Receipt:     {printable(path)}")
    return lines, errors


@contextlib.contextmanager
def _collecting(errors: list[InputError]) -> Iterator[None]:
    """Catch an `InputError` and add it to ``errors``: other files are still written."""
    try:
        yield
    except InputError as error:
        errors.append(error)


def _tell(command: str, deadline: float) -> None:
    from .render import say

    say([f"running for at most {deadline:g} seconds: {printable(command)}"], aside=True)


def _seconds(text: str, longest: float = threading.TIMEOUT_MAX) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= longest:  # NaN is rejected too
        message = f"{shown(text)} is not a number of seconds above 0, up to {longest:g}"
        raise argparse.ArgumentTypeError(message)
    return seconds


def _live_seconds(text: str) -> float:
    return _seconds(text, _LONGEST)
