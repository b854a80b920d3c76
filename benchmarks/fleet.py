"""The command ``fleet`` on 20,000 Kubernetes nodes of 50 kinds: time and memory.

``--long`` also measures inventories of 500 MB, one run of each form. The benchmark
makes no environment: it measures the imported packages.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from benchmarks.harness import CHECKOUT, options, print_table

NODES = 20_000
DRIVERS = ("12.2", "12.4", "12.6", "12.8", "12.9")
GPUS = ("7.0", "7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "10.3", "12.0", "12.1")
RELEASE = CHECKOUT / "fixtures" / "published" / "torch-2.10.0-variants.json"
SECONDS, MEBIBYTES = 2.0, 200
LONG = 500_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """The cost of a fresh process; ``peak`` is in MiB, and ``machines`` may be
    ``None``."""

    seconds: float
    peak: float
    code: int
    machines: int
    kinds: int
    last: str


def main() -> None:
    """Write inventories, and run the command on each in fresh processes."""
    parser = options(__doc__, 5)
    parser.add_argument("--long", action="store_true", help="500 MB of each form, too")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
        path = Path(name) / "nodes.json"
        # A child's peak begins at the memory of its parent: keep the parent small.
        with path.open("w", encoding="utf-8") as file:
            file.write('{"items": [')
            for number in range(NODES):
                file.write(("," if number else "") + json.dumps(node(number)))
            file.write("]}")
        size = path.stat().st_size / 2**20
        runs = [measure(path) for _ in range(arguments.runs)]
        assert all(item.machines == NODES for item in runs)
        seconds = [item.seconds for item in runs]
        median, peak = statistics.median(seconds), max(item.peak for item in runs)
        rows = [
            ["seconds, median", f"{median:.2f}", f"{SECONDS}", met(median <= SECONDS)],
            ["seconds, shortest", f"{min(seconds):.2f}", "", ""],
            ["MiB at most", f"{peak:.0f}", f"{MEBIBYTES}", met(peak <= MEBIBYTES)],
        ]
        title = f"{NODES} nodes, {runs[0].kinds} kinds, {size:.0f} MiB"
        print_table(title, ["", "ours", "budget", ""], rows)
        if arguments.long:
            measure_long(Path(name))


def measure_long(folder: Path) -> None:
    """Print a table of inventories of `LONG` bytes."""
    rows = []
    for name, parts in FORMS.items():
        path = folder / name
        with path.open("w", encoding="utf-8") as file:
            pieces = parts()
            end = next(pieces)
            while file.tell() < LONG:
                file.write(next(pieces))
            file.write(end)
        run = measure(path)
        machines = str(run.machines or "") if run.code == 0 else run.last
        rows.append([name, machines, f"{run.seconds:.1f}", f"{run.peak:.0f}"])
        path.unlink()
    print_table(
        f"{LONG / 10**6:.0f} MB of each form", ["", "machines", "seconds", "MiB"], rows
    )


def measure(path: Path) -> Run:
    """Run the command on an inventory."""
    command = [sys.executable, "-m", "nvp", "fleet", str(path)]
    command += ["--release", str(RELEASE), "--format", "csv"]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=out, stderr=err)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        counts = [int(line.split(b",")[0]) for line in out.read().splitlines()[1:]]
        lines = err.read().decode().splitlines()
    return Run(
        seconds=seconds,
        peak=usage.ru_maxrss / 1024,  # kibibytes on Linux
        code=process.returncode,
        machines=sum(counts),
        kinds=len(counts),
        last=lines[-1].partition(": ")[2].partition(": ")[2] if lines else "",
    )


def met(fits: bool) -> str:
    """Return the cell of a table for a budget."""
    return "met" if fits else "missed"


def node(number: int) -> dict[str, object]:
    """Return a node of one of 50 kinds, as ``kubectl get nodes -o json`` prints it."""
    kind = number % (len(DRIVERS) * len(GPUS))
    driver, gpu = DRIVERS[kind % len(DRIVERS)], GPUS[kind // len(DRIVERS)]
    labels = {f"example.com/label-{n}": "value" * 4 for n in range(40)}
    for name, version in (("cuda.runtime-version", driver), ("gpu.compute", gpu)):
        major, _, minor = version.partition(".")
        labels |= {f"nvidia.com/{name}.major": major, f"nvidia.com/{name}.minor": minor}
    labels |= {"nvidia.com/gpu.count": "8", "nvidia.com/gpu.product": "NVIDIA-GPU"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": f"node-{number}", "labels": labels},
        "status": {"capacity": {"nvidia.com/gpu": "8", "cpu": "64"}},
    }


def full_node(number: int) -> dict[str, object]:
    """Return a node with as many other fields as nodes of a cluster have."""
    images = [
        {"names": [f"registry.example.com/image-{n}@sha256:{'0' * 64}"], "sizeBytes": n}
        for n in range(150)
    ]
    status = {"capacity": {"nvidia.com/gpu": "8", "cpu": "64"}, "images": images}
    return {**node(number), "status": status}


# The first piece of a form is its end.


def json_nodes() -> Iterator[str]:
    """Yield the output of ``kubectl get nodes -o json``."""
    yield "]}\n"
    yield '{"apiVersion": "v1", "kind": "List", "items": [\n'
    for number in count():
        yield ("," if number else "") + json.dumps(full_node(number), indent=4)


def yaml_nodes() -> Iterator[str]:
    """Yield the output of ``kubectl get nodes -o yaml``."""
    import yaml

    yield "kind: List\n"
    yield "apiVersion: v1\nitems:\n"
    texts = [
        yaml.dump([full_node(number)], Dumper=yaml.CSafeDumper).replace(
            f"name: node-{number}\n", "name: node-NUMBER\n"
        )
        for number in range(len(DRIVERS) * len(GPUS))
    ]
    for number in count():
        yield texts[number % len(texts)].replace("NUMBER", str(number))


def slices() -> Iterator[str]:
    """Yield ResourceSlices of nodes with 8 GPUs."""
    yield "]}\n"
    yield '{"apiVersion": "v1", "kind": "List", "items": [\n'
    for number in count():
        attributes = {
            "cudaComputeCapability": {"version": "9.0.0"},
            "cudaDriverVersion": {"version": "12.9.0"},
            "driverVersion": {"version": "575.57.8"},
            "productName": {"string": "NVIDIA H100 80GB HBM3"},
            "type": {"string": "gpu"},
        }
        devices = [
            {
                "name": f"gpu-{gpu}",
                "attributes": {**attributes, "uuid": {"string": f"{number}-{gpu}"}},
                "capacity": {"memory": {"value": "81559Mi"}},
            }
            for gpu in range(8)
        ]
        pool = {"generation": 1, "name": f"node-{number}", "resourceSliceCount": 1}
        spec = {"driver": "gpu.nvidia.com", "nodeName": f"node-{number}", "pool": pool}
        item = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": f"node-{number}", "annotations": {"a": "x" * 20_000}},
            "spec": {**spec, "devices": devices},
        }
        yield ("," if number else "") + json.dumps(item)


def metrics() -> Iterator[str]:
    """Yield metrics of the DCGM exporter of nodes with 8 GPUs."""
    yield ""
    for number in count():
        for gpu in range(8):
            labels = (
                f'{{gpu="{gpu}",UUID="GPU-{number}-{gpu}",modelName="NVIDIA H100",'
                f'Hostname="node-{number}"}}'
            )
            yield f"DCGM_FI_CUDA_DRIVER_VERSION{labels} 12090\n"
            yield f"DCGM_FI_DEV_CUDA_COMPUTE_CAPABILITY{labels} {9 << 16}\n"
            for other in range(30):
                yield f"DCGM_FI_DEV_OTHER_{other}{labels} {other}\n"


def log() -> Iterator[str]:
    """Yield the output of ``nvidia-smi -q -x`` with more GPUs than a machine has."""
    yield "</nvidia_smi_log>\n"
    yield "<nvidia_smi_log><cuda_version>12.9</cuda_version>\n"
    texts = "".join(f"<field_{n}>value {n}</field_{n}>\n" for n in range(800))
    while True:
        yield f"<gpu><product_name>NVIDIA H100</product_name>\n{texts}</gpu>\n"


def query() -> Iterator[str]:
    """Yield the output of ``nvidia-smi --query-gpu`` in the same way."""
    yield ""
    yield "index, name, compute_cap, driver_version\n"
    for number in count():
        yield f"{number}, NVIDIA H100, 9.0, 575.57.08\n"


FORMS: dict[str, Callable[[], Iterator[str]]] = {
    "nodes.json": json_nodes,
    "nodes.yaml": yaml_nodes,
    "slices.json": slices,
    "metrics.txt": metrics,
    "log.xml": log,
    "query.csv": query,
}


if __name__ == "__main__":
    main()
