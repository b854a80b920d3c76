"""The visibility of a page's regular wheels, which also depends on other indexes.

`BuildJudge` keeps installers away from builds that cannot run: wheels without a variant
label are shown, yanked (PEP 592) or hidden by the rules of `builds.page`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from packaging.version import Version
from simple_repository import model
from simple_repository.components.core import SimpleRepository

from nvidia_variant_provider.errors import InputError
from nvidia_variant_provider.machine.environment import Environment

from ...builds.needs import Backend
from ...builds.page import (
    ANY_PYTHON,
    Build,
    PageVisibility,
    Visibility,
    find_exposed,
    find_visibility,
    find_visibility_elsewhere,
)
from ...builds.stepping_back import Limits, find_strays, follow
from ...metadata.requirements import requirements_on
from ...wheels.archive import parse_requires, release_of, release_of_sdist
from ..http.kept_keys import is_yanked
from ..http.threads import Turns, in_thread
from .judging import PATIENCE, PageJudge, Required
from .kept import FOREVER, WARNED, Aging
from .options import Selection
from .other_indexes import OtherIndexes
from .pieces import UNAVAILABLE
from .reader import Progress, Reader, may_find_files
from .wheel_files import (
    builds_for,
    find_early,
    folder_of_file,
    folder_of_index,
    has_plain,
    is_vendor,
)

logger = logging.getLogger(__name__)

_MOST = 100_000  # files whose index is cached, and files of the projects to follow

_AT_ONCE, _IN_ALL = 4, 64
"""The maximum numbers of METADATA files that are read at the same time from a server,
and from all servers of an index."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PageVerdicts:
    """The verdicts on the builds of a project, and their visibility.

    :param builds: the wheels for this platform or any platform, newest first.
    :param follows: the project, such as torch, whose backend the builds must match.
    :param strays: for each release without a build for the required backend, the shown
        and the required backend.
    :param environment: the machine; empty if no wheel was judged.
    """

    project: str
    environment: Environment = field(default_factory=Environment)
    builds: Sequence[Build] = ()
    visibility: PageVisibility = field(
        default_factory=lambda: PageVisibility(files={}, newest=None, backends={})
    )
    follows: str | None = None
    strays: Mapping[Version, tuple[Backend, Backend]] = field(default_factory=dict)

    def with_label(self, label: str | None) -> frozenset[str]:
        """Return the names of the wheels with a label that the user requested."""
        if label is None:
            return frozenset()
        return frozenset(build.file for build in self.builds if build.has_label(label))

    def apply(self, files: Sequence[model.File]) -> list[model.File]:
        """Return the files for the page: without those to hide, and others marked."""
        shown = []
        for file in files:
            each = self.visibility.files.get(file.filename)
            if each is None or each.action == "show":
                shown.append(file)
            elif each.action == "yank":
                # Keep the reason given by an index that yanked the file for all users.
                shown.append(replace(file, yanked=file.yanked or each.reason))
        return shown


class BuildJudge:
    """Decides which regular wheels of all indexes an installer can select.

    Installers compare the files of all indexes, so the visibility on one page depends
    on the pages of the other indexes.

    :param indexes: all indexes of the installer, which also have its dependencies.
    :param warn: called with a sentence for each unusable item.
    """

    def __init__(
        self,
        indexes: Sequence[SimpleRepository],
        selection: Selection,
        reader: Reader,
        *,
        others: OtherIndexes | None = None,
        warn: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._indexes, self._others = tuple(indexes), others or OtherIndexes()
        self._selection, self._reader = selection, reader
        self.platform = selection.platform_of_builds
        self._folders = {index: folder_of_index(index) for index in self._indexes}
        # The index of each file, by the hash of its name and URL, which may be long.
        self._origins: Aging[int, SimpleRepository] = Aging(_MOST, FOREVER)
        self._limits = Limits(selection.limits)
        self._turns = Turns(_AT_ONCE, _IN_ALL)
        self._warn = warn
        self._unsure: Aging[str, bool] = Aging(WARNED, FOREVER)
        self._judge = PageJudge(
            selection.found.soon,
            self.platform,
            self._read_metadata,
            self._read_everywhere,
            warn,
            find_visible=self._find_visible,
            folder_of=lambda x: folder_of_file(x, self._folders[self._origin(x)]),
            find_inspected=reader.find_inspected,
            target=selection.target,
            every_gpu=selection.every_gpu,
            limits=self._limits,
        )

    async def judge(
        self, index: SimpleRepository, project: str, files: Sequence[model.File]
    ) -> PageVerdicts:
        """Judge the wheels of a page of an index, and decide their visibility.

        :param project: the normalized name.
        """
        self._note_origins(index, files)
        judged, required = await self._judge.judge(project, files)
        ours = builds_for(judged, self.platform)
        if all(build.is_silent for build in ours):
            return PageVerdicts(project=project, builds=ours)
        environment = await self._selection.found.soon()
        driver = environment.cuda_driver_version is not None
        follows: str | None = None
        followed: Mapping[Version, Backend] = {}
        with suppress(asyncio.TimeoutError):
            finding = self._find_backends(project, ours, required, driver)
            follows, followed = await asyncio.wait_for(finding, PATIENCE)
        named = self._selection.named.get(project, ())
        listed = [*files]
        others, is_sure = await self._judge_others(index, project, ours, listed)
        # The user's own indexes take precedence over the indexes of vendors.
        running = _find_running(ours if not is_vendor(index) else (), others)
        late = {
            build.file: build
            for build in ours
            if is_vendor(index)
            and build.release in running
            and build.version.local not in named
        }
        label = self._selection.pins.get(project)
        decide = partial(
            find_visibility,
            driver=driver,
            named=named,
            label=label,
            follow=followed,
            has_plain=has_plain(listed, project, self._selection.target),
            early=find_early(listed, project, self._selection.target),
        )
        builds = [
            *(build for build in ours if build.file not in late),
            *(b for v, b in others if not (v and b.release in running)),
        ]
        visibility = await in_thread(decide, builds)
        if driver and self._selection.limits is not None:
            stays, taken = self._limits.find_left(
                project, builds, visibility.files, lambda some: decide(some).files
            )
            visibility = replace(visibility, files={**visibility.files, **stays})
            await self._note_required(project, files, taken)
        names = {build.file for build in ours}
        by_file = {name: d for name, d in visibility.files.items() if name in names}
        for build in late.values():
            reason = f"your own index has a build of {build.release} that runs"
            by_file[build.file] = Visibility(action="yank", reason=reason)
        if self._selection.several_platforms:
            there = [build for build in judged if build.file not in names]
            elsewhere = partial(find_visibility_elsewhere, driver=driver)
            by_file |= await in_thread(elsewhere, ours, by_file, there)
        left = [b for b in builds if visibility.files[b.file].action == "show"]
        by_file |= self._find_sdists(project, files, ours, by_file, left)
        is_asked = label is not None and any(x.has_label(label) for x in builds)
        is_late = self._others.is_late
        if not is_asked and (is_late or not is_sure):
            # The files of the other index may be exposed.
            by_file = {}
            if not self._unsure.get(project):
                self._unsure.put(project, True)
                why = "a page that nvp cannot read may have other files of it"
                why = "another index is late" if is_late else why
                self._warn(f"no builds of {project} are selected, because {why}")
        by_file |= self._find_exposed(project, listed, by_file, is_asked=is_asked)
        visibility = replace(visibility, files=by_file)
        for name, each in by_file.items():
            if each.action != "show":
                logger.debug("%s: %s: %s", name, each.action, each.reason)
        logger.info("%s: %d builds, %s runs", project, len(ours), visibility.newest)
        return PageVerdicts(
            project=project,
            environment=environment,
            builds=ours,
            visibility=visibility,
            follows=follows,
            strays=find_strays(visibility, followed),
        )

    async def inspect(
        self,
        index: SimpleRepository,
        project: str,
        file: model.File,
        progress: Progress | None = None,
    ) -> bool:
        """Read the GPU code of a wheel for this platform, and cache the result.

        The next page of the project uses the result.

        :returns: whether the wheel could be read completely.
        :raises InputError: the wheel cannot be read at all.
        """
        reading = self._reader.inspect(index, project, file, self.platform, progress)
        return await reading is not None

    async def _note_required(
        self, project: str, files: Sequence[model.File], build: Build | None
    ) -> None:
        """Record the requirements of a build that is selected but cannot run."""
        file = next((x for x in files if build and x.filename == build.file), None)
        if file is None:
            return
        try:
            reading = self._read_metadata(project, file)
            metadata = await asyncio.wait_for(reading, PATIENCE)
        except (InputError, OSError, asyncio.TimeoutError, *UNAVAILABLE) as error:
            logger.info("%s: METADATA cannot be read: %s", file.filename, error)
            return
        self._limits.note(requirements_on(parse_requires(metadata), self.platform))

    def _find_sdists(
        self,
        project: str,
        files: Sequence[model.File],
        builds: Sequence[Build],
        by_file: Mapping[str, Visibility],
        shown: Sequence[Build],
    ) -> dict[str, Visibility]:
        """Find the source distributions to yank with the wheels of a release.

        Otherwise, an installer that skips yanked wheels would build from source. With
        neither, it would take a pre-release.

        :param shown: the shown wheels of all indexes. For the Pythons of none, an
            installer would build an older release from source.
        """
        target = self._selection.target
        if target is not None and target.builds(project):
            return {}
        releases: dict[Version, list[Build]] = {}
        for build in builds:
            releases.setdefault(build.release, []).append(build)
        refused: dict[Version, Visibility] = {}
        for release, group in releases.items():
            ours = [build for build in group if build.installable]
            # Installers prefer a source to wheels that the index itself yanked.
            ours = ours or [build for build in group if not build.withdrawn]
            able = {
                python
                for build in ours
                if by_file[build.file].action == "show"
                for python in build.pythons or ANY_PYTHON
            }
            for build in ours:
                left = (build.pythons or ANY_PYTHON) - able
                if left and by_file[build.file].action == "yank":
                    refused[release] = by_file[build.file]
        pythons = frozenset().union(*(build.pythons for build in shown))
        without = [b for b in builds if b.pythons - pythons and b.file in by_file]
        yanked = [b for b in without if by_file[b.file].action == "yank"]
        newest = max(yanked, key=lambda build: build.release, default=None)
        final = [b for b in shown if not (b.version.is_prerelease or b.withdrawn)]
        has_final = any(target is None or build.installable for build in final)
        sdists = {}
        for file in files if refused else ():
            own = release_of_sdist(file.filename, project)
            if own is None or not (has_final or own.is_prerelease):
                continue
            if own in refused:
                sdists[file.filename] = refused[own]
            elif newest is not None and own < newest.release:
                sdists[file.filename] = by_file[newest.file]
        return sdists

    def _find_exposed(
        self,
        project: str,
        listed: Sequence[model.File],
        files: Mapping[str, Visibility],
        *,
        is_asked: bool,
    ) -> dict[str, Visibility]:
        """Find the files of a page that installers need; see `find_exposed`.

        :param is_asked: whether the user requested a label, which excludes all others.
        """
        hides = any(each.action == "hide" for each in files.values())
        if not hides and not any(map(is_yanked, listed)):
            return {}
        releases, withdrawn = dict[str, Version](), set[Version]()
        for file in listed:
            if (release := release_of(file.filename, project)) is not None:
                releases[file.filename] = release
                if is_yanked(file) and not is_asked:
                    withdrawn.add(release)
        return find_exposed(files, releases, withdrawn)

    def _find_visible(self, project: str, builds: Sequence[Build]) -> PageVisibility:
        """Find the visibility of required builds on a machine with a driver."""
        named = self._selection.named.get(project, ())
        label = self._selection.pins.get(project)
        return find_visibility(builds, driver=True, named=named, label=label)

    async def _judge_others(
        self,
        index: SimpleRepository,
        project: str,
        ours: Sequence[Build],
        listed: list[model.File],
    ) -> tuple[list[tuple[bool, Build]], bool]:
        """Judge the builds of a project on the other indexes.

        METADATA is read only if this index has builds without GPU code, which must not
        replace GPU builds on other indexes, or that cannot run, as their copies there.

        :param listed: receives the files of these indexes.
        :returns: each build after whether a vendor has it, and whether these are all.
        """
        is_sure = True
        asks = any(build.judgement.verdict in ("cpu", "cannot") for build in ours)
        builds: list[tuple[bool, Build]] = []
        for number, other in enumerate(x for x in self._indexes if x is not index):
            found = await self._read_files(other, project)
            files, is_sure = found or (), is_sure and found is not None
            listed += files
            # Add the number: different files on two indexes may have the same name.
            judged, _ = await self._judge.judge(project, files, asks=asks)
            builds += [
                (is_vendor(other), replace(build, file=f"{number}/{build.file}"))
                for build in builds_for(judged, self.platform)
            ]
        return builds, is_sure

    async def _read_everywhere(self, project: str) -> Sequence[model.File]:
        found = [await self._read_files(index, project) for index in self._indexes]
        if self._others.is_late:
            raise asyncio.TimeoutError  # verdicts on some files must not be kept
        return [file for files in found for file in files or ()]

    async def _read_files(
        self, index: SimpleRepository, project: str
    ) -> Sequence[model.File] | None:
        """Return the files of a project; ``None`` if installers may find others."""
        try:
            page = await self._others.wait(index, index.get_project_page(project))
        except (InputError, *UNAVAILABLE) as error:
            return None if await may_find_files(error, project) else ()
        self._note_origins(index, page.files)
        return page.files

    def _note_origins(
        self, index: SimpleRepository, files: Sequence[model.File]
    ) -> None:
        if len(self._indexes) > 1:
            for file in files:
                self._origins.put(hash((file.filename, file.url)), index)

    def _origin(self, file: model.File) -> SimpleRepository:
        return self._origins.get(hash((file.filename, file.url))) or self._indexes[0]

    async def _read_metadata(self, project: str, file: model.File) -> bytes:
        index = self._origin(file)

        async def read() -> bytes:
            async with self._turns.of(file.url, getattr(index, "identifies", None)):
                return await self._reader.read_metadata(index, project, file)

        return await self._others.wait(index, read())

    async def _find_backends(
        self, project: str, ours: Sequence[Build], required: Required, driver: bool
    ) -> tuple[str | None, Mapping[Version, Backend]]:
        """Find the required project, such as torch, that decides the backends.

        :param required: the requirements of each release of ``project``.
        :returns: the name of that project, and the required backend of each release.
        """
        left = _MOST
        for name in sorted({name for texts in required.values() for name in texts}):
            files = await self._read_everywhere(name)
            left -= len(files)
            if left < 0:
                break
            judged, _ = await self._judge.judge(name, files, (project,))
            pins = {x.partition("+")[0] for x in self._selection.pinned.get(name, ())}
            leader = [
                build
                for build in builds_for(judged, self.platform)
                if not pins or str(build.release) in pins
            ]
            label = self._selection.pins.get(name)
            visibility = find_visibility(leader, driver=driver, label=label)
            requirements = {
                r: each[name] for r, each in required.items() if name in each
            }
            if followed := follow(ours, requirements, leader, visibility):
                return name, followed
        return None, {}


def _find_running(
    ours: Iterable[Build], others: Iterable[tuple[bool, Build]]
) -> set[Version]:
    """Return the releases that have a runnable build on the user's own indexes."""
    own = [*ours, *(build for vendor, build in others if not vendor)]
    return {b.release for b in own if b.judgement.verdict in ("runs", "partly")}
