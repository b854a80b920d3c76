"""Read remote files by HTTP range requests, to avoid downloads of whole wheels."""

from __future__ import annotations

import asyncio
import concurrent.futures
import hashlib
import io
import logging
import math
import re
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from nvidia_variant_provider.errors import InputError, redacted

from .client import Client
from .threads import Share
from .urls import (
    ALGORITHMS,
    CompleteResponse,
    NoRangesError,
    PassingError,
    TooLargeError,
    UpstreamError,
    server_of,
)

T = TypeVar("T")

logger = logging.getLogger(__name__)

_TAIL = 64 * 1024
"""The number of bytes at the end of a file that the first request reads."""

_BLOCK = 256 * 1024
"""The size of a block in bytes; requests and caches use whole blocks."""

_MOST_BLOCKS = 16
"""The maximum number of blocks in a request during sequential reading."""

_KEPT_BLOCKS = 32

_WHOLE_FILE = 16 * 1024 * 1024
"""The largest file to download from a server without range support."""

_LARGEST = 8 << 30
"""The largest wheel in bytes. A server of files could otherwise fill the disk."""

_FRESH = 3600.0
"""The seconds after which a server is tested again: `serve` may run for weeks."""

_SERVERS = 4096
"""The maximum number of tests that are remembered, for each server and index."""

_MOST = 1024
"""The maximum number of bytes in the response to a test of a server."""

_PATIENCE = 5.0
"""The time limit of a test in seconds; it is short because an installer is waiting."""


class ChangedFileError(InputError):
    """A file differs from its hash on the page, or from parts that were read before."""

    def __init__(self, message: str) -> None:
        super().__init__(message, hint="report it to the index")


@dataclass(slots=True)
class Parts:
    """Hashes of the parts of a file that were read, to verify the whole file later.

    :param size: the size of the whole file in bytes.
    :param hashes: the start, the end and the SHA-256 of each part.
    """

    size: int = 0
    hashes: set[tuple[int, int, str]] = field(default_factory=set)

    def add(self, start: int, data: bytes, size: int) -> None:
        """Record ``data``, the bytes from ``start`` of a file of ``size`` bytes."""
        self.size = size
        self.hashes.add((start, start + len(data), hashlib.sha256(data).hexdigest()))

    def are_all_of(self, sha256: str | None) -> bool:
        """Return whether each recorded part spans the whole file and has this hash.

        :raises ChangedFileError: a part spans the whole file, but its hash differs.
        """
        whole = {
            digest for start, end, digest in self.hashes if end - start == self.size
        }
        if sha256 is None or not whole:
            return False
        if whole != {sha256.lower()}:
            raise ChangedFileError("its sha256 is not the one that the page gives")
        # Smaller parts, which the server may have sent before, are still unverified.
        return all(end - start == self.size for start, end, _ in self.hashes)


class Comparison:
    """Compares a received file with its hash, and with parts that were read before.

    :param hashes: the hashes on the page, keyed by algorithm.
    :param parts: the parts that were read before.
    """

    def __init__(self, hashes: Mapping[str, str], parts: Iterable[Parts] = ()) -> None:
        self._name = next((name for name in ALGORITHMS if name in hashes), "sha256")
        # Like pip, accept no file if the page has hashes, but none that pip supports.
        self._expected = hashes.get(self._name, "" if hashes else None)
        self._parts = [
            (item.size, *part, hashlib.sha256())
            for item in parts
            for part in item.hashes
        ]
        self._digest = hashlib.sha256()
        self._checked = self._digest
        if self._name != "sha256":
            self._checked = hashlib.new(self._name, usedforsecurity=False)
        self._position = 0

    def feed(self, piece: bytes) -> None:
        """Add the next piece of the file to the hashes.

        :raises ChangedFileError: the file is too large.
        """
        self._digest.update(piece)
        if self._checked is not self._digest:
            self._checked.update(piece)
        first, self._position = self._position, self._position + len(piece)
        if self._position > _LARGEST:
            raise ChangedFileError(f"it is larger than {_LARGEST >> 30} GiB")
        for _, start, end, _, digest in self._parts:
            if start < self._position and end > first:
                digest.update(piece[max(0, start - first) : end - first])

    @property
    def sha256(self) -> str:
        """The SHA-256 of the received bytes."""
        return self._digest.hexdigest()

    def finish(self) -> Parts:
        """Verify the complete file, and return it as one part.

        :raises ChangedFileError: the file is not the expected one.
        """
        found = self._checked.hexdigest()
        if self._expected is not None and found != self._expected.lower():
            message = f"its {self._name} is not the one that the page gives"
            raise ChangedFileError(message)
        for size, _, _, expected, digest in self._parts:
            if size != self._position or digest.hexdigest() != expected:
                raise ChangedFileError("its METADATA was read from another file")
        size = self._position
        return Parts(size, {(0, size, self.sha256)})


class RangeFile(io.RawIOBase):
    """A remote file that is read by range requests on demand.

    Do not read the file in the thread of the event loop. A server without range support
    sends the whole file; if it is larger than ``whole``, `NoRangesError` is raised.

    :param loop: the event loop that runs the client.
    :param whole: the maximum number of bytes to download; 16 MiB by default.
    :param until: the deadline of all requests, by `time.monotonic`.
    :param arrived: called with the number of bytes of each response.
    :param parts: receives the hashes of the parts that are read.
    :param ended: set if nobody waits for the file any more.
    :raises UpstreamError: the file cannot be read; later reads also raise this.
    """

    def __init__(
        self,
        client: Client,
        url: str,
        loop: asyncio.AbstractEventLoop,
        *,
        whole: int | None = None,
        until: float | None = None,
        arrived: Callable[[int], None] | None = None,
        parts: Parts | None = None,
        ended: threading.Event | None = None,
    ) -> None:
        super().__init__()
        self._client, self._url, self._loop = client, url, loop
        self._whole = _WHOLE_FILE if whole is None else whole
        self._until = until
        self._arrived = arrived
        self._parts = parts
        self._ended = ended
        self._position = 0
        self._blocks: dict[int, bytes] = {}
        # The block after the last request, and the size of that request in blocks.
        self._following, self._count = -1, 0
        self._size, self._tail = self._read_tail()

    def readable(self) -> bool:
        """Return true: the file can be read."""
        return True

    def seekable(self) -> bool:
        """Return true: a read may start anywhere."""
        return True

    def tell(self) -> int:
        """Return the position at which the next read starts."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the position at which the next read starts."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}
        self._position = max(0, base[whence] + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Fill ``buffer`` as far as the file allows; return the number of bytes."""
        end = min(self._position + len(buffer), self._size)
        start = self._position
        while self._position < end:
            tail = self._size - len(self._tail)
            if self._position >= tail:
                piece = self._tail[self._position - tail : end - tail]
            else:
                block, skip = divmod(self._position, _BLOCK)
                piece = self._read_block(block)[skip : skip + end - self._position]
            at = self._position - start
            buffer[at : at + len(piece)] = piece
            self._position += len(piece)
        return self._position - start

    def _read_tail(self) -> tuple[int, bytes]:
        """Request the end of the file; return the file size and the received bytes."""
        # The list of members is at the end of a zip file, so request the end first.
        response = self._request(f"bytes=-{_TAIL}", _TAIL)
        data, headers = response.body, response.headers
        if response.status != 206:
            self._note(0, data, len(data))
            return len(data), data
        given = _content_range(headers)
        if given is None:
            message = "the server does not say how long the file is"
            raise NoRangesError(message, self._url)
        self._version = _version(headers)
        first, last, size = given
        is_tail = last == size - 1 and first == size - len(data)
        if is_tail:
            self._note(first, data, size)
        return size, data if is_tail else b""

    def _note(self, start: int, data: bytes, size: int) -> None:
        if self._parts is not None:
            self._parts.add(start, data, size)

    def _read_block(self, number: int) -> bytes:
        if number not in self._blocks:
            # The list of members is read in any order, but a large member is read in
            # sequence: double the size of requests while the reads are consecutive.
            ahead = 2 * self._count if number == self._following else 1
            self._count = min(ahead, _MOST_BLOCKS)
            self._following = number + self._count
            start = number * _BLOCK
            end = min(self._following * _BLOCK, self._size - len(self._tail)) - 1
            response = self._request(f"bytes={start}-{end}", end - start + 1)
            data, version = response.body, _version(response.headers)
            if is_whole := response.status != 206:
                version = "", str(len(data))
            if _differs(self._version, version):
                message = "it has changed while it was read"
                raise PassingError(message, self._url, status=502, hint="try again")
            self._note(0 if is_whole else start, data, self._size)
            if is_whole:
                # The server no longer supports ranges: read the rest from this reply.
                self._tail = data
                data = data[start : end + 1]
            given = response.headers.get("content-range", "")
            is_other = not (is_whole or given.startswith(f"bytes {start}-{end}/"))
            if is_other or len(data) != end - start + 1:
                message = "the server sent a range that was not requested"
                raise NoRangesError(message, self._url)
            if len(self._blocks) > _KEPT_BLOCKS:
                self._blocks.clear()
            for index in range(self._count):
                piece = data[index * _BLOCK : (index + 1) * _BLOCK]
                self._blocks[number + index] = piece
        return self._blocks[number]

    def _request(self, wanted: str, most: int) -> CompleteResponse:
        """Request a range of the file; the reply may be the whole file.

        :param wanted: the value of the ``Range`` header.
        :param most: the maximum size of the range in bytes.
        """
        work = _get_range(self._client, self._url, wanted, max(most, self._whole))
        response = wait_until(work, self._loop, self._until, self._url, self._ended)
        if response.status != 206 and len(response.body) > self._whole:
            raise NoRangesError("the server does not serve parts", self._url)
        if self._arrived is not None:
            self._arrived(len(response.body))
        return response


def _content_range(headers: Mapping[str, str]) -> tuple[int, int, int] | None:
    """Return the first and last positions of a range and the file size, if known."""
    given = headers.get("content-range", "")
    match = re.fullmatch(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})", given)
    return match and (int(match[1]), int(match[2]), int(match[3]))


def _version(headers: Mapping[str, str]) -> tuple[str, str]:
    """Return the ``ETag`` and the file size from a response, each empty if unknown.

    A weak ``ETag`` (``W/``) is ignored.
    """
    tag = headers.get("etag", "")
    size = headers.get("content-range", "").rpartition("/")[2]
    return "" if tag.startswith("W/") else tag, size.replace("*", "")


def _differs(first: tuple[str, str], second: tuple[str, str]) -> bool:
    """Return whether two results of `_version` are from different versions of a file.

    RFC 9110, section 15.3.7.3: "These ranges can only be safely combined if they all
    have in common the same strong validator".
    """
    return any(a and b and a != b for a, b in zip(first, second, strict=True))


def wait_until(
    work: Coroutine[Any, Any, T],
    loop: asyncio.AbstractEventLoop,
    until: float | None,
    url: str,
    ended: threading.Event | None = None,
) -> T:
    """Run ``work`` in the event loop of another thread, and return its result.

    :param until: the deadline, by `time.monotonic`; ``None`` for no limit.
    :param ended: an event that also ends the wait, within a second.
    :raises PassingError: the deadline has passed.
    """
    task = asyncio.run_coroutine_threadsafe(work, loop)
    until = math.inf if until is None else until
    try:
        while True:
            left = max(0.0, until - time.monotonic())
            concurrent.futures.wait([task], min(left, 1.0))
            if task.done():
                return task.result()
            is_late = left <= 1.0  # the wait has used up the time that was left
            if is_late or (ended is not None and ended.is_set()):
                raise PassingError("not read in time", url, hint="try again")
    finally:  # also if a signal ends the wait
        task.cancel()


async def _get_range(
    client: Client, url: str, wanted: str, limit: int
) -> CompleteResponse:
    logger.debug("%s: asking for %s", redacted(url), wanted)
    try:
        headers = {"Range": wanted, "Accept-Encoding": "identity"}
        response = await client.get(url, headers, limit=limit)
        if response.body == response.raw:
            return response
        # A range is of the compressed file, which cannot be decompressed by parts.
        message = "the server compresses it"
    except TooLargeError as error:
        message = f"{error.message}, and the server does not serve parts"
    except UpstreamError as error:
        # Some servers reject ranges, such as suffix ranges, instead of ignoring them.
        if error.status not in (416, 501):
            raise
        message = error.message
    raise NoRangesError(message, url)


class RangeSupport:
    """Tests whether servers support range requests; each test is valid for an hour.

    :param client: sends the test requests.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        # The test result for each server and index, and the time at which it expires.
        self._asked: dict[
            tuple[str, str | None], tuple[asyncio.Future[bool], float]
        ] = {}

    async def has(self, url: str, index: str | None = None) -> bool:
        """Return whether the server of a file supports range requests.

        :param url: the URL of the file, whose last byte is requested.
        :param index: the only index that may get credentials; see `Client.only`.
        """
        key, now = (server_of(url), index), asyncio.get_running_loop().time()
        reply, until = self._asked.get(key, (None, now))
        if reply is None or now > until:
            reply = asyncio.ensure_future(self._ask(url, self._client.only(index)))
            self._asked[key] = reply, now + _FRESH
            if len(self._asked) > _SERVERS:
                del self._asked[next(iter(self._asked))]
        # Several pages may wait for the same test, so none of them may cancel it.
        with Share.waits():
            return await asyncio.shield(reply)

    def deny(self, url: str) -> None:
        """Record that the server of a file does not support range requests."""
        loop = asyncio.get_running_loop()
        denied: asyncio.Future[bool] = loop.create_future()
        denied.set_result(False)
        server = server_of(url)
        for key in {(server, None), *(key for key in self._asked if key[0] == server)}:
            self._asked[key] = denied, loop.time() + _FRESH

    async def _ask(self, url: str, client: Client) -> bool:
        try:
            # asyncio.timeout() requires Python 3.11.
            sends = await asyncio.wait_for(self._sends_part(url, client), _PATIENCE)
        except (InputError, asyncio.TimeoutError) as error:
            logger.info("%s: no part of it could be read: %s", redacted(url), error)
            return False
        logger.info("%s: parts are %s", server_of(url), "sent" if sends else "not sent")
        return sends

    async def _sends_part(self, url: str, client: Client) -> bool:
        # Test a suffix range (RFC 9110, section 14.1.2): `RangeFile` begins with one,
        # and some servers support only other ranges.
        wanted = {"Range": "bytes=-1", "Accept-Encoding": "identity"}
        # If the server sends a large file as a whole, the limit ends the request.
        response = await client.get(url, wanted, limit=_MOST)
        given = _content_range(response.headers)
        if response.status != 206 or len(response.body) != 1 or given is None:
            return False
        first, last, size = given
        return first == last == size - 1
