"""The public Python API: what the verbs of the command line do, as functions.

The functions read environment variables and the user's ``variants.toml`` unless they
are given a value instead. They print nothing. All errors are `ProviderError`, whose
attributes ``message``, ``path``, ``place``, ``hint`` and ``exit_code`` say what is
wrong, where, and what to do next.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import IO, Any, TypeAlias

from . import detection
from ._logs import Logger
from .errors import InputError
from .machine.environment import Environment
from .machine.overrides import minor_version_compatibility
from .metadata import VariantsMetadata, read_metadata
from .resolution.priorities import Priorities, load_priorities
from .resolution.resolver import Resolution, resolve_metadata
from .strict_json import parse_json, read_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .builds.releases import ReleaseTable
    from .doctor.reading import Watch as WatchReading
    from .doctor.runner import Diagnosis
    from .fleet.choosing import Fleet
    from .gpu_code.inspection import Progress
    from .gpu_code.report import WheelReport
    from .index.releases.reading import Inspect, Watch
    from .inventories.model import Machine
    from .lint.findings import Finding
    from .matrix.cells import Matrix
    from .matrix.changes import Differences
    from .upgrading.releases import UpgradedFile

__all__ = [
    "Environment",
    "Release",
    "Resolution",
    "detect",
    "diff",
    "doctor",
    "fleet",
    "inspect",
    "inspect_distribution",
    "matrix",
    "read_environment",
    "read_machines",
    "releases",
    "resolve",
    "upgrade",
    "upgrade_index",
    "validate",
]

Release: TypeAlias = (
    str | bytes | os.PathLike[str] | Mapping[str, Any] | VariantsMetadata
)
"""The variant metadata of a release, in one of these forms:

- a path: an `os.PathLike`, or a `str` that does not start with ``{``;
- a JSON text: `bytes`, or a `str` whose first character other than white space is
  ``{``; so a path that starts with ``{`` must be given as a `pathlib.Path`;
- a parsed document: a mapping, as `json.loads` returns it;
- the `VariantsMetadata` that `metadata.read_metadata` returned.
"""


_logger = Logger(__name__)

_SNAPSHOT = "make one with: nvidia-variant-provider detect --json"


def detect(environ: Mapping[str, str] | None = None) -> Environment:
    """Return the driver and the GPUs of this machine.

    Values that environment variables force come first, then what the driver says,
    which is cached for a while.

    :param environ: environment variables, by default those of the process. The names
        that count begin with ``NV_VARIANT_PROVIDER_``.
    :raises OverrideError: a forced value is malformed.
    """
    return detection.detect(os.environ if environ is None else environ)


def read_environment(path: str | os.PathLike[str]) -> Environment:
    """Read a snapshot of a machine.

    :param path: a file with what ``detect --json`` printed, or with the ``data`` of
        that report alone. Its schema is ``schemas/environment.schema.json``.
    :raises InputError: the file cannot be read, or is not valid.
    """
    name = str(path)
    try:
        environment = _snapshot(parse_json(read_bytes(path)))
    except InputError as error:
        error.path = name
        raise
    _logger.info("the machine of %s: %s", name, environment.to_dict())
    return environment.replace(source="snapshot")


def read_machines(path: str | os.PathLike[str]) -> list[Machine]:
    """Read the machines that somebody else describes.

    :param path: a file whose form is told by its content: a snapshot, ``kubectl get``
        of nodes or resourceslices (JSON or YAML), ``condor_status -json``, ``pixi info
        --json``, ``conda info --json``, ``nvidia-smi -q -x``, ``nvidia-smi
        --query-gpu``, or metrics of the DCGM exporter. ``-`` is standard input.
    :return: the machines that have a GPU, in the order of the file. What the file does
        not say is ``None`` with the reason ``not-given``.
    :raises InputError: the file cannot be read, has another form, or has no machine.
    :raises MissingExtraError: the form needs the extra ``fleet``.
    """
    from .inventories.reading import read_inventory

    return read_inventory(os.fspath(path))


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
    variants_json: Release,
    *,
    environment: Environment | None = None,
    supported: Mapping[str, Mapping[str, Sequence[str]]] | None = None,
    every_gpu: bool = False,
    enable_optional: bool | Collection[str] = False,
    priorities: Priorities | None = None,
    environ: Mapping[str, str] | None = None,
) -> Resolution:
    """Order the labels of a release for a machine.

    The order is the one that PEP 825 defines.

    :param variants_json: the metadata of the release; see `Release`.
    :param environment: the machine; by default `detect` finds this one.
    :param supported: the answers of other namespaces, as
        ``{namespace: {feature: [value, ...]}}``, best value first. An answer replaces
        the namespace's plugin. Static properties of the metadata win over it.
    :param every_gpu: keep only labels with a supported ``sm_arch`` value for every
        GPU.
    :param enable_optional: the namespaces of optional providers to ask, or ``True``
        for all of them.
    :param priorities: the priorities to use instead of those in ``variants.toml``.
    :param environ: environment variables, by default those of the process. `detect`
        gets them, and they hold the opt-in to minor-version compatibility.
    :return: ``selected`` is the best label or ``None``, ``compatible`` has all labels
        that fit, best first, and ``rejected`` has the reasons for each other label.
    :raises InputError: the metadata or ``variants.toml`` is not valid.
    :raises OverrideError: a forced value is malformed.
    """
    environ = os.environ if environ is None else environ
    metadata = _metadata(variants_json)
    resolution = resolve_metadata(
        metadata,
        detect(environ) if environment is None else environment,
        supported=supported,
        every_gpu=every_gpu,
        enable_optional=enable_optional,
        minor_version_compatibility=minor_version_compatibility(environ),
        priorities=load_priorities() if priorities is None else priorities,
    )
    _logger.info(
        "%s %s: %d of %d labels fit, the best is %s",
        metadata.name or "a release without a name",
        metadata.version or "",
        len(resolution.compatible),
        len(metadata.variants),
        resolution.selected,
    )
    if _logger.logs_debug():  # reasons take long to write
        for label, reasons in resolution.rejected.items():
            causes = "; ".join(reason.sentence for reason in reasons)
            _logger.debug("%s does not fit: %s", label, causes)
    return resolution


def releases(
    project: str,
    *,
    index_url: str | None = None,
    extra_index_urls: Sequence[str] = (),
    environment: Environment | None = None,
    environ: Mapping[str, str] | None = None,
    python: str | None = None,
    inspect: Inspect = False,
    watch: Watch | None = None,
) -> ReleaseTable:
    """List the releases of a project on an index, with the builds that run here.

    The verdicts are those by which ``pip`` and ``serve`` choose. Nothing is
    installed, and no wheel is read unless ``inspect`` is given. The extra ``index`` is
    needed.

    :param project: its name, without a version.
    :param index_url: the index, by default the one that pip is configured for.
    :param extra_index_urls: further indexes, as pip has them.
    :param environment: the machine; by default `detect` finds this one.
    :param environ: environment variables, by default those of the process, from
        which pip takes its settings.
    :param python: the interpreter or the environment that wheels are selected for,
        and whose pip is asked for its indexes; by default, the running one.
    :param inspect: read the GPU code of large wheels of which nothing is known, newest
        release first, until one runs, and of at most ten; ``"all"`` reads every one.
        What is found is kept in the user's cache, and `pip` and `serve` use it.
    :param watch: called with the name of each wheel that is inspected; the context
        that it returns gives a function that is called with the bytes that have been
        read and their total, or ``None``.
    :return: ``newest`` is the newest release with a build that runs, or ``None``, and
        ``releases`` has all of them, newest first.
    :raises InputError: no index has the project, or none can be read.
    :raises UsageError: the name is malformed, or there is no index or interpreter.
    :raises MissingExtraError: the extra ``index`` is not installed.
    """
    from .index.connection import cache_folder, missing_extra

    environ = os.environ if environ is None else environ
    machine = detect(environ) if environment is None else environment
    try:
        from .index.releases.listing import list_releases

        # Some of its modules are imported while pip is asked for its indexes.
        return list_releases(
            project,
            environment=machine,
            environ=environ,
            index_url=index_url,
            extra_index_urls=extra_index_urls,
            python=python,
            inspect=inspect,
            watch=watch,
            cache=cache_folder(environ),
        )
    except ImportError as error:
        raise missing_extra(error) from None


def matrix(
    variants_json: Release,
    *,
    assume: Collection[str] = (),
    environ: Mapping[str, str] | None = None,
) -> Matrix:
    """Return which build of a release each driver and each GPU gets.

    Drivers are CUDA versions such as 12.9, and GPUs are compute capabilities such as
    9.0: all that the tables of `knowledge` know. Every value of other namespaces
    counts as supported, except of those that name hardware of other makers
    (`matrix.cells.OTHER_MAKERS`). The user's ``variants.toml`` does not count.

    :param variants_json: the metadata of the release; see `Release`.
    :param assume: namespaces of other makers' hardware that count as supported too.
    :param environ: environment variables, by default those of the process. Only the
        opt-in to minor-version compatibility counts.
    :return: ``cells`` has a cell for each driver with each GPU: all GPUs of the oldest
        driver first, both ascending. `matrix.grid.grid_of` makes a table of it.
    :raises InputError: the metadata is not valid.
    """
    from .matrix.cells import find_matrix

    return find_matrix(
        _metadata(variants_json),
        assume=assume,
        minor_version_compatibility=minor_version_compatibility(
            os.environ if environ is None else environ
        ),
    )


def diff(
    old: Release,
    new: Release,
    *,
    assume: Collection[str] = (),
    environ: Mapping[str, str] | None = None,
) -> Differences:
    """Return which machines get another build from a new release, and why.

    :param old: the metadata of the old release; see `Release`.
    :param new: the metadata of the new release.
    :param assume: as for `matrix`.
    :param environ: environment variables, as for `matrix`.
    :return: ``lanes`` has a lane for each driver with each GPU, in the order of the
        cells of `matrix`. Its ``change`` is ``"lost"``, ``"changed"``, ``"gained"`` or
        ``"same"``.
    :raises InputError: the metadata of a release is not valid.
    """
    from .matrix.changes import find_differences

    return find_differences(
        _metadata(old),
        _metadata(new),
        assume=assume,
        minor_version_compatibility=minor_version_compatibility(
            os.environ if environ is None else environ
        ),
    )


def _metadata(release: Release) -> VariantsMetadata:
    if isinstance(release, VariantsMetadata):
        return release
    return read_metadata(release)


def upgrade(
    source: str | bytes | os.PathLike[str],
    *,
    name: str | None = None,
    for_uv: bool = False,
) -> UpgradedFile:
    """Rewrite variant metadata in the current schema version; nothing is written.

    :param source: a path or a JSON text, in one of the forms of `Release`.
    :param name: the name of the metadata in the result and in messages, by default
        the path, or ``metadata`` for a text.
    :param for_uv: name the provider of ``nvidia`` in the one way that makes uv use its
        own NVIDIA provider.
    :return: ``text`` is the upgraded document, or ``None`` where the publisher has to
        say something first; ``losses``, ``notes`` and ``problems`` are the remarks.
    :raises InputError: the metadata cannot be read, is not valid, or has a newer
        version than the current one.
    """
    from .upgrading.releases import upgrade_text

    if isinstance(source, str) and source.lstrip().startswith("{"):
        source = source.encode()
    if isinstance(source, bytes):
        return upgrade_text(name or "metadata", source, for_uv=for_uv)
    name = name or os.fspath(source)
    return upgrade_text(name, read_bytes(source), for_uv=for_uv)


def upgrade_index(
    folder: str | os.PathLike[str], *, write: bool = True, for_uv: bool = False
) -> list[UpgradedFile]:
    """Rewrite the metadata of all releases in a folder.

    A release whose wheels are in the folder gets its metadata from the wheels.

    :param write: replace the files that change, each completely or not at all;
        otherwise nothing is written.
    :param for_uv: as for `upgrade`.
    :return: what became of each file, sorted by path.
    :raises InputError: the folder cannot be read or has no release, or a file cannot
        be written.
    """
    from .upgrading.releases import upgrade_folder

    return upgrade_folder(os.fspath(folder), write=write, for_uv=for_uv)


def validate(
    paths: Iterable[str | os.PathLike[str]],
    *,
    select: Collection[str] = (),
    ignore: Collection[str] = (),
) -> list[Finding]:
    """Check metadata, wheels, folders and project pages before they are published.

    Libraries in wheels are read completely for the rules NV5xx, which takes a while,
    unless these rules are ignored.

    :param paths: files, folders or URLs of project pages. What cannot be read is a
        finding, not an error.
    :param select: prefixes of the rules to keep, such as ``NV3``; empty for all rules.
    :param ignore: prefixes of the rules to leave out.
    :return: the findings, sorted by path, rule and place.
    :raises UsageError: no rule begins with a given prefix.
    """
    from .index.connection import connect
    from .lint.runner import check_paths

    return check_paths(
        paths, select=select, ignore=ignore, connect=lambda: connect(os.environ)
    )


# The name of the verb is part of the contract, although the standard library has a
# module "inspect": import this module, not its names.
def inspect(
    path: str | os.PathLike[str] | IO[bytes],
    *,
    name: str | None = None,
    jobs: int = 1,
    progress: Progress | None = None,
) -> WheelReport:
    """Find the GPU code in a wheel, a folder, a library or a loose file.

    A file that is damaged inside is a defect in the report, not an error.

    :param path: a wheel, library, DLL, static library, ``.cubin``, ``.fatbin`` or
        ``.ptx`` file, a folder of such files, or a wheel as an open binary file that
        can seek.
    :param name: the name of the file in the report, by default the path.
    :param jobs: how many files are read at the same time.
    :param progress: a function that is called with the bytes that have been read and
        their total. The calls come from any thread, one at a time.
    :raises InputError: there is no such file, or it cannot be read.
    """
    from .gpu_code.inspection import inspect_path

    source = os.fspath(path) if isinstance(path, (str, os.PathLike)) else path
    return inspect_path(source, name=name, jobs=jobs, progress=progress)


def inspect_distribution(
    name: str, *, jobs: int = 1, progress: Progress | None = None
) -> WheelReport:
    """Find the GPU code in a distribution that is installed for this interpreter.

    :param name: the name of the distribution, such as ``torch``.
    :param jobs: how many files are read at the same time.
    :param progress: a function that reports the progress, as for `inspect`.
    :raises InputError: it is not installed, or does not list its files.
    """
    from .gpu_code import inspection

    return inspection.inspect_distribution(name, jobs=jobs, progress=progress)


def doctor(
    python: str | None = None,
    *,
    environment: Environment | None = None,
    is_here: bool = True,
    environ: Mapping[str, str] | None = None,
    jobs: int = 1,
    watch: WatchReading | None = None,
) -> Diagnosis:
    """Check whether an installed stack can use the GPUs of a machine.

    No code of the stack is run.

    :param python: an interpreter, or the folder of an environment; by default the
        activated environment, and then the running interpreter.
    :param environment: the machine; by default `detect` finds this one.
    :param is_here: whether the stack is to run on this machine, so that the files of
        its system count as well.
    :param environ: environment variables, by default those of the process.
    :param jobs: how many files are read at the same time.
    :param watch: called with the name of each distribution that is read; the context
        that it returns gives a function that reports the progress, as for `inspect`.
    :return: ``findings`` has what is wrong, in the order of the codes.
    :raises UsageError: there is no such interpreter or environment.
    """
    from .doctor.runner import diagnose_installation
    from .index.connection import cache_folder

    environ = os.environ if environ is None else environ
    return diagnose_installation(
        python,
        environment=detect(environ) if environment is None else environment,
        is_here=is_here,
        environ=environ,
        cache=cache_folder(environ),
        jobs=jobs,
        watch=watch,
    )


def fleet(
    machines: Iterable[Machine],
    release: Release | None = None,
    *,
    per_machine: bool = False,
    every_gpu: bool = False,
    environ: Mapping[str, str] | None = None,
) -> Fleet:
    """Choose a build for each machine of a fleet, and the fewest builds for all.

    :param machines: such as `read_machines` returns them.
    :param release: the metadata of the release; see `Release`. Without one, machines
        are put into groups and nothing is chosen.
    :param per_machine: treat each machine on its own, instead of in groups of machines
        that are alike.
    :param every_gpu: choose only builds with code for every GPU of a machine.
    :param environ: environment variables, as for `matrix`.
    :return: ``choices`` has a group of machines each, with what it gets; ``covering``
        has the labels that run on every machine, and ``cover`` the smallest set.
    :raises InputError: the metadata is not valid.
    """
    from .fleet.choosing import choose
    from .fleet.groups import group_machines

    return choose(
        group_machines(machines, per_machine=per_machine),
        None if release is None else _metadata(release),
        every_gpu=every_gpu,
        minor_version_compatibility=minor_version_compatibility(
            os.environ if environ is None else environ
        ),
    )
