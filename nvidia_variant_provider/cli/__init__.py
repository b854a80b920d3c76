"""The command line ``nvidia-variant-provider VERB``.

One module per verb, with ``configure_parser`` and ``execute``. A verb returns a
`Result`; only `render` prints. Only the module of the verb that runs is
imported.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import itertools
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, Protocol

from .._version import __version__
from ..errors import InputError, ProviderError, UsageError
from .render import complain, render
from .result import Result

__all__ = ["main"]

PROGRAM = "nvidia-variant-provider"

VERBS = {
    "detect": "what is on this machine, and how it was found",
    "properties": "the variant properties that this machine supports",
    "resolve": "which builds of a release this machine can run, best first",
    "matrix": "which build of a release each driver x GPU gets",
    "diff": "which lanes (driver x GPU) change their build between two releases",
    "upgrade": "rewrite variant metadata in the current schema",
    "validate": "check metadata, wheels and index folders before they are published",
    "inspect": "which GPU code is inside wheels and libraries, and what it runs on",
    "pip": "run your own pip, variant-aware",
    "serve": "the index behind pip, for other installers",
}


class _Verb(Protocol):
    """The module of a verb."""

    def configure_parser(self, parser: argparse.ArgumentParser) -> None: ...

    def execute(
        self, options: argparse.Namespace, environ: Mapping[str, str]
    ) -> Result: ...


class _Parser(argparse.ArgumentParser):
    """Errors are raised, so that ``--json`` can report them as well."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, hint=f"see {self.prog} --help")


def _parser(arguments: Sequence[str]) -> _Parser:
    # Without abbreviations: a flag of a later version could make one ambiguous.
    parser = _Parser(
        prog=PROGRAM,
        description="Which build of a GPU package fits this machine, or another.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--version", action="version", version=f"%(prog)s {__version__}"
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    # The others are for help, and for a verb that there is not.
    wanted = arguments[:1] if arguments and arguments[0] in VERBS else VERBS
    for name in wanted:
        summary = VERBS[name]
        verb = verbs.add_parser(
            name, help=summary, description=summary, allow_abbrev=False
        )
        if name in arguments:
            _module(name).configure_parser(verb)
            verb.add_argument(
                "--json", action="store_true", help="print a JSON report instead"
            )
    return parser


def _module(verb: str) -> _Verb:
    module: Any = importlib.import_module(f".{verb}", __name__)
    verb_module: _Verb = module
    return verb_module


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit code.

    0 fine; 1 findings, or nothing compatible; 2 usage; 3 input unreadable or
    invalid; 4 detection failed or bad override.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if sys.stderr is None:  # closed by the caller: else print() takes stdout
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  # for the process's life
    if sys.stdout is None:
        print("error: stdout: cannot be written: closed", file=sys.stderr)
        return InputError.exit_code
    for stream in (sys.stdout, sys.stderr):
        # Text from metadata or a driver may not fit the terminal's encoding.
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    command = next((word for word in arguments if word in VERBS), None)
    ours, theirs = _separate(arguments, command)
    as_json = "--json" in ours
    # Before the verb or after it, as people type it.
    arguments = [word for word in ours if word != "--json"]
    try:
        try:
            options = _parser(arguments).parse_args(arguments)
            options.json = as_json
            options.ours, options.arguments = arguments[1:], theirs
            result = _module(options.verb).execute(options, os.environ)
        except ProviderError as error:
            result = Result(exit_code=error.exit_code, errors=(error,))
            as_json = as_json or _has_json_format(arguments)
        except MemoryError:
            scarce = InputError("not enough memory", hint="is it the file you meant?")
            result = Result(exit_code=scarce.exit_code, errors=(scarce,))
        if not result.said:
            render(result, command=command, as_json=as_json)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return 130  # what a shell reports for a process that SIGINT ended
    except BrokenPipeError:
        # The reader (head, less) has what it wanted; nothing more can be said,
        # and Python's own flush at exit must not fail again.
        _discard_stdout()
    except OSError as error:
        _discard_stdout()
        complain(f"error: stdout: cannot be written: {error.strerror}")
        return InputError.exit_code
    return result.exit_code


def _separate(arguments: list[str], command: str | None) -> tuple[list[str], list[str]]:
    """The words that are parsed here, and those for the program a verb runs."""
    if command != "pip":
        return arguments, []
    from .pip import separate

    start = arguments.index(command) + 1
    ours, theirs = separate(arguments[start:])
    return [*arguments[:start], *ours], theirs


def _has_json_format(arguments: Sequence[str]) -> bool:
    pairs = itertools.pairwise(arguments)
    return "--format=json" in arguments or ("--format", "json") in pairs


def _discard_stdout() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
