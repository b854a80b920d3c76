"""Run a command of the user with a deadline, and leave none of its processes behind."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, cast

from nvidia_variant_provider.errors import UsageError, shown

from ..programs import end_family, pipe_name, started
from .compile_log import CompileLog

__all__ = ["Outcome", "environment_of", "run_command", "split_command"]

_MARK = "NV_VARIANT_PROVIDER_WORKLOAD"
"""A variable that all processes of a workload inherit, also those that leave its
session. Its value differs in each run."""

_PIECE = 256 * 1024
_LONGEST_LINE = 64 * 1024
_TAIL = 16 * 1024
"""How many bytes of the end of each stream are kept."""

_DRAIN = 5.0
"""The seconds for what is left in the pipes when all processes have ended."""

_TORCH_LOGS = ("graph_breaks", "recompiles")


@dataclass(kw_only=True, slots=True)
class Outcome:
    """What a command did.

    :param exit_code: ``None`` where it was killed, or never started.
    :param signal: the number of the signal that ended it.
    :param error: why it could not be started.
    :param output: the bytes that it printed on both streams.
    :param tails: the end of each stream, by name.
    """

    exit_code: int | None = None
    signal: int | None = None
    timed_out: bool = False
    error: str | None = None
    seconds: float = 0.0
    output: int = 0
    tails: dict[str, bytes] = field(default_factory=dict)


def split_command(command: str, *, windows: bool = os.name == "nt") -> list[str]:
    """Return the words of a command line. No shell reads them.

    :param windows: whether a backslash is part of a path instead of a quotation.
    :raises UsageError: there are no words, or a quotation has no end.
    """
    hint = "give one command line, such as --workload 'python train.py'"
    try:
        words = shlex.split(command, posix=not windows)
    except ValueError as error:
        message = f"--workload: {shown(command)}: {str(error).lower()}"
        raise UsageError(message, hint=hint) from None
    if windows:  # the words still have their quotation marks
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
    """Return the variables of a program in a Python environment, as if activated.

    :param prefix: the folder of the environment.
    :param python: its interpreter, whose folder comes first in ``PATH``.
    """
    # A process can inherit a variable whose name is empty or contains "=", but it
    # cannot pass one on.
    variables = {k: v for k, v in environ.items() if k and "=" not in k}
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
    """Run a command until it ends, and at most for ``deadline`` seconds.

    Its output is read as it comes, and only its end is kept. When the command has
    ended, or has not ended in time, all processes that it has started are killed.

    :param log: reads the output.
    """
    outcome = Outcome()
    program = shutil.which(words[0], path=variables.get("PATH"))
    if program is None:
        outcome.error = f"there is no program {shown(words[0])} in the environment"
        return outcome
    mark = uuid.uuid4().hex
    readers: list[_Reader] = []

    def end_all(process: subprocess.Popen[bytes]) -> None:
        outcome.seconds = time.monotonic() - start
        end_family(process, {reader.pipe for reader in readers}, f"{_MARK}={mark}")

    start = time.monotonic()
    try:
        # All processes end after Ctrl-C too.
        with started(
            [program, *words[1:]],
            end_all,
            env={**variables, _MARK: mark},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            for name, stream in (
                ("stdout", process.stdout),
                ("stderr", process.stderr),
            ):
                readers.append(_Reader(name, cast("IO[bytes]", stream), log))
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
    """Reads one stream in a thread, since no deadline stops a read of a pipe."""

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
            if self._skips:  # the end of a line that is too long
                lines = lines.partition(b"\n")[2]
                self._skips = False
            if self._log.is_relevant(self.name, lines):
                for line in lines.split(b"\n"):
                    text = line.removesuffix(b"\r").decode("utf-8", "replace")
                    self._log.read_line(self.name, text)
        if len(rest) > _LONGEST_LINE:
            rest, self._skips = b"", True
        self._rest = rest
