"""Releases on an index, for every machine at once."""

from __future__ import annotations

import os
from collections.abc import Mapping

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..matrix.cells import Matrix
    from ..matrix.changes import Differences

__all__ = ["diff_of_projects", "matrix_of_project"]


def matrix_of_project(
    project: str,
    *,
    index_url: str | None = None,
    all_lanes: bool = False,
    minor_version_compatibility: bool | None = None,
    environ: Mapping[str, str] | None = None,
) -> Matrix:
    """Return which build of a release on an index each driver and each GPU gets.

    Ordinary wheels are judged as `releases` judges them, for the platform and the
    interpreter of this machine.

    :param project: such as ``torch==2.15.0``; without a version, the newest release
        that any machine runs.
    :param index_url: the index, by default the one that pip is configured for.
    :param all_lanes: as for `matrix`.
    :param minor_version_compatibility: as for `matrix`.
    :param environ: environment variables, by default those of the process, from which
        pip takes its settings.
    :raises InputError: no index has the release, or none can be read.
    :raises UsageError: ``project`` is malformed, or there is no index.
    """
    from ..index.pip.settings import Indexes
    from ..index.releases.machines import find_project_matrix
    from ..kept_files import cache_folder

    environ = os.environ if environ is None else environ
    return find_project_matrix(
        project,
        environ=environ,
        indexes=Indexes(url=index_url),
        all_lanes=all_lanes,
        minor_version_compatibility=minor_version_compatibility,
        cache=cache_folder(environ),
    )


def diff_of_projects(
    old: str,
    new: str,
    *,
    index_url: str | None = None,
    all_lanes: bool = False,
    minor_version_compatibility: bool | None = None,
    environ: Mapping[str, str] | None = None,
) -> Differences:
    """Return which machines get another build from a newer release on an index.

    :param old: such as ``torch==2.14.1``.
    :param new: such as ``torch==2.15.0``.
    :param index_url: as for `matrix_of_project`, and so are the others.
    :raises InputError: no index has a release, or none can be read.
    :raises UsageError: a project is malformed, or there is no index.
    """
    from ..index.pip.settings import Indexes
    from ..index.releases.machines import compare_projects
    from ..kept_files import cache_folder

    environ = os.environ if environ is None else environ
    return compare_projects(
        old,
        new,
        environ=environ,
        indexes=Indexes(url=index_url),
        all_lanes=all_lanes,
        minor_version_compatibility=minor_version_compatibility,
        cache=cache_folder(environ),
    )
