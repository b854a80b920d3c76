"""Run the user's pip with the local index in place of the user's indexes.

A run has four steps: `prepare` the arguments and files, serve the index, run pip, and
explain the result while the index is still serving.
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ...files import resource_file
from ..http.client import Client
from ..selection.options import Selection
from ..selection.shown import ShownRelease
from ..server.local_index import LocalIndex
from ..server.responses import PROOF, Access
from .command import PipCommand
from .hooks import HOOKS, PLACES
from .installed import (
    Installed,
    PipRun,
    StaleBuild,
    StaleVariant,
    find_alternatives,
    find_newer_elsewhere,
    find_sources,
    find_stale_builds,
    find_stale_variants,
    find_wheels_in,
    read_report,
)
from .process import Pip
from .settings import make_settings

if TYPE_CHECKING:
    from nvidia_variant_provider.machine.environment import CudaVersion

    from ...builds.stepping_back import PassedOver
    from ...builds.vendors import Elsewhere
    from .explain import InstalledBuild
    from .locks import LockCopies
    from .written import Written

logger = logging.getLogger(__name__)


class Narrator(Protocol):
    """Receives the events of a run of pip."""

    def start(self, places: Mapping[str, str]) -> None:
        """Report the copies of lock files, and the file behind each copy."""

    def pick(self, release: ShownRelease, label: str | None) -> None:
        """Report which wheel of a release pip downloads; called from another thread."""

    def wait(self, project: str) -> None:
        """Report a project whose page is slow; called from another thread."""

    def warn(self, message: str) -> None:
        """Report ignored options and problems; called from any thread."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """The result of a run of pip.

    :param status: the exit status of pip.
    :param installed: the distributions that pip installed or, in a dry run, would
        install.
    :param stale_variants: outdated variants that remain installed.
    :param stale_builds: outdated regular builds that remain installed.
    :param seen: every shown release with variants.
    :param builds: the installed regular wheels of projects with judged builds.
    :param has_driver: whether builds were judged for a machine with an NVIDIA driver.
    :param written_variants: the variant wheels in the requested report or lock file,
        such as ``torch 2.9.0 (cu128)``.
    :param remarks: sentences on the files that pip wrote, and on projects to build from
        source.
    :param labels: the labels of each project, if the user requested a label.
    :param alternatives: requirements that the driver supports, such as ``jax[cuda12]``.
    :param failures: the causes of a failure, such as why no build has the given hash.
    :param hidden: after a failure, the hidden releases of each project.
    :param elsewhere: newer builds on vendors' own indexes, which were not read.
    """

    status: int
    installed: tuple[Installed, ...] = ()
    stale_variants: tuple[StaleVariant, ...] = ()
    stale_builds: tuple[StaleBuild, ...] = ()
    seen: tuple[ShownRelease, ...] = ()
    builds: tuple[InstalledBuild, ...] = ()
    has_driver: bool = False
    written_variants: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    labels: Mapping[str, frozenset[str]] = field(default_factory=dict)
    failures: tuple[str, ...] = ()
    alternatives: tuple[str, ...] = ()
    hidden: Mapping[str, tuple[PassedOver, ...]] = field(default_factory=dict)
    elsewhere: tuple[Elsewhere, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Prepared:
    """The arguments and files for pip.

    :param variables: the variables that differ from the user's.
    :param places: the user's file behind each copy.
    :param copies: the lock files that pip gets as copies.
    :param written: writes pip's report or lock file for the user.
    :param report: the path of pip's report, if any.
    """

    arguments: list[str]
    variables: dict[str, str]
    places: Mapping[str, str]
    copies: LockCopies | None
    written: Written | None
    report: str | None


def run(
    pip: Pip,
    command: PipCommand,
    selection: Selection,
    narrator: Narrator,
    *,
    environ: Mapping[str, str],
    quiet: bool,
) -> Outcome:
    """Run pip to completion.

    :param command: a command that uses indexes.
    :param environ: the environment variables of pip.
    :param quiet: send pip's own output to stderr.
    :raises InputError: pip cannot be run.
    """
    session = _Session(
        pip=pip,
        command=command,
        selection=selection,
        environ=environ,
        quiet=quiet,
        local_index=_make_index(pip, command, selection, narrator, environ),
    )
    with (
        closing(session.local_index),
        tempfile.TemporaryDirectory(prefix="nvidia-variant-provider-") as folder,
    ):
        prepared = session.prepare(Path(folder))
        if command.command != "list":  # `pip list` needs an index only with --outdated
            narrator.start(prepared.places)
        with session.local_index.serve():
            if refusal := session.refuse():
                return Outcome(status=1, failures=(refusal,))
            try:
                done = session.run(prepared)
                outcome = session.explain(done, prepared)
            except (KeyboardInterrupt, SystemExit):
                if prepared.written is not None:
                    prepared.written.restore_urls()
                raise
    if sum("+" in item.version for item in outcome.installed) > 1:
        from .explain import find_mixed

        for sentence in find_mixed(outcome.installed):
            narrator.warn(sentence)
    return outcome


def _make_index(
    pip: Pip,
    command: PipCommand,
    selection: Selection,
    narrator: Narrator,
    environ: Mapping[str, str],
) -> LocalIndex:
    """Create the local index that replaces pip's indexes."""
    settings = make_settings(command, environ, trusts_pages=True)
    return LocalIndex(
        Client(
            settings,
            ask_credentials=lambda url: pip.ask_credentials(url, command),
        ),
        selection,
        Access(local=True, hosts=()),
        on_pick=narrator.pick,
        on_wait=narrator.wait,
        warn=narrator.warn,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Session:
    """The steps of one run of pip."""

    pip: Pip
    command: PipCommand
    selection: Selection
    environ: Mapping[str, str]
    quiet: bool
    local_index: LocalIndex

    def prepare(self, folder: Path) -> _Prepared:
        """Prepare the replacements for the user's arguments and files.

        :param folder: the directory for copies of files, and for pip's report.
        """
        command = self.command
        copied: dict[str, str] = {}
        copies = self._make_copies(folder, copied)
        arguments = [word for _, *words in command.words for word in words]
        report = lock = None
        if command.command == "install":
            report = str(folder / "report.json")
            arguments += ["--report", report]
        elif command.command == "lock":
            lock = str(folder / "pylock.toml")
            if command.options.output_file == "-":
                # For both, paths in the lock file start at the current directory.
                arguments += ["--output", "pylock.toml"]
        places = _find_places(command, self.local_index, copies=copies, lock=lock)
        path = folder / "places.json"
        path.write_text(json.dumps(places), encoding="utf-8")
        hooks = resource_file("index", "pip", "hooks.py")
        return _Prepared(
            # After "--", pip takes no argument for an option, as on the user's command
            # line, where a script may have put names that it does not trust.
            arguments=[command.command or "", *arguments, "--", *command.positional],
            variables={PLACES: str(path), HOOKS: hooks},
            places={b: a for a, b in copied.items()},
            copies=copies,
            written=self._make_written(report, lock),
            report=report,
        )

    def refuse(self) -> str | None:
        """Return why pip is not started, or ``None``; the index must be serving."""
        if self.selection.pins.everywhere is None:
            return None
        from .explain import explain_unknown_label

        pins = self.selection.pins
        return explain_unknown_label(self.command.asked, pins, self.local_index)

    def run(self, prepared: _Prepared) -> PipRun:
        """Run pip; the index must be serving."""
        if prepared.copies is not None:
            judges = not self.selection.unchecked
            prepared.copies.fill(self.pip.python, self.environ, judges=judges)
        downloads = self.command.command == "download"
        folder = self.command.options.download_dir if downloads else None
        before = find_wheels_in(folder)
        status = self.pip.run(
            prepared.arguments,
            {**self.environ, **prepared.variables},
            quiet=self.quiet,
            mark=f"{PLACES}={prepared.variables[PLACES]}",  # of this run alone
        )
        logger.info("pip ended with status %d", status)
        return PipRun(
            command=self.command,
            local_index=self.local_index,
            python=self.pip.python,
            environ=self.environ,
            status=status,
            installed=()
            if status
            else tuple(
                item
                for name, item in find_wheels_in(folder).items()
                if name not in before
            )
            or read_report(prepared.report),
        )

    def explain(self, done: PipRun, prepared: _Prepared) -> Outcome:
        """Explain the result of pip, and correct the files that it wrote."""
        builds: tuple[InstalledBuild, ...] = ()
        failures: tuple[str, ...] = ()
        hidden: Mapping[str, tuple[PassedOver, ...]] = {}
        if done.status != 0:
            from .explain import explain_failure, find_hidden

            failures = explain_failure(done)
            hidden = find_hidden(done)
        elif done.judged:
            from .explain import explain_builds

            builds = explain_builds(done)
        failures = (*failures, *self.local_index.refusals)
        stays = done.status == 0 and self.command.command == "install"
        stale_variants = find_stale_variants(done) if stays else ()
        stale_builds = find_stale_builds(done) if stays else ()
        sources = find_sources(done)
        written = prepared.written
        if written is not None:
            written.restore(succeeded=done.status == 0)
        return Outcome(
            # A refused download is a failure, whatever the status of pip.
            status=1 if self.local_index.refusals else done.status,
            installed=() if self.command.command == "download" else done.installed,
            stale_variants=stale_variants,
            stale_builds=stale_builds,
            seen=tuple(self.local_index.all_choices()),
            builds=builds,
            # Read `judged` last, because the steps above may judge more builds.
            has_driver=done.judged and self._driver() is not None,
            written_variants=written.variants if written else (),
            remarks=(*(written.remarks if written else ()), *sources),
            labels=self.local_index.asked_labels(),
            alternatives=self._find_alternatives(done, builds),
            failures=failures,
            hidden=hidden,
            elsewhere=self._find_elsewhere(done, sources),
        )

    def _find_elsewhere(
        self, done: PipRun, sources: Sequence[str]
    ) -> tuple[Elsewhere, ...]:
        from ...knowledge.tables import find_vendors
        from .explain import find_requirements

        # If pip failed, the only build may be on the index of a vendor.
        names = (item.project for item in self.command.asked)
        lacks = done.status != 0 and any(map(find_vendors, names))
        if self.selection.vendor_indexes or not (done.judged or sources or lacks):
            return ()
        return find_newer_elsewhere(done, self.selection, find_requirements(done))

    def _find_alternatives(
        self, done: PipRun, builds: Sequence[InstalledBuild]
    ) -> tuple[str, ...]:
        driver = self._driver() if any(item.note for item in builds) else None
        return () if driver is None else tuple(find_alternatives(done, driver))

    def _driver(self) -> CudaVersion | None:
        return self.selection.found().cuda_driver_version

    def _make_copies(self, folder: Path, copied: dict[str, str]) -> LockCopies | None:
        """Return the object that copies the user's lock files, if there are any.

        :param copied: receives the path of each copy, keyed by the original path.
        """
        options = self.command.options
        files = [*options.requirements, *(x[0] for x in options.dependency_groups)]
        if not any(file.partition("[")[0].endswith(".toml") for file in files):
            return None
        from .locks import LockCopies

        return LockCopies(
            local_index=self.local_index,
            folder=folder,
            paths=self.command.paths,
            copied=copied,
        )

    def _make_written(self, report: str | None, lock: str | None) -> Written | None:
        """Return the object that writes the requested report or lock file, if any.

        :param report, lock: the path to which pip writes its own file.
        :raises InputError: the user's path cannot be written.
        """
        options = self.command.options
        path = report or lock
        place = options.output_file if lock else options.json_report_file
        if path is None or not place:
            return None
        from .written import Written

        return Written(
            self.local_index,
            sys.stderr if self.quiet else sys.stdout,  # the stream of pip's output
            self.pip.python,
            self.environ,
            path=path,
            place=place,
            is_lock=lock is not None,
            adds=not (self.command.limits_hashes or options.limits_dates),
        )


def _find_places(
    command: PipCommand,
    local_index: LocalIndex,
    *,
    copies: LockCopies | None,
    lock: str | None,
) -> dict[str, object]:
    """Return the object for `PLACES`, which makes pip use the local index.

    :param copies: creates the copies of lock files; ``None`` without lock files.
    :param lock: the path to which pip writes a lock file.
    """
    pairs = command.credentials
    files = {}
    if copies is not None:
        options = command.options
        groups = [(path, group) for path, group in options.dependency_groups]
        for path, *group in [*((x,) for x in options.requirements), *groups]:
            if copy := copies.add(path, *group):
                files[path] = copy
    joined = local_index.join_links(command.find_links)
    return {
        "local": local_index.url,
        "indexes": {x: local_index.add_index(x, pairs.get(x)) for x in command.indexes},
        "more": [] if command.options.no_index else local_index.add_vendors(),
        "joined": [*joined],
        "links": {
            x: joined.get(x) or [local_index.add_links(x, pairs.get(x))]
            for x in command.find_links
        },
        "files": files,
        "lock": lock,
        "pages": local_index.pages_of_pip,
        "headers": {PROOF: local_index.token} if local_index.token else {},
        "known": local_index.known,  # after all places are added
    }
