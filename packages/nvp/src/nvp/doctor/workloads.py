"""Run workloads in the environment of a stack, and record the results.

Each workload has a deadline. When the workload ends, all of its processes are killed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import IO, Any, TypeAlias

from nvidia_variant_provider.errors import UsageError, printable, redacted, shown

from .compile_log import CompileLog, split_prefix
from .live.processes import Memory, watch_memory
from .model import Finding, Stack, declare
from .programs import end_family, find_program, pipe_name, started

_PIECE = 256 * 1024
_LONGEST_LINE = 64 * 1024
_TAIL = 16 * 1024
"""The number of bytes kept from the end of each stream."""

_DRAIN = 5.0
"""Seconds to read the rest of the pipes after all processes have ended."""

_LONGEST_COMMAND = 32 * 1024
"""The maximum length of a command line: splitting takes time with its square."""

_TORCH_LOGS = ("graph_breaks", "recompiles")


@dataclass(kw_only=True, slots=True)
class Outcome:
    """The outcome of a command.

    :param exit_code: ``None`` if the command was killed or never started.
    :param signal: the number of the signal that ended the command.
    :param error: why the command could not be started.
    :param output: the number of bytes printed to both streams together.
    :param tails: the last bytes of each stream, keyed by the name of the stream.
    """

    exit_code: int | None = None
    signal: int | None = None
    timed_out: bool = False
    error: str | None = None
    seconds: float = 0.0
    output: int = 0
    tails: dict[str, bytes] = field(default_factory=dict)


def split_command(command: str, *, windows: bool = os.name == "nt") -> list[str]:
    """Split a command line into words, without a shell.

    :param windows: treat a backslash as part of a path, not as an escape.
    :raises UsageError: there are no words, or too many, or a quotation is not closed.
    """
    hint = "give one command line, such as --workload 'python train.py'"
    if len(command) > _LONGEST_COMMAND:
        message = f"--workload: {shown(command)} is longer than {_LONGEST_COMMAND:,}"
        raise UsageError(f"{message} characters", hint="call a script")
    try:
        words = shlex.split(command, posix=not windows)
    except ValueError as error:
        message = f"--workload: {shown(command)}: {str(error).lower()}"
        raise UsageError(message, hint=hint) from None
    if windows:  # remove quotation marks, which shlex keeps
        words = [
            word[1:-1] if len(word) > 1 and word[0] == word[-1] in "\"'" else word
            for word in words
        ]
    if not words or not words[0] or "\0" in command:
        raise UsageError(f"--workload: {shown(command)} is not a command", hint=hint)
    return words


def environment_of(
    environ: Mapping[str, str], *, prefix: str, python: str | None
) -> dict[str, str]:
    """Return variables that activate a workload's environment and enable torch's logs.

    :param prefix: the directory of the environment.
    :param python: the environment's interpreter; its directory comes first in ``PATH``.
    """
    variables = dict(environ)
    variables.pop("PYTHONHOME", None)
    folder = os.path.join(prefix, "Scripts" if os.name == "nt" else "bin")
    folders = [os.path.dirname(python)] if python else [folder]
    if folder not in folders and os.path.isdir(folder):
        folders.append(folder)
    variables["PATH"] = os.pathsep.join([*folders, variables.get("PATH") or os.defpath])
    variables.pop("VIRTUAL_ENV", None)
    if os.path.isfile(os.path.join(prefix, "pyvenv.cfg")):
        variables["VIRTUAL_ENV"] = prefix
    given = variables.get("TORCH_LOGS", "")
    wanted = [name for name in _TORCH_LOGS if name not in given.split(",")]
    variables["TORCH_LOGS"] = ",".join([*filter(None, [given]), *wanted])
    variables["TRITON_PRINT_AUTOTUNING"] = "1"
    return variables


def run_command(
    words: Sequence[str],
    variables: Mapping[str, str],
    *,
    deadline: float,
    log: CompileLog,
) -> Outcome:
    """Run a command until it ends, but at most for ``deadline`` seconds.

    The output is read continuously, but only its end is kept. When the command has
    ended or reached its deadline, all of its processes are killed.

    :param log: receives the relevant lines of the output.
    """
    outcome = Outcome()
    program = find_program(words[0], variables)
    if program is None:
        outcome.error = f"there is no program {shown(words[0])} in the environment"
        return outcome
    readers: list[_Reader] = []

    def end_all(process: subprocess.Popen[bytes], mark: str) -> None:
        outcome.seconds = time.monotonic() - start
        end_family(process, mark, {reader.pipe for reader in readers})

    start = time.monotonic()
    try:
        # `started` ends all processes, even after Ctrl-C.
        with started(
            [program, *words[1:]],
            end_all,
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            for name in ("stdout", "stderr"):
                stream: IO[bytes] = getattr(process, name)
                readers.append(_Reader(name, stream, log))
                readers[-1].thread.start()
            try:
                code = process.wait(timeout=deadline)
            except subprocess.TimeoutExpired:
                outcome.timed_out = True
            else:
                outcome.exit_code = code if code >= 0 else None
                outcome.signal = -code if code < 0 else None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        outcome.error = f"{shown(program)} cannot be started: {reason}"
        return outcome
    end = time.monotonic() + _DRAIN
    for reader in readers:
        reader.thread.join(max(0.0, end - time.monotonic()))
        outcome.output += reader.bytes
        outcome.tails[reader.name] = bytes(reader.tail)
    return outcome


class _Reader:
    """Reads a stream in a thread, because reading a pipe has no timeout."""

    def __init__(self, name: str, stream: IO[bytes], log: CompileLog) -> None:
        self.name = name
        self.bytes = 0
        self.tail = b""
        self.pipe = pipe_name(stream)
        self._stream = stream
        self._log = log
        self._rest = b""
        self._skips = False
        self.thread = threading.Thread(target=self._read, daemon=True)

    def _read(self) -> None:
        with self._stream, contextlib.suppress(OSError, ValueError):
            while piece := os.read(self._stream.fileno(), _PIECE):
                self.bytes += len(piece)
                self.tail = (self.tail + piece)[-_TAIL:]
                self._take(piece)
        if self._rest and not self._skips:
            self._take(b"\n")

    def _take(self, piece: bytes) -> None:
        lines, end, rest = (self._rest + piece).rpartition(b"\n")
        if end:
            if self._skips:  # skip the rest of an overlong line
                lines = lines.partition(b"\n")[2]
                self._skips = False
            if self._log.is_relevant(self.name, lines):
                for line in lines.split(b"\n"):
                    text = line.removesuffix(b"\r").decode("utf-8", "replace")
                    self._log.read_line(self.name, text)
        if len(rest) > _LONGEST_LINE:
            rest, self._skips = b"", True
        self._rest = rest


declare("ND604", "error", "A workload failed.")
declare("ND605", "warning", "A workload broke its graph or fell back to eager mode.")

DEADLINE = 600
"""The default time limit of a workload, in seconds."""

LONGEST_DEADLINE = threading.TIMEOUT_MAX
"""The longest wait that Python supports, in seconds."""

_LAST_LINES = 20
_SHOWN = 3
"""The maximum number of source locations in a finding."""

logger = logging.getLogger(__name__)

Record: TypeAlias = Mapping[str, Any]
"""The result of a workload, as in ``schemas/receipt.schema.json``."""

Starting: TypeAlias = Callable[[str, float], None]
"""A function that gets the command and the deadline before a workload is run."""


def run_workloads(
    commands: Mapping[str, float],
    stack: Stack,
    *,
    starting: Starting | None = None,
) -> tuple[Record, ...]:
    """Run commands one after the other in the environment of a stack.

    :param commands: the command lines, each with its deadline in seconds.
    :raises UsageError: a command line is empty or malformed; no command has been run.
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
    except ValueError:  # real-time signals have no name
        return str(number)


def _last_lines(outcome: Outcome) -> list[str]:
    """Return the end of stderr, or else of stdout, without torch's log lines.

    The result is empty for a command that has passed.
    """
    if outcome.exit_code == 0:
        return []
    for name in ("stderr", "stdout"):
        text = outcome.tails.get(name, b"").decode("utf-8", "replace")
        lines = [
            printable(redacted(line.rstrip()))
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


_BROKEN = (
    ("graph_breaks", "broke its graph", "make the code at this place traceable"),
    ("fallbacks", "fell back to eager", "look at the reason for this place"),
)


def find_broken_graphs(records: Sequence[Record]) -> Iterator[Finding]:
    """ND605: a workload broke its graph or fell back to eager."""
    for record in records:
        for name, verb, hint in _BROKEN:
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
    command = shlex.join(split_command(record["command"]))
    return f"see all of its output: PATH={folder}:$PATH {printable(command)}"


def _python(stack: Stack) -> str:
    installation = stack.installation
    return installation.python or os.path.join(installation.prefix, "bin", "python")


def _shown(record: Record) -> str:
    return f'"{printable(record["command"])}"'


def _place(entry: Mapping[str, Any]) -> str:
    place = printable(f"{entry['path']}:{entry['line']}")
    return f"{place} ({printable(entry['reason'])})" if entry["reason"] else place
