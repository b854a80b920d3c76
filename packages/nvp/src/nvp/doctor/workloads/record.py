"""Run workloads in the environment of a stack, and record what they did."""

from __future__ import annotations

import logging
import os
import shlex
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, TypeAlias

from nvidia_variant_provider.errors import printable

from ..model import Finding, declare
from ..stack import Stack
from .compile_log import CompileLog, split_prefix
from .memory import Memory, watch_memory
from .running import Outcome, environment_of, run_command, split_command

__all__ = [
    "DEADLINE",
    "LONGEST_DEADLINE",
    "Starting",
    "find_broken_graphs",
    "find_failed_workloads",
    "run_workloads",
]

declare("ND604", "error", "A workload failed.")
declare("ND605", "warning", "A workload broke its graph or fell back to eager.")

DEADLINE = 600
"""The seconds that a workload has, unless the user says something else."""

LONGEST_DEADLINE = threading.TIMEOUT_MAX
"""The most seconds that a program of this system can wait for another one."""

_LAST_LINES = 20
_SHOWN = 3
"""How many places a finding names."""

logger = logging.getLogger(__name__)

Record: TypeAlias = Mapping[str, Any]
"""What one workload did, as ``schemas/receipt.schema.json`` describes it."""

Starting: TypeAlias = Callable[[str, float], None]
"""Called with the command and the deadline before a workload is run."""


def run_workloads(
    commands: Mapping[str, float],
    stack: Stack,
    *,
    starting: Starting | None = None,
) -> tuple[Record, ...]:
    """Run commands one after the other in the environment of a stack.

    :param commands: each with its deadline in seconds.
    :raises UsageError: a command has no words. Nothing has been run then.
    """
    split = [(command, split_command(command)) for command in commands]
    variables = environment_of(
        stack.environ,
        prefix=stack.installation.prefix,
        python=stack.installation.python,
    )
    records = []
    for command, words in split:
        deadline = commands[command]
        if starting is not None:
            starting(command, deadline)
        logger.info("running %s for at most %g seconds", command, deadline)
        records.append(_run(command, words, variables, stack, deadline))
    return tuple(records)


def _run(
    command: str,
    words: Sequence[str],
    variables: Mapping[str, str],
    stack: Stack,
    deadline: float,
) -> Record:
    log = CompileLog()
    has_gpu = bool(stack.environment.gpus) and stack.is_here
    memory = Memory(reason=None if has_gpu else "there is no GPU")
    watch = watch_memory(variables, deadline) if has_gpu else nullcontext(memory)
    with watch as memory:
        outcome = run_command(words, variables, deadline=deadline, log=log)
    return {
        "command": command,
        "outcome": _name(outcome),
        "exit_code": outcome.exit_code,
        "signal": _signal_name(outcome.signal),
        "error": outcome.error,
        "seconds": round(outcome.seconds, 3),
        "deadline": deadline,
        **log.to_dict(),
        "gpu_memory": memory.gpus,
        "gpu_memory_reason": memory.reason,
        "output_bytes": outcome.output,
        "last_lines": _last_lines(outcome),
    }


def _name(outcome: Outcome) -> str:
    if outcome.error is not None:
        return "not-started"
    if outcome.timed_out:
        return "timed-out"
    if outcome.signal is not None:
        return "killed"
    return "passed" if outcome.exit_code == 0 else "failed"


def _signal_name(number: int | None) -> str | None:
    if number is None:
        return None
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return str(number)


def _last_lines(outcome: Outcome) -> list[str]:
    """Return the end of stderr, or else of stdout, without the lines of torch's logs.

    A command that has passed says nothing there that anyone needs.
    """
    if outcome.exit_code == 0:
        return []
    for name in ("stderr", "stdout"):
        text = outcome.tails.get(name, b"").decode("utf-8", "replace")
        lines = [
            printable(line.rstrip())
            for line in text.splitlines()
            if line.strip() and not split_prefix(line)[0]
        ]
        if lines:
            return [line[:500] for line in lines[-_LAST_LINES:]]
    return []


def find_failed_workloads(stack: Stack, records: Sequence[Record]) -> Iterator[Finding]:
    """ND604: a workload failed."""
    for record in records:
        if record["outcome"] == "passed":
            continue
        last = record["last_lines"][-1:]
        ending = f": {last[0]}" if last else ""
        yield Finding.of(
            code="ND604",
            message=f"the workload {_shown(record)} {_verdict(record)}{ending}",
            hint=_next_step(stack, record),
        )


def find_broken_graphs(records: Sequence[Record]) -> Iterator[Finding]:
    """ND605: a workload broke its graph or fell back to eager."""
    for record in records:
        for name, verb, hint in (
            (
                "graph_breaks",
                "broke its graph",
                "make the code at this place traceable",
            ),
            ("fallbacks", "fell back to eager", "look at the reason for this place"),
        ):
            total = record["totals"][name]
            if not total:
                continue
            entries = record[name]
            places = [_place(entry) for entry in entries[:_SHOWN]]
            more = len(entries) - len(places)
            if more > 0:
                places.append(f"{more} more")
            times = "once" if total == 1 else f"{total} times"
            yield Finding.of(
                code="ND605",
                path=entries[0]["path"] if entries else None,
                message=f"the workload {_shown(record)} {verb} {times}: "
                f"{'; '.join(places)}",
                hint=f"{hint}; TORCH_LOGS=graph_breaks,recompiles shows all of it",
            )


def _verdict(record: Record) -> str:
    if record["error"] is not None:
        return f"cannot be run: {record['error']}"
    if record["outcome"] == "timed-out":
        return f"did not end within {record['deadline']:g} s, and was killed"
    if record["signal"] is not None:
        return f"was killed by {record['signal']}"
    return f"ended with exit code {record['exit_code']}"


def _next_step(stack: Stack, record: Record) -> str:
    if record["outcome"] == "timed-out":
        return "give it more time with --deadline, or find out where it waits"
    if record["outcome"] == "not-started":
        folder = os.path.dirname(_python(stack))
        return f"name a program in {folder} or in PATH, or give its whole path"
    if record["signal"] == "SIGKILL":
        return "see whether the machine has run out of memory: dmesg names the process"
    folder = shlex.quote(os.path.dirname(_python(stack)))
    return f"see all of its output: PATH={folder}:$PATH {printable(record['command'])}"


def _python(stack: Stack) -> str:
    installation = stack.installation
    return installation.python or os.path.join(installation.prefix, "bin", "python")


def _shown(record: Record) -> str:
    return f'"{printable(record["command"])}"'


def _place(entry: Mapping[str, Any]) -> str:
    place = printable(f"{entry['path']}:{entry['line']}")
    return f"{place} ({printable(entry['reason'])})" if entry["reason"] else place
