"""Inspection of wheels: speed compared to inflation alone, memory, and a second core.

The benchmark downloads eight wheels from the index that pip is configured for, 1.1 GB
in all, or reads them from ``--wheels FOLDER``.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from benchmarks.harness import (
    Command,
    Environment,
    fresh_environment,
    options,
    print_machine,
    print_table,
    run,
    verdict,
)

WHEELS = (
    "torchvision==0.29.2",
    "bitsandbytes==0.50.2",
    "xgboost==3.2.0",
    "cupy-cuda12x==14.2.0",
    "catboost==1.2.10",
    "jax-cuda12-pjrt==0.9.2",
    "triton==3.9.0",
    "flashinfer-cubin==0.6.4",
)
SPEED = 1.8  # of reading with zipfile
WITHOUT_ISAL = 0.9
MEMORY = 64.0  # MiB resident
CORES = 1.6  # times the speed of one

SIDES = ("plain", "raw", "raw two", "one", "two", "zlib")

# All sides take turns in one process.
WORKER = """
import json, statistics, sys, time, zipfile, zlib
from concurrent.futures import ThreadPoolExecutor
from nvp import api
from nvp.gpu_code import zip_members

def without_isal(path):
    module, zip_members._module = zip_members._module, lambda: zlib
    try:
        api.inspect(path)
    finally:
        zip_members._module = module

PIECE = 1 << 20

def plain(path):
    total = 0
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            with archive.open(member) as file:
                while piece := file.read(PIECE):
                    total += len(piece)
    return total

def inflate(path, member):
    with open(path, "rb", buffering=0) as file:
        file.seek(member.header_offset + 26)
        lengths = file.read(4)
        file.seek(sum(lengths[::2]) + 256 * sum(lengths[1::2]), 1)
        left = member.compress_size
        inflater = zlib.decompressobj(-15)
        while left:
            packed = file.read(min(left, 1 << 16))
            left -= len(packed)
            if member.compress_type:
                inflater.decompress(packed)

def raw(path, threads):
    with zipfile.ZipFile(path) as archive:
        members = sorted(archive.infolist(), key=lambda item: -item.file_size)
    if threads == 1:
        for member in members:
            inflate(path, member)
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(lambda item: inflate(path, item), members))

path, runs = sys.argv[1], int(sys.argv[2])
sides = {
    "plain": lambda: plain(path),
    "raw": lambda: raw(path, 1),
    "raw two": lambda: raw(path, 2),
    "one": lambda: api.inspect(path),
    "two": lambda: api.inspect(path, jobs=2),
    "zlib": lambda: without_isal(path),
}
times = {name: [] for name in sides}
for number in range(runs + 1):
    for name, side in sides.items():
        start = time.perf_counter()
        side()
        if number:
            times[name].append(time.perf_counter() - start)
medians = {name: statistics.median(taken) for name, taken in times.items()}
print(json.dumps({**medians, "bytes": plain(path)}))
"""
PEAK = """
import sys
from nvp import api
api.inspect(sys.argv[1], jobs=int(sys.argv[2]))
for line in open("/proc/self/status"):
    if line.startswith("VmHWM"):
        print(int(line.split()[1]) / 1024)
"""


def main() -> None:
    parser = options(__doc__, 5)
    parser.add_argument("--wheels", type=Path, help="a directory with the wheels")
    arguments = parser.parse_args()
    # The extra `wheels` installs both.
    with fresh_environment("isal", "zstandard") as environment:
        folder = arguments.wheels or download(environment)
        paths = [find(folder.resolve(), wheel) for wheel in WHEELS]
        print_machine(arguments.runs)
        speed(environment, paths, arguments.runs)
        if os.path.exists("/proc/self/status"):
            memory(environment, paths)


def download(environment: Environment) -> Path:
    command = ["-m", "pip", "download", "--quiet", "--no-deps", "--dest", "wheels"]
    command += ["--only-binary", ":all:", "--python-version", "3.11"]
    for platform in ("2_24", "2_28", "2014"):
        name = platform if platform == "2014" else f"_{platform}"
        command += ["--platform", f"manylinux{name}_x86_64"]
    run(environment, Command([*command, *WHEELS]))
    return environment.folder / "wheels"


def find(folder: Path, wheel: str) -> Path:
    name, _, version = wheel.partition("==")
    (path,) = folder.glob(f"{name.replace('-', '_')}-{version}-*.whl")
    return path


def speed(environment: Environment, paths: list[Path], runs: int) -> None:
    one_core, two_cores = [], []
    for path in paths:
        output = run(environment, Command(["-c", WORKER, str(path), str(runs)]))
        medians = json.loads(output)
        size = medians["bytes"] / 1e6
        rate = {name: size / medians[name] for name in SIDES}
        name = path.name.partition("-")[0]
        ratio = rate["one"] / rate["plain"]
        met = verdict(SPEED, ratio)
        slow = rate["zlib"] / rate["plain"]
        cells = [f"{size:.0f}", *(f"{rate[k]:.0f}" for k in ("one", "plain", "zlib"))]
        cells += [f"{ratio:.2f}", f"{SPEED:g}", met]
        cells += [f"{slow:.2f}", f"{WITHOUT_ISAL:g}", verdict(WITHOUT_ISAL, slow)]
        one_core.append([name, *cells])
        gain = rate["two"] / rate["one"]
        # Measure the gain of the second core for zlib alone, because other programs may
        # use the core.
        given = rate["raw two"] / rate["raw"]
        cells = [f"{rate['one']:.0f}", f"{rate['two']:.0f}", f"{gain:.2f}"]
        cells += [f"{given:.2f}", f"{CORES:g}", verdict(CORES, gain)]
        two_cores.append([name, *cells])
    header = ["wheel", "MB", "inspect, MB/s", "zipfile, MB/s", "without isal, MB/s"]
    header += ["to zipfile", "budget", "", "without isal", "budget", ""]
    print_table("Inspection next to inflation alone, one job", header, one_core)
    header = ["wheel", "one job, MB/s", "two jobs, MB/s", "ratio"]
    header += ["zlib alone", "budget", ""]
    print_table("A second core", header, two_cores)


def memory(environment: Environment, paths: list[Path]) -> None:
    rows = []
    for path in paths:
        peaks = [
            float(run(environment, Command(["-c", PEAK, str(path), jobs])))
            for jobs in ("1", "2")
        ]
        cells = [f"{peak:.1f}" for peak in peaks]
        met = verdict(max(peaks), MEMORY)
        rows.append([path.name.partition("-")[0], *cells, f"{MEMORY:g}", met])
    header = ["wheel", "one job, MiB", "two jobs, MiB", "budget", ""]
    print_table("Resident memory of a fresh process, at its peak", header, rows)


if __name__ == "__main__":
    main()
