"""A simple repository that shows installers the variants which fit a machine.

`VariantRepository` wraps any repository of the library simple-repository. A page
without variant wheels passes through unchanged. On other pages, the labels of each
release are resolved, and the wheels that fit get the names that `renaming` describes;
a request for such a name returns the wheel itself, unchanged.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name, canonicalize_version
from packaging.version import Version
from simple_repository import errors, model
from simple_repository.components.core import RepositoryContainer, SimpleRepository

from nvidia_variant_provider.errors import InputError, ProviderError
from nvidia_variant_provider.machine.environment import Environment

from ...metadata.markers import SelectedVariant
from ..http.client import Client
from ..http.pages import LABEL_KEY
from .asked_labels import AskedLabels, read_names
from .builds import BuildRepository
from .choice import Choice, keep_label, select_files, with_files
from .core_metadata import CoreMetadataReader
from .evaluating import Evaluator
from .file_labels import has_label
from .files import UNAVAILABLE, FileReader
from .options import Selection
from .release_reader import ReleaseReader
from .renaming import Offer, Release, find_highest_builds, group, make_offers
from .resolving import ReleaseResolver

if TYPE_CHECKING:
    from nvidia_variant_provider.resolution.resolver import Resolution

__all__ = ["LABEL_KEY", "Choice", "VariantRepository"]

logger = logging.getLogger(__name__)


Warn = Callable[[str], None]


class VariantRepository(RepositoryContainer):
    """Shows ordinary installers the variants that fit a machine.

    :param source: the repository whose pages are changed.
    :param machine: returns the machine; a short form of ``selection``.
    :param selection: what is selected for; the default is this machine.
    :param client: reads the files that ``source`` names on other servers.
    :param before: repositories that the installer reads as well, and prefers.
    :param after: repositories that the installer reads as well, and that should lose
        against this one; best first.
    :param warn: called once for each thing that is ignored, with a sentence.
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
    ) -> None:
        super().__init__(source)
        chosen = selection or Selection()
        if machine is not None:
            chosen = replace(chosen, machine=machine)
        self._resolver = ReleaseResolver(chosen)
        self._rewrites = chosen.rewrites
        self._requires_hashes = chosen.requires_hashes
        self._keeps_hashes = chosen.keeps_hashes
        files = FileReader(source, client or Client())
        folder = Path(chosen.cache, "metadata") if chosen.cache else None
        self.file_reader = files
        self._reader = ReleaseReader(files)
        metadata = (
            source.metadata
            if isinstance(source, BuildRepository)
            else CoreMetadataReader(files, folder)
        )
        self.evaluator = Evaluator(files, metadata)
        self._before, self._after = tuple(before), tuple(after)
        self._warn = warn or (lambda _: None)
        self._warned: set[str] = set()
        self._choices: dict[str, dict[str, Choice]] = {}
        self._files: dict[str, dict[str, model.File]] = {}
        self._asked = AskedLabels(
            chosen.pins, source, [*before, *after], self._warn_once
        )

    async def get_project_page(
        self,
        project_name: str,
        *,
        request_context: model.RequestContext | None = None,
    ) -> model.ProjectDetail:
        """Return the page with the variants that fit, or an unchanged page."""
        page = await self.source.get_project_page(
            project_name, request_context=request_context
        )
        project = canonicalize_name(project_name)
        releases = group((file.filename for file in page.files), project)
        pinned = await self._asked.find(project, page.files)
        if not releases:
            logger.debug("%s: %d files, no variants", project, len(page.files))
            self._choices.pop(project, None)
            self._files.pop(project, None)
            return self._with_label(project, page, pinned)
        choices = await self._choose_all(project, releases, page, pinned)
        self._choices[project] = choices
        self._files[project] = {file.filename: file for file in page.files}
        files = select_files(
            page.files, releases, choices, keeps_hashes=self._keeps_hashes
        )
        return self._with_label(project, with_files(page, files), pinned)

    def _with_label(
        self, project: str, page: model.ProjectDetail, pinned: str | None
    ) -> model.ProjectDetail:
        if pinned is None:
            return page
        kept = keep_label(page, pinned, self._asked.find_builds(project))
        if not kept.files:
            self._asked.warn_of_refused(project, self.choices(project).values())
        return kept

    async def get_resource(
        self,
        project_name: str,
        resource_name: str,
        *,
        request_context: model.RequestContext | None = None,
    ) -> model.Resource:
        """Return a file, or its METADATA, by the name that the page shows.

        :raises InvalidPackageError: an installer could not read its METADATA.
        """
        project = canonicalize_name(project_name)
        suffix = ".metadata" if resource_name.endswith(".metadata") else ""
        name = resource_name.removesuffix(suffix)
        shown = await self._find_offer(project, name)
        if shown is None:
            return await self.source.get_resource(
                project_name, resource_name, request_context=request_context
            )
        choice, offer = shown
        evaluated = await self._evaluated(choice, offer, metadata=bool(suffix))
        if evaluated is not None:
            return evaluated
        return await self.source.get_resource(
            project_name,
            offer.wheel.file_name + suffix,
            request_context=request_context,
        )

    async def _find_offer(self, project: str, name: str) -> tuple[Choice, Offer] | None:
        """Find the wheel that a page shows as ``name``, if it is not its own name."""
        if project not in self._choices and _has_build_tag(name):
            # An installer that has kept the page asks for the file alone.
            await self.get_project_page(project)
        for choice in self._choices.get(project, {}).values():
            for offer in choice.offers:
                if offer.name == name:
                    return choice, offer
        return None

    @property
    def asked_labels(self) -> Mapping[str, frozenset[str]]:
        """The labels of each project for which the user asked for one."""
        return self._asked.labels

    def all_choices(self) -> list[Choice]:
        """Return what the last page of each project showed."""
        return [choice for page in self._choices.values() for choice in page.values()]

    def choices(self, project: str) -> Mapping[str, Choice]:
        """Return what the last page of a project showed, by version."""
        return self._choices.get(canonicalize_name(project), {})

    def files(self, project: str) -> Mapping[str, model.File]:
        """Return the files of the last page with variants, by their own names."""
        return self._files.get(canonicalize_name(project), {})

    async def _choose_all(
        self,
        project: str,
        releases: Mapping[str, Release],
        page: model.ProjectDetail,
        pinned: str | None,
    ) -> dict[str, Choice]:
        files = {file.filename: file for file in page.files}
        bases = await self._find_bases(project)
        choices = await asyncio.gather(
            *(
                self._choose(
                    project,
                    release,
                    files,
                    pinned=pinned,
                    base=bases.get(canonicalize_version(release.version), 0),
                )
                for release in releases.values()
            )
        )
        for choice in choices:
            logger.info(
                "%s %s: showing %s of labels %s",
                project,
                choice.version,
                ", ".join(choice.labels) or "none",
                ", ".join(sorted(choice.available)),
            )
            if choice.problem:
                self._warn_once(f"{project} {choice.version}: {choice.problem}")
        self._warn_of_unread(project, choices)
        return {choice.version: choice for choice in choices}

    def _warn_of_unread(self, project: str, choices: Sequence[Choice]) -> None:
        """Warn of wheels whose METADATA cannot be read, in one sentence."""
        unread = [choice for choice in choices if choice.unread]
        if not unread:
            return
        newest = max(unread, key=lambda choice: Version(choice.version))
        ((label, reason), *_) = newest.unread.items()
        more = sum(len(choice.unread) for choice in unread) - 1
        others = f", like {more} more" if more else ""
        self._warn_once(
            f"{project} {newest.version}: variant {label} is passed over{others}, "
            "because its METADATA cannot be read, and may have variant markers that "
            f"no released installer reads: {reason}"
        )

    async def _find_bases(self, project: str) -> dict[str, int]:
        """Find the number above which the ranks of each version start.

        PEP 825 leaves the order of several indexes to installers. pip compares the
        files of all indexes, so the order has to be in the names.
        """
        return find_highest_builds(await read_names(self._after, project), project)

    async def _choose(
        self,
        project: str,
        release: Release,
        files: Mapping[str, model.File],
        *,
        pinned: str | None,
        base: int,
    ) -> Choice:
        choice = Choice(
            project=project,
            version=release.version,
            available=release.labels,
            pinned=pinned,
            # With a pinned label, a newer release without it must not be installed.
            plain=frozenset(
                wheel.file_name
                for wheel in release.plain
                if pinned is None
                or has_label(wheel.file_name, pinned)
                or wheel.file_name in self._asked.find_builds(project)
            ),
        )
        if pinned is not None and pinned not in release.labels:
            return choice
        try:
            metadata = await self._reader.read(project, release, files)
            resolution = await self._resolver.resolve(metadata)
        except (ProviderError, *UNAVAILABLE) as error:
            # PEP 825 leaves this case to tools. A defect of the index is not a reason
            # to install nothing: the non-variant wheel is still there.
            reason = str(error) or "the index does not send a file that its page lists"
            return replace(choice, problem=f"its variants are ignored: {reason}")
        unknown = sorted(release.labels - metadata.variants.keys())
        if unknown:
            where = release.metadata or "the variant.json of its wheels"
            self._warn_once(
                f"{project} {release.version}: wheels are ignored because {where} "
                f"does not have their labels: {', '.join(unknown[:5])}"
            )
        # PEP 825 does not let a variant that does not fit be selected.
        labels = [label for label in resolution.compatible if pinned in (None, label)]
        make = functools.partial(
            make_offers,
            release,
            base=base,
            conditions={
                name: (file.requires_python, bool(file.yanked))
                for name, file in files.items()
            },
        )
        offers, hidden = await asyncio.to_thread(make, labels)
        markers = await self._find_markers(project, offers, resolution, files)
        unread = {label: why for label, why in markers.items() if isinstance(why, str)}
        if unread:
            # An installer that gets such a wheel unchanged cannot read its markers.
            readable = [label for label in labels if label not in unread]
            offers, hidden = await asyncio.to_thread(make, readable)
        return replace(
            choice,
            resolution=resolution,
            rewritten=frozenset(label for label, has in markers.items() if has is True),
            unread=unread,
            offers=tuple(offers),
            plain=choice.plain.difference(hidden),
        )

    async def _find_markers(
        self,
        project: str,
        offers: Sequence[Offer],
        resolution: Resolution,
        files: Mapping[str, model.File],
    ) -> dict[str, bool | str]:
        """Find out by label whether the dependencies of wheels depend on the variant.

        One wheel of each label is read: wheels of one label are built from one project.
        """
        if not self._rewrites:
            return {}
        first = {offer.label: offer for offer in reversed(offers)}
        replies = await asyncio.gather(
            *(
                self.evaluator.depends_on_variant(
                    project,
                    files[offer.wheel.file_name],
                    SelectedVariant.of(offer.label, resolution),
                )
                for offer in first.values()
            )
        )
        return dict(zip(first, replies, strict=True))

    async def _evaluated(
        self, choice: Choice, offer: Offer, *, metadata: bool
    ) -> model.Resource | None:
        """Return a wheel or its METADATA without variant markers, if it has any.

        :raises InvalidPackageError: it cannot be evaluated, or must not be changed.
        """
        name = offer.wheel.file_name
        file = self._files[choice.project].get(name)
        if file is None or choice.resolution is None:
            return None
        variant = SelectedVariant.of(offer.label, choice.resolution)
        try:
            content = await self.evaluator.evaluate(choice.project, file, variant)
        except InputError as error:
            if "PEP 825" in (error.hint or "") or offer.label in choice.rewritten:
                raise self._refused(name, str(error)) from None
            self._warn_once(f"{name}: its METADATA could not be checked: {error}")
            return None
        except UNAVAILABLE as error:
            self._warn_once(f"{name}: its METADATA could not be checked: {error}")
            return None
        if content is None:
            return None
        if not self._rewrites:
            raise self._refused(
                name,
                "its METADATA has variant markers that no released installer reads, "
                "and this server cannot rewrite wheels; take another build, or serve "
                "it with: nvidia-variant-provider serve",
            )
        if self._requires_hashes:
            raise self._refused(
                name,
                "its METADATA has variant markers, which are evaluated by rewriting "
                "it, and the hashes that you require do not allow that; install "
                "without required hashes, or without variants: --no-variants",
            )
        if metadata:
            return model.TextResource(text=content.decode())
        original = await self.source.get_resource(choice.project, name)
        return await self.evaluator.rewrite(choice.project, file, variant, original)

    def _refused(self, name: str, reason: str) -> errors.InvalidPackageError:
        message = f"{name}: refused, because {reason}"
        self._warn_once(message)
        return errors.InvalidPackageError(message)

    def _warn_once(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            self._warn(message)


def _has_build_tag(name: str) -> bool:
    """Return whether a wheel has a build tag, as every renamed wheel does."""
    parts = name.split("-", 3)
    return name.endswith(".whl") and len(parts) == 4 and parts[2][:1].isdigit()
