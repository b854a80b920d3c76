"""A small index, and functions that run a census of it, for tests of `nvp.census`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from support.containers import container, entry, library
from support.wheels import stub_wheel

from nvp.census.listing import Project, list_projects
from nvp.census.model import Options, Outcome
from nvp.census.running import Census, Stop, Tally
from nvp.census.store import Store
from nvp.census.worker import Task, read_wheel
from nvp.census.workers import _PROGRAM
from nvp.index.http.blocking import BlockingClient

__all__ = [
    "COUNT",
    "IMPATIENT",
    "PLATFORM",
    "STOPPED",
    "Observed",
    "Threads",
    "make_costly_index",
    "make_index",
    "reasons",
    "rows",
    "run",
    "take",
    "with_limit",
]

PLATFORM = "cp312-cp312-manylinux_2_28_x86_64"
COUNT = 12


def make_index(folder: Path, count: int = COUNT) -> Path:
    """Make an index in a directory: one wheel for each project, one of them damaged."""
    for number in range(count):
        name = f"p{number:04d}"
        path = stub_wheel(
            folder / name,
            name,
            "1.0",
            tag=PLATFORM,
            members={f"{name}/lib.so": library(f"{80 + number % 10}_real")},
        )
        if number == 1:
            path.write_bytes(path.read_bytes()[:-30])
    return folder


def make_costly_index(folder: Path) -> Path:
    """Make an index whose second wheel takes seconds: its LZ4 blocks are slow."""
    block = b"\x10\0\1\0" * 3000 + b"\x10\0"
    cubins = container(*[entry(payload=block, flags=0x2011, size=15_001)] * 2000)
    for name, content in zip("abc", (b"", cubins, b""), strict=True):
        members = {f"{name}/lib.so": library("90_real") + content}
        stub_wheel(folder / name, name, "1.0", tag=PLATFORM, members=members)
    return folder


def with_limit(name: str, value: float) -> str:
    """Return the program of a worker that has another limit in its module."""
    change = f"from nvp.census import worker; worker.{name} = {value}; "
    return _PROGRAM.replace("from nvp", f"{change}from nvp", 1)


IMPATIENT = with_limit("SECONDS", 1.0)
STOPPED = "reading it was stopped after 1 seconds of processor time"


def reasons(store: Path) -> list[str]:
    """Return why wheels of a store failed."""
    with Store(str(store)) as opened:
        return [row["reason"] for row in opened.wheels("status = 'failed'")]


class Observed:
    """The messages and the progress that a census reported."""

    def __init__(self, then: Any = None) -> None:
        self.outcomes: list[Outcome] = []
        self.projects: list[Project] = []
        self._then = then

    def listed(self, project: Project, tally: Tally) -> None:
        del tally
        self.projects.append(project)

    def finished(self, outcome: Outcome, tally: Tally) -> None:
        del tally
        self.outcomes.append(outcome)
        if self._then is not None:
            self._then(self)


class Threads:
    """Workers in threads of this process, for tests that need no other processes."""

    ahead = 2

    def __init__(self, read: Any = read_wheel, count: int = 2) -> None:
        self._read = read
        self._count = count
        self._pool = ThreadPoolExecutor(count)

    def submit(self, task: Task) -> Future[Outcome]:
        return self._pool.submit(self._read, task)

    def capacity(self) -> int:
        return self._count

    def result(self, future: Future[Outcome]) -> Outcome:
        return future.result()

    def withdraw(self, futures: Iterable[Future[Outcome]]) -> None:
        for future in futures:
            future.cancel()

    def close(self) -> None:
        self._pool.shutdown()


def take(
    index: Path,
    store: Path,
    workers: Any = None,
    *,
    observer: Observed | None = None,
    stop: Stop | None = None,
    **options: Any,
) -> Tally:
    """Run a census, by default in threads."""
    projects = list_projects(str(index), Options(), BlockingClient)
    return run(projects, store, workers, observer=observer, stop=stop, **options)


def run(
    projects: Iterator[Project],
    store: Path,
    workers: Any = None,
    *,
    observer: Observed | None = None,
    stop: Stop | None = None,
    **options: Any,
) -> Tally:
    """Read the wheels of projects, by default in threads."""
    workers = workers or Threads()
    try:
        with Store(str(store)) as opened:
            census = Census(
                opened, workers, Options(**options), observer=observer, stop=stop
            )
            return census.run(projects)
    finally:
        workers.close()


def rows(store: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Return all rows of a store, sorted, and without the time of reading."""
    with Store(str(store)) as opened:
        names = {row["id"]: row["key"] for row in opened.wheels()}
        varying = {"id", "wheel", "seconds", "inspected_at", "bytes_read"}
        return {
            table: sorted(
                (
                    names[row["id" if table == "wheels" else "wheel"]],
                    *(str(row[key]) for key in row.keys() if key not in varying),  # noqa: SIM118
                )
                for row in opened.rows(f"SELECT * FROM {table}")
            )
            for table in ("wheels", "libraries", "targets", "claims")
        }
