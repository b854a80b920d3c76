"""``pip``: run the user's own pip, variant-aware."""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import TYPE_CHECKING

from ..errors import MissingExtraError, UsageError, shown
from . import machine
from .choices import block, uses_gpu, why_no_gpu
from .render import complain, say
from .result import Result

if TYPE_CHECKING:
    from ..environment import Environment
    from ..index.pins import Pins
    from ..index.pip_command import Pip, PipCommand
    from ..index.pip_session import Outcome
    from ..index.repository import Choice

__all__ = ["configure_parser", "execute", "missing_extra", "parse_pins", "separate"]

_VALUES = ("--cuda-driver", "--sm-arch", "--environment", "--label", "--python")
_SWITCHES = ("--no-variants", "--minor-version-compatibility")

_TALKATIVE = ("install", "download", "wheel")
"""Of pip's commands, those whose stdout is for people: that of ``list`` is data."""


def configure_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of the verb; all else is pip's."""
    parser.usage = f"{parser.prog} [options] ARGS..."
    parser.epilog = (
        "ARGS is what you would tell pip, as: install torch. The options may stand "
        "anywhere among it."
    )
    machine.add_options(parser)
    machine.add_compatibility_option(parser)
    parser.add_argument(
        "--label",
        metavar="[PROJECT=]LABEL",
        action="append",
        default=[],
        help="take this variant, whatever fits best: of one project, or of each that "
        "has it",
    )
    parser.add_argument(
        "--no-variants",
        action="store_true",
        help="select no variants, as pip does alone",
    )
    parser.add_argument(
        "--python",
        metavar="PATH",
        help="the interpreter or environment whose pip it is (default: this one)",
    )


def separate(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words of the command line that are ours, and those that are pip's."""
    ours: list[str] = []
    theirs: list[str] = []
    pending = iter(words)
    for word in pending:
        name, equals, _ = word.partition("=")
        if word == "--":
            theirs += [word, *pending]
        elif name in _VALUES:
            ours += [word] if equals else [word, *_next(pending)]
        elif name in _SWITCHES or (word in ("-h", "--help") and not theirs):
            ours.append(word)
        else:
            theirs.append(word)
    return ours, theirs


def _next(words: Iterator[str]) -> list[str]:
    found = next(words, None)
    return [] if found is None else [found]


def execute(options: argparse.Namespace, environ: Mapping[str, str]) -> Result:
    """``data``: pip's ``status``, and what was ``chosen`` and ``installed``."""
    from ..index.pip_command import Pip, find_python

    if not options.arguments:
        raise UsageError(
            "pip is told nothing", hint="give its arguments: install torch"
        )
    find_machine = machine.find_later(options, environ)
    environ = machine.with_compatibility(options, environ)
    pins = parse_pins(options.label)
    with ThreadPoolExecutor(1) as executor:
        # Both take a moment: what is imported here, and pip itself.
        loading = executor.submit(
            import_module, "nvidia_variant_provider.index.pip_session"
        )
        pip = Pip(find_python(options.python), environ)
        command = pip.understand(options.arguments)
        if options.no_variants or not command.uses_index:
            status = pip.run(options.arguments, environ, quiet=options.json)
            if command.command == "check" and not options.no_variants:
                notes = _check_installed(command, find_machine(), environ)
                return _result(status, {}, notes=notes)
            return _result(status, {})
        try:
            loading.result()
        except ImportError as error:
            raise missing_extra(error) from None
    return _run(
        pip,
        command,
        as_json=options.json,
        find_machine=find_machine,
        environ=environ,
        pins=pins,
    )


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

    from ..index.pins import Pins
    from ..metadata.reading import LABEL

    everywhere = None
    projects: dict[str, str] = {}
    for text in texts:
        project, equals, label = text.rpartition("=")
        if not LABEL.fullmatch(label):
            message = f"{shown(text)} is no label"
            raise UsageError(message, path="--label", hint="give one as cu126")
        if equals:
            projects[canonicalize_name(project.rstrip("="))] = label
        else:
            everywhere = label
    return Pins(everywhere=everywhere, projects=projects)


def _run(
    pip: Pip,
    command: PipCommand,
    *,
    as_json: bool,
    find_machine: Callable[[], Environment],
    environ: Mapping[str, str],
    pins: Pins,
) -> Result:
    from ..index.pip_session import run

    report = command.options["json_report_file"]
    # Where pip's stdout is a document, nothing else may stand in it.
    aside = as_json or report == "-" or command.command not in _TALKATIVE
    talk = _Talk(aside=aside, quiet=bool(command.options["quiet"]))
    outcome = run(
        pip,
        command,
        machine=find_machine,
        environ=environ,
        pins=pins,
        on_pick=talk.pick,
        on_start=talk.start,
        warn=talk.warn,
        quiet=as_json,
        asks=sys.stdin is not None and sys.stdin.isatty(),
    )
    notes = []
    if command.command == "lock" or report is not None:
        notes.append(
            "the URLs of builds in what pip wrote are of this run (127.0.0.1): "
            "neither a lock nor a report can be installed from later"
        )
    for item in outcome.stale:
        name = f"{item.installed.project}=={item.installed.version}"
        best = f"variant {item.best}" if item.best else "the non-variant wheel"
        notes.append(
            f"{name} stays installed as variant {item.installed.label}, {best} is the "
            f"one for this machine; to replace it: nvidia-variant-provider pip install "
            f"--force-reinstall --no-deps {name}"
        )
    talk.finish(command, outcome)
    return _result(outcome.status, talk.chosen, outcome=outcome, notes=notes)


class _Talk:
    """Says what is chosen while pip runs; from the thread that serves it."""

    def __init__(self, *, aside: bool, quiet: bool) -> None:
        self._aside = aside
        self._quiet = quiet
        self._lock = threading.Lock()
        self.chosen: dict[tuple[str, str], tuple[Choice, str | None]] = {}

    def start(self, places: Mapping[str, str]) -> None:
        """What pip is going to call indexes."""
        if not self._quiet:
            lines = [f"{here} stands for {there}" for here, there in places.items()]
            say(lines, aside=self._aside)

    def pick(self, choice: Choice, label: str | None) -> None:
        """A build that pip fetches, or whose METADATA it reads."""
        with self._lock:
            key = (choice.project, choice.version)
            known = self.chosen.get(key)
            if known is not None and known[1] == label:
                return
            self.chosen[key] = choice, label
            release = f"{choice.project}=={choice.version}"
            if label is not None and not self._quiet:
                say(block(release, label, choice.resolution), aside=self._aside)
            resolution = choice.resolution
            if resolution is None:
                return
            for note in resolution.notes:
                complain(f"warning: {note}")
            if choice.pinned is not None:
                if label not in resolution.compatible:
                    complain(f"warning: {release}: {label} does not fit this machine")
            elif not uses_gpu(label, resolution):
                for line in why_no_gpu(release, resolution):
                    complain(line)

    def warn(self, message: str) -> None:
        """Something that was passed over."""
        with self._lock:
            complain(f"warning: {message}")

    def finish(self, command: PipCommand, outcome: Outcome) -> None:
        """Say at the end what became of the builds."""
        if self._quiet or outcome.status:
            return
        would = "Would install" if command.options["dry_run"] else "Installed"
        lines = [
            f"{would} variant {item.label} of {item.project} {item.version}"
            if item.label
            else f"{would} {item.project} {item.version} without a variant"
            for item in outcome.installed
            if item.label or (item.project, item.version) in self.chosen
        ]
        say(lines, aside=self._aside)


def _check_installed(
    command: PipCommand, environment: Environment, environ: Mapping[str, str]
) -> list[str]:
    """Installed variants that this machine cannot run."""
    from ..api import resolve
    from ..index.installed import find_installed

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
    chosen: Mapping[tuple[str, str], tuple[Choice, str | None]],
    *,
    outcome: Outcome | None = None,
    notes: Sequence[str] = (),
) -> Result:
    return Result(
        exit_code=status,
        passed_on=True,
        data={
            "status": status,
            "chosen": [
                {
                    "name": choice.project,
                    "version": choice.version,
                    "label": label,
                    "compatible": list(choice.labels),
                }
                for choice, label in chosen.values()
            ],
            "installed": [x.to_dict() for x in outcome.installed] if outcome else [],
            "stale": [x.to_dict() for x in outcome.stale] if outcome else [],
        },
        notes=notes,
    )
