"""A Dask cluster on the loopback interface: a scheduler and workers as processes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Cluster", "dask_cluster"]


@dataclass(frozen=True)
class Cluster:
    """A running scheduler, and its workers.

    :param address: the address of the scheduler.
    """

    address: str
    folder: Path
    scheduler: subprocess.Popen[bytes]
    stack: ExitStack
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def add_worker(
        self, environ: Mapping[str, str] | None = None, *, log: Path | None = None
    ) -> None:
        """Start a worker with one thread, without waiting for its connection.

        :param log: the file for the log of the worker.
        """
        command = [
            *(sys.executable, "-m", "distributed.cli.dask_worker", self.address),
            *("--nthreads", "1", "--no-nanny", "--host", "127.0.0.1"),
            *("--no-dashboard", "--local-directory", str(self.folder)),
        ]
        place = Path(os.devnull) if log is None else log
        stderr = self.stack.enter_context(place.open("wb"))
        process = self.stack.enter_context(
            _process(command, environ, stderr=stderr.fileno())
        )
        self.workers.append(process)

    def wait_for_workers(self, count: int) -> None:
        """Wait until so many workers have connected."""
        from distributed import Client

        make_client: Any = Client  # it has no types
        with make_client(self.address, set_as_default=False) as client:
            client.wait_for_workers(count, timeout=60)

    def wait_until_idle(self) -> None:
        """Wait until the scheduler has no tasks of any client."""
        from distributed import Client

        async def wait(dask_scheduler: Any) -> None:
            import asyncio

            while dask_scheduler.tasks:
                await asyncio.sleep(0.01)

        make_client: Any = Client  # it has no types
        with make_client(self.address, set_as_default=False) as client:
            client.run_on_scheduler(wait)


@contextmanager
def dask_cluster(
    folder: Path,
    *,
    workers: int = 2,
    options: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
) -> Iterator[Cluster]:
    """Run a scheduler and its workers while the context lasts.

    :param options: more words for the command of the scheduler.
    :param environ: more variables for the scheduler.
    """
    with ExitStack() as stack:
        scheduler = stack.enter_context(
            _process(
                [
                    *(sys.executable, "-m", "distributed.cli.dask_scheduler"),
                    *("--host", "127.0.0.1", "--port", "0", "--no-dashboard"),
                    *options,
                ],
                environ,
                stderr=subprocess.PIPE,
            )
        )
        address = _read_address(scheduler)
        cluster = Cluster(address, folder, scheduler, stack)
        for _ in range(workers):
            cluster.add_worker()
        if workers:
            cluster.wait_for_workers(workers)
        yield cluster


def _read_address(scheduler: subprocess.Popen[bytes]) -> str:
    """Return the address that the scheduler prints when clients can connect."""
    said = scheduler.stderr
    assert said is not None
    for line in said:
        _, mark, address = line.decode().partition("Scheduler at:")
        if mark:
            # The scheduler would stop when the pipe is full: read the rest.
            threading.Thread(target=said.read, daemon=True).start()
            return address.strip()
    raise OSError("the scheduler has ended")


@contextmanager
def _process(
    command: Sequence[str],
    environ: Mapping[str, str] | None = None,
    *,
    stderr: int = subprocess.DEVNULL,
) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        command,
        env={**os.environ, **(environ or {})},
        stdout=subprocess.DEVNULL,
        stderr=stderr,
    ) as process:
        try:
            yield process
        finally:
            process.kill()
