"""Whole indexes: the GPU code of their wheels, kept in one file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..census.running import Observer, Stop, Tally

__all__ = ["census"]


def census(
    index: str | os.PathLike[str],
    store: str | os.PathLike[str],
    *,
    projects: Sequence[str] = (),
    releases: int | None = None,
    platforms: Sequence[str] = (),
    every_wheel: bool = False,
    jobs: int | None = None,
    dask: str | None = None,
    deadline: float = 900.0,
    per_host: int = 8,
    max_bytes: int | None = None,
    observer: Observer | None = None,
    stop: Stop | None = None,
    environ: Mapping[str, str] | None = None,
) -> Tally:
    """Inspect the wheels of an index, and keep what is in them in a store.

    Wheels that the store has are not read again, unless they failed for a reason that
    may have passed. Each wheel is stored as soon as it is read. The work is done in
    other processes, which import the main module of the program: a script that calls
    this function does so below ``if __name__ == "__main__":``.

    :param index: the URL of a root page, or a folder of wheels or of project folders.
    :param store: the SQLite file; it is made where there is none.
    :param projects: the projects to read, by default all of the index.
    :param releases: how many of the newest releases are read; all by default.
    :param platforms: patterns such as ``*linux*x86_64``; all platforms by default.
    :param every_wheel: read each wheel of a release, and not just one for each platform
        and label.
    :param jobs: how many processes read, by default one for each core.
    :param dask: the address of the scheduler of a Dask cluster that reads instead.
    :param deadline: how many seconds a wheel may take.
    :param per_host: how many wheels of one server are read at the same time.
    :param max_bytes: start no wheel after so many bytes.
    :param observer: is told what happens.
    :param stop: ends the census early, from another thread or a signal handler.
    :param environ: environment variables, by default those of the process.
    :return: how many wheels were read, skipped and failed, and what that cost.
    :raises InputError: the index cannot be read, or the store not be written, or no
        scheduler responds at the address.
    """
    from ..census.selecting import Choice
    from ..census.taking import Options, take_census
    from ..census.worker import Limits

    return take_census(
        os.fspath(index),
        os.fspath(store),
        Options(
            projects=projects,
            choice=Choice(
                releases=releases, platforms=platforms, every_wheel=every_wheel
            ),
            jobs=jobs,
            dask=dask,
            limits=Limits(seconds=deadline),
            per_host=per_host,
            max_bytes=max_bytes,
        ),
        observer=observer,
        stop=stop,
        environ=os.environ if environ is None else environ,
    )
