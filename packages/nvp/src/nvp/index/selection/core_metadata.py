"""METADATA that this program reads and sends to installers.

Without METADATA on the index (PEP 658), an installer downloads the whole wheel to get
its requirements. The page therefore announces METADATA of large wheels, which is read
from the wheel by HTTP range requests on demand. pip and uv fail if advertised METADATA
cannot be fetched, whatever the HTTP status. So METADATA is announced only if the server
of the file passes a test of its range support. If a range request fails anyway, the
whole wheel is read.

PEP 825, "Evaluating variant markers": the markers "MUST NOT take part in selecting a
wheel", and they are evaluated for the selected label. An installer without support for
markers gets METADATA with resolved markers, also inside the wheel.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias

from simple_repository import model
from simple_repository.components.core import SimpleRepository

from nvidia_variant_provider.errors import InputError, shown

from ...metadata.requirements import is_clear
from ...wheels.archive import (
    MAX_REQUIRES,
    first_header,
    parse_requires,
    platform_of,
)
from ...wheels.variant_json import is_of, is_plain
from ..http.ranges import ChangedFileError, Parts, RangeSupport
from ..http.threads import in_steps, in_thread
from ..http.urls import NoRangesError, is_http, server_of
from .kept import FRESH, METADATA_KEY, Aging, Kept, Request, SentMetadata, whole_key
from .options import allows_python, clauses_of
from .pieces import (
    UNAVAILABLE,
    Check,
    ComparedWheel,
    CopiedWheel,
    Waiting,
    find_own,
)
from .reader import Reader
from .renaming import find_label
from .wheel_files import SMALLEST

if TYPE_CHECKING:
    from ...metadata.requirements import SelectedVariant
    from ...wheels.rewriting import RewritePlan
    from .shown import Room

logger = logging.getLogger(__name__)

_MOST_SERVERS = 16
"""The maximum number of servers of a page that are tested; real pages have up to 3."""

_MARKER = b"variant_"

_ROOM = 8 << 30  # the maximum size of the wheels that are downloaded at a time


class Announcer:
    """Announces METADATA of wheels, and reads it on demand.

    :param reader: reads METADATA.
    :param ranges: tests the range support of servers.
    :param platform: the platform of the wheels, such as ``linux_x86_64``.
    :param python: the version of Python of the target; ``None`` if unknown.
    """

    def __init__(
        self,
        reader: Reader,
        ranges: RangeSupport,
        platform: str,
        python: str | None = None,
    ) -> None:
        self._reader = reader
        self._ranges = ranges
        self._platform = platform
        self._python = python
        self._reading: dict[str, Waiting] = {}
        self._digests: Aging[tuple[str, int], asyncio.Task[str]] = Aging(10_000, FRESH)

    async def announce(
        self, files: Sequence[model.File], index: str | None = None
    ) -> tuple[list[model.File], dict[str, model.File]]:
        """Announce METADATA of wheels that lack it on the page, if it can be read.

        :param index: the only index that may get credentials; see `Client.only`.
        :returns: all files, and the files with METADATA announced here, now or on an
            earlier page, keyed by name.
        """
        # METADATA is requested by name, so two files of one name cannot both have it.
        names = Counter(file.filename for file in files)
        # An installer may request METADATA that an earlier page announced.
        announced = {
            file.filename: file
            async for file in in_steps(files)
            if names[file.filename] == 1
            and file.dist_info_metadata is not True
            and self._is_for_here(file)
        }
        large = {k: v for k, v in announced.items() if not v.dist_info_metadata}
        # A page could name thousands of servers, each of which gets a request.
        urls = {server_of(file.url): file.url for file in reversed(large.values())}
        servers = dict(islice(urls.items(), _MOST_SERVERS))
        tests = (self._ranges.has(url, index) for url in servers.values())
        replies = await asyncio.gather(*tests)
        sends = dict(zip(servers, replies, strict=True))
        listed = []
        known = self._reader.metadata
        async for file in in_steps(files):
            is_only = names[file.filename] == 1 and not file.dist_info_metadata
            kept = known.find(file) if is_only else None
            readable = file.filename in large and sends.get(server_of(file.url), False)
            is_shown = (kept or readable) and not known.is_refused(file)
            if kept:
                announced[file.filename] = file
            digest = await self._digest(file, kept.content) if kept else ""
            listed.append(_with_metadata(file, digest) if is_shown else file)
        return listed, announced

    async def _digest(self, file: model.File, metadata: bytes) -> str:
        """Return the SHA-256 of METADATA; empty if pip passes over the wheel."""

        def find() -> str:
            used = self._is_used(file, metadata)
            return hashlib.sha256(metadata).hexdigest() if used else ""

        key = file.filename, hash(metadata)
        if (known := self._digests.get(key)) is None:
            known = asyncio.ensure_future(asyncio.to_thread(find))
            self._digests.put(key, known)  # also for pages made at the same time
        return await asyncio.shield(known)

    async def read(
        self, index: SimpleRepository, project: str, file: model.File
    ) -> Kept:
        """Return the METADATA that was announced for a wheel.

        :raises InputError: METADATA cannot be read, or lacks a name or a version.
        """
        # Work continues after a timeout of the installer, whose retry then waits for
        # the same work.
        key = whole_key(file)
        if key not in self._reading:
            downloads = functools.partial(self._downloads, file)
            work = self._reader.find_metadata(index, project, file, downloads=downloads)
            self._reading[key] = Waiting(asyncio.ensure_future(work))
            self._reading[key].work.add_done_callback(lambda _: self._reading.pop(key))
        if (kept := await self._reading[key].wait()) is None:
            return Kept(b"")  # The client has ended.
        return kept

    def _downloads(self, file: model.File, content: bytes | None) -> Check | None:
        if content is not None and self._is_used(file, content):
            return None
        self._ranges.deny(file.url)
        return functools.partial(self._check_download, file)

    def _check_download(self, file: model.File, size: int) -> None:
        self._reading[whole_key(file)].check(size)
        total = sum(each.size for each in self._reading.values())
        if total > _ROOM or size > (file.size or size):
            raise InputError("its download is too large", path=file.filename)

    def _is_used(self, file: model.File, content: bytes) -> bool:
        """Return whether pip does not pass over a wheel because of its METADATA.

        METADATA that was read by ranges may be wrong. pip alone would verify the wheel
        before it uses another release.
        """
        python = first_header(content, "Requires-Python")
        return is_of(content, file.filename, local=True) and (
            self._python is None or allows_python(python, self._python)
        )

    def _is_for_here(self, file: model.File) -> bool:
        """Return whether METADATA of a file is worth a request.

        METADATA of a platform-independent wheel, which is usually small, is announced
        only if the page gives a large size.
        """
        name = file.filename
        if not name.endswith(".whl"):
            return False
        if (file.size or SMALLEST) < SMALLEST or not is_http(file.url):
            return False
        label = find_label(name)
        tag = name[:-4].removesuffix(f"-{label}").rpartition("-")[2]
        if tag == "any":
            return bool(file.size)
        return platform_of(tag) == self._platform


def _with_metadata(file: model.File, digest: str) -> model.File:
    private = {**dict(file.private_metadata.items()), METADATA_KEY: True}
    return replace(
        file,
        # The hash of unread METADATA is unknown; PEP 658 uses "true" in this case.
        dist_info_metadata={"sha256": digest} if digest else True,
        private_metadata=model.PrivateMetadataMapping.from_any_mapping(private),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluatedWheel(ComparedWheel):
    """A wheel that is rewritten while it is sent.

    :param plan: the parts of the wheel to replace, which was made from ``parts``.
    """

    plan: RewritePlan

    @property
    def size(self) -> int | None:
        """The size of the rewritten wheel in bytes."""
        return self.plan.size


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldWheel(ComparedWheel):
    """A wheel whose METADATA can be read only after its complete download.

    :param refusal: why the wheel must not be rewritten, or ``None``.
    :param plan: caches the downloaded wheel and returns the parts to replace; ``None``
        if the wheel is unchanged.
    """

    refusal: str | None
    plan: Callable[[CopiedWheel], Awaitable[RewritePlan | None]]


SentWheel = ComparedWheel | CopiedWheel
"""Resources that installers must get from here, and not by a redirect."""


def compare(
    wheel: model.Resource,
    file: model.File,
    sent: SentMetadata,
    request: Request,
    *,
    always: bool,
) -> model.Resource:
    """Return a resource that compares a wheel with the METADATA that was sent.

    :param always: whether to compare the hashes of ``file`` also if none was sent,
        because installers do not get the hashes.
    :raises UpstreamError: the wheel recently failed its verification.
    """
    parts = sent.find(request, file)
    if not isinstance(wheel, ComparedWheel):
        if not (parts or always):
            return wheel
        wheel = ComparedWheel(original=wheel, hashes=file.hashes)
    parts += wheel.parts
    settle = functools.partial(sent.settle, request, file, parts)
    return replace(wheel, parts=parts, settle=settle)


MakeVariant = Callable[[], "SelectedVariant"]
"""Returns the variant of a wheel; called only if markers may depend on it."""

Markers: TypeAlias = "bool | str | None"
"""The result of `Evaluator.depends_on_variant`."""


class Evaluator:
    """Resolves the variant markers in wheels of a repository.

    :param reader: reads the wheels and their METADATA.
    """

    def __init__(self, index: SimpleRepository, reader: Reader) -> None:
        self._index = index
        self._reader = reader

    async def evaluate(
        self, project: str, file: model.File, variant: MakeVariant
    ) -> Kept | None:
        """Return METADATA with variant markers resolved; ``None`` without markers.

        :raises InputError: METADATA cannot be read, or a marker is invalid.
        """
        kept = await self._reader.read_kept(self._index, project, file)
        evaluated = await self._evaluate(kept.content, variant)
        return None if evaluated is None else replace(kept, content=evaluated)

    async def _evaluate(self, metadata: bytes, variant: MakeVariant) -> bytes | None:
        from ...wheels.rewriting import evaluate_core_metadata

        if _MARKER not in metadata:
            return None
        # There may be very many markers and properties: do not delay other requests.
        evaluated = await in_thread(lambda: evaluate_core_metadata(metadata, variant()))
        return None if evaluated == metadata else evaluated

    async def read_requirements(
        self, project: str, file: model.File, variant: SelectedVariant
    ) -> tuple[str, ...]:
        """Return the requirements of a wheel, with variant markers resolved.

        :raises InputError: METADATA cannot be read, or a marker is invalid.
        """
        from ...wheels.rewriting import evaluate_core_metadata

        metadata = await self._reader.read_metadata(self._index, project, file)
        return await in_thread(
            lambda: parse_requires(evaluate_core_metadata(metadata, variant))
        )

    async def rewrite(
        self, project: str, file: model.File, variant: MakeVariant
    ) -> EvaluatedWheel | None:
        """Return the wheel with variant markers resolved; ``None`` without markers.

        :raises InputError: the wheel cannot be read.
        """
        from ...wheels.rewriting import evaluate_core_metadata, plan_rewrite

        parts = Parts()
        original = await find_own(self._index, project, file)
        plan = await self._reader.open(
            original,
            file.filename,
            lambda opened: plan_rewrite(
                opened, lambda data: evaluate_core_metadata(data, variant())
            ),
            parts,
        )
        if plan is None:
            return None
        logger.info("%s: its METADATA is rewritten on the way", file.filename)
        return EvaluatedWheel(
            original=self._reader.find_copy(original),
            plan=plan,
            hashes=file.hashes,
            parts=(parts,),
        )

    async def hold(
        self,
        project: str,
        file: model.File,
        variant: MakeVariant,
        *,
        refusal: str | None = None,
        sent: bytes | None = None,
    ) -> HeldWheel | None:
        """Return a wheel to rewrite after its download; ``None`` if it is a local file.

        :param refusal: see `HeldWheel`.
        :param sent: METADATA of an earlier download, with variant markers resolved.
        """
        from ...wheels.rewriting import evaluate_core_metadata, plan_rewrite

        original = await find_own(self._index, project, file)
        if not isinstance(original, model.HttpResource):
            return None

        def evaluate(data: bytes) -> bytes:
            return evaluate_core_metadata(data, variant())

        async def plan(copy: CopiedWheel) -> RewritePlan | None:
            read = functools.partial(plan_rewrite, evaluate=evaluate)
            made = await asyncio.to_thread(copy.read, read)
            if sent is not None and (made is None or made.metadata != sent):
                raise ChangedFileError("it has changed since its METADATA was sent")
            await self._reader.keep_copy(file, copy)
            return made

        hashes = file.hashes
        return HeldWheel(original=original, hashes=hashes, refusal=refusal, plan=plan)

    async def depends_on_variant(
        self,
        project: str,
        room: Room,
        limits: MutableMapping[str, frozenset[str]],
        file: model.File,
        variant: MakeVariant,
    ) -> Markers:
        """Return whether a wheel will be rewritten, or why it must not be shown.

        :param limits: receives the limit of Python that only METADATA has, by label.
        :returns: ``None`` if the complete wheel must be downloaded to find out.
        """
        try:
            async with room.requests:
                with room.reading():
                    metadata = await self._reader.read_metadata(
                        self._index, project, file
                    )
                    # METADATA with markers, which few wheels have, takes longer.
                    room.add_core(len(metadata) * (1 + (_MARKER in metadata)))
                    evaluated = await self._evaluate(metadata, variant)
                    limit = await self._check(file, evaluated or metadata, room)
                    if limit and (label := find_label(file.filename)):
                        limits[label] = limit
                    return evaluated is not None
        except NoRangesError:
            return None
        except InputError as error:
            return str(error)
        except UNAVAILABLE:
            # Messages of simple-repository name only the request, so replace them.
            return "the index does not send it"

    async def _check(
        self, file: model.File, metadata: bytes, room: Room
    ) -> frozenset[str]:
        """Refuse METADATA because of which installers pass over the whole release.

        Installers try one wheel of a release, and then another release, perhaps of
        another index. A variant must therefore not have METADATA that an installer
        cannot parse.

        :returns: the clauses of the limit of Python, if the page lacks some.
        :raises InputError: the wheel must not be shown.
        """
        if not await in_thread(is_plain, metadata, file.filename):
            message = "not all installers read its name, version and limit of Python"
            raise InputError(message, hint="report it to the index")
        requires = await in_thread(parse_requires, metadata)
        # To parse requirements takes more time than to read them.
        room.add(sum(50 + len(text) for text in requires))
        unclear, limit = await in_thread(
            lambda: (
                [text for text in requires if not is_clear(text)],
                first_header(metadata, "Requires-Python"),
            )
        )
        unclear += requires[MAX_REQUIRES:]
        if unclear:
            message = f"not all installers read its requirement {shown(unclear[0])}"
            raise InputError(message, hint="report it to the index")
        own = clauses_of(limit)
        return frozenset() if own <= clauses_of(file.requires_python) else own
