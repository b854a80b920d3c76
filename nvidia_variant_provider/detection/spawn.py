"""Running a child process with a deadline, whatever becomes of it.

A child that is stuck in the kernel cannot even be killed. It is abandoned: no
call here waits for a process to end.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["run"]

_SIGKILL = 9  # POSIX fixes it; `signal` would import enum and functools for it

_left: set[int] = set()
"""Children that had not ended yet when their answer was there."""


def run(
    command: Sequence[str], variables: Mapping[str, str], seconds: float
) -> tuple[bytes, bool]:
    """What the child wrote to stdout, and whether it closed it in time.

    Its stdin is empty and its stderr goes nowhere. Past the deadline it is
    killed; what it had written by then is the answer.

    :raises OSError: it cannot be started.
    """
    if sys.platform == "win32":
        return _run_with_subprocess(command, variables, seconds)
    return _run_with_posix_spawn(command, variables, seconds)


def _run_with_posix_spawn(
    command: Sequence[str], variables: Mapping[str, str], seconds: float
) -> tuple[bytes, bool]:
    # Importing subprocess costs as much as starting the child does.
    import select

    end = time.monotonic() + seconds
    _reap()
    pid, reader = _start(command, variables)
    chunks: list[bytes] = []
    waiting = select.poll()
    waiting.register(reader, select.POLLIN)
    in_time = False
    try:
        while (left := end - time.monotonic()) > 0 and waiting.poll(left * 1000):
            chunk = os.read(reader, 65536)
            if not chunk:
                in_time = True
                break
            chunks.append(chunk)
    finally:
        # Also when somebody presses Ctrl-C.
        os.close(reader)
        _left.add(pid)
        if not in_time:
            _kill(pid)
        _reap()
    return b"".join(chunks), in_time


def _start(command: Sequence[str], variables: Mapping[str, str]) -> tuple[int, int]:
    """The child's pid, and where its stdout can be read."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    try:
        reader, writer = os.pipe()
        try:
            actions = [
                (os.POSIX_SPAWN_DUP2, nowhere, 0),
                (os.POSIX_SPAWN_DUP2, writer, 1),
                (os.POSIX_SPAWN_DUP2, nowhere, 2),
            ]
            words = tuple(command)
            pid = os.posix_spawn(words[0], words, variables, file_actions=actions)
        except BaseException:
            os.close(reader)
            raise
        finally:
            os.close(writer)
    finally:
        os.close(nowhere)
    return pid, reader


def _kill(pid: int) -> None:
    try:
        os.kill(pid, _SIGKILL)
    except OSError:  # it has ended meanwhile
        return


def _reap() -> None:
    """Collect the children that have ended, without waiting for the others."""
    for pid in tuple(_left):
        try:
            ended, _ = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:  # somebody else has collected it
            ended = pid
        if ended:
            _left.discard(pid)


def _run_with_subprocess(
    command: Sequence[str], variables: Mapping[str, str], seconds: float
) -> tuple[bytes, bool]:
    import subprocess

    child = subprocess.Popen(  # noqa: S603  # our own script and interpreter
        list(command),
        env=dict(variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        output, _ = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired as error:
        child.kill()
        # Neither waited for nor warned about when it is collected.
        child.returncode = -_SIGKILL
        if child.stdout is not None and os.name == "posix":
            # On Windows a thread still reads it: closing would wait for that.
            child.stdout.close()
        return error.output or b"", False
    return output, True
