"""A pip command line as interpreted by the user's pip, and its target Python."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nvidia_variant_provider.errors import UsageError, shown

from ...metadata.requirements import parse_requirement
from ..selection.options import Target

TYPE_CHECKING = False
if TYPE_CHECKING:
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet


_SHA256 = 64
"""The number of hexadecimal digits of a SHA-256 hash."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PipOptions:
    """The relevant options of pip, under pip's own names.

    pip reads the values from the command line, the environment and configuration files.
    The defaults apply to versions of pip that lack the option.
    """

    no_index: bool = False
    proxy: str | None = None
    trusted_hosts: Sequence[str] = ()
    cert: str | None = None
    bundle: str | None = None
    trusts_system: bool = True
    client_cert: str | None = None
    timeout: float | None = None
    no_input: bool = False
    keyring_provider: str | None = None
    json_report_file: str | None = None
    dry_run: bool = False
    quiet: int = 0
    target_dir: str | None = None
    download_dir: str | None = None
    no_proxy_env: bool | None = None
    requirements: Sequence[str] = ()
    dependency_groups: Sequence[Sequence[str]] = ()
    isolated_mode: bool = False
    output_file: str | None = None
    limits_dates: bool = False

    @property
    def ignores_environment(self) -> bool:
        """Whether pip ignores the variables for proxies and certificates.

        Versions of pip with ``--no-proxy-env`` do so for each ``--proxy``, even an
        empty one.
        """
        has_option = self.no_proxy_env is not None
        return has_option and bool(self.no_proxy_env or self.proxy is not None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """A requirement with a project name, from the command line or a file.

    :param project: the normalized name.
    :param hashes: the SHA-256 hashes that the user gave.
    :param is_constraint: whether the requirement is a constraint, which does not
        install the project.
    """

    project: str
    requirement: Requirement
    hashes: frozenset[str] = frozenset()
    is_constraint: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class PipCommand:
    """A command line as interpreted by pip.

    :param command: the name, such as ``install``; ``None`` if it is missing or pip
        rejects the command line.
    :param uses_index: whether the command reads indexes.
    :param words: the options on the command line, each ``[option, spelling,
        value...]``.
    :param positional: the arguments of the command that are not options.
    :param asked: the requirements whose markers hold, also from included files; paths
        and URLs without a name are left out.
    :param requires_hashes: whether pip accepts only files with the given hashes.
    :param limits_hashes: whether hashes limit the files of the run, as far as is known:
        files that only pip reads may have some.
    :param credentials: the user and password that pip finds for each index.
    :param indexes: the URLs of the indexes, in pip's order, also those in files.
    :param find_links: the values of ``--find-links``, also those in files: directories,
        and pages with links.
    :param paths: the directories from which the interpreter imports packages.
    :param target: the platform and Python that pip installs for.
    """

    command: str | None
    uses_index: bool = False
    options: PipOptions = PipOptions()
    words: Sequence[Sequence[str]] = ()
    positional: Sequence[str] = ()
    asked: Sequence[Asked] = ()
    requires_hashes: bool = False
    limits_hashes: bool = False
    credentials: Mapping[str, tuple[str, str]] = field(default_factory=dict, repr=False)
    indexes: Sequence[str] = field(default=(), repr=False)
    find_links: Sequence[str] = field(default=(), repr=False)
    paths: Sequence[str] = ()
    target: Target | None = None

    @classmethod
    def from_reply(cls, reply: Mapping[str, Any]) -> PipCommand:
        """Create the command from the reply of the probe.

        :raises AttributeError, IndexError, TypeError: the reply is invalid.
        """
        fields = dict(reply)
        # pip uses None for some empty lists: use the defaults of `PipOptions`.
        options = fields.pop("options", {}).items()
        lines = fields.pop("lines", ())
        pairs = fields.pop("credentials", {})
        target = fields.pop("target", None)
        return cls(
            options=PipOptions(**{key: x for key, x in options if x is not None}),
            asked=tuple(_read_lines(lines)),
            credentials={url: (pair[0], pair[1]) for url, pair in pairs.items()},
            target=None if target is None else Target.from_dict(target),
            **fields,
        )


def _read_lines(lines: Iterable[Mapping[str, Any]]) -> Iterator[Asked]:
    from packaging.utils import canonicalize_name

    for line in lines:
        requirement = parse_requirement(line["text"])
        if requirement is not None:
            digests = line["hashes"].get("sha256", ())
            yield Asked(
                project=canonicalize_name(requirement.name),
                requirement=requirement,
                hashes=frozenset(x.lower() for x in digests if len(x) == _SHA256),
                is_constraint=line["is_constraint"],
            )


def find_labels(asked: Iterable[Asked]) -> Mapping[str, frozenset[str]]:
    """Map each project to the local version labels in its exact pins."""
    return _group(
        (item.project, version.partition("+")[2].lower())
        for item in asked
        for version in _pinned(item)
        if "+" in version
    )


def find_versions(asked: Iterable[Asked]) -> Mapping[str, frozenset[str]]:
    """Map each project to the versions in its exact pins."""
    return _group(
        (item.project, version) for item in asked for version in _pinned(item)
    )


def find_limits(asked: Iterable[Asked]) -> Mapping[str, SpecifierSet]:
    """Map each project to the versions that all requirements on the project allow."""
    limits: dict[str, SpecifierSet] = {}
    for item in asked:
        specifier = item.requirement.specifier
        if specifier:
            known = limits.get(item.project)
            limits[item.project] = specifier if known is None else known & specifier
    return limits


def find_hashes(asked: Iterable[Asked]) -> Mapping[str, frozenset[str]]:
    """Map each project to the SHA-256 hashes that the user gave for it."""
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


def find_python(path: str | None, environ: Mapping[str, str] | None = None) -> str:
    """Find the interpreter at ``path``: a program, or the directory of an environment.

    :param path: ``None`` for the activated environment or, without one, the running
        interpreter.
    :param environ: the environment variables.
    :raises UsageError: there is no interpreter.
    """
    named, hint = shown(path), "give the path of one"
    if path is None:
        path = find_activated(environ or {})
        if path is None:
            return sys.executable
        named = f"{shown(path)}, which is activated,"
        hint = "activate another environment, or give --python"
    # An empty path would find a program of the current directory.
    names = ("", "bin/python", "Scripts/python.exe", "python.exe") if path else ()
    for name in names:
        program = os.path.join(path, name) if name else path
        if os.path.isfile(program):
            return os.path.abspath(program)
    message = f"{named} is neither an interpreter nor an environment"
    raise UsageError(message, hint=hint)


def find_activated(environ: Mapping[str, str]) -> str | None:
    """Return the directory of the activated environment, unless this program is in it.

    An activated conda environment is used only if nvp is installed as a tool: users who
    run nvp from a virtual environment that is not activated often have a conda
    environment activated. conda's ``base`` is ignored, because it is a system Python.
    """
    active = environ.get("VIRTUAL_ENV")
    if not active and environ.get("CONDA_DEFAULT_ENV") != "base":
        active = environ.get("CONDA_PREFIX") if is_tool_environment() else None
    is_own = active and os.path.exists(active) and os.path.samefile(active, sys.prefix)
    return None if is_own else active or None


def is_tool_environment() -> bool:
    """Return whether pipx or ``uv tool`` made the environment of this program.

    Such an environment is only for this program: install packages elsewhere.
    """
    marks = ("pipx_metadata.json", "uv-receipt.toml")
    return any(os.path.isfile(os.path.join(sys.prefix, name)) for name in marks)
