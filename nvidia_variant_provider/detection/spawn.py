"""Run a child process with a deadline, and never wait for a stuck child.

A process that is stuck in the kernel, such as in a hanging GPU driver, cannot even be
killed. `subprocess` would wait for it: in ``Popen.__exit__``, and in ``run`` after a
timeout. This module waits at most 50 ms for an end, and abandons a stuck child.

If possible, the child is started with ``posix_spawn``. This saves the import of
`subprocess`, which takes about as long as starting the child.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_MOST = 8 * 1024 * 1024
"""The largest output of a child that is read, in bytes."""

_LOOKS = 50
"""The maximum number of looks, one each millisecond, whether a child has ended."""

_SIGKILL = 9  # fixed by POSIX; importing `signal` would also import enum and functools

_left: set[int] = set()
"""The process ids of children that may still run."""


def run(
    command: Sequence[str],
    variables: Mapping[str, str],
    seconds: float,
    *,
    last: bytes | None = None,
) -> tuple[bytes, bool]:
    """Run a child; return its stdout, and whether it closed its stdout in time.

    The child's stdin is empty, and its stderr is discarded. The child is killed after
    the deadline or after 8 MiB of output, and its output so far is returned.

    :param seconds: the deadline.
    :param last: the end of the last output, after which the result is returned. A
        thread that forks at the same time passes the pipe on, so without ``last``, its
        child could keep the stdout open until the deadline.
    :raises OSError: the child cannot be started.
    """
    # Windows, Android and PyPy lack `posix_spawn`.
    if sys.platform == "win32" or not hasattr(os, "posix_spawn"):
        return _run_with_subprocess(command, variables, seconds)
    else:  # noqa: RET505  # type checkers for Windows skip this branch
        return _run_with_posix_spawn(command, variables, seconds, last)


# Type checkers for Windows skip this block, because Windows lacks its `os` functions.
if sys.platform != "win32":

    def _run_with_posix_spawn(
        command: Sequence[str],
        variables: Mapping[str, str],
        seconds: float,
        last: bytes | None = None,
    ) -> tuple[bytes, bool]:
        import select

        end = time.monotonic() + seconds
        _reap()
        chunks: list[bytes] = []
        size = 0
        waiting = select.poll()
        in_time = False
        pid, reader = _start(command, variables)
        try:
            waiting.register(reader, select.POLLIN)
            while (left := end - time.monotonic()) > 0 and waiting.poll(left * 1000):
                chunk = os.read(reader, 65536)
                if not chunk:
                    in_time = True
                    break
                chunks.append(chunk)
                size += len(chunk)
                in_time = last is not None and chunk.endswith(last)
                if in_time or size > _MOST:
                    break
        finally:
            # This runs after Ctrl-C too: the child must not outlive the interrupt. Kill
            # it first, because a second Ctrl-C may interrupt each call below. The child
            # has not been reaped yet, so its process id cannot be reused.
            try:
                if not in_time:
                    os.kill(pid, _SIGKILL)
            except OSError:  # the child has already ended
                pass
            _left.add(pid)
            os.close(reader)
            # An ended child stays in the table of processes until it is reaped. Almost
            # every child ends within some milliseconds.
            for _ in range(_LOOKS):
                _reap()
                if pid not in _left:
                    break
                time.sleep(0.001)
        return b"".join(chunks), in_time

    def _start(command: Sequence[str], variables: Mapping[str, str]) -> tuple[int, int]:
        """Start a child; return its process id, and a descriptor for its stdout."""
        reader, writer = os.pipe()
        try:
            # If this process has no standard streams, the pipe gets their descriptors:
            # duplicate it to 1 before the other actions replace descriptors 0 and 2.
            actions = [
                (os.POSIX_SPAWN_DUP2, writer, 1),
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
            ]
            words = tuple(command)
            pid = os.posix_spawn(words[0], words, variables, file_actions=actions)
        except BaseException:
            os.close(reader)
            raise
        finally:
            os.close(writer)
        return pid, reader

    def _reap() -> None:
        """Reap the children that have ended, without waiting for the others."""
        for pid in tuple(_left):
            try:
                ended, _ = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:  # other code in this process reaped the child
                ended = pid
            if ended:
                _left.discard(pid)


def _run_with_subprocess(
    command: Sequence[str], variables: Mapping[str, str], seconds: float
) -> tuple[bytes, bool]:
    import subprocess

    child = subprocess.Popen(  # noqa: S603  # this interpreter with this package's program
        list(command),
        env=dict(variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        output, _ = child.communicate(timeout=seconds)
    except BaseException as error:  # such as KeyboardInterrupt
        child.kill()
        # Mark the child as ended, so the garbage collector does not wait for it or
        # warn about it.
        child.returncode = -_SIGKILL
        if child.stdout is not None and os.name == "posix":
            # On Windows, a thread still reads the pipe, and closing would wait for it.
            child.stdout.close()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        return error.output or b"", False
    return output, True
