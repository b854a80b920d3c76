"""Compare an implementation of the provider with the cases in ``fixtures/provider``.

``python -m tools.conformance`` runs all cases against the provider of this Python, and
``--command 'CMD ...'`` against any program. The program prints one JSON document,
``{"all": [...], "supported": [...]}``, and exits with another code than 0 if forced
values are malformed. See ``docs/reference/provider.md``.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from support.conformance import (  # noqa: E402  # found by the line above
    answer_of,
    differences,
    expected,
    read_cases,
    variables_for,
)
from support.native import compile_libraries  # noqa: E402

ENDPOINT = "nvidia_variant_provider.plugin:NvidiaVariantPlugin"

PROGRAM = """
import importlib, json, sys
if sys.path[0] == "":  # not what happens to be in the current directory
    del sys.path[0]
module, _, name = sys.argv[1].partition(":")
plugin = importlib.import_module(module)
plugin = getattr(plugin, name) if name else plugin
def listed(features):
    return [
        {"name": one.name, "values": list(one.values), "multi_value": one.multi_value}
        for one in features
    ]
print(json.dumps({
    "all": listed(plugin.get_all_configs()),
    "supported": listed(plugin.get_supported_configs()),
}))
"""
"""The program for a provider in Python, which reads a case and prints the answer."""


def main(words: Sequence[str] | None = None) -> int:
    """Run the cases, and return 0 if all differences are listed in them."""
    options = _parser().parse_args(words)
    command = (
        shlex.split(options.command)
        if options.command
        else [options.python, "-W", "ignore", "-c", PROGRAM, options.endpoint]
    )
    cases = read_cases(*options.files)
    unlisted = listed = 0
    with tempfile.TemporaryDirectory() as folder:

        @cache
        def compiled(without: tuple[str, ...]) -> Path:
            path = Path(folder, "-".join(["libraries", *without]))
            path.mkdir()
            compile_libraries(path, without=without)
            return path

        for number, case in enumerate(cases):
            machine = Path(folder, str(number))
            machine.mkdir()
            answer = answer_of(command, variables_for(case, machine, compiled))
            lines = differences(case, answer)
            known = case.differs.get(options.listed)
            if bool(lines) != (known is not None):
                unlisted += 1
            elif known is not None:
                listed += 1
            if lines or known is not None:
                print(f"{case}: {known or 'NOT LISTED'}")
                print(f"  rule: {case.rule}")
                print(f"  expected: {expected(case)}")
                for line in lines or ["no difference, although one is LISTED"]:
                    print(f"  got: {line}")
    print(
        f"{len(cases)} cases: {len(cases) - listed - unlisted} as expected, {listed} "
        f"with a listed difference, {unlisted} that contradict the list"
    )
    return 1 if unlisted else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.conformance")
    parser.add_argument(
        "--command", metavar="CMD", help="the program that answers, with its arguments"
    )
    parser.add_argument(
        "--python",
        default=sys.executable,
        help="the Python that imports the endpoint (default: this one)",
    )
    parser.add_argument(
        "--endpoint",
        default=ENDPOINT,
        help="MODULE:CLASS, or a module (default: %(default)s)",
    )
    parser.add_argument(
        "--listed",
        metavar="NAME",
        help="the implementation whose listed differences are expected: 0.0.2 or uv",
    )
    parser.add_argument(
        "files", nargs="*", help="the names of files, such as forced (default: all)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
