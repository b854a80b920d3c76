"""Reading the files of indexes, and remembering what was read for a while.

One `Reader` serves all indexes of an installer, so that its limit holds for all of
them together, and nothing is read twice because two indexes have it.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import logging
import math
import re
import tempfile
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, Generic, TypeVar, cast

from packaging.utils import canonicalize_name
from packaging.version import Version
from simple_repository import errors, model
from simple_repository.components.core import SimpleRepository

from nvidia_variant_provider.errors import InputError
from nvidia_variant_provider.strict_json import MAX_BYTES, read_bytes

from ...files import load, store
from ...knowledge.builds import BuildRecord, Needs, needs_in_table
from ...wheels.archive import open_wheel, parse_wheel_name, read_dist_info
from ..http.client import Client
from ..http.ranges import RangeFile
from ..http.urls import NoRangesError, UpstreamError, split_credentials
from .pieces import CopiedWheel, stream_pieces

logger = logging.getLogger(__name__)

UNAVAILABLE = (
    errors.PackageNotFoundError,
    errors.ResourceUnavailable,
    errors.SourceRepositoryUnavailable,
)
"""What the components of other authors raise when they cannot send a file."""

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

Progress = Callable[[int, int], None]
"""Called with the bytes of a wheel that have been read, and their total."""

FRESH = 600.0
"""Seconds for which a server relies on what an index has said. PyPI's own pages are
cached for as long."""

FOREVER = math.inf
"""The age for entries that stay until there are too many."""

_MOST_AT_ONCE = 8
"""Wheels that are read at the same time."""

_REMEMBERED = 256
"""Wheels whose METADATA is remembered."""

_INSPECTED = 20_000
"""Files of which it is remembered for some minutes what was found in them."""

_COPIED = 4
"""Wheels that are kept for some minutes after they were downloaded whole."""

_LONGEST = 4 * 1024 * 1024


class Aging(Generic[K, V]):
    """A mapping whose entries go when they are old, or too many.

    :param most: the number of entries; the oldest goes first.
    :param age: the seconds for which an entry stays.
    :param clock: returns the time, in seconds.
    """

    def __init__(
        self,
        most: int,
        age: float = FRESH,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most = most
        self._age = age
        self._clock = clock
        self._entries: OrderedDict[K, tuple[float, V]] = OrderedDict()

    def get(self, key: K) -> V | None:
        """Return the entry; ``None`` where there is none, or no fresh one."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        since, value = entry
        if self._clock() - since < self._age:
            return value
        del self._entries[key]
        return None

    def put(self, key: K, value: V) -> None:
        """Add or replace an entry; its age starts now."""
        self._entries.pop(key, None)
        self._entries[key] = self._clock(), value
        if len(self._entries) > self._most:
            self._entries.popitem(last=False)

    def values(self) -> list[V]:
        """Return all entries that are fresh, in the order in which they were put."""
        now = self._clock()
        return [v for since, v in self._entries.values() if now - since < self._age]

    def __len__(self) -> int:
        return len(self._entries)


class Reader:
    """Reads the files that repositories name, and METADATA of wheels.

    METADATA is kept for ever by the SHA-256 that a page gives of the wheel. A page can
    give the hash of a wheel of another index, with METADATA of its own making, so that
    what was read is kept for the URL of the wheel too.

    :param client: reads what repositories name on other servers.
    :param cache: the folder in which METADATA, and what was found in inspected wheels,
        is kept; ``None`` keeps them in memory only.
    :param clock: returns the time in seconds, by which METADATA of files without a
        SHA-256 ages.
    """

    def __init__(
        self,
        client: Client,
        cache: str | Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.client = client
        self._folder = Path(cache, "metadata") if cache else None
        self._turns = asyncio.Semaphore(_MOST_AT_ONCE)
        # By the SHA-256 of the wheel, with the place that METADATA was read for.
        self._lasting: Aging[str, tuple[str, bytes]] = Aging(_REMEMBERED, FOREVER)
        # By URL: what is at the URL of a file without a hash may change.
        self._passing: Aging[str, bytes] = Aging(_REMEMBERED, FRESH, clock)
        self._inspected = Path(cache, "inspected") if cache else None
        self._needs: Aging[tuple[str, str], tuple[Needs | None]] = Aging(_INSPECTED)
        # By URL, too: wheels of servers that send no parts, and copies of them.
        self._whole: Aging[str, bool] = Aging(_INSPECTED, FRESH, clock)
        self._copies: Aging[str, CopiedWheel] = Aging(_COPIED, FRESH, clock)

    async def read(self, index: SimpleRepository, project: str, name: str) -> bytes:
        """Read a metadata file in full, of at most `MAX_BYTES`.

        :raises ResourceUnavailable: the page does not list the file.
        :raises InputError: it cannot be read.
        """
        resource = await index.get_resource(project, name)
        if isinstance(resource, model.HttpResource):
            return (await self.client.get(resource.url, limit=MAX_BYTES)).body
        if isinstance(resource, model.LocalResource):
            return await asyncio.to_thread(read_bytes, resource.path)
        if isinstance(resource, model.TextResource):
            return resource.text.encode()
        raise _unknown(name)

    async def open(
        self,
        index: SimpleRepository,
        project: str,
        name: str,
        read: Callable[[BinaryIO], T],
    ) -> T:
        """Return what ``read`` finds in a file, of which only parts are downloaded.

        :raises InputError: it cannot be read.
        """
        resource = self.find_copy(await index.get_resource(project, name))
        loop = asyncio.get_running_loop()
        url = resource.url if isinstance(resource, model.HttpResource) else ""
        if self._whole.get(url):
            raise NoRangesError("the server does not serve parts", url)

        def work() -> T:
            if isinstance(resource, CopiedWheel):
                return resource.read(read)
            if isinstance(resource, model.LocalResource):
                with resource.path.open("rb") as file:
                    return read(file)
            if isinstance(resource, model.HttpResource):
                opened = RangeFile(self.client, resource.url, loop)
                with io.BufferedReader(opened) as parts:
                    return read(parts)
            raise _unknown(name)

        try:
            async with self._turns:
                return await asyncio.to_thread(work)
        except NoRangesError:
            self._whole.put(url, True)
            raise
        except OSError as error:
            raise _unreadable(name, error) from None

    def find_copy(self, resource: model.Resource) -> model.Resource:
        """Return the copy of a file that was downloaded whole, or the file itself."""
        return self._copies.get(getattr(resource, "url", "")) or resource

    async def keep_copy(self, file: model.File, copy: CopiedWheel) -> bytes:
        """Keep a wheel for some minutes, and its METADATA for ever; return METADATA.

        :raises InputError: METADATA cannot be read, or is not what the page announces.
        """
        content = await asyncio.to_thread(copy.read, _find_metadata)
        self._copies.put(copy.url, copy)
        return self._keep(file, content)

    def find_metadata(self, file: model.File) -> bytes | None:
        """Return METADATA of a file if it has been read."""
        digest = file.hashes.get("sha256")
        if not digest:
            return self._passing.get(file.url)
        known = self._lasting.get(digest)
        return known[1] if known is not None and known[0] == _place(file) else None

    async def read_metadata(
        self,
        index: SimpleRepository,
        project: str,
        file: model.File,
        *,
        without_ranges: Callable[[], None] | None = None,
    ) -> bytes:
        """Read METADATA of a wheel.

        :param without_ranges: called before the whole of a large wheel is downloaded
            because its server sends no parts of it; without it, that is an error.
        :raises InputError: it cannot be read, or is not what the page announces.
        """
        name = file.filename
        known = self.find_metadata(file)
        if known is not None:
            return known
        kept = _unseal(load(self._path(file), _LONGEST + len(_seal(b""))))
        if kept is not None:
            self._remember(file, kept)
            return kept
        content = await self._fetch_metadata(index, project, name, without_ranges)
        return self._keep(file, content)

    def _keep(self, file: model.File, content: bytes) -> bytes:
        """Check METADATA that was read, and keep it; return it as text is sent."""
        name = file.filename
        if len(content) > _LONGEST:
            message = f"its METADATA is larger than {_LONGEST >> 20} MiB"
            raise InputError(message, path=name, hint="report it to the index")
        _check(file, content)
        text = content.decode("utf-8", "replace").encode()
        if text != content and file.dist_info_metadata:
            # pip compares what it gets with the hash of the page: the index has to
            # send it.
            return text
        logger.info("%s: read %d bytes of METADATA", name, len(text))
        store(self._path(file), _seal(text))
        self._remember(file, text)
        return text

    def _remember(self, file: model.File, content: bytes) -> None:
        if digest := file.hashes.get("sha256"):
            self._lasting.put(digest, (_place(file), content))
        else:
            self._passing.put(file.url, content)

    async def _fetch_metadata(
        self,
        index: SimpleRepository,
        project: str,
        name: str,
        without_ranges: Callable[[], None] | None,
    ) -> bytes:
        """Read METADATA from the index or else out of the wheel."""
        try:
            return await self.read(index, project, f"{name}.metadata")
        except errors.ResourceUnavailable:
            pass  # The index does not serve METADATA as a file (PEP 658).
        except UpstreamError as error:
            if error.status not in (404, 410):
                raise
            # Some mirrors pass on the attribute of PEP 658, but not the files.

        try:
            return await self.open(index, project, name, _find_metadata)
        except NoRangesError:
            if without_ranges is None:
                raise
        without_ranges()
        logger.info("%s: downloading it to look into it", name)
        resource = await index.get_resource(project, name)
        try:
            with tempfile.TemporaryFile(prefix="nvidia-variant-provider-") as copy:
                async with AsyncExitStack() as stack:
                    pieces = await stream_pieces(resource, self.client, stack)
                    async for piece in pieces:
                        await asyncio.to_thread(copy.write, piece)
                # On Windows it is a wrapper of such a file.
                return await asyncio.to_thread(_find_metadata, cast(BinaryIO, copy))
        except OSError as error:
            raise _unreadable(name, error) from None

    def _path(self, file: model.File) -> Path | None:
        digest = _sha256(file)
        if self._folder is None or digest is None:
            return None
        mark = hashlib.sha256(_place(file).encode()).hexdigest()[:16]
        return self._folder / digest[:2] / f"{digest}-{mark}.metadata"

    def find_inspected(self, file: model.File) -> Needs | None:
        """Return what an earlier inspection of a wheel has found."""
        key = file.url, file.hashes.get("sha256", "")
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
        """Read the GPU code of a wheel, by ranges of bytes, and keep what is found.

        :param platform: the platform of the wheel, as the table of builds names it.
        :returns: ``None`` where the wheel could not be read completely.
        :raises InputError: it cannot be read at all.
        """
        from datetime import datetime, timezone

        from ...builds.needs import needs_of_report
        from ...gpu_code.inspection import inspect_path

        name = file.filename

        def read(source: BinaryIO) -> Needs | None:
            return needs_of_report(inspect_path(source, name=name, progress=progress))

        needs = await self.open(index, project, name, read)
        if needs is None:
            return None
        version = Version(parse_wheel_name(name).version.replace("_", "-"))
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
        store(self._record_path(file), text.encode())
        needs = _needs(record)
        self._needs.put((file.url, file.hashes.get("sha256", "")), (needs,))
        pieces = len(needs.pieces or ())
        logger.info("%s: inspected, %d pieces of GPU code", name, pieces)
        return needs

    def _load_needs(self, file: model.File) -> Needs | None:
        content = load(self._record_path(file), _LONGEST)
        try:
            return (
                None
                if content is None
                else _needs(BuildRecord.from_dict(json.loads(content)))
            )
        except (InputError, ValueError, KeyError, TypeError, AttributeError) as error:
            # An older version may have written it, or a full disk has cut it.
            logger.info("%s: its record cannot be used: %r", file.filename, error)
            return None

    def _record_path(self, file: model.File) -> Path | None:
        digest = _sha256(file)
        if self._inspected is None or digest is None:
            return None
        return self._inspected / f"{digest}.json"


def _needs(record: BuildRecord) -> Needs:
    source = f"inspected here, {record.date}"
    return replace(record.needs, evidence="inspected", source=source)


def _place(file: model.File) -> str:
    """Return the URL of a file without its query, which may differ each time."""
    return split_credentials(file.url)[0].partition("?")[0].partition("#")[0]


def _sha256(file: model.File) -> str | None:
    """Return the SHA-256 that a page gives of a file, if it is one."""
    digest = file.hashes.get("sha256", "").lower()
    return digest if re.fullmatch("[0-9a-f]{64}", digest) else None


def _seal(content: bytes) -> bytes:
    """Put the hash before METADATA: a crash of the machine can leave a file empty."""
    return hashlib.sha256(content).hexdigest().encode() + b"\n" + content


def _unseal(sealed: bytes | None) -> bytes | None:
    """Return METADATA of a file of the cache; ``None`` where it is damaged."""
    content = (sealed or b"").partition(b"\n")[2]
    return content if sealed == _seal(content) else None


def _check(file: model.File, content: bytes) -> None:
    """Compare METADATA with the hash that the page gives of it (PEP 658)."""
    announced = file.dist_info_metadata
    if not isinstance(announced, Mapping):
        return
    expected = announced.get("sha256")
    if expected and hashlib.sha256(content).hexdigest() != expected.lower():
        message = "its METADATA has another sha256 than the page says"
        raise InputError(message, path=file.filename, hint="report it to the index")


def _find_metadata(file: BinaryIO) -> bytes:
    with open_wheel(file) as archive:
        return read_dist_info(archive, "METADATA") or b""


def _unreadable(name: str, error: OSError) -> InputError:
    return InputError(f"cannot be read: {error.strerror or error}", path=name)


def _unknown(name: str) -> UpstreamError:
    return UpstreamError("the index sends it in an unknown way", path=name)
