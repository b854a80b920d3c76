"""Caches of data from files, in memory and in the user's cache directory.

METADATA from range requests is verified only when an installer downloads the wheel,
because the hash on the page is for the whole wheel.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from simple_repository import model

from ... import __version__
from ...files import file_state, load, store
from ..http.ranges import ChangedFileError, Parts
from ..http.urls import (
    ALGORITHMS,
    UpstreamError,
    identifying_query,
    is_http,
    path_of_file_url,
    split_credentials,
)

logger = logging.getLogger(__name__)

K = TypeVar("K")
V = TypeVar("V")

FRESH = 600.0
"""Seconds for which facts from an index are cached: the lifetime of PyPI's pages."""

FOREVER = math.inf
"""The age limit of entries that never expire."""

LONGEST = 4 * 1024 * 1024
"""The maximum size of METADATA, and of an inspection result, in bytes."""

LIFE = 30 * 24 * 3600.0
"""Seconds for which METADATA and inspections are cached. A server may have sent wrong
bytes, which are compared only with wheels that are downloaded."""

METADATA_KEY = "_nvidia_variant_provider_metadata"
"""The key that marks a file whose METADATA is from this server, not the upstream."""

MARK = "mark"
"""The key of the `mark_of` a file in the context of a request."""

SIZE_KEY = "_nvidia_variant_provider_size"
"""The key for the memory of the values of a page without its files, in bytes."""

PAGES = 128 * 1024 * 1024
"""The maximum memory of the pages in a cache, in bytes."""

WARNED = 10_000
"""The maximum number of warnings that are remembered, to give none twice."""

_PAGE, _FILE = 4096, 400
"""The measured memory of a page and of a file without their text, in bytes."""

_REMEMBERED = 32 * 1024 * 1024
"""The maximum size of METADATA that is cached in memory, in bytes."""

_NOTED, _MOST_PARTS = 20_000, 8
"""The maximum number of wheels of an index that are recorded for verification, and the
maximum number of times that METADATA of a wheel was read."""

_RUN = 24 * 3600.0
"""Seconds in which an installer that got METADATA requests the wheel."""


def weigh(page: model.ProjectDetail) -> int:
    """Return the estimated memory of a page in bytes."""
    size = cast(int, page.private_metadata.get(SIZE_KEY, 0))
    return _PAGE + 8 * len(page.name) + _FILE * len(page.files) + size


def weigh_text(known: tuple[object, int]) -> int:
    """Return the weight of the metadata in a text of a size: 1 for each 16 KiB.

    It takes ten times as much memory as the text.
    """
    return 1 + (known[1] >> 14)


class Aging(Generic[K, V]):
    """A mapping with limits for the age and the weight of its entries.

    :param most: the maximum weight; the oldest entry is removed first, but not the
        newest.
    :param age: the lifetime of an entry in seconds.
    :param clock: returns the time, in seconds.
    :param weigh: returns the weight of a value; by default, each has the weight 1.
    """

    def __init__(
        self,
        most: int,
        age: float = FRESH,
        clock: Callable[[], float] = time.monotonic,
        weigh: Callable[[V], int] = lambda _: 1,
    ) -> None:
        self._left = most
        self._age = age
        self._clock = clock
        self._weigh = weigh
        self._entries: OrderedDict[K, tuple[float, V]] = OrderedDict()

    def get(self, key: K) -> V | None:
        """Return the entry; ``None`` if missing or expired."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        since, value = entry
        if self._clock() - since < self._age:
            return value
        self.drop(key)
        return None

    def put(self, key: K, value: V) -> None:
        """Add or replace an entry; its age starts now."""
        self.drop(key)
        self._entries[key] = self._clock(), value
        self._left -= self._weigh(value)
        while self._left < 0 and len(self._entries) > 1:
            self.drop(next(iter(self._entries)))

    def drop(self, key: K) -> None:
        """Remove an entry if it exists."""
        if key in self._entries:
            self._left += self._weigh(self._entries.pop(key)[1])

    def values(self) -> list[V]:
        """Return all fresh entries, in the order of insertion."""
        now = self._clock()
        return [v for since, v in self._entries.values() if now - since < self._age]

    def __len__(self) -> int:
        """Return the number of fresh entries."""
        return len(self.values())


@dataclass(frozen=True, slots=True)
class Kept:
    """Cached METADATA.

    :param parts: the parts of the wheel from which METADATA was read and which are not
        verified yet; ``None`` if no verification is needed.
    """

    content: bytes
    parts: Parts | None = None


class MetadataStore:
    """A cache of METADATA: in memory, keyed by `whole_key`, and for a month on disk.

    :param folder: the cache directory; ``None`` caches only in memory.
    """

    def __init__(self, folder: Path | None, clock: Callable[[], float]) -> None:
        self._folder = folder
        self._memory: Aging[str, Kept] = Aging(
            _REMEMBERED, FRESH, clock, weigh=lambda kept: _PAGE + len(kept.content)
        )
        self._refused: Aging[str, bool] = Aging(_NOTED, FRESH, clock)
        # The last `whole_key`, which differs if the page now has another signature.
        self._last: Aging[str, str] = Aging(_NOTED, FOREVER)
        self.refusals: list[str] = []
        """A sentence for each wheel that differs from the source of its METADATA."""

    def find(self, file: model.File) -> Kept | None:
        """Return METADATA of a file from memory, where it stays for ten minutes."""
        return self._memory.get(whole_key(file))

    def read(self, file: model.File) -> Kept | None:
        """Return METADATA of a file from the cache directory."""
        data = load(self._path_of(file), 2 * LONGEST, LIFE) or b""
        head, _, rest = data.partition(b"\n")
        # Verify the hash first, because a system crash can leave a truncated file.
        if head != _sha256_of(rest):
            return None
        line, _, content = rest.partition(b"\n")
        try:
            kept = Kept(content, _parse_parts(json.loads(line)))
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
        self._put(file, kept)
        return kept

    def keep(self, file: model.File, kept: Kept) -> None:
        """Cache METADATA of a file, unless it is read from one that was refused."""
        if kept.parts is not None and self.is_refused(file):
            return  # an installer may have resumed the download
        parts = kept.parts
        document = None if parts is None else [parts.size, sorted(parts.hashes)]
        rest = json.dumps(document).encode() + b"\n" + kept.content
        store(self._path_of(file), _sha256_of(rest) + b"\n" + rest, LIFE)
        self._put(file, kept)

    def _put(self, file: model.File, kept: Kept) -> None:
        key, whole = key_of(file), whole_key(file)
        if (last := self._last.get(key)) not in (None, whole):
            self._delete(last)
        self._last.put(key, whole)
        self._memory.put(whole, kept)

    def _delete(self, whole: str | None) -> None:
        if self._folder is not None:
            with contextlib.suppress(OSError):
                (self._folder / f"{whole}.metadata").unlink()

    def _path_of(self, file: model.File) -> Path | None:
        folder = self._folder if _is_verifiable(file) else None
        return kept_path(folder, file, "metadata")

    def is_refused(self, file: model.File) -> bool:
        """Return whether the wheel failed its verification in the last ten minutes."""
        return self._refused.get(key_of(file)) is not None

    def refuse(self, file: model.File, message: str) -> None:
        """Record that a wheel failed its verification, and delete its METADATA."""
        logger.info("%s: METADATA is forgotten: %s", file.filename, message)
        self._refused.put(key_of(file), True)
        self.refusals.append(f"{file.filename}: {message}, so it was not sent")
        for whole in filter(None, (whole_key(file), self._last.get(key_of(file)))):
            self._memory.drop(whole)
            self._delete(whole)


Request = tuple[str, str]
"""The project of a request, and the `MARK` of its file; see `request_of`."""


def request_of(
    project: str, name: str, context: model.RequestContext | None
) -> Request:
    """Return the key of all requests for one file of a project, and for its METADATA.

    An installer gets both by one URL, whatever the pages say in the meantime.
    """
    return project, str((context and context.context.get(MARK)) or name)


class SentMetadata:
    """The METADATA that an index sent, to verify the wheel that is sent later.

    :param store: forgets METADATA of the wheels that differ from it.
    """

    def __init__(self, store: MetadataStore, clock: Callable[[], float]) -> None:
        self._store = store
        # The parts of each wheel, and whether the page had hashes for it.
        self._parts: Aging[Request, tuple[tuple[Parts, bool], ...]]
        self._parts = Aging(_NOTED + 1, _RUN, clock)
        self._refused: Aging[Request, str] = Aging(_NOTED, FRESH, clock)

    @property
    def is_full(self) -> bool:
        """Whether no other METADATA may be sent: no record may be lost for it."""
        return len(self._parts) >= _NOTED

    def add(self, request: Request, file: model.File, kept: Kept) -> None:
        """Record the METADATA that is sent to an installer.

        :raises UpstreamError: the wheel recently failed its verification, or `is_full`.
        """
        sent = self.find(request, file)
        if kept.parts is None:
            return
        known = self._parts.get(request) or ()
        own = kept.parts, bool(file.hashes) or (kept.parts, True) in known
        # Another client may have METADATA that was read from other parts. A file
        # without a hash may have changed.
        others = (x for x in known if x[0] != kept.parts and (x[1] or file.hashes))
        parts = *others, own
        if len(parts) > _MOST_PARTS:
            self._refuse(request, file, "its server sends other parts of it each time")
            self.find(request, file)  # raises the error
        if not sent and self.is_full:
            message = "too many wheels whose METADATA was sent are not downloaded"
            raise UpstreamError(message, file.url, hint="use --no-range-metadata")
        self._parts.put(request, parts)

    def find(self, request: Request, file: model.File) -> tuple[Parts, ...]:
        """Return the parts of a wheel from which the sent METADATA was read.

        :raises UpstreamError: the wheel recently failed its verification.
        """
        if (refusal := self._refused.get(request)) is not None:
            # Use 403, because pip retries after a server error.
            raise UpstreamError(refusal, file.url, status=403)
        return tuple(parts for parts, _ in self._parts.get(request) or ())

    def settle(
        self,
        request: Request,
        file: model.File,
        parts: Sequence[Parts],
        error: ChangedFileError | None,
    ) -> None:
        """Record whether a wheel has the parts from which its METADATA was read.

        METADATA that was read from other parts in the meantime remains unverified.

        :param error: the difference; ``None`` if the wheel has these parts.
        """
        if error is not None:
            self._refuse(request, file, error.message)  # others may have this METADATA
            return
        if given_sha256(file) is None:  # its bytes may change: compare each time
            return
        if all(item in parts for item, _ in self._parts.get(request) or ()):
            self._parts.drop(request)
        kept = self._store.find(file) or self._store.read(file)
        if kept is not None and kept.parts in parts:
            self._store.keep(file, replace(kept, parts=None))

    def _refuse(self, request: Request, file: model.File, message: str) -> None:
        self._refused.put(request, message)
        self._store.refuse(file, message)
        if given_sha256(file) is None:  # other bytes have METADATA of their own
            self._parts.drop(request)


def key_of(file: model.File) -> str:
    """Return the key of what a file of a page is, whatever its signature.

    The key contains everything on which the results depend: the version of nvp, the
    name, the hashes and the METADATA on the page, and the URL without credentials and
    signatures, which vary. The URL matters, because a page can list the hash of another
    index's wheel, and the hashes, because a page can list any file with wrong hashes.
    METADATA that one page announces (PEP 658) is not for pages without, or with another
    hash of it: there, it must be compared with the wheel, or with that hash. A local
    file is identified by its state.
    """
    place = place_of(file.url), identifying_query(file.url, file.filename)
    return _hash_of(file, place)


def _hash_of(file: model.File, place: Hashable) -> str:
    given = _announced(file)
    key = (
        (__version__, file.filename, place),
        sorted((name, digest.lower()) for name, digest in file.hashes.items()),
        sorted(given.items()) if isinstance(given, dict) else bool(given),
        None if is_http(file.url) else file_state(_local_path(file.url)),
    )
    # Names of local files that are not UTF-8 contain lone surrogates.
    return hashlib.sha256(repr(key).encode("utf-8", "surrogatepass")).hexdigest()


def _local_path(url: str) -> str:
    # The wheel of a lock file may have a path instead of a URL.
    return path_of_file_url(url) if url.startswith("file:") else url


def whole_key(file: model.File) -> str:
    """Return the key of cached data about a wheel, which is for one URL.

    Nothing in the URL may be left out, because the data is not verified: tenants of a
    server of files may differ in the query or in the user alone.
    """
    return _hash_of(file, file.url.partition("#")[0])


def kept_path(folder: Path | None, file: model.File, kind: str) -> Path | None:
    """Return the path of cached data about a wheel, named by its `whole_key`.

    :returns: ``None`` without a cache directory or a hash on the page.
    """
    if folder is None or given_sha256(file) is None:
        return None
    return folder / f"{whole_key(file)}.{kind}"


def given_sha256(file: model.File) -> str | None:
    """Return the SHA-256 that the page gives for a file, if it is valid."""
    digest = file.hashes.get("sha256", "").lower()
    return digest if re.fullmatch("[0-9a-f]{64}", digest) else None


def mark_of(file: model.File) -> str:
    """Return the part of a served URL that tells files of one name apart.

    It is the same on the next page, where the signature in the file's URL may differ.
    It has 128 bits of a hash, because a page may list any hash for a file.
    """
    key = file.hashes.get("sha256") or (
        place_of(file.url),
        identifying_query(file.url, file.filename),
    )
    return hashlib.sha256(repr(key).encode()).hexdigest()[:32]


def is_named(file: model.File, context: model.RequestContext | None) -> bool:
    """Return whether a request means this file of a page, by the `MARK` in its URL.

    The mark is that of the file as shown, perhaps without hashes. Without a mark, the
    request is by this program, and means any file of the name.
    """
    mark = context.context.get(MARK) if context is not None else None
    return mark in (None, mark_of(file), mark_of(replace(file, hashes={})))


def place_of(url: str) -> str:
    """Return a URL without credentials, query and fragment, which may vary."""
    bare = split_credentials(url)[0] if "@" in url else url
    return bare.partition("?")[0].partition("#")[0]


def _is_verifiable(file: model.File) -> bool:
    """Return whether METADATA of a file can be compared with a hash, now or later."""
    announced = _announced(file)
    if announced is True:
        return False
    hashed = not announced or any(map(announced.get, ALGORITHMS))
    return hashed and given_sha256(file) is not None


def _announced(file: model.File) -> bool | dict[str, str] | None:
    """Return the METADATA that the page of the index announces (PEP 658)."""
    ours = METADATA_KEY in file.private_metadata
    return None if ours else file.dist_info_metadata


def _sha256_of(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()


def _parse_parts(document: Any) -> Parts | None:
    if document is None:
        return None
    size, hashes = document
    parts = {(start, end, digest) for start, end, digest in hashes}
    numbers = {size, *(number for part in parts for number in part[:2])}
    if not all(type(number) is int for number in numbers):
        raise ValueError("the parts are not ranges")
    return Parts(size, parts)
