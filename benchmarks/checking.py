"""The command ``check`` on a lock file of 400 packages, for one machine and for 5,000.

The benchmark makes no environment: it measures the imported packages. No server has the
addresses of the wheels in the lock file, so a request would fail visibly.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.fleet import node
from benchmarks.harness import options, print_table
from nvp.knowledge.builds import build_records

PACKAGES, BUILDS, NODES = 400, 20, 5000
SECONDS, TWICE = 1.0, 2.0
PREFLIGHT = "import nvp.api; nvp.api.check_installed()"
TAG = "cp312-cp312-manylinux_2_28_x86_64"
WORDS = ("--platform", "linux_x86_64", "--python-version", "3.12")


def main() -> None:
    """Write a lock file and an inventory, and run the command in fresh processes."""
    arguments = options(__doc__, 5).parse_args()
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
        lock, nodes = Path(name, "uv.lock"), Path(name, "nodes.json")
        lock.write_text(lock_file(), encoding="utf-8")
        items = [node(number) for number in range(NODES)]
        nodes.write_text(json.dumps({"items": items}), encoding="utf-8")
        command = ["-m", "nvp", "check", str(lock), *WORDS]
        bare = measure(["-c", "pass"], arguments.runs)
        one = measure(
            [*command, "--cuda-driver", "12.8", "--sm-arch", "9.0"], arguments.runs
        )
        fleet = measure([*command, "--fleet", str(nodes)], arguments.runs)
        installed = measure(["-c", PREFLIGHT], arguments.runs)
    figures = [
        ("one machine", one - bare, SECONDS),
        (f"{NODES} machines", fleet - bare, TWICE * (one - bare)),
        ("check_installed", installed - bare, 0.3),
    ]
    print_table(
        f"A lock file of {PACKAGES} packages, {BUILDS} of them builds of the table",
        ("what", "above bare Python", "budget", ""),
        [
            (
                what,
                f"{took:.2f} s",
                f"{most:.2f} s",
                "met" if took <= most else "missed",
            )
            for what, took, most in figures
        ],
    )


def lock_file() -> str:
    """Return a uv.lock with builds of the table among regular packages."""
    builds = [
        (record.project, record.version)
        for project in sorted(build_records())
        for record in list(build_records()[project])[-1:]
        if record.label is None and record.platform == "linux_x86_64"
    ][:BUILDS]
    regular = [(f"package-{n}", "1.0") for n in range(PACKAGES - len(builds))]
    lines = ["version = 1", 'requires-python = ">=3.10"', ""]
    for name, version in [*builds, *regular]:
        wheel = f"{name.replace('-', '_')}-{version}-{TAG}.whl"
        lines += [
            "[[package]]",
            f'name = "{name}"',
            f'version = "{version}"',
            'source = { registry = "https://index.invalid/simple" }',
            f'wheels = [{{ url = "https://files.invalid/{wheel}", size = 5000000 }}]',
            "",
        ]
    names = ", ".join(f'{{ name = "{name}" }}' for name, _ in [*builds, *regular])
    lines += ["[[package]]", 'name = "demo"', 'version = "1.0"']
    lines += ['source = { virtual = "." }', f"dependencies = [{names}]", ""]
    return "\n".join(lines)


def measure(words: list[str], runs: int) -> float:
    """Return the median of the seconds that a fresh process takes."""
    seconds = []
    for _ in range(runs):
        start = time.perf_counter()
        command = [sys.executable, *words]
        done = subprocess.run(command, check=False, capture_output=True)
        seconds.append(time.perf_counter() - start)
        assert done.returncode in (0, 1), done.stderr
        assert b"warning" not in done.stderr, done.stderr
    return statistics.median(seconds)


if __name__ == "__main__":
    main()
