"""``pip``: run the user's own pip, variant-aware."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import TYPE_CHECKING

from ..errors import MissingExtraError, UsageError, shown
from . import machine
from .build_text import rejected
from .narration import Talk
from .parsers import add_examples
from .result import Result

if TYPE_CHECKING:
    from ..index.pip.command import Pip, PipCommand
    from ..index.pip.session import Outcome, Stale
    from ..index.selection.pins import Pins
    from ..machine.environment import Environment

__all__ = ["configure_parser", "execute", "missing_extra", "parse_pins", "separate"]

_VALUES = ("--cuda-driver", "--sm-arch", "--environment", "--label", "--python")
_SWITCHES = ("--every-gpu", "--minor-version-compatibility", "--no-variants")

_TALKATIVE = ("install", "download", "wheel")
"""Of pip's commands, those whose stdout is for people: that of ``list`` is data."""


def configure_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of the verb; every other word is for pip."""
    parser.usage = f"{parser.prog} [options] ARGS..."
    machine.add_options(parser)
    machine.add_compatibility_option(parser)
    machine.add_every_gpu_option(parser)
    parser.add_argument(
        "--label",
        metavar="[PROJECT=]LABEL",
        action="append",
        default=[],
        help="take this variant instead of the best one, for one project or for every "
        "project that has it",
    )
    parser.add_argument(
        "--no-variants",
        action="store_true",
        help="select no variants, as pip does on its own",
    )
    parser.add_argument(
        "--python",
        metavar="PATH",
        help="the interpreter or environment whose pip runs (default: this one)",
    )
    add_examples(
        parser,
        "pip install torch",
        "pip download torch --cuda-driver 12.8 --sm-arch 9.0",
        "-v pip install -vv torch",
        notes=[
            "ARGS are the words that you would give pip. The options above may stand "
            "anywhere among them. A -v after the verb is for pip; give -v before the "
            "verb to log what this program does."
        ],
    )


def separate(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words of the command line that are ours, and those that are pip's.

    ``--json`` is ours unless it follows a command of pip that has one as well.
    """
    ours: list[str] = []
    theirs: list[str] = []
    pending = iter(words)
    for word in pending:
        name, equals, _ = word.partition("=")
        if word == "--":
            theirs += [word, *pending]
        elif name in _VALUES:
            ours += [word] if equals else [word, *_next(pending)]
        elif (
            name in _SWITCHES
            or (word in ("-h", "--help") and not theirs)
            or (word == "--json" and "index" not in theirs)
        ):
            ours.append(word)
        else:
            theirs.append(word)
    return ours, theirs


def _next(words: Iterator[str]) -> list[str]:
    found = next(words, None)
    return [] if found is None else [found]


def execute(options: argparse.Namespace, environ: Mapping[str, str]) -> Result:
    """``data``: pip's ``status``, and what was ``chosen`` and ``installed``."""
    from ..index.pip.command import Pip, find_python

    if not options.arguments:
        raise UsageError(
            "pip is told nothing", hint="give its arguments: install torch"
        )
    find_machine = machine.find_later(options, environ)
    environ = machine.with_compatibility(options, environ)
    pins = parse_pins(options.label)
    if options.no_variants and options.label:
        message = "--label picks a variant, --no-variants none"
        raise UsageError(message, hint="give one of them")
    with ThreadPoolExecutor(1) as executor:
        # Both take a moment: what is imported here, and pip itself.
        loading = executor.submit(
            import_module, "nvidia_variant_provider.index.pip.session"
        )
        pip = Pip(find_python(options.python), environ)
        command = pip.understand(options.arguments)
        if options.no_variants or not command.uses_index:
            status = pip.run(options.arguments, environ, quiet=options.json)
            talk = Talk(aside=options.json, quiet=False)
            if status == 0 and command.command is None and _installs(options):
                talk.warn("no variants were selected: this pip could not be asked")
            if command.command == "check" and not options.no_variants:
                for note in _check_installed(command, find_machine(), environ):
                    talk.warn(note)
            return _result(status, talk)
        try:
            loading.result()
        except ImportError as error:
            raise missing_extra(error) from None
    return _run(pip, command, options, find_machine, environ=environ, pins=pins)


def _installs(options: argparse.Namespace) -> bool:
    return not options.no_variants and bool({*options.arguments} & {*_TALKATIVE})


def missing_extra(error: ImportError) -> MissingExtraError:
    """What is wrong when the loopback index cannot be imported."""
    hint = "pip install 'nvidia-variant-provider[index]'"
    message = f"this needs the extra index: {error.name} is not installed"
    return MissingExtraError(message, hint=hint)


def parse_pins(texts: Sequence[str]) -> Pins:
    """The labels that ``--label`` asks for.

    :raises UsageError: one is none.
    """
    from packaging.utils import canonicalize_name

    from ..index.selection.pins import Pins
    from ..wheels.archive import LABEL

    everywhere = None
    projects: dict[str, str] = {}
    for text in texts:
        project, equals, label = text.rpartition("=")
        if not LABEL.fullmatch(label):
            message = f"{shown(text)} is no label: a-z, 0-9, _ and . only"
            raise UsageError(message, path="--label", hint="give one as cu126")
        if equals:
            projects[canonicalize_name(project.rstrip("="))] = label
        else:
            everywhere = label
    return Pins(everywhere=everywhere, projects=projects)


def _run(
    pip: Pip,
    command: PipCommand,
    options: argparse.Namespace,
    find_machine: Callable[[], Environment],
    *,
    environ: Mapping[str, str],
    pins: Pins,
) -> Result:
    from ..index.pip.session import run
    from ..index.pip.signals import ENDING, handling

    report = command.options["json_report_file"]
    # Where pip's stdout is a document, nothing else may stand in it.
    aside = options.json or report == "-" or command.command not in _TALKATIVE
    talk = Talk(aside=aside, quiet=bool(command.options["quiet"]))
    # Signals to end leave nothing behind, also where pip does not run yet.
    with handling(dict.fromkeys(ENDING, _end)):
        outcome = run(
            pip,
            command,
            machine=find_machine,
            environ=environ,
            pins=pins,
            on_pick=talk.pick,
            on_start=talk.start,
            warn=talk.warn,
            quiet=options.json,
            every_gpu=options.every_gpu,
            asks=sys.stdin is not None and sys.stdin.isatty(),
        )
    if command.command == "lock" or report is not None:
        talk.warn(
            "the URLs of builds in what pip wrote are of this run (127.0.0.1): "
            "neither a lock nor a report can be installed from later"
        )
    for item in outcome.stale:
        talk.warn(_advice(item, pins, [*options.ours, *_words(command)]))
    talk.finish(outcome, pins, dry_run=bool(command.options["dry_run"]))
    return _result(outcome.status, talk, outcome, command)


def _end(number: int, _: object) -> None:
    raise SystemExit(128 + number)


def _words(command: PipCommand) -> list[str]:
    """The options of pip, but for those that say what, and whether, to install."""
    left_out = ("requirements", "constraints", "dry_run", "json_report_file", "upgrade")
    return [
        word
        for option, *words in command.words
        if option not in left_out
        for word in words
    ]


def _advice(item: Stale, pins: Pins, words: Sequence[str]) -> str:
    from ..index.http.byte_ranges import redacted

    name = f"{item.installed.project}=={item.installed.version}"
    best = f"variant {item.best}" if item.best else "the non-variant wheel"
    who = "--label asks for" if pins.get(item.installed.project) else "fits best"
    given = map(redacted, words)
    line = shlex.join(
        ["pip", "install", *given, "--force-reinstall", "--no-deps", name]
    )
    return (
        f"{name} stays installed as variant {item.installed.label}, {best} is what "
        f"{who}; to replace it: nvidia-variant-provider {line}"
    )


def _check_installed(
    command: PipCommand, environment: Environment, environ: Mapping[str, str]
) -> list[str]:
    """Installed variants that this machine cannot run."""
    from ..api import resolve
    from ..index.pip.installed import find_installed

    return [
        f"{item.project} {item.version} is installed as variant {item.label}, which "
        f"does not fit this machine: {reasons[0].sentence}"
        for item in find_installed(command.paths)
        if (
            reasons := resolve(
                item.metadata, environment=environment, environ=environ
            ).rejected.get(item.label)
        )
    ]


def _result(
    status: int,
    talk: Talk,
    outcome: Outcome | None = None,
    command: PipCommand | None = None,
) -> Result:
    machine = next(
        (c.resolution.environment for c, _ in talk.chosen.values() if c.resolution),
        None,
    )
    return Result(
        exit_code=status,
        passed_on=True,
        data={
            "status": status,
            "dry_run": bool(command and command.options.get("dry_run")),
            "environment": machine.to_dict() if machine else None,
            "chosen": [
                {
                    "name": choice.project,
                    "version": choice.version,
                    "label": label,
                    "compatible": list(choice.labels),
                    "rejected": rejected(choice.resolution),
                }
                for choice, label in talk.chosen.values()
            ],
            "installed": [x.to_dict() for x in outcome.installed] if outcome else [],
            "stale": [x.to_dict() for x in outcome.stale] if outcome else [],
            "warnings": talk.warnings,
        },
    )
