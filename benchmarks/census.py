"""A census of many small wheels: its rate, the memory of the parent, and what survives.

An index of small wheels is made in a temporary folder. The census runs in one process
and in two, and on a Dask cluster of one worker and of two, which are started for it.
The sides take turns. Then a worker is killed in the middle of a run, and the parent of
another run, which goes on afterwards. All rows have to be the same.

It makes no environment: what is measured is what is imported.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.harness import print_machine, print_table, verdict

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from support.containers import library  # noqa: E402
from support.dask_cluster import dask_cluster  # noqa: E402
from support.wheels import stub_wheel  # noqa: E402

SPEED = 1.7  # of one worker
MEMORY = 150.0  # MiB resident

PLATFORM = "cp312-cp312-manylinux_2_28_x86_64"

PARENT = """
import json, os, resource, signal, sys, time
from nvidia_variant_provider import api

class Observer:
    def listed(self, project, tally):
        pass
    def finished(self, outcome, tally):
        if tally.read == int(options.get("kill_worker", 0)):
            os.kill(int(options["victim"]), signal.SIGKILL)
        if tally.read == int(options.get("kill_self", 0)):
            os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    options = json.loads(sys.argv[1])
    tally = api.census(
        options["index"], options["store"], jobs=options.get("jobs"),
        dask=options.get("dask"), observer=Observer(),
    )
    print(json.dumps({
        "seconds": tally.seconds, "read": tally.read, "known": tally.known,
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "cpu": time.process_time(),
        "children": sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]),
    }))
"""


def make_index(folder: Path, count: int, size: int) -> Path:
    """Write wheels whose library has ``size`` bytes that hardly compress."""
    noise = random.Random(1).randbytes(size)
    for number in range(count):
        name = f"p{number:05d}"
        code = library(f"{(80, 86, 90, 100)[number % 4]}_real") + noise
        members = {f"{name}/lib.so": code}
        stub_wheel(folder / name, name, "1.0", tag=PLATFORM, members=members)
    return folder


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
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode == -signal.SIGKILL:
            return {"killed": 1.0}
        if done.returncode:
            raise SystemExit(f"the census has ended with {done.returncode}")
        result: dict[str, float] = json.loads(done.stdout)
        return result


def rows(path: str) -> list[tuple[object, ...]]:
    """Return all that does not differ from run to run."""
    with sqlite3.connect(path) as connection:
        return connection.execute(
            "SELECT key, status, reason, complete, path, target, count, stubs FROM "
            "wheels LEFT JOIN targets ON targets.wheel = wheels.id ORDER BY key, path, "
            "target"
        ).fetchall()


@contextmanager
def clusters(folder: Path) -> Iterator[dict[int, str]]:
    """Run a cluster of one worker and a cluster of two."""
    places = {count: folder / f"cluster{count}" for count in (1, 2)}
    for place in places.values():
        place.mkdir()
    with (
        dask_cluster(places[1], workers=1) as one,
        dask_cluster(places[2], workers=2) as two,
    ):
        yield {1: one.address, 2: two.address}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wheels", type=int, default=5000)
    parser.add_argument("--few", type=int, default=500)
    parser.add_argument("--bytes", type=int, default=256 * 1024)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    print_machine(given.rounds)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        index = make_index(folder / "index", given.wheels, 0)
        few = make_index(folder / "few", given.few, given.bytes)
        runner = Runner(folder)
        _print_scale(runner, index, few, given)
        _print_faults(runner, few, folder, given)


def _print_scale(
    runner: Runner, index: Path, few: Path, given: argparse.Namespace
) -> None:
    speed: dict[str, list[float]] = {}
    work: dict[str, list[float]] = {}
    table = []
    with clusters(runner.folder) as addresses:
        sides: dict[str, dict[str, object]] = {
            "1 process": {"jobs": 1},
            "2 processes": {"jobs": 2},
            "Dask, 1 worker": {"dask": addresses[1]},
            "Dask, 2 workers": {"dask": addresses[2]},
        }
        for _ in range(given.rounds):
            for side, options in sides.items():
                result = runner.run(few, **options)
                speed.setdefault(side, []).append(result["read"] / result["seconds"])
                cpu = 1000 * result["children"] / result["read"]
                work.setdefault(side, []).append(cpu)
        for side in ("2 processes", "Dask, 2 workers"):
            result = runner.run(few, **sides[side])
            more = runner.run(index, **sides[side])
            table.append(
                (
                    side,
                    f"{result['memory']:.0f} MiB",
                    f"{more['memory']:.0f} MiB",
                    verdict(more["memory"], MEMORY),
                    f"{more['read'] / more['seconds']:.0f}",
                    f"{1000 * more['cpu'] / more['read']:.2f} ms",
                )
            )
    medians = {side: statistics.median(values) for side, values in speed.items()}
    print_table(
        "Rate",
        (
            "side",
            f"wheels/s, {given.few} of {given.bytes // 1024} KiB",
            "of one",
            "CPU of workers",
        ),
        [
            (side, f"{value:.0f}", f"{value / medians[one]:.2f}", _cpu(work[side]))
            for side, value in medians.items()
            for one in ["Dask, 1 worker" if "Dask" in side else "1 process"]
        ],
    )
    print_table(
        "The parent",
        (
            "workers",
            f"{given.few} wheels",
            f"{given.wheels} wheels",
            f"below {MEMORY:.0f} MiB",
            "wheels/s",
            "its own CPU per wheel",
        ),
        table,
    )


def _cpu(values: list[float]) -> str:
    """Return the processor time of the workers for a wheel, their start included.

    The workers of a cluster are not children of the census.
    """
    value = statistics.median(values)
    return f"{value:.1f} ms" if value > 0.1 else ""


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
