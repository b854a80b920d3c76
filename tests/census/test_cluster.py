"""A census by the workers of a Dask cluster, which is a real one."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("distributed", reason="the extra census is not installed")

from census.test_running import COUNT, Observed, make_index, rows, take
from support.command import Run
from support.dask_cluster import Cluster, dask_cluster

from nvidia_variant_provider import __version__
from nvidia_variant_provider.census import cluster as cluster_module
from nvidia_variant_provider.census.cluster import ClusterWorkers
from nvidia_variant_provider.census.running import Stop
from nvidia_variant_provider.errors import InputError

pytestmark = pytest.mark.skipif(os.name == "nt", reason="it takes minutes there")

CHANGED = """
import nvidia_variant_provider
from nvidia_variant_provider import _version as module
module.__version__ = nvidia_variant_provider.__version__ = "0.0.7"
"""

MISSING = """
import sys
sys.modules["nvidia_variant_provider"] = None
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two workers, whom no test ends."""
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
    """What the workers have is finished, since nobody knows what they have begun."""
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


def test_the_verb(cluster: Cluster, index: Path, tmp_path: Path, run: Run) -> None:
    store = tmp_path / "census.sqlite"
    outcome = run("census", index, "-o", store, "--dask", cluster.address)
    assert outcome.code == 1, "one wheel is damaged"
    assert outcome.out.startswith(f"{COUNT} wheels: {COUNT - 1} inspected")
    both = run("census", index, "-o", store, "--dask", "x", "--jobs", 2)
    assert both.code == 2


def test_a_lost_worker(index: Path, tmp_path: Path) -> None:
    """Its wheels go to the others."""
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


@pytest.mark.parametrize(
    ("change", "what"), [(CHANGED, "has version 0.0.7"), (MISSING, "has none")]
)
def test_workers_of_another_version(tmp_path: Path, change: str, what: str) -> None:
    changed = tmp_path / "changed"
    changed.mkdir()
    (changed / "sitecustomize.py").write_text(change)
    with dask_cluster(tmp_path, workers=1) as cluster:
        cluster.add_worker({"PYTHONPATH": str(changed)})
        cluster.wait_for_workers(2)
        with pytest.raises(InputError) as caught:
            ClusterWorkers(cluster.address)
    assert "workers have another version of this package: tcp://127.0.0.1:" in str(
        caught.value
    )
    assert str(caught.value).count("tcp://") == 1
    assert what in str(caught.value)
    assert caught.value.hint == f"install version {__version__} there"


@pytest.mark.parametrize("listens", [True, False])
def test_nobody_responds(
    listens: bool, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes the verb less than ten seconds to say so, in one line."""
    assert cluster_module._PATIENCE < 10
    monkeypatch.setattr(cluster_module, "_PATIENCE", 0.5)
    with socket.socket() as waiting:
        waiting.bind(("127.0.0.1", 0))
        if listens:
            waiting.listen()
        address = f"tcp://127.0.0.1:{waiting.getsockname()[1]}"
        store = tmp_path / "census.sqlite"
        outcome = run("census", tmp_path, "-o", store, "--dask", address)
    assert outcome.code == 3
    (line,) = outcome.err.splitlines()
    assert line.startswith(f"error: {address}: no Dask scheduler can be reached: ")


@pytest.mark.parametrize("address", ["nowhere", "ftp://x", "", "tcp://"])
def test_an_address_that_is_none(
    address: str, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_module, "_PATIENCE", 0.5)
    store = tmp_path / "census.sqlite"
    outcome = run("census", tmp_path, "-o", store, "--dask", address)
    assert outcome.code == 3
    assert len(outcome.err.splitlines()) == 1
