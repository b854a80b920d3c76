"""Running the user's pip, with the local index instead of its indexes."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from packaging.utils import canonicalize_name

from ..http.client import Client
from ..http.urls import redacted
from ..selection.choice import Choice
from ..selection.decisions import JudgedPage
from ..selection.options import Selection
from ..server.access import Access
from ..server.local_index import LocalIndex
from .command import Pip, PipCommand
from .named_labels import read_lines, requires_hashes
from .redirecting import is_given, redirect, remote_files
from .reports import Installed, read_report
from .settings import make_settings

if TYPE_CHECKING:
    from .installed import Stale
    from .locking import LockCopies
    from .taking import Kept, Taken

__all__ = ["Installed", "Narrator", "Outcome", "run"]

logger = logging.getLogger(__name__)


class Narrator(Protocol):
    """Is told what happens while pip runs."""

    def start(self, places: Mapping[str, str]) -> None:
        """Tell the URL of each local index, and the index that it stands for."""

    def pick(self, choice: Choice, label: str | None) -> None:
        """Tell a build that pip fetches; called from another thread."""

    def warn(self, message: str) -> None:
        """Tell what is ignored, or goes wrong; called from any thread."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """The result of a run of pip.

    :param status: the exit status of pip.
    :param installed: what pip installed or, in a dry run, would have installed.
    :param stale: what stays installed although another build is better.
    :param seen: every release with variants that pip was shown.
    :param taken: the ordinary wheels of projects whose builds were judged.
    :param kept: the ordinary builds that stay installed although another one fits.
    :param judged: builds of a project that pip looked at were judged.
    :param written_variants: the variant wheels in the report or lock file that the
        user asked for, such as ``torch 2.9.0 (cu128)``.
    :param remarks: sentences about what does not last in these files.
    :param labels: the labels of each project for which the user asked for one.
    :param failures: the true reasons of a failure, such as why no build has the hash
        that the user gave.
    :param has_driver: they were judged for a machine with an NVIDIA driver.
    """

    status: int
    installed: tuple[Installed, ...] = ()
    stale: tuple[Stale, ...] = ()
    seen: tuple[Choice, ...] = ()
    taken: tuple[Taken, ...] = ()
    kept: tuple[Kept, ...] = ()
    judged: bool = False
    has_driver: bool = False
    written_variants: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    labels: Mapping[str, frozenset[str]] = field(default_factory=dict)
    failures: tuple[str, ...] = ()


def run(
    pip: Pip,
    command: PipCommand,
    selection: Selection,
    narrator: Narrator,
    *,
    environ: Mapping[str, str],
    quiet: bool,
    asks: bool,
) -> Outcome:
    """Run pip to its end.

    :param command: a command that uses indexes.
    :param environ: the environment variables that pip gets.
    :param quiet: send pip's own output to stderr.
    :param asks: there is a person whom pip can ask for credentials.
    :raises InputError: pip cannot be run.
    """
    options = command.options
    # A variable cannot override a proxy of a configuration file with no proxy: give
    # pip an empty --proxy, and let everything go through the local index.
    fixed_proxy = bool(options["proxy"]) and not is_given(command, environ, "proxy")
    local_index = LocalIndex(
        Client(
            make_settings(command, environ, trusts_pages=True),
            ask_credentials=lambda url: pip.ask_credentials(url, options),
        ),
        selection,
        Access(
            direct=not fixed_proxy, local=True, asks=asks and not options["no_input"]
        ),
        on_pick=narrator.pick,
        warn=narrator.warn,
    )
    with tempfile.TemporaryDirectory(prefix="nvidia-variant-provider-") as name:
        folder = Path(name)
        paths: dict[str, str] = {}
        copies = _make_copies(command, local_index, folder, paths)
        arguments, variables = redirect(
            command, environ, local_index, folder, paths, copies=copies
        )
        for url in remote_files(command):
            narrator.warn(
                f"pip reads {redacted(url)} itself, so variants are not selected from "
                "the indexes it names; download the file and pass its path"
            )
        if fixed_proxy:
            arguments += ["--proxy", ""]
        wanted = options["json_report_file"]
        lock = options["output_file"] if command.command == "lock" else None
        written = None
        report = None
        if wanted is not None or lock is not None:
            from .written import Written

            # pip prints to this stream.
            stream = sys.stderr if quiet else sys.stdout
            written = Written(
                local_index, stream, pip.python, environ, report=wanted, lock=lock
            )
            arguments += written.arguments(folder)
            report = written.report
        elif command.command == "install":
            # It is read here.
            report = str(folder / "report.json")
            arguments += ["--report", report]
        if command.command != "list":  # It reads an index only with --outdated.
            narrator.start(
                local_index.places | {copy: path for path, copy in paths.items()}
            )
        with local_index.serve():
            if refusals := _refuse(command, selection, local_index):
                return Outcome(status=1, failures=refusals)
            if copies is not None:
                copies.fill(pip.python, environ)
                if not selection.unchecked:
                    copies.judge()
            status = pip.run(
                [command.command or "", *arguments, *command.positional],
                {**environ, **variables},
                quiet=quiet,
                take=written.take if written and written.is_lock_printed else None,
            )
            logger.info("pip ended with status %d", status)
            outcome = (
                _explain_failure(command, local_index, status, pip.python, environ)
                if status
                else _explain(command, read_report(report), local_index)
            )
            if written is not None:
                if status == 0:
                    written.restore()
                written.flush()
                outcome = replace(
                    outcome,
                    written_variants=written.variants,
                    remarks=tuple(written.remarks),
                )
    if sum("+" in item.version for item in outcome.installed) > 1:
        from .mixing import find_mixed

        for sentence in find_mixed(outcome.installed):
            narrator.warn(sentence)
    judged = any(page.decisions.files for page in local_index.all_judged())
    machine = selection.machine() if judged and selection.machine else None
    return replace(
        outcome,
        seen=tuple(local_index.all_choices()),
        judged=judged,
        labels=local_index.asked_labels(),
        has_driver=machine is not None and machine.cuda_driver_version is not None,
    )


def _explain(
    command: PipCommand, installed: tuple[Installed, ...], local_index: LocalIndex
) -> Outcome:
    """Find out why pip took what it took; the local index still serves."""
    pages = _group(local_index)
    asked = [*command.positional, *read_lines(command)]
    outcome = Outcome(status=0, installed=installed)
    if any(page.decisions.files for page in local_index.all_judged()):
        from .taking import explain_taken

        taken = explain_taken(installed, lambda name: pages.get(name, []), asked)
        outcome = replace(outcome, taken=taken)
    fresh = {item.project for item in installed}
    if command.command != "install" or fresh.issuperset(map(canonicalize_name, asked)):
        return outcome
    from .installed import find_stale
    from .taking import find_kept

    target = command.options["target_dir"]
    paths = [target] if target else [p for p in command.paths if os.path.isdir(p)]
    return replace(
        outcome,
        stale=find_stale(command, installed, paths, local_index.find_choices),
        kept=find_kept(asked, fresh, paths, local_index.find_judged),
    )


def _group(local_index: LocalIndex) -> dict[str, list[JudgedPage]]:
    """Return the judged pages of each project, one for each index."""
    pages: dict[str, list[JudgedPage]] = {}
    for page in local_index.all_judged():
        pages.setdefault(page.project, []).append(page)
    return pages


def _refuse(
    command: PipCommand, selection: Selection, local_index: LocalIndex
) -> tuple[str, ...]:
    """Say why pip is not started."""
    if selection.pins.everywhere is None:
        return ()
    from .unknown_label import refuse_unknown_label

    why = refuse_unknown_label(command, selection.pins, local_index)
    return () if why is None else (why,)


def _explain_failure(
    command: PipCommand,
    local_index: LocalIndex,
    status: int,
    python: str,
    environ: Mapping[str, str],
) -> Outcome:
    """Find the reasons that pip does not know; the local index still serves."""
    failures: tuple[str, ...] = ()
    if requires_hashes(command):
        from .pinned_hashes import explain_pinned_hashes

        failures = explain_pinned_hashes(command, local_index)
    pages = _group(local_index)
    if not failures and pages:
        from .refusing import explain_refused

        asked = [*command.positional, *read_lines(command)]
        failures = explain_refused(
            asked, lambda name: pages.get(name, []), python, environ
        )
    return Outcome(status=status, failures=failures)


def _make_copies(
    command: PipCommand, local_index: LocalIndex, folder: Path, copied: dict[str, str]
) -> LockCopies | None:
    """Return what makes copies of lock files, if the user gives any.

    :param copied: gets the path of each file that is copied, and of the copy.
    """
    files: Sequence[str] = command.options["requirements"] or ()
    if not any(file.partition("[")[0].endswith(".toml") for file in files):
        return None
    from .locking import LockCopies

    return LockCopies(
        local_index=local_index,
        folder=folder,
        paths=command.paths,
        copied=copied.__setitem__,
    )
