"""Read and order the variants of a release, and select the variants for a machine.

The metadata is in a file beside the wheels or, without such a file, in the wheels.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import count
from operator import attrgetter
from typing import TYPE_CHECKING, BinaryIO

from packaging.utils import canonicalize_version
from packaging.version import Version
from simple_repository import errors, model
from simple_repository.components.core import SimpleRepository

from nvidia_variant_provider.errors import InputError, ProviderError
from nvidia_variant_provider.machine.environment import minor_version_compatibility

from ...metadata.requirements import SelectedVariant
from ..http.threads import in_thread
from ..http.urls import NoRangesError, find_other
from .core_metadata import Evaluator, MakeVariant, Markers
from .kept import FOREVER, Aging, Kept, weigh_text, whole_key
from .options import Later, Selection, has_label
from .pieces import UNAVAILABLE
from .reader import COUNTS, Reader
from .renaming import Offer, Release, Wheel, make_offers
from .shown import Room, ShownRelease, find_limits

if TYPE_CHECKING:
    from nvidia_variant_provider.metadata import VariantsMetadata
    from nvidia_variant_provider.resolution.inputs import Priorities
    from nvidia_variant_provider.resolution.resolver import Resolution

logger = logging.getLogger(__name__)

_LABELS = 64
"""The maximum number of labels of a release whose wheels are opened or shown."""

_NEEDS_HASHES = (
    "its METADATA has variant markers, which are evaluated by rewriting it, and the "
    "hashes that you require do not allow that; install without required hashes, or "
    "without variants: --no-variants"
)

_NARROW = "it is for fewer versions of Python than the regular files"

_REMEMBERED = 1024
"""The maximum number of releases whose variants are cached, and read for a page."""

_TOO_OLD = f"only the variants of the newest {_REMEMBERED:,} releases are read"


class ReleaseReader:
    """Reads the variants of releases from the indexes of an installer.

    The cache key is the hash of a metadata file, or what the page says of the wheels.
    """

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self._documents: Aging[str, tuple[VariantsMetadata, int]]
        self._documents = Aging(_REMEMBERED, FOREVER, weigh=weigh_text)
        self._combined: Aging[str, tuple[VariantsMetadata, int]]
        self._combined = Aging(_REMEMBERED, weigh=weigh_text)

    async def read(
        self,
        index: SimpleRepository,
        project: str,
        release: Release,
        files: Mapping[str, model.File],
        room: Room,
    ) -> VariantsMetadata:
        """Read the metadata file, or else the ``variant.json`` of the wheels.

        :param files: the files of the page, keyed by name.
        :param room: limits the documents of all releases of the page.
        :raises InputError: the metadata file, or a wheel read instead, is unusable.
        """
        if release.metadata is None:
            return await self._combine(index, project, release, files, room)
        return await self._read(index, project, files[release.metadata], room)

    async def _read(
        self, index: SimpleRepository, project: str, file: model.File, room: Room
    ) -> VariantsMetadata:
        expected = file.hashes.get("sha256", "").lower()
        if (known := self._documents.get(expected)) is not None:
            await room.admit(known[1])
            return known[0]
        body = await self.reader.read(index, project, file.filename)
        from nvidia_variant_provider.metadata import read_metadata

        digest = hashlib.sha256(body).hexdigest()
        if name := find_other(body, file.hashes):
            message = f"its {name} is not the one that the page gives"
            raise InputError(message, path=file.filename, hint="report it to the index")
        await room.admit(len(body))
        if known := self._documents.get(digest):
            return known[0]
        metadata = await in_thread(read_metadata, body, path=file.filename)
        self._documents.put(digest, (metadata, len(body)))
        return metadata

    async def _combine(
        self,
        index: SimpleRepository,
        project: str,
        release: Release,
        files: Mapping[str, model.File],
        room: Room,
    ) -> VariantsMetadata:
        from ...wheels.variant_json import combine

        # One wheel of each label is enough: PEP 825 requires that all wheels with the
        # same label declare the same properties.
        first = {w.parts.label: w for w in reversed(release.labelled)}
        given = (files[wheel.file_name] for wheel in first.values())
        listed = sorted(given, key=attrgetter("url"))
        key = repr([(whole_key(x), x.size, x.upload_time) for x in listed])
        if (known := self._combined.get(key)) is not None:
            await room.admit(known[1])
            return known[0]
        if len(first) > _LABELS:
            message = f"there is no metadata file, and wheels of {len(first)} labels"
            raise InputError(message, hint="ask the index for the metadata file")
        logger.info("%s %s: reading %d wheels", project, release.version, len(first))
        found = await asyncio.gather(
            *(self._read_wheel(index, project, wheel, room) for wheel in first.values())
        )
        merged, problems = combine([part[:2] for part in found])
        if problems:
            raise problems[0]
        await room.wait()
        self._combined.put(key, (merged, sum(part[2] for part in found)))
        return merged

    async def _read_wheel(
        self, index: SimpleRepository, project: str, wheel: Wheel, room: Room
    ) -> tuple[str, VariantsMetadata, int]:
        from ...wheels.variant_json import read_wheel_metadata

        name, label = wheel.file_name, wheel.parts.label or ""

        def read(file: BinaryIO) -> tuple[str, VariantsMetadata, int]:
            room.check()
            metadata, document = read_wheel_metadata(name, label, file)
            room.add(size := len(str(document)))
            return name, metadata, size

        resource = await index.get_resource(project, name)
        return await self.reader.open(resource, name, read)


class ReleaseResolver:
    """Resolves releases with the options of a `Selection`.

    The machine is detected only if a release has variants.
    """

    def __init__(self, selection: Selection) -> None:
        self._find_environment = selection.found.soon
        self._find_priorities = Later(lambda: _load_priorities(selection))
        self._every_gpu = selection.every_gpu
        self._compatible = bool(
            selection.minor_version_compatibility
            or minor_version_compatibility(selection.environ)
        )

    async def resolve(self, metadata: VariantsMetadata) -> Resolution:
        """Select and order the labels of a release for the machine.

        :raises ProviderError: the machine or ``variants.toml`` cannot be read.
        """
        from nvidia_variant_provider.resolution.resolver import resolve_metadata

        return await in_thread(
            resolve_metadata,
            metadata,
            await self._find_environment(),
            every_gpu=self._every_gpu,
            minor_version_compatibility=self._compatible,
            priorities=await self._find_priorities.soon(),
        )


def _load_priorities(selection: Selection) -> Priorities:
    if selection.priorities is not None:
        return selection.priorities
    from nvidia_variant_provider.resolution.inputs import load_priorities

    return load_priorities()


class VariantSelector:
    """Selects the variants of an index for a machine.

    :param resolver: orders the labels of a release.
    :param warn: called with a sentence for each ignored item.
    """

    def __init__(
        self,
        index: SimpleRepository,
        releases: ReleaseReader,
        resolver: ReleaseResolver,
        selection: Selection,
        warn: Callable[[str], None],
    ) -> None:
        self._index = index
        self._files = releases.reader
        self._read = partial(releases.read, index)
        self._resolver = resolver
        self._selection = selection
        self._warn = warn

    @cached_property
    def evaluator(self) -> Evaluator:
        """The evaluator of variant markers, which is rarely needed."""
        return Evaluator(self._index, self._files)

    async def select(
        self,
        project: str,
        releases: Mapping[str, Release],
        page_files: Sequence[model.File],
        *,
        room: Room,
        bases: Mapping[str, int],
        pinned: str | None = None,
        named: Collection[str] = (),
    ) -> dict[str, ShownRelease]:
        """Select the variants of each release.

        :param room: limits the metadata of the page; the newest releases come first.
        :param bases: for each version, the highest build number of the indexes with
            lower priority.
        :param pinned: the label that all wheels must have.
        :param named: the names of the regular wheels with the requested label.
        """
        files = {file.filename: file for file in page_files}
        newest = sorted(releases, key=Version, reverse=True)

        def make(release: Release, labels: Sequence[str]) -> list[Offer]:
            base = bases.get(canonicalize_version(release.version), 0)
            return make_offers(release, labels, base=base, work=room.work)

        async def choose(number: int, version: str) -> ShownRelease:
            COUNTS.set(room.add_part)
            async with room.releases:
                return await self._choose(
                    project,
                    releases[version],
                    files,
                    partial(make, releases[version]),
                    pinned=pinned,
                    named=named,
                    room=room if number < _REMEMBERED else None,
                )

        found = await asyncio.gather(*map(choose, count(), newest))
        chosen = dict(zip(newest, found, strict=True))
        shown_releases = [chosen[version] for version in releases]
        for shown in shown_releases:
            logger.info(
                "%s %s: showing %s of labels %s",
                project,
                shown.version,
                ", ".join(shown.labels) or "none",
                ", ".join(sorted(shown.available)),
            )
            if shown.problem:
                of = "" if shown.problem == _TOO_OLD else f" {shown.version}"
                self._warn(f"{project}{of}: {shown.problem}")
        self._warn_of_unread(project, shown_releases)
        return {shown.version: shown for shown in shown_releases}

    def _warn_of_unread(
        self, project: str, shown_releases: Sequence[ShownRelease]
    ) -> None:
        """Warn about wheels with unreadable METADATA, in one sentence."""
        if not (unread := [release for release in shown_releases if release.unread]):
            return
        newest = max(unread, key=lambda release: Version(release.version))
        ((label, reason), *_) = newest.unread.items()
        more = sum(len(release.unread) for release in unread) - 1
        others = f", like {more} more" if more else ""
        self._warn(
            f"{project} {newest.version}: variant {label} is passed over{others}, "
            f"because its METADATA cannot be read or used: {reason}"
        )

    async def _choose(
        self,
        project: str,
        release: Release,
        files: Mapping[str, model.File],
        make: Callable[[Sequence[str]], list[Offer]],
        *,
        pinned: str | None,
        named: Collection[str],
        room: Room | None,
    ) -> ShownRelease:
        shown = ShownRelease(
            project=project,
            version=release.version,
            available=release.labels,
            pinned=pinned,
            # With a pinned label, do not show releases without this label.
            plain=frozenset(
                wheel.file_name
                for wheel in release.plain
                if pinned is None
                or has_label(wheel.file_name, pinned)
                or wheel.file_name in named
            ),
        )
        if pinned is not None and pinned not in release.labels:
            return shown
        if room is None:
            return replace(shown, problem=_TOO_OLD)
        try:
            with room.reading():
                metadata = await self._read(project, release, files, room)
            resolution = await self._resolver.resolve(metadata)
        except (ProviderError, *UNAVAILABLE) as error:
            # PEP 825 leaves this case to tools. A defect of the index should not
            # prevent installing the non-variant wheel.
            reason = str(error) or "the index does not send a file that its page lists"
            return replace(shown, problem=f"its variants are ignored: {reason}")
        unknown = sorted(release.labels - metadata.variants.keys())
        if unknown:
            where = release.metadata or "the variant.json of its wheels"
            self._warn(
                f"{project} {release.version}: wheels are ignored because {where} "
                f"does not have their labels: {', '.join(unknown[:5])}"
            )
        # PEP 825 forbids selecting a variant that does not fit, even if it is pinned.
        labels = [x for x in resolution.compatible if pinned in (None, x)][:_LABELS]
        limits: dict[str, frozenset[str]] = {}
        ask = partial(self.evaluator.depends_on_variant, project, room, limits)
        first = {w.parts.label or "": w.file_name for w in reversed(release.labelled)}
        some = {label: files[first[label]] for label in labels if label in first}
        markers = await self._find_markers(some, resolution, ask)
        names = [wheel.file_name for wheel in release.plain] or release.sources
        if limits and names:
            read = partial(self._files.read_metadata, self._index, project)
            own = await find_limits(map(files.__getitem__, names), read, room)
            markers |= {x: _NARROW for x in limits if not limits[x] <= own}
        unread = {x: why for x, why in markers.items() if isinstance(why, str)}
        labels = [label for label in labels if label not in unread]
        offers = await in_thread(make, labels)
        return replace(
            shown,
            resolution=resolution,
            rewritten=frozenset(label for label, has in markers.items() if has is True),
            held=frozenset(label for label, has in markers.items() if has is None),
            unread=unread,
            offers=tuple(offers),
        )

    async def _find_markers(
        self,
        wheels: Mapping[str, model.File],
        resolution: Resolution,
        ask: Callable[[model.File, MakeVariant], Awaitable[Markers]],
    ) -> dict[str, Markers]:
        """Map each label to the result of `depends_on_variant` for its wheel.

        One wheel is enough: all wheels with the same label are built from one source.
        """
        if not self._selection.rewrites:
            return {}
        replies = await asyncio.gather(
            *(
                ask(file, partial(SelectedVariant.of, label, resolution))
                for label, file in wheels.items()
            )
        )
        return dict(zip(wheels, replies, strict=True))

    async def evaluate(
        self,
        file: model.File | None,
        release: ShownRelease,
        offer: Offer,
        *,
        metadata: bool,
    ) -> model.Resource | Kept | None:
        """Return a wheel or METADATA with markers resolved; ``None`` without markers.

        :param file: the wheel on the page of the index.
        :param metadata: return METADATA instead of the wheel.
        :raises InvalidPackageError: the markers cannot be evaluated, or the wheel must
            not be changed.
        """
        name = offer.wheel.file_name
        if file is None or release.resolution is None:
            return None
        variant = partial(SelectedVariant.of, offer.label, release.resolution)
        refusal = _NEEDS_HASHES if self._selection.requires_hashes else None
        wheel = release.project, file, variant
        try:
            kept = await self.evaluator.evaluate(*wheel)
        except NoRangesError as error:
            if metadata:
                return None
            if self._selection.rewrites:
                return await self.evaluator.hold(*wheel, refusal=refusal)
            self._warn(f"{name}: its METADATA could not be checked: {error}")
            return None
        except (InputError, *UNAVAILABLE) as error:
            if isinstance(error, InputError) and (
                "PEP 825" in (error.hint or "") or offer.label in release.rewritten
            ):
                raise self._refused(name, str(error)) from None
            self._warn(f"{name}: its METADATA could not be checked: {error}")
            return None
        if kept is None:
            return None
        if not self._selection.rewrites:
            raise self._refused(
                name,
                "its METADATA has variant markers that no released installer reads, "
                "and this server cannot rewrite wheels; take another build, or serve "
                "it with: nvp serve",
            )
        if refusal is not None:
            raise self._refused(name, refusal)
        if metadata:
            return kept
        try:
            return await self.evaluator.rewrite(*wheel)
        except NoRangesError:  # METADATA is that of an earlier download
            return await self.evaluator.hold(*wheel, sent=kept.content)

    def _refused(self, name: str, reason: str) -> errors.InvalidPackageError:
        message = f"{name}: refused, because {reason}"
        self._warn(message)
        return errors.InvalidPackageError(message)
