"""``doctor`` on a large environment, next to reading its files once.

``python3 -m benchmarks.doctor STACK`` takes an existing environment: the published
figures are of an environment with torch 2.15.0, torchvision and triton from PyPI, which
has 5.5 GB. The code of the environment is never run.

"Reading the files once" covers the distributions with a file that could have GPU code:
all files in their RECORD are read. Other distributions have only text and byte code.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.harness import (
    Command,
    Environment,
    Sample,
    fresh_environment,
    options,
    print_machine,
    print_table,
    run,
    verdict,
)

FIRST = 1.3  # of reading the files once
SECOND = 1.0  # seconds above a bare Python

READ = """
import json, sys
from concurrent.futures import ThreadPoolExecutor
files, threads = json.load(open(sys.argv[1])), int(sys.argv[2])
def read(path):
    buffer = bytearray(1 << 20)
    with open(path, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
with ThreadPoolExecutor(threads) as pool:
    list(pool.map(read, files))
"""
# Print the files of each distribution that doctor reads, and those that it searches for
# GPU code.
LIST = """
import json, os, sys
from nvp.doctor.distributions import find_distributions
from nvp.doctor.installation import find_installation
from nvp.doctor.software import may_have_gpu_code
recorded, looked_into = set(), set()
for item in find_distributions(find_installation(sys.argv[1], {}).folders).values():
    files = {file.path: item.locate(file.path) for file in item.files}
    code = {place for path, place in files.items() if may_have_gpu_code(path)}
    looked_into |= code
    recorded |= set(files.values()) if code else set()
def sizes(places):
    return {place: os.path.getsize(place) for place in filter(os.path.isfile, places)}
print(json.dumps([sizes(recorded), sizes(looked_into)]))
"""
DROP_ALL = Path("/proc/sys/vm/drop_caches")


def main() -> None:
    parser = options(__doc__, 5)
    parser.add_argument("stack", type=Path, help="the directory of the environment")
    parser.add_argument(
        "--drop-all",
        action="store_true",
        help="let the system forget all files before each cold run, which only root "
        "may do, instead of those of the environment",
    )
    arguments = parser.parse_args()
    stack, runs = arguments.stack.resolve(), arguments.runs
    with (
        fresh_environment("isal", "zstandard") as environment,
        tempfile.TemporaryDirectory() as folder,
    ):
        print_machine(runs)
        text = run(environment, Command(["-c", LIST, str(stack)]))
        recorded, looked_into = json.loads(text)
        print(f"RECORD lists {_size(recorded)}; doctor looks into {_size(looked_into)}")
        first = _FirstRuns(
            environment,
            stack,
            files=_largest_first(recorded),
            looked_into=_largest_first(looked_into),
            folder=Path(folder),
        )
        drop = first.forget_all if arguments.drop_all else first.forget
        first.measure(f"First run, cold caches: {_size(recorded)}", runs, drop)
        first.measure(f"First run, warm caches: {_size(recorded)}", runs)
        _second_runs(environment, stack, first.cache, runs)


def _largest_first(files: Mapping[str, int]) -> list[str]:
    return sorted(files, key=lambda path: -files[path])


def _size(files: Mapping[str, int]) -> str:
    return f"{len(files):,} files of {sum(files.values()) / 1e9:.2f} GB"


class _FirstRuns:
    """The two sides: reading files, and doctor with an empty cache.

    :param files: all files to read, the largest first.
    :param looked_into: the files that doctor searches for GPU code.
    :param folder: an empty directory for the cache of doctor.
    """

    def __init__(
        self,
        environment: Environment,
        stack: Path,
        *,
        files: list[str],
        looked_into: list[str],
        folder: Path,
    ) -> None:
        self._environment = environment
        self._files = files
        self.cache = folder / "cache"
        everything, fewer = folder / "all.json", folder / "looked_into.json"
        everything.write_text(json.dumps(files))
        fewer.write_text(json.dumps(looked_into))
        self._sides = {
            "read once": Command(["-c", READ, str(everything), "1"]),
            "read once, two threads": Command(["-c", READ, str(everything), "2"]),
            "read what it looks into": Command(["-c", READ, str(fewer), "1"]),
            "doctor, one job": _doctor(stack, self.cache, "--jobs", "1"),
            "doctor, two jobs": _doctor(stack, self.cache, "--jobs", "2"),
        }

    def measure(
        self, title: str, runs: int, drop: Callable[[], None] | None = None
    ) -> None:
        """Run all sides in turn, in either order, and print a table."""
        walls: dict[str, list[float]] = {name: [] for name in self._sides}
        cpus: dict[str, list[float]] = {name: [] for name in self._sides}
        # The first round warms the caches, and the modules of both sides.
        for number in range(runs + 1):
            names = [*self._sides]
            for name in names if number % 2 else reversed(names):
                shutil.rmtree(self.cache, ignore_errors=True)
                if drop is not None:
                    drop()
                wall, cpu = self._time(self._sides[name])
                if number:
                    walls[name].append(wall)
                    cpus[name].append(cpu)
        samples = {name: Sample(taken) for name, taken in walls.items()}
        plain = samples["read once"].median
        rows = []
        for name, sample in samples.items():
            ratio = sample.median / plain
            judged = name.startswith("doctor")
            rows.append(
                [
                    name,
                    f"{sample.median:.2f}",
                    f"{min(sample.seconds):.2f}-{max(sample.seconds):.2f}",
                    f"{Sample(cpus[name]).median:.2f}",
                    f"{ratio:.2f}",
                    *([f"{FIRST}", verdict(ratio, FIRST)] if judged else ["", ""]),
                ]
            )
        header = ["", "s", "range", "s of processor", "ratio", "budget", ""]
        print_table(title, header, rows)

    def _time(self, command: Command) -> tuple[float, float]:
        before = sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
        start = time.perf_counter()
        run(self._environment, command)
        wall = time.perf_counter() - start
        return wall, sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]) - before

    def forget(self) -> None:
        """Drop the files from the cache of the system."""
        for path in self._files:
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)

    def forget_all(self) -> None:
        """Make the system forget all files, with their names and their directories."""
        self.forget()
        DROP_ALL.write_text("3\n")


def _second_runs(environment: Environment, stack: Path, cache: Path, runs: int) -> None:
    sides = {"bare Python": Command(["-c", ""]), "doctor": _doctor(stack, cache)}
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(-1, max(runs, 10)):
        for name, command in sides.items():
            start = time.perf_counter()
            run(environment, command)
            if number >= 0:
                seconds[name].append(time.perf_counter() - start)
    samples = {name: Sample(taken) for name, taken in seconds.items()}
    above = samples["doctor"].median - samples["bare Python"].median
    rows = [[name, str(sample), "", ""] for name, sample in samples.items()]
    rows[1][2:] = [f"{above * 1e3:.1f}", verdict(above, SECOND)]
    print_table("Second run", ["", "ms", "above", ""], rows)


def _doctor(stack: Path, cache: Path, *words: str) -> Command:
    machine = ["--cuda-driver", "13.4", "--sm-arch", "9.0"]
    program = ["-m", "nvp", "doctor", "--python", str(stack)]
    return Command([*program, *machine, *words], {"XDG_CACHE_HOME": str(cache)})


if __name__ == "__main__":
    main()
