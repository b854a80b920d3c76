"""Running the user's pip, with the local index instead of its indexes."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from ...errors import InputError
from ...strict_json import parse_json, read_bytes
from ..http.client import Client
from ..http.urls import is_http, redacted
from ..selection.options import Selection
from ..selection.repository import Choice
from ..server.access import Access
from ..server.local_index import LocalIndex
from .command import Pip, PipCommand
from .installed import InstalledVariant, find_installed
from .requirements_files import Places, rewrite
from .settings import make_settings

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
class Installed:
    """A distribution that pip reports to have installed.

    :param label: ``None`` for a non-variant wheel or an sdist.
    """

    project: str
    version: str
    label: str | None

    def to_dict(self) -> dict[str, object]:
        """Keys: ``name``, ``version``, ``label``."""
        return {"name": self.project, "version": self.version, "label": self.label}


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
    """

    status: int
    installed: tuple[Installed, ...] = ()
    stale: tuple[Stale, ...] = ()
    seen: tuple[Choice, ...] = ()


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
        arguments, variables = _redirect(command, environ, local_index, folder)
        for url in _remote_files(command):
            narrator.warn(
                f"pip reads {redacted(url)} itself, so variants are not selected from "
                "the indexes it names; download the file and pass its path"
            )
        if fixed_proxy:
            arguments += ["--proxy", ""]
        report = options["json_report_file"]
        if command.command == "install" and report is None:
            report = str(folder / "report.json")
            arguments += ["--report", report]
        if command.command != "list":  # It reads an index only with --outdated.
            narrator.start(local_index.places)
        with local_index.serve():
            status = pip.run(
                [command.command or "", *arguments, *command.positional],
                {**environ, **variables},
                quiet=quiet,
            )
            logger.info("pip ended with status %d", status)
            installed = _read_report(report) if status == 0 else ()
            stale = (
                _find_stale(command, installed, local_index.find_choices)
                if status == 0 and command.command == "install"
                else ()
            )
    seen = tuple(local_index.all_choices())
    return Outcome(status=status, installed=installed, stale=stale, seen=seen)


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
) -> tuple[list[str], dict[str, str]]:
    """Return the arguments and variables by which pip uses the local index."""
    credentials = command.credentials
    indexes = [local_index.add_index(u, credentials.get(u)) for u in command.indexes]
    links = [local_index.add_links(u, credentials.get(u)) for u in command.find_links]
    places = Places(
        index=local_index.add_index, links=local_index.add_links, environ=environ
    )
    arguments: list[str] = []
    for option, spelled, *values in command.words:
        if option in _FILES:
            arguments += [spelled, *(rewrite(v, folder, places) for v in values)]
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
    for option, values in replaced.items():
        # Prefer variables: other users of this machine can read arguments, and
        # variables override configuration files. pip splits their values at spaces.
        plain = [v for v in values if not (isolated or any(map(str.isspace, v)))]
        if plain:
            variables[f"PIP_{option.replace('-', '_').upper()}"] = " ".join(plain)
        for value in values:
            if value not in plain:
                arguments += [f"--{option}", value]
    for option, variable in () if isolated else _FILES.items():
        if files := _configured(command, option):
            copies = [rewrite(file, folder, places) for file in files]
            variables[variable] = " ".join(copies)
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


def _read_report(path: str | None) -> tuple[Installed, ...]:
    """Read pip's installation report, unless pip printed it."""
    if path is None or path == "-":
        return ()
    try:
        report: Any = parse_json(read_bytes(path))
        return tuple(
            Installed(
                project=canonicalize_name(item["metadata"]["name"]),
                version=item["metadata"]["version"],
                label=_label_of(item["download_info"]["url"]),
            )
            for item in report["install"]
        )
    except (InputError, KeyError, TypeError):
        return ()


def _label_of(url: str) -> str | None:
    """Return the label in the URL of a file of the local index."""
    parts = urlsplit(url).path.split("/")
    # .../f/{project}/{label}/{digest}/{name}
    if len(parts) < 6 or parts[-5] != "f" or parts[-3] == "-":
        return None
    # A label that consists of dots has a dash before it.
    return parts[-3].lstrip("-")


def _find_stale(
    command: PipCommand,
    installed: Sequence[Installed],
    find_choices: Callable[[str], Mapping[str, Choice]],
) -> tuple[Stale, ...]:
    """Find what was asked for and is installed already, but not as the best build."""
    asked = {
        name for text in command.positional if (name := _project_of(text)) is not None
    }
    fresh = {item.project for item in installed}
    paths = [path for path in command.paths if os.path.isdir(path)]
    target = command.options["target_dir"]
    stale = []
    for item in find_installed([target] if target else paths):
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
    try:
        return canonicalize_name(Requirement(text).name)
    except InvalidRequirement:
        return None
