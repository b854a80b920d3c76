"""The public Python API."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import IO, Any

from . import detection
from .errors import InputError
from .machine.environment import Environment
from .machine.overrides import minor_version_compatibility
from .metadata import VariantsMetadata, read_metadata
from .resolution.priorities import Priorities, load_priorities
from .resolution.resolver import Resolution, resolve_metadata
from .strict_json import parse_json, read_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .gpu_code.inspection import Progress
    from .gpu_code.report import WheelReport
    from .lint.findings import Finding

__all__ = [
    "Environment",
    "Resolution",
    "detect",
    "inspect",
    "inspect_distribution",
    "read_environment",
    "resolve",
    "validate",
]


_SNAPSHOT = "make one with: nvidia-variant-provider detect --json"


def detect(environ: Mapping[str, str] | None = None) -> Environment:
    """What this machine has, forced values first.

    :param environ: environment variables, those of the process by default; the
        README lists those that count.
    :raises OverrideError: a forced value is malformed.
    """
    return detection.detect(os.environ if environ is None else environ)


def read_environment(path: str | os.PathLike[str]) -> Environment:
    """A snapshot: what ``detect --json`` printed, or its ``data`` alone.

    :raises InputError: it cannot be read, or is not valid.
    """
    name = str(path)
    try:
        environment = _snapshot(parse_json(read_bytes(path)))
    except InputError as error:
        error.path = name
        raise
    return environment.replace(source="snapshot")


def _snapshot(document: object) -> Environment:
    if not isinstance(document, dict) or "schema_version" not in document:
        if isinstance(document, dict) and "variants" in document:
            message = "this is variant metadata, not a snapshot of a machine"
            raise InputError(message, hint=_SNAPSHOT)
        return Environment.from_dict(document)
    if document.get("command") != "detect":
        raise InputError("this is not the report of detect", hint=_SNAPSHOT)
    return Environment.from_dict(document.get("data"), "data")


def resolve(
    variants_json: str
    | bytes
    | os.PathLike[str]
    | Mapping[str, Any]
    | VariantsMetadata,
    *,
    environment: Environment | None = None,
    supported: Mapping[str, Mapping[str, Sequence[str]]] | None = None,
    every_gpu: bool = False,
    enable_optional: bool | Collection[str] = False,
    priorities: Priorities | None = None,
    environ: Mapping[str, str] | None = None,
) -> Resolution:
    """Order the labels of a release for a machine.

    :param variants_json: a path, a JSON text, a parsed document or metadata
        that `read_metadata` returned.
    :param environment: the machine; `detect` says it when it is not given.
    :param supported: the answers of other namespaces, as
        ``{namespace: {feature: [value, ...]}}``, best first. They stand in
        place of a plugin; static properties of the metadata go before them.
    :param every_gpu: keep only labels with a supported ``sm_arch`` value for
        each GPU.
    :param enable_optional: optional providers to ask: namespaces, or all.
    :param priorities: instead of those of the user's ``variants.toml``.
    :param environ: environment variables, those of the process by default: what
        `detect` is given, and where the opt-in to minor-version compatibility is.
    :raises InputError: the metadata or ``variants.toml`` is not valid.
    :raises OverrideError: a forced value is malformed.
    """
    metadata = (
        variants_json
        if isinstance(variants_json, VariantsMetadata)
        else read_metadata(variants_json)
    )
    environ = os.environ if environ is None else environ
    return resolve_metadata(
        metadata,
        detect(environ) if environment is None else environment,
        supported=supported,
        every_gpu=every_gpu,
        enable_optional=enable_optional,
        minor_version_compatibility=minor_version_compatibility(environ),
        priorities=load_priorities() if priorities is None else priorities,
    )


def validate(
    paths: Iterable[str | os.PathLike[str]],
    *,
    select: Collection[str] = (),
    ignore: Collection[str] = (),
) -> list[Finding]:
    """Check metadata, wheels, folders and project pages before they are published.

    Libraries of wheels are read in full for the rules NV5xx, unless those are ignored.

    :param paths: files, folders or URLs of project pages. What cannot be read is a
        finding.
    :param select: prefixes of rules to keep, as ``NV3``; all when it is empty.
    :param ignore: prefixes of rules to leave out.
    :raises UsageError: a prefix of no rule.
    """
    from .lint.runner import check_paths

    return check_paths(paths, select=select, ignore=ignore)


def inspect(
    path: str | os.PathLike[str] | IO[bytes],
    *,
    name: str | None = None,
    jobs: int = 1,
    progress: Progress | None = None,
) -> WheelReport:
    """Which GPU code is in a wheel, a folder, or a library or loose file.

    What is wrong inside is a defect of the report, not an exception.

    :param path: a wheel, library, DLL, static library, ``.cubin``, ``.fatbin`` or
        ``.ptx`` file, a folder of such, or a wheel as an open file that can seek.
    :param name: what the report calls it, by default as ``path`` does.
    :param jobs: how many files are read at the same time.
    :param progress: called with the bytes that have been read and their total, one
        call at a time, from any thread.
    :raises InputError: there is no such file, or it cannot be read.
    """
    from .gpu_code.inspection import inspect_path

    source = os.fspath(path) if isinstance(path, (str, os.PathLike)) else path
    return inspect_path(source, name=name, jobs=jobs, progress=progress)


def inspect_distribution(
    name: str, *, jobs: int = 1, progress: Progress | None = None
) -> WheelReport:
    """Which GPU code is in an installed distribution.

    :param name: of the distribution, as ``torch``; of the running interpreter.
    :param jobs: as for `inspect`, as is ``progress``.
    :raises InputError: it is not installed, or does not list its files.
    """
    from .gpu_code import inspection

    return inspection.inspect_distribution(name, jobs=jobs, progress=progress)
