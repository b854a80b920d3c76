"""The loop of a census: wheels go to the workers, and what became of them to the store.

The parent holds one project, and the wheels that are being read. So its memory does not
grow with the index.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import BrokenExecutor, CancelledError, Future
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

from nvidia_variant_provider.errors import InputError, shown

from ..index import connect
from ..index.http.urls import is_http, server_of, split_credentials
from .listing import Project, list_projects
from .model import Options, Outcome, Wheel
from .store import Store
from .worker import RETRIES, Credentials, Task
from .workers import LocalWorkers, Workers, gone

logger = logging.getLogger(__name__)

_POLL = 0.5
"""Seconds after which the loop looks up, since Windows keeps Ctrl-C from a thread that
waits without an end."""


@dataclass(kw_only=True, slots=True)
class Tally:
    """How far a census is.

    :param wheels: the wheels that were listed until now.
    :param known: how many of them did not have to be read.
    :param projects: the projects that were listed, with those that failed.
    :param of_projects: how many projects there are.
    :param unreadable: the projects that could not be listed.
    :param stopped: why the census ended early: ``max-bytes`` or ``interrupt``.
    """

    wheels: int = 0
    known: int = 0
    inspected: int = 0
    skipped: int = 0
    failed: int = 0
    bytes_read: int = 0
    projects: int = 0
    of_projects: int = 0
    unreadable: int = 0
    stopped: str | None = None
    seconds: float = 0.0

    @property
    def read(self) -> int:
        """How many wheels were read, skipped and failed ones included."""
        return self.inspected + self.skipped + self.failed

    @property
    def expected(self) -> int | None:
        """How many wheels there are, by the projects that are listed already."""
        if not self.projects:
            return None
        return round(self.wheels * self.of_projects / self.projects)


class Stop:
    """Asks a census to end after the wheels that are being read."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._wake: Callable[[], None] = lambda: None

    def set(self) -> None:
        """Ask for the end; a signal handler may do so."""
        self._event.set()
        self._wake()

    def is_set(self) -> bool:
        """Return whether the end was asked for."""
        return self._event.is_set()

    def attach(self, wake: Callable[[], None]) -> None:
        """Let the census say how it is woken up."""
        self._wake = wake


class Observer(Protocol):
    """Is told what happens; all calls come from the thread of the loop."""

    def listed(self, project: Project, tally: Tally) -> None:
        """Take note of a project that was listed, or could not be."""

    def finished(self, outcome: Outcome, tally: Tally) -> None:
        """Take note of a wheel, which is in the store now."""


class _Ended(NamedTuple):
    """The last thing that the thread of the listing says."""

    error: BaseException | None


class _Lister:
    """Lists the index in a thread of its own, one project ahead of the loop.

    :param put: called with each `Project`, and with `_Ended` at last.
    """

    def __init__(
        self, projects: Iterator[Project], put: Callable[[Project | _Ended], None]
    ) -> None:
        self._projects = projects
        self._put = put
        self._turn = threading.Semaphore(1)
        self._stopped = False
        # A daemon: a server that does not respond does not keep the process alive.
        threading.Thread(target=self._work, name="lists wheels", daemon=True).start()

    def go_on(self) -> None:
        self._turn.release()

    def stop(self) -> None:
        self._stopped = True
        self._turn.release()

    def _work(self) -> None:
        ended = _Ended(None)
        try:
            while self._turn.acquire() and not self._stopped:
                project = next(self._projects, None)
                if project is None:
                    break
                self._put(project)
        except BaseException as error:  # noqa: BLE001  # the loop raises it
            ended = _Ended(error)
        self._put(ended)


def take_census(
    index: str,
    path: str,
    options: Options,
    *,
    environ: Mapping[str, str],
    observer: Observer | None = None,
    stop: Stop | None = None,
) -> Tally:
    """Read the wheels of an index that a store does not have.

    :param index: a URL, a directory, or its ``file:`` URL.
    :param path: where the store is.
    :raises InputError: the index cannot be read, or the store not be written; there is
        no cluster, or its workers have another version. What was stored stays.
    """
    bare, pair = split_credentials(index) if is_http(index) else (index, None)
    credentials = () if pair is None else ((server_of(bare), pair),)
    projects = list_projects(index, options, partial(connect, environ, retries=RETRIES))
    with Store(path) as store:
        workers: Workers
        if options.dask is None:
            workers = LocalWorkers(options.jobs or os.cpu_count() or 1)
        else:
            from .cluster import ClusterWorkers

            workers = ClusterWorkers(options.dask)
        census = Census(
            store,
            workers,
            options,
            credentials=credentials,
            observer=observer,
            stop=stop,
        )
        done = False
        try:
            tally = census.run(projects)
            done = True
        finally:
            workers.close(at_once=not done)
    return tally


class Census:
    """One run: it hands wheels to the workers, and writes what became of them.

    :param credentials: user and password of the URL that the user gave, by server.
    :param stop: ends the census after the wheels that are being read.
    """

    def __init__(
        self,
        store: Store,
        workers: Workers,
        options: Options,
        *,
        credentials: Credentials = (),
        observer: Observer | None = None,
        stop: Stop | None = None,
    ) -> None:
        self.tally = Tally()
        self._store = store
        self._workers = workers
        self._options = options
        self._credentials = credentials
        self._observer = observer
        self._stop = stop or Stop()
        # None wakes the loop up. A signal handler may put it there: SimpleQueue, unlike
        # Queue, has no lock that this thread could hold.
        self._events: queue.SimpleQueue[Project | _Ended | Future[Outcome] | None] = (
            queue.SimpleQueue()
        )
        self._reading: dict[Future[Outcome], Wheel] = {}
        self._hosts: Counter[str] = Counter()
        self._waiting: deque[Wheel] = deque()
        # Wheels that were being read when a process was killed, perhaps because of what
        # is in one of them. They are read one at a time, so that it shows which one.
        self._suspects: deque[Wheel] = deque()
        self._alone = False
        self._broken = False
        # Whether the index has more projects, and whether the lister waits to go on.
        self._listing = True
        self._is_listing = True

    def run(self, projects: Iterator[Project]) -> Tally:
        """Read the wheels that the store does not have, or until the end is asked for.

        :raises InputError: the index cannot be read, or the store not be written.
        """
        started = time.monotonic()
        self._stop.attach(partial(self._events.put, None))
        lister = _Lister(projects, self._events.put)
        is_ending = False
        try:
            while True:
                if self._ends_early():
                    if not is_ending:
                        self._wind_up(lister)
                    is_ending = True
                else:
                    self._start_wheels()
                    if not self._is_listing and len(self._waiting) < self._window():
                        self._is_listing = self._listing
                        lister.go_on()
                if self._reading or self._listing:
                    self._take_event()
                elif not (self._waiting or self._suspects):
                    break
        finally:
            lister.stop()
        self.tally.seconds = time.monotonic() - started
        return self.tally

    def _window(self) -> int:
        return max(1, self._workers.capacity() * self._workers.ahead)

    def _ends_early(self) -> bool:
        if self.tally.stopped is None:
            most = self._options.max_bytes
            if self._stop.is_set():
                self.tally.stopped = "interrupt"
            elif most is not None and self.tally.bytes_read >= most:
                self.tally.stopped = "max-bytes"
        return self.tally.stopped is not None

    def _wind_up(self, lister: _Lister) -> None:
        """Start nothing more; what is being read comes to its end."""
        self._listing = False
        lister.stop()
        self._waiting.clear()
        self._suspects.clear()
        self._workers.withdraw(tuple(self._reading))
        logger.info("no other wheels are read now")

    def _start_wheels(self) -> None:
        if self._broken:
            if self._reading:
                return
            self._workers.renew()
            self._broken = False
        if self._suspects:
            if not self._reading:
                self._alone = True
                self._start(self._suspects.popleft())
            return
        if self._alone and self._reading:
            return
        self._alone = False
        window = self._window()
        while self._waiting and len(self._reading) < window and not self._broken:
            wheel = self._waiting[0]
            if self._store.is_known(wheel):
                self.tally.known += 1
            elif (host := _host(wheel)) and self._hosts[host] >= self._options.per_host:
                return  # a disk has no limit
            else:
                self._start(wheel)
            self._waiting.popleft()

    def _start(self, wheel: Wheel) -> None:
        deadline = self._options.deadline
        task = Task(wheel=wheel, deadline=deadline, credentials=self._credentials)
        try:
            future = self._workers.submit(task)
        except BrokenExecutor:
            self._broken = True
            self._suspects.append(wheel)
            return
        self._reading[future] = wheel
        self._hosts[_host(wheel)] += 1
        future.add_done_callback(self._events.put)

    def _take_event(self) -> None:
        try:
            event = self._events.get(timeout=_POLL)
        except queue.Empty:
            return
        if isinstance(event, Project):
            self._is_listing = False
            self._take_project(event)
        elif isinstance(event, _Ended):
            self._listing = self._is_listing = False
            if event.error is not None:
                raise event.error
        elif event is not None:
            self._take_future(event)

    def _take_project(self, project: Project) -> None:
        tally = self.tally
        if tally.stopped is not None:
            return
        tally.projects, tally.of_projects = project.position, project.total
        tally.unreadable += project.error is not None
        tally.wheels += len(project.wheels)
        self._waiting.extend(project.wheels)
        if self._observer is not None:
            self._observer.listed(project, tally)

    def _take_future(self, future: Future[Outcome]) -> None:
        wheel = self._reading.pop(future)
        self._hosts[_host(wheel)] -= 1
        self._hosts += Counter()  # which leaves out what is zero
        try:
            outcome = self._workers.result(future)
        except CancelledError:
            if self.tally.stopped is None:
                raise gone() from None
            return
        except BrokenExecutor:
            self._broken = True
            if not self._alone:
                self._suspects.append(wheel)
                return
            outcome = _lost(wheel, "the process that read it was killed")
        except InputError:
            raise  # what is wrong with one wheel is an outcome
        except Exception as error:  # noqa: BLE001  # a worker may raise anything
            outcome = _lost(wheel, _explained(error))
        self._take_outcome(outcome)

    def _take_outcome(self, outcome: Outcome) -> None:
        tally = self.tally
        self._store.add(outcome)
        tally.inspected += outcome.status == "inspected"
        tally.skipped += outcome.status == "skipped"
        tally.failed += outcome.status == "failed"
        tally.bytes_read += outcome.bytes_read
        logger.info("%s: %s", outcome.wheel.filename, _summary(outcome))
        if self._observer is not None:
            self._observer.finished(outcome, tally)


def _explained(error: Exception) -> str:
    name = type(error).__name__
    # Dask is not imported for its name: it may not be installed.
    if name == "KilledWorker":
        return "each worker that read it was lost"
    return f"its worker failed: {shown(f'{name}: {error}', 200)[1:-1]}"


def _lost(wheel: Wheel, reason: str) -> Outcome:
    return Outcome(wheel=wheel, status="failed", reason=reason, may_pass=True)


def _summary(outcome: Outcome) -> str:
    what: str = outcome.status
    if outcome.reason is not None:
        what += f", {outcome.reason}"
    return f"{what}; {outcome.bytes_read} bytes in {outcome.seconds:.3f} s"


def _host(wheel: Wheel) -> str:
    return server_of(wheel.url) if is_http(wheel.url) else ""
