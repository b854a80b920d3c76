"""Where wheels are read: in processes of this machine, or by the workers of a cluster.

Both are an executor of `concurrent.futures`. The loop in `running` does not know which.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from multiprocessing import connection
from typing import Protocol

from ..errors import InputError
from .model import Outcome
from .worker import Task, read_wheel

__all__ = ["LocalWorkers", "Workers"]


class Workers(Protocol):
    """What the loop needs of an executor."""

    def submit(self, task: Task) -> Future[Outcome]:
        """Start reading a wheel, as soon as there is room for it."""

    def capacity(self) -> int:
        """Return how many wheels can be read at the same time."""

    def withdraw(self, future: Future[Outcome]) -> None:
        """Take back a wheel that nobody has begun to read."""

    def renew(self) -> None:
        """Make a new executor, after one of its processes was killed."""

    def close(self, *, at_once: bool = False) -> None:
        """End the executor.

        :param at_once: do not wait for the wheels that are being read.
        """


class LocalWorkers:
    """Processes of this machine.

    :param jobs: how many.
    """

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._executor = self._make()

    def _make(self) -> Executor:
        return ProcessPoolExecutor(
            self._jobs,
            # A copy of this process (fork) would have its connections, but not the
            # threads that serve these.
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_prepare_process,
        )

    def submit(self, task: Task) -> Future[Outcome]:
        """Start reading a wheel, as soon as there is room for it.

        :raises BrokenExecutor: a process was killed; `renew` helps.
        """
        return self._executor.submit(read_wheel, task)

    def capacity(self) -> int:
        """Return the number of processes."""
        return self._jobs

    def withdraw(self, future: Future[Outcome]) -> None:
        """Take back a wheel that no process has begun to read."""
        future.cancel()  # does nothing to one that is being read

    def renew(self) -> None:
        """Make new processes in place of all others.

        :raises InputError: no process can be started.
        """
        self.close(at_once=True)
        self._executor = self._make()
        try:
            self._executor.submit(os.getpid).result()
        except BrokenExecutor:
            message = "no process can be started"
            hint = "check the memory of this machine, and that a script that calls "
            hint += "census() does so below: if __name__ == '__main__'"
            raise InputError(message, hint=hint) from None

    def close(self, *, at_once: bool = False) -> None:
        """End the processes; ``at_once``, without waiting for what they read."""
        if at_once:
            self._executor.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.terminate()
        self._executor.shutdown(wait=True, cancel_futures=True)


def _prepare_process() -> None:
    """Make a process of the pool end with its parent, and not by Ctrl-C.

    Ctrl-C reaches all processes of a terminal. The parent decides what ends then.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def wait() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    # If the parent is killed, it cannot tell its processes to end.
    threading.Thread(target=wait, name="waits for the parent", daemon=True).start()
