"""The common parts of all benchmarks: environments, fair timing and tables."""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

__all__ = [
    "CHECKOUT",
    "PEER",
    "Command",
    "Environment",
    "Sample",
    "fresh_environment",
    "options",
    "print_machine",
    "print_ratios",
    "print_table",
    "run",
    "time_commands",
    "verdict",
]

CHECKOUT = Path(__file__).resolve().parent.parent
PEER = "variantlib==0.2.2"

# Variables of the user's shell must not influence the measurement. For example,
# PYTHONDONTWRITEBYTECODE would make each run compile every module.
_DROPPED = ("PYTHON", "NV_VARIANT_PROVIDER_", "VARIANT")


@dataclass(frozen=True, kw_only=True)
class Environment:
    """A virtual environment with this checkout and its peer.

    :param python: its interpreter.
    :param folder: an empty current directory for the commands, without the checkout and
        ``variants.toml``.
    """

    python: Path
    folder: Path


@dataclass(frozen=True)
class Command:
    """A Python process: arguments of the interpreter, and variables to add."""

    arguments: Sequence[str]
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Sample:
    """The wall times of one command, in seconds."""

    seconds: Sequence[float]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    def __str__(self) -> str:
        """Return median and range in milliseconds."""
        low, high = min(self.seconds) * 1e3, max(self.seconds) * 1e3
        return f"{self.median * 1e3:.1f} ({low:.1f}-{high:.1f})"


@contextlib.contextmanager
def fresh_environment(*others: str) -> Iterator[Environment]:
    """Make a virtual environment with both packages, installed as users install them.

    The packages come from the index that pip is configured for.

    :param others: requirements of further peers.
    """
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
        folder = Path(name)
        _quietly([sys.executable, "-m", "venv", str(folder / "venv")])
        scripts = "Scripts" if os.name == "nt" else "bin"
        python = folder / "venv" / scripts / "python"
        both = [str(CHECKOUT), str(CHECKOUT / "packages" / "nvp")]
        _quietly([str(python), "-m", "pip", "install", *both, PEER, *others])
        (folder / "work").mkdir()
        yield Environment(python=python, folder=folder / "work")


def _quietly(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")


def run(environment: Environment, command: Command) -> str:
    """Run a command, and return its stdout; the benchmark ends if it fails."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(_DROPPED)}
    done = subprocess.run(
        [str(environment.python), *command.arguments],
        cwd=environment.folder,
        env={**kept, **command.variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        text = " ".join(command.arguments)
        raise SystemExit(f"{text} exited with {done.returncode}:\n{done.stderr}")
    return done.stdout


def time_commands(
    environment: Environment, commands: Mapping[str, Command], runs: int
) -> dict[str, Sample]:
    """Measure the wall time of whole processes, after two runs of each to warm up.

    The commands take turns (A B A B ...), so that other work on the machine affects
    all of them alike.
    """
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for number in range(-2, runs):
        for name, command in commands.items():
            start = time.perf_counter()
            run(environment, command)
            if number >= 0:
                seconds[name].append(time.perf_counter() - start)
    return {name: Sample(taken) for name, taken in seconds.items()}


def options(description: str | None, default_runs: int) -> argparse.ArgumentParser:
    """Return the parser of every benchmark, with the number of runs of each side."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--runs", type=int, default=default_runs, help="default: %(default)s"
    )
    return parser


def verdict(ratio: float, limit: float) -> str:
    """Return ``met`` if ``ratio`` is at most ``limit``, or else ``missed``."""
    return "met" if ratio <= limit else "missed"


def print_machine(runs: int) -> None:
    """Print a line about the machine and the number of runs."""
    load = f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"
    print(
        f"{platform.python_implementation()} {platform.python_version()} on "
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, "
        f"load {load}, {runs} runs of each side in turn, medians"
    )


def print_table(
    title: str, header: Sequence[str], rows: Sequence[Sequence[str]]
) -> None:
    """Print a table: text in the first column, figures in the others."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    print(f"\n{title}\n")
    for row in (header, ["-" * width for width in widths], *rows):
        first, *others = (
            cell.rjust(width) if index else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        print("  ".join([first, *others]).rstrip())


def print_ratios(
    title: str,
    samples: Mapping[str, Sample],
    limit: float,
    limits: Mapping[str, float] = {},
) -> None:
    """Print each sample next to the first.

    :param limits: the budgets that differ from ``limit``, by the name of the side.
    """
    first, *_ = samples.values()
    rows = []
    for name, sample in samples.items():
        ratio = sample.median / first.median
        judged = sample is not first and not name.startswith("command")
        own = limits.get(name, limit)
        mine = [f"{own}", verdict(ratio, own)] if judged else ["", ""]
        rows.append([name, str(sample), f"{ratio:.3f}", *mine])
    print_table(title, ["", "ms", "ratio", "budget", ""], rows)
