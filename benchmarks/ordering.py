"""Ordering thousands of labels, compared to variantlib."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness import (
    PEER,
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

LIMIT = 0.1
LABELS = 10_000
SIZES = (1_000, 2_000, 5_000, LABELS, 20_000, 50_000)
# The limit of the exponent with which time grows with the number of labels. Sorting
# alone takes n log n, whose exponent is 1.11 between 1,000 and 50,000 labels.
LINEAR = 1.1

WORKER = Path(__file__).with_name("ordering_worker.py")
CALLS = 5
"""The number of calls of each side in one process, where the sides take turns."""


class Case(NamedTuple):
    """A kind of metadata and the sides to measure on it; see the worker."""

    kind: str
    labels: int
    sides: tuple[str, ...]


BOTH = ("ours", "theirs")
ANY_SIX = Case(
    "any_six",
    LABELS,
    (
        *BOTH,
        "theirs_warm",
        "theirs_filter",
        "resolve",
        "read",
        "read_theirs",
        "read_json",
    ),
)
NEIGHBOURS = Case("neighbours", LABELS, BOTH)
CATALOG = Case("catalog", LABELS, BOTH)
GROWTH = [ANY_SIX if size == LABELS else Case("any_six", size, BOTH) for size in SIZES]

Samples = dict[str, Sample]


def main() -> None:
    runs = options(__doc__, 3).parse_args().runs
    with fresh_environment() as environment:
        print_machine(runs * CALLS)
        samples = measure(environment, [*GROWTH, NEIGHBOURS, CATALOG], runs)
    print_budget(samples)
    print_growth([(case.labels, samples[case]) for case in GROWTH])
    print_others(samples)


def measure(
    environment: Environment, cases: Sequence[Case], runs: int
) -> dict[Case, Samples]:
    """Measure every case ``runs`` times, each time in a new process."""
    taken: dict[Case, dict[str, list[float]]] = {
        case: {side: [] for side in case.sides} for case in cases
    }
    for _ in range(runs):
        for case, sides in taken.items():
            words = [case.kind, str(case.labels), str(CALLS), *case.sides]
            # Isolated mode: Python imports no modules from the directory of the script.
            output = run(environment, Command(["-I", str(WORKER), *words]))
            for side, seconds in json.loads(output).items():
                sides[side] += seconds
    return {
        case: {side: Sample(seconds) for side, seconds in sides.items()}
        for case, sides in taken.items()
    }


def ratio(ours: Sample, theirs: Sample) -> float:
    return ours.median / theirs.median


def print_budget(samples: dict[Case, Samples]) -> None:
    rows = []
    for name, case in (
        ("6 targets in a row", NEIGHBOURS),
        ("any 6 of 12 targets", ANY_SIX),
    ):
        ours, theirs = (samples[case][side] for side in BOTH)
        compared = ratio(ours, theirs)
        cells = [str(ours), str(theirs), f"{compared:.3f}", f"{LIMIT}"]
        rows.append([name, *cells, verdict(compared, LIMIT)])
    print_table(
        f"Ordering {LABELS:,} labels, each a lower bound and 6 sm_arch values;\n"
        f"theirs: {PEER} sort_and_filter_supported_variants",
        ["", "ours, ms", "theirs, ms", "ratio", "budget", ""],
        rows,
    )


def print_growth(sizes: Sequence[tuple[int, Samples]]) -> None:
    rows, points = [], []
    for labels, samples in sizes:
        ours, theirs = (samples[side].median / labels * 1e6 for side in BOTH)
        points.append((labels, ours))
        growth = ours / points[0][1]
        cells = [f"{ours:.2f}", f"{theirs:.2f}", f"{ours / theirs:.3f}"]
        rows.append([f"{labels:,}", *cells, f"{growth:.2f}"])
    print_table(
        "Microseconds per label; growth: ours against the first line",
        ["labels", "ours", "theirs", "ratio", "growth"],
        rows,
    )
    (first, start), (last, end) = points[0], points[-1]
    exponent = 1 + math.log(end / start) / math.log(last / first)
    print(
        f"time grows with labels to the power {exponent:.2f}; "
        f"budget: linear, {LINEAR} at most: {verdict(exponent, LINEAR)}"
    )


def print_others(samples: dict[Case, Samples]) -> None:
    main_case, worst = samples[ANY_SIX], samples[CATALOG]
    pairs = (
        ("theirs once more on the same objects", "ours", "theirs_warm", main_case),
        (
            "theirs with filter_values, as its API has it",
            "ours",
            "theirs_filter",
            main_case,
        ),
        ("any 6 of 160 values: hardly a list repeats", *BOTH, worst),
        ("api.resolve of read metadata", "resolve", None, main_case),
        ("reading the file", "read", "read_theirs", main_case),
        ("json.loads of the file", "read_json", None, main_case),
    )
    rows = []
    for name, ours, theirs, sides in pairs:
        cells = ["", ""]
        if theirs is not None:
            cells = [str(sides[theirs]), f"{ratio(sides[ours], sides[theirs]):.3f}"]
        rows.append([name, str(sides[ours]), *cells])
    print_table(
        f"Other figures for {LABELS:,} labels, without a budget",
        ["", "ours, ms", "theirs, ms", "ratio"],
        rows,
    )


if __name__ == "__main__":
    main()
