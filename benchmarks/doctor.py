"""``doctor`` on a large environment, next to reading its files once.

``python3 -m benchmarks.doctor STACK`` takes an environment that is there: the figures
are of one with torch 2.15.0, torchvision and triton of PyPI, which has 5 GB. No code of
the environment is run.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
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

# What doctor looks into: the files of each RECORD that are neither text nor byte code.
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
LIST = """
import json, os, sys
from nvidia_variant_provider.doctor.distributions import find_distributions
from nvidia_variant_provider.doctor.installation import find_installation
from nvidia_variant_provider.doctor.reading import may_have_gpu_code
folders = find_installation(sys.argv[1], {}).folders
paths = {
    item.locate(file.path)
    for item in find_distributions(folders).values()
    for file in item.files
    if may_have_gpu_code(file.path)
}
print(json.dumps(sorted(filter(os.path.isfile, paths), key=os.path.getsize)[::-1]))
"""


def main() -> None:
    parser = options(__doc__, 5)
    parser.add_argument("stack", type=Path, help="the folder of the environment")
    arguments = parser.parse_args()
    stack, runs = arguments.stack.resolve(), arguments.runs
    with fresh_environment() as environment, tempfile.TemporaryDirectory() as folder:
        print_machine(runs)
        listing = Path(folder, "files.json")
        listing.write_text(run(environment, Command(["-c", LIST, str(stack)])))
        cache = Path(folder, "cache")
        for warm in (False, True):
            _first_runs(environment, stack, listing, cache, runs, warm=warm)
        _second_runs(environment, stack, cache, runs)


def _first_runs(
    environment: Environment,
    stack: Path,
    listing: Path,
    cache: Path,
    runs: int,
    *,
    warm: bool,
) -> None:
    import json

    files = json.loads(listing.read_text())
    size = sum(map(os.path.getsize, files))
    reading = ["-c", READ, str(listing)]
    sides = {
        "read once": Command([*reading, "1"]),
        "read once, two threads": Command([*reading, "2"]),
        "doctor, one job": _doctor(stack, cache, "--jobs", "1"),
        "doctor, two jobs": _doctor(stack, cache, "--jobs", "2"),
    }
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    # The first round warms the caches, and the modules of both sides.
    for number in range(runs + 1):
        for name, command in sides.items():
            shutil.rmtree(cache, ignore_errors=True)
            if not warm:
                _drop(files)
            start = time.perf_counter()
            run(environment, command)
            if number:
                seconds[name].append(time.perf_counter() - start)
    samples = {name: Sample(taken) for name, taken in seconds.items()}
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
                f"{ratio:.2f}",
                *([f"{FIRST}", verdict(ratio, FIRST)] if judged else ["", ""]),
            ]
        )
    title = f"First run, {'warm' if warm else 'cold'} caches: "
    title += f"{len(files)} files, {size / 1e9:.2f} GB"
    print_table(title, ["", "s", "range", "ratio", "budget", ""], rows)


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
    program = ["-m", "nvidia_variant_provider", "doctor", "--python", str(stack)]
    return Command([*program, *machine, *words], {"XDG_CACHE_HOME": str(cache)})


def _drop(files: list[str]) -> None:
    """Ask the system to forget what it keeps of files, which it does."""
    for path in files:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


if __name__ == "__main__":
    main()
