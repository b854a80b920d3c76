"""Resolving the metadata of torch 2.8.0 in whole processes, compared to variantlib."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.harness import (
    CHECKOUT,
    PEER,
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
from benchmarks.plugin import FORCED

LIMIT = 0.22
TUTORIAL = CHECKOUT / "fixtures" / "variants-json" / "torch-2.8.0-variants.json"

# variantlib runs the same plugin, that of this project, in its own subprocesses.
THEIRS = """
import json, sys
from variantlib.api import get_variants_by_priority
with open(sys.argv[1]) as file:
    document = json.load(file)
for variant in get_variants_by_priority(variants_json=document):
    print(variant.label)
"""
OURS = """
import sys
from nvp import api
for label in api.resolve(sys.argv[1]).compatible:
    print(label)
"""
VARIANTLIB = f"{PEER} get_variants_by_priority, 0.2.0"
LINE, API = "command line", "api.resolve"


def main() -> None:
    runs = options(__doc__, 41).parse_args().runs
    with fresh_environment() as environment:
        current = str(write_current(environment.folder))
        tutorial = str(TUTORIAL)
        commands = {"bare Python": Command(["-c", "pass"])}
        commands[VARIANTLIB] = Command(["-c", THEIRS, current], FORCED)
        for file, schema in ((current, "0.2.0"), (tutorial, "tutorial's file")):
            line = ["-m", "nvp", "resolve", file]
            commands[f"{LINE}, {schema}"] = Command(line, FORCED)
            commands[f"{API}, {schema}"] = Command(["-c", OURS, file], FORCED)
        compare_labels(environment, commands)
        print_machine(runs)
        samples = time_commands(environment, commands, runs)
    theirs = samples[VARIANTLIB].median
    rows = []
    for name, sample in samples.items():
        ratio = sample.median / theirs
        # There is no budget for the tutorial's file, which variantlib refuses.
        limited = name.startswith((LINE, API)) and name.endswith("0.2.0")
        cells = [f"{LIMIT}", verdict(ratio, LIMIT)] if limited else ["", ""]
        rows.append([name, str(sample), f"{ratio:.3f}", *cells])
    print_table(
        "torch 2.8.0, CUDA 12.9 and compute capability 9.0 forced, whole process",
        ["", "ms", "ratio", "budget", ""],
        rows,
    )


def write_current(folder: Path) -> Path:
    """Write the tutorial's metadata in schema 0.2.0, the only one variantlib reads."""
    document = json.loads(TUTORIAL.read_text())
    document["$schema"] = "https://variants-schema.wheelnext.dev/v0.2.0.json"
    for provider in document["providers"].values():
        del provider["enable-if"]
    variants = document["variants"]
    variants["null"] = variants.pop("00000000")
    path = folder / TUTORIAL.name
    path.write_text(json.dumps(document))
    return path


def compare_labels(environment: Environment, commands: dict[str, Command]) -> None:
    """Stop unless both sides give the same labels in the same order."""
    theirs = run(environment, commands[VARIANTLIB]).split()
    ours = run(environment, commands[f"{API}, 0.2.0"]).split()
    printed = run(environment, commands[f"{LINE}, 0.2.0"])
    if ours != theirs or f"variant_hash={theirs[0]} " not in printed:
        raise SystemExit(f"different labels: {theirs}, {ours}\n{printed}")


if __name__ == "__main__":
    main()
