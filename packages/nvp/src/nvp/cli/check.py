"""``check``: check whether pinned releases run on machines."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nvidia_variant_provider.errors import (
    ProviderError,
    UsageError,
    printable,
    redacted,
)
from nvidia_variant_provider.machine.reasons import NO_DEVICE

from .arguments import (
    add_machine_options,
    add_options,
    choice,
    detection_errors,
    find_environment,
    refuse_project,
    words_of,
)
from .parsers import PROGRAM, add_examples
from .render import Result, progress_bar, terminal_width, wrap_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..checking.comparing import CheckDifferences
    from ..checking.model import CheckReport
    from ..inventories.model import Machine

_OPTIONS = """
files FILE...
  pylock.toml, uv.lock, poetry.lock, pdm.lock, Pipfile.lock, a requirements file, the
  output of pip freeze or pip inspect, a script with inline metadata, or - for stdin
--python ENV
  check an environment, given by its directory or an interpreter
--extra NAME...
  check with this extra; without --extra and --group, all choices that exclude each
  other are checked
--group NAME...
  check with this dependency group
--diff
  compare the files OLD and NEW; the exit code is 1 if a machine loses something
--suggest
  print the newest releases that run instead, as lines of a requirements file
--strict
  exit with 1 also if something is unknown
--format
--every-gpu
"""

_TARGET = """
--fleet INVENTORY...
  check for each machine of this inventory, in any form that fleet reads; may be
  repeated
--platform
--python-version VERSION
  version of Python, such as 3.12 (default: this one, if the file is for it)
"""

_ASKING = """
--offline
  send no requests; use only local data
--inspect
  read the GPU code of wheels that would be unknown
-i, --index-url URL
  index for packages that have no URL in the file (default: pip's)
--extra-index-url
"""


def configure_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_options(
        parser,
        _OPTIONS,
        files={"nargs": "*"},
        format=choice("text", "json", "sarif", "github", "html"),
    )
    add_options(parser.add_argument_group("target"), _TARGET)
    add_options(parser.add_argument_group("evidence"), _ASKING)
    add_machine_options(parser)
    add_examples(
        parser,
        "check uv.lock",
        "check requirements.txt --cuda-driver 12.8 --sm-arch 7.0 --suggest",
        "check uv.lock --fleet nodes.json",
        "check old.lock new.lock --diff --fleet nodes.json",
        "check --python .venv",
    )


def execute(options: argparse.Namespace, environ: Mapping[str, str]) -> Result:
    """Check the pins; ``data`` has ``requirements``, ``machines`` and other keys.

    With ``--diff``, ``data`` is about the new file, and also has ``changes``.
    """
    from ..api import check
    from ..checking.text import WIDTH, text_lines

    _refuse(options)
    machines, errors = _find_machines(options, environ)
    given: dict[str, Any] = {
        **machines,
        "extras": options.extra,
        "groups": options.group,
        "platforms": options.platform,
        "python_version": options.python_version,
        "every_gpu": options.every_gpu,
        "offline": options.offline,
        "inspect": options.inspect,
        "suggest": options.suggest,
        "index_url": options.index_url,
        "extra_index_urls": options.extra_index_url,
        "environ": environ,
        "watch": progress_bar,
    }
    if options.diff:
        from ..checking.comparing import compare

        old, new = (check(path, **given) for path in options.files)
        return _compared(options, compare(old, new), errors)
    report = check(*options.files, python=options.python, **given)
    if options.format == "text":
        width = terminal_width(sys.stdout) or WIDTH
        text = _wrapped(text_lines(report, width=width), width)
    else:
        text = _document(options.format, report)
    code = 1 if report.fails(strict=options.strict) else 0
    following = _following(options, report, fails=bool(code))
    return Result(
        exit_code=max([code, *(error.exit_code for error in errors)]),
        data=report.to_dict(),
        text=text,
        verbatim=True,
        annotations=options.format == "github",
        as_json=options.format == "json",
        notes=[*report.notes, *map(str, errors)],
        following=following if options.format == "text" else None,
        errors=errors,
    )


def _following(options: argparse.Namespace, report: CheckReport, *, fails: bool) -> str:
    """Return the next step, with a command that can be copied."""
    words = [redacted(word) for word in options.ours if word != "--diff"]
    if options.diff:
        words.remove(redacted(options.files[0]))  # The command is for the new file.
    line = shlex.join([PROGRAM, "check", *words])
    is_named = bool(options.fleet or words_of(options) or options.diff)
    drivers = [group.environment.cuda_driver_version for group in report.machines]
    if not (is_named or any(drivers)) and any(file.pins for file in report.files):
        return f"name a machine with a GPU: {line} --cuda-driver 12.8 --sm-arch 9.0"
    bad = [
        item
        for file in report.files
        for item in file.pins
        if item.worst.verdict in ("cannot", "unknown")
    ]
    if bad and all(x.pin.is_open and x.worst.verdict == "unknown" for x in bad):
        return f"pin a release that runs: {_about(options, bad[0].pin.name)}"
    if fails and options.suggest and not options.diff:
        if report.suggestions and not any(x.lines for x in report.suggestions):
            project = report.suggestions[0].name.partition(",")[0]
            return f"to see why no release runs: {_about(options, project)}"
        return "replace the pins that cannot run, and check the file again"
    if fails:
        return f"to find releases that run: {line} --suggest"
    if report.unknown and not (options.inspect or options.offline):
        return f"to read the GPU code of unknown builds: {line} --inspect"
    return "nothing to do; to check a cluster too: add --fleet nodes.json"


def _about(options: argparse.Namespace, project: str) -> str:
    """Return the command that lists the releases of a project for the same machines."""
    if options.fleet:
        words = ["fleet", *options.fleet, "--project", project]
    else:
        tags = [word for tag in options.platform for word in ("--platform", tag)]
        words = ["releases", project, *tags, *words_of(options)]
    if options.index_url:
        words += ["--index-url", options.index_url]
    return shlex.join([PROGRAM, *map(redacted, words)])


def _compared(
    options: argparse.Namespace,
    differences: CheckDifferences,
    errors: Sequence[ProviderError],
) -> Result:
    from ..checking.comparing import difference_lines
    from ..checking.text import WIDTH

    code = 1 if differences.fails(strict=options.strict) else 0
    width = terminal_width(sys.stdout) or WIDTH
    return Result(
        exit_code=max([code, *(error.exit_code for error in errors)]),
        data=differences.to_dict(),
        text=_wrapped(difference_lines(differences), width),
        verbatim=True,
        as_json=options.format == "json",
        notes=[*differences.new.notes, *map(str, errors)],
        following=_following(options, differences.new, fails=bool(code)),
        errors=errors,
    )


def _wrapped(lines: Iterable[str], width: int) -> list[str]:
    return [x for line in lines for x in wrap_line(printable(line), width, hang="    ")]


def _document(form: str, report: CheckReport) -> list[str]:
    """Return the report as lines in a form such as HTML; empty for the JSON report."""
    from ..checking.text import RULES, find_findings, html_lines
    from ..lint.output import as_github, as_sarif

    if form == "sarif":
        return as_sarif(find_findings(report), RULES, page="how-to/check-lock-files/")
    if form == "github":
        return as_github(find_findings(report))
    return html_lines(report) if form == "html" else []


def _refuse(options: argparse.Namespace) -> None:
    """Reject options that contradict each other, and files that cannot be checked."""
    hint = "see nvp check --help"
    if options.diff and (len(options.files) != 2 or options.python):
        message = "--diff compares two files: OLD and NEW"
        raise UsageError(message, hint="give both, and no --python")
    if options.diff and options.format not in ("text", "json"):
        message = "--diff prints text or a JSON report"
        raise UsageError(message, path="--format", hint="leave one of them out")
    if not options.files and options.python is None:
        message = "there is nothing to check"
        hint = "name a lock file, or give --python ENV"
        raise UsageError(message, hint=hint)
    for file in options.files:
        if os.path.isdir(file):
            hint = (
                f"name a file in it; for an environment: --python {shlex.quote(file)}"
            )
            raise UsageError("this is a directory", path=file, hint=hint)
        if "://" in file:
            message = "a file on a server is not read"
            raise UsageError(message, path=file, hint="download the file")
        refuse_project(file, "releases")
    if options.files.count("-") > 1:
        raise UsageError("stdin is named twice", hint="name a file for one")
    if options.fleet and words_of(options):
        message = f"--fleet and {words_of(options)[0]} contradict each other"
        raise UsageError(message, hint=f"give one of them; {hint}")


def _find_machines(
    options: argparse.Namespace, environ: Mapping[str, str]
) -> tuple[dict[str, Any], Sequence[ProviderError]]:
    """Return the machines, as arguments of `check`, and detection errors."""
    if not options.fleet:
        environment = find_environment(options, environ)
        if options.diff and not words_of(options) and environment.reason == NO_DEVICE:
            # A CI runner has no GPU: compare the files for all driver-GPU pairs.
            return {"machines": _all_machines()}, ()
        return {"environment": environment}, detection_errors(environment)
    from ..inventories.reading import read_inventories

    machines, errors = read_inventories(options.fleet)
    if not machines:
        raise errors[0]
    return {"machines": machines}, errors


def _all_machines() -> list[Machine]:
    """Return a machine for each driver-GPU pair."""
    from ..inventories.model import Machine
    from ..matrix.cells import list_pairs, machine

    return [
        Machine(
            name=f"CUDA {cuda}, compute capability {capability}",
            environment=machine(cuda, capability),
        )
        for cuda, capability in list_pairs()
    ]
