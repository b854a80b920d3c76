"""Programs that are started for the user, none of which outlives this program."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import IO, Any, cast

from ..signals import ENDING, handling

__all__ = ["end_family", "pipe_name", "started"]

_SIGNALS = (signal.SIGINT, *ENDING)

_GRACE = 5.0
"""The seconds that a killed process has to end."""

_ROUNDS = 10
"""How often the processes of a family are looked for. A process can start another one
while they are ended."""


@contextlib.contextmanager
def started(
    words: Sequence[str],
    end: Callable[[subprocess.Popen[bytes]], object],
    **options: Any,
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a program in a session of its own, and end it after the block.

    :param end: ends the program and what it has started; called in any case.
    :param options: those of `subprocess.Popen`.
    :raises OSError: it cannot be started.
    """
    waiting: list[int] = []
    process: subprocess.Popen[bytes] | None = None
    is_known = False
    try:
        # The exception of a signal could come when the program runs and its number is
        # not known yet. So signals wait until it is.
        later = dict.fromkeys(_SIGNALS, lambda number, _: waiting.append(number))
        with handling(later):
            process = _start(words, options)
        for number in waiting:
            signal.raise_signal(number)
        is_known = True
        yield process
    finally:
        if process is not None:
            end(process)
            streams = () if is_known else (process.stdout, process.stderr)
            for stream in filter(None, streams):
                stream.close()


def _start(words: Sequence[str], options: Mapping[str, Any]) -> subprocess.Popen[bytes]:
    process: Any = subprocess.Popen(  # noqa: S603  # what the user's stack runs
        list(words), stdin=subprocess.DEVNULL, start_new_session=True, **options
    )
    return cast("subprocess.Popen[bytes]", process)


def pipe_name(stream: IO[bytes]) -> str:
    """Return the name that /proc gives to a pipe."""
    return f"pipe:[{os.fstat(stream.fileno()).st_ino}]"


def end_family(
    process: subprocess.Popen[bytes],
    pipes: Collection[str],
    variable: str | None = None,
) -> None:
    """Kill a process and those that it has started.

    A daemon leaves the session, but it keeps its variables or its output, which only
    Linux shows. A process that clears both looks like a process of somebody else.

    :param pipes: the names of the pipes that only this family writes to.
    :param variable: ``NAME=VALUE``, which only this family has.
    """
    if sys.platform == "win32":
        program = shutil.which("taskkill")
        if program is not None and process.poll() is None:
            subprocess.run(  # noqa: S603  # Windows' own program
                [program, "/T", "/F", "/PID", str(process.pid)],
                capture_output=True,
                check=False,
            )
    else:
        # The process group has the number of its first process.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        mark = None if variable is None else variable.encode()
        for _ in range(_ROUNDS):
            strays = list(_find(mark, pipes))
            for pid in strays:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            if not strays:
                break
    # A process that is stuck in the driver cannot be killed; it is abandoned.
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=_GRACE)


def _find(variable: bytes | None, pipes: Collection[str]) -> Iterator[int]:
    try:
        names = os.listdir("/proc")
    except OSError:
        return
    for name in names:
        if not name.isdigit() or int(name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            is_one = _has_variable(name, variable) or _has_pipe(name, pipes)
            # A zombie has ended; its parent has not collected it yet.
            if is_one and not _is_zombie(name):
                yield int(name)


def _has_variable(name: str, variable: bytes | None) -> bool:
    if variable is None:
        return False
    with open(f"/proc/{name}/environ", "rb") as file:
        return variable in file.read().split(b"\0")


def _has_pipe(name: str, pipes: Collection[str]) -> bool:
    folder = f"/proc/{name}/fd"
    for number in os.listdir(folder):
        with contextlib.suppress(OSError):  # it has been closed in the meantime
            if os.readlink(f"{folder}/{number}") in pipes:
                return True
    return False


def _is_zombie(name: str) -> bool:
    with open(f"/proc/{name}/stat", "rb") as file:
        # The second field is the name in brackets, which may contain brackets.
        return file.read().rpartition(b")")[2].split()[:1] in ([b"Z"], [b"X"])
