"""`validate` of many labels, and the analysis of labels that no machine selects."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.harness import (
    CHECKOUT,
    Command,
    Environment,
    fresh_environment,
    options,
    print_machine,
    print_table,
    run,
    time_commands,
    verdict,
)

LABELS = (1_000, 2_000, 5_000, 10_000)
MEMORY_LIMIT = 64.0  # MiB over the interpreter's own
SHADOW_LIMIT = 20.0  # times the plain resolve
MATRIX = CHECKOUT / "fixtures/variants-json/build-matrix/pytorch-2.8.0-variants.json"

TIMES = """
import sys, time
from pathlib import Path
from nvp.lint.findings import Collector
from nvp.lint.documents import check_text
for name in sys.argv[1:]:
    data = Path(name).read_bytes()
    start = time.perf_counter()
    check_text(data, Collector(name))
    print(time.perf_counter() - start)
"""
MEMORY = """
import resource, sys
if len(sys.argv) > 1:
    from nvp import api
    api.validate(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""
SHADOW = """
import sys, time
from nvp import api
from nvidia_variant_provider.resolution.inputs import Priorities
from nvp.lint.selection import find_shadowed
from nvidia_variant_provider.metadata import read_metadata
def best(call):
    times = []
    for _ in range(7):
        start = time.perf_counter(); call(); times.append(time.perf_counter() - start)
    return min(times)
machine = api.detect()
def resolve():
    api.resolve(sys.argv[1], environment=machine, priorities=Priorities())
metadata = read_metadata(sys.argv[1])
find_shadowed(metadata)
print(best(resolve), best(lambda: find_shadowed(metadata)))
"""
FORCED = {
    "NV_VARIANT_PROVIDER_FORCE_CUDA_DRIVER_VERSION": "12.8",
    "NV_VARIANT_PROVIDER_FORCE_SM_ARCH": "9.0",
}


def main() -> None:
    runs = options(__doc__, 5).parse_args().runs
    with fresh_environment() as environment:
        files = [write(environment.folder, count) for count in LABELS]
        print_machine(runs)
        time_by_labels(environment, files)
        memory(environment, files[-1])
        shadowing(environment, runs)


def write(folder: Path, count: int) -> Path:
    """Write metadata with ``count`` different labels."""
    targets = (75, 80, 86, 89, 90, 100, 103, 120)
    variants = {
        f"l{number}": {
            "nvidia": {
                "cuda_version_lower_bound": [f"12.{number % 10}"],
                "sm_arch": sorted(
                    f"{target}_real"
                    for position, target in enumerate(targets)
                    if number >> position & 1 or target == 80
                ),
            }
        }
        for number in range(count)
    }
    document = {
        "$schema": "https://variants-schema.wheelnext.dev/v0.2.0.json",
        "default-priorities": {"namespace": ["nvidia"]},
        "providers": {
            "nvidia": {
                "plugin-api": "nvidia_variant_provider.plugin:NvidiaVariantPlugin",
                "requires": ["nvidia-variant-provider>=0.0.1,<1.0.0"],
            }
        },
        "variants": variants,
    }
    path = folder / f"labels_{count}-1.0-variants.json"
    path.write_text(json.dumps(document))
    return path


def time_by_labels(environment: Environment, files: list[Path]) -> None:
    output = run(environment, Command(["-c", TIMES, *map(str, files)]))
    rows = [
        [
            f"{count}",
            f"{float(seconds) * 1e3:.0f}",
            f"{float(seconds) / count * 1e6:.0f}",
        ]
        for count, seconds in zip(LABELS, output.split(), strict=True)
    ]
    print_table("validate by number of labels", ["labels", "ms", "µs a label"], rows)


def memory(environment: Environment, file: Path) -> None:
    bare = float(run(environment, Command(["-c", MEMORY])))
    used = float(run(environment, Command(["-c", MEMORY, str(file)])))
    over = used - bare
    cells = [f"{over:.1f}", f"{MEMORY_LIMIT:g}", verdict(over, MEMORY_LIMIT)]
    row = [f"{LABELS[-1]} labels", f"{used:.1f}", f"{bare:.1f}", *cells]
    header = ["", "MiB", "bare Python", "over it", "budget", ""]
    print_table("Memory of validate", header, [row])


def shadowing(environment: Environment, runs: int) -> None:
    output = run(environment, Command(["-c", SHADOW, str(MATRIX)], FORCED))
    resolve, shadow = map(float, output.split())
    ratio = shadow / resolve
    row = ["inside a process", f"{resolve * 1e3:.1f}", f"{shadow * 1e3:.1f}"]
    rows = [[*row, f"{ratio:.1f}", f"{SHADOW_LIMIT:g}", verdict(ratio, SHADOW_LIMIT)]]
    # Without a provider for CPUs no label fits, and the exit code is 1. The program
    # does not pass the code on, because `run` would stop.
    program = "import sys; from nvp.cli import main; main(sys.argv[1:])"
    commands = {
        "resolve": Command(["-c", program, "resolve", str(MATRIX)], FORCED),
        "validate": Command(["-c", program, "validate", str(MATRIX)]),
    }
    samples = time_commands(environment, commands, runs)
    first, second = samples["resolve"].median, samples["validate"].median
    cells = [f"{second / first:.1f}", f"{SHADOW_LIMIT:g}"]
    cells.append(verdict(second / first, SHADOW_LIMIT))
    rows.append(["whole process", f"{first * 1e3:.0f}", f"{second * 1e3:.0f}", *cells])
    header = ["", "resolve, ms", "validate, ms", "ratio", "budget", ""]
    print_table("The build matrix of 62 variants, all labels tried", header, rows)


if __name__ == "__main__":
    main()
