"""The workers that read wheels: processes of this machine, or a cluster.

Both kinds return futures of `concurrent.futures`, so the loop in `running` treats them
in the same way.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
from collections.abc import Iterable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Protocol, TypeAlias

from nvidia_variant_provider.errors import InputError

from .model import Outcome
from .worker import Task, lost

_Process: TypeAlias = "subprocess.Popen[bytes]"

_PROGRAM = (
    "import pickle, sys; sys.stdin.buffer.peek() or sys.exit(); "
    "sys.path[:] = pickle.load(sys.stdin.buffer); "
    "from nvp.census.worker import serve; serve()"
)
"""The program of a process, which receives the ``sys.path`` of its parent, if any."""

_ATTEMPTS = 2
"""How often a wheel is read if its process is killed, for example because other wheels
took the memory."""

_KILLED = (OSError, EOFError, pickle.PickleError)
"""The errors of writing to a process that has ended, or of reading from it."""


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

    def close(self) -> None:
        """End the executor without waiting for wheels in progress."""


def gone() -> InputError:
    """Return the error for workers that have ended permanently."""
    hint = "run the same command again to go on"
    return InputError("the workers have gone", hint=hint)


class LocalWorkers:
    """Processes of this machine, each with a thread that sends it wheels.

    Each process has its own session, so the signals of a terminal do not reach it. It
    ends when its stdin is closed, also because this process was killed.

    :param jobs: the number of processes.
    """

    ahead = 2

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._pool = ThreadPoolExecutor(jobs)
        self._own = threading.local()
        self._starting = threading.Lock()
        self._processes: list[_Process] = []
        self._closed = False

    def submit(self, task: Task) -> Future[Outcome]:
        """Submit a wheel, which is read as soon as a worker is free."""
        return self._pool.submit(self.read, task)

    def capacity(self) -> int:
        """Return the number of processes."""
        return self._jobs

    def result(self, future: Future[Outcome]) -> Outcome:
        """Return the outcome of a wheel; ``future`` must be done.

        :raises CancelledError: the wheel was not read.
        :raises InputError: no process can be started.
        """
        return future.result()

    def withdraw(self, futures: Iterable[Future[Outcome]]) -> None:
        """Cancel the wheels that no process has started to read."""
        for future in futures:
            future.cancel()

    def close(self) -> None:
        """End the processes, also those that read a wheel."""
        with self._starting:
            self._closed = True
            for process in self._processes:
                process.kill()
        self._pool.shutdown(cancel_futures=True)
        for process in self._processes:
            _end(process)

    def read(self, task: Task) -> Outcome:
        """Read a wheel in the process of this thread, which is started if necessary.

        :raises CancelledError: the workers were closed.
        :raises InputError: no process can be started.
        """
        process = None
        for _ in range(_ATTEMPTS):
            process = self._own.__dict__.pop("process", None) or self._start()
            if process is None:
                continue
            try:
                outcome: Outcome = _ask(process, task)
            except _KILLED:
                _end(process)
                continue
            self._own.process = process
            return outcome
        if process is None:
            hint = "check the memory of this machine, and its limits of processes"
            raise InputError("no process can be started", hint=hint)
        return lost(task.wheel, "the process that read it was killed")

    def _start(self) -> _Process | None:
        """Start a process; return ``None`` if this fails."""
        # A frozen program would start itself, and again start processes.
        if not sys.executable or getattr(sys, "frozen", False):
            return None
        # Isolated, it does not import modules such as re from the current directory.
        flags = ["-I", "-X", f"utf8={sys.flags.utf8_mode}"]
        with self._starting:
            if self._closed:
                raise CancelledError
            try:
                process = subprocess.Popen(  # noqa: S603  # this Python
                    [sys.executable, *flags, "-c", _PROGRAM],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    start_new_session=True,
                )
            except OSError:
                return None
            self._processes.append(process)
        try:
            _ask(process, sys.path)
        except _KILLED:
            _end(process)
            return None
        return process


_of_cluster = LocalWorkers(1)


def read_in_process(task: Task) -> Outcome:
    """Read a wheel in a process, as a worker of a cluster does in each of its threads.

    Only the main thread of a process can be stopped at a limit.

    :raises InputError: no process can be started.
    """
    return _of_cluster.read(task)


def _ask(process: _Process, message: object) -> Any:
    """Send a message to a process, and return its answer."""
    assert process.stdin is not None  # noqa: S101  # for mypy
    assert process.stdout is not None  # noqa: S101
    pickle.dump(message, process.stdin)
    process.stdin.flush()
    return pickle.load(process.stdout)  # noqa: S301  # it is ours


def _end(process: _Process) -> None:
    """Kill a process, close its pipes, and wait for its end."""
    process.kill()
    with suppress(OSError), process:  # a message that was not sent is lost
        pass
