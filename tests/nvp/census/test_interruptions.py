"""A real census in a process, which is interrupted, killed, or loses a worker."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("distributed", reason="the extra census is not installed")

from support.census_runs import make_index
from support.dask_cluster import Cluster, dask_cluster
from support.range_server import Answer, serve_answers
from support.wheels import stub_wheel

from nvp.census.store import Store

pytestmark = pytest.mark.skipif(os.name == "nt", reason="it needs POSIX signals")

COUNT = 40
KILLED_AT = 10

KILLS = int(os.environ.get("NVP_TEST_KILLS", "8"))
"""The number of random kills; 100 before a release."""

CENSUS = """
import json, os, signal, sys
from nvp import api

class Observer:
    def listed(self, project, tally):
        pass

    def finished(self, outcome, tally):
        if victims and tally.read == {killed_at}:
            for victim in victims:
                os.kill(victim or os.getpid(), signal.SIGKILL)

index, store, workers, victims = json.loads(sys.argv[1])
tally = api.census(index, store, observer=Observer(), **workers)
print(json.dumps([tally.known, tally.read]))
"""

TIMES = {"id", "wheel", "seconds", "inspected_at"}
"""The columns that differ from run to run, or depend on the order of the wheels."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Run two workers, which no test ends."""
    with dask_cluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make an index: wheels with GPU code, a damaged one, and one without a native
    library."""
    folder = make_index(tmp_path_factory.mktemp("census") / "index", COUNT - 1)
    stub_wheel(folder / "tools", "tools", "1.0")
    return folder


@pytest.fixture(scope="module")
def expected(index: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the rows that one process writes."""
    store = tmp_path_factory.mktemp("expected") / "census.sqlite"
    assert census(index, store, {"jobs": 1}) == (0, COUNT)
    tables = contents(store)
    assert len(tables["wheels"]) == COUNT
    assert len(tables["targets"]) == COUNT - 2
    return tables


def census(
    index: Path, store: Path, workers: Mapping[str, object], *victims: int
) -> tuple[int, int] | None:
    """Run the census in a process of its own.

    :param workers: the argument ``jobs`` or ``dask``.
    :param victims: the processes that are killed after `KILLED_AT` wheels; 0 is the
        process of the census. :return: how many wheels were known and how many were
        read; ``None`` if the process was killed.
    """
    script = store.with_suffix(".py")
    script.write_text(CENSUS.replace("{killed_at}", str(KILLED_AT)))
    words = json.dumps([str(index), str(store), workers, victims])
    done = subprocess.run(
        [sys.executable, script, words],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    if 0 in victims:
        assert done.returncode == -signal.SIGKILL, done.stderr
        return None
    assert (done.returncode, done.stderr) == (0, "")
    known, read = json.loads(done.stdout)
    return known, read


def contents(store: Path) -> dict[str, list[tuple[str, ...]]]:
    """Return all tables, with the key of the wheel in each row."""
    with closing(sqlite3.connect(store)) as connection:
        connection.row_factory = sqlite3.Row
        keys = {row["id"]: row["key"] for row in connection.execute(_ALL + "wheels")}
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type='table'")
        return {
            name: sorted(
                (
                    keys[row["id" if name == "wheels" else "wheel"]],
                    *(
                        f"{column}={row[column]!r}"
                        for column in row.keys()  # noqa: SIM118  # a row has no order
                        if column not in TIMES
                    ),
                )
                for row in connection.execute(_ALL + name)
            )
            for (name,) in tables.fetchall()
        }


_ALL = "SELECT * FROM "


def test_two_processes_write_the_same_rows(
    index: Path, tmp_path: Path, expected: Any
) -> None:
    store = tmp_path / "census.sqlite"
    assert census(index, store, {"jobs": 2}) == (0, COUNT)
    assert contents(store) == expected


def test_a_store_that_another_census_makes_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, look = str(tmp_path / "census.sqlite"), Store._pragma
    other = threading.Thread(target=lambda: Store(path).close())

    def pragma(store: Store, name: str) -> int:
        value = look(store, name)
        if name == "application_id" and not other.ident:
            other.start()
            other.join(0.5)
        return value

    monkeypatch.setattr(Store, "_pragma", pragma)
    Store(path).close()
    other.join()
    Store(path, create=False).close()


def test_a_new_store_waits_for_its_lock(tmp_path: Path) -> None:
    path = str(tmp_path / "census.sqlite")
    with closing(
        sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    ) as other:
        other.execute("BEGIN IMMEDIATE")
        timer = threading.Timer(0.3, other.execute, ["COMMIT"])
        timer.start()
        Store(path).close()
        timer.join()


@pytest.mark.slow
def test_a_cluster_that_loses_a_worker_writes_the_same_rows(
    index: Path, tmp_path: Path, expected: Any
) -> None:
    """The other worker reads the wheels of the lost one."""
    store = tmp_path / "census.sqlite"
    with dask_cluster(tmp_path) as cluster:
        victim = cluster.workers[0]
        workers = {"dask": cluster.address}
        assert census(index, store, workers, victim.pid) == (0, COUNT)
        assert victim.wait(timeout=60) == -signal.SIGKILL
    assert contents(store) == expected


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["processes", "Dask"])
def test_a_killed_census_goes_on_and_writes_the_same_rows(
    executor: str, cluster: Cluster, index: Path, tmp_path: Path, expected: Any
) -> None:
    """All stored rows stay, and only the missing wheels are read."""
    store = tmp_path / "census.sqlite"
    workers = {"dask": cluster.address} if executor == "Dask" else {"jobs": 2}
    assert census(index, store, workers, 0) is None
    stored = contents(store)["wheels"]
    assert len(stored) == KILLED_AT
    if executor == "Dask":
        cluster.wait_until_idle()
    assert census(index, store, workers) == (KILLED_AT, COUNT - KILLED_AT)
    assert contents(store) == expected


def family(mark: str) -> list[int]:
    """Return the processes of a census, without those that have ended."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            variables = Path("/proc", pid, "environ").read_bytes()
        except OSError:
            continue
        if mark.encode() in variables.split(b"\0"):
            found.append(int(pid))
    return found


def kill_at_random(index: Path, folder: Path, seed: int, longest: float) -> str:
    """Kill processes of a census; return their name when all processes have ended."""
    rng = random.Random(seed)
    victim = ("the parent", "a worker", "all", "the scheduler")[seed % 4]
    with ExitStack() as stack:
        words = ["--jobs", "2"]
        if victim == "the scheduler":
            cluster = stack.enter_context(dask_cluster(folder))
            words = ["--dask", cluster.address]
        process = stack.enter_context(
            subprocess.Popen(
                [
                    *(sys.executable, "-m", "nvp", "census", str(index)),
                    *("-o", str(folder / "census.sqlite"), *words),
                ],
                env=os.environ | {"NVP_TEST_CENSUS": str(folder)},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        )
        time.sleep(longest * rng.random())
        mark = f"NVP_TEST_CENSUS={folder}"
        with suppress(ProcessLookupError):
            if victim == "the parent":
                process.kill()
            elif victim == "all":
                os.killpg(process.pid, signal.SIGKILL)
            elif victim == "the scheduler":
                cluster.scheduler.kill()
            elif workers := [pid for pid in family(mark) if is_worker(pid)]:
                os.kill(rng.choice(workers), signal.SIGKILL)
        _, said = process.communicate(timeout=120)
        if victim in ("a worker", "the scheduler"):
            # Python itself prints how a process fails whose parent was killed.
            assert "Traceback" not in said, f"seed {seed}: {said}"
        until = time.monotonic() + 30
        while (left := family(mark)) and time.monotonic() < until:
            time.sleep(0.05)
        assert left == [], f"seed {seed}: {victim}"
    return f"seed {seed}: {victim}, {process.returncode}, {said}"


def is_worker(pid: int) -> bool:
    """Return whether a process reads wheels."""
    try:
        return b"nvp.census.worker" in Path("/proc", str(pid), "cmdline").read_bytes()
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="/proc shows what runs")
def test_random_kills_lose_no_row(index: Path, tmp_path: Path, expected: Any) -> None:
    """The stored rows stay, regardless of the killed process, and the next census adds
    the missing rows."""
    started = time.monotonic()
    census(index, tmp_path / "census.sqlite", {"jobs": 2})
    longest = 1.2 * (time.monotonic() - started)
    for seed in range(KILLS):
        folder = tmp_path / str(seed)
        folder.mkdir()
        case = kill_at_random(index, folder, seed, longest)
        store = folder / "census.sqlite"
        stored: list[tuple[str, ...]] = []
        if store.exists():
            with closing(sqlite3.connect(store)) as connection:
                (whole,) = connection.execute("PRAGMA integrity_check").fetchone()
                tables = connection.execute("SELECT name FROM sqlite_master").fetchall()
            assert whole == "ok", case
            # The census may have been killed before it had made the tables.
            stored = contents(store)["wheels"] if ("wheels",) in tables else []
        done = census(index, store, {"jobs": 2})
        assert done == (len(stored), COUNT - len(stored)), case
        assert contents(store) == expected, case


class Gated(dict[str, Answer]):
    """An index whose first two wheels are sent only after the gate was opened."""

    def __init__(self, folder: Path) -> None:
        wheels = sorted(make_index(folder).glob("*/*.whl"))
        links = "".join(f'<a href="/{path.name}">{path.name}</a>' for path in wheels)
        super().__init__({"/": Answer(body=links.encode(), kind="text/html")})
        self.update(
            {f"/{path.name}": Answer(body=path.read_bytes()) for path in wheels}
        )
        self.held = [f"/{path.name}" for path in wheels[:2]]
        self.gate = threading.Event()

    def get(self, path: str, default: Any = None) -> Any:
        if path in self.held:
            self.gate.wait()
        return super().get(path, default)


@contextmanager
def interrupted(
    folder: Path, workers: Sequence[str]
) -> Iterator[tuple[subprocess.Popen[str], Gated]]:
    """Press Ctrl-C while two workers read a wheel each, and others wait for them."""
    pytest.importorskip("httpx", reason="it reads the index")
    index = Gated(folder / "index")
    command = [sys.executable, "-m", "nvp", "-v", "census"]
    with (
        serve_answers(index) as server,
        subprocess.Popen(
            [*command, server.url, "-o", folder / "census.sqlite", *workers],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        try:
            for path in index.held:
                server.requests.wait_for(path)
            process.send_signal(signal.SIGINT)
            said = process.stderr
            assert said is not None
            assert any("no other wheels are read now" in line for line in said)
            yield process, index
        finally:
            process.kill()
            index.gate.set()


@pytest.fixture(params=["processes", pytest.param("Dask", marks=pytest.mark.slow)])
def workers(request: pytest.FixtureRequest) -> list[str]:
    """The options for two workers."""
    if request.param == "processes":
        return ["--jobs", "2"]
    cluster: Cluster = request.getfixturevalue("cluster")
    return ["--dask", cluster.address]


def test_ctrl_c_finishes_what_is_being_read(workers: list[str], tmp_path: Path) -> None:
    """The workers read no other wheels, although they already have the next ones."""
    with interrupted(tmp_path, workers) as (process, index):
        index.gate.set()
        assert process.stderr is not None
        said = process.stderr.read()
        assert process.wait(timeout=120) == 130
    assert "interrupted; run the same command again to go on" in said
    assert "Traceback" not in said
    rows = contents(tmp_path / "census.sqlite")["wheels"]
    assert [row[0].rpartition("/")[2][:5] for row in rows] == ["p0000", "p0001"]


@pytest.mark.slow
def test_ctrl_c_twice_waits_for_nothing(workers: list[str], tmp_path: Path) -> None:
    """The census ends while the workers are still reading."""
    with interrupted(tmp_path, workers) as (process, index):
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        said = process.stderr.read()
        assert process.wait(timeout=120) == 130
        assert not index.gate.is_set()
    assert "Traceback" not in said
    assert contents(tmp_path / "census.sqlite")["wheels"] == []


@pytest.mark.skipif(sys.platform != "linux", reason="/proc shows what runs")
def test_ctrl_c_while_the_workers_start(index: Path, tmp_path: Path) -> None:
    """A terminal sends the signal to all processes, and the workers do not ignore it
    yet."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "nvp", "census", str(index), "--jobs", "2"),
            *("-o", str(tmp_path / "census.sqlite")),
        ],
        env=os.environ | {"NVP_TEST_CENSUS": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        while not any(map(is_worker, family(f"NVP_TEST_CENSUS={tmp_path}"))):
            assert process.poll() is None
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "Traceback" not in said
