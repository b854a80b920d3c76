"""Read the releases of a project from the indexes of a user."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from packaging.version import Version
from simple_repository import errors, model
from simple_repository.components.core import SimpleRepository

from nvidia_variant_provider.errors import (
    InputError,
    ProviderError,
    UsageError,
)

from ...builds.needs import requirements_on
from ...builds.releases import GpuRequirement, ReleaseTable, find_gpu_requirements
from ...knowledge.tables import find_vendors
from ...wheels.archive import parse_requires, parse_wheel_name
from ..http.client import Client
from ..http.threads import LoopThread
from ..http.urls import PassingError, server_of, split_credentials, why_no_index
from ..pip.command import PipCommand
from ..pip.settings import Interpreter
from ..selection.component import select
from ..selection.options import Selection
from ..selection.pieces import UNAVAILABLE
from ..selection.reader import Progress, Reader
from ..selection.shown import Room, ShownPage
from ..selection.variants import ReleaseReader
from ..selection.wheel_files import is_large
from ..server.places import Remembering, make_upstream
from .rows import make_table

if TYPE_CHECKING:
    from nvidia_variant_provider.metadata import VariantsMetadata

    from ..selection.renaming import Release

logger = logging.getLogger(__name__)

Inspect: TypeAlias = bool | Literal["all"]
"""Whether to inspect wheels without other evidence; ``all`` means without limits."""

Watch: TypeAlias = Callable[[str], AbstractContextManager[Progress | None]]
"""Given the name of a wheel, creates a context manager that shows the progress."""

_MOST_INSPECTED = 10

_MOST_JUDGED = 120_000
"""The default of `Sources.most` for files from strangers, which is about 10 seconds.
The eight newest releases of torch have 72 builds for a platform; machines are 350."""

_MOST_OF_RELEASE = 350_000
"""`Sources.most` for some releases of a project, which is about 10 seconds. A release
of torch has up to 400 files."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sources:
    """The indexes from which releases are read, and the target interpreter.

    :param indexes: the indexes of the user, followed by the pages of links.
    :param first_links: the position of the first page of links.
    :param releases: reads the variants of releases, for all machines.
    :param interpreter: the target interpreter.
    :param places: the URLs of the indexes, and of the pages of links.
    :param most: the maximum number of files of a project, times the number of machines.
    :param thread: runs all requests, because a client belongs to one event loop.
    """

    indexes: Sequence[SimpleRepository]
    first_links: int
    client: Client
    releases: _ReadingOnce
    interpreter: Interpreter
    places: Sequence[str] = ()
    most: float = math.inf
    thread: LoopThread = field(default_factory=LoopThread)

    def __enter__(self) -> Sources:
        return self

    def __exit__(self, *_: object) -> None:
        self.thread.close(self.client.close())

    def with_vendors(
        self, selection: Selection, warn: Callable[[str], None]
    ) -> Sources:
        """Return the sources with the indexes of vendors added."""
        from ..server.vendors import VendorUpstream

        upstream = VendorUpstream(
            self.client, selection, own=lambda: self.indexes, warn=warn
        )
        return replace(self, indexes=[*self.indexes, Remembering(upstream)])

    def only(self, project: str, *versions: Version) -> Sources:
        """Return sources that have only some releases of a project."""
        only = project, frozenset(versions)
        indexes = [Remembering(item, only) for item in self.indexes]
        return replace(self, indexes=indexes, most=min(self.most, _MOST_OF_RELEASE))

    def with_files(self, project: str, files: Sequence[model.File]) -> Sources:
        """Return sources that have only these files of a project.

        Wheels that the interpreter cannot install are left out: vendors have ten times
        as many of them, and each wheel is judged for each machine.
        """
        from ..server.served_locks import SavedUpstream

        usable = tuple(filter(self._is_usable, files))
        upstream = SavedUpstream({project: usable}, self.client)
        indexes = [Remembering(upstream)]
        once = _ReadingOnce(self.releases.reader)  # keeps nothing of other projects
        return replace(
            self, indexes=indexes, first_links=1, releases=once, most=_MOST_JUDGED
        )

    def _is_usable(self, file: model.File) -> bool:
        """Return whether the interpreter can install a file, as far as is known."""
        if not file.filename.endswith(".whl"):
            return True
        try:
            tags = parse_wheel_name(file.filename).tags
        except InputError:
            return True
        interpreter = self.interpreter
        is_here = interpreter.rank(tags) is not None
        return is_here and interpreter.is_allowed(file.requires_python)


def make_sources(
    command: PipCommand, client: Client, interpreter: Interpreter, cache: str | None
) -> Sources:
    """Create the sources from the indexes and links of a pip command.

    :param cache: the cache directory.
    :raises UsageError: there is no index, or an index cannot be used.
    """
    places = [(url, False) for url in command.indexes]
    places += [(place, True) for place in command.find_links]
    indexes: list[SimpleRepository] = []
    for url, links in places:
        pair = command.credentials.get(url)
        upstream = make_upstream(url, pair, client, links=links)
        if upstream is None:
            message, hint = why_no_index(split_credentials(url)[0])
            raise UsageError(message, path=url, hint=hint)
        indexes.append(Remembering(upstream))
    if not indexes:
        raise UsageError("there is no index to read", hint="give --index-url")
    return Sources(
        indexes=indexes,
        first_links=len(command.indexes),
        client=client,
        releases=_ReadingOnce(_FailingOnce(client, cache)),
        interpreter=interpreter,
        places=[url for url, _ in places],
    )


def read_tables(
    project: str,
    sources: Sources,
    selections: Sequence[Selection],
    *,
    inspect: Inspect = False,
    watch: Watch | None = None,
) -> list[ReleaseTable]:
    """Read the releases of a project, and judge their builds for several machines.

    :param project: the normalized name.
    :param selections: the options, one selection for each machine.
    :param watch: shows the progress of each inspected wheel.
    :raises InputError: no index has the project, or no index can be read.
    """
    watching = watch or (lambda _: nullcontext())

    async def read_all() -> list[ReleaseTable]:
        if sources.most < math.inf:
            listed = await asyncio.gather(
                *(item.get_project_page(project) for item in sources.indexes),
                return_exceptions=True,  # the readers report the errors
            )
            pages = (x for x in listed if isinstance(x, model.ProjectDetail))
            count = sum(len(page.files) for page in pages)
            number = len(selections)
            if count * number > sources.most:
                message = f"{count:,} files are too many for {number} machines"
                hint = "give an index or saved pages with fewer files"
                raise InputError(message, path=project, hint=hint)
        # Work sequentially: the first reader caches METADATA for the others, and
        # the memory of a reader, such as the reasons for each label, is reused.
        return [
            await _Reader(project, sources, each).make_table(
                inspect=inspect, watch=watching
            )
            for each in selections
        ]

    # Use a thread, because the caller may have an event loop of its own.
    return sources.thread.call(read_all())


class _FailingOnce(Reader):
    """Asks only once for METADATA that cannot be read, because machines may be many.

    After a timeout, the server is not asked again at all. An index server must not use
    this class, because it must ask again after some minutes.
    """

    def __init__(self, client: Client, cache: str | None) -> None:
        super().__init__(client, cache)
        # The keys are those of `_listed`, and servers that did not answer in time.
        self._failures: dict[str, Exception] = {}

    async def read_metadata(
        self, index: SimpleRepository, project: str, file: model.File
    ) -> bytes:
        """Read METADATA of a wheel, or raise the error of the first attempt."""
        server, own = server_of(file.url), _listed(file)
        for key in (own, server):
            if key in self._failures:
                raise self._failures[key].with_traceback(None)
        try:
            return await super().read_metadata(index, project, file)
        except asyncio.CancelledError:
            message = "the server did not send METADATA of another wheel in time"
            self._failures[server] = InputError(message, path=file.url)
            raise
        except (InputError, OSError, *UNAVAILABLE) as error:
            is_late = isinstance(error, PassingError) and error.status == 504
            self._failures[server if is_late else own] = error
            raise


class _ReadingOnce(ReleaseReader):
    """Reads the variants of each release only once, because machines may be many."""

    def __init__(self, reader: Reader) -> None:
        super().__init__(reader)
        # The keys are those of `_listed`. `Room` limits the metadata of a page.
        self._results: dict[tuple[str, ...], VariantsMetadata | Exception] = {}

    async def read(
        self,
        index: SimpleRepository,
        project: str,
        release: Release,
        files: Mapping[str, model.File],
        room: Room,
    ) -> VariantsMetadata:
        """Read the metadata of a release, or raise the error of the first attempt."""
        labelled = [wheel.file_name for wheel in release.labelled]
        names = [release.metadata] if release.metadata else labelled
        key = tuple(_listed(files[name]) for name in names)
        if key not in self._results:
            try:
                self._results[key] = await super().read(
                    index, project, release, files, room
                )
            except (ProviderError, *UNAVAILABLE) as error:
                self._results[key] = error
        result = self._results[key]
        if isinstance(result, Exception):
            raise result.with_traceback(None)
        return result


def _listed(file: model.File) -> str:
    """Return what a page says of a file: another page may give other hashes for it."""
    return repr((file.filename, file.url, file.hashes, file.dist_info_metadata))


class _Reader:
    """Reads one project from all indexes, for one machine."""

    def __init__(self, project: str, sources: Sources, selection: Selection) -> None:
        self._project = project
        self._sources = sources
        self._interpreter = sources.interpreter
        self._labelled = selection.pins.get(project) is not None
        self._notes: list[str] = []
        self._find_environment = selection.found.soon
        self._repositories = select(
            sources.indexes,
            selection=selection,
            reader=sources.releases.reader,
            warn=self._notes.append,
            releases=sources.releases,
        )

    async def make_table(self, *, inspect: Inspect, watch: Watch) -> ReleaseTable:
        """Return the table of releases."""
        numbers = await self._read_pages()
        if inspect:
            for number in numbers:
                await self._inspect(number, watch, everything=inspect == "all")
        pages = []
        for number in numbers:
            _, page = await self._repositories[number].show(self._project)
            pages.append(page)
        table = make_table(
            self._project,
            pages,
            self._interpreter,
            dict.fromkeys(self._notes),
            only_selected=self._labelled,
        )
        platform = self._repositories[0].platform
        table = replace(table, platform=platform)
        if table.is_for_any_platform:
            found = await self._find_gpu_requirements(table, numbers, pages)
            table = replace(table, gpu_requirements=found)
        logger.info(
            "%s: %d releases, the newest that runs is %s",
            self._project,
            len(table.releases),
            table.newest,
        )
        return table

    async def _find_gpu_requirements(
        self, table: ReleaseTable, numbers: Sequence[int], pages: Sequence[ShownPage]
    ) -> tuple[GpuRequirement, ...]:
        """Find the required packages with the GPU code of the release to install."""
        chosen = table.chosen.selected if table.chosen else None
        for number, page in zip(numbers, pages, strict=True):
            file = next((each for each in page.files if each.filename == chosen), None)
            if file is None:
                continue
            index = self._sources.indexes[number]
            try:
                metadata = await self._sources.releases.reader.read_metadata(
                    index, self._project, file
                )
                requires = parse_requires(metadata)
            except (InputError, *UNAVAILABLE) as error:
                logger.info("%s: %s", file.filename, error)
                return ()
            environment = await self._find_environment()
            requires = requirements_on(requires, table.platform)
            return find_gpu_requirements(self._project, requires, environment)
        return ()

    async def _read_pages(self) -> list[int]:
        """Return the positions of indexes with the project; add notes on failures."""
        results = await asyncio.gather(
            *(item.get_project_page(self._project) for item in self._sources.indexes),
            return_exceptions=True,
        )
        numbers: list[int] = []
        failures: list[InputError] = []
        for number, result in enumerate(results):
            if isinstance(result, model.ProjectDetail):
                if not result.files and number >= self._sources.first_links:
                    continue  # this page of links lacks the project
                numbers.append(number)
            elif isinstance(result, InputError):
                failures.append(result)
            elif isinstance(result, errors.SourceRepositoryUnavailable):
                failures.append(InputError("the index cannot be read"))
            elif not isinstance(result, errors.PackageNotFoundError):
                raise result
        if numbers:
            self._notes += map(str, failures)
            return numbers
        if failures:
            raise failures[0]
        message = f"no index has a project {self._project}"
        hint = "check the name, or give --index-url"
        sources = self._sources
        if find_vendors(self._project) and len(sources.indexes) == len(sources.places):
            hint = "vendors have it on indexes of their own: give --vendor-indexes"
        raise InputError(message, hint=hint)

    async def _inspect(self, number: int, watch: Watch, *, everything: bool) -> None:
        """Inspect wheels without evidence, newest release first.

        Unless ``everything`` is set, releases older than one that runs are skipped, and
        only ten builds are inspected.
        """
        repository = self._repositories[number]
        tried: set[tuple[str, str | None]] = set()
        while everything or len(tried) < _MOST_INSPECTED:
            _, page = await repository.show(self._project)
            file = self._find_unknown(page, tried, everything=everything)
            if file is None:
                return
            name = file.filename
            try:
                with watch(name) as progress:
                    complete = await repository.inspect(self._project, file, progress)
            except InputError as error:
                self._notes.append(str(error))
                continue
            if not complete:
                self._notes.append(f"{name}: parts of it could not be read")

    def _find_unknown(
        self,
        page: ShownPage,
        tried: set[tuple[str, str | None]],
        *,
        everything: bool,
    ) -> model.File | None:
        """Find the wheel to inspect next, and add its build to ``tried``."""
        files = {file.filename: file for file in page.files}
        listed = {
            build.file: build
            for release in make_table(self._project, [page], self._interpreter).releases
            for build in release.builds
        }
        platform = self._repositories[0].platform
        for build in page.judged.builds:
            if not everything and build.judgement.verdict in ("runs", "partly"):
                if build.platform == platform:
                    return None
                continue
            key = str(build.release), build.version.local
            file = files[build.file]
            if (
                key not in tried
                and build.file in listed
                and build.platform == platform
                and build.judgement.verdict == "unknown"
                and is_large(file)
                and not (build.backend and build.backend.is_foreign)
            ):
                tried.add(key)
                return file
        return None
