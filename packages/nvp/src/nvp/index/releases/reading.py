"""Reading the releases of a project from the indexes of a user."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, TypeAlias, TypeVar

from packaging.utils import canonicalize_name
from simple_repository import errors, model
from simple_repository.components.core import RepositoryContainer, SimpleRepository

from nvidia_variant_provider.errors import InputError, UsageError

from ...builds.page import Build
from ...builds.releases import ReleaseTable
from ..http.client import Client
from ..http.urls import redacted, split_credentials, why_no_index
from ..pip.command import PipCommand
from ..pip.interpreter import Interpreter
from ..selection.choice import ShownPage
from ..selection.component import find_machine, select
from ..selection.options import Selection
from ..selection.reader import Progress, Reader
from ..selection.wheel_files import is_large
from ..server.upstream import make_upstream
from ..threads import LoopThread
from .rows import make_table

__all__ = ["Inspect", "Watch", "make_indexes", "read_table", "read_tables"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

Inspect: TypeAlias = bool | Literal["all"]
"""Whether wheels of which nothing is known are read."""

Watch: TypeAlias = Callable[[str], AbstractContextManager[Progress | None]]
"""Watches the reading of a wheel, by its name."""

_MOST_INSPECTED = 10


def read_table(
    project: str,
    command: PipCommand,
    client: Client,
    *,
    selection: Selection,
    interpreter: Interpreter,
    inspect: Inspect,
    watch: Watch | None,
) -> ReleaseTable:
    """Read the releases of a project, and judge their builds for a machine.

    :param project: the normalized name.
    :param command: a command of pip, which has the indexes.
    :param watch: watches the reading of each wheel that is inspected.
    :raises InputError: no index has the project, or none can be read.
    :raises UsageError: there is no index.
    """
    reader = _Reader(
        project,
        make_indexes(command, client),
        client=client,
        selection=selection,
        reader=Reader(client, selection.cache),
        interpreter=interpreter,
        first_links=len(command.indexes),
    )
    return _run(reader.read(inspect=inspect, watch=watch or _unwatched))


def make_indexes(command: PipCommand, client: Client) -> list[SimpleRepository]:
    """Make the repositories of the indexes and the links that a command of pip has.

    :raises UsageError: there is no index, or one cannot be used.
    """
    indexes = [
        _make_index(url, command.credentials.get(url), client, links=False)
        for url in command.indexes
    ]
    indexes += [
        _make_index(place, command.credentials.get(place), client, links=True)
        for place in command.find_links
    ]
    if not indexes:
        raise UsageError("there is no index to read", hint="give --index-url")
    return indexes


def read_tables(
    project: str,
    indexes: Sequence[SimpleRepository],
    *,
    client: Client,
    selections: Sequence[Selection],
    interpreter: Interpreter,
    first_links: int,
) -> list[ReleaseTable]:
    """Do what `read_table` does for several machines, whose pages are read once.

    :param first_links: the number of the first of ``indexes`` that is a page of links.
    """

    async def read_all() -> list[ReleaseTable]:
        files = Reader(client, selections[0].cache)
        readers = [
            _Reader(
                project,
                indexes,
                client=client,
                selection=selection,
                reader=files,
                interpreter=interpreter,
                first_links=first_links,
            )
            for selection in selections
        ]
        try:
            # One after the other: the first one reads METADATA for all.
            return [
                await item.make_table(inspect=False, watch=_unwatched)
                for item in readers
            ]
        finally:
            await client.close()

    return _run(read_all())


def _make_index(
    url: str, pair: tuple[str, str] | None, client: Client, *, links: bool
) -> SimpleRepository:
    upstream = make_upstream(url, pair, client, links=links)
    if upstream is None:
        message, hint = why_no_index(split_credentials(url)[0])
        raise UsageError(message, path=redacted(url), hint=hint)
    return _Remembering(upstream)


class _Remembering(RepositoryContainer):
    """Reads each page once, although several components ask for it."""

    def __init__(self, source: SimpleRepository) -> None:
        super().__init__(source)
        self._pages: dict[str, asyncio.Task[model.ProjectDetail]] = {}

    async def get_project_page(
        self,
        project_name: str,
        *,
        request_context: model.RequestContext | None = None,  # noqa: ARG002
    ) -> model.ProjectDetail:
        """Return the page of a project."""
        name = canonicalize_name(project_name)
        if name not in self._pages:
            work = self.source.get_project_page(name)
            self._pages[name] = asyncio.ensure_future(work)
        return await self._pages[name]


class _Reader:
    """Reads one project from all indexes."""

    def __init__(
        self,
        project: str,
        indexes: Sequence[SimpleRepository],
        *,
        client: Client,
        selection: Selection,
        reader: Reader,
        interpreter: Interpreter,
        first_links: int,
    ) -> None:
        self._project = project
        self._first_links = first_links
        self._labelled = selection.pins.get(project) is not None
        self._indexes = indexes
        self._client = client
        self._interpreter = interpreter
        self._notes: list[str] = []
        self._repositories = select(
            indexes,
            selection=selection,
            reader=reader,
            find_environment=find_machine(selection),
            warn=self._notes.append,
        )

    async def read(self, *, inspect: Inspect, watch: Watch) -> ReleaseTable:
        """Return the table, and close the connections."""
        try:
            return await self.make_table(inspect=inspect, watch=watch)
        finally:
            await self._client.close()

    async def make_table(self, *, inspect: Inspect, watch: Watch) -> ReleaseTable:
        """Return the table."""
        numbers = await self._read_pages()
        if inspect:
            for number in numbers:
                await self._inspect(number, watch, everything=inspect == "all")
        pages = [await self._read_page(number) for number in numbers]
        notes = dict.fromkeys(self._notes)
        table = make_table(
            self._project,
            pages,
            self._interpreter,
            notes,
            only_selected=self._labelled,
        )
        logger.info(
            "%s: %d releases, the newest that runs is %s",
            self._project,
            len(table.releases),
            table.newest,
        )
        return table

    async def _read_pages(self) -> list[int]:
        """Return the numbers of the indexes that have the project."""
        results = await asyncio.gather(
            *(item.get_project_page(self._project) for item in self._indexes),
            return_exceptions=True,
        )
        numbers: list[int] = []
        failures: list[InputError] = []
        for number, result in enumerate(results):
            if isinstance(result, model.ProjectDetail):
                if not result.files and number >= self._first_links:
                    continue  # A page of links is for all projects.
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
        raise InputError(message, hint="check the name, or give --index-url")

    async def _read_page(self, number: int) -> ShownPage:
        _, shown = await self._repositories[number].show(self._project)
        return shown

    async def _inspect(self, number: int, watch: Watch, *, everything: bool) -> None:
        """Inspect wheels of which nothing is known, newest release first.

        Releases older than one that runs are left out, and so are all after the first
        ten, unless ``everything`` is to be inspected.
        """
        repository = self._repositories[number]
        tried: set[tuple[str, str | None]] = set()
        while everything or len(tried) < _MOST_INSPECTED:
            page = await self._read_page(number)
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
                and _is_worth_reading(build, file)
            ):
                tried.add(key)
                return file
        return None


def _is_worth_reading(build: Build, file: model.File) -> bool:
    foreign = build.backend is not None and build.backend.is_foreign
    return build.judgement.verdict == "unknown" and is_large(file) and not foreign


@contextlib.contextmanager
def _unwatched(_: str) -> Any:
    yield None


def _run(work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` in a thread, since the caller may have an event loop of its own."""
    thread = LoopThread()
    try:
        return thread.call(work)
    finally:
        thread.close()
