"""What the pages of several projects and indexes share: verdicts and requirements."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

from packaging.version import Version
from simple_repository import model
from simple_repository.components.core import SimpleRepository

from ...builds.needs import Backend
from ...builds.page import Build, PageVisibility, find_visibility
from ...builds.stepping_back import follow
from ...builds.verdicts import Judgement
from ..http.kept_keys import is_yanked
from ..http.threads import in_thread
from .indexes import BUILD, MINUTE, Indexes, Known
from .options import Selection
from .wheel_files import builds_for

Required = Mapping[Version, Mapping[str, str]]
"""Maps each release of a project to its requirements on projects with GPU builds."""

JudgeFiles = Callable[
    [str, Iterable[model.File], int], Awaitable[tuple[Sequence[Build], Required]]
]
"""Judges the files of a project; see `PageJudge.judge`."""

_MOST = 100_000  # the maximum number of files of the projects to follow

PATIENCE = 20.0
"""The time limit for all METADATA of a page in seconds: an installer is waiting."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Part(Known):
    """The judged wheels of a project on one index.

    :param builds: the wheels for this platform or any platform, newest first.
    :param judged: all wheels.
    """

    builds: Sequence[Build]
    judged: Sequence[Build]
    required: Required

    @property
    def is_silent(self) -> bool:
        """Whether nothing says that any of the wheels has GPU code."""
        return all(build.is_silent for build in self.builds)

    @property
    def memory(self) -> int:
        """The estimated memory in bytes."""
        texts = [text for each in self.required.values() for text in each.values()]
        texts += [text for build in self.judged for text in build.judgement.reasons]
        return BUILD * (1 + len(self.judged)) + sum(map(len, texts))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Followed(Known):
    """The backend that each release of a project must match.

    :param name: the project, such as torch, that decides the backends, if there is one.
    :param parts: the wheels of the project whose releases these are.
    """

    name: str | None
    backends: Mapping[Version, Backend]
    parts: Sequence[Part]

    @property
    def memory(self) -> int:
        """The estimated memory in bytes."""
        parts = sum(part.memory for part in self.parts)
        return BUILD * (1 + len(self.backends)) + parts


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Leader(Known):
    """The builds of a project, such as torch, that the builds of others require.

    :param builds: the wheels for this platform or any platform that the user's pins
        allow, newest first.
    :param visibility: the visibility of ``builds``.
    :param verdicts: the verdicts on the builds that an installer may take, by release.
    :param files: the number of files on all indexes.
    """

    builds: Sequence[Build]
    visibility: PageVisibility
    verdicts: Mapping[Version, Sequence[Judgement]]
    files: int

    @property
    def memory(self) -> int:
        """The estimated memory in bytes."""
        verdicts = sum(map(len, self.verdicts.values()))
        return BUILD * (1 + len(self.builds) + verdicts)


class Leaders:
    """The projects that the builds of other projects require.

    Pages share the verdicts on these projects: otherwise, a large page of one index
    would delay each page of the others.
    """

    def __init__(
        self, indexes: Indexes, selection: Selection, judge: JudgeFiles
    ) -> None:
        self._indexes, self._selection, self._judge = indexes, selection, judge
        self._platform = selection.platform_of_builds

    async def find(self, project: str, depth: int) -> Leader:
        """Judge the builds of a project on all indexes.

        :param depth: see `PageJudge.judge`.
        :returns: no builds if an index is late.
        """
        indexes, own = self._indexes, self._indexes.own

        async def judge() -> Leader:
            files: Sequence[model.File] = ()
            with suppress(asyncio.TimeoutError):
                files = await indexes.read_all(project)
            judged, _ = await self._judge(project, files, depth)
            mine = {x.filename for x in files if own in indexes.origins(x)}
            lead = partial(self._lead, project, len(files), judged, mine)
            environment = await self._selection.found.soon()
            driver = environment.cuda_driver_version is not None
            return await in_thread(lead, indexes.late, driver=driver)

        key = own, project, depth
        return await indexes.once(key, lambda: None, judge, age=MINUTE)

    def _lead(
        self,
        project: str,
        files: int,
        judged: Sequence[Build],
        own: Set[str],
        late: frozenset[SimpleRepository],
        *,
        driver: bool,
    ) -> Leader:
        selection = self._selection
        label = selection.pins.get(project)
        pins = {x.partition("+")[0] for x in selection.pinned.get(project, ())}
        builds = builds_for(judged, self._platform)
        builds = [x for x in builds if not pins or str(x.release) in pins]
        return Leader(
            builds=builds,
            visibility=find_visibility(builds, driver=driver, label=label),
            verdicts=self._find_verdicts(project, judged, own),
            files=files,
            late=late,
        )

    def _find_verdicts(
        self, project: str, judged: Sequence[Build], own: Set[str]
    ) -> Mapping[Version, Sequence[Judgement]]:
        """Find the verdicts on the builds that an installer may take, by release.

        :param own: the files of the index whose page is made. Builds of this index may
            require its CPU builds, although GPU builds of other indexes hide them.
        """
        named = self._selection.named.get(project, ())
        label = self._selection.pins.get(project)
        find = partial(find_visibility, driver=True, named=named, label=label)
        every = find(judged).files
        mine = [build for build in judged if build.file in own]
        alone = find(mine).files if len(mine) < len(judged) else every
        verdicts: dict[Version, dict[Judgement, None]] = {}
        for build in judged:
            foreign = build.backend is not None and build.backend.is_foreign
            if build.platform == self._platform and build.pythons and not foreign:
                judgement, each = build.judgement, every[build.file]
                is_shown = "show" in (each.action, alone.get(build.file, each).action)
                if judgement.verdict == "cpu" and not is_shown:
                    # Refuse hidden builds, which an exact pin would allow.
                    reasons = (each.reason,)
                    judgement = replace(judgement, verdict="cannot", reasons=reasons)
                verdicts.setdefault(build.release, {})[judgement] = None
        # Keep equal verdicts once: a release may have thousands of builds.
        return {release: list(each) for release, each in verdicts.items()}

    async def follow(self, project: str, parts: Sequence[Part]) -> Followed:
        """Find the backends that the builds of a project on all indexes must match."""

        async def find() -> Followed:
            name, backends = None, dict[Version, Backend]()
            with suppress(asyncio.TimeoutError):
                finding = self._find_backends(parts)
                name, backends = await asyncio.wait_for(finding, PATIENCE)
            late = self._indexes.late.union(*(part.late for part in parts))
            return Followed(name=name, backends=backends, parts=parts, late=late)

        return await self._indexes.once(project, lambda: parts, find)

    async def _find_backends(
        self, parts: Sequence[Part]
    ) -> tuple[str | None, dict[Version, Backend]]:
        """Find the required project, such as torch, that decides the backends.

        :returns: the name of that project, and the required backend of each release.
        """
        left = _MOST
        builds = [build for part in parts for build in part.builds]
        required: dict[Version, Mapping[str, str]] = {}
        for release, each in chain(*(part.required.items() for part in parts)):
            required[release] = {**each, **required.get(release, {})}
        for name in sorted({name for each in required.values() for name in each}):
            leader = await self.find(name, 1)
            left -= leader.files
            if left < 0 or (leader.late and not leader.files):
                break
            texts = {r: each[name] for r, each in required.items() if name in each}
            found = await in_thread(
                follow, builds, texts, leader.builds, leader.visibility
            )
            if found:
                return name, found
        return None, {}


def state_of(files: Iterable[model.File]) -> int:
    """Return a hash of the data of files on which verdicts depend.

    URLs do not count, because their signatures differ from reply to reply.
    """
    states = (
        (
            file.filename,
            file.size,
            file.yanked or is_yanked(file),
            file.requires_python,
            repr(file.hashes),
            repr(file.dist_info_metadata),
        )
        for file in files
    )
    return hash(frozenset(states))
