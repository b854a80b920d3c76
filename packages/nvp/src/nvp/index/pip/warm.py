"""A process that has loaded pip, says how pip understands a command, and then runs it.

Loading pip takes longer than most of what pip does for a small package, so that two
processes, one that asks pip and one that runs it, would take nearly twice as long as
pip itself. The probe in the same process runs pip after its reply.
"""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress

from ...signals import ENDING, handling

__all__ = ["CAN_KEEP", "WarmPip", "passing_signals_on"]

logger = logging.getLogger(__name__)

CAN_KEEP = sys.platform != "win32"
"""Whether descriptors can be passed to a process, as this needs."""

_PIECE = 65536

_GRACE = 5.0
"""Seconds after an interrupt in which pip should have received it itself."""


class WarmPip:
    """A probe that talks on two pipes, and has the standard streams of pip.

    :param command: runs the probe; the numbers of its descriptors are added.
    :param quiet: send its stdout to stderr.
    :raises OSError: the interpreter cannot be run.
    """

    def __init__(
        self, command: Sequence[str], environ: Mapping[str, str], *, quiet: bool
    ) -> None:
        questions, self._questions = os.pipe()
        self._replies, replies = os.pipe()
        self._received = b""
        try:
            with _holding_interrupts_back():
                self.process = subprocess.Popen(  # noqa: S603
                    [*command, str(questions), str(replies)],
                    env=dict(environ),
                    stdout=2 if quiet else None,
                    pass_fds=(questions, replies),
                )
        except OSError:
            self._close_pipes()
            raise
        finally:
            os.close(questions)
            os.close(replies)

    def send(self, message: Mapping[str, object]) -> None:
        """Send a message; a process that has ended does not receive it."""
        line = f"{json.dumps(message)}\n".encode()
        try:
            while line:
                line = line[os.write(self._questions, line) :]
        except BrokenPipeError:
            logger.info("the probe has ended")

    def read_line(self, timeout: float) -> str | None:
        """Return what the probe writes up to the next end of a line.

        :param timeout: the seconds to wait at most.
        """
        until = time.monotonic() + timeout
        while b"\n" not in self._received:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self._replies], [], [], left)[0]:
                return None
            piece = os.read(self._replies, _PIECE)
            if not piece:
                return None
            self._received += piece
        line, _, self._received = self._received.partition(b"\n")
        return line.decode("utf-8", "replace")

    def become_pip(self, arguments: Sequence[str], environ: Mapping[str, str]) -> None:
        """Let the process run pip; it ends with the exit status of pip."""
        self.send({"run": list(arguments), "environ": dict(environ)})
        self._close_pipes()

    def end(self) -> int:
        """End a process that is not to run pip, and return its exit status."""
        self._close_pipes()
        try:
            return self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def _close_pipes(self) -> None:
        for name in ("_questions", "_replies"):
            if getattr(self, name) >= 0:
                os.close(getattr(self, name))
                setattr(self, name, -1)


def passing_signals_on(
    process: subprocess.Popen[bytes],
) -> AbstractContextManager[None]:
    """Pass the signals that end this process on to pip, so that it ends first."""

    def interrupt(*_: object) -> None:
        # Ctrl-C reaches pip directly; a second SIGINT would interrupt its rollback.
        # Others, such as a CI system, may signal the whole group or this process
        # alone, which cannot be told apart: give pip some time first.
        if not _is_foreground():
            timer = threading.Timer(_GRACE, process.send_signal, [signal.SIGINT])
            timer.daemon = True
            timer.start()

    def terminate(*_: object) -> None:
        process.terminate()

    return handling({signal.SIGINT: interrupt, **dict.fromkeys(ENDING, terminate)})


def _is_foreground() -> bool:
    """Return whether the terminal sends signals to this process and its children."""
    if sys.platform == "win32":
        return True
    for stream in (0, 1, 2):
        with suppress(OSError):
            return os.tcgetpgrp(stream) == os.getpgrp()
    return False


@contextmanager
def _holding_interrupts_back() -> Iterator[None]:
    """Hold Ctrl-C back, for this thread and the processes that it starts meanwhile.

    Such a process lets it through when it can end without a traceback.
    """
    if sys.platform == "win32":
        yield
        return
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
