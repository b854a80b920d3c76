"""Print the answer of the provider: ``python -m nvidia_variant_provider [FILE]``.

Without FILE, the program prints the properties that this machine supports. With FILE,
it prints the labels of a variants.json that fit this machine, best first; ``-`` stands
for standard input. ``--json`` prints a JSON object of features, or a list of labels.

This program needs only the provider. The command line for users is the package nvp.
"""

from __future__ import annotations

import os
import sys

from .errors import InputError, ProviderError, UsageError, printable, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from .machine.environment import Environment

_USAGE = "usage: python -m nvidia_variant_provider [--json] [FILE]"

_MOVED = frozenset(
    [
        *("census", "detect", "diff", "doctor", "fleet", "inspect", "matrix", "pip"),
        *("properties", "releases", "resolve", "serve", "upgrade", "validate"),
    ]
)
"""Commands of version 0.1.0 that are now commands of the package nvp."""

_NOTHING_FITS, _DETECTION_FAILED, _INTERRUPTED = 1, 4, 130


def main(words: list[str]) -> int:
    """Run the program, and return its exit code.

    0: fine; 1: no label fits; 2: wrong usage; 3: FILE is unreadable or invalid; 4: the
    driver could not be queried, or a forced value is invalid; 130: Ctrl-C.
    """
    if sys.stderr is None:  # The caller has closed stderr: 2>&-
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  # for the process's life
    try:
        lines, code = _run(words)
        _print(lines)
    except ProviderError as error:
        _complain(f"error: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        return _INTERRUPTED
    return code


def _run(words: list[str]) -> tuple[list[str], int]:
    """Return the lines to print, and the exit code."""
    if {"-h", "--help"} & set(words):
        return [*(__doc__ or "").strip().splitlines(), "", _USAGE], 0
    as_json = "--json" in words
    files = [word for word in words if word != "--json"]
    if files and files[0] in _MOVED and (files[1:] or not os.path.exists(files[0])):
        raise UsageError(f"this is now: nvp {files[0]}", hint="pip install nvp")
    for word in files:
        if word.startswith("-") and word != "-":
            raise UsageError(f"unknown option {shown(word)}", hint=_USAGE)
    if len(files) > 1:
        raise UsageError("give one FILE", hint=_USAGE)
    return _labels(files[0], as_json) if files else _properties(as_json)


def _properties(as_json: bool) -> tuple[list[str], int]:
    from .detection import detect
    from .machine import reasons
    from .machine.environment import minor_version_compatibility
    from .machine.supported import (
        NAMESPACE,
        VariantProperty,
        left_out,
        supported_features,
    )

    environment = detect(os.environ)
    features, notes = supported_features(
        environment,
        minor_version_compatibility=minor_version_compatibility(os.environ),
    )
    notes += left_out(environment)
    if not notes and environment.reason:
        # No GPU is not an error, but empty output needs an explanation.
        notes = [f"{environment.reason}: {reasons.explain(environment.reason)[0]}"]
    if as_json:
        lines = _json({feature.name: feature.values for feature in features})
    else:
        lines = [
            str(VariantProperty(NAMESPACE, feature.name, value))
            for feature in features
            for value in feature.values
        ]
    return lines, _tell(environment, notes, 0)


def _labels(file: str, as_json: bool) -> tuple[list[str], int]:
    from .api import resolve
    from .metadata import read_metadata
    from .strict_json import read_bytes, read_stdin

    # Pass bytes: read_metadata() would treat a path that starts with "{" as JSON.
    if file == "-":
        data, path = read_stdin(), "stdin"
    else:
        data, path = read_bytes(file, given=True), file
    resolution = resolve(read_metadata(data, path=path))
    labels = list(resolution.compatible)
    notes = list(resolution.notes)
    if not labels:
        notes.append("no label fits this machine")
    code = _tell(resolution.environment, notes, 0 if labels else _NOTHING_FITS)
    return _json(labels) if as_json else labels, code


def _json(document: object) -> list[str]:
    import json

    return [json.dumps(document)]


def _tell(environment: Environment, notes: Iterable[str], code: int) -> int:
    """Print the notes, and return 4 instead of ``code`` if detection has failed."""
    from .machine.environment import is_failure

    for note in notes:
        _complain(f"warning: {note}")
    return _DETECTION_FAILED if is_failure(environment.reason) else code


def _print(lines: list[str]) -> None:
    """Print lines of ASCII text.

    :raises InputError: stdout is closed, or cannot be written.
    """
    hint = "send the output to a file or a terminal that can take it"
    if sys.stdout is None:  # The caller has closed stdout: >&-
        raise InputError("cannot be written: it is closed", path="stdout", hint=hint)
    try:
        sys.stdout.write("".join(f"{line}\n" for line in lines))
        sys.stdout.flush()
    except OSError as error:
        # Python flushes stdout again at exit: that must not fail a second time.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        # A closed pipe is no error: head, for example, stops reading early.
        if not isinstance(error, BrokenPipeError):
            message = f"cannot be written: {error.strerror}"
            raise InputError(message, path="stdout", hint=hint) from None


def _complain(line: str) -> None:
    try:
        # CI services read "##vso[...]", for example, as a command.
        line = printable(line).replace("##", "# #")
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()
    except OSError:  # such as a full disk: the exit code reports the error
        pass


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
