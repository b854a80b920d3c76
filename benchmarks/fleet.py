"""The verb ``fleet`` on 20,000 Kubernetes nodes of 50 kinds: time and memory.

It makes no environment: the side that is measured is the one that is imported.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.harness import CHECKOUT, options, print_table

NODES = 20_000
DRIVERS = ("12.2", "12.4", "12.6", "12.8", "12.9")
GPUS = ("7.0", "7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "10.3", "12.0", "12.1")
RELEASE = CHECKOUT / "fixtures" / "published" / "torch-2.10.0-variants.json"
SECONDS, MEBIBYTES = 2.0, 200


def main() -> None:
    """Write an inventory, and run the verb on it in fresh processes."""
    runs = options(__doc__, 5).parse_args().runs
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        path = Path(folder) / "nodes.json"
        # A child's peak begins at the memory of its parent: keep that small.
        with path.open("w", encoding="utf-8") as file:
            file.write('{"items": [')
            for number in range(NODES):
                file.write(("," if number else "") + json.dumps(node(number)))
            file.write("]}")
        size = path.stat().st_size / 2**20
        command = [sys.executable, "-m", "nvidia_variant_provider", "fleet", str(path)]
        command += ["--release", str(RELEASE), "--json"]
        times = []
        for _ in range(runs):
            start = time.perf_counter()
            done = subprocess.run(command, capture_output=True, check=False)
            times.append(time.perf_counter() - start)
        # Kibibytes on Linux, the largest of all children.
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    machines = json.loads(done.stdout)["data"]["machines"]
    assert sum(item["count"] for item in machines) == NODES
    median = statistics.median(times)
    rows = [
        ["seconds, median", f"{median:.2f}", f"{SECONDS}", met(median <= SECONDS)],
        ["seconds, shortest", f"{min(times):.2f}", "", ""],
        ["MiB at most", f"{peak:.0f}", f"{MEBIBYTES}", met(peak <= MEBIBYTES)],
    ]
    title = f"{NODES} nodes, {len(machines)} kinds, {size:.0f} MiB"
    print_table(title, ["", "ours", "budget", ""], rows)


def met(fits: bool) -> str:
    """Return what a table says of a budget."""
    return "met" if fits else "missed"


def node(number: int) -> dict[str, object]:
    """Return a node as ``kubectl get nodes -o json`` prints it, of one of 50 kinds."""
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


if __name__ == "__main__":
    main()
