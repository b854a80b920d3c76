"""Publish: inspect and validate wheels and indexes, and upgrade old metadata."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import IO

from nvidia_variant_provider.strict_json import read_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..census.running import Observer, Stop, Tally
    from ..gpu_code.inspection import Progress
    from ..gpu_code.report import WheelReport
    from ..index.server.static_pages import StaticIndex
    from ..lint.files import UncheckedFiles
    from ..lint.files import Watch as WatchReading
    from ..lint.findings import Finding
    from ..upgrading.releases import UpgradedFile


def upgrade(
    source: str | bytes | os.PathLike[str],
    *,
    name: str | None = None,
    for_uv: bool = False,
) -> UpgradedFile:
    """Convert variant metadata to the current schema version, without writing it.

    :param source: a path or a JSON text, in one of the forms of `Release`.
    :param name: the name of the metadata in the result and in messages, by default
        the path, or ``metadata`` for a text.
    :param for_uv: name the provider of ``nvidia`` in the way that makes uv use its own
        NVIDIA provider.
    :return: ``text`` is the upgraded document, or ``None`` if the publisher must decide
        something first; ``losses``, ``notes`` and ``problems`` have remarks.
    :raises InputError: the metadata cannot be read, is not valid, or has a newer
        version than the current one.
    """
    from ..upgrading.releases import upgrade_text

    if isinstance(source, str) and source.lstrip().startswith("{"):
        source = source.encode()
    if isinstance(source, bytes):
        return upgrade_text(name or "metadata", source, for_uv=for_uv)
    name = name or os.fspath(source)
    return upgrade_text(name, read_bytes(source, given=True), for_uv=for_uv)


def upgrade_index(
    folder: str | os.PathLike[str], *, write: bool = True, for_uv: bool = False
) -> list[UpgradedFile]:
    """Rewrite the metadata of all releases in a directory.

    The metadata of a release comes from its wheels if they are in the directory.

    :param write: replace changed files, each atomically; otherwise write nothing.
    :param for_uv: as for `upgrade`.
    :return: the result for each file, sorted by path.
    :raises InputError: the directory cannot be read or has no release, or a file cannot
        be written.
    """
    from ..upgrading.releases import upgrade_folder

    return upgrade_folder(os.fspath(folder), write=write, for_uv=for_uv)


def write_index(
    folder: str | os.PathLike[str], *, write: bool = True, for_uv: bool = False
) -> StaticIndex:
    """Write the pages with which any web server serves a directory as an index.

    Each project gets ``{project}/index.html`` and ``index.json`` (PEP 503, 691, 700),
    and each wheel its METADATA (PEP 658). Metadata of variants is rewritten as by
    `upgrade_index`. The same files give the same bytes. Files that were yanked on
    a page of an earlier run stay yanked.

    :param folder: the root of the index, with the files of all projects in it or in
        its subdirectories.
    :param write: write the pages, each after the files that it links to; otherwise
        write nothing.
    :param for_uv: as for `upgrade`.
    :return: ``pages`` has the page of each project. If ``files`` has a file with
        ``problems``, nothing was written.
    :raises InputError: the directory cannot be read or has no file for a page, or a
        file cannot be written.
    """
    from ..index.server import static_pages

    return static_pages.write_index(os.fspath(folder), write=write, for_uv=for_uv)


def validate(
    paths: Iterable[str | os.PathLike[str]],
    *,
    select: Collection[str] = (),
    ignore: Collection[str] = (),
    hashes: bool = True,
    jobs: int | None = None,
    watch: WatchReading | None = None,
    unchecked: UncheckedFiles | None = None,
    environ: Mapping[str, str] | None = None,
) -> list[Finding]:
    """Check metadata, wheels, directories and project pages before they are published.

    The rules NV5xx read all libraries in wheels, which is slow; ignore these rules if
    you do not need them.

    :param paths: files, directories or URLs of project pages. An unreadable path is a
        finding, not an error.
    :param select: prefixes of the rules to keep, such as ``NV3``; empty for all rules.
    :param ignore: prefixes of the rules to leave out; ``NV502:cu130_hopper`` ignores
        the rule for one label, and ``NV502:cu130_*`` for all labels of that form.
    :param hashes: download wheels of a page completely, to compare their SHA-256.
    :param jobs: the number of members of a wheel to read at the same time; by default
        the number of cores, but at most four.
    :param watch: called with the name of each wheel before it is read; returns a
        context manager that yields a progress function, as for `inspect`.
    :param unchecked: collects the files that could not be checked, with the reasons.
    :param environ: environment variables, by default those of the process, which may
        contain settings of pip.
    :return: the findings, sorted by path, rule and place.
    :raises UsageError: no rule begins with a given prefix.
    """
    from ..index import connect
    from ..lint.files import JOBS, nobody_watches
    from ..lint.runner import check_paths

    environ = os.environ if environ is None else environ
    return check_paths(
        paths,
        select=select,
        ignore=ignore,
        jobs=JOBS if jobs is None else jobs,
        watch=watch or nobody_watches,
        connect=lambda: connect(environ),
        hashes=hashes,
        unchecked=unchecked,
    )


# The function is named after the command, although a standard module has the same name.
def inspect(
    path: str | os.PathLike[str] | IO[bytes],
    *,
    name: str | None = None,
    jobs: int = 1,
    progress: Progress | None = None,
) -> WheelReport:
    """Find the GPU code in a wheel, a directory, a library or a loose file.

    A damaged file is a defect in the report, not an error.

    :param path: a wheel, library, DLL, static library, ``.cubin``, ``.fatbin`` or
        ``.ptx`` file, a directory of such files, or a wheel as an open binary file that
        can seek.
    :param name: the name of the file in the report, by default the path.
    :param jobs: the number of files to read at the same time.
    :param progress: called with the bytes read and their total, from any thread but
        one call at a time.
    :raises InputError: there is no such file, or it cannot be read.
    """
    from ..gpu_code.inspection import inspect_path

    source = os.fspath(path) if isinstance(path, (str, os.PathLike)) else path
    return inspect_path(source, name=name, jobs=jobs, progress=progress)


def inspect_distribution(
    name: str, *, jobs: int = 1, progress: Progress | None = None
) -> WheelReport:
    """Find the GPU code in an installed distribution of this interpreter.

    :param name: the name of the distribution, such as ``torch``.
    :param jobs: the number of files to read at the same time.
    :param progress: a function that reports the progress, as for `inspect`.
    :raises InputError: the distribution is not installed or does not list its files.
    """
    from ..gpu_code import inspection

    return inspection.inspect_distribution(name, jobs=jobs, progress=progress)


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
    """Inspect the wheels of an index, and record their GPU code in a store.

    Wheels in the store are not read again, unless they failed for a temporary reason.
    Each wheel is stored as soon as it is read. Worker processes import the main module
    of the program, so a script must call this function below
    ``if __name__ == "__main__":``.

    :param index: the URL of a root page, or a directory of wheels or of project
        directories.
    :param store: the SQLite file, which is created if missing.
    :param projects: the projects to read, by default all of the index.
    :param releases: the number of newest releases to read, by default all.
    :param platforms: patterns such as ``*linux*x86_64``; all platforms by default.
    :param every_wheel: read every wheel of a release, not only one for each platform
        and label.
    :param jobs: the number of processes, by default one for each core.
    :param dask: the address of a Dask scheduler, to use its cluster instead.
    :param deadline: the time limit of a wheel in seconds.
    :param per_host: the number of wheels to read from one server at the same time.
    :param max_bytes: start no further wheel after reading this number of bytes.
    :param observer: receives the events.
    :param stop: ends the census early, from another thread or a signal handler.
    :param environ: environment variables, by default those of the process.
    :return: the numbers of wheels read, skipped and failed, with bytes and seconds.
    :raises InputError: the index cannot be read, the store cannot be written, or no
        scheduler responds at the address.
    """
    from ..census.model import Options
    from ..census.running import take_census

    return take_census(
        os.fspath(index),
        os.fspath(store),
        Options(
            projects=projects,
            releases=releases,
            platforms=platforms,
            every_wheel=every_wheel,
            jobs=jobs,
            dask=dask,
            deadline=deadline,
            per_host=per_host,
            max_bytes=max_bytes,
        ),
        observer=observer,
        stop=stop,
        environ=os.environ if environ is None else environ,
    )
