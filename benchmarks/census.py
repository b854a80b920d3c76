"""A census of many small wheels: its rate, its memory, and its resumption.

The benchmark makes indexes in a temporary directory: one of nearly empty wheels, and
others of wheels with a library of some MB. The census runs in one process and in two,
and on new Dask clusters of one worker and of two. The sides take turns. Then the
benchmark kills a worker in the middle of a run, and the parent of another run, which is
resumed. All rows must be the same.

A parent, a scheduler and two workers share the cores of the machine. The benchmark
therefore also measures the processor time of each, and computes the ratio that two or
more cores allow.

The benchmark makes no environment: it measures the imported packages.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from benchmarks.harness import print_machine, print_table, verdict

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from support.containers import library  # noqa: E402
from support.dask_cluster import Cluster, dask_cluster  # noqa: E402
from support.wheels import stub_wheel  # noqa: E402

MEMORY = 150.0  # MiB resident

PLATFORM = "cp312-cp312-manylinux_2_28_x86_64"

SHARED = 16  # files of the second index that differ; the others are links to them

PARENT = """
import json, os, signal, sys, time
import psutil
from nvp import api

def used():
    processes = [psutil.Process(), *psutil.Process().children()]
    times = [process.cpu_times() for process in processes]
    return [taken.user + taken.system for taken in times]

class Observer:
    def listed(self, project, tally):
        pass
    def finished(self, outcome, tally):
        if tally.read in (1, options.get("count")):
            marks.append((time.monotonic(), *used()))
        if tally.read == options.get("kill_worker"):
            os.kill(options["victim"], signal.SIGKILL)
        if tally.read == options.get("kill_self"):
            os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    options, marks = json.loads(sys.argv[1]), []
    started = time.monotonic()
    tally = api.census(
        options["index"], options["store"], jobs=options.get("jobs"),
        dask=options.get("dask"), observer=Observer(),
    )
    first, last = marks[0], marks[-1]
    status = open("/proc/self/status").read().split()
    print(json.dumps({
        "read": tally.read, "known": tally.known, "start": first[0] - started,
        "seconds": last[0] - first[0], "parent": last[1] - first[1],
        "children": sum(last[2:]) - sum(first[2:]),
        # getrusage() would say what the process that started this one needed.
        "memory": int(status[status.index("VmHWM:") + 1]) / 1024,
    }))
"""


def make_index(folder: Path, count: int, size: int) -> Path:
    """Write wheels whose library has ``size`` bytes more than a tiny one.

    These bytes deflate to less than a third, as SASS does. Deflating takes long, so the
    wheels after the first `SHARED` ones are links to these.
    """
    quarter = bytes(byte & 3 for byte in range(256))
    noise = random.Random(1).randbytes(size).translate(quarter)
    made: list[Path] = []
    for number in range(count):
        name = f"p{number:05d}"
        if size and number >= SHARED:
            (folder / name).mkdir()
            path = folder / name / f"{name}-1.0-{PLATFORM}.whl"
            os.link(made[number % SHARED], path)
            continue
        code = library(f"{(80, 86, 90, 100)[number % 4]}_real") + noise
        members = {f"{name}/lib.so": code}
        path = stub_wheel(folder / name, name, "1.0", tag=PLATFORM, members=members)
        if size:
            deflate(path)
        made.append(path)
    return folder


def deflate(path: Path) -> None:
    """Compress the members of a stub wheel, which are stored without compression."""
    with zipfile.ZipFile(path) as stub:
        members = {name: stub.read(name) for name in stub.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, data in members.items():
            wheel.writestr(name, data)


class Runner:
    """Runs censuses of one index, each in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.script = folder / "parent.py"
        self.script.write_text(PARENT)
        self.stores = 0

    def run(self, index: Path, **options: object) -> dict[str, float]:
        """Run a census with a new store, or the one in ``options``."""
        self.stores += 1
        options.setdefault("store", str(self.folder / f"{self.stores}.sqlite"))
        words = json.dumps({"index": str(index), **options})
        done = subprocess.run(
            [sys.executable, str(self.script), words],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode == -signal.SIGKILL:
            return {"killed": 1.0}
        if done.returncode:
            sys.stderr.write(done.stderr)
            raise SystemExit(f"the census has ended with {done.returncode}")
        result: dict[str, float] = json.loads(done.stdout)
        return result


def rows(path: str) -> list[tuple[object, ...]]:
    """Return the values that are the same in all runs."""
    with sqlite3.connect(path) as connection:
        return connection.execute(
            "SELECT key, status, reason, complete, path, target, count, stubs FROM "
            "wheels LEFT JOIN targets ON targets.wheel = wheels.id ORDER BY key, path, "
            "target"
        ).fetchall()


@dataclass(frozen=True, kw_only=True)
class Side:
    """A way to run the census.

    :param one: the side with one worker, to which this side is compared.
    """

    name: str
    options: Mapping[str, object]
    cluster: Cluster | None = None
    one: str = ""


@contextmanager
def make_sides(folder: Path) -> Iterator[list[Side]]:
    """Yield all sides; the clusters run as long as the context lasts."""
    with ExitStack() as stack:
        sides = [
            Side(name="1 process", options={"jobs": 1}),
            Side(name="2 processes", options={"jobs": 2}, one="1 process"),
        ]
        for count, one in ((1, ""), (2, "Dask, 1 worker")):
            place = folder / f"cluster{count}"
            place.mkdir()
            cluster = stack.enter_context(dask_cluster(place, workers=count))
            name = f"Dask, {count} worker{'s' * (count > 1)}"
            options = {"dask": cluster.address}
            sides.append(Side(name=name, options=options, cluster=cluster, one=one))
        yield sides


def _measure(runner: Runner, side: Side, index: Path, count: int) -> dict[str, float]:
    """Run a census, and add the processor time of the cluster; all times are per
    wheel."""
    processes: list[list[psutil.Process]] = [[], []]
    if side.cluster is not None:
        processes = [
            [psutil.Process(side.cluster.scheduler.pid)],
            [psutil.Process(worker.pid) for worker in side.cluster.workers],
        ]
    before = [_used(group) for group in processes]
    result = runner.run(index, **side.options, count=count)
    after = [_used(group) for group in processes]
    scheduler, workers = (b - a for a, b in zip(before, after, strict=True))
    return result | {
        "scheduler": scheduler,
        "workers": workers + result["children"],
        "rate": (result["read"] - 1) / result["seconds"],
    }


def _used(processes: Iterable[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wheels", type=int, default=5000)
    parser.add_argument("--few", type=int, default=500)
    parser.add_argument("--bytes", type=int, nargs="*", default=[4 << 20, 16 << 20])
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    print_machine(given.rounds)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tiny = make_index(folder / "tiny", given.wheels, 0)
        few = make_index(folder / "few", given.few, 0)
        larger = [make_index(folder / f"{n}", given.few, n) for n in given.bytes]
        runner = Runner(folder)
        with make_sides(folder) as sides:
            _print_rates(runner, sides, tiny, given.wheels, given.rounds)
            for index in larger:
                _print_rates(runner, sides, index, given.few, given.rounds)
            _print_memory(runner, sides, {few: given.few, tiny: given.wheels})
        _print_faults(runner, few, folder, given)


def _print_rates(
    runner: Runner, sides: Sequence[Side], index: Path, count: int, rounds: int
) -> None:
    results: dict[str, list[dict[str, float]]] = {}
    for _ in range(rounds):
        for side in sides:
            result = _measure(runner, side, index, count)
            results.setdefault(side.name, []).append(result)
    rates = {name: [each["rate"] for each in all_] for name, all_ in results.items()}
    costs = {name: _costs(all_) for name, all_ in results.items()}
    rows = []
    for side in sides:
        median, best = statistics.median(rates[side.name]), max(rates[side.name])
        ratio = possible = more = ""
        if side.one:
            of_median = median / statistics.median(rates[side.one])
            ratio = f"{of_median:.2f}, {best / max(rates[side.one]):.2f}"
            possible, more = (
                f"{_possible(costs[side.one], costs[side.name], cores):.2f}"
                for cores in (2, 8)
            )
        start = statistics.median(each["start"] for each in results[side.name])
        cost = " + ".join(f"{part * 1000:.2f}" for part in costs[side.name])
        rows.append(
            (
                *(side.name, f"{start:.1f} s", f"{median:.0f}, {best:.0f}", ratio),
                *(cost, possible, more),
            )
        )
    size = next(index.glob("*/*.whl")).stat().st_size
    print_table(
        f"{count} wheels of {size / 1000:.0f} kB; medians, and the best of all rounds",
        (
            *("side", "first wheel", "wheels/s then", "of one"),
            *("ms of parent + scheduler + workers", "possible, 2 cores", "8 cores"),
        ),
        rows,
    )


def _costs(results: Sequence[Mapping[str, float]]) -> tuple[float, float, float]:
    """Return the processor time of parent, scheduler and workers for a wheel."""
    parent, scheduler, workers = (
        min(result[part] / result["read"] for result in results)
        for part in ("parent", "scheduler", "workers")
    )
    return parent, scheduler, workers


def _possible(
    one: tuple[float, float, float], two: tuple[float, float, float], cores: int
) -> float:
    """Return the ratio if processes wait only for the processor."""

    def seconds(costs: tuple[float, float, float], workers: int) -> float:
        return max(*costs[:2], costs[2] / workers, sum(costs) / cores)

    return seconds(one, 1) / seconds(two, 2)


def _print_memory(
    runner: Runner, sides: Sequence[Side], indexes: Mapping[Path, int]
) -> None:
    rows = []
    for side in sides:
        if side.one:
            sizes = [
                _measure(runner, side, index, count)["memory"]
                for index, count in indexes.items()
            ]
            most = verdict(max(sizes), MEMORY)
            rows.append((side.name, *(f"{size:.0f} MiB" for size in sizes), most))
    counts = (f"{count} wheels" for count in indexes.values())
    print_table("Memory", ("the parent of", *counts, f"below {MEMORY:.0f} MiB"), rows)


def _print_faults(
    runner: Runner, index: Path, folder: Path, given: argparse.Namespace
) -> None:
    middle = given.few // 2
    expected = str(folder / "expected.sqlite")
    runner.run(index, jobs=1, store=expected)
    place = folder / "lost"
    place.mkdir()
    store = str(folder / "lost.sqlite")
    with dask_cluster(place) as cluster:
        lost = runner.run(
            index,
            dask=cluster.address,
            store=store,
            kill_worker=middle,
            victim=cluster.workers[0].pid,
        )
    table = [
        (
            "Dask, a worker killed",
            f"{lost['read']:.0f}",
            str(rows(store) == rows(expected)),
        )
    ]
    store = str(folder / "killed.sqlite")
    runner.run(index, jobs=2, store=store, kill_self=middle)
    kept = len(rows(store))
    again = runner.run(index, jobs=2, store=store)
    table.append(
        (
            f"parent killed with {kept} in the store",
            f"{again['read']:.0f} more",
            str(rows(store) == rows(expected)),
        )
    )
    print_table("Faults", ("fault", "wheels read", "same rows"), table)


if __name__ == "__main__":
    main()
