"""The local version labels that a user asks pip for, such as ``torch==2.10.0+xpu``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from packaging.utils import canonicalize_name

from .command import PipCommand

__all__ = [
    "find_named_labels",
    "find_pinned_versions",
    "read_lines",
    "read_requirements",
    "requires_hashes",
]

_PIN = re.compile(
    r"\s*(?P<project>[A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[[^\]]*\])?\s*"
    r"===?\s*[^\s;,#+]+\+(?P<label>[A-Za-z0-9._-]+)"
)
_EXACT = re.compile(
    r"\s*(?P<project>[A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[[^\]]*\])?\s*"
    r"===?\s*(?P<version>[^\s;,#*\\]+)"
)
_FILES = ("requirements", "constraints")
_LONGEST = 1_000_000


def find_named_labels(command: PipCommand) -> Mapping[str, frozenset[str]]:
    """Find the labels that exact pins name.

    The command line and the files that it names count. Files that those files name
    do not.

    :returns: the labels by normalized project.
    """
    labels: dict[str, set[str]] = {}
    for line in (*command.positional, *read_lines(command)):
        match = _PIN.match(line)
        if match is not None:
            project = canonicalize_name(match["project"])
            labels.setdefault(project, set()).add(match["label"].lower())
    return {project: frozenset(named) for project, named in labels.items()}


def find_pinned_versions(command: PipCommand) -> Mapping[str, frozenset[str]]:
    """Find the versions that exact pins name, by normalized project."""
    versions: dict[str, set[str]] = {}
    for line in (*command.positional, *read_lines(command)):
        match = _EXACT.match(line)
        if match is not None:
            project = canonicalize_name(match["project"])
            versions.setdefault(project, set()).add(match["version"])
    return {project: frozenset(pinned) for project, pinned in versions.items()}


def requires_hashes(command: PipCommand) -> bool:
    """Return whether pip will accept only files with the hashes that the user gave."""
    if command.options.get("require_hashes"):
        return True
    return any("--hash" in line for line in read_lines(command))


def read_lines(command: PipCommand) -> Iterator[str]:
    """Yield the lines of the requirements and constraints files on the command line."""
    for option in _FILES:
        yield from _read_lines(command, option)


def read_requirements(command: PipCommand) -> Iterator[str]:
    """Yield the requirements of the files on the command line, without options."""
    for line in _read_lines(command, "requirements"):
        yield line.partition("#")[0].partition(" --")[0].rstrip("\\ ")


def _read_lines(command: PipCommand, option: str) -> Iterator[str]:
    names: Iterable[str] = command.options.get(option) or ()
    for name in names:
        if name.endswith(".toml"):
            continue  # It is a lock file, whose lines are no requirements.
        yield from _read(name).splitlines()


def _read(name: str) -> str:
    try:
        with Path(name).open(encoding="utf-8", errors="replace") as file:
            return file.read(_LONGEST)
    except OSError:
        return ""  # pip says what is wrong with the file
