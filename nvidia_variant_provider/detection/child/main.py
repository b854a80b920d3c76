"""The child process of `probe`: query one native library and print its facts.

The process runs in isolated mode (``python -I -S``); `probe.BOOTSTRAP` names the
directories that it imports from. Its stdout is a sequence of lines:

- ``ready``, before a native library is loaded;
- a JSON document after each new fact, so the facts survive a hang or a crash; it has
  the keys of a snapshot, and a GPU that has not been queried yet has the reason
  ``pending``;
- ``end``, after the last query.
"""

from __future__ import annotations

import os
import signal
import sys

from ...light import dumps

_PR_SET_PDEATHSIG = 1


def main(library: str, seconds: int) -> None:
    """Query ``library``, print its facts, and end the process.

    :param library: ``nvml`` or ``libcuda``.
    :param seconds: the number of seconds that the parent waits.
    """
    # Ctrl-C in a terminal also reaches this process. If the parent goes on, as with
    # detection in a thread, this must not look like a crash of the driver.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The parent kills a child that is late. If the parent itself was killed, the timer
    # or the alarm ends a child whose driver hangs.
    if sys.platform == "win32":
        from threading import Timer

        timer = Timer(seconds, os._exit, (1,))
        timer.daemon = True  # A child that fails must not wait for the timer.
        timer.start()
    else:
        # A process inherits signals that its parent ignores or blocks.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
        signal.alarm(seconds)
        import resource

        # A driver that crashes must leave no core file in the current directory.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # A driver can ignore SIGALRM. If the parent has ended already, writing fails.
    end_with_parent()
    # Native libraries print to descriptor 1. Keep the pipe to the parent under
    # another number, and let descriptor 1 point to stderr, which is discarded.
    pipe = os.dup(1)
    os.dup2(2, 1)
    _write(pipe, "ready\n")
    if library == "nvml":
        from .nvml import ask
    else:
        from .libcuda import ask
    for document in ask():
        _write(pipe, f"{dumps(document)}\n")
    _write(pipe, "end\n")
    # Skip the exit handlers and the driver's threads: they are known to crash at exit.
    os._exit(0)


def end_with_parent(parent: int | None = None) -> None:
    """Let Linux kill this process with the thread that has started it.

    :param parent: the process of that thread, which may have ended already.
    """
    if sys.platform != "linux":
        return
    try:
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    except (ImportError, OSError):  # a Python without libffi, or a static one
        return
    if parent not in (None, os.getppid()):
        os._exit(1)


def _write(descriptor: int, text: str) -> None:
    data = text.encode("ascii")
    while data:
        data = data[os.write(descriptor, data) :]
