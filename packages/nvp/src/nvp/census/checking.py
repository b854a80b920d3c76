"""Checking the wheels of an index with a store: each is read once, by any executor.

The rules of `lint` judge what the store has of a wheel. A wheel that it lacks is read
by a worker first, and is in the store from then on.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone

from packaging.version import InvalidVersion

from nvidia_variant_provider.errors import InputError, UsageError
from nvidia_variant_provider.redaction import redacted

from ..index.connection import connect
from ..index.http.urls import is_http
from ..lint.collector import Collector
from ..lint.facts import Unread, WheelFacts
from ..lint.findings import Finding
from ..lint.folders import list_folder
from ..lint.index_files import IndexFile, Reading, list_files
from ..lint.pages import list_page
from ..lint.release import ProjectFiles, check_project
from ..wheels.names import WheelName
from .listing import Project, pages_at_once
from .model import Outcome, Wheel
from .running import Observer, Stop, Tally, run
from .selecting import Listed, make_wheel
from .store import Store
from .taking import credentials_of, make_workers
from .worker import RETRIES, Task

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..index.http.blocking import BlockingClient

__all__ = ["StoredIndex", "require_indexes"]

_IN_PARTS = "the store has them from a run that read only parts of them"


def require_indexes(paths: Iterable[str | os.PathLike[str]]) -> None:
    """Refuse what is not an index, before anything is read.

    :raises UsageError: one of the paths is neither the URL of a page nor a folder.
    """
    for item in paths:
        path = os.fspath(item)
        if not is_http(path) and not os.path.isdir(path):
            message = "--store is for an index: the URL of a page, or a folder"
            hint = "leave out --store to check a single file"
            raise UsageError(message, path=redacted(path) or "''", hint=hint)


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredIndex:
    """Checks an index with what a store has of its wheels.

    :param store: the path of the store, which is made where there is none.
    :param jobs: how many processes of this machine read the other wheels.
    :param dask: the address of the scheduler of a cluster, which reads instead.
    :param per_host: how many wheels of one server are read at the same time.
    :param observer: is told what happens.
    """

    store: str
    environ: Mapping[str, str] = field(repr=False)
    jobs: int | None = None
    dask: str | None = None
    per_host: int = 8
    observer: Observer | None = None

    def check(self, index: str, reading: Reading) -> Iterator[Finding]:
        """Yield the findings about all projects of an index.

        :param index: the URL of a page, or a folder.
        :param reading: how much of a wheel is read.
        :raises InputError: the folder cannot be read, the store cannot be used, or no
            worker can be had.
        """
        client: BlockingClient | None = None
        if is_http(index):
            client = connect(self.environ, retries=RETRIES)
        # A project is judged after it was listed, maybe when all are, and its metadata
        # is read then. So the client may not be closed with the listing.
        with (
            nullcontext() if client is None else client,
            _FactStore(self.store) as store,
        ):
            workers = make_workers(self.jobs, self.dask)
            done = False
            try:
                checker = _Checker(store, self.observer)
                known = replace(reading, known=checker, jobs=1)
                run(
                    self._list(index, known, client),
                    store,
                    workers,
                    make_task=self._task_maker(index, reading),
                    observer=checker,
                    stop=Stop(),
                    per_host=self.per_host,
                )
                done = True
            finally:
                workers.close(at_once=not done)
        yield from checker.findings

    def _task_maker(self, index: str, reading: Reading) -> Callable[[Wheel], Task]:
        credentials = credentials_of(index)

        def make_task(wheel: Wheel) -> Task:
            return Task(
                wheel=wheel,
                for_rules=True,
                hashes=reading.hashes,
                credentials=credentials,
            )

        return make_task

    def _list(
        self, index: str, reading: Reading, client: BlockingClient | None
    ) -> Iterator[_CheckedProject]:
        if client is None:
            listed = _list_folder(index, reading)
        else:
            pages = pages_at_once(self.per_host)
            listed = list_page(index, client, reading, at_once=pages)
        for files in listed:
            yield _CheckedProject(
                name=files.path,
                wheels=tuple(_wheels_of(files)),
                position=files.position,
                total=files.total,
                files=files,
            )


def _list_folder(path: str, reading: Reading) -> Iterator[ProjectFiles]:
    try:
        yield from list_folder(path, reading)
    except InputError as error:
        collector = Collector(path)
        collector.add_error("NV100", error)
        yield ProjectFiles(path=path, findings=collector.findings)


@dataclass(frozen=True, kw_only=True, slots=True)
class _CheckedProject(Project):
    """A project of the index, with all of its files."""

    files: ProjectFiles


def _wheels_of(project: ProjectFiles) -> Iterator[Wheel]:
    """Yield the wheels that the rules look into."""
    for release in list_files(project.files or ()).releases:
        if release.is_checked:
            for file, name in release.wheels:
                wheel = _wheel_of(file, name)
                if wheel is not None:
                    yield wheel


def _wheel_of(file: IndexFile, name: WheelName) -> Wheel | None:
    listed = Listed(
        name=file.name,
        url=file.url,
        sha256=file.sha256,
        size=file.size,
        upload_time=None if file.time is None else _as_text(file.time),
        page=file.page,
    )
    try:
        return make_wheel(name, listed)
    except InvalidVersion:
        return None


def _as_text(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat()


class _FactStore(Store):
    """A store that knows a wheel only if it has all that the rules need."""

    def is_known(self, wheel: Wheel) -> bool:
        """Return whether a wheel does not have to be read."""
        return self.has_facts(wheel)


@dataclass(kw_only=True, slots=True)
class _Waiting:
    """A project some of whose wheels are being read.

    :param wheels: the keys of all its wheels.
    :param missing: those that have to be read first.
    """

    files: ProjectFiles
    wheels: frozenset[str]
    missing: set[str]


class _Checker:
    """Lets the rules judge each project as soon as its wheels were read.

    :param observer: is told what happens as well.
    """

    def __init__(self, store: Store, observer: Observer | None) -> None:
        self._store = store
        self._observer = observer
        self._waiting: list[_Waiting] = []
        # What cannot be read now may be readable the next time, and a wheel without a
        # hash and a time may be another one then. So the store does not know them.
        self._passing: dict[str, WheelFacts] = {}
        self.findings: list[Finding] = []

    def listed(self, project: Project, tally: Tally) -> None:
        """Judge a project, unless some of its wheels have to be read first."""
        assert isinstance(project, _CheckedProject)  # noqa: S101  # `_list` yields these
        missing = {w.key for w in project.wheels if not self._store.has_facts(w)}
        wheels = frozenset(wheel.key for wheel in project.wheels)
        waiting = _Waiting(files=project.files, wheels=wheels, missing=missing)
        self._waiting.append(waiting)
        self._judge_ready()
        if self._observer is not None:
            self._observer.listed(project, tally)

    def finished(self, outcome: Outcome, tally: Tally) -> None:
        """Judge the project of a wheel if it was the last one that was missing."""
        wheel, facts = outcome.wheel, outcome.facts
        key = wheel.key
        if facts is None:
            reason = outcome.reason or "it cannot be read"
            facts = WheelFacts(unread=Unread(message=reason))
        is_named = wheel.hash is not None or wheel.upload_time is not None
        if outcome.may_pass or outcome.facts is None or not is_named:
            self._passing[key] = facts
        for waiting in self._waiting:
            waiting.missing.discard(key)
        self._judge_ready()
        if self._observer is not None:
            self._observer.finished(outcome, tally)

    def _judge_ready(self) -> None:
        ready = [item for item in self._waiting if not item.missing]
        self._waiting = [item for item in self._waiting if item.missing]
        for item in ready:
            self.findings += check_project(item.files)
        # Several projects may list one wheel.
        needed = frozenset().union(*(item.wheels for item in self._waiting))
        self._passing = {k: v for k, v in self._passing.items() if k in needed}

    def find(self, file: IndexFile, name: WheelName) -> WheelFacts | None:
        """Return what the store has of a wheel, or what was read of it just now."""
        wheel = _wheel_of(file, name)
        if wheel is None:
            return None
        if wheel.key in self._passing:
            return self._passing[wheel.key]
        facts = self._store.facts(wheel)
        if facts is None:
            return None
        unhashed = None
        if file.sha256 is not None and facts.sha256 is None:
            unhashed = facts.unhashed or _IN_PARTS
        report = facts.report
        if report is not None:
            report = replace(report, path=file.path)
        return replace(facts, report=report, unhashed=unhashed)
