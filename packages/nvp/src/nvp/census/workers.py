"""Where wheels are read: in processes of this machine, or by the workers of a cluster.

Both give futures of `concurrent.futures`. The loop in `running` does not know which.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterable
from concurrent.futures import (
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
)
from multiprocessing import connection
from typing import Any, Protocol

from nvidia_variant_provider.errors import InputError

from .model import Outcome
from .worker import Task, read_wheel


class Workers(Protocol):
    """What the loop needs of an executor."""

    @property
    def ahead(self) -> int:
        """How many wheels are handed over for each one that can be read at a time.

        No worker waits for the parent then.
        """

    def submit(self, task: Task) -> Future[Outcome]:
        """Start reading a wheel, as soon as there is room for it."""

    def capacity(self) -> int:
        """Return how many wheels can be read at the same time."""

    def result(self, future: Future[Outcome]) -> Outcome:
        """Return what became of a wheel, when ``future`` is done.

        :raises CancelledError: it was not read.
        :raises InputError: no worker can read the wheels of this census.
        """

    def withdraw(self, futures: Iterable[Future[Outcome]]) -> None:
        """Take back the wheels that nobody has begun to read, and read no others."""

    def renew(self) -> None:
        """Make a new executor, after one of its processes was killed."""

    def close(self, *, at_once: bool = False) -> None:
        """End the executor.

        :param at_once: do not wait for the wheels that are being read.
        """


def gone() -> InputError:
    """Return the error for workers that have ended, and will not come back."""
    hint = "run the same command again to go on"
    return InputError("the workers have gone", hint=hint)


class LocalWorkers:
    """Processes of this machine.

    They share some semaphores of 32 bytes, ``/dev/shm/sem.mp-*`` on Linux. When all of
    them were killed, a process of Python's own (its resource tracker) removes these,
    unless it was killed too, as by a signal to the whole group.

    :param jobs: how many.
    """

    ahead = 2

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._context = multiprocessing.get_context("spawn")
        # It has no lock, which a process that is killed would keep.
        self._withdrawn = self._context.RawValue("b", 0)
        self._executor = self._make()

    def _make(self) -> Executor:
        return ProcessPoolExecutor(
            self._jobs,
            # A copy of this process (fork) would have its connections, but not the
            # threads that serve these.
            mp_context=self._context,
            initializer=_prepare_process,
            initargs=(self._withdrawn,),
        )

    def submit(self, task: Task) -> Future[Outcome]:
        """Start reading a wheel, as soon as there is room for it.

        :raises BrokenExecutor: a process was killed; `renew` helps.
        """
        return self._executor.submit(_read_unless_withdrawn, task)

    def capacity(self) -> int:
        """Return the number of processes."""
        return self._jobs

    def result(self, future: Future[Outcome]) -> Outcome:
        """Return what became of a wheel, when ``future`` is done.

        :raises CancelledError: it was not read.
        """
        return future.result()

    def withdraw(self, futures: Iterable[Future[Outcome]]) -> None:
        """Take back the wheels that no process has begun to read."""
        # The executor cannot cancel the next wheels. They are in the pipe to the
        # processes, which leave them.
        self._withdrawn.value = 1
        for future in futures:
            future.cancel()

    def renew(self) -> None:
        """Replace all processes by new ones.

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
            for process in multiprocessing.active_children():
                process.terminate()
        # Only the first call of `shutdown` waits. A thread of the executor that lives
        # on may close its pipe while the interpreter, at its own end, writes into it.
        self._executor.shutdown(wait=True, cancel_futures=True)


_withdrawn: Any
"""A number in memory that processes share: whether the parent of this process takes
back the wheels that it has not begun."""


def _read_unless_withdrawn(task: Task) -> Outcome:
    if _withdrawn.value:
        raise CancelledError
    return read_wheel(task)


def _prepare_process(withdrawn: Any) -> None:
    """Make a process of the pool end with its parent, and ignore Ctrl-C.

    Ctrl-C reaches all processes of a terminal. The parent decides what ends then.
    """
    global _withdrawn  # noqa: PLW0603  # an initializer has no other place for it
    _withdrawn = withdrawn
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def wait() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    # If the parent is killed, it cannot tell its processes to end.
    threading.Thread(target=wait, name="waits for the parent", daemon=True).start()
