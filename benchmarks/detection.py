"""Detection through fake driver libraries: its time, and the result of every fault.

The libraries are those of ``tests/native``, compiled with cc. This runs on Linux only.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

from benchmarks.harness import (
    CHECKOUT,
    Command,
    Environment,
    fresh_environment,
    options,
    print_machine,
    print_table,
    time_commands,
    verdict,
)

sys.path.append(str(CHECKOUT / "tests"))

# nvidia-ml-py imports ctypes.util and string, which import subprocess, tempfile and re.
# These imports take a third of a probe. Results are cached for a day if the cache can
# be written.
PROBE_LIMIT, CACHE_LIMIT = 4.0, 0.3
DEADLINE = 2.0
ANSWER = (
    "from nvidia_variant_provider.plugin import NvidiaVariantPlugin as plugin\n"
    "assert plugin.get_supported_configs()"
)


def main() -> None:
    runs = options(__doc__, 41).parse_args().runs
    with fresh_environment("pytest") as environment:
        speed(environment, runs)
        faults(environment)


def speed(environment: Environment, runs: int) -> None:
    from support.native import compile_libraries, machine
    from support.native import environment as fake

    folder = environment.folder / "healthy"
    libraries, root = folder / "libraries", folder / "root"
    libraries.mkdir(parents=True)
    compile_libraries(libraries)
    (root / "dev").mkdir(parents=True)
    (root / "dev" / "nvidia0").touch()
    scenario = machine("9.0").write(folder / "scenario")
    variables = {
        "NV_VARIANT_PROVIDER_SYSROOT": str(root),
        "XDG_CACHE_HOME": str(folder / "cache"),
        **fake(libraries, scenario),
    }
    forced = {
        "NV_VARIANT_PROVIDER_FORCE_CUDA_DRIVER_VERSION": "12.9",
        "NV_VARIANT_PROVIDER_FORCE_SM_ARCH": "9.0",
    }
    no_cache = {"NV_VARIANT_PROVIDER_NO_CACHE": "1"}
    commands = {
        "bare Python": Command(["-c", "pass"]),
        "both values forced": Command(["-c", ANSWER], {**variables, **forced}),
        "NVML that answers at once": Command(["-c", ANSWER], {**variables, **no_cache}),
        "from the cache": Command(["-c", ANSWER], variables),
    }
    print_machine(runs)
    samples = time_commands(environment, commands, runs)
    bare, base = samples["bare Python"].median, samples["both values forced"].median
    limits = {"NVML that answers at once": PROBE_LIMIT, "from the cache": CACHE_LIMIT}
    rows = []
    for name, sample in samples.items():
        cells = ["", "", ""]
        if name in limits:
            ratio = (sample.median - base) / bare
            cells = [f"{ratio:.2f}", f"{limits[name]}", verdict(ratio, limits[name])]
        rows.append([name, str(sample), *cells])
    header = ["", "ms", "adds, x bare Python", "budget", ""]
    print_table("The plugin's answer, whole process", header, rows)


def faults(environment: Environment) -> None:
    from support.faults import FAULTS, Fault
    from support.native import compile_libraries
    from support.native import environment as fake

    def detect(number: int, name: str, fault: Fault) -> list[str]:
        folder = environment.folder / f"fault-{number}"
        libraries, root = folder / "libraries", folder / "root"
        libraries.mkdir(parents=True)
        compile_libraries(libraries, without=fault.without)
        for library in fault.absent:
            # The loader stops at the empty file, so it does not find a real driver.
            (libraries / library).write_bytes(b"")
        (root / "dev").mkdir(parents=True)
        (root / "dev" / "nvidia0").touch()
        variables = {
            **{k: v for k, v in os.environ.items() if not k.startswith("PYTHON")},
            "NV_VARIANT_PROVIDER_SYSROOT": str(root),
            "NV_VARIANT_PROVIDER_NO_CACHE": "1",
            "NV_VARIANT_PROVIDER_DETECT_TIMEOUT": str(DEADLINE),
            **fake(libraries, fault.scenario.write(folder / "scenario")),
            **fault.variables,
        }
        start = time.perf_counter()
        done = subprocess.run(
            [environment.python, "-m", "nvp", "detect", "--json"],
            env=variables,
            cwd=environment.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        seconds = time.perf_counter() - start
        if done.stderr:
            raise SystemExit(f"{name}: {done.stderr}")
        data = json.loads(done.stdout)["data"]
        gpus = [gpu["compute_capability"] or gpu["reason"] for gpu in data["gpus"]]
        distinct = " ".join(dict.fromkeys(gpus))
        known = [data["cuda_driver_version"] or "none", distinct, data["reason"] or ""]
        return [name, str(done.returncode), *known, f"{seconds:.2f}"]

    rows = [detect(number, *item) for number, item in enumerate(FAULTS.items())]
    header = ["scenario", "exit code", "CUDA", "GPUs", "reason", "seconds"]
    print_table(f"Faults, with a deadline of {DEADLINE:g} s", header, rows)


if __name__ == "__main__":
    main()
