"""A whole census: the same rows with any number of processes, also after a failure."""

from __future__ import annotations

import hashlib
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.census_runs import (
    COUNT,
    IMPATIENT,
    PLATFORM,
    STOPPED,
    Observed,
    Threads,
    make_costly_index,
    make_index,
    reasons,
    rows,
    run,
    take,
    with_limit,
)
from support.processes import clean_environ
from support.range_server import Answer, serve_answers
from support.wheels import stub_wheel

from nvidia_variant_provider.errors import InputError
from nvp.census import worker
from nvp.census import workers as workers_module
from nvp.census.listing import Project
from nvp.census.model import Outcome, Wheel
from nvp.census.running import Stop, Tally
from nvp.census.store import Store
from nvp.census.worker import Task, read_wheel
from nvp.census.workers import LocalWorkers
from nvp.signals import StoppedError


@pytest.fixture
def index(tmp_path: Path) -> Path:
    return make_index(tmp_path / "index")


@pytest.fixture
def expected(index: Path, tmp_path: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Return the rows of a census by one thread."""
    store = tmp_path / "expected.sqlite"
    tally = take(index, store, Threads(count=1))
    assert (tally.inspected, tally.failed) == (COUNT - 1, 1)
    found = rows(store)
    assert len(found["targets"]) == COUNT - 1
    return found


ISOLATED = """
import sys
from nvp import api

# A script needs no guard, because the processes do not import it.
api.census(sys.argv[1], "it.sqlite", jobs=2)
"""


def test_no_process_imports_from_the_current_directory(
    index: Path, tmp_path: Path
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    for name in ("re", "json", "pickle", "socket", "signal", "nvp"):
        (here / f"{name}.py").write_text("open('imported', 'a').write(__name__)\n")
    script = tmp_path / "script.py"
    script.write_text(ISOLATED)
    done = subprocess.run(
        [sys.executable, script, index],
        env=clean_environ(tmp_path / "home"),
        cwd=here,
        check=True,
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == ("", "")
    assert (here / "it.sqlite").exists()
    assert not (here / "imported").exists()


def test_processes_give_the_same_rows(
    index: Path, tmp_path: Path, expected: dict[str, list[tuple[Any, ...]]]
) -> None:
    for jobs in (1, 2):
        store = tmp_path / f"{jobs}.sqlite"
        take(index, store, LocalWorkers(jobs))
        assert rows(store) == expected


def test_a_second_run_reads_nothing(index: Path, tmp_path: Path) -> None:
    store = tmp_path / "census.sqlite"
    take(index, store)
    tally = take(index, store)
    assert (tally.wheels, tally.known, tally.read) == (COUNT, COUNT, 0)
    assert tally.bytes_read == 0


def test_a_file_that_has_changed_is_read_again(index: Path, tmp_path: Path) -> None:
    store = tmp_path / "census.sqlite"
    take(index, store)
    (path,) = (index / "p0003").iterdir()
    stub_wheel(path.parent, "p0003", "1.0", tag=PLATFORM)
    tally = take(index, store)
    assert (tally.known, tally.skipped) == (COUNT - 1, 1)


def kill_any(workers: LocalWorkers) -> None:
    """Kill the first process that is there."""
    until = time.monotonic() + 60
    while not workers._processes:
        assert time.monotonic() < until
        time.sleep(0.01)
    workers._processes[0].kill()


def test_a_killed_process_costs_no_wheel(
    index: Path, tmp_path: Path, expected: dict[str, list[tuple[Any, ...]]]
) -> None:
    """A worker is killed from outside, and its wheel is read again."""
    workers = LocalWorkers(2)

    def kill(observed: Observed) -> None:
        if len(observed.outcomes) == 3:
            kill_any(workers)

    store = tmp_path / "census.sqlite"
    tally = take(index, store, workers, observer=Observed(kill))
    assert len(workers._processes) == 3
    assert tally.failed == 1
    assert rows(store) == expected


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> Task:
    """Return a task whose process waits endlessly."""
    monkeypatch.setattr(workers_module, "_PROGRAM", ENDLESS)
    wheel = Wheel(
        project="demo",
        version="1",
        filename="demo-1-py3-none-any.whl",
        tags="py3-none-any",
        url="/nowhere/demo-1-py3-none-any.whl",
    )
    return Task(wheel=wheel)


ENDLESS = """
import pickle, sys, time
pickle.load(sys.stdin.buffer)
pickle.dump(None, sys.stdout.buffer)
sys.stdout.flush()
time.sleep(600)
"""


def test_no_thread_and_no_process_outlives_the_workers(endless: Task) -> None:
    before = set(threading.enumerate())
    workers = LocalWorkers(1)
    futures = [workers.submit(endless) for _ in range(3)]
    while not workers._processes:
        time.sleep(0.01)
    workers.close()
    assert set(threading.enumerate()) == before
    assert all(process.returncode is not None for process in workers._processes)
    for future in futures:
        with pytest.raises(CancelledError):
            future.result()


def test_a_process_whose_parent_was_killed_prints_nothing() -> None:
    process = subprocess.Popen(
        [sys.executable, "-I", "-c", workers_module._PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdout.close()
    pickle.dump(sys.path, process.stdin)
    process.stdin.flush()  # it stays open: only the answer fails
    assert process.communicate(timeout=100)[1] == b""
    assert process.returncode == 1


def test_a_process_whose_parent_was_killed_at_once_prints_nothing() -> None:
    command = [sys.executable, "-I", "-c", workers_module._PROGRAM]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    assert (done.stdout, done.stderr) == (b"", b"")


def test_a_wheel_that_kills_its_processes(
    endless: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only this wheel is recorded as failed, and may be tried again."""
    dying = ENDLESS.replace("time.sleep(600)", "pickle.load(sys.stdin.buffer)")
    monkeypatch.setattr(workers_module, "_PROGRAM", dying)
    with closing(LocalWorkers(1)) as workers:
        outcome = workers.submit(endless).result()
    assert len(workers._processes) == 2
    assert outcome.status == "failed"
    assert outcome.reason == "the process that read it was killed"
    assert outcome.may_pass


def test_a_wheel_that_takes_too_long_costs_no_other_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A wheel of 11.8 MiB took a worker 42 seconds of processor time.
    index = make_costly_index(tmp_path / "index")
    monkeypatch.setattr(workers_module, "_PROGRAM", IMPATIENT)
    store = tmp_path / "census.sqlite"
    workers = LocalWorkers(1)
    tally = take(index, store, workers)
    assert len(workers._processes) == 1
    assert (tally.inspected, tally.failed) == (2, 1)
    assert reasons(store) == [STOPPED]
    with Store(str(store)) as opened:
        assert all(row["bytes_read"] for row in opened.wheels()), "for --max-bytes"


def test_a_second_reading_that_is_stopped_costs_no_result(
    index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wheel with a damaged part is downloaded, which may take too long."""

    opened: list[bool] = []
    real = worker._open_remote

    def open_remote(task: Task, meter: Any, *, whole: bool = False) -> Any:
        opened.append(whole)
        if whole:
            raise StoppedError("after 20 seconds of processor time")
        return real(task, meter)

    monkeypatch.setattr(worker, "_open_remote", open_remote)
    (path,) = (index / "p0003").iterdir()
    body = path.read_bytes().replace(b"\x50\xed\x55\xba", b"\x50\xed\x55\xbb")
    with serve_answers({f"/{path.name}": Answer(body=body)}) as server:
        wheel = Wheel(
            project="p0003",
            version="1.0",
            filename=path.name,
            tags=PLATFORM,
            url=f"{server.url}/{path.name}",
            sha256=hashlib.sha256(body).hexdigest(),
        )
        outcome = read_wheel(Task(wheel=wheel))
    assert opened == [False, True]
    assert (outcome.status, outcome.may_pass) == ("inspected", True)


def test_an_idle_process_ends_and_is_replaced(
    index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker of a cluster keeps no process after a census."""
    monkeypatch.setattr(workers_module, "_PROGRAM", with_limit("_IDLE", 0.1))
    (path,) = (index / "p0003").iterdir()
    wheel = Wheel(
        project="p0003", version="1", filename=path.name, tags=PLATFORM, url=str(path)
    )
    workers, task = LocalWorkers(1), Task(wheel=wheel)
    assert workers.read(task).status == "inspected"
    assert workers._processes[0].wait(timeout=60) == 1
    assert workers.read(task).status == "inspected"
    workers.close()


@pytest.mark.parametrize("program", ["raise SystemExit", None])
def test_processes_that_do_not_start_end_the_census(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str | None
) -> None:
    monkeypatch.setattr(workers_module, "_PROGRAM", program or "")
    if program is None:
        monkeypatch.setattr(sys, "executable", str(tmp_path / "missing"))
    with pytest.raises(InputError, match="no process can be started; check the memory"):
        take(index, tmp_path / "census.sqlite", LocalWorkers(2))


def test_what_a_worker_raises_is_a_failure(index: Path, tmp_path: Path) -> None:
    def read(task: Task) -> Outcome:
        if task.wheel.project == "p0005":
            raise RuntimeError("out of luck")
        return read_wheel(task)

    tally = take(index, tmp_path / "census.sqlite", Threads(read))
    assert (tally.inspected, tally.failed) == (COUNT - 2, 2)


@pytest.mark.parametrize("answer", [None, "x", 7, b"", object()])
def test_an_answer_that_is_no_outcome_is_a_failure(
    answer: object, index: Path, tmp_path: Path
) -> None:
    """A worker of a cluster may be any program."""

    def read(task: Task) -> Any:
        return answer if task.wheel.project == "p0005" else read_wheel(task)

    tally = take(index, tmp_path / "census.sqlite", Threads(read))
    assert (tally.inspected, tally.failed) == (COUNT - 2, 2)


@pytest.mark.parametrize(
    "change",
    [{"report": "x"}, {"claims": {"strict": 1}}, {"bytes_read": "x"}, {"seconds": []}],
)
def test_an_outcome_with_invalid_fields_is_a_failure(
    change: dict[str, Any], index: Path, tmp_path: Path
) -> None:
    def read(task: Task) -> Outcome:
        outcome = read_wheel(task)
        return replace(outcome, **change) if task.wheel.project == "p0005" else outcome

    tally = take(index, tmp_path / "census.sqlite", Threads(read))
    assert (tally.inspected, tally.failed) == (COUNT - 2, 2)


def test_a_worker_says_nothing_about_another_wheel(index: Path, tmp_path: Path) -> None:
    take(index, tmp_path / "expected.sqlite")

    def read(task: Task) -> Outcome:
        outcome = read_wheel(task)
        other = replace(task.wheel, project="other", url="/x", filename="x")
        return replace(outcome, wheel=replace(other, size=outcome.wheel.size))

    store = tmp_path / "census.sqlite"
    take(index, store, Threads(read))
    assert rows(store) == rows(tmp_path / "expected.sqlite")


def test_an_end_is_asked_for(index: Path, tmp_path: Path) -> None:
    stop, store = Stop(), tmp_path / "census.sqlite"
    first = take(index, store, observer=Observed(lambda _: stop.set()), stop=stop)
    assert first.stopped == "interrupt"
    assert 1 <= first.read < COUNT
    second = take(index, store)
    assert second.known == first.read
    assert second.read == COUNT - first.read
    assert second.stopped is None


def test_max_bytes(index: Path, tmp_path: Path) -> None:
    store = tmp_path / "census.sqlite"
    first = take(index, store, Threads(count=1), max_bytes=40_000)
    assert first.stopped == "max-bytes"
    assert 0 < first.read < COUNT
    assert first.bytes_read >= 40_000
    while take(index, store, max_bytes=100_000).stopped:
        pass
    assert take(index, store).known == COUNT


def test_a_project_that_cannot_be_listed(index: Path, tmp_path: Path) -> None:
    observed = Observed()
    folder = index / "p0002"
    folder.joinpath("index.html").write_bytes(b"x" * 100 * 1024 * 1024)
    tally = take(index, tmp_path / "census.sqlite", observer=observed)
    assert tally.unreadable == 1
    assert tally.read == COUNT - 1


def test_few_wheels_of_a_server_at_a_time(tmp_path: Path) -> None:
    """The limit is for all workers together, because the parent distributes the
    wheels."""
    active: list[int] = []
    most: list[int] = []

    def read(task: Task) -> Outcome:
        active.append(1)
        most.append(len(active))
        active.pop()
        return Outcome(wheel=task.wheel, status="skipped")

    wheels = [
        Wheel(
            project="demo",
            version=str(number),
            filename=f"demo-{number}-py3-none-any.whl",
            tags="py3-none-any",
            url=f"https://example.com/{number}.whl",
        )
        for number in range(40)
    ]
    workers = Threads(read, count=8)
    projects = iter([Project(name="demo", wheels=wheels)])
    tally = run(projects, tmp_path / "census.sqlite", workers, per_host=1)
    assert tally.skipped == 40
    assert max(most) == 1


def test_the_parent_holds_few_wheels(tmp_path: Path) -> None:
    """The parent lists projects only when the workers need more wheels."""
    listed: list[int] = []

    def projects() -> Iterator[Project]:
        for number in range(1000):
            listed.append(number)
            wheel = Wheel(
                project="demo",
                version=str(number),
                filename=f"demo-{number}-py3-none-any.whl",
                tags="py3-none-any",
                url=f"/nowhere/{number}.whl",
            )
            yield Project(name="demo", wheels=[wheel], position=number, total=1000)

    ahead: list[int] = []

    class Counting(Observed):
        def finished(self, outcome: Outcome, tally: Tally) -> None:
            super().finished(outcome, tally)
            ahead.append(len(listed) - tally.read)

    workers = Threads(lambda task: Outcome(wheel=task.wheel, status="skipped"))
    store = tmp_path / "census.sqlite"
    tally = run(projects(), store, workers, observer=Counting())
    assert tally.skipped == 1000
    window = workers.capacity() * workers.ahead
    assert max(ahead) <= 2 * window + 2


def test_an_index_that_cannot_be_read(tmp_path: Path) -> None:
    def projects() -> Iterator[Project]:
        yield Project(name="demo")
        raise InputError("gone")

    with pytest.raises(InputError, match="gone"):
        run(projects(), tmp_path / "census.sqlite")
