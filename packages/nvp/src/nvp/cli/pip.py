"""``pip``: run the user's own pip, variant-aware."""

from __future__ import annotations

import argparse
import itertools
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from nvidia_variant_provider.errors import UsageError, redacted, shown

from .arguments import add_machine_options, add_options, find_later, words_of
from .build_text import rejected
from .narration import Narration, find_unused, stays_installed
from .parsers import add_examples, make_command_parser, nearest_option
from .render import Result, complain

if TYPE_CHECKING:
    from nvidia_variant_provider.machine.environment import Environment

    from ..index.pip.command import PipCommand
    from ..index.pip.installed import StaleVariant
    from ..index.pip.process import Pip
    from ..index.pip.session import Outcome
    from ..index.selection.options import Pins, Selection

_PROXY_OPTIONS = ("--prox", "--proxy")  # pip accepts abbreviations

_NO_SUCH_OPTION = 2
"""The exit status of pip for an unknown option."""

_LIKE = 0.8
"""The minimum similarity of an argument to an option; no option of pip is that
similar to one of nvp."""

_PIPS_TOO = ("--help", "--json", "--python", "--verbose")

_FOR_PEOPLE = ("install", "download", "wheel")
"""Commands of pip with messages on stdout; others, such as ``list``, print data."""


_OPTIONS = """
--minor-version-compatibility
--every-gpu
--label
--no-variants
  select no variants, as pip does on its own
--unchecked
--vendor-indexes
--no-range-metadata
--python PATH
  interpreter or environment whose pip runs (default: the activated environment, or
  nvp's own)
"""


def configure_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command; all other arguments are for pip."""
    parser.usage = f"{parser.prog} [options] ARGS..."
    add_machine_options(parser)
    add_options(parser, _OPTIONS)
    add_examples(
        parser,
        "pip install torch",
        "pip download torch --cuda-driver 12.8 --sm-arch 9.0",
        "-v pip install -vv torch",
        notes=["ARGS are for pip. You can put the options above anywhere among them."],
    )


def execute(options: argparse.Namespace, environ: Mapping[str, str]) -> Result:
    """Run pip; ``data`` has ``status``, ``chosen``, ``installed`` and other keys."""
    from ..index.pip.command import find_python
    from ..index.pip.process import Pip

    if not options.arguments:
        hint = "try: nvp pip install torch"
        raise UsageError("no pip command given", hint=hint)
    pip = Pip(find_python(options.python, environ), environ)
    try:
        # pip is slowest to load, so start it first.
        pip.start(quiet=options.json)
        return _execute(pip, options, environ)
    finally:
        pip.close()


def _execute(
    pip: Pip, options: argparse.Namespace, environ: Mapping[str, str]
) -> Result:
    from concurrent.futures import ThreadPoolExecutor

    find_machine = find_later(options, environ)
    from ..index.selection.options import parse_pins

    pins = parse_pins(options.label)
    if options.no_variants and options.label:
        message = "--label and --no-variants contradict each other"
        raise UsageError(message, hint="give one of them")
    with ThreadPoolExecutor(1) as executor:
        # Import `nvp.index` while pip parses its command line, because both are slow.
        loading = executor.submit(import_module, "nvp.index.pip.session")
        command = pip.understand(options.arguments)
        _check_destination(options, command, environ)
        if options.no_variants or not command.uses_index:
            return _run_plain(pip, command, find_machine, options, environ)
        loading.result()
    from ..files import cache_folder
    from ..index.pip.command import find_labels, find_limits, find_versions
    from ..index.selection.options import Selection

    selection = Selection(
        machine=find_machine,
        pins=pins,
        named=find_labels(command.asked),
        requires_hashes=command.requires_hashes,
        keeps_hashes=command.command == "lock",
        pinned=find_versions(command.asked),
        limits=find_limits(command.asked),
        unchecked=options.unchecked,
        vendor_indexes=options.vendor_indexes,
        range_metadata=options.range_metadata,
        target=command.target,
        cache=cache_folder(environ),
        every_gpu=options.every_gpu,
        minor_version_compatibility=options.minor_version_compatibility,
        environ=environ,
    )
    return _run(pip, command, selection, options, environ)


def _check_destination(
    options: argparse.Namespace, command: PipCommand, environ: Mapping[str, str]
) -> None:
    """Print the activated environment; refuse to install into the environment of nvp.

    :raises UsageError: pipx or ``uv tool`` created the environment of nvp, where the
        packages would be useless.
    """
    from ..index.pip.command import find_activated, is_tool_environment

    given = options.python is not None or command.options.target_dir
    if command.command != "install" or given:
        return
    active = find_activated(environ)
    if active is not None:
        if not command.options.quiet:
            complain(f"installing into the activated environment {active}")
    elif not environ.get("VIRTUAL_ENV") and is_tool_environment():
        message = "this program has an environment of its own, and none is activated"
        raise UsageError(
            message, hint="activate the environment to install into, or give --python"
        )


def _run_plain(
    pip: Pip,
    command: PipCommand,
    find_machine: Callable[[], Environment],
    options: argparse.Namespace,
    environ: Mapping[str, str],
) -> Result:
    status = pip.run(options.arguments, environ, quiet=options.json)
    narration = Narration(aside=options.json, quiet=False)
    installs = not options.no_variants and {*options.arguments} & {*_FOR_PEOPLE}
    if status == 0 and command.command is None and installs:
        narration.warn(
            "no variants were selected, because this pip did not report how it "
            "understands the command"
        )
    if status == _NO_SUCH_OPTION and command.command is None:
        for word, own in _meant(options.arguments):
            narration.warn(f"{word} is no option of pip; did you mean nvp's {own}?")
    if command.command == "check" and not options.no_variants:
        for note in _check_installed(command, find_machine(), environ):
            narration.warn(note)
    return _result(status, narration, as_json=options.json)


def _meant(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each argument that resembles an option of nvp, with that option.

    pip has rejected the arguments, so they are not abbreviations of its own options. No
    option of pip resembles an option of nvp.
    """
    known = {*make_command_parser("pip")._option_string_actions} - {*_PIPS_TOO}
    for word in itertools.takewhile(lambda word: word != "--", words):
        name = word.partition("=")[0]
        own = nearest_option(name, known, _LIKE) if name[:2] == "--" else None
        if own is not None:
            yield shown(name)[1:-1], own


def _run(
    pip: Pip,
    command: PipCommand,
    selection: Selection,
    options: argparse.Namespace,
    environ: Mapping[str, str],
) -> Result:
    from ..index.pip.session import run

    report = command.options.json_report_file
    # If pip prints a document on stdout, print nothing else there.
    aside = options.json or report == "-" or command.command not in _FOR_PEOPLE
    narration = Narration(aside=aside, quiet=bool(command.options.quiet))
    outcome = run(
        pip,
        command,
        selection,
        narration,
        environ=environ,
        quiet=options.json,
    )
    for remark in outcome.remarks:
        narration.warn(remark)
    if outcome.written_variants:
        wheels = ", ".join(outcome.written_variants)
        how = (
            "; install them with: nvp pip install -r pylock.toml"
            if command.command == "lock"
            else ""
        )
        narration.warn(
            f"what pip wrote has the URLs of variant wheels, which no released pip "
            f"installs by itself: {wheels}{how}"
        )
    pins = selection.pins
    for item in outcome.stale_variants:
        narration.warn(_advice(item, pins, [*options.ours, *_words(command)]))
    for build in outcome.stale_builds:
        words = [*options.ours, *_words(command), build.best]
        line = shlex.join(["pip", "install", *_public(words)])
        narration.warn(stays_installed(build, f"nvp {line}"))
    no_install = command.options.dry_run or command.command == "download"
    narration.finish(outcome, pins, dry_run=bool(no_install))
    for taken in outcome.builds:
        if taken.lacking is not None:
            wanted = ["--every-gpu", f"{taken.project}=={taken.for_all}"]
            words = [*options.ours, *_public(_words(command)), *wanted]
            line = f": nvp {shlex.join(['pip', command.command or '', *words])}"
            narration.warn(f"{taken.lacking}{line if taken.for_all else ''}")
    for sentence in outcome.failures:
        # Print the real cause: pip may have printed another, such as a wrong hash.
        narration.warn(sentence, "error")
    if outcome.elsewhere:
        installs = command.command == "install" and not command.options.dry_run
        own = [*options.ours, *(["--upgrade"] if installs else [])]
        narration.tell_elsewhere(outcome.elsewhere, partial(_say_command, command, own))
    narration.close()
    result = _result(outcome.status, narration, outcome, command, as_json=options.json)
    prints = "-" not in (report, command.options.output_file) and not narration.unknown
    if prints and not command.options.quiet:
        result = result.replace(following=_following(options, command, outcome))
    # Without the requested label, fail although pip has succeeded.
    unused = find_unused(outcome, pins)
    return result.replace(exit_code=1) if unused and not outcome.status else result


def _following(
    options: argparse.Namespace, command: PipCommand, outcome: Outcome
) -> str | None:
    """Return the command of ``nvp`` to suggest after a command of pip.

    The result is ``None`` for commands that print data and for runs without a GPU
    package.
    """
    words = ["doctor", *(["--python", options.python] if options.python else [])]
    concerns_gpus = outcome.builds or outcome.seen or outcome.hidden
    if command.command not in (*_FOR_PEOPLE, "lock") or not concerns_gpus:
        return None
    idle = [x.project for x in outcome.builds if x.build.judgement.verdict == "cannot"]
    if outcome.status:
        asked = [item.project for item in command.asked if not item.is_constraint]
        words = ["releases", *asked[:1], *words_of(options)] if asked else words
    elif command.options.dry_run and idle and outcome.has_driver:
        words = ["releases", idle[0], *words_of(options)]
    elif command.options.dry_run and (outcome.stale_variants or outcome.stale_builds):
        return None  # pip would keep the old builds: only the warnings' commands help
    elif command.options.dry_run:
        first, *others = (x for x in options.arguments if x != "--dry-run")
        words = ["pip", first, *options.ours, *others]
    elif command.command == "lock":
        words = ["check", command.options.output_file or "pylock.toml"]
    elif command.command != "install":
        given = [x[-1] for x in command.words if x[0] in ("wheel_dir", "download_dir")]
        words = ["inspect", *(given[-1:] or ".")]
    return shlex.join(["nvp", *_public(words)])


def _say_command(command: PipCommand, own: Sequence[str], words: Sequence[str]) -> str:
    """Return the user's command line with ``words`` as its requirements."""
    without = ["index_url"] if "--index-url" in words else []
    own = [*_public(_words(command, *without)), *own]
    return shlex.join(["nvp", "pip", command.command or "", *words, *own])


def _words(command: PipCommand, *without: str) -> list[str]:
    """Return the options for pip that suggested commands keep."""
    left_out = ("requirements", "constraints", "dry_run", "json_report_file", "upgrade")
    return [
        word
        for option, *words in command.words
        if option not in (*left_out, *without)
        for word in words
    ]


def _public(words: Iterable[str]) -> Iterator[str]:
    """Yield words for pip without passwords; the URL of a proxy may lack its scheme."""
    before = ""
    for word in words:
        text, (option, equals, _) = redacted(word), word.partition("=")
        is_proxy = before in _PROXY_OPTIONS or option in _PROXY_OPTIONS
        if is_proxy and "@" in text and "://" not in text:
            start = option + equals if option in _PROXY_OPTIONS else ""
            text = f"{start}****@{text.rpartition('@')[2]}"
        yield text
        before = word


def _advice(item: StaleVariant, pins: Pins, words: Sequence[str]) -> str:
    name = f"{item.installed.project}=={item.installed.version}"
    best = f"variant {item.best}" if item.best else "the non-variant wheel"
    why = (
        "is what --label asks for" if pins.get(item.installed.project) else "fits best"
    )
    given = _public(words)
    line = shlex.join(
        ["pip", "install", *given, "--force-reinstall", "--no-deps", name]
    )
    return (
        f"{name} stays installed as variant {item.installed.label}, but {best} {why}; "
        f"to replace it: nvp {line}"
    )


def _check_installed(
    command: PipCommand, environment: Environment, environ: Mapping[str, str]
) -> list[str]:
    """Return a sentence for each installed variant that this machine cannot run."""
    from ..api import resolve
    from ..index.pip.installed import find_installed_variants

    return [
        f"{item.project} {item.version} is installed as variant {item.label}, which "
        f"does not fit this machine: {reasons[0].sentence}"
        for item in find_installed_variants(command.paths)
        if (
            reasons := resolve(
                item.metadata, environment=environment, environ=environ
            ).rejected.get(item.label)
        )
    ]


def _result(
    status: int,
    narration: Narration,
    outcome: Outcome | None = None,
    command: PipCommand | None = None,
    *,
    as_json: bool,
) -> Result:
    machine = next(
        (
            c.resolution.environment
            for c, _ in narration.selected.values()
            if c.resolution
        ),
        None,
    )
    return Result(
        exit_code=status,
        passed_on=True,
        data={
            "status": status,
            "dry_run": bool(command and command.options.dry_run),
            "environment": machine.to_dict() if machine else None,
            "chosen": [
                {
                    "name": choice.project,
                    "version": choice.version,
                    "label": label,
                    "compatible": list(choice.labels),
                    # The reasons of a hostile release take 80 MB.
                    "rejected": rejected(choice.resolution) if as_json else {},
                }
                for choice, label in narration.selected.values()
            ],
            "installed": [x.to_dict() for x in outcome.installed] if outcome else [],
            "stale": [x.to_dict() for x in outcome.stale_variants] if outcome else [],
            "builds": [x.to_dict() for x in outcome.builds] if outcome else [],
            "kept": [x.to_dict() for x in outcome.stale_builds] if outcome else [],
            "elsewhere": [x.to_dict() for x in outcome.elsewhere] if outcome else [],
            "notes": narration.notes,
            "warnings": narration.warnings,
        },
    )
