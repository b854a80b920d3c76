"""The command line ``nvp COMMAND``.

There is one module for each command, with ``configure_parser`` and ``execute``. A
command returns a `Result`, and only `render` prints it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from nvidia_variant_provider.errors import InputError, ProviderError

from ..signals import MEMORY, SECONDS, bounded
from .parsers import (
    COMMANDS,
    PROGRAM,
    CommandLine,
    check_command,
    find_command,
    has_json_format,
    has_json_option,
    make_command_parser,
    make_parser,
    read_command_line,
)
from .render import Result, complain, render, terminal_width

__all__ = ["COMMANDS", "PROGRAM", "main"]

_INTERRUPTED = 130
"""The exit code that a shell reports for a process that SIGINT ended."""

_WITHOUT_WAITS = ("pip", "serve", "census")
"""Commands that print their own progress, so they need no waiting line."""

_UNLIMITED = ("pip", "serve", "doctor")
"""Commands that may run for days, or limit their work themselves. So does ``census``,
unless it only reads a store."""

_SECONDS_OF_OUTPUT, _MEMORY_OF_OUTPUT = 8.0, 200 << 20
"""The processor time and the memory that printing a result may take in addition to
those of all other commands. Large inputs raise the limits."""

_ELSEWHERE = "send the output to a file or a terminal that can take it"
"""The hint if stdout cannot be written."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code.

    0: fine; 1: findings, or nothing compatible; 2: wrong usage; 3: input that is
    unreadable or invalid; 4: detection failed, or an override is invalid.
    """
    words = sys.argv[1:] if argv is None else argv
    if not _prepare_streams():
        return InputError.exit_code
    result = Result()
    try:
        try:
            line = read_command_line(list(words))
            result = _run(line)
            if not result.said:
                result = _print(result, line)
        finally:
            # Flush after SystemExit too, with which --help and --version end.
            sys.stdout.flush()
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader, such as head or less, has closed the pipe. Avoid a second failure
        # when Python flushes stdout at exit.
        _discard_stdout()
    except OSError as error:
        _discard_stdout()
        complain(f"error: stdout: cannot be written: {error.strerror}; {_ELSEWHERE}")
        return InputError.exit_code
    return result.exit_code


def _prepare_streams() -> bool:
    """Make printing to the standard streams safe; return ``False`` without a stdout."""
    if sys.stderr is None:  # closed by the caller: print() would use stdout instead
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  # for the process's life
    if sys.stdout is None:
        complain(f"error: stdout: cannot be written: it is closed; {_ELSEWHERE}")
        return False
    for stream in (sys.stdout, sys.stderr):
        # Text from metadata or a driver may have characters that the encoding lacks.
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    return True


def _run(line: CommandLine) -> Result:
    try:
        if line.command is None or line.command == "help" or line.program:
            return _run_program(line)
        return _run_command(line.command, line)
    except ProviderError as error:
        return Result(exit_code=error.exit_code, errors=(error,))
    except MemoryError:
        scarce = InputError(
            "not enough memory", hint="check that this is the right file"
        )
        return Result(exit_code=scarce.exit_code, errors=(scarce,))
    except BrokenPipeError:
        raise
    except OSError as error:
        # Inputs and outputs raise errors of this program with their names. What is
        # left are temporary files, the current directory, and progress on stdout.
        reason = f"cannot go on: {error.strerror or error}"
        hint = "check the current directory, TMPDIR, and the target of stdout"
        failure = InputError(reason, path=error.filename, hint=hint)
        return Result(exit_code=failure.exit_code, errors=(failure,))


def _run_program(line: CommandLine) -> Result:
    parser = make_parser()
    options = parser.parse(line.program)
    if options.print_completion:
        from .parsers import completion_script

        script = completion_script(options.print_completion)
        return Result(text=script.splitlines(), verbatim=True)
    if line.command in (None, "help") and has_json_option(line):
        parser.error("no command was given")
    if line.command is None:
        from .start import start

        return start(os.environ)
    if line.command == "help":
        return _help(line)
    return _run_command(line.command, line, verbosity=options.verbose)


def _help(line: CommandLine) -> Result:
    """Return the output of ``help`` or ``help COMMAND``."""
    names = [word for word in line.words if not word.startswith("-")]
    parser = make_command_parser(names[0]) if names else make_parser()
    return Result(text=parser.format_help().splitlines(), verbatim=True)


def _run_command(name: str, line: CommandLine, *, verbosity: int = 0) -> Result:
    check_command(name, line.words)
    options = make_command_parser(name).parse(line.words)
    options.json = has_json_option(line)
    options.ours = [word for word in line.words if word != "--json"]
    options.arguments = line.passed_on
    if name != "pip":
        verbosity += options.verbose
    with contextlib.ExitStack() as stack:
        if verbosity:
            from .log import log_start, logging_to_stderr

            stack.enter_context(logging_to_stderr(verbosity))
            log_start(name)
        elif name not in _WITHOUT_WAITS and terminal_width(sys.stderr):
            from .log import showing_waits

            stack.enter_context(showing_waits(name))
        stack.enter_context(_saying_warnings())
        reads = name != "census" or options.index is None
        if reads and name not in _UNLIMITED:
            stack.enter_context(bounded(SECONDS, MEMORY))
        result: Result = find_command(name).execute(options, os.environ)
    return result


def _print(result: Result, line: CommandLine) -> Result:
    """Print a result, or the error if printing it takes too much; return either."""
    command = line.command if line.command in COMMANDS else None
    # Look for --format here: a failed command might not have read it.
    failed = result.data is None and bool(result.errors)
    as_json = has_json_option(line) or (failed and has_json_format(line))
    try:
        with contextlib.ExitStack() as stack:
            if command not in _UNLIMITED:
                stack.enter_context(bounded(_SECONDS_OF_OUTPUT, _MEMORY_OF_OUTPUT))
            render(result, command=command, as_json=as_json)
    except InputError as error:
        result = Result(exit_code=error.exit_code, errors=(error,))
        render(result, command=command, as_json=as_json)
    return result


@contextlib.contextmanager
def _saying_warnings() -> Iterator[None]:
    """Print each warning in one line, and only the first one about the cache."""
    from ..files import CacheWarning

    told: set[str] = set()
    with warnings.catch_warnings():

        def say(message: Warning | str, *_: Any) -> None:
            if not isinstance(message, CacheWarning):
                complain(f"{type(message).__name__}: {message}")
            elif not told:
                told.add(str(message))
                complain(f"warning: {message}")

        warnings.simplefilter("always", CacheWarning)
        warnings.showwarning = say  # type: ignore[assignment]
        yield


def _discard_stdout() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
