"""Taking a census: from an index to a store."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from ..index import connect
from ..index.http.urls import is_http, server_of, split_credentials
from .listing import Project, list_projects, pages_at_once
from .model import Outcome, Wheel
from .running import Observer, Stop, Tally, run
from .selecting import Choice
from .store import Store
from .worker import RETRIES, Limits, Task
from .workers import LocalWorkers, Workers

__all__ = ["Options", "credentials_of", "make_workers", "take_census"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """What to read, and where.

    :param projects: the projects to read; empty for all of the index.
    :param choice: which of their wheels.
    :param jobs: how many processes of this machine read; one for each core by default.
    :param dask: the address of the scheduler of a cluster, which reads instead.
    :param limits: what one wheel may cost.
    :param per_host: how many wheels of one server are read at the same time.
    :param max_bytes: no wheel is started after so many bytes.
    """

    projects: Sequence[str] = ()
    choice: Choice = field(default_factory=Choice)
    jobs: int | None = None
    dask: str | None = None
    limits: Limits = field(default_factory=Limits)
    per_host: int = 8
    max_bytes: int | None = None


class _Unobserved:
    def listed(self, project: Project, tally: Tally) -> None:
        pass

    def finished(self, outcome: Outcome, tally: Tally) -> None:
        pass


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

    :param index: a URL, a folder, or its ``file:`` URL.
    :param path: where the store is.
    :raises InputError: the index cannot be read, or the store not be written.
    """
    credentials = credentials_of(index)

    def make_task(wheel: Wheel) -> Task:
        return Task(wheel=wheel, limits=options.limits, credentials=credentials)

    projects = list_projects(
        index,
        options.projects,
        options.choice,
        partial(connect, environ, retries=RETRIES),
        at_once=pages_at_once(options.per_host),
    )
    with Store(path) as store:
        workers = make_workers(options.jobs, options.dask)
        done = False
        try:
            tally = run(
                projects,
                store,
                workers,
                make_task=make_task,
                observer=observer or _Unobserved(),
                stop=stop or Stop(),
                max_bytes=options.max_bytes,
                per_host=options.per_host,
            )
            done = True
        finally:
            workers.close(at_once=not done)
    return tally


def credentials_of(index: str) -> tuple[tuple[str, tuple[str, str]], ...]:
    """Return user and password in the URL of an index, by its server."""
    if is_http(index):
        bare, pair = split_credentials(index)
        if pair is not None:
            return ((server_of(bare), pair),)
    return ()


def make_workers(jobs: int | None, dask: str | None) -> Workers:
    """Return what reads wheels.

    :param jobs: how many processes; one for each core by default.
    :param dask: the address of the scheduler of a cluster, which is used instead.
    :raises InputError: there is no cluster, or its workers have another version.
    """
    if dask is not None:
        from .cluster import ClusterWorkers

        return ClusterWorkers(dask)
    return LocalWorkers(jobs or os.cpu_count() or 1)
