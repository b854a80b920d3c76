"""What a user asks pip for: requirements, such as ``torch==2.10.0+xpu``, and hashes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ...metadata.requirements import parse_requirement
from .command import PipCommand

__all__ = ["Asked", "find_hashes", "find_labels", "find_versions", "read_asked"]

_SHA256 = 64
"""The hexadecimal digits of a SHA-256 hash."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """A requirement that names a project, on the command line or in a file.

    :param project: the normalized name.
    :param hashes: the SHA-256 hashes that the user gave.
    :param is_constraint: it does not ask for the project itself.
    """

    project: str
    requirement: Requirement
    hashes: frozenset[str] = frozenset()
    is_constraint: bool = False


def read_asked(command: PipCommand) -> tuple[Asked, ...]:
    """Return what the user asks for; paths and URLs without a name are left out.

    Nested requirements and constraints files count, as pip reads them.
    """
    return tuple(
        Asked(
            project=canonicalize_name(requirement.name),
            requirement=requirement,
            hashes=frozenset(
                digest.lower()
                for digest in line.hashes.get("sha256", ())
                if len(digest) == _SHA256
            ),
            is_constraint=line.is_constraint,
        )
        for line in command.lines
        if (requirement := parse_requirement(line.text)) is not None
    )


def find_labels(asked: Iterable[Asked]) -> Mapping[str, frozenset[str]]:
    """Find the local version labels that exact pins name, by normalized project."""
    return _group(
        (item.project, version.partition("+")[2].lower())
        for item in asked
        for version in _pinned(item)
        if "+" in version
    )


def find_versions(asked: Iterable[Asked]) -> Mapping[str, frozenset[str]]:
    """Find the versions that exact pins name, by normalized project."""
    return _group(
        (item.project, version) for item in asked for version in _pinned(item)
    )


def find_hashes(asked: Iterable[Asked]) -> Mapping[str, frozenset[str]]:
    """Find the SHA-256 hashes that the user gives, by normalized project."""
    return _group((item.project, digest) for item in asked for digest in item.hashes)


def _pinned(item: Asked) -> Iterator[str]:
    for specifier in item.requirement.specifier:
        version = specifier.version
        if specifier.operator in ("==", "===") and not version.endswith(".*"):
            yield version


def _group(pairs: Iterable[tuple[str, str]]) -> Mapping[str, frozenset[str]]:
    groups: dict[str, set[str]] = {}
    for project, text in pairs:
        groups.setdefault(project, set()).add(text)
    return {project: frozenset(texts) for project, texts in groups.items()}
