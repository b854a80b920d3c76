"""``census``: record the GPU code of a whole index in one file, and show the file."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shlex
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence

from nvidia_variant_provider.errors import InputError, ProviderError, UsageError, shown

from .arguments import add_options, choice, require_positive
from .parsers import PROGRAM, add_examples, whole_number
from .render import Result, Table, census_bar, complain, readable_size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..census.listing import Project
    from ..census.model import Outcome, ProjectSummary, ReleaseSummary
    from ..census.running import Stop, Tally

FINDINGS = 1
INTERRUPTED = 130

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = re.compile(r"([0-9]{1,15})([KMGT]?)(?:iB|B)?", re.IGNORECASE)

_COUNTS = ("wheels", "known", "inspected", "skipped", "failed", "bytes_read")
_MOST_ERRORS = 100
"""The maximum number of errors in the JSON report."""


_OPTIONS = """
index INDEX
  URL of the root of an index, directory of wheels, or directory with one for each
  project
-o, --output STORE
  SQLite file of the results; wheels in it are not read again
--project NAME...
  read only this project; may be repeated
--releases N
  read the newest N releases of each project (default: all)
--platform PATTERN...
  read only wheels for such platforms, such as '*linux*x86_64'; may be repeated
--per-release
  read one wheel for each platform and label, or all, although other Pythons have the
  same GPU code (default: %(default)s)
"""

_WORKERS = """
--jobs N
  number of local processes that read (default: one for each core)
--dask ADDRESS
  let the workers of a Dask cluster read, such as tcp://10.0.0.1:8786
"""

_LIMITS = """
--per-host N
  number of wheels of one server to read at the same time (default: %(default)s)
--max-bytes SIZE
  start no further wheel after this many bytes, such as 20G
--deadline SECONDS
  give up a wheel after this time (default: %(default)s)
"""

_STORE_ALONE = """
--export FILE
  write the store to a file: .parquet, .jsonl and .csv have a row for each target of
  each library; .json is a table of builds
--report
  print the builds of each project, and the changes between releases
--format
  form of the report (default: %(default)s)
"""


def configure_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_options(
        parser,
        _OPTIONS,
        index={"nargs": "?"},
        output={"required": True},
        releases={"type": _all_or_number},
        per_release=choice("one", "all"),
    )
    workers = parser.add_mutually_exclusive_group()
    add_options(workers, _WORKERS, jobs={"type": whole_number})
    add_options(
        parser,
        _LIMITS,
        per_host={"type": whole_number, "default": 8},
        max_bytes={"type": _size},
        deadline={"type": whole_number, "default": 900},
    )
    group = parser.add_argument_group("options that read only the store")
    add_options(group, _STORE_ALONE, format=choice("text", "html"))
    add_examples(
        parser,
        "census https://index.example/simple -o store.sqlite",
        "census /srv/wheels -o store.sqlite",
        "census --report -o store.sqlite",
    )


def execute(options: argparse.Namespace, environ: Mapping[str, str]) -> Result:
    """Run a census; ``data`` has numbers of wheels, ``bytes_read`` and ``seconds``.

    ``wheels`` is the number of selected wheels of the index, and ``known`` the number
    already in the store; the other numbers are of this run. With ``--report`` or
    ``--export``, the numbers are of the store, with ``projects`` or ``exported``.
    """
    if is_asked_for(options):
        return show_store(options)
    from ..api import census
    from ..census.running import Stop

    require_positive(options, "releases", "jobs", "per_host", "max_bytes", "deadline")
    stop = Stop()
    with census_bar() as bar, _interruptible(stop):
        observer = _Observer(bar)
        tally = census(
            options.index,
            options.output,
            projects=options.project,
            releases=options.releases,
            platforms=options.platform,
            every_wheel=options.per_release == "all",
            jobs=options.jobs,
            dask=options.dask,
            deadline=options.deadline,
            per_host=options.per_host,
            max_bytes=options.max_bytes,
            observer=observer,
            stop=stop,
            environ=environ,
        )
    failed = tally.failed or tally.unreadable
    code = FINDINGS if failed else 0
    return Result(
        exit_code=INTERRUPTED if tally.stopped == "interrupt" else code,
        data={
            **{name: getattr(tally, name) for name in _COUNTS},
            "seconds": round(tally.seconds, 3),
            "store": options.output,
        },
        text=list(_text(tally, options.output)),
        notes=list(_notes(tally)),
        errors=observer.errors,
        following=_following(tally, options.output),
    )


def _following(tally: Tally, store: str) -> str | None:
    """Return the command that shows the store, if it has wheels."""
    if tally.stopped or not (tally.inspected or tally.known):
        return None
    return shlex.join([PROGRAM, "census", "--report", "-o", store])


class _Observer:
    """Shows the progress on a terminal, and prints failures."""

    def __init__(self, bar: Callable[[int, int | None, int], None] | None) -> None:
        self._bar = bar
        self._errors: list[ProviderError] = []
        self._left_out = 0

    @property
    def errors(self) -> list[ProviderError]:
        """The first errors, and the number of the others."""
        if not self._left_out:
            return self._errors
        message = f"errors that are left out here: {self._left_out}"
        return [*self._errors, InputError(message, hint="see the warnings on stderr")]

    def listed(self, project: Project, tally: Tally) -> None:
        if project.error is not None:
            self._complain(project.error)
        self._update(tally)

    def finished(self, outcome: Outcome, tally: Tally) -> None:
        if outcome.status == "failed":
            wheel, reason = outcome.wheel, outcome.reason or "it cannot be read"
            hint = "it is read again by the next run" if outcome.may_pass else None
            self._complain(InputError(reason, path=wheel.filename, hint=hint))
        self._update(tally)

    def _complain(self, error: ProviderError) -> None:
        complain(f"warning: {error}")
        if len(self._errors) < _MOST_ERRORS:
            self._errors.append(error)
        else:
            self._left_out += 1

    def _update(self, tally: Tally) -> None:
        if self._bar is not None:
            done = tally.known + tally.read
            self._bar(done, tally.expected, tally.bytes_read)


@contextlib.contextmanager
def _interruptible(stop: Stop) -> Iterator[None]:
    """Let Ctrl-C end the run after the current wheels, and a second Ctrl-C at once."""
    from ..signals import handling

    def first(_number: int, _frame: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        stop.set()
        complain(
            "finishing the wheels that are being read; press Ctrl-C again to stop now"
        )

    with handling({signal.SIGINT: first}):
        yield


def _text(tally: Tally, store: str) -> Iterator[str]:
    wheels = "1 wheel" if tally.wheels == 1 else f"{tally.wheels} wheels"
    yield (
        f"{wheels}: {tally.inspected} inspected, {tally.skipped} skipped, "
        f"{tally.failed} failed, {tally.known} known before; the store is {store}"
    )
    yield f"{readable_size(tally.bytes_read)} read in {tally.seconds:,.1f} s"


def _notes(tally: Tally) -> Iterator[str]:
    if tally.stopped is not None:
        reason = {"interrupt": "interrupted", "max-bytes": "--max-bytes is reached"}
        yield f"{reason[tally.stopped]}; run the same command again to go on"


def _all_or_number(text: str) -> int | None:
    return None if text == "all" else whole_number(text)


def _size(text: str) -> int:
    match = _SIZE.fullmatch(text)
    if match is None:
        message = f"{shown(text)} is not a size such as 500M or 20G"
        raise argparse.ArgumentTypeError(message)
    return int(match[1]) * _UNITS[match[2].upper()]


def is_asked_for(options: argparse.Namespace) -> bool:
    """Return whether to show the store without reading an index.

    :raises UsageError: an index is also named, or no action is requested.
    """
    shows = options.report or options.export is not None
    if shows and options.index is not None:
        message = "--report and --export read only the store"
        raise UsageError(message, hint="leave out the index, or read it first")
    if not shows and options.index is None:
        hint = "name one, or give --report or --export"
        raise UsageError("there is no index to read", hint=hint)
    if options.format != "text" and not options.report:
        raise UsageError("--format is for --report", hint="give --report as well")
    return shows


def show_store(options: argparse.Namespace) -> Result:
    """Export the store, print its report, or do both."""
    from ..census.report import count_wheels, export, summarize
    from ..census.store import Store
    from ..signals import count_input

    with contextlib.suppress(OSError, ValueError):
        count_input(options.output, os.path.getsize(options.output))
    with Store(options.output, create=False) as store, store.intact():
        data: dict[str, object] = {**count_wheels(store), "store": options.output}
        text: list[str | Table] = []
        if options.export is not None:
            rows = export(store, options.export)
            data["exported"] = {"path": options.export, "rows": rows}
            if not options.report:
                count = "1 row" if rows == 1 else f"{rows} rows"
                text.append(f"{options.export}: {count} written")
        if options.report:
            projects = list(summarize(store))
            data["projects"] = [item.to_dict() for item in projects]
            text += _report(options.format, projects)
    return Result(data=data, text=text, verbatim=options.format == "html")


def _report(form: str, projects: Sequence[ProjectSummary]) -> Iterator[str | Table]:
    if form == "html":
        from ..census.report import census_page

        yield from census_page(projects)
        return
    for number, project in enumerate(projects):
        if number:
            yield ""
        yield f"{project.project}: CUDA {', '.join(project.cuda) or 'unknown'}"
        builds = project.with_gpu_code
        if builds:
            header = (
                *("Release", "Build", "Platform", "CUDA"),
                *("Oldest", "Newest", "PTX", "Changes"),
            )
            yield Table(header=header, rows=[_row(item) for item in builds])
        others = len(project.releases) - len(builds)
        if others:
            yield f"{others} more without kernels, skipped or failed"
    if not projects:
        yield "The store has no wheel."


def _row(item: ReleaseSummary) -> tuple[str, ...]:
    machine_code = _numbers(item, "real")
    ptx = _numbers(item, "virtual")
    changes = [f"+{target}" for target in item.gained]
    changes += [f"-{target}" for target in item.lost]
    return (
        item.version,
        item.label or "-",
        item.platform.partition(".")[0],
        item.cuda or "-",
        machine_code[0] if machine_code else "-",
        machine_code[-1] if machine_code else "-",
        ", ".join(ptx) or "-",
        " ".join(changes),
    )


def _numbers(item: ReleaseSummary, kind: str) -> list[str]:
    ending = f"_{kind}"
    return [t.removesuffix(ending) for t in item.targets if t.endswith(ending)]
