"""The component that shows installers the builds that a machine can run.

`VariantRepository` wraps any repository of the library simple-repository. A page goes
through these steps: regular wheels are judged (`judging`), and shown, yanked or hidden
(`visibility`); METADATA that the index lacks is announced (`core_metadata`); the labels
of each release are resolved (`variants`), and the variants that fit get the names that
`renaming` describes. A page to which none of this applies passes through unchanged, and
a request for a new name returns the wheel itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from operator import attrgetter

from packaging.utils import canonicalize_name
from simple_repository import errors, model
from simple_repository.components.core import RepositoryContainer, SimpleRepository

from nvidia_variant_provider.errors import InputError, listed
from nvidia_variant_provider.machine.environment import Environment

from ..http.client import Client
from ..http.ranges import RangeSupport
from ..http.threads import FOR_INSTALLER, Share, Space, Turn, in_thread
from ..http.urls import METADATA
from .core_metadata import Announcer, Evaluator, compare
from .indexes import BUILD, Indexes
from .kept import (
    FOREVER,
    PAGES,
    WARNED,
    Aging,
    Kept,
    SentMetadata,
    is_named,
    mark_of,
    request_of,
    weigh,
)
from .options import Selection
from .pieces import UNAVAILABLE, location_of
from .reader import Progress, Reader
from .renaming import find_highest_builds, group
from .shown import (
    Room,
    ShownPage,
    ShownRelease,
    all_labels,
    explain_refused,
    is_needed,
    keep_label,
    select_files,
    with_files,
    without_traps,
)
from .variants import ReleaseReader, ReleaseResolver, VariantSelector
from .visibility import BuildJudge, PageVerdicts

logger = logging.getLogger(__name__)

_METADATA = 10
"""The memory of a byte of variant metadata in bytes."""

_PROJECTS = 16 * 1024 * 1024
"""The maximum length of the names and the labels of all projects."""

Warn = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Shared:
    """The objects that the components for one installer share.

    :param judge: judges regular wheels; without it, all of these are shown.
    :param announcer: announces METADATA of large wheels.
    """

    releases: ReleaseReader
    resolver: ReleaseResolver
    indexes: Indexes = field(default_factory=Indexes)
    judge: BuildJudge | None = None
    announcer: Announcer | None = None


def select(
    indexes: Sequence[SimpleRepository],
    *,
    selection: Selection,
    reader: Reader,
    warn: Warn,
    releases: ReleaseReader | None = None,
) -> list[VariantRepository]:
    """Return a component for each index; the components share their results.

    :param indexes: the indexes in the user's order.
    :param releases: reads the metadata of releases, if it is shared by machines.
    """
    judge, announcer, every = None, None, Indexes(indexes)
    if not selection.unchecked:
        judge = BuildJudge(every, selection, reader, warn=warn)
        if selection.announces:
            announcer = Announcer(
                reader,
                RangeSupport(reader.client),
                judge.platform,
                selection.target.version if selection.target else None,
            )
    shared = _Shared(
        releases=releases or ReleaseReader(reader),
        resolver=ReleaseResolver(selection),
        indexes=every,
        judge=judge,
        announcer=announcer,
    )
    return [
        VariantRepository(
            index,
            selection=selection,
            before=indexes[:number],
            after=indexes[number + 1 :],
            warn=warn,
            shared=shared,
        )
        for number, index in enumerate(indexes)
    ]


class VariantRepository(RepositoryContainer):
    """Shows the variants that fit a machine to installers without variant support.

    Alone, it shows regular wheels unchanged; `select` creates components that also keep
    installers away from builds that cannot run.

    :param source: the repository of the original pages.
    :param machine: returns the target machine, which overrides that of ``selection``.
    :param selection: the options; the default is this machine.
    :param client: reads the files of ``source`` that are on other servers.
    :param before: other repositories of the installer, with higher priority.
    :param after: other repositories of the installer, with lower priority; best first.
    :param warn: called once with a sentence for each ignored item.
    :param shared: the objects shared with the components of other indexes.
    """

    def __init__(
        self,
        source: SimpleRepository,
        *,
        machine: Callable[[], Environment] | None = None,
        selection: Selection | None = None,
        client: Client | None = None,
        before: Sequence[SimpleRepository] = (),
        after: Sequence[SimpleRepository] = (),
        warn: Warn | None = None,
        shared: _Shared | None = None,
    ) -> None:
        super().__init__(source)
        options = selection or Selection()
        if machine is not None:
            options = replace(options, machine=machine)
        if shared is None:
            reader = Reader(client or Client(), options.cache)
            shared = _Shared(
                releases=ReleaseReader(reader), resolver=ReleaseResolver(options)
            )
        self._selection = options
        self._shared = shared
        self.reader = shared.releases.reader
        self._variants = VariantSelector(
            source, shared.releases, shared.resolver, options, self._warn_once
        )
        self._before, self._after = tuple(before), tuple(after)
        self._warn = warn or (lambda _: None)
        self._warned: Aging[str, bool] = Aging(WARNED, FOREVER)
        self._spaces = Space(), Space()
        self._sent = SentMetadata(self.reader.metadata, self.reader.clock)
        # Later requests for the files of these pages need them.
        self._pages = Aging[str, ShownPage](PAGES, FOREVER, weigh=attrgetter("memory"))
        # The labels of projects are also kept for pages that `_pages` has no room for.
        self._projects: Aging[str, tuple[str, frozenset[str] | None]] = Aging(
            _PROJECTS, FOREVER, weigh=lambda known: len(repr(known))
        )

    async def get_project_page(
        self,
        project_name: str,
        *,
        request_context: model.RequestContext | None = None,
    ) -> model.ProjectDetail:
        """Return the page with the builds that fit, or an unchanged page."""
        return (await self.show(project_name, request_context=request_context))[0]

    async def show(
        self,
        project_name: str,
        *,
        request_context: model.RequestContext | None = None,
    ) -> tuple[model.ProjectDetail, ShownPage]:
        """Return the page for installers, and its explanation."""
        # Few pages have much variant metadata; several at once would take gigabytes.
        async with Share(self._spaces), Turn(self.reader.large) as turn:
            read = self.source.get_project_page
            FOR_INSTALLER.set(True)
            page = await read(project_name, request_context=request_context)
            await Share.take(len(page.files))  # a page of the cache, or a directory
            room = Room(turn, len(page.files))
            with self._shared.indexes.of(self.source):
                return await self._show(canonicalize_name(project_name), page, room)

    async def _show(
        self, project: str, page: model.ProjectDetail, room: Room
    ) -> tuple[model.ProjectDetail, ShownPage]:
        files, judged, announced = await self._select_builds(project, page)
        pinned, labels = await self._find_label(project, files, judged)
        releases = await in_thread(group, [x.filename for x in files], project)
        shown_releases: dict[str, ShownRelease] = {}
        changed = page if self._shared.judge is None else replace(page, files=files)
        if releases:
            # PEP 825 leaves the order of several indexes to installers. pip compares
            # the files of all indexes, so the file names must contain the order.
            pages, _ = await self._shared.indexes.read_names(self._after, project)
            shown_releases = await self._variants.select(
                project,
                releases,
                files,
                room=room,
                bases=await in_thread(find_highest_builds, pages, project),
                pinned=pinned,
                named=judged.with_label(pinned),
            )
            changed = with_files(
                page,
                select_files(
                    files,
                    releases,
                    shown_releases,
                    keeps_hashes=self._selection.keeps_hashes,
                    requires_hashes=self._selection.requires_hashes,
                ),
            )
        else:
            logger.debug("%s: %d files, no variants", project, len(files))
        if pinned is not None:
            changed = keep_label(changed, pinned, judged.with_label(pinned))
            if not changed.files:
                refusal = explain_refused(pinned, judged, shown_releases.values())
                if refusal is not None:
                    self._warn_once(refusal)
        memory = BUILD * (1 + len(judged.builds)) + _METADATA * room.total
        if shown_releases or announced:
            memory += 2 * weigh(page)
        shown = ShownPage(
            files=page.files,
            shown=changed.files,
            judged=judged,
            releases=shown_releases,
            announced=announced,
            memory=memory,
        )
        self._projects.put(project, (project, labels))
        # Do not cache the many files of a page without variants: they are not needed.
        self._pages.put(
            project, shown if shown_releases else replace(shown, files=(), shown=())
        )
        return changed, shown

    async def get_resource(
        self,
        project_name: str,
        resource_name: str,
        *,
        request_context: model.RequestContext | None = None,
    ) -> model.Resource:
        """Return the file, or its METADATA, that the page shows as ``resource_name``.

        :raises InvalidPackageError: installers cannot read METADATA of the wheel.
        """
        project = canonicalize_name(project_name)

        async def find() -> model.Resource:
            async with Share(self._spaces, files=1):  # METADATA is like a small page
                return await self._find(project, resource_name, request_context)

        try:
            return await find()
        except errors.ResourceUnavailable:
            # The page may be missing or outdated: a client may have the URL from its
            # cache, or from a lock file.
            await self.show(project)
            return await find()

    async def _find(
        self,
        project: str,
        resource_name: str,
        request_context: model.RequestContext | None,
    ) -> model.Resource:
        suffix = METADATA if resource_name.endswith(METADATA) else ""
        name = resource_name.removesuffix(suffix)
        request = request_of(project, name, request_context)
        announcer = self._shared.announcer
        page = self._pages.get(project)
        if page is None and announcer is not None:
            # Make the page: an installer that has cached it requests only the file.
            _, page = await self.show(project)
        page = page or self.last(project)
        file, found = page.announced.get(name), page.find_offer(name)
        if found is not None:
            name = found[1].wheel.file_name
            # Variants are selected among the last files of each name.
            file = next((x for x in reversed(page.files) if x.filename == name), None)
        if file is not None and not is_named(file, request_context):
            # The request means another file of the name, or one of an earlier page.
            file = found = None
            name = resource_name.removesuffix(suffix)
        result: model.Resource | Kept | None = None
        if found is not None:
            result = await self._variants.evaluate(file, *found, metadata=bool(suffix))
        if result is None and file and suffix and announcer and name in page.announced:
            file = page.announced[name]
            result = await announcer.read(self.source, project, file)
        if isinstance(result, Kept) and file is not None:
            self._sent.add(request, file, result)
            return model.TextResource(text=result.content.decode())
        if result is None or isinstance(result, Kept):
            result = await self.source.get_resource(
                project,
                resource_name if found is None else name + suffix,
                request_context=request_context,
            )
        result = self.reader.find_copy(result)
        if suffix:
            return result
        # If another wheel of the label has markers, the page has no hashes for it.
        always = found is not None and found[1].label in (
            found[0].rewritten | found[0].held
        )
        if file is not None and isinstance(result, model.HttpResource) and not always:
            moved = replace(file, url=result.url)  # by a later page
            file = file if mark_of(moved) == mark_of(file) else None
        file = file or model.File(name, location_of(result), {})
        return compare(result, file, self._sent, request, always=always)

    @property
    def evaluator(self) -> Evaluator:
        """The evaluator of variant markers in wheels of the index."""
        return self._variants.evaluator

    def last(self, project: str) -> ShownPage:
        """Return the last shown page of a project.

        A page without variants is returned without its files.
        """
        name = canonicalize_name(project)
        return self._pages.get(name) or ShownPage(judged=PageVerdicts(project=name))

    async def recall(self, project: str) -> ShownPage:
        """Return the last shown page of a project, which is shown again if necessary.

        :raises InputError: the index fails now.
        """
        try:
            found = self._pages.get(canonicalize_name(project))
            return found or (await self.show(project))[1]
        except UNAVAILABLE:
            message = f"{project}: the index no longer has its page"
            raise InputError(message) from None

    def all_shown(self) -> list[ShownPage]:
        """Return the last shown pages that there was room for, as `last` does."""
        return self._pages.values()

    @property
    def requested(self) -> Mapping[str, frozenset[str] | None]:
        """The projects of all shown pages, and their labels on all indexes.

        The labels are ``None`` if the user did not request a label.
        """
        return dict(self._projects.values())

    async def inspect(
        self, project: str, file: model.File, progress: Progress | None = None
    ) -> bool:
        """Read the GPU code of a wheel, to judge the wheel when its page is next shown.

        :returns: whether the wheel could be read completely.
        :raises InputError: the wheel cannot be read at all.
        """
        judge = self._shared.judge
        return judge is not None and await judge.inspect(
            self.source, project, file, progress
        )

    @property
    def platform(self) -> str | None:
        """The target platform of regular wheels, if they are judged."""
        return self._shared.judge.platform if self._shared.judge else None

    async def _select_builds(
        self, project: str, page: model.ProjectDetail
    ) -> tuple[tuple[model.File, ...], PageVerdicts, Mapping[str, model.File]]:
        """Judge the regular wheels of a page, and announce missing METADATA.

        :returns: the files of the page, the verdicts on its wheels, and the files whose
            METADATA is announced here, keyed by name.
        """
        files = await in_thread(without_traps, page.files, project)
        judge, announcer = self._shared.judge, self._shared.announcer
        if judge is None:
            return files, PageVerdicts(project=project), {}
        judged = await judge.judge(self.source, project, page, files)
        files = tuple(judged.apply(files))
        if announcer is None or self._sent.is_full:
            return files, judged, {}
        index = getattr(self.source, "identifies", None)
        shown, announced = await announcer.announce(files, index)
        return tuple(shown), judged, announced

    async def _find_label(
        self, project: str, files: Sequence[model.File], judged: PageVerdicts
    ) -> tuple[str | None, frozenset[str] | None]:
        """Find the label that all wheels of a page must have, if there is one.

        :returns: the label, and the project's labels if the user requested a label.
        """
        pins = self._selection.pins
        pinned = pins.get(project)
        if pinned is None:
            return None, None
        indexes = self._shared.indexes
        pages, why = await indexes.read_names([*self._before, *self._after], project)
        if why:
            self._warn_once(f"not all labels of {project} are known, because {why}")
        labels = all_labels([*(x.filename for x in files), *chain(*pages)], judged)
        if pinned in labels:
            return pinned, labels
        if not is_needed(pinned, labels, alone=project in pins.projects):
            return None, labels
        has = f"it has {listed(sorted(labels), 20)}" if labels else "it has no labels"
        self._warn_once(f"no release of {project} has the label {pinned}: {has}")
        return pinned, labels

    def _warn_once(self, message: str) -> None:
        if not self._warned.get(message):
            self._warned.put(message, True)
            self._warn(message)
