"""A simple repository that keeps installers away from builds that cannot run.

`BuildRepository` wraps any repository of the library simple-repository. Wheels with a
variant label pass through it. All other wheels are shown, yanked (PEP 592) or hidden
as `nvidia_variant_provider.builds.page` decides.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import sysconfig
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import Version
from simple_repository import errors, model
from simple_repository.components.core import RepositoryContainer, SimpleRepository

from ...builds.backends import Backend
from ...builds.page import Build, Decision, Decisions, decide
from ...errors import InputError
from ...machine.environment import Environment
from ..http.client import Client
from .core_metadata import CoreMetadataReader
from .files import FileReader
from .judging import PageJudge
from .options import Selection

__all__ = ["METADATA_KEY", "BuildRepository", "JudgedPage"]

logger = logging.getLogger(__name__)

METADATA_KEY = "_nvidia_variant_provider_metadata"
"""Marks a file whose METADATA this repository sends although the upstream does not."""

_UNAVAILABLE = (
    errors.PackageNotFoundError,
    errors.ResourceUnavailable,
    errors.SourceRepositoryUnavailable,
)

_PAGES = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgedPage:
    """What is known of the builds of a project, and what becomes of them.

    :param builds: the wheels for this platform and those that run anywhere, newest
        first.
    :param follows: the project whose backend this one takes.
    """

    project: str
    builds: Sequence[Build] = ()
    decisions: Decisions = field(
        default_factory=lambda: Decisions(files={}, newest=None, chosen={})
    )
    follows: str | None = None


class BuildRepository(RepositoryContainer):
    """Keeps ordinary installers away from builds that cannot run on a machine.

    :param source: the repository whose pages are changed.
    :param selection: what builds are selected for; it has to say the machine.
    :param client: reads the files that ``source`` names on other servers.
    :param others: repositories that the installer reads as well. What a build requires
        may be on one of them.
    :param warn: called with a sentence for each thing that cannot be used.
    """

    def __init__(
        self,
        source: SimpleRepository,
        *,
        selection: Selection,
        client: Client,
        others: Sequence[SimpleRepository] = (),
        warn: Callable[[str], None] = lambda _: None,
    ) -> None:
        super().__init__(source)
        self._selection = selection
        self._platform = selection.platform or sysconfig.get_platform().replace(
            "-", "_"
        )
        folder = Path(selection.cache, "metadata") if selection.cache else None
        self._metadata = CoreMetadataReader(FileReader(source, client), folder)
        self._others = tuple(others)
        self._warn = warn
        self._judge: PageJudge | None = None
        self._driver = False
        self._preparing = asyncio.Lock()
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
            self._with_metadata(changed)
            for file in page.files
            if (changed := _apply(file, decisions.get(file.filename))) is not None
        ]
        return replace(page, files=tuple(files))

    async def get_resource(
        self,
        project_name: str,
        resource_name: str,
        *,
        request_context: model.RequestContext | None = None,
    ) -> model.Resource:
        """Return a file; METADATA that has been read is sent from memory."""
        name = resource_name.removesuffix(".metadata")
        if name != resource_name:
            kept = self._metadata.find(name)
            if kept is not None:
                return model.TextResource(text=kept.decode("utf-8", "replace"))
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

    async def _judge_page(
        self, project: str, files: Sequence[model.File]
    ) -> JudgedPage:
        judge = await self._prepare()
        found = await judge.judge(project, files)
        ours = [build for build in found if build.platform in (None, self._platform)]
        if not any(build.judgement.verdict != "unknown" for build in ours) and not any(
            build.backend for build in ours
        ):
            return JudgedPage(project=project, builds=ours)
        follows, backend = await self._find_backend(project, judge)
        decisions = decide(
            ours,
            driver=self._driver,
            named=self._selection.named.get(project, ()),
            label=self._selection.pins.get(project),
            follow=backend,
        )
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
            project=project, builds=ours, decisions=decisions, follows=follows
        )

    async def _prepare(self) -> PageJudge:
        async with self._preparing:
            if self._judge is None:
                find: Callable[[], Environment] = self._selection.machine or Environment
                environment = await asyncio.to_thread(find)
                self._driver = environment.cuda_driver_version is not None
                self._judge = PageJudge(
                    environment,
                    self._platform,
                    self._metadata.read,
                    self._read_everywhere,
                    self._warn,
                )
            return self._judge

    async def _read_everywhere(self, project: str) -> Sequence[model.File]:
        files: list[model.File] = []
        for repository in (self.source, *self._others):
            try:
                page = await repository.get_project_page(project)
            except (InputError, *_UNAVAILABLE):
                continue
            files += page.files
        return files

    async def _find_backend(
        self, project: str, judge: PageJudge
    ) -> tuple[str | None, Backend | None]:
        """Find the backend of the project that this one depends on, such as torch."""
        for name in sorted(judge.required.get(project, ())):
            files = await self._read_everywhere(name)
            builds = [
                build
                for build in await judge.judge(name, files, (project,))
                if build.platform in (None, self._platform)
            ]
            decisions = decide(
                builds, driver=self._driver, label=self._selection.pins.get(name)
            )
            releases: list[Version] = sorted(decisions.chosen, reverse=True)
            for release in releases:
                if decisions.newest is None or release <= decisions.newest:
                    return name, decisions.chosen[release]
        return None, None

    def _with_metadata(self, file: model.File) -> model.File:
        """Announce METADATA (PEP 658) that the upstream does not send as a file."""
        kept = None if file.dist_info_metadata else self._metadata.find(file.filename)
        if kept is None:
            return file
        private: Mapping[str, object] = {
            **dict(file.private_metadata.items()),
            METADATA_KEY: True,
        }
        return replace(
            file,
            dist_info_metadata={"sha256": hashlib.sha256(kept).hexdigest()},
            private_metadata=model.PrivateMetadataMapping.from_any_mapping(private),
        )


def _apply(file: model.File, decision: Decision | None) -> model.File | None:
    """Return the file as the page shows it; ``None`` for one that is hidden."""
    if decision is None or decision.action == "show":
        return file
    if decision.action == "hide":
        return None
    # Keep the reason of the index, which yanked the file for everybody.
    return file if file.yanked else replace(file, yanked=decision.reason)
