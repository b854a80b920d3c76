"""Read the files of indexes, and cache the results.

One `Reader` serves all indexes of an installer, so its limits apply to all of them, and
a file on two indexes is read only once.
"""

from __future__ import annotations

import asyncio
import functools
import io
import json
import logging
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import AsyncExitStack
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, TypeVar, cast

from packaging.utils import canonicalize_name
from packaging.version import Version
from simple_repository import errors, model
from simple_repository.components.core import SimpleRepository

from nvidia_variant_provider.errors import InputError, shown
from nvidia_variant_provider.strict_json import MAX_BYTES

from ...files import load, store
from ...knowledge.builds import BuildRecord, Needs, needs_in_table
from ...wheels.archive import first_header, parse_wheel_name
from ...wheels.variant_json import is_of, read_own_metadata
from ..http.client import Client
from ..http.kept_keys import may_list
from ..http.ranges import Comparison, Parts, RangeFile
from ..http.replies import without_frames
from ..http.threads import Turns
from ..http.urls import (
    METADATA,
    NoRangesError,
    PassingError,
    UpstreamError,
    find_other,
    is_http,
)
from .kept import FRESH, LIFE, LONGEST, Aging, Kept, MetadataStore, kept_path, whole_key
from .options import part_of, trusted_cache
from .pieces import (
    UNAVAILABLE,
    Check,
    CopiedWheel,
    client_of,
    find_own,
    open_local,
    read_local,
    stream_pieces,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")

Progress = Callable[[int, int], None]
"""Called with the number of bytes read from a wheel, and the total number."""

_MOST_AT_ONCE = 8
"""The maximum number of wheels that are read from a server at the same time."""

_IN_ALL = 20
"""The same for all servers; each wheel needs a thread, and perhaps 24 MiB of memory."""

_INSPECTED = 20_000
"""The maximum number of wheels whose inspections are cached for some minutes."""

_DAMAGED = InputError, ValueError, KeyError, TypeError, AttributeError, RecursionError
"""The exceptions that a damaged record in the cache may cause."""

COUNTS: ContextVar[Callable[[int], None] | None] = ContextVar("counts", default=None)
"""Called with the number of bytes of each part of a wheel that is read."""

_COPIED = 4
"""The maximum number of downloaded wheels that are cached for some minutes."""


class Reader:
    """Reads files of repositories, and METADATA of wheels.

    :param client: reads files on other servers.
    :param cache: the cache directory for METADATA and inspections; ``None`` caches only
        in memory.
    :param clock: returns the time in seconds, for the age of cached METADATA.
    :param ranges: whether to read METADATA by range requests.
    :param served: the indexes that other users may read; no other METADATA is for them.
    """

    def __init__(
        self,
        client: Client,
        cache: str | Path | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        ranges: bool = True,
        served: Collection[str] = (),
    ) -> None:
        self.client = client
        cache = trusted_cache(cache, client.settings)
        folder = part_of(Path(cache, "metadata"), served) if cache else None
        self.metadata, self.clock = MetadataStore(folder, clock), clock
        self._ranges = ranges
        self._turns = Turns(_MOST_AT_ONCE, _IN_ALL)
        self.large = asyncio.Lock()
        """Held while a page with much variant metadata is made; see `Room`."""
        self._inspected = Path(cache, "inspected") if cache else None
        self._needs: Aging[str, tuple[Needs | None]] = Aging(_INSPECTED)
        # The keys are URLs: of wheels without range requests, and of downloaded wheels.
        self._whole: Aging[str, bool] = Aging(_INSPECTED, FRESH, clock)
        self._copies: Aging[str, CopiedWheel] = Aging(_COPIED, FRESH, clock)

    async def read(self, index: SimpleRepository, project: str, name: str) -> bytes:
        """Read a whole metadata file of at most `MAX_BYTES`.

        :raises ResourceUnavailable: the page does not list the file.
        :raises InputError: the file cannot be read.
        """
        return await self._read(await index.get_resource(project, name), name)

    async def _read(self, resource: model.Resource, name: str) -> bytes:
        if isinstance(resource, model.HttpResource):
            own = client_of(resource, self.client)
            return (await own.get(resource.url, limit=MAX_BYTES)).body
        if isinstance(resource, model.LocalResource):
            return await asyncio.to_thread(read_local, resource)
        if isinstance(resource, model.TextResource):
            return resource.text.encode()
        raise _unknown(name)

    async def open(
        self,
        resource: model.Resource,
        name: str,
        read: Callable[[BinaryIO], T],
        parts: Parts | None = None,
    ) -> T:
        """Return the result of ``read`` on a file, which is read by range requests.

        :param parts: receives the parts that were read.
        :raises InputError: the file cannot be read.
        """
        resource = self.find_copy(resource)
        loop, count = asyncio.get_running_loop(), COUNTS.get()
        url = resource.url if isinstance(resource, model.HttpResource) else ""
        if self._whole.get(url):
            raise NoRangesError("the server does not serve parts", url)

        def work(ended: threading.Event) -> T:
            if isinstance(resource, CopiedWheel):
                if parts is not None:
                    parts.size = resource.size
                    parts.hashes.add((0, resource.size, resource.received.sha256))
                return resource.read(read)
            if isinstance(resource, model.LocalResource):
                with open_local(resource) as local:
                    return read(local)
            if isinstance(resource, model.HttpResource):
                own = client_of(resource, self.client)
                opened = RangeFile(
                    own, resource.url, loop, parts=parts, arrived=count, ended=ended
                )
                with io.BufferedReader(opened) as file:
                    return read(file)
            raise _unknown(name)

        try:
            return await self._turns.run(url, work, getattr(resource, "index", None))
        except NoRangesError:
            self._whole.put(url, True)
            raise
        except OSError as error:
            raise _unreadable(name, error) from None

    def find_copy(self, resource: model.Resource) -> model.Resource:
        """Return the downloaded copy of a file, or the file itself."""
        return self._copies.get(getattr(resource, "url", "")) or resource

    async def keep_copy(self, file: model.File, copy: CopiedWheel) -> bytes:
        """Cache a wheel for some minutes, and its METADATA; return METADATA.

        :raises InputError: METADATA cannot be read or differs from its hash on the
            page.
        """
        find = functools.partial(read_own_metadata, file.filename)
        content = await asyncio.to_thread(copy.read, find)
        self._copies.put(copy.url, copy)
        # Close the file when the copy has expired, also if nobody asks for it again.
        asyncio.get_running_loop().call_later(FRESH + 1, self._copies.get, copy.url)
        check_metadata(content, file.filename)
        return self._keep(file, Kept(content)).content

    async def read_metadata(
        self, index: SimpleRepository, project: str, file: model.File
    ) -> bytes:
        """Read METADATA of a wheel, to use it here.

        :raises InputError: METADATA cannot be read, differs from its hash on the page,
            or belongs to another release.
        """
        try:
            return (await self.read_kept(index, project, file)).content
        except InputError as error:
            raise without_frames(error) from None

    async def read_kept(
        self, index: SimpleRepository, project: str, file: model.File
    ) -> Kept:
        """Read METADATA as `read_metadata`, with the parts of the wheel; see `Kept`."""
        kept = await self.find_metadata(index, project, file)
        check_metadata(kept.content, file.filename)
        return kept

    async def find_metadata(
        self,
        index: SimpleRepository,
        project: str,
        file: model.File,
        *,
        downloads: Callable[[bytes | None], Check | None] = lambda _: None,
    ) -> Kept:
        """Read METADATA to pass it on: installers refuse that of another release.

        :param downloads: returns a check if the whole wheel must be downloaded, given
            METADATA that was read by ranges; ``None`` if the server does not support
            ranges, in which case an error is raised otherwise.
        :raises InputError: METADATA cannot be read or differs from its hash on the
            page.
        """
        known = None
        if not _is_local(file):
            known = self.metadata.find(file) or self.metadata.read(file)
        if known is not None and (
            known.parts is None or (self._ranges and not downloads(known.content))
        ):
            return known
        kept = await self._fetch_metadata(index, project, file, downloads)
        return self._keep(file, kept)

    def _keep(self, file: model.File, kept: Kept) -> Kept:
        """Verify and cache METADATA; return it as text to send."""
        name, text = file.filename, kept.content.decode("utf-8", "replace").encode()
        if len(text) > LONGEST:
            message = f"its METADATA is larger than {LONGEST >> 20} MiB"
            raise InputError(message, path=name, hint="report it to the index")
        _check(file, kept.content)
        check_metadata(kept.content, name, passed_on=True)
        sent = replace(kept, content=text)
        if sent != kept and file.dist_info_metadata:
            # Do not cache the changed text: it does not match the hash on the page.
            return sent
        logger.info("%s: read %d bytes of METADATA", name, len(text))
        # A local wheel is not compared with its hash, and is quick to read again.
        if not _is_local(file):
            self.metadata.keep(file, sent)
        return sent

    async def _fetch_metadata(
        self,
        index: SimpleRepository,
        project: str,
        file: model.File,
        downloads: Callable[[bytes | None], Check | None],
    ) -> Kept:
        """Read METADATA from the index, or else from the wheel."""
        name, digest = file.filename, file.hashes.get("sha256")
        # Otherwise, METADATA beside the wheel is of another file with the same name.
        if file.dist_info_metadata:
            try:
                own = await find_own(index, project, file, METADATA)
                return Kept(await self._read(own, name + METADATA))
            except errors.ResourceUnavailable:
                pass  # the index does not serve METADATA as a file (PEP 658)
            except UpstreamError as error:
                if error.status not in (404, 410):
                    raise
                # Some mirrors copy the attribute of PEP 658, but not the files.

        parts, find = Parts(), functools.partial(read_own_metadata, name)
        if not self._ranges and is_http(file.url):
            raise NoRangesError("METADATA is not read by ranges", file.url)
        try:
            resource = await find_own(index, project, file)
            content = await self.open(resource, name, find, parts)
        except NoRangesError:
            if (check := downloads(None)) is None:
                raise
        else:
            settled = parts.are_all_of(digest) or not parts.hashes
            if settled or (check := downloads(content)) is None:
                return Kept(content, None if settled else parts)
        logger.info("%s: downloading it to look into it", name)
        try:
            async with self._turns.of(file.url), AsyncExitStack() as stack:
                copy = tempfile.TemporaryFile(prefix="nvidia-variant-provider-")  # noqa: SIM115
                # Cast the temporary file, which is a wrapper on Windows.
                whole = cast(BinaryIO, stack.enter_context(copy))
                comparison = Comparison(file.hashes)
                async for piece in await stream_pieces(resource, self.client, stack):
                    comparison.feed(piece)
                    await asyncio.to_thread(whole.write, piece)
                    check(whole.tell())
                parts = comparison.finish()
                content = await asyncio.to_thread(find, whole)
                return Kept(content, parts if digest is None else None)
        except OSError as error:
            raise _unreadable(name, error) from None

    def find_inspected(self, file: model.File) -> Needs | None:
        """Return the cached result of an inspection of a wheel."""
        key = whole_key(file)
        known = self._needs.get(key)
        if known is None:
            known = (self._load_needs(file),)
            self._needs.put(key, known)
        return known[0]

    async def inspect(
        self,
        index: SimpleRepository,
        project: str,
        file: model.File,
        platform: str,
        progress: Progress | None = None,
    ) -> Needs | None:
        """Read the GPU code of a wheel by range requests, and cache the result.

        :param platform: the platform of the wheel, as in the table of builds.
        :returns: ``None`` if the wheel could not be read completely.
        :raises InputError: the wheel cannot be read at all.
        """
        from datetime import datetime, timezone

        from ...builds.needs import needs_of_report
        from ...gpu_code.inspection import inspect_path

        name = file.filename
        # Use the state that a local file has before it is read.
        key, path = whole_key(file), kept_path(self._inspected, file, "json")

        def read(source: BinaryIO) -> Needs | None:
            return needs_of_report(inspect_path(source, name=name, progress=progress))

        needs = await self.open(await find_own(index, project, file), name, read)
        if needs is None:
            return None
        version = Version(parse_wheel_name(name).version)
        digest = file.hashes.get("sha256", "").lower()
        date = datetime.now(timezone.utc).date().isoformat()
        record = BuildRecord(
            project=canonicalize_name(project),
            version=version.public,
            label=version.local,
            platform=platform,
            needs=needs_in_table(needs, date),
            wheels={name: digest} if digest else {},
            source="inspected",
            date=date,
        )
        text = json.dumps(record.to_dict(), separators=(",", ":"))
        store(path, text.encode(), LIFE)
        needs = _needs(record)
        self._needs.put(key, (needs,))
        logger.info("%s: inspected, %d pieces", name, len(needs.pieces or ()))
        return needs

    def _load_needs(self, file: model.File) -> Needs | None:
        content = load(kept_path(self._inspected, file, "json"), LONGEST, LIFE)
        try:
            if content is not None:
                return _needs(BuildRecord.from_dict(json.loads(content)))
        except _DAMAGED as error:
            # An older version may have written the record, or a full disk truncated it.
            logger.info("%s: its record cannot be used: %r", file.filename, error)
        return None


def _is_local(file: model.File) -> bool:
    # The wheel of a lock file may have a path instead of a URL.
    return not is_http(file.url)


def _needs(record: BuildRecord) -> Needs:
    source = f"inspected here, {record.date}"
    return replace(record.needs, evidence="inspected", source=source)


def _check(file: model.File, content: bytes) -> None:
    """Raise `InputError` if METADATA does not match its hash on the page (PEP 658)."""
    announced = file.dist_info_metadata
    if not isinstance(announced, Mapping):
        return
    if name := find_other(content, announced):
        message = f"its METADATA has another {name} than the page says"
        raise InputError(message, path=file.filename, hint="report it to the index")


def check_metadata(metadata: bytes, file_name: str, *, passed_on: bool = False) -> None:
    """Check that METADATA belongs to a wheel, as pip does before it installs.

    :param file_name: the name of the wheel, whose local version label is ignored.
    :param passed_on: accept METADATA of another release, after which pip itself tries
        an older one. Without a name or a version, pip ends with a traceback.
    :raises UpstreamError: METADATA belongs to another release, or is invalid.
    """
    # Builders write the name and the version first. To search 4 MiB takes a second.
    start = metadata[: 64 * 1024]
    name, version = (first_header(start, key) for key in ("Name", "Version"))
    message = f"its METADATA is of {shown(f'{name} {version}')}"
    if not (name and version):
        message = "its METADATA lacks a name or a version at its start"
    elif passed_on or is_of(start, file_name, local=False):
        return
    # Use 403, because pip retries after a server error.
    hint = "report it to the index"
    raise UpstreamError(message, path=file_name, status=403, hint=hint)


async def may_find_files(error: Exception, project: str) -> bool:
    """Return whether installers may find files of a project in spite of an error.

    They may use a page that this program cannot read, or log in at the target of a
    redirect. Indexes often redirect to PyPI, which says 404.
    """
    if not isinstance(error, UpstreamError):
        return not isinstance(error, UNAVAILABLE)
    if error.page is not None:
        return await asyncio.to_thread(may_list, error.page, project)
    if error.reply is None:
        return not isinstance(error, PassingError)
    return error.reply.status < 400 or (
        error.reply.status != 404 and bool(error.reply.away)
    )


def _unreadable(name: str, error: OSError) -> InputError:
    return InputError(f"cannot be read: {error.strerror or error}", path=name)


def _unknown(name: str) -> UpstreamError:
    return UpstreamError("the index sends it in an unknown way", path=name)
