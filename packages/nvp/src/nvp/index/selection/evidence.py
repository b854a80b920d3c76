"""METADATA of wheels, and what pages share: verdicts and requirements."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
    Set,
)
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from packaging.version import Version
from simple_repository import model
from simple_repository.components.core import SimpleRepository

from nvidia_variant_provider.errors import InputError
from nvidia_variant_provider.machine.environment import Environment

from ...builds.needs import Backend, needs_of_requirements, requirements_on
from ...builds.page import Build, Visibility, find_visibility
from ...builds.stepping_back import follow
from ...builds.verdicts import Judgement
from ...knowledge.builds import PROJECTS, Needs, required_projects
from ...metadata.requirements import Work
from ...wheels.archive import parse_requires
from ..http.threads import in_thread
from ..http.urls import TooSlowError
from .indexes import BUILD, MINUTE, Indexes, Known, LateError, is_vendor
from .kept import FOREVER, WARNED, Aging
from .options import Selection
from .pieces import UNAVAILABLE
from .wheel_files import (
    OrdinaryWheel,
    builds_for,
    find_candidates,
    find_verdicts,
    find_withdrawn,
    without_exposed,
)

logger = logging.getLogger(__name__)

Required = Mapping[Version, Mapping[str, str]]
"""Maps each release of a project to its requirements on projects with GPU builds."""

Verdicts = Mapping[Version, Sequence[Judgement]]
"""The verdicts on the builds of a project, by release. A release without builds that an
installer may take has none."""

FoundVerdicts = tuple["Verdicts | None", "Verdicts | None"]
"""The verdicts of the own index and the indexes of vendors, and those of other indexes.
They are ``None`` if one of the indexes may have unknown builds."""

JudgeFiles = Callable[
    [str, Iterable[model.File], int], Awaitable[tuple[Sequence[Build], Required]]
]
"""Judges the files of a project; see `PageJudge.judge`."""

_MOST = 100_000  # the maximum number of files of the projects to follow

PATIENCE = 20.0
"""The time limit for all METADATA of a page in seconds: an installer is waiting."""

_Found = tuple[Iterable[str], "Needs | None"]

ReadMetadata = Callable[[str, model.File, Callable[[bytes], _Found]], Awaitable[_Found]]
"""Calls a function with METADATA of a wheel, and returns its result."""


@dataclass(kw_only=True, slots=True)
class Reading:
    """The remaining limits for reading METADATA of a page, and the results so far.

    :param wheels: the number of wheels that may still be read.
    :param until: the deadline, by the clock of the event loop.
    :param environment: the machine; empty until it is needed.
    :param required: the requirements that were read, for each project and release.
    :param judged: the verdicts on the required projects.
    :param turn: held while a required project is judged.
    :param work: the remaining work for all requirements of the page.
    :param size: the size of METADATA that may still be parsed, in bytes.
    :param few: held while METADATA of a wheel is read, for eight wheels at most, so
        that little is read after a limit is reached.
    """

    wheels: int
    until: float
    environment: Environment = field(default_factory=Environment)
    required: dict[str, dict[Version, dict[str, str]]] = field(default_factory=dict)
    judged: dict[str, FoundVerdicts] = field(default_factory=dict)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    work: Work = field(default_factory=Work)
    size: int = 16 * 1024 * 1024
    few: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(8))

    @property
    def seconds(self) -> float:
        """The remaining time in seconds."""
        return self.until - asyncio.get_running_loop().time()

    @property
    def is_over(self) -> bool:
        """Whether one of the limits is reached."""
        return self.wheels <= 0 or self.seconds <= 0


class NeedsReader:
    """Derives GPU requirements of wheels from METADATA.

    :param warn: called with a sentence, once for each project with unusable METADATA.
    :param patience: the time limit for the METADATA of a page in seconds.
    """

    def __init__(
        self, read_metadata: ReadMetadata, warn: Callable[[str], None], patience: float
    ) -> None:
        self._read_metadata = read_metadata
        self._warn = warn
        self._patience = patience
        self._warned: Aging[str, bool] = Aging(WARNED, FOREVER)

    async def read(
        self,
        project: str,
        wheel: OrdinaryWheel,
        known: Needs | None,
        reading: Reading,
        pythons: Collection[int],
    ) -> Needs | None:
        """Find the GPU requirements of a wheel in its METADATA.

        :param known: the requirements from other evidence.
        :param pythons: see `requirements_on`.
        :returns: the requirements from METADATA, or else ``known``.
        """
        if reading.is_over:
            return known
        name = wheel.file.filename
        reading.wheels -= 1
        try:
            work = self._read_in_turn(project, wheel, reading, pythons)
            requires, needs = await asyncio.wait_for(work, reading.seconds)
        except (asyncio.TimeoutError, TooSlowError) as error:
            # Skip the rest of the page, which would also time out.
            reading.wheels = 0
            late = f"not there after {self._patience:g} s"
            self._warn_of(project, name, str(error) or late)
            return known
        except UNAVAILABLE as error:
            # Messages of simple-repository name only the request, so replace them.
            logger.debug("%s: %s", name, error)
            self._warn_of(project, name, "the index does not send it")
            return known
        except (InputError, OSError) as error:
            self._warn_of(project, name, str(error))
            return known
        if needs is None or (needs.doubt and known):
            needs = known
        if needs is None:
            # The wheel's own code is unknown: judge it by the builds that it requires.
            needs = Needs(evidence="metadata", source=f"METADATA of {name}")
        # The label of an extension names its torch release, which METADATA may lack.
        return replace(needs, requires=(*requires, *(known.requires if known else ())))

    async def _read_in_turn(
        self,
        project: str,
        wheel: OrdinaryWheel,
        reading: Reading,
        pythons: Collection[int],
    ) -> _Found:
        async with reading.few:
            if reading.seconds <= 0:
                raise asyncio.TimeoutError
            parse = partial(_parse, project, wheel, reading, pythons)
            return await self._read_metadata(project, wheel.file, parse)

    def _warn_of(self, project: str, name: str, reason: str) -> None:
        if self._warned.get(project):
            logger.info("%s: its METADATA could not be read: %s", name, reason)
            return
        self._warned.put(project, True)
        self._warn(f"{name}: its METADATA could not be read: {reason}")


def _parse(
    project: str,
    wheel: OrdinaryWheel,
    reading: Reading,
    pythons: Collection[int],
    metadata: bytes,
) -> _Found:
    """Return the requirements that count, and the GPU requirements, in METADATA.

    :raises InputError: METADATA of the page is larger than the limit.
    """
    reading.size -= len(metadata)
    if reading.size < 0:
        reading.until = 0.0
        metadata = b""  # the traceback of the error would keep the bytes
        raise InputError("METADATA of the page is too large")
    requires = parse_requires(metadata)
    logger.info("%s: %d requirements", wheel.file.filename, len(requires))
    requires = requirements_on(requires, wheel.platform, reading.work, pythons)
    # Keep only what counts, because the event loop parses requirements again.
    # No index has what a requirement names by its URL.
    named = [text for text in requires if "@" not in text.partition(";")[0]]
    required = required_projects(named, PROJECTS, reading.work)
    return required.values(), needs_of_requirements(requires, project)


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
    :param part: the wheels of the project whose releases these are.
    """

    name: str | None
    backends: Mapping[Version, Backend]
    part: Part

    @property
    def memory(self) -> int:
        """The estimated memory in bytes."""
        return BUILD * (1 + len(self.backends)) + self.part.memory


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Leader(Known):
    """The builds of a project, such as torch, that the builds of others require.

    :param builds: the wheels of one index for this platform or any platform that the
        user's pins allow, newest first.
    :param judged: all wheels of the index for this platform or any platform.
    :param visibility: the visibility of each wheel of the index, by file name.
    :param verdicts: the verdicts on the builds that an installer may take, by release.
    :param withdrawn: the releases with a file that the index yanked.
    :param files: the number of files on the index.
    :param is_unread: whether installers may find other files there.
    """

    builds: Sequence[Build]
    judged: Sequence[Build]
    visibility: Mapping[str, Visibility]
    verdicts: Verdicts
    withdrawn: Set[Version]
    files: int
    is_unread: bool

    @property
    def memory(self) -> int:
        """The estimated memory in bytes."""
        verdicts = sum(map(len, self.verdicts.values()))
        return BUILD * (1 + len(self.judged) + verdicts)


class Leaders:
    """The projects that the builds of other projects require.

    Each index has its own verdicts, which the pages of all indexes share. Other indexes
    must not decide what a build of an index that has a required project needs.
    """

    def __init__(
        self, indexes: Indexes, selection: Selection, judge: JudgeFiles
    ) -> None:
        self._indexes, self._selection, self._judge = indexes, selection, judge
        self._platform = selection.platform_of_builds

    async def find(self, project: str, depth: int) -> FoundVerdicts:
        """Find the verdicts on the builds of a project that an installer may take.

        :param depth: see `PageJudge.judge`.
        """
        every = {x: await self._read(x, project, depth) for x in self._indexes.all}
        withdrawn = {x for leader in every.values() if leader for x in leader.withdrawn}
        near: dict[Version, list[Judgement]] = {}
        far: dict[Version, list[Judgement]] = {}
        unread = set[bool]()
        for index, leader in every.items():
            is_near = self._is_near(index)
            if leader is None or leader.is_unread:
                if not is_vendor(index):
                    unread.add(is_near)
                continue
            found = leader.verdicts
            if withdrawn:  # of these releases, installers see other builds, too
                known = leader.judged, leader.visibility, withdrawn
                found = await in_thread(without_exposed, found, *known)
            for release, each in found.items():
                if each or is_near:
                    (near if is_near else far).setdefault(release, []).extend(each)
        return None if True in unread else near, None if False in unread else far

    def _is_near(self, index: SimpleRepository) -> bool:
        """Return whether an index may decide about builds on the own one."""
        own = self._indexes.own
        return own in (None, index) or is_vendor(own) or is_vendor(index)

    async def _read(
        self, index: SimpleRepository, project: str, depth: int
    ) -> Leader | None:
        """Judge the builds of a project on an index; ``None`` if it is late."""

        async def judge() -> Leader:
            with self._indexes.of(index):
                page, why = None, "it is late"
                with suppress(asyncio.TimeoutError):
                    reading = self._indexes.read(index, project)
                    page, why = await asyncio.wait_for(reading, PATIENCE)
                files = page.files if page else ()
                judged, _ = await self._judge(project, files, depth)
                known = files, self._indexes.late, bool(why)
                return await in_thread(self._lead, project, judged, *known)

        key = index, project, depth
        work = self._indexes.once(key, lambda: None, judge, age=MINUTE)
        with suppress(LateError):
            return await self._indexes.wait(index, work)
        return None

    def _lead(
        self,
        project: str,
        judged: Sequence[Build],
        files: Sequence[model.File],
        late: frozenset[SimpleRepository],
        is_unread: bool,
    ) -> Leader:
        pins = self._selection.pinned.get(project, ())
        allowed = {pin.partition("+")[0] for pin in pins}
        builds = builds_for(judged, self._platform)
        named = self._selection.named.get(project, ())
        label = self._selection.pins.get(project)
        shown = find_visibility(judged, driver=True, named=named, label=label).files
        return Leader(
            builds=[x for x in builds if not pins or str(x.release) in allowed],
            judged=builds,
            visibility=shown,
            verdicts=find_verdicts(judged, shown, self._platform),
            withdrawn=find_withdrawn(files, project),
            files=len(files),
            is_unread=is_unread,
            late=late,
        )

    async def follow(self, project: str, own: Part) -> Followed:
        """Find the backends that the builds of a project on its index must match.

        :param own: these builds.
        """

        async def find() -> Followed:
            name, backends = None, dict[Version, Backend]()
            with suppress(asyncio.TimeoutError):
                finding = self._find_backends(own)
                name, backends = await asyncio.wait_for(finding, PATIENCE)
            late = self._indexes.late  # also those of the part, by `Indexes.once`
            return Followed(name=name, backends=backends, part=own, late=late)

        key = self._indexes.own, project
        return await self._indexes.once(key, lambda: own, find)

    async def _find_backends(
        self, own: Part
    ) -> tuple[str | None, dict[Version, Backend]]:
        """Find the required project, such as torch, that decides the backends.

        Other indexes decide only if the own index has no build of that project, about
        releases that are known to require it.

        :returns: the name of that project, and the required backend of each release.
        """
        left = _MOST
        names = {name for each in own.required.values() for name in each}
        environment = await self._selection.found.soon()
        driver = environment.cuda_driver_version is not None
        target = self._selection.target
        for name in sorted(names):
            every: dict[SimpleRepository, Sequence[Build]] = {}
            for index in self._indexes.all:
                if leader := await self._read(index, name, 1):
                    left, every[index] = left - leader.files, leader.builds
            if left < 0:
                break
            required = own.required.items()
            texts = {r: each[name] for r, each in required if name in each}
            builds = own.builds
            near = {x: known for x, known in every.items() if self._is_near(x)}
            if any(near.values()):
                every = near
            elif len(near) < len(every):
                builds = [build for build in builds if build.release in texts]
            label = self._selection.pins.get(name)
            leading, _ = await in_thread(
                find_candidates, None, every, (), label, target
            )
            decide = partial(find_visibility, driver=driver, label=label)
            visibility = await in_thread(decide, leading)
            found = await in_thread(follow, builds, texts, leading, visibility)
            if found:
                return name, found
        return None, {}
