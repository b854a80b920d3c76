"""The loop of a census: send wheels to the workers, and their outcomes to the store.

The parent process keeps one project and the wheels in progress in memory, so it does
not need more memory for a larger index.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, Protocol

from nvidia_variant_provider.errors import InputError, UsageError

from ..index import connect
from ..index.http.urls import is_http, server_of, split_credentials
from .listing import Project, list_projects
from .model import Options, Outcome, Wheel
from .store import Store
from .worker import RETRIES, Credentials, Task, explain, lost
from .workers import LocalWorkers, Workers, gone

logger = logging.getLogger(__name__)

_POLL = 0.5
"""The longest wait of the loop, in seconds: on Windows, Ctrl-C does not reach a thread
that waits without a timeout."""


@dataclass(kw_only=True, slots=True)
class Tally:
    """The progress of a census.

    :param wheels: the number of wheels listed so far.
    :param known: the number of wheels that were already in the store.
    :param projects: the number of projects listed so far, failures included.
    :param of_projects: the number of all projects.
    :param unreadable: the number of projects that could not be listed.
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
        """The number of wheels read so far, including skipped and failed wheels."""
        return self.inspected + self.skipped + self.failed

    @property
    def expected(self) -> int | None:
        """The estimated number of all wheels, from the projects listed so far."""
        if not self.projects:
            return None
        return round(self.wheels * self.of_projects / self.projects)


class Stop:
    """A request to end a census after the wheels in progress."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._wake: Callable[[], None] = lambda: None

    def set(self) -> None:
        """Request the end; signal handlers may call this."""
        self._event.set()
        self._wake()

    def is_set(self) -> bool:
        """Return whether the end was requested."""
        return self._event.is_set()

    def attach(self, wake: Callable[[], None]) -> None:
        """Register the function that wakes the census up."""
        self._wake = wake


class Observer(Protocol):
    """Receives the events of a census, all in the thread of the loop."""

    def listed(self, project: Project, tally: Tally) -> None:
        """Handle a project that was listed, or failed to be listed."""

    def finished(self, outcome: Outcome, tally: Tally) -> None:
        """Handle a wheel that is now in the store."""


class _Ended(NamedTuple):
    """The last event of the thread that lists the index."""

    error: BaseException | None


class _Lister:
    """Lists the index in a separate thread, one project ahead of the loop.

    :param put: called with each `Project`, and finally with `_Ended`.
    """

    def __init__(
        self, projects: Iterator[Project], put: Callable[[Project | _Ended], None]
    ) -> None:
        self._projects = projects
        self._put = put
        self._turn = threading.Semaphore(1)
        self._stopped = False
        # Use a daemon thread, so an unresponsive server does not keep the process
        # alive.
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
    """Read the wheels of an index that are not in the store.

    :param index: a URL, a directory, or its ``file:`` URL.
    :param path: the path of the store.
    :raises InputError: the index cannot be read, the store cannot be written, there is
        no cluster, or its workers have a different version. Stored wheels are kept.
    :raises UsageError: the index is malformed.
    """
    try:
        bare, pair = split_credentials(index) if "://" in index else (index, None)
    except ValueError as error:
        raise UsageError(f"is not a URL: {error}", path=index) from None
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
        with closing(workers):
            return census.run(projects)


class Census:
    """One run: sends wheels to the workers, and stores their outcomes.

    :param credentials: user and password for each server, from the user's URL.
    :param stop: ends the census after the wheels in progress.
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
        # The item None wakes the loop up. Signal handlers may add this item, because
        # SimpleQueue, unlike Queue, has no lock that this thread could hold.
        self._events: queue.SimpleQueue[Project | _Ended | Future[Outcome] | None] = (
            queue.SimpleQueue()
        )
        self._reading: dict[Future[Outcome], Wheel] = {}
        self._hosts: Counter[str] = Counter()
        self._waiting: deque[Wheel] = deque()
        # Whether the index has more projects, and whether the lister is reading one.
        self._listing = True
        self._is_listing = True

    def run(self, projects: Iterator[Project]) -> Tally:
        """Read the wheels that are not in the store, until the end is requested.

        :raises InputError: the index cannot be read, or the store cannot be written.
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
                elif is_ending or not self._waiting:
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
        """Start no more wheels, and let the wheels in progress finish."""
        self._listing = False
        lister.stop()
        self._waiting.clear()
        self._workers.withdraw(tuple(self._reading))
        logger.info("no other wheels are read now")

    def _start_wheels(self) -> None:
        window = self._window()
        while self._waiting and len(self._reading) < window:
            wheel = self._waiting[0]
            if self._store.is_known(wheel):
                self.tally.known += 1
            elif (host := _host(wheel)) and self._hosts[host] >= self._options.per_host:
                return  # the host is at its limit; local files have no host
            else:
                self._start(wheel)
            self._waiting.popleft()

    def _start(self, wheel: Wheel) -> None:
        deadline = self._options.deadline
        task = Task(wheel=wheel, deadline=deadline, credentials=self._credentials)
        future = self._workers.submit(task)
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
        self._hosts += Counter()  # removes zero counts
        try:
            outcome = self._workers.result(future)
        except CancelledError:
            if self.tally.stopped is None:
                raise gone() from None
            return
        except InputError:
            raise  # ends the census: errors of a single wheel arrive as outcomes
        except Exception as error:  # noqa: BLE001  # a worker may raise anything
            outcome = lost(wheel, explain(error))
        try:
            self._take_outcome(wheel, outcome)
        except InputError:
            raise  # the store cannot be written
        except Exception as error:  # noqa: BLE001  # a worker may return anything
            self._take_outcome(wheel, lost(wheel, explain(error)))

    def _take_outcome(self, wheel: Wheel, outcome: Outcome) -> None:
        # Only the size may be news: a worker says nothing about other wheels.
        size = outcome.wheel.size if wheel.size is None else wheel.size
        outcome = replace(outcome, wheel=replace(wheel, size=size))
        tally = self.tally
        tally.bytes_read += outcome.bytes_read
        self._store.add(outcome)
        tally.inspected += outcome.status == "inspected"
        tally.skipped += outcome.status == "skipped"
        tally.failed += outcome.status == "failed"
        logger.info("%s: %s", outcome.wheel.filename, _summary(outcome))
        if self._observer is not None:
            self._observer.finished(outcome, tally)


def _summary(outcome: Outcome) -> str:
    what: str = outcome.status
    if outcome.reason is not None:
        what += f", {outcome.reason}"
    return f"{what}; {outcome.bytes_read} bytes in {outcome.seconds:.3f} s"


def _host(wheel: Wheel) -> str:
    return server_of(wheel.url) if is_http(wheel.url) else ""
