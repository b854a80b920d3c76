"""A run of the user's pip, with the loopback index in place of the indexes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from ...errors import InputError
from ...machine.environment import Environment
from ...strict_json import parse_json, read_bytes
from ..http.byte_ranges import redacted
from ..http.client import Settings
from ..selection.pins import Pins
from ..selection.repository import Choice
from ..server.app import OnPick
from ..server.local_index import Loopback
from .command import Pip, PipCommand
from .installed import InstalledVariant, find_installed
from .requirements_files import Places, rewrite

__all__ = ["Installed", "Outcome", "Stale", "make_settings", "run"]

# Options by which pip is told where to look: they are given anew.
_PLACES = {"index_url", "extra_index_urls", "find_links", "no_index", "proxy"}
_FILES = {
    "requirements": "PIP_REQUIREMENT",
    "constraints": "PIP_CONSTRAINT",
    "build_constraints": "PIP_BUILD_CONSTRAINT",
}
_LOCAL = "127.0.0.1,localhost"


@dataclass(frozen=True, kw_only=True, slots=True)
class Installed:
    """What pip reports to have installed.

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

    :param best: the label to have; ``None`` for the non-variant wheel.
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
    """What came of it.

    :param status: pip's exit status.
    :param installed: of an installation, or what it would have installed.
    :param seen: every release with variants that pip was shown.
    """

    status: int
    installed: tuple[Installed, ...] = ()
    stale: tuple[Stale, ...] = ()
    seen: tuple[Choice, ...] = ()


def make_settings(command: PipCommand, environ: Mapping[str, str]) -> Settings:
    """How this pip talks to indexes."""
    options = command.options
    bundle = environ.get("REQUESTS_CA_BUNDLE") or environ.get("CURL_CA_BUNDLE")
    return Settings(
        timeout=float(options.get("timeout") or 15.0),
        trusted_hosts=tuple(options.get("trusted_hosts") or ()),
        cert=options.get("cert") or bundle,
        client_cert=options.get("client_cert"),
        proxy=options.get("proxy") or None,
        trust_env=not options.get("no_proxy_env"),
    )


def run(
    pip: Pip,
    command: PipCommand,
    *,
    machine: Callable[[], Environment],
    environ: Mapping[str, str],
    pins: Pins,
    on_pick: OnPick,
    on_start: Callable[[Mapping[str, str]], None],
    warn: Callable[[str], None],
    quiet: bool,
    asks: bool,
    every_gpu: bool,
) -> Outcome:
    """Run pip to its end.

    :param on_start: is told the URL of each index in its place, and that index.
    :param on_pick: is told of each build that pip fetches, from another thread.
    :param quiet: pip's own output goes to stderr.
    :param asks: there is somebody whom pip can ask for credentials.
    :param every_gpu: only builds with code for each GPU of the machine.
    :raises InputError: it cannot be run.
    """
    options = command.options
    # A proxy from a configuration file cannot be taken back by a variable: pip is
    # told to use none, and everything goes through the loopback index.
    fixed_proxy = bool(options["proxy"]) and not _is_given(command, environ, "proxy")
    loopback = Loopback(
        make_settings(command, environ),
        machine=machine,
        environ=environ,
        warn=warn,
        pins=pins,
        on_pick=on_pick,
        ask_credentials=lambda url: pip.ask_credentials(url, options),
        direct=not fixed_proxy,
        local=True,
        asks=asks and not options["no_input"],
        every_gpu=every_gpu,
    )
    with tempfile.TemporaryDirectory(prefix="nvidia-variant-provider-") as name:
        folder = Path(name)
        arguments, variables = _redirect(command, environ, loopback, folder)
        for _, _, *files in (w for w in command.words if w[0] in _FILES):
            for file in files:
                if file.startswith(("http:", "https:")):
                    warn(
                        f"{redacted(file)} is read by pip itself: of indexes that it "
                        "names no variants are taken; download it first"
                    )
        if fixed_proxy:
            arguments += ["--proxy", ""]
        report = options["json_report_file"]
        if command.command == "install" and report is None:
            report = str(folder / "report.json")
            arguments += ["--report", report]
        if command.command != "list":  # which looks at no index, but for --outdated
            on_start(loopback.places)
        with loopback.serve():
            status = pip.run(
                [command.command or "", *arguments, *command.positional],
                {**environ, **variables},
                quiet=quiet,
            )
            installed = _read_report(report) if status == 0 else ()
            stale = (
                _find_stale(command, installed, loopback.find_choices)
                if status == 0 and command.command == "install"
                else ()
            )
    seen = tuple(loopback.all_choices())
    return Outcome(status=status, installed=installed, stale=stale, seen=seen)


def _is_given(command: PipCommand, environ: Mapping[str, str], option: str) -> bool:
    """Is a value from the command line or a variable, not from a file."""
    on_line = any(word[0] == option for word in command.words)
    return on_line or bool(environ.get(f"PIP_{option.upper()}"))


def _redirect(
    command: PipCommand, environ: Mapping[str, str], loopback: Loopback, folder: Path
) -> tuple[list[str], dict[str, str]]:
    """The arguments and variables by which pip looks at the loopback index."""
    credentials = command.credentials
    indexes = [loopback.add_index(u, credentials.get(u)) for u in command.indexes]
    links = [loopback.add_links(u, credentials.get(u)) for u in command.find_links]
    places = Places(index=loopback.add_index, links=loopback.add_links, environ=environ)
    arguments: list[str] = []
    for option, spelled, *values in command.words:
        if option in _FILES:
            arguments += [spelled, *(rewrite(v, folder, places) for v in values)]
        elif option not in _PLACES:
            arguments += [spelled, *values]
    if command.options["no_index"]:
        arguments.append("--no-index")
    isolated = command.options["isolated_mode"]
    more = command.options["extra_index_urls"]
    told = {
        "index-url": indexes[:1],
        # Also one that is the index again: what is configured would stay else.
        "extra-index-url": indexes[1:] or (indexes if more else []),
        "find-links": links,
    }
    variables = _proxies(command, environ)
    for option, values in told.items():
        # In variables, which other users cannot read as they can arguments, and
        # which go before configuration files. pip splits them at spaces.
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
    """The values that are not from the command line, where others come after them."""
    values = command.options.get(option) or []
    given = sum(word[0] == option for word in command.words)
    return list(values[: len(values) - given])


def _proxies(command: PipCommand, environ: Mapping[str, str]) -> dict[str, str]:
    """Variables by which pip uses its proxy, but not to come here."""
    found = {}
    for name in ("NO_PROXY", "no_proxy"):
        others = environ.get(name)
        found[name] = f"{others},{_LOCAL}" if others else _LOCAL
    if proxy := command.options["proxy"]:
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
            found[name] = proxy
        found["PIP_PROXY"] = ""
    return found


def _read_report(path: str | None) -> tuple[Installed, ...]:
    """What pip's installation report says; nothing when it was not for a file."""
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
    """The label in the URL of a file of the loopback index."""
    parts = urlsplit(url).path.split("/")
    # .../f/{project}/{label}/{digest}/{name}
    if len(parts) < 6 or parts[-5] != "f" or parts[-3] == "-":
        return None
    # One of dots only has a dash before it.
    return parts[-3].lstrip("-")


def _find_stale(
    command: PipCommand,
    installed: Sequence[Installed],
    find_choices: Callable[[str], Mapping[str, Choice]],
) -> tuple[Stale, ...]:
    """What was asked for and is there already, as a variant that is not the best."""
    asked = {
        name for text in command.positional if (name := _project_of(text)) is not None
    }
    fresh = {item.project for item in installed}
    paths = [path for path in command.paths if os.path.isdir(path)]
    target = command.options["target_dir"]
    found = []
    for item in find_installed([target] if target else paths):
        if item.project in fresh or item.project not in asked:
            continue
        choice = find_choices(item.project).get(item.version)
        if choice is None or choice.resolution is None:
            continue
        best = choice.labels[0] if choice.labels else None
        if best != item.label and (best is not None or choice.plain):
            found.append(Stale(installed=item, best=best))
    return tuple(found)


def _project_of(text: str) -> str | None:
    try:
        return canonicalize_name(Requirement(text).name)
    except InvalidRequirement:
        return None
