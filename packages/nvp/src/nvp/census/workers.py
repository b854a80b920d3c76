"""The workers that read wheels: processes of this machine, or a cluster.

Both kinds return futures of `concurrent.futures`, so the loop in `running` treats them
in the same way.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import (
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
)
from contextlib import contextmanager
from multiprocessing import connection, util
from typing import Any, Protocol

from nvidia_variant_provider.errors import InputError

from ..signals import holding_back
from .model import Outcome
from .worker import Task, read_wheel


class Workers(Protocol):
    """The interface of the executors to which a census submits wheels."""

    @property
    def ahead(self) -> int:
        """The number of wheels to submit for each wheel that can be read at a time.

        With some wheels in a queue, workers do not wait for the parent.
        """

    def submit(self, task: Task) -> Future[Outcome]:
        """Submit a wheel, which is read as soon as a worker is free."""

    def capacity(self) -> int:
        """Return how many wheels can be read at the same time."""

    def result(self, future: Future[Outcome]) -> Outcome:
        """Return the outcome of a wheel; ``future`` must be done.

        :raises CancelledError: the wheel was not read.
        :raises InputError: no worker can read the wheels of this census.
        """

    def withdraw(self, futures: Iterable[Future[Outcome]]) -> None:
        """Cancel the wheels that no worker has started to read."""

    def renew(self) -> None:
        """Replace the executor after one of its processes was killed."""

    def close(self, *, at_once: bool = False) -> None:
        """End the executor.

        :param at_once: do not wait for the wheels that are being read.
        """


def gone() -> InputError:
    """Return the error for workers that have ended permanently."""
    hint = "run the same command again to go on"
    return InputError("the workers have gone", hint=hint)


class LocalWorkers:
    """Processes of this machine.

    The processes share semaphores of 32 bytes, ``/dev/shm/sem.mp-*`` on Linux. If all
    processes are killed, Python's resource tracker removes the semaphores.

    :param jobs: the number of processes.
    """

    ahead = 2

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._context = multiprocessing.get_context("spawn")
        # A raw value has no lock, which a killed process would keep forever.
        self._withdrawn = self._context.RawValue("b", 0)
        self._executor = self._make()

    def _make(self) -> Executor:
        # This starts the resource tracker, which itself ignores SIGINT and SIGTERM. A
        # terminal also sends these signals to the whole process group.
        with _isolated(), holding_back("SIGHUP", "SIGQUIT"):
            return ProcessPoolExecutor(
                self._jobs,
                # Do not fork: the copy would have the connections of this process, but
                # not their threads.
                mp_context=self._context,
                initializer=_prepare_process,
                initargs=(self._withdrawn,),
            )

    def submit(self, task: Task) -> Future[Outcome]:
        """Submit a wheel, which is read as soon as a worker is free.

        :raises BrokenExecutor: a process was killed; call `renew`.
        """
        return self._submit(_read_unless_withdrawn, task)

    def _submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        # Ctrl-C would end new processes before `_prepare_process` ignores it.
        with _isolated(), holding_back("SIGINT"):
            return self._executor.submit(function, *arguments)

    def capacity(self) -> int:
        """Return the number of processes."""
        return self._jobs

    def result(self, future: Future[Outcome]) -> Outcome:
        """Return the outcome of a wheel; ``future`` must be done.

        :raises CancelledError: the wheel was not read.
        """
        return future.result()

    def withdraw(self, futures: Iterable[Future[Outcome]]) -> None:  # noqa: ARG002
        """Cancel the wheels that no process has started to read."""
        # The processes skip them, also wheels that are already in the pipe. Do not
        # cancel futures: if a process then dies, the executor fails on a canceled one,
        # and the other futures never end.
        self._withdrawn.value = 1

    def renew(self) -> None:
        """Replace all processes with new ones.

        :raises InputError: no process can be started.
        """
        self.close(at_once=True)
        self._executor = self._make()
        try:
            self._submit(os.getpid).result()
        except BrokenExecutor:
            message = "no process can be started"
            hint = "check the memory of this machine, and that a script that calls "
            hint += "census() does so below: if __name__ == '__main__'"
            raise InputError(message, hint=hint) from None

    def close(self, *, at_once: bool = False) -> None:
        """End the processes; with ``at_once``, do not wait for wheels in progress."""
        if at_once:
            for process in multiprocessing.active_children():
                process.terminate()
        # Wait here, because only the first call of `shutdown` waits: a remaining thread
        # of the executor may close its pipe while the exiting interpreter writes to it.
        with _isolated():  # it may start a new resource tracker
            self._executor.shutdown(wait=True, cancel_futures=True)


_isolating = threading.RLock()
"""Held by `_isolated`: another thread would restore the function of this one."""


@contextmanager
def _isolated() -> Iterator[None]:
    """Start the processes of `multiprocessing` with ``python -I``.

    Without it, they import modules such as ``re`` from the current directory, until
    they get the ``sys.path`` of this process. `multiprocessing` has no option for it:
    `set_executable` takes a program without arguments, and ``PYTHONSAFEPATH`` is new in
    Python 3.11.
    """
    hidden: Any = util
    with _isolating:
        make = hidden._args_from_interpreter_flags
        hidden._args_from_interpreter_flags = lambda: [*make(), "-I"]
        try:
            yield
        finally:
            hidden._args_from_interpreter_flags = make


_withdrawn: Any
"""A shared value: whether the parent has canceled all wheels not yet started."""


def _read_unless_withdrawn(task: Task) -> Outcome:
    if _withdrawn.value:
        raise CancelledError
    return read_wheel(task)


def _prepare_process(withdrawn: Any) -> None:
    """Make a process of the pool end with its parent, and ignore Ctrl-C.

    Ctrl-C reaches all processes of a terminal, but only the parent reacts to it.
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

    # A killed parent cannot end its processes, so watch for its end.
    threading.Thread(target=wait, name="waits for the parent", daemon=True).start()
