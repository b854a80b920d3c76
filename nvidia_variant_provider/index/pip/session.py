"""Running the user's pip, with the local index instead of its indexes."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from packaging.utils import canonicalize_name

from ..http.client import Client
from ..http.urls import is_http, redacted
from ..selection.builds import JudgedPage
from ..selection.options import Selection
from ..selection.repository import Choice
from ..server.access import Access
from ..server.callers import with_token
from ..server.local_index import LocalIndex
from .command import Pip, PipCommand
from .named_labels import read_lines, requires_hashes
from .reports import Installed, read_report
from .requirements_files import Places, rewrite
from .settings import make_settings

if TYPE_CHECKING:
    from .installed import InstalledVariant
    from .locking import LockCopies
    from .taking import Kept, Taken

__all__ = ["Installed", "Narrator", "Outcome", "Stale", "run"]

logger = logging.getLogger(__name__)

# The options that tell pip where to look; they are replaced.
_PLACES = {"index_url", "extra_index_urls", "find_links", "no_index", "proxy"}
_FILES = {
    "requirements": "PIP_REQUIREMENT",
    "constraints": "PIP_CONSTRAINT",
    "build_constraints": "PIP_BUILD_CONSTRAINT",
}
_LOCAL = "127.0.0.1,localhost"


class Narrator(Protocol):
    """Is told what happens while pip runs."""

    def start(self, places: Mapping[str, str]) -> None:
        """Tell the URL of each local index, and the index that it stands for."""

    def pick(self, choice: Choice, label: str | None) -> None:
        """Tell a build that pip fetches; called from another thread."""

    def warn(self, message: str) -> None:
        """Tell what is ignored, or goes wrong; called from any thread."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stale:
    """A variant that stays installed although another one is better.

    :param best: the better label; ``None`` for the non-variant wheel.
    """

    installed: InstalledVariant
    best: str | None

    def to_dict(self) -> dict[str, object]:
        """Keys: ``name``, ``version``, ``label``, ``best``."""
        return {
            "name": self.installed.project,
            "version": self.installed.version,
            "label": self.installed.label,
            "best": self.best,
        }


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
    fixed_proxy = bool(options["proxy"]) and not _is_given(command, environ, "proxy")
    local_index = LocalIndex(
        Client(
            make_settings(command, environ),
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
        arguments, variables = _redirect(
            command, environ, local_index, folder, paths, copies=copies
        )
        for url in _remote_files(command):
            narrator.warn(
                f"pip reads {redacted(url)} itself, so variants are not selected from "
                "the indexes it names; download the file and pass its path"
            )
        if fixed_proxy:
            arguments += ["--proxy", ""]
        # pip writes its report to a file in any case: it is read here, and gets the
        # URLs of the real files before the user gets it.
        wanted = options["json_report_file"]
        report = wanted
        if command.command == "install" and wanted in (None, "-"):
            report = str(folder / "report.json")
            arguments += ["--report", report]
        if command.command != "list":  # It reads an index only with --outdated.
            narrator.start(
                local_index.places | {copy: path for path, copy in paths.items()}
            )
        written = None
        if command.command == "lock" or wanted is not None:
            from .written import Written

            # pip prints to this stream.
            stream = sys.stderr if quiet else sys.stdout
            written = Written(local_index, stream, pip.python, environ)
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
                take=written.take if written and _prints_lock(command) else None,
            )
            logger.info("pip ended with status %d", status)
            outcome = (
                _explain_failure(command, local_index, status)
                if status
                else _explain(command, read_report(report), local_index)
            )
            if written is not None:
                lock = options["output_file"] if command.command == "lock" else None
                if status == 0:
                    written.restore(
                        report if wanted is not None else None, wanted, lock
                    )
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
    pages: dict[str, list[JudgedPage]] = {}
    for page in local_index.all_judged():
        pages.setdefault(page.project, []).append(page)
    asked = [*command.positional, *read_lines(command)]
    outcome = Outcome(status=0, installed=installed)
    if any(page.decisions.files for page in local_index.all_judged()):
        from .taking import explain_taken

        taken = explain_taken(installed, lambda name: pages.get(name, []), asked)
        outcome = replace(outcome, taken=taken)
    fresh = {item.project for item in installed}
    if command.command != "install" or fresh.issuperset(map(canonicalize_name, asked)):
        return outcome
    from .taking import find_kept

    target = command.options["target_dir"]
    paths = [target] if target else [p for p in command.paths if os.path.isdir(p)]
    return replace(
        outcome,
        stale=_find_stale(command, installed, paths, local_index.find_choices),
        kept=find_kept(asked, fresh, paths, local_index.find_judged),
    )


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
    command: PipCommand, local_index: LocalIndex, status: int
) -> Outcome:
    """Find the reasons that pip does not know; the local index still serves."""
    failures: tuple[str, ...] = ()
    if requires_hashes(command):
        from .pinned_hashes import explain_pinned_hashes

        failures = explain_pinned_hashes(command, local_index)
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


def _prints_lock(command: PipCommand) -> bool:
    """Return whether pip prints a lock file."""
    return command.command == "lock" and command.options.get("output_file") == "-"


def _remote_files(command: PipCommand) -> list[str]:
    """Return the URLs of requirements and constraints files on the command line."""
    return [
        value
        for option, _, *values in command.words
        if option in _FILES
        for value in values
        if is_http(value)
    ]


def _is_given(command: PipCommand, environ: Mapping[str, str], option: str) -> bool:
    """Return whether the command line or a variable sets an option, not a file."""
    on_line = any(word[0] == option for word in command.words)
    return on_line or bool(environ.get(f"PIP_{option.upper()}"))


def _redirect(
    command: PipCommand,
    environ: Mapping[str, str],
    local_index: LocalIndex,
    folder: Path,
    copied: dict[str, str],
    *,
    copies: LockCopies | None,
) -> tuple[list[str], dict[str, str]]:
    """Return the arguments and variables by which pip uses the local index.

    :param copied: gets the path of each requirements file that is copied, and of the
        copy.
    :param copies: makes the copies of lock files.
    """
    credentials = command.credentials
    indexes = [local_index.add_index(u, credentials.get(u)) for u in command.indexes]
    links = [local_index.add_links(u, credentials.get(u)) for u in command.find_links]
    places = Places(
        index=local_index.add_index,
        links=local_index.add_links,
        environ=environ,
        copied=copied.__setitem__,
    )

    def replaced_file(text: str) -> str:
        copy = copies.add(text) if copies is not None else None
        return copy or rewrite(text, folder, places)

    arguments: list[str] = []
    for option, spelled, *values in command.words:
        if option in _FILES:
            arguments += [spelled, *map(replaced_file, values)]
        elif option not in _PLACES:
            arguments += [spelled, *values]
    if command.options["no_index"]:
        arguments.append("--no-index")
    isolated = command.options["isolated_mode"]
    replaced = {
        "index-url": indexes[:1],
        # Repeat the main index: an empty value would let pip's configured extra
        # indexes through.
        "extra-index-url": indexes[1:]
        or (indexes if command.options["extra_index_urls"] else []),
        "find-links": links,
    }
    variables = _proxies(command, environ)
    if local_index.token is not None:
        variables |= with_token(environ, local_index.token)
    for option, values in replaced.items():
        # Prefer variables: they override configuration files, and other users of this
        # machine can read arguments. pip splits the values of variables at spaces.
        plain = [v for v in values if not (isolated or any(map(str.isspace, v)))]
        if plain:
            variables[f"PIP_{option.replace('-', '_').upper()}"] = " ".join(plain)
        for value in values:
            if value not in plain:
                arguments += [f"--{option}", value]
    for option, variable in () if isolated else _FILES.items():
        if files := _configured(command, option):
            variables[variable] = " ".join(map(replaced_file, files))
    return arguments, variables


def _configured(command: PipCommand, option: str) -> list[str]:
    """Return the values of an option that are not from the command line.

    pip appends the values of the command line to those of its configuration.
    """
    values = command.options.get(option) or []
    given = sum(word[0] == option for word in command.words)
    return list(values[: len(values) - given])


def _proxies(command: PipCommand, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which pip uses its proxy, but not for the local index."""
    variables = {}
    for name in ("NO_PROXY", "no_proxy"):
        others = environ.get(name)
        variables[name] = f"{others},{_LOCAL}" if others else _LOCAL
    if proxy := command.options["proxy"]:
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
            variables[name] = proxy
        variables["PIP_PROXY"] = ""
    return variables


def _find_stale(
    command: PipCommand,
    installed: Sequence[Installed],
    paths: Sequence[str],
    find_choices: Callable[[str], Mapping[str, Choice]],
) -> tuple[Stale, ...]:
    """Find what was asked for and is installed already, but not as the best build."""
    from .installed import find_installed

    asked = {
        name for text in command.positional if (name := _project_of(text)) is not None
    }
    fresh = {item.project for item in installed}
    stale = []
    for item in find_installed(paths):
        if item.project in fresh or item.project not in asked:
            continue
        choice = find_choices(item.project).get(item.version)
        if choice is None or choice.resolution is None:
            continue
        best = choice.labels[0] if choice.labels else None
        if best != item.label and (best is not None or choice.plain):
            stale.append(Stale(installed=item, best=best))
    return tuple(stale)


def _project_of(text: str) -> str | None:
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        return canonicalize_name(Requirement(text).name)
    except InvalidRequirement:
        return None
