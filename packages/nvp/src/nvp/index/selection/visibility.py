"""The visibility of a page's regular wheels, which also depends on other indexes.

`BuildJudge` keeps installers away from builds that cannot run: wheels without a variant
label are shown, yanked (PEP 592) or hidden by the rules of `builds.page`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain

from packaging.version import Version
from simple_repository import model
from simple_repository.components.core import SimpleRepository

from nvidia_variant_provider.errors import InputError
from nvidia_variant_provider.machine.environment import Environment

from ...builds.needs import Backend, requirements_on
from ...builds.page import (
    ANY_PYTHON,
    Build,
    PageVisibility,
    Visibility,
    find_visibility,
    find_visibility_elsewhere,
)
from ...builds.stepping_back import Limits, find_strays
from ...wheels.archive import parse_requires, release_of, release_of_sdist
from ..http.kept_keys import is_yanked
from ..http.threads import in_thread
from .evidence import PATIENCE, FoundVerdicts, Leaders, Part
from .indexes import (
    LATE,
    LEAST,
    Indexes,
    LateError,
    folder_of_index,
    state_of,
)
from .judging import PageJudge
from .kept import FOREVER, WARNED, Aging
from .options import Selection
from .pieces import UNAVAILABLE
from .reader import Progress, Reader
from .wheel_files import (
    builds_for,
    find_candidates,
    find_early,
    find_exposed,
    find_kept,
    find_withdrawn,
    folder_of_file,
    has_plain,
)

logger = logging.getLogger(__name__)

_Pages = dict[SimpleRepository, Sequence[model.File]]  # the files on each index


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

    Installers compare the files of all indexes, so the decision is about the files of
    all of them, and each page shows its part. Pages that are judged by different
    evidence could all withdraw their files for those of the others; see `Indexes.once`.

    :param indexes: all indexes of the installer, which also have its dependencies.
    :param warn: called with a sentence for each unusable item.
    """

    def __init__(
        self,
        indexes: Indexes,
        selection: Selection,
        reader: Reader,
        *,
        warn: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._indexes, self._selection, self._reader = indexes, selection, reader
        self.platform = selection.platform_of_builds
        self._folders = {index: folder_of_index(index) for index in indexes.all}
        self._limits = Limits(selection.limits)
        self._read_metadata = partial(indexes.read_metadata, reader)
        self._warn = warn
        self._unsure: Aging[str, bool] = Aging(WARNED, FOREVER)
        self._judge = PageJudge(
            selection.found.soon,
            self.platform,
            self._read_metadata,
            self._find_verdicts,
            warn,
            folder_of=lambda x: folder_of_file(x, self._folders[indexes.origin(x)]),
            find_inspected=reader.find_inspected,
            target=selection.target,
            every_gpu=selection.every_gpu,
            limits=self._limits,
        )
        self._leaders = Leaders(indexes, selection, self._judge.judge)

    async def judge(
        self,
        index: SimpleRepository,
        project: str,
        page: model.ProjectDetail,
        files: Sequence[model.File],
    ) -> PageVerdicts:
        """Judge the wheels of a page of an index, and decide their visibility.

        :param project: the normalized name.
        :param files: the files of the page that may be shown.
        """
        self._indexes.note(index, page.files)
        own = await self._judge_page(index, project, page)
        ours = own.builds
        if own.is_silent:
            return PageVerdicts(project=project, builds=ours)
        environment = await self._selection.found.soon()
        driver = environment.cuda_driver_version is not None
        parts, pages, why = await self._judge_others(index, project, own)
        pages = {index: files, **pages}
        followed = await self._leaders.follow(project, own)
        everywhere = [*chain(*pages.values())]
        if self._indexes.late:
            # Decide by the builds of this page alone, so that installers can take one
            # of them: the decisions on other pages may depend on evidence that is late.
            parts, pages = {index: own}, {index: files}
        named = self._selection.named.get(project, ())
        target = self._selection.target
        every = {each: part.builds for each, part in parts.items()}
        label = self._selection.pins.get(project)
        is_asked = any(label and x.has_label(label) for x in chain(*every.values()))
        label = label if is_asked else None
        builds, late = await in_thread(
            find_candidates, index, every, named, label, target
        )
        some = [*files]
        for other in parts.keys() - {index}:
            some += find_kept(pages[other], parts[other].builds, project)
        plain = await in_thread(has_plain, some, project, target)
        early = await in_thread(find_early, chain(*pages.values()), project, target)
        decide = partial(
            find_visibility,
            driver=driver,
            named=named,
            label=label,
            follow=followed.backends,
            has_plain=plain,
            early=early,
        )
        visibility = await in_thread(decide, builds)
        if driver and self._selection.limits is not None:
            stays, taken = await in_thread(
                self._limits.find_left, project, builds, visibility.files, decide
            )
            visibility = replace(visibility, files={**visibility.files, **stays})
            await self._note_required(project, files, taken)
        names = {build.file for build in ours}
        by_file = {name: d for name, d in visibility.files.items() if name in names}
        for build in late:
            reason = f"your own index has a build of {build.release} that runs"
            by_file[build.file] = Visibility(action="yank", reason=reason)
        if self._selection.several_platforms:
            there = [build for build in own.judged if build.file not in names]
            by_file |= await in_thread(
                find_visibility_elsewhere, ours, by_file, there, driver=driver
            )
        left = [b for b in builds if visibility.files[b.file].action == "show"]
        sdists = partial(self._find_sdists, project, files, ours, by_file, left)
        by_file |= await in_thread(sdists)
        if why and not is_asked:
            by_file = {}  # the files of the other index may be exposed
            self._warn_of(project, why)
        exposed = partial(self._find_exposed, project, everywhere, ours)
        by_file |= await in_thread(exposed, by_file, is_asked=is_asked)
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
            follows=followed.name,
            strays=find_strays(visibility, followed.backends),
        )

    async def _judge_others(
        self, index: SimpleRepository, project: str, own: Part
    ) -> tuple[dict[SimpleRepository, Part], _Pages, str]:
        """Judge the builds of a project on the other indexes.

        :returns: the builds of each index, in the order of the user; the files of the
            others; and why installers may find other files there.
        """
        parts, pages, reason = dict[SimpleRepository, Part](), _Pages(), ""
        # Wait for GPU builds, because of which CPU builds of this index are yanked.
        has_cpu = any(build.judgement.verdict == "cpu" for build in own.builds)
        seconds = LATE if has_cpu else LEAST
        for other in self._indexes.all:
            if other is index:
                parts[index] = own
                continue
            page, why = await self._indexes.read(other, project)
            reason = reason or why
            if page is not None:
                pages[other] = page.files
                work = self._judge_page(other, project, page)
                with suppress(LateError):
                    parts[other] = await self._indexes.wait(other, work, seconds)
        return parts, pages, reason

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
        inspect = self._reader.inspect
        found = await inspect(index, project, file, self.platform, progress)
        self._indexes.note_inspected()
        return found is not None

    def _warn_of(self, project: str, why: str) -> None:
        if not self._unsure.get(project):
            self._unsure.put(project, True)
            self._warn(f"no builds of {project} are selected, because {why}")

    async def _note_required(
        self, project: str, files: Sequence[model.File], build: Build | None
    ) -> None:
        """Record the requirements of a build that is selected but cannot run."""
        file = next((x for x in files if build and x.filename == build.file), None)
        if build is None or file is None:
            return
        pythons = build.pythons

        def parse(metadata: bytes) -> tuple[str, ...]:
            requires = parse_requires(metadata)
            return requirements_on(requires, self.platform, pythons=pythons)

        try:
            reading = self._read_metadata(project, file, parse)
            self._limits.note(await asyncio.wait_for(reading, PATIENCE))
        except (InputError, OSError, asyncio.TimeoutError, *UNAVAILABLE) as error:
            logger.info("%s: METADATA cannot be read: %s", file.filename, error)

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
            ours = [build for build in group if build.pythons]
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
        has_final = any(target is None or build.pythons for build in final)
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
        builds: Sequence[Build],
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
        releases = {
            file.filename: release
            for file in listed
            if (release := release_of(file.filename, project)) is not None
        }
        withdrawn = frozenset() if is_asked else find_withdrawn(listed, project)
        return find_exposed(files, releases, withdrawn, builds)

    async def _find_verdicts(self, project: str, depth: int) -> FoundVerdicts:
        return await self._leaders.find(project, depth)

    async def _judge_page(
        self, index: SimpleRepository, project: str, page: model.ProjectDetail
    ) -> Part:
        """Judge the wheels of a page, also for the pages of other indexes."""

        async def judge() -> Part:
            with self._indexes.of(index):
                judged, required = await self._judge.judge(project, page.files)
                return Part(
                    builds=builds_for(judged, self.platform),
                    judged=judged,
                    required=required,
                    late=self._indexes.late,
                )

        if len(self._indexes.all) == 1:
            return await judge()
        state = partial(state_of, page.files)
        return await self._indexes.once((index, project, 0), state, judge)
