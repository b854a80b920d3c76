"""The workloads and the receipts of ``doctor``: options, text, and writing files."""

from __future__ import annotations

import argparse
import contextlib
import math
import sys
from collections.abc import Iterator, Sequence

from nvidia_variant_provider.errors import InputError, UsageError, printable, shown

__all__ = ["add_options", "ending_children", "evidence_of", "text", "write_receipts"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..doctor.evidence import Evidence
    from ..doctor.runner import Diagnosis


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--workload``, ``--receipt`` and what belongs to them."""
    group = parser.add_argument_group("workloads and receipts")
    group.add_argument(
        "--workload",
        metavar="COMMAND",
        action="append",
        default=[],
        help="run this command in the environment, and report whether it passes, where "
        "it breaks its graph, and how much GPU memory is in use; may be repeated",
    )
    group.add_argument(
        "--deadline",
        metavar="SECONDS",
        type=_seconds,
        help="kill a workload after this time (default: 600, or what the receipt says)",
    )
    group.add_argument(
        "--receipt",
        metavar="FILE",
        action="append",
        default=[],
        help="write a receipt of the stack to FILE.json, or to FILE.md for people; may "
        "be repeated",
    )
    group.add_argument(
        "--reason",
        metavar="TEXT",
        action="append",
        default=[],
        help="why the stack is as it is, for the receipt; NAME=TEXT is about one "
        "distribution or one environment variable; may be repeated",
    )
    group.add_argument(
        "--against",
        metavar="FILE",
        help="compare the stack with the receipt in this file, and run its workloads "
        "again",
    )


def evidence_of(options: argparse.Namespace, *, is_here: bool) -> Evidence | None:
    """Return what the options ask for; ``None`` where they ask for nothing.

    :param is_here: whether the diagnosis is about this machine.
    :raises UsageError: the options do not go together, or a command is malformed.
    :raises InputError: there is no such receipt, or none can be written.
    """
    if options.reason and not options.receipt:
        message = "--reason: there is no receipt that would have it"
        raise UsageError(message, hint="add --receipt FILE.json")
    if not (options.workload or options.receipt or options.against is not None):
        if options.deadline is not None:
            message = "--deadline: there is no workload"
            raise UsageError(message, hint="add --workload COMMAND")
        return None
    from ..doctor.evidence import Evidence
    from ..doctor.receipts.document import check_target
    from ..doctor.receipts.reading import read_receipt
    from ..doctor.workloads.running import split_command

    if options.workload and not is_here:
        message = "--workload: the options name another machine, and it would run here"
        hint = "leave out --cuda-driver, --sm-arch and --environment"
        raise UsageError(message, hint=hint)
    for command in options.workload:
        split_command(command)
    for path in options.receipt:
        check_target(path)
    against = None if options.against is None else read_receipt(options.against)
    return Evidence(
        workloads=options.workload,
        deadline=options.deadline,
        reasons=options.reason,
        with_receipt=bool(options.receipt),
        against=against,
        starting=_tell if sys.stderr.isatty() else None,
    )


@contextlib.contextmanager
def ending_children() -> Iterator[None]:
    """End the programs that doctor runs when this program is told to end.

    The signal becomes an exception, and what runs a child process kills it on the way.
    """
    from ..signals import ENDING, handling

    told: list[int] = []

    def end(number: int, _: object) -> None:
        told.append(number)
        raise SystemExit(128 + number)

    with handling(dict.fromkeys(ENDING, end)):
        yield
    if told:
        # Python swallows an exception while it deletes an object.
        raise SystemExit(128 + told[0])


def text(diagnosis: Diagnosis) -> Iterator[str]:
    """Yield a line for each workload."""
    for record in diagnosis.workloads:
        words = [f"{record['outcome']} after {record['seconds']:.1f} s"]
        for name in ("graph_breaks", "fallbacks", "recompilations"):
            count = record["totals"][name]
            if count:
                singular = name.replace("_", " ").removesuffix("s")
                words.append(f"{count} {singular}{'s' if count > 1 else ''}")
        words += [
            f"at most {gpu['peak'] >> 20:,} MiB in use on GPU {gpu['index']}"
            for gpu in record["gpu_memory"] or ()
        ]
        yield f"Workload:    {printable(record['command'])}: {', '.join(words)}"


def write_receipts(
    diagnosis: Diagnosis, paths: Sequence[str]
) -> tuple[list[str], list[InputError]]:
    """Write the receipt of a diagnosis, each file completely or not at all.

    :returns: what people read about it, and the errors.
    """
    from ..doctor.receipts.document import to_text
    from ..kept_files import replace_file

    receipt = diagnosis.receipt
    errors: list[InputError] = []
    lines: list[str] = []
    if receipt is None:
        return lines, errors
    for path in paths:
        with _collecting(errors):
            replace_file(path, to_text(receipt, path))
            lines.append(f"Receipt:     {printable(path)}")
    return lines, errors


@contextlib.contextmanager
def _collecting(errors: list[InputError]) -> Iterator[None]:
    """Keep an error: the findings and the other files must not be lost for it."""
    try:
        yield
    except InputError as error:
        errors.append(error)


def _tell(command: str, deadline: float) -> None:
    from .render import say

    say([f"running for at most {deadline:g} seconds: {printable(command)}"], aside=True)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    from ..doctor.workloads.record import LONGEST_DEADLINE

    if not 0 < seconds <= LONGEST_DEADLINE:
        raise argparse.ArgumentTypeError(f"{shown(text)} is not a number of seconds")
    return seconds
