"""A census by the workers of a real Dask cluster."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import trustme

pytest.importorskip("distributed", reason="the extra census is not installed")

from support.census_runs import (
    COUNT,
    IMPATIENT,
    STOPPED,
    Observed,
    make_costly_index,
    make_index,
    reasons,
    rows,
    take,
)
from support.command import Run
from support.dask_cluster import Cluster, dask_cluster
from support.grids import some_of
from support.processes import provider, provider_process

from nvidia_variant_provider import __version__
from nvidia_variant_provider.errors import InputError
from nvp.census import cluster as cluster_module
from nvp.census.cluster import ClusterWorkers
from nvp.census.running import Stop

pytestmark = pytest.mark.skipif(os.name == "nt", reason="it takes minutes there")

CHANGED = """
import nvp
nvp.__version__ = "0.0.7"
"""

MISSING = """
import sys
sys.modules["nvp"] = None
"""


DYING = """
import os, sys
class Finder:
    def find_spec(name, path=None, target=None):
        if name == "nvp":
            os._exit(9)
sys.meta_path.insert(0, Finder)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Run two workers, which no test ends."""
    with dask_cluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture
def index(tmp_path: Path) -> Path:
    return make_index(tmp_path / "index")


def test_the_rows_are_those_of_one_process(
    cluster: Cluster, index: Path, tmp_path: Path
) -> None:
    take(index, tmp_path / "expected.sqlite")
    store = tmp_path / "census.sqlite"
    tally = take(index, store, ClusterWorkers(cluster.address))
    assert tally.read == COUNT
    assert rows(store) == rows(tmp_path / "expected.sqlite")
    again = take(index, store, ClusterWorkers(cluster.address))
    assert (again.known, again.read) == (COUNT, 0)


def test_an_end_is_asked_for(cluster: Cluster, index: Path, tmp_path: Path) -> None:
    """The workers finish the wheels that they have begun."""
    stop, store = Stop(), tmp_path / "census.sqlite"
    first = take(
        index,
        store,
        ClusterWorkers(cluster.address),
        observer=Observed(lambda _: stop.set()),
        stop=stop,
    )
    assert first.stopped == "interrupt"
    assert 1 <= first.read < COUNT
    second = take(index, store, ClusterWorkers(cluster.address))
    assert second.read == COUNT - first.read


def test_the_command(cluster: Cluster, index: Path, tmp_path: Path, run: Run) -> None:
    store = tmp_path / "census.sqlite"
    outcome = run("census", index, "-o", store, "--dask", cluster.address)
    assert outcome.code == 1, "one wheel is damaged"
    assert outcome.out.startswith(f"{COUNT} wheels: {COUNT - 1} inspected")
    both = run("census", index, "-o", store, "--dask", "x", "--jobs", 2)
    assert both.code == 2


@pytest.mark.slow
def test_a_wheel_that_takes_too_long_costs_no_other_wheel(tmp_path: Path) -> None:
    index = make_costly_index(tmp_path / "index")
    store = tmp_path / "census.sqlite"
    impatient = f"from nvp.census import workers\nworkers._PROGRAM = {IMPATIENT!r}"
    with dask_cluster(tmp_path, workers=0) as cluster:
        cluster.add_worker(variables(tmp_path, impatient))
        cluster.wait_for_workers(1)
        tally = take(index, store, ClusterWorkers(cluster.address))
    assert (tally.inspected, tally.failed) == (2, 1)
    assert reasons(store) == [STOPPED]


@pytest.mark.slow
def test_a_lost_worker(index: Path, tmp_path: Path) -> None:
    """The other workers read the wheels of the lost worker."""
    take(index, tmp_path / "expected.sqlite")
    store = tmp_path / "census.sqlite"
    with dask_cluster(tmp_path) as cluster:

        def kill(observed: Observed) -> None:
            if len(observed.outcomes) == 2:
                cluster.workers[0].send_signal(signal.SIGKILL)

        workers = ClusterWorkers(cluster.address)
        tally = take(index, store, workers, observer=Observed(kill))
        assert cluster.workers[0].wait(timeout=60) == -signal.SIGKILL
    assert tally.read == COUNT
    assert rows(store) == rows(tmp_path / "expected.sqlite")


def test_a_worker_that_is_lost_after_its_results_have_come(
    cluster: Cluster, index: Path, tmp_path: Path
) -> None:
    """The results count, although Dask lets another worker read these wheels again."""
    workers = ClusterWorkers(cluster.address)
    gather = workers._client._gather

    async def gather_and_lose(futures: list[Any], **more: Any) -> Any:
        results = await gather(futures, **more)
        for future in futures:
            future._state.lose()
        return results

    workers._client._gather = gather_and_lose
    tally = take(index, tmp_path / "census.sqlite", workers)
    assert (tally.inspected, tally.failed) == (COUNT - 1, 1)


@pytest.mark.slow
def test_a_worker_that_is_lost_at_the_start(index: Path, tmp_path: Path) -> None:
    with dask_cluster(tmp_path, workers=1) as cluster:
        cluster.add_worker(variables(tmp_path, DYING))
        cluster.wait_for_workers(2)
        workers = ClusterWorkers(cluster.address)
        assert take(index, tmp_path / "census.sqlite", workers).read == COUNT


@pytest.mark.slow
def test_a_stopped_worker_delays_neither_the_start_nor_the_end(tmp_path: Path) -> None:
    """Dask drops a worker that does not respond only after five minutes."""
    with dask_cluster(tmp_path) as cluster:
        cluster.workers[0].send_signal(signal.SIGSTOP)
        try:
            workers = ClusterWorkers(cluster.address)
            workers.withdraw([])
            assert len(workers._client.nthreads()) == 2
            workers.close()
        finally:
            cluster.workers[0].send_signal(signal.SIGCONT)


@pytest.mark.slow
def test_a_lost_scheduler(index: Path, tmp_path: Path) -> None:
    store = tmp_path / "census.sqlite"
    with dask_cluster(tmp_path, workers=1) as cluster:

        def kill(observed: Observed) -> None:
            if len(observed.outcomes) == 2:
                cluster.scheduler.send_signal(signal.SIGKILL)
                cluster.scheduler.wait(timeout=60)

        workers = ClusterWorkers(cluster.address)
        with pytest.raises(InputError, match="the workers have gone") as caught:
            take(index, store, workers, observer=Observed(kill))
    assert caught.value.hint == "run the same command again to go on"
    assert 2 <= take(index, store).known < COUNT


@pytest.fixture(params=[(CHANGED, "has version 0.0.7"), (MISSING, "has none")])
def other(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[dict[str, str], str]:
    """Return variables with which a process has another version of the package, or
    none."""
    change, what = request.param
    return variables(tmp_path, change), what


def variables(folder: Path, start: str) -> dict[str, str]:
    """Return variables by which an interpreter runs ``start`` first."""
    changed = folder / "changed"
    changed.mkdir()
    (changed / "sitecustomize.py").write_text(start)
    return {"PYTHONPATH": str(changed)}


@pytest.mark.slow
def test_a_worker_of_another_version_that_comes_later(
    other: tuple[dict[str, str], str], index: Path, tmp_path: Path
) -> None:
    """The stored rows stay, and no wheel counts as failed because of the worker."""
    environ, what = other
    store = tmp_path / "census.sqlite"
    with dask_cluster(tmp_path, workers=1) as cluster:

        def replace(observed: Observed) -> None:
            if len(observed.outcomes) == 2:
                cluster.add_worker(environ)
                cluster.wait_for_workers(2)
                cluster.workers[0].send_signal(signal.SIGKILL)

        workers = ClusterWorkers(cluster.address)
        # The others are handed over when the first worker has gone.
        workers.ahead = 2
        with pytest.raises(InputError) as caught:
            take(index, store, workers, observer=Observed(replace))
    assert_named(caught.value, what)
    assert sum("failed" in row for row in rows(store)["wheels"]) <= 1
    assert 2 <= take(index, store).known < COUNT


def assert_named(error: InputError, what: str) -> None:
    """Check that the error names the worker and its version."""
    text = str(error)
    assert "workers have another version of this package: tcp://127.0.0.1:" in text
    assert text.count("tcp://") == 1
    assert what in text
    assert error.hint == f"install version {__version__} there"


@pytest.mark.slow
def test_a_scheduler_without_the_package(index: Path, tmp_path: Path) -> None:
    """Only the workers need the package."""
    store = tmp_path / "census.sqlite"
    missing = variables(tmp_path, MISSING)
    with dask_cluster(tmp_path, workers=1, environ=missing) as cluster:
        tally = take(index, store, ClusterWorkers(cluster.address))
    assert (tally.inspected, tally.failed) == (COUNT - 1, 1)


@pytest.mark.slow
def test_certificates(index: Path, tmp_path: Path) -> None:
    """The certificates are those of Dask's own configuration."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    own = authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem
    own.write_to_path(str(tmp_path / "own.pem"))
    names = {"CA_FILE": "ca.pem"}
    names |= {f"{who}__CERT": "own.pem" for who in ("SCHEDULER", "WORKER", "CLIENT")}
    environ = {
        f"DASK_DISTRIBUTED__COMM__TLS__{name}": str(tmp_path / file)
        for name, file in names.items()
    }
    words = ("census", index, "-o", tmp_path / "census.sqlite", "--dask")
    tls = ("--protocol", "tls")
    with dask_cluster(tmp_path, workers=0, options=tls, environ=environ) as cluster:
        assert cluster.address.startswith("tls://")
        cluster.add_worker(environ)
        # A process reads this configuration when it imports Dask.
        outcome = provider_process(
            *words, cluster.address, environ={**os.environ, **environ}
        )
        assert outcome.out.startswith(f"{COUNT} wheels: {COUNT - 1} inspected")
        outcome = provider(*words, cluster.address, environ=os.environ)
    assert outcome.code == 3
    (line,) = outcome.err.splitlines()
    assert line.startswith(
        f"error: {cluster.address}: no Dask scheduler can be reached"
    )
    assert "distributed.comm.tls.ca-file" in line


@pytest.mark.slow
@pytest.mark.parametrize("sends", [None, b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_nobody_responds(sends: bytes | None, tmp_path: Path) -> None:
    """The command reports the failure in one line, within ten seconds."""
    assert cluster_module._PATIENCE < 10
    with socket.socket() as waiting:
        waiting.bind(("127.0.0.1", 0))

        def respond(data: bytes) -> None:
            # Dask reads this text as the length of a message, 3 EiB, and connects again
            # after a while.
            with contextlib.suppress(OSError):
                while True:
                    with waiting.accept()[0] as connection:
                        connection.sendall(data)
                        while connection.recv(1024):
                            pass

        if sends is not None:
            waiting.listen()
        if sends:
            Thread(target=respond, args=[sends], daemon=True).start()
        address = f"tcp://127.0.0.1:{waiting.getsockname()[1]}"
        store = tmp_path / "census.sqlite"
        # A client that cannot connect leaves threads in its process.
        words = ("census", tmp_path, "-o", store, "--dask", address)
        outcome = provider(*words, environ=os.environ)
        if sends:
            waiting.shutdown(socket.SHUT_RDWR)  # it ends the thread
    assert outcome.code == 3
    (line,) = outcome.err.splitlines()
    assert line.startswith(f"error: {address}: no Dask scheduler can be reached: ")
    assert ("what responds is no scheduler" in line) == bool(sends)


@pytest.mark.parametrize(
    "address",
    some_of(
        [
            ("nowhere",),
            ("ftp://x",),
            ("ucx://x:1",),
            ("inproc://x",),
            ("",),
            ("tcp://",),
            ("tls://x",),
        ],
        7,
    ),
)
def test_an_address_that_is_none(address: str, tmp_path: Path) -> None:
    words = ("census", tmp_path, "-o", tmp_path / "census.sqlite", "--dask", address)
    outcome = provider(*words, environ=os.environ)
    assert outcome.code == 3
    assert len(outcome.err.splitlines()) == 1
