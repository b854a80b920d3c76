"""Lock files (PEP 751): serve their files, and complete new lock files."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from packaging.utils import canonicalize_version
from simple_repository import errors, model

from nvidia_variant_provider.errors import InputError
from nvidia_variant_provider.strict_json import as_object, parse_json

from ...metadata.requirements import NON_VARIANT, SelectedVariant, Work
from ..http.client import Client
from ..selection.component import VariantRepository, select
from ..selection.core_metadata import EvaluatedWheel
from ..selection.evidence import PATIENCE
from ..selection.indexes import Indexes
from ..selection.options import Selection
from ..selection.pieces import UNAVAILABLE
from ..selection.reader import Reader
from ..selection.renaming import Wheel, group
from ..selection.shown import ShownRelease
from ..selection.visibility import BuildJudge, PageVerdicts
from .rendering import link
from .responses import Source
from .server import Server
from .upstream import Upstream, refuse_near_files

_FOR_WHEEL = 10_000
"""The steps of `Work` to read METADATA of a wheel, in addition to its requirements."""


class ListedUpstream(Upstream):
    """A repository of known files, such as those of a lock file.

    :param files: the files of each project, keyed by normalized name.
    """

    def __init__(self, files: Mapping[str, Sequence[model.File]]) -> None:
        super().__init__()
        self._files = files

    async def _read_names(self) -> Iterable[str]:
        return self._files

    async def _read_page(self, project: str) -> model.ProjectDetail:
        if project not in self._files:
            raise errors.PackageNotFoundError(project)
        files = tuple(self._files[project])
        return model.ProjectDetail(meta=model.Meta("1.0"), name=project, files=files)


class SavedUpstream(ListedUpstream):
    """A repository of the files of saved pages, perhaps of a stranger.

    Files on servers that only this machine or its network can reach are refused.
    """

    def __init__(
        self, files: Mapping[str, Sequence[model.File]], client: Client
    ) -> None:
        super().__init__(files)
        self._client = client

    async def _read_page(self, project: str) -> model.ProjectDetail:
        return await refuse_near_files(await super()._read_page(project), self._client)


@dataclass(frozen=True, kw_only=True, slots=True)
class LockedPage:
    """The shown files of a project in a lock file.

    :param files: the files, keyed by their names in the lock file, each after its
        place, best first. Variants are served with other names and URLs. A rewritten
        wheel has no hashes.
    :param releases: the shown releases with variants, keyed by canonical versions.
    """

    files: Mapping[str, tuple[int, model.File]]
    releases: Mapping[str, ShownRelease]

    def find_release(self, version: str) -> ShownRelease | None:
        """Return the shown release of a version; ``None`` if it has no variants."""
        try:
            return self.releases.get(canonicalize_version(version))
        except ValueError:  # a number has thousands of digits
            return None


class LockFiles:
    """The lock files whose files a local index serves beside its indexes.

    The hashes in a lock file decide which files are accepted, so the files are neither
    compared with the indexes nor hidden.

    Call methods other than `add` and `open` only while the index is serving.

    :param warn: called with a sentence for each ignored item.
    """

    def __init__(
        self, server: Server, prefix: str, warn: Callable[[str], None]
    ) -> None:
        self._server = server
        self._prefix = prefix
        self._warn = warn
        self._upstreams: list[ListedUpstream] = []
        self._sources: list[Source] = []
        self._judges: list[BuildJudge] = []
        self._pages: dict[tuple[int, str], LockedPage] = {}
        self._waited = 0.0
        self.judged: list[PageVerdicts] = []
        """The results of `judge`."""

    def add(self, files: Mapping[str, Sequence[model.File]]) -> int:
        """Serve the files of a lock file; return its number, for the other methods.

        :param files: the files of each project, keyed by normalized name.
        """
        self._upstreams.append(ListedUpstream(files))
        return len(self._upstreams) - 1

    def open(
        self,
        selection: Selection,
        first: int,
        reader: Reader,
        make_source: Callable[[str, str, VariantRepository, Upstream], Source],
    ) -> list[Source]:
        """Return the source of each lock file for the server.

        :param first: the number of the first lock file on the server.
        :param make_source: creates a source from a path, a display name and a
            repository.
        """
        self._judges = [
            BuildJudge(Indexes([upstream]), selection, reader, warn=self._warn)
            for upstream in self._upstreams
        ]
        # Do not require hashes: this server verifies those of the lock file, and
        # rewritten wheels get new ones. `unchecked` shows all regular wheels.
        unhashed = replace(
            selection, requires_hashes=False, keeps_hashes=False, unchecked=True
        )
        for number, upstream in enumerate(self._upstreams, first):
            (repository,) = select(
                [upstream],
                selection=unhashed,
                reader=reader,
                warn=self._warn,
            )
            self._sources.append(
                make_source(f"/{number}", "a lock file", repository, upstream)
            )
        return self._sources

    def read(self, number: int, project: str) -> LockedPage:
        """Return the files of a project in a lock file for this machine."""
        key = number, project
        if key not in self._pages:  # a lock file may have many packages of one name
            source = self._sources[number]
            url = f"{self._server.url}{self._prefix}{source.path}/"
            work = _read_locked(source, project, url)
            self._pages[key] = self._server.call(work)
        return self._pages[key]

    def judge(self, number: int, project: str) -> None:
        """Judge the builds of a project in a lock file.

        Servers that do not respond delay all projects together, not each of them.
        """
        if self._waited > PATIENCE:
            return
        start = time.monotonic()
        self.judged.append(self._server.call(self._judge(number, project)))
        self._waited += time.monotonic() - start
        if self._waited > PATIENCE:
            self._warn("it is not known which other builds in the lock file can run")

    async def _judge(self, number: int, project: str) -> PageVerdicts:
        upstream = self._upstreams[number]
        page = await upstream.get_project_page(project)
        judge = self._judges[number].judge
        return await judge(upstream, page.name, page, page.files)

    def save(self, number: int, project: str, name: str, folder: Path) -> str:
        """Save a rewritten wheel of a lock file; return its new SHA-256.

        :param name: the name for pip.
        :raises InputError: the wheel cannot be read or has a different hash.
        """
        source = self._sources[number]
        return self._server.call(_save_rewritten(source, project, name, folder))

    def read_file(self, number: int, project: str, name: str) -> bytes:
        """Return the complete, unchanged content of a file in a lock file.

        :raises InputError: the file cannot be read.
        """
        repository = self._sources[number].repository
        return self._server.call(
            repository.reader.read(repository.source, project, name)
        )


async def _read_locked(source: Source, project: str, url: str) -> LockedPage:
    """Read the files of a project in a lock file for a machine.

    :param url: the prefix of the URLs of the source.
    """
    page, shown = await source.repository.show(project)
    names = shown.originals
    files: dict[str, tuple[int, model.File]] = {}
    for file in page.files:
        # A page lists the best wheel twice: use the first entry.
        here = link(source, file, project, urlsplit(url).path, shown=url)
        name = names.get(file.filename, file.filename)
        files.setdefault(name, (len(files), here))
    # The keys are texts: a stranger can choose versions with equal hashes.
    releases: dict[str, ShownRelease] = {}
    for release in shown.releases.values():
        releases.setdefault(canonicalize_version(release.version), release)
    return LockedPage(files=files, releases=releases)


async def _save_rewritten(source: Source, project: str, name: str, folder: Path) -> str:
    """Save a rewritten wheel, and serve the saved file.

    The hash in the lock file is of the original wheel, which is verified while it is
    rewritten. pip must verify the new hash.

    :returns: the SHA-256 of the wheel for pip.
    :raises InputError: the wheel cannot be read or has a different hash.
    """
    from .rewritten import save_rewritten

    try:
        wheel = await source.repository.get_resource(project, name)
    except errors.InvalidPackageError as error:
        raise InputError(str(error)) from None
    if not isinstance(wheel, EvaluatedWheel):
        raise InputError("is not rewritten as its page says", path=name)
    path = folder / name
    with path.open("wb") as file:
        digest = await save_rewritten(wheel, file, source.client, source.rewritten)
    source.saved[name] = path
    return digest


@dataclass(frozen=True, kw_only=True, slots=True)
class LockableWheel:
    """A wheel of a release, with its own URL.

    :param name: the name on the page, or the original name of a hidden wheel.
    """

    name: str
    wheel: Wheel
    file: model.File


@dataclass(frozen=True, kw_only=True, slots=True)
class LockableRelease:
    """The files of a release, and their requirements.

    :param wheels: first the wheels with fitting labels, best first, then wheels with
        other labels, and finally the non-variant wheels.
    :param metadata: the metadata of the variants.
    :param requires: the requirements for each label; the key ``None`` is for the
        non-variant wheel. Labels with unreadable requirements are missing.
    """

    wheels: tuple[LockableWheel, ...]
    metadata: Mapping[str, Any] | None
    requires: Mapping[str | None, tuple[str, ...]]


async def read_lockable(
    repository: VariantRepository, project: str, name: str
) -> LockableRelease | None:
    """Read the information that a lock file needs about the release of a wheel.

    :param name: the name on the page.
    :returns: ``None`` for a wheel that is not a variant.
    :raises InputError: the page of the wheel can no longer be read.
    """
    page = await repository.recall(project)
    found = page.find_offer(name)
    if found is None or found[0].resolution is None:
        return None
    shown, resolution = found[0], found[0].resolution
    files = {file.filename: file for file in page.judged.apply(page.files)}
    release = group(files, shown.project)[shown.version]
    order = {label: rank for rank, label in enumerate(resolution.compatible)}
    labelled = sorted(
        release.labelled,
        key=lambda wheel: (
            order.get(wheel.parts.label or "", len(order)),
            wheel.file_name,
        ),
    )
    wheels = [*labelled, *release.plain]
    names = {offer.wheel.file_name: offer.name for offer in shown.offers}
    requires: dict[str | None, tuple[str, ...]] = {}
    work = Work()
    for wheel in wheels:
        label = wheel.parts.label
        if label in requires or (label and label not in resolution.metadata.variants):
            continue
        variant = NON_VARIANT
        if label is not None:
            # Evaluate for a machine that supports all properties of the label.
            properties = (
                (item.namespace, item.feature, item.value)
                for item in resolution.properties(label)
            )
            variant = SelectedVariant(label=label, properties=frozenset(properties))
        try:
            read = await repository.evaluator.read_requirements(
                project, files[wheel.file_name], variant
            )
        except (InputError, *UNAVAILABLE):
            read = None
        # METADATA of up to 4 MiB may be tiny when compressed.
        if not work.take(_FOR_WHEEL + sum(map(len, read or ()))):
            break
        if read is not None:
            requires[label] = read
    return LockableRelease(
        wheels=tuple(
            LockableWheel(
                name=names.get(wheel.file_name, wheel.file_name),
                wheel=wheel,
                file=files[wheel.file_name],
            )
            for wheel in wheels
        ),
        metadata=await _read_metadata(
            repository, project, files.get(release.metadata or "")
        ),
        requires=requires,
    )


async def _read_metadata(
    repository: VariantRepository, project: str, file: model.File | None
) -> Mapping[str, Any] | None:
    """Return the metadata of the variants; ``None`` if unavailable."""
    if file is None:
        return None
    try:
        reader = repository.reader
        content = await reader.read(repository.source, project, file.filename)
        document = as_object(parse_json(content, file.filename), file.filename)
    except (InputError, *UNAVAILABLE):
        return None
    digest = hashlib.sha256(content).hexdigest()
    return document if file.hashes.get("sha256", digest) == digest else None
