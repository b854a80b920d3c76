"""The builds on a project's page for a machine, their limits, and the shown files."""

from __future__ import annotations

import asyncio
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from traceback import clear_frames
from typing import TYPE_CHECKING

from packaging.version import Version
from simple_repository import model

from nvidia_variant_provider.errors import InputError
from nvidia_variant_provider.strict_json import MAX_BYTES

from ...builds.needs import parse_backend
from ...metadata.requirements import Work
from ...wheels.archive import first_header, release_of
from ..http.kept_keys import (
    ANNOUNCING,
    KEPT_KEY,
    LABEL_KEY,
    fitting_meta,
    is_yanked,
    kept_keys,
)
from ..http.threads import Turn, in_thread
from .options import clauses_of, find_labels, has_label
from .pieces import UNAVAILABLE
from .renaming import Offer, Release, find_label
from .visibility import PageVerdicts

if TYPE_CHECKING:
    from nvidia_variant_provider.resolution.resolver import Resolution

_MOST_METADATA, _RELEASES, _REQUESTS = MAX_BYTES, 8, 32
"""The maximum size in bytes of all metadata that is read for a page, and the maximum
numbers of its releases and METADATA at a time. Real releases have some kilobytes."""

_REQUEST, _CORE, _PART = 4096, 8, 128
"""The number of bytes of METADATA that take as much time as a request, and the numbers
of bytes of METADATA and of parts of wheels that count as one byte of a document."""

_FAILED = 16 * 1024
"""The number of bytes that a document or METADATA counts if it cannot be read."""

_REASONS = 8  # the most reasons of a label in a message, as on the terminal

_LARGE = 512 * 1024
"""The size in bytes of variant metadata from which pages are made one at a time."""


class Room:
    """Limits the metadata that is read for a page, and may be tiny when compressed.

    A document counts for each release that has it, because each is resolved. METADATA
    and parts of wheels, which take less time and memory, count less than their size.

    :param turn: taken before large documents are parsed, which takes ten times their
        size in memory.
    :param files: the number of files on the page.
    :param total: the size in bytes of all documents.
    :param work: limits the comparisons of tags.
    """

    def __init__(self, turn: Turn, files: int = 0) -> None:
        self.work = Work(files)
        self.releases = asyncio.Semaphore(_RELEASES)
        self.requests = asyncio.Semaphore(_REQUESTS)
        self._turn = turn
        self.total = 0

    def add(self, size: int) -> None:
        """Count a document.

        :raises InputError: there is no room for the document, nor for further ones.
        """
        self.total += size
        self.check()

    def add_core(self, size: int) -> None:
        """Count METADATA of a wheel; see `add`."""
        self.add((size + _REQUEST) // _CORE)

    def add_part(self, size: int) -> None:
        """Count a part of a wheel, such as its list of members; see `add`."""
        self.add(size // _PART)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Count what is read in this block if it fails, because its size is unknown.

        :raises InputError: as `check` does.
        """
        self.check()
        try:
            yield
        except Exception as error:
            # The error and its frames, which have the response, refer to each other.
            clear_frames(error.__traceback__)
            self.total += _FAILED
            raise

    async def admit(self, size: int) -> None:
        """Count a document, and wait until it may be parsed.

        :raises InputError: there is no room for the document.
        """
        self.add(size)
        await self.wait()

    async def wait(self) -> None:
        """Wait for the turn of the page, if its metadata is large."""
        if self.total > _LARGE:
            await self._turn.take()

    def check(self) -> None:
        """Raise `InputError` if there is no room for further documents."""
        if self.total > _MOST_METADATA:
            message = f"the page has more than {_MOST_METADATA >> 20} MiB of metadata"
            raise InputError(message, hint="report it to the index")


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownRelease:
    """The builds of a release for a machine.

    :param resolution: the resolution of the labels; ``None`` if the metadata is
        unusable.
    :param offers: the variant wheels that are shown, best first.
    :param plain: the non-variant wheels that are shown.
    :param available: the labels of all variant wheels.
    :param rewritten: the labels whose wheels are rewritten, because their dependencies
        depend on the variant.
    :param held: the labels whose METADATA can be read only after a complete download.
    :param unread: for each label, why METADATA cannot be read or used. These wheels are
        hidden.
    :param pinned: the label that the user requested.
    :param problem: the defect of the index, if any, that prevents showing variants.
    """

    project: str
    version: str
    resolution: Resolution | None = None
    offers: tuple[Offer, ...] = ()
    plain: frozenset[str] = frozenset()
    available: frozenset[str] = frozenset()
    rewritten: frozenset[str] = frozenset()
    held: frozenset[str] = frozenset()
    unread: Mapping[str, str] = field(default_factory=dict)
    pinned: str | None = None
    problem: str | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels that are shown, best first."""
        return tuple(dict.fromkeys(offer.label for offer in self.offers))


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownPage:
    """A page of an index: its files, the shown files, and the reasons.

    :param files: the files of the index.
    :param shown: the files that an installer sees.
    :param judged: the verdicts on the regular wheels.
    :param releases: the shown releases with variants, keyed by version.
    :param announced: the files whose METADATA this server sends or has sent, by
        original name.
    :param memory: the estimated memory of what is cached, in bytes.
    """

    files: Sequence[model.File] = ()
    shown: Sequence[model.File] = ()
    judged: PageVerdicts
    releases: Mapping[str, ShownRelease] = field(default_factory=dict)
    announced: Mapping[str, model.File] = field(default_factory=dict)
    memory: int = 0

    def find_offer(self, name: str) -> tuple[ShownRelease, Offer] | None:
        """Find the variant wheel that installers see as ``name``."""
        for release in self.releases.values():
            for offer in release.offers:
                if name in (offer.name, offer.bare):
                    return release, offer
        return None

    @property
    def originals(self) -> Mapping[str, str]:
        """The name on the index of each variant wheel, by its names for installers."""
        return {
            name: offer.wheel.file_name
            for release in self.releases.values()
            for offer in release.offers
            for name in (offer.name, offer.bare)
        }

    def find_release(self, name: str) -> tuple[ShownRelease, str | None] | None:
        """Find the release to which a wheel belongs, and the label of the wheel.

        :param name: the name for installers.
        :returns: ``None`` for a hidden wheel, and in releases without variants.
        """
        if (found := self.find_offer(name)) is not None:
            return found[0], found[1].label
        for release in self.releases.values():
            if name in release.plain:
                return release, None
        return None


def all_labels(file_names: Iterable[str], judged: PageVerdicts) -> frozenset[str]:
    """Return the labels with which a user can select wheels of a project."""
    labels = set(find_labels(file_names))
    for build in judged.builds:
        labels |= {build.version.local} if build.version.local else set()
        labels |= {build.backend.label, build.backend.base} if build.backend else set()
    return frozenset(labels)


def is_needed(label: str, labels: Iterable[str], *, alone: bool) -> bool:
    """Return whether a project must not be installed without the label.

    A label for all projects applies only to projects that have it. A backend's label,
    such as ``cu126``, also excludes builds of projects with labels of other backends.

    :param labels: the labels of the project.
    :param alone: whether the user requested the label only for this project.
    """
    if alone:
        return True
    return parse_backend(label) is not None and any(map(parse_backend, labels))


def explain_refused(
    pinned: str, judged: PageVerdicts, shown_releases: Iterable[ShownRelease]
) -> str | None:
    """Explain why the newest build with a label does not fit the machine."""
    refused: list[tuple[Version, str]] = []
    for shown in shown_releases:
        rejected = shown.resolution.rejected if shown.resolution else {}
        if pinned in rejected:
            reasons = "; ".join(x.sentence for x in rejected[pinned][:_REASONS])
            refused.append((Version(shown.version), reasons))
    refused += [
        (build.release, "; ".join(build.judgement.reasons))
        for build in judged.builds
        if build.has_label(pinned) and build.judgement.verdict == "cannot"
    ]
    if not refused:
        return None
    version, reasons = max(refused, key=lambda item: item[0])
    release = f"{judged.project}=={version}"
    return f"{release}: {pinned} does not fit this machine: {reasons}"


def keep_label(
    page: model.ProjectDetail, label: str, builds: Collection[str] = ()
) -> model.ProjectDetail:
    """Return a page with only the files of a label, without sdists.

    :param builds: the names of further wheels that belong to the label.
    """
    files = tuple(
        file
        for file in page.files
        if file.private_metadata.get(LABEL_KEY) == label
        or has_label(file.filename, label)
        or file.filename in builds
    )
    return replace(page, files=files)


def with_files(
    page: model.ProjectDetail, files: Iterable[model.File]
) -> model.ProjectDetail:
    """Return a page with other files, possibly without sizes."""
    shown = tuple(files)
    # Adapt the API version, because the size of a rewritten wheel is unknown.
    meta = fitting_meta(page.meta, shown, page.versions)
    return replace(page, meta=meta, files=shown)


def without_traps(files: Sequence[model.File], project: str) -> tuple[model.File, ...]:
    """Leave out variants that would change which files and releases uv considers.

    uv considers a release with a file that is not yanked, and takes the wheel with the
    best tags: even a yanked one, or none of the release, if that wheel is for another
    Python. These variants are left out: those of a release with a yanked regular file,
    yanked ones of a release with other files, and those whose requires-python has a
    clause that a regular file lacks. Only a pin leads to a release that is yanked as a
    whole.
    """
    variants = {file.filename for file in files if find_label(file.filename)}
    if not variants:
        return tuple(files)
    releases = [(file, release_of(file.filename, project)) for file in files]
    regular = [each for each in releases if each[0].filename not in variants]
    left = {release for file, release in releases if not is_yanked(file)}
    marred = {release for file, release in regular if is_yanked(file)}
    limits: dict[Version | None, frozenset[str]] = {}
    for file, release in regular:
        own = clauses_of(file.requires_python)
        limits[release] = own & limits.get(release, own)

    def is_trap(file: model.File, release: Version | None) -> bool:
        if release in left and (is_yanked(file) or release in marred):
            return True
        own = clauses_of(file.requires_python)
        return not own <= limits.get(release, own)

    return tuple(
        file
        for file, release in releases
        if file.filename not in variants or not is_trap(file, release)
    )


async def find_limits(
    files: Iterable[model.File],
    read: Callable[[model.File], Awaitable[bytes]],
    room: Room,
) -> frozenset[str]:
    """Return the clauses that limit the Python of all regular files of a release.

    A file whose METADATA cannot be read has only the limit on the page.

    :param files: the wheels or, in a release without any, the source distributions.
    :param read: reads METADATA of a wheel.
    """

    async def find(file: model.File) -> frozenset[str]:
        metadata = b""
        with suppress(InputError, *UNAVAILABLE):
            async with room.requests:
                with room.reading():
                    if file.filename.endswith(".whl"):
                        metadata = await read(file)
                        room.add_core(len(metadata))
        own = await in_thread(first_header, metadata, "Requires-Python")
        return clauses_of(file.requires_python) | clauses_of(own)

    first, *others = await asyncio.gather(*map(find, files))
    return first.intersection(*others)


def select_files(
    files: Iterable[model.File],
    releases: Mapping[str, Release],
    shown_releases: Mapping[str, ShownRelease],
    *,
    keeps_hashes: bool = False,
    requires_hashes: bool = False,
) -> list[model.File]:
    """Return the files of a page, with variant wheels renamed or left out.

    :param keeps_hashes: as in `Selection`, like ``requires_hashes``.

    The order of files matters for two installers. Poetry (2.5.1) reads the dependencies
    of a release from the last wheel for any platform or, without one, from the first
    wheel, which must be the best build. pdm (2.22.4) ignores build tags, and selects
    the first of the wheels with equal tags. Wheels for one platform are therefore in
    the order of the selection. The best wheel for any platform is listed twice: first
    for pdm, and last for Poetry, which needs the name without added tags.
    """
    labelled = {w.file_name for r in releases.values() for w in r.labelled}
    plain = {w.file_name for r in releases.values() for w in r.plain}
    shown_plain = frozenset().union(
        *(release.plain for release in shown_releases.values())
    )
    offers = {o.wheel.file_name: o for c in shown_releases.values() for o in c.offers}
    rewritten, held = (
        {
            o.wheel.file_name
            for c in shown_releases.values()
            for o in c.offers
            if o.label in getattr(c, which)
        }
        for which in ("rewritten", "held")
    )
    renamed: dict[str, model.File] = {}
    rest: list[model.File] = []
    for file in files:
        name = file.filename
        if name in offers:
            offer = offers[name]
            changed = replace(file, filename=offer.name)
            if name in rewritten or (name in held and not requires_hashes):
                changed = _without_own_keys(changed)
            if name in rewritten:
                # The hashes and the size on the page are valid only for the original.
                changed = replace(
                    changed,
                    hashes=file.hashes if keeps_hashes else {},
                    size=None,
                    # If the hash is unknown, an installer that keeps hashes must
                    # download the wheel, which METADATA would prevent.
                    dist_info_metadata=bool(file.hashes) or not keeps_hashes,
                )
            elif name in held and not requires_hashes:
                # The hash and the size of a wheel that may be rewritten are unknown.
                changed = replace(changed, hashes={}, size=None)
            renamed[name] = _with_label(changed, offer.label)
        elif name in plain:
            if name in shown_plain:
                rest.append(_with_label(file, None))
        elif name not in labelled:
            rest.append(file)
    ordered = [renamed[name] for name in offers]
    anywhere = [
        replace(renamed[name], filename=offer.bare)
        for name, offer in offers.items()
        if offer.bare.endswith("-any.whl")
    ]
    first = [file for file in ordered if not file.filename.endswith("-any.whl")]
    best = [
        file
        for release in shown_releases.values()
        if release.offers
        and (file := renamed[release.offers[0].wheel.file_name]).filename.endswith(
            "-any.whl"
        )
    ]
    return [*first, *best, *rest, *reversed(anywhere)]


def _with_label(file: model.File, label: str | None) -> model.File:
    return replace(file, private_metadata=file.private_metadata | {LABEL_KEY: label})


def _without_own_keys(file: model.File) -> model.File:
    """Return a file without attestations and METADATA of the index.

    They are for the original, whose bytes may change.
    """
    own = ("provenance", *ANNOUNCING)
    kept = {k: v for k, v in kept_keys(file).items() if k not in own}
    return replace(file, private_metadata=file.private_metadata | {KEPT_KEY: kept})
