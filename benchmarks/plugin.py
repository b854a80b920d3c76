"""The plugin's answer in a fresh process, and the modules that the plugin imports.

Installers run a plugin in a process of its own, so most of the cost is starting this
process.
"""

from __future__ import annotations

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
    time_commands,
    verdict,
)

# The wheel of the published provider is not on PyPI. Without the wheel, the benchmark
# uses this measurement: 38 ms above a bare Python of 11 ms, with both values forced.
PUBLISHED = 38 / 11
LIMIT = 0.10

FORCED = {
    "NV_VARIANT_PROVIDER_FORCE_CUDA_DRIVER_VERSION": "12.9",
    "NV_VARIANT_PROVIDER_FORCE_SM_ARCH": "9.0",
}
CLASS = "from nvidia_variant_provider.plugin import NvidiaVariantPlugin as plugin"
MODULE = "import nvidia_variant_provider as plugin"
ANSWER = "plugin.get_supported_configs()"

FORBIDDEN = (
    "argparse",
    "http",
    "importlib.metadata",
    "packaging",
    "platformdirs",
    "zipfile",
)
AVOIDED = ("re", "typing", "dataclasses")
BARE = "bare Python"


def main() -> None:
    parser = options(__doc__, 101)
    parser.add_argument(
        "--published",
        metavar="WHEEL",
        type=Path,
        help="the published provider, to measure it in the same run",
    )
    arguments = parser.parse_args()
    with fresh_environment() as environment:
        empty = environment.folder / "no-gpu"
        empty.mkdir()
        machines = {
            "forced values": FORCED,
            "no GPU": {"NV_VARIANT_PROVIDER_SYSROOT": str(empty)},
        }
        print_machine(arguments.runs)
        for title, variables in machines.items():
            theirs = published(environment, arguments.published, variables)
            measure_answer(environment, title, variables, theirs, arguments.runs)
        measure_imports(environment, arguments.runs)
        for title, variables in machines.items():
            print_closure(environment, title, variables)


def published(
    environment: Environment, wheel: Path | None, variables: dict[str, str]
) -> Command | None:
    """Return the command of the published provider, which is before this one on the
    path."""
    if wheel is None:
        return None
    folder = environment.folder / "published"
    if not folder.exists():
        install = ["-m", "pip", "install", "--no-deps", "--target", str(folder)]
        run(environment, Command([*install, str(wheel.resolve())]))
    program = f"{CLASS}; {ANSWER}"
    return Command(["-c", program], {**variables, "PYTHONPATH": str(folder)})


def measure_answer(
    environment: Environment,
    title: str,
    variables: dict[str, str],
    theirs: Command | None,
    runs: int,
) -> None:
    features = 3 if variables is FORCED else 0
    check = f"assert len({ANSWER}) == {features}"
    commands = {
        BARE: Command(["-c", "pass"]),
        "plugin:NvidiaVariantPlugin": Command(["-c", f"{CLASS}; {check}"], variables),
        "the module itself": Command(["-c", f"{MODULE}; {check}"], variables),
    }
    if theirs is not None:
        commands["published provider"] = theirs
    samples = time_commands(environment, commands, runs)
    bare = samples.pop(BARE)
    rows = [[BARE, str(bare), *[""] * 5]]
    reference, source = PUBLISHED, "38 ms above a bare Python of 11 ms"
    if theirs is not None:
        peer = samples.pop("published provider")
        reference, source = above(peer, bare), "in this run"
        rows.append(["published provider", *cost(peer, bare), *[""] * 3])
    for name, sample in samples.items():
        ratio = above(sample, bare) / reference
        cells = [f"{ratio:.3f}", f"{LIMIT}", verdict(ratio, LIMIT)]
        rows.append([name, *cost(sample, bare), *cells])
    print_table(
        f"Answer in a fresh process, {title}; the published provider takes "
        f"{reference:.2f} x bare Python\nabove bare Python ({source})",
        ["", "ms", "above bare, ms", "x bare", "ratio", "budget", ""],
        rows,
    )


def measure_imports(environment: Environment, runs: int) -> None:
    commands = {BARE: Command(["-c", "pass"])}
    for name in AVOIDED:
        commands[f"import {name}"] = Command(["-c", f"import {name}"])
    samples = time_commands(environment, commands, runs)
    bare = samples.pop(BARE)
    print_table(
        "What these would cost every answer",
        ["", "ms", "above bare, ms", "x bare"],
        [
            [BARE, str(bare), "", ""],
            *([name, *cost(sample, bare)] for name, sample in samples.items()),
        ],
    )


def above(sample: Sample, bare: Sample) -> float:
    """Return the time above bare Python, as a multiple of bare Python."""
    return (sample.median - bare.median) / bare.median


def cost(sample: Sample, bare: Sample) -> list[str]:
    extra = (sample.median - bare.median) * 1e3
    return [str(sample), f"{extra:.1f}", f"{above(sample, bare):.2f}"]


def print_closure(
    environment: Environment, title: str, variables: dict[str, str]
) -> None:
    """Print the modules that the import loads, and those that the answer adds."""
    program = (
        "import sys; bare = set(sys.modules)",
        CLASS,
        "imported = set(sys.modules)",
        ANSWER,
        "print(*sorted(imported - bare))",
        "print(*sorted(set(sys.modules) - imported))",
    )
    output = run(environment, Command(["-c", "\n".join(program)], variables))
    imported, later = (line.split() for line in output.split("\n")[:2])
    print(f"\nModules beyond bare Python, {title}: {len(imported)} by the import")
    print(f"  {' '.join(imported)}")
    print(f"and {len(later)} by the answer")
    if later:
        print(f"  {' '.join(later)}")
    forbidden = [
        module
        for module in imported + later
        if any(f"{module}.".startswith(f"{name}.") for name in FORBIDDEN)
    ]
    print(
        f"budget: none of {', '.join(FORBIDDEN)}: "
        + (f"missed ({' '.join(forbidden)})" if forbidden else "met")
    )


if __name__ == "__main__":
    main()
