"""A simple repository that keeps installers away from builds that cannot run.

`BuildRepository` wraps any repository of the library simple-repository. Wheels with a
variant label pass through it. All other wheels are shown, yanked (PEP 592) or hidden
as `nvp.builds.page` decides.
"""

from __future__ import annotations

import asyncio
import logging
import re
import sysconfig
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from packaging.utils import canonicalize_name
from packaging.version import Version
from simple_repository import model
from simple_repository.components.core import RepositoryContainer, SimpleRepository

from nvidia_variant_provider.errors import InputError
from nvidia_variant_provider.machine.environment import Environment

from ...builds.backends import Backend, parse_backend
from ...builds.page import (
    Build,
    Decision,
    Decisions,
    decide,
    decide_elsewhere,
    find_strays,
    follow,
)
from ...wheels.names import is_for_platform
from ..http.client import Client
from ..http.ranges import RangeSupport
from .announcing import Announcer
from .core_metadata import CoreMetadataReader
from .files import UNAVAILABLE, FileReader
from .inspected import Inspections, Progress
from .judging import PageJudge
from .options import Selection
from .wheel_files import is_large

__all__ = ["BuildRepository", "JudgedPage"]

logger = logging.getLogger(__name__)

_PAGES = 256

_ORIGINS = 100_000
"""Files of other indexes that are remembered: more than one page has."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgedPage:
    """What is known of the builds of a project, and what becomes of them.

    :param builds: the wheels for this platform and those that run anywhere, newest
        first.
    :param follows: the project whose backend this one takes.
    :param strays: by release that cannot follow it, the backend that is shown, and the
        one that it should be of.
    """

    project: str
    builds: Sequence[Build] = ()
    decisions: Decisions = field(
        default_factory=lambda: Decisions(files={}, newest=None, chosen={})
    )
    follows: str | None = None
    strays: Mapping[Version, tuple[Backend, Backend]] = field(default_factory=dict)


class BuildRepository(RepositoryContainer):
    """Keeps ordinary installers away from builds that cannot run on a machine.

    :param source: the repository whose pages are changed.
    :param selection: what builds are selected for; it has to say the machine.
    :param client: reads the files that ``source`` names on other servers.
    :param others: repositories that the installer reads as well. What a build requires
        may be on one of them.
    :param ranges: knows which servers send parts of files.
    :param warn: called with a sentence for each thing that cannot be used.
    """

    def __init__(
        self,
        source: SimpleRepository,
        *,
        selection: Selection,
        client: Client,
        others: Sequence[SimpleRepository] = (),
        ranges: RangeSupport | None = None,
        warn: Callable[[str], None] = lambda _: None,
    ) -> None:
        super().__init__(source)
        self._selection = selection
        self.platform = selection.platform or sysconfig.get_platform().replace("-", "_")
        cache = Path(selection.cache) if selection.cache else None
        folder = cache and cache / "metadata"
        self._others = tuple(others)
        self._readers = {
            index: CoreMetadataReader(FileReader(index, client), folder)
            for index in (source, *self._others)
        }
        self.metadata = self._readers[source]
        """Reads METADATA of the wheels of ``source``."""
        self._announcer = (
            Announcer(self.metadata, ranges or RangeSupport(client), self.platform)
            if selection.announces
            else None
        )
        inspected = cache and cache / "inspected"
        self._inspections = Inspections(FileReader(source, client), inspected)
        self._folders = {index: _folder_of_index(index) for index in self._readers}
        # Where the files of other indexes are from.
        self._origins: OrderedDict[tuple[str, str], SimpleRepository] = OrderedDict()
        self._judge = PageJudge(
            self._find_environment,
            self.platform,
            self._read_metadata,
            self._read_everywhere,
            warn,
            folder_of=self._folder_of,
            find_inspected=self._inspections.find,
        )
        self._environment: Environment | None = None
        self._asking = asyncio.Lock()
        self._pages: OrderedDict[str, JudgedPage] = OrderedDict()

    async def get_project_page(
        self,
        project_name: str,
        *,
        request_context: model.RequestContext | None = None,
    ) -> model.ProjectDetail:
        """Return the page with the builds that this machine can run."""
        page = await self.source.get_project_page(
            project_name, request_context=request_context
        )
        project = canonicalize_name(project_name)
        judged = await self._judge_page(project, page.files)
        self._pages[project] = judged
        self._pages.move_to_end(project)
        if len(self._pages) > _PAGES:
            self._pages.popitem(last=False)
        decisions = judged.decisions.files
        files = [
            changed
            for file in page.files
            if (changed := _apply(file, decisions.get(file.filename))) is not None
        ]
        if self._announcer is not None:
            files = await self._announcer.announce(project, files)
        return replace(page, files=tuple(files))

    async def get_resource(
        self,
        project_name: str,
        resource_name: str,
        *,
        request_context: model.RequestContext | None = None,
    ) -> model.Resource:
        """Return a file, or METADATA that the page announces."""
        name = resource_name.removesuffix(".metadata")
        if name != resource_name and self._announcer is not None:
            project = canonicalize_name(project_name)
            if not self._announcer.knows(project):
                # An installer that has kept the page asks for METADATA alone.
                await self.get_project_page(project)
            text = await self._announcer.read(project, name)
            if text is not None:
                return model.TextResource(text=text)
        return await self.source.get_resource(
            project_name, resource_name, request_context=request_context
        )

    def judged(self, project: str) -> JudgedPage:
        """Return what is known of the last page of a project."""
        name = canonicalize_name(project)
        return self._pages.get(name, JudgedPage(project=name))

    def all_judged(self) -> list[JudgedPage]:
        """Return what is known of the last page of each project."""
        return list(self._pages.values())

    async def inspect(
        self, project: str, file: model.File, progress: Progress | None = None
    ) -> bool:
        """Read the GPU code of a wheel for this platform, and keep what is found.

        The next page of the project is judged by it.

        :returns: whether the wheel could be read completely.
        :raises InputError: it cannot be read at all.
        """
        needs = await self._inspections.inspect(project, file, self.platform, progress)
        return needs is not None

    async def _judge_page(
        self, project: str, files: Sequence[model.File]
    ) -> JudgedPage:
        judged = await self._judge.judge(project, files)
        ours = self._for_here(judged)
        if all(b.judgement.verdict == "unknown" and not b.backend for b in ours):
            return JudgedPage(project=project, builds=ours)
        follows, followed = await self._find_backends(project, ours)
        driver = await self._has_driver()
        decisions = decide(
            [*ours, *await self._judge_others(project)],
            driver=driver,
            named=self._selection.named.get(project, ()),
            label=self._selection.pins.get(project),
            follow=followed,
        )
        names = {build.file for build in ours}
        chosen = {name: d for name, d in decisions.files.items() if name in names}
        if self._selection.several_platforms:
            elsewhere = [build for build in judged if build.file not in names]
            chosen |= decide_elsewhere(ours, chosen, elsewhere, driver=driver)
        decisions = replace(decisions, files=chosen)
        for name, decision in decisions.files.items():
            if decision.action != "show":
                logger.debug("%s: %s: %s", name, decision.action, decision.reason)
        logger.info(
            "%s: %d builds, the newest release that runs is %s",
            project,
            len(ours),
            decisions.newest,
        )
        return JudgedPage(
            project=project,
            builds=ours,
            decisions=decisions,
            follows=follows,
            strays=find_strays(decisions, followed),
        )

    async def _find_environment(self) -> Environment:
        async with self._asking:
            if self._environment is None:
                find: Callable[[], Environment] = self._selection.machine or Environment
                self._environment = await asyncio.to_thread(find)
            return self._environment

    async def _has_driver(self) -> bool:
        return (await self._find_environment()).cuda_driver_version is not None

    async def _judge_others(self, project: str) -> list[Build]:
        """Judge what the other indexes have of a project, without reading METADATA.

        Installers compare the files of all indexes, so that the decisions about one
        index rest on what the others offer.
        """
        builds: list[Build] = []
        for number, index in enumerate(self._others):
            files = await self._read_files(index, project)
            # Indexes may have different files of one name.
            judged = await self._judge.judge(project, files, asks=False)
            builds += [
                replace(build, file=f"{number}/{build.file}")
                for build in self._for_here(judged)
            ]
        return builds

    def _for_here(self, builds: Sequence[Build]) -> list[Build]:
        """Return the builds for this platform, and those that run anywhere.

        A wheel for macOS counts as none of them: it would stand for a release that
        is shown although nothing of it can be installed here.
        """
        return [
            build
            for build in builds
            if is_for_platform(build.file.rpartition("-")[2], self.platform)
        ]

    async def _read_everywhere(self, project: str) -> Sequence[model.File]:
        files: list[model.File] = []
        for index in (self.source, *self._others):
            files += await self._read_files(index, project)
        return files

    async def _read_files(
        self, index: SimpleRepository, project: str
    ) -> Sequence[model.File]:
        """Read the page of one index; without files where it cannot be read."""
        try:
            page = await index.get_project_page(project)
        except (InputError, *UNAVAILABLE):
            return ()
        if index is not self.source:
            for file in page.files:
                self._origins[file.filename, file.url] = index
            while len(self._origins) > _ORIGINS:
                self._origins.popitem(last=False)
        return page.files

    async def _read_metadata(self, project: str, file: model.File) -> bytes:
        index = self._origins.get((file.filename, file.url), self.source)
        return await self._readers[index].read(project, file)

    def _folder_of(self, file: model.File) -> Backend | None:
        """Return the backend by which the folder of the index calls a file.

        Such a folder also has copies of files that are the same for every backend,
        so that the file's own URL has to name the backend too.
        """
        index = self._origins.get((file.filename, file.url), self.source)
        backend = self._folders[index]
        if backend is None or not is_large(file):
            return None
        words = re.split(r"[/-]", unquote(urlsplit(file.url).path).lower())
        return backend if backend.label.lower() in words else None

    async def _find_backends(
        self, project: str, ours: Sequence[Build]
    ) -> tuple[str | None, Mapping[Version, Backend]]:
        """Find the project that this one depends on, such as torch, and its backends.

        :returns: its name, and by release of this project the backend to be of.
        """
        required = self._judge.required(project)
        for name in sorted({name for texts in required.values() for name in texts}):
            files = await self._read_everywhere(name)
            leader = self._for_here(await self._judge.judge(name, files, (project,)))
            label = self._selection.pins.get(name)
            decisions = decide(leader, driver=await self._has_driver(), label=label)
            requirements = {
                release: texts[name]
                for release, texts in required.items()
                if name in texts
            }
            if followed := follow(ours, requirements, leader, decisions):
                return name, followed
        return None, {}


def _folder_of_index(index: SimpleRepository) -> Backend | None:
    """Read the last folder of an index's URL, such as ``cu126``."""
    place = getattr(index, "url", None) or getattr(index, "folder", "")
    parts = [part for part in urlsplit(str(place)).path.split("/") if part]
    # PEP 503 has indexes end with any name, and many end with this one.
    while parts and parts[-1] == "simple":
        parts.pop()
    return parse_backend(parts[-1]) if parts else None


def _apply(file: model.File, decision: Decision | None) -> model.File | None:
    """Return the file as the page shows it; ``None`` for one that is hidden."""
    if decision is None or decision.action == "show":
        return file
    if decision.action == "hide":
        return None
    # Keep the reason of the index, which yanked the file for everybody.
    return file if file.yanked else replace(file, yanked=decision.reason)
