"""A simple repository that shows installers the variants which fit a machine.

`VariantRepository` wraps any repository of the library simple-repository. A page
without variant wheels goes through as it is. On others, for each release, the
labels are resolved and the fitting wheels are shown as `offers` says; what an
installer asks for under such a name is the wheel itself, unchanged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from packaging.utils import canonicalize_name
from simple_repository import errors, model
from simple_repository.components.core import RepositoryContainer, SimpleRepository

from ...api import resolve
from ...errors import InputError, ProviderError, shown
from ...machine.environment import Environment
from ...metadata import VariantsMetadata
from ...resolution.resolver import Resolution
from ..http.client import Client
from ..http.pages import LABEL_KEY
from .pins import Pins
from .release_reader import ReleaseReader
from .renaming import Offer, Release, group, make_offers

__all__ = ["LABEL_KEY", "Choice", "VariantRepository"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """What a machine gets of one release.

    :param resolution: of all labels; ``None`` when the metadata cannot be used.
    :param offers: the variant wheels that are shown, best first.
    :param plain: the non-variant wheels that are shown.
    :param available: the labels that it has wheels of.
    :param pinned: the label that the user asked for.
    :param problem: why no variant is shown, when that is a defect.
    """

    project: str
    version: str
    resolution: Resolution | None = None
    offers: tuple[Offer, ...] = ()
    plain: frozenset[str] = frozenset()
    available: frozenset[str] = frozenset()
    pinned: str | None = None
    problem: str | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels that are shown, best first."""
        return tuple(dict.fromkeys(offer.label for offer in self.offers))


_NOT_HAD = (
    errors.PackageNotFoundError,
    errors.ResourceUnavailable,
    errors.SourceRepositoryUnavailable,
)
"""What repositories of others raise where a file cannot be had."""

Machine = Callable[[], Environment]
Warn = Callable[[str], None]


class VariantRepository(RepositoryContainer):
    """Shows ordinary installers the variants that fit.

    :param source: the repository behind it.
    :param machine: says for which machine; by default, the one it runs on. It is
        called when the first variant wheel is seen, and once.
    :param client: reads what ``source`` names on other servers.
    :param environ: environment variables, those of the process by default.
    :param base: ranks start above it.
    :param every_gpu: only builds with code for each GPU of the machine.
    :param warn: is told, once each, what was passed over.
    """

    def __init__(
        self,
        source: SimpleRepository,
        *,
        machine: Machine | None = None,
        client: Client | None = None,
        environ: Mapping[str, str] | None = None,
        pins: Pins | None = None,
        base: int = 0,
        every_gpu: bool = False,
        warn: Warn | None = None,
    ) -> None:
        super().__init__(source)
        self._machine = machine
        self._reader = ReleaseReader(source, client or Client())
        self._environ = environ
        self._pins = pins or Pins()
        self.base = base
        self._every_gpu = every_gpu
        self.others: Sequence[VariantRepository] = ()
        """Which an installer looks at as well: a label that is pinned may be there."""
        self._warn = warn or (lambda _: None)
        self._warned: set[str] = set()
        self._environment: Environment | None = None
        self._detecting = asyncio.Lock()
        self._choices: dict[str, dict[str, Choice]] = {}

    async def get_project_page(
        self,
        project_name: str,
        *,
        request_context: model.RequestContext | None = None,
    ) -> model.ProjectDetail:
        """The page with the variants that fit; others pass through as they are."""
        page = await self.source.get_project_page(
            project_name, request_context=request_context
        )
        project = canonicalize_name(project_name)
        releases = group((file.filename for file in page.files), project)
        if not releases:
            self._choices.pop(project, None)
            return page
        choices = await self._choose_all(project, releases, page)
        self._choices[project] = choices
        return replace(page, files=tuple(_select(page.files, releases, choices)))

    async def get_resource(
        self,
        project_name: str,
        resource_name: str,
        *,
        request_context: model.RequestContext | None = None,
    ) -> model.Resource:
        """A file, or its METADATA; under the name that the page shows.

        :raises InvalidPackageError: an installer could not read its METADATA.
        """
        project = canonicalize_name(project_name)
        suffix = ".metadata" if resource_name.endswith(".metadata") else ""
        name = resource_name.removesuffix(suffix)
        offer = await self.find_offer(project, name)
        if offer is None:
            return await self.source.get_resource(
                project_name, resource_name, request_context=request_context
            )
        await self._refuse_markers(project, offer)
        return await self.source.get_resource(
            project_name,
            offer.wheel.file_name + suffix,
            request_context=request_context,
        )

    async def find_offer(self, project: str, name: str) -> Offer | None:
        """What a page shows under ``name``; ``None`` for a name of its own."""
        if project not in self._choices and _may_be_offer(name):
            # Asked for without its page, as by an installer that has kept that.
            await self.get_project_page(project)
        for choice in self._choices.get(project, {}).values():
            for offer in choice.offers:
                if offer.name == name:
                    return offer
        return None

    def all_choices(self) -> list[Choice]:
        """What the last page of each project showed."""
        return [choice for found in self._choices.values() for choice in found.values()]

    def choices(self, project: str) -> Mapping[str, Choice]:
        """What the last page of a project showed, by version."""
        return self._choices.get(canonicalize_name(project), {})

    async def _choose_all(
        self, project: str, releases: Mapping[str, Release], page: model.ProjectDetail
    ) -> dict[str, Choice]:
        files = {file.filename: file for file in page.files}
        pinned = self._pins.get(project)
        if pinned is not None and not (
            _have(releases, pinned) or await self._is_elsewhere(project, pinned)
        ):
            pinned = None
        found = await asyncio.gather(
            *(
                self._choose(project, release, files, pinned)
                for release in releases.values()
            )
        )
        for choice in found:
            if choice.problem:
                self._warn_once(f"{project} {choice.version}: {choice.problem}")
        return {choice.version: choice for choice in found}

    async def _is_elsewhere(self, project: str, label: str) -> bool:
        """Has another repository the label: then this one must not be taken."""
        for other in self.others:
            try:
                page = await other.source.get_project_page(project)
            except (InputError, errors.PackageNotFoundError):
                continue
            if _have(group((file.filename for file in page.files), project), label):
                return True
        return False

    async def _choose(
        self,
        project: str,
        release: Release,
        files: Mapping[str, model.File],
        pinned: str | None,
    ) -> Choice:
        choice = Choice(
            project=project,
            version=release.version,
            available=release.labels,
            pinned=pinned,
            # The label or nothing: not a newer release without it.
            plain=frozenset(() if pinned else (w.file_name for w in release.plain)),
        )
        if pinned is not None and pinned not in release.labels:
            return choice
        try:
            metadata = await self._reader.read(project, release, files)
            resolution = await self._resolve(metadata)
        except (ProviderError, *_NOT_HAD) as error:
            # PEP 825 leaves it to tools; a defect of the index is no reason to
            # install nothing.
            reason = str(error) or "the index does not send what it names"
            problem = f"its variants are passed over: {reason}"
            return replace(choice, problem=problem)
        unknown = sorted(release.labels - metadata.variants.keys())
        if unknown:
            listed = ", ".join(unknown[:5])
            where = release.metadata or "their variant.json"
            self._warn_once(
                f"{project} {release.version}: wheels are passed over, {where} does "
                f"not have their labels: {listed}"
            )
        labels = [pinned] if pinned is not None else list(resolution.compatible)
        offers, hidden = await asyncio.to_thread(
            make_offers,
            release,
            labels,
            base=self.base,
            conditions={
                name: (file.requires_python, bool(file.yanked))
                for name, file in files.items()
            },
        )
        return replace(
            choice,
            resolution=resolution,
            offers=tuple(offers),
            plain=choice.plain.difference(hidden),
        )

    async def _resolve(self, metadata: VariantsMetadata) -> Resolution:
        async with self._detecting:
            if self._environment is None and self._machine is not None:
                # May ask a driver, which takes its time.
                self._environment = await asyncio.to_thread(self._machine)
        return await asyncio.to_thread(
            resolve,
            metadata,
            environment=self._environment,
            every_gpu=self._every_gpu,
            environ=self._environ,
        )

    async def _refuse_markers(self, project: str, offer: Offer) -> None:
        """Stop a wheel that an installer would fail on, or worse, install."""
        name = offer.wheel.file_name
        try:
            markers = await self._reader.find_markers(project, name)
        except (InputError, *_NOT_HAD) as error:
            self._warn_once(f"{name}: its METADATA could not be checked: {error}")
            return
        if markers:
            message = (
                f"{name}: refused, since its METADATA has variant markers that no "
                f"released installer reads: {shown(markers[0])}; take another build "
                f"with --label, or none with --no-variants"
            )
            self._warn_once(message)
            raise errors.InvalidPackageError(message)

    def _warn_once(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            self._warn(message)


def _have(releases: Mapping[str, Release], label: str) -> bool:
    return any(label in release.labels for release in releases.values())


def _may_be_offer(name: str) -> bool:
    """Has the name a build tag, as all that is shown under another name."""
    parts = name.split("-", 3)
    return name.endswith(".whl") and len(parts) == 4 and parts[2][:1].isdigit()


def _select(
    files: Iterable[model.File],
    releases: Mapping[str, Release],
    choices: Mapping[str, Choice],
) -> list[model.File]:
    """The files of a page, where variant wheels have other names or are left out.

    Their order counts for poetry: what a release depends on it takes from the last
    wheel for any platform or, without one, from the first. That is the best build.
    """
    labelled = {w.file_name for r in releases.values() for w in r.labelled}
    plain = {w.file_name for r in releases.values() for w in r.plain}
    shown = frozenset().union(*(choice.plain for choice in choices.values()))
    offers = {o.wheel.file_name: o for c in choices.values() for o in c.offers}
    found: dict[str, model.File] = {}
    rest: list[model.File] = []
    for file in files:
        name = file.filename
        if name in offers:
            offer = offers[name]
            found[name] = _marked(replace(file, filename=offer.name), offer.label)
        elif name in plain:
            if name in shown:
                rest.append(_marked(file, None))
        elif name not in labelled:
            rest.append(file)
    ordered = [found[name] for name in offers]
    anywhere = [file for file in ordered if file.filename.endswith("-any.whl")]
    first = [file for file in ordered if not file.filename.endswith("-any.whl")]
    return [*first, *rest, *reversed(anywhere)]


def _marked(file: model.File, label: str | None) -> model.File:
    private = {**dict(file.private_metadata.items()), LABEL_KEY: label}
    return replace(
        file, private_metadata=model.PrivateMetadataMapping.from_any_mapping(private)
    )
