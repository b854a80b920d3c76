"""The start of every command, and the work of short commands, compared to bare
Python."""

from __future__ import annotations

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
)
from benchmarks.plugin import FORCED
from benchmarks.resolve import write_current
from nvp.cli.parsers import COMMANDS

# FILE stands for the metadata of torch 2.8.0 in the current schema.
WORK = {
    "detect": [],
    "properties": [],
    "resolve": ["FILE"],
    "matrix": ["FILE"],
    "diff": ["FILE", "FILE"],
    "validate": ["FILE"],
    "upgrade": ["FILE"],
}
"""The arguments of the commands that need no index, no pip and no wheel."""

# The program prints the imported modules after the output of the command.
COUNT = """
import sys
from nvp.cli import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
print()
print(len(sys.modules))
"""


def main() -> None:
    runs = options(__doc__, 21).parse_args().runs
    with fresh_environment() as environment:
        file = str(write_current(environment.folder))
        commands = {"bare Python": Command(["-c", "pass"])}
        for command in COMMANDS:
            line = ["-m", "nvp", command]
            commands[f"{command} --help"] = Command([*line, "--help"], FORCED)
            if command in WORK:
                words = [file if word == "FILE" else word for word in WORK[command]]
                commands[command] = Command([*line, *words], FORCED)
        print_machine(runs)
        samples = time_commands(environment, commands, runs)
        rows = [
            [command, *_cells(environment, command, commands, samples)]
            for command in COMMANDS
        ]
    header = ["", "--help, ms", "modules", "its work, ms", "modules"]
    bare = samples["bare Python"]
    print_table(f"Whole processes; a bare Python takes {bare} ms", header, rows)


def _cells(
    environment: Environment,
    command: str,
    commands: dict[str, Command],
    samples: dict[str, Sample],
) -> list[str]:
    cells = []
    for name in (f"{command} --help", command):
        if name not in commands:
            cells += ["", ""]
            continue
        words = commands[name].arguments[2:]
        counted = run(environment, Command(["-c", COUNT, *words], FORCED))
        cells += [str(samples[name]), counted.splitlines()[-1]]
    return cells


if __name__ == "__main__":
    main()
