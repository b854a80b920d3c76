"""Find which builds machines get from a release or a project, and why."""

from __future__ import annotations

import functools
import os
from collections.abc import Collection, Iterable, Mapping, Sequence

from nvidia_variant_provider.api import Release, detect, metadata_of
from nvidia_variant_provider.errors import UsageError
from nvidia_variant_provider.machine.environment import Environment
from nvidia_variant_provider.machine.environment import (
    minor_version_compatibility as read_minor_version_compatibility,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..builds.releases import ReleaseTable
    from ..fleet.serving import Fleet
    from ..index.releases.machines import ProjectJudge
    from ..index.releases.reading import Inspect, Watch
    from ..inventories.model import Machine
    from ..matrix.cells import Matrix
    from ..matrix.changes import Differences, IndexDifferences


def releases(
    project: str,
    *,
    index_url: str | None = None,
    extra_index_urls: Sequence[str] = (),
    find_links: Sequence[str] = (),
    trusted_hosts: Sequence[str] = (),
    vendor_indexes: bool = False,
    every_gpu: bool = False,
    labels: Sequence[str] = (),
    environment: Environment | None = None,
    environ: Mapping[str, str] | None = None,
    python: str | None = None,
    platforms: Sequence[str] = (),
    inspect: Inspect = False,
    watch: Watch | None = None,
) -> ReleaseTable:
    """List the releases of a project on an index, with the builds that run here.

    The verdicts are those of ``pip`` and ``serve``. The function installs nothing, and
    reads no wheel unless ``inspect`` is set.

    :param project: the name of the project, without a version.
    :param index_url: the index, by default that of pip's configuration.
    :param extra_index_urls: further indexes, as for pip.
    :param find_links: pages of links and directories of wheels, as for pip.
    :param trusted_hosts: hosts without verified certificates, which may use plain HTTP.
    :param vendor_indexes: also read the indexes of vendors, which may have builds that
        run on the machine.
    :param every_gpu: accept only variants with code for every GPU.
    :param labels: select these builds instead of the best ones: ``LABEL`` for every
        project, or ``PROJECT=LABEL``. ``newest`` is then the newest release whose
        build with the label runs.
    :param environment: the machine; by default the one that `detect` returns.
    :param environ: environment variables, by default those of the process, which may
        contain settings of pip.
    :param python: the interpreter or environment of the wheels and of the pip settings;
        by default the running one.
    :param platforms: the platform tags of the wheels, as for pip, such as
        ``win_amd64``; by default those of the interpreter.
    :param inspect: read the GPU code of large wheels without other evidence, newest
        release first, until one runs, but at most ten; ``"all"`` reads all such wheels.
        Results are cached for the user, and `pip` and `serve` use them.
    :param watch: called with the name of each wheel before it is inspected; returns a
        context manager that yields ``None``, or a function that takes the bytes read
        and their total.
    :return: ``newest`` is the newest release with a build that runs, or ``None``, and
        ``releases`` has all releases, newest first.
    :raises InputError: no index has the project, or none can be read.
    :raises UsageError: the name is malformed, or there is no index or interpreter.
    """
    from ..files import cache_folder
    from ..index.pip.settings import Indexes
    from ..index.releases.machines import list_releases

    environ = os.environ if environ is None else environ
    machine = detect(environ) if environment is None else environment
    return list_releases(
        project,
        environment=machine,
        environ=environ,
        indexes=Indexes(
            url=index_url,
            extra=extra_index_urls,
            links=find_links,
            trusted=trusted_hosts,
            python=python,
            platforms=platforms,
        ),
        vendor_indexes=vendor_indexes,
        every_gpu=every_gpu,
        labels=labels,
        inspect=inspect,
        watch=watch,
        cache=cache_folder(environ),
    )


def matrix(
    variants_json: Release | None = None,
    *,
    project: str | None = None,
    index_url: str | None = None,
    assume: Collection[str] = (),
    all_pairs: bool = False,
    minor_version_compatibility: bool | None = None,
    environ: Mapping[str, str] | None = None,
) -> Matrix:
    """Return the build of a release that each driver-GPU pair gets.

    Drivers are CUDA versions such as 12.9, and GPUs are compute capabilities such as
    9.0, from the tables of `knowledge`. Values of other namespaces are treated as
    supported, except for the hardware of other vendors (`matrix.cells.OTHER_MAKERS`).
    The user's ``variants.toml`` is ignored.

    :param variants_json: the metadata of the release; see `Release`.
    :param project: a release on an index instead, such as ``torch==2.15.0``; without a
        version, the newest one that runs on at least one machine. Its wheels are judged
        as in `releases`, for the platform and the interpreter of this machine.
    :param index_url: the index, by default that of pip's configuration.
    :param assume: namespaces of other vendors' hardware to treat as supported.
    :param all_pairs: include drivers with GPUs that they do not support.
    :param minor_version_compatibility: accept builds that run only by CUDA's
        minor-version compatibility; ``None`` reads the setting from ``environ``.
    :param environ: environment variables with the opt-in to minor-version compatibility
        and, for a project, pip's settings; by default those of the process.
    :return: ``cells`` has a cell for each driver-GPU pair, sorted by driver and then by
        GPU, both ascending. `matrix.grid.grid_of` turns the cells into a table.
    :raises InputError: the metadata is not valid or has too many labels and values, or
        no index has the release.
    :raises UsageError: ``project`` is malformed, or there is no index or no release.
    """
    if project is not None:
        judge = _judge_on(index_url, environ, minor_version_compatibility)
        return judge.find_matrix(project, all_pairs=all_pairs)
    if variants_json is None:
        raise UsageError("there is no release", hint="give its metadata or a project")
    from ..matrix.cells import find_matrix

    return find_matrix(
        metadata_of(variants_json),
        assume=assume,
        all_pairs=all_pairs,
        minor_version_compatibility=_accepts(minor_version_compatibility, environ),
    )


def diff(
    old: Release,
    new: Release,
    *,
    assume: Collection[str] = (),
    all_pairs: bool = False,
    minor_version_compatibility: bool | None = None,
    environ: Mapping[str, str] | None = None,
) -> Differences:
    """Return which machines get a different build from a new release, and why.

    :param old: the metadata of the old release; see `Release`.
    :param new: the metadata of the new release.
    :param assume: this and the following parameters are as for `matrix`.
    :return: ``pairs`` has an entry for each driver-GPU pair, in the order of the cells
        of `matrix`. Its ``change`` is ``"lost"``, ``"changed"``, ``"gained"`` or
        ``"same"``.
    :raises InputError: the metadata of a release is not valid, or too large as for
        `matrix`.
    """
    from ..matrix.changes import find_differences

    return find_differences(
        metadata_of(old),
        metadata_of(new),
        assume=assume,
        all_pairs=all_pairs,
        minor_version_compatibility=_accepts(minor_version_compatibility, environ),
    )


def diff_of_projects(
    old: str,
    new: str,
    *,
    index_url: str | None = None,
    all_pairs: bool = False,
    minor_version_compatibility: bool | None = None,
    environ: Mapping[str, str] | None = None,
) -> Differences:
    """Return which machines get a different build from a newer release on an index.

    :param old: such as ``torch==2.14.1``.
    :param new: such as ``torch==2.15.0``.
    :param index_url: this and the following parameters are as for `matrix`.
    :raises InputError: no index has a release, or none can be read.
    :raises UsageError: a project is malformed, or there is no index.
    """
    judge = _judge_on(index_url, environ, minor_version_compatibility)
    return judge.compare(old, new, all_pairs=all_pairs)


def diff_of_indexes(
    old: str | os.PathLike[str],
    new: str | os.PathLike[str],
    *,
    all_pairs: bool = False,
    minor_version_compatibility: bool | None = None,
    environ: Mapping[str, str] | None = None,
) -> IndexDifferences:
    """Return which machines get a different build after an index has changed.

    For each project whose files differ, the function compares the builds that are
    selected from all its releases, for this interpreter and this platform.

    :param old: a saved page of a project in HTML or JSON, perhaps with files beside it;
        or a directory with files or pages in it or in its subdirectories.
    :param new: the same after the change.
    :param all_pairs: this and the following parameters are as for `matrix`.
    :return: ``projects`` has the `diff` of each project whose files differ. The change
        is also ``"lost"`` for a machine that gets an older release.
    :raises InputError: ``old`` or ``new`` cannot be read, or has no file.
    """
    judge = _judge_on(None, environ, minor_version_compatibility)
    return judge.compare_indexes(os.fspath(old), os.fspath(new), all_pairs=all_pairs)


def fleet(
    machines: Iterable[Machine],
    release: Release | None = None,
    *,
    project: str | None = None,
    index_url: str | None = None,
    per_machine: bool = False,
    every_gpu: bool = False,
    minor_version_compatibility: bool | None = None,
    environ: Mapping[str, str] | None = None,
) -> Fleet:
    """Choose a build for each machine, and the smallest set of builds for the fleet.

    :param machines: the machines, as `read_machines` returns them.
    :param release: the metadata of the release; see `Release`. Without a release or a
        project, machines are only grouped.
    :param project: choose among the releases of this project on an index instead, such
        as ``torch`` or ``torch==2.15.0``.
    :param index_url: the index, by default that of pip's configuration.
    :param per_machine: list each machine separately, instead of groups of identical
        machines.
    :param every_gpu: choose only builds with code for every GPU of a machine.
    :param minor_version_compatibility: as for `matrix`; used only with ``release``.
    :param environ: environment variables, as for `matrix`.
    :return: ``choices`` has each group of machines with its build; ``covering`` has the
        labels that run on every machine, and ``cover`` the smallest set of labels that
        serves all machines.
    :raises InputError: the metadata is not valid.
    """
    from ..fleet.serving import choose, group_machines, select_by_metadata

    environ = os.environ if environ is None else environ
    groups = group_machines(machines, per_machine=per_machine)
    if release is not None:
        metadata = metadata_of(release)
        accepts = _accepts(minor_version_compatibility, environ)
        strict, relaxed = (
            select_by_metadata(
                metadata, every_gpu=every_gpu, minor_version_compatibility=wanted
            )
            for wanted in (accepts, True)
        )
        return choose(groups, strict, with_compatibility=None if accepts else relaxed)
    if project is None:
        return choose(groups, None)
    from ..index.releases.machines import parse_project

    judge = _judge_on(index_url, environ, minor_version_compatibility, every_gpu)
    name, version = parse_project(project)
    one, every = (functools.partial(judge.select, wanted) for wanted in (project, name))
    return choose(groups, one, of_other_releases=None if version is None else every)


def _judge_on(
    index_url: str | None,
    environ: Mapping[str, str] | None,
    minor_version_compatibility: bool | None,
    every_gpu: bool = False,
) -> ProjectJudge:
    """Return a judge for projects on an index."""
    from ..files import cache_folder
    from ..index.pip.settings import Indexes
    from ..index.releases.machines import ProjectJudge

    environ = os.environ if environ is None else environ
    return ProjectJudge(
        environ=environ,
        indexes=Indexes(url=index_url),
        every_gpu=every_gpu,
        minor_version_compatibility=minor_version_compatibility,
        cache=cache_folder(environ),
    )


def _accepts(given: bool | None, environ: Mapping[str, str] | None) -> bool:
    """Return whether to accept builds that need minor-version compatibility."""
    if given is not None:
        return given
    return read_minor_version_compatibility(os.environ if environ is None else environ)
