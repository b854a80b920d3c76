"""The HTTP client for synchronous code, such as ``validate URL``."""

from __future__ import annotations

import hashlib
import logging
import shutil
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime, timezone
from tempfile import SpooledTemporaryFile, TemporaryFile
from typing import IO

from nvidia_variant_provider.strict_json import MAX_BYTES

from .client import Client
from .pages import ACCEPT, find_projects, parse_page
from .ranges import RangeFile, wait_until
from .replies import content_length, too_large, without_frames
from .threads import LoopThread
from .urls import (
    CompleteResponse,
    IndexFile,
    NoRangesError,
    Settings,
    TooLargeError,
    UpstreamError,
    split_credentials,
)

logger = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
"""Called with the number of bytes received, and the file size or, if unknown, 0."""

_PREFIX = "nvidia-variant-provider-"
"""The prefix of the names of temporary files."""

_SLOWEST = 64 * 1024
"""The minimum speed of a download in bytes per second."""

_GRACE = 60.0
"""The number of seconds before the minimum speed applies."""

_SPARE = 256 * 1024**2
"""The number of bytes to leave free in the temporary directory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RemotePage:
    """The links on a page of an index.

    :param files: the files on the page of a project.
    :param projects: the URLs of project pages, if the page is the root.
    """

    files: Sequence[IndexFile]
    projects: Sequence[str]


class BlockingClient:
    """A client for synchronous code; use it in a ``with`` block.

    Pass the URL of the page that links to a file as ``page``: a public page must not
    make this program send requests to servers in this machine's private network.

    A separate thread runs the event loop of the `Client`. The first request creates the
    thread and the `Client`, so a run without URLs costs nothing.

    :param make_client: creates the `Client`; the default ignores pip's settings.
    """

    def __init__(self, make_client: Callable[[], Client] | None = None) -> None:
        self._make_client = make_client or (lambda: Client(Settings(plain_http=True)))
        # Several threads may make a first request, but only one may create the client.
        self._starting = threading.Lock()
        self._running: tuple[Client, LoopThread] | None = None

    def __enter__(self) -> BlockingClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections and end the event loop; no read may be in progress."""
        if self._running is not None:
            client, thread = self._running
            self._running = None
            thread.close(client.close())

    def read(self, url: str, *, page: str | None = None) -> bytes:
        """Read a metadata file of at most `MAX_BYTES`.

        :param page: the URL of the page that links to the file.
        :raises UpstreamError: the file cannot be read.
        """
        client, thread, bare = self._prepare(url, page)
        return thread.call(client.get(bare, limit=MAX_BYTES)).body

    def read_page(self, url: str) -> RemotePage:
        """Read a page of an index, in HTML (PEP 503) or JSON (PEP 691).

        :raises UpstreamError: the page cannot be read, or is not a page of an index.
        """
        client, thread, bare = self._prepare(url)
        return _parse(*thread.call(_get_page(client, bare)))

    def read_pages(
        self, urls: Iterable[str], *, at_once: int
    ) -> Iterator[tuple[str, RemotePage | UpstreamError]]:
        """Yield each URL with its page, or with the error, in the order of ``urls``.

        :param at_once: the maximum number of pages requested or in memory at any time.
        """
        waiting: deque[tuple[str, Future[tuple[CompleteResponse, int]]]] = deque()
        try:
            for url in urls:
                waiting.append((url, self._request_page(url)))
                if len(waiting) >= at_once:
                    yield _finished(*waiting.popleft())
            while waiting:
                yield _finished(*waiting.popleft())
        finally:
            for _, request in waiting:
                request.cancel()

    def _request_page(self, url: str) -> Future[tuple[CompleteResponse, int]]:
        try:
            client, thread, bare = self._prepare(url)
        except UpstreamError as error:
            failed: Future[tuple[CompleteResponse, int]] = Future()
            failed.set_exception(error)
            return failed
        return thread.submit(_get_page(client, bare))

    def open(
        self,
        url: str,
        *,
        page: str | None = None,
        whole: int | None = None,
        until: float | None = None,
        arrived: Callable[[int], None] | None = None,
    ) -> RangeFile:
        """Open a file that is read by range requests.

        :param page: the URL of the page that links to the file.
        :param whole: the maximum number of bytes to download from a server without
            range support; 16 MiB by default.
        :param until: the deadline of all reads, by `time.monotonic`.
        :param arrived: called with the number of bytes of each response.
        :raises NoRangesError: the server does not support ranges, and the file is
            larger than ``whole``.
        :raises UpstreamError: the file cannot be read; later reads also raise this.
        """
        client, thread, bare = self._prepare(url, page)
        return RangeFile(
            client, bare, thread.loop, whole=whole, until=until, arrived=arrived
        )

    def download(
        self,
        url: str,
        target: IO[bytes],
        *,
        limit: int,
        page: str | None = None,
        progress: Progress | None = None,
        until: float | None = None,
        arrived: Callable[[int], None] | None = None,
    ) -> str:
        """Write a whole file to ``target``, and return its SHA-256.

        :param limit: the maximum size in bytes.
        :param page: the URL of the page that links to the file.
        :param progress: called after each piece.
        :param arrived: called with the number of bytes of each piece.
        :param until: the deadline, by `time.monotonic`.
        :raises TooLargeError: the file is larger than ``limit``.
        :raises UpstreamError: the file cannot be read completely or cannot be written.
        """
        client, thread, bare = self._prepare(url, page)

        def tell(new: int, done: int, total: int) -> None:
            if arrived is not None:
                arrived(new)
            if progress is not None:
                progress(done, total)

        work = _download(client, bare, target, limit, tell)
        return wait_until(work, thread.loop, until, bare)

    @contextmanager
    def provide(
        self,
        file: IndexFile,
        *,
        whole: bool,
        most: int,
        in_memory: int = 0,
        largest_answer: int | None = None,
        until: float | None = None,
        watch: Callable[[], AbstractContextManager[Progress | None]] = nullcontext,
        arrived: Callable[[int], None] | None = None,
    ) -> Iterator[tuple[IO[bytes] | RangeFile, str | None]]:
        """Provide a seekable file, with its SHA-256 if it was downloaded, or ``None``.

        A downloaded file is temporary: the end of the ``with`` block deletes it.

        :param whole: download the file, unless it is too large. Otherwise use range
            requests, if the server supports them.
        :param most: the maximum number of bytes to download; see `room_for_copy`.
        :param in_memory: the maximum number of bytes to keep in memory.
        :param largest_answer: passed to `open` as ``whole``.
        :param until: the deadline, by `time.monotonic`.
        :param watch: creates a context manager that shows the progress of a download.
        :param arrived: called with the number of received bytes.
        :raises TooLargeError: the server does not support ranges, and the file is
            larger than ``most`` or the free disk space.
        :raises UpstreamError: the file cannot be read.
        """
        limit = room_for_copy(most, in_memory)
        self._prepare(file.url, file.page, file.near)

        @contextmanager
        def copied() -> Iterator[tuple[IO[bytes], str]]:
            with (
                SpooledTemporaryFile(in_memory, prefix=_PREFIX)
                if in_memory
                else TemporaryFile(prefix=_PREFIX)
            ) as copy:
                with watch() as progress:
                    digest = self.download(
                        file.url,
                        copy,
                        limit=limit,
                        page=file.page,
                        progress=progress,
                        until=until,
                        arrived=arrived,
                    )
                yield copy, digest

        with ExitStack() as stack:
            if whole:
                try:
                    copy = stack.enter_context(copied())
                except TooLargeError as error:
                    logger.info("%s: %s", file.path, error.message)
                else:
                    yield copy
                    return
            try:
                parts = self.open(
                    file.url,
                    page=file.page,
                    whole=largest_answer,
                    until=until,
                    arrived=arrived,
                )
            except NoRangesError as error:
                logger.info("%s: %s; reading all of it", file.path, error.message)
                yield stack.enter_context(copied())
            else:
                yield stack.enter_context(parts), None

    def add_credentials(self, url: str, pair: tuple[str, str]) -> None:
        """Send this user and password with every request to the server of ``url``."""
        client, _, bare = self._prepare(url)
        client.logins.add(bare, pair)

    def _prepare(
        self, url: str, page: str | None = None, near: int = 0
    ) -> tuple[Client, LoopThread, str]:
        """Create the client if necessary, and store the credentials of ``url`` in it.

        :param page: the URL of the page that links to ``url``.
        :param near: the location of the page, as in `IndexFile`.
        :returns: the client, its thread, and the bare URL.
        :raises UpstreamError: the URL is invalid, or its server is in a private network
            that the page must not refer to.
        """
        try:
            bare, pair = split_credentials(url)
        except ValueError as error:
            raise UpstreamError(f"is not a URL: {error}", url) from None
        with self._starting:
            if self._running is None:
                self._running = self._make_client(), LoopThread()
            client, thread = self._running
            if pair is not None and page is None:
                client.logins.add(bare, pair)
            elif not client.logins.has(bare):
                bare = url  # credentials of a page are for this file only
        if page is not None and not thread.call(client.may_lead(page, bare, near)):
            message = "only this machine or its network can reach the server"
            message += ", and the page that names the file is elsewhere"
            raise UpstreamError(message, bare, hint="tell the owner of the index")
        return client, thread, bare


def room_for_copy(most: int, in_memory: int = 0) -> int:
    """Return the maximum size of a copy: ``most``, or less if disk space is low."""
    free = shutil.disk_usage(tempfile.gettempdir()).free
    return min(most, max(in_memory, free - _SPARE))


async def _get_page(client: Client, url: str) -> tuple[CompleteResponse, int]:
    """Read a page; return it with the location of its server."""
    response = await client.get(url, {"Accept": ACCEPT})
    return response, await client.find_nearness(response.url)


def _parse(response: CompleteResponse, near: int) -> RemotePage:
    """Parse the body of a page.

    :raises UpstreamError: the body is not a page of an index.
    """
    kind = response.headers.get("content-type", "")
    projects = find_projects(response.body, kind, response.url)
    if projects and kind.partition(";")[0].strip().lower().endswith("json"):
        # A root page in JSON has no files, so do not parse it as a project page.
        return RemotePage(files=[], projects=projects)
    page = parse_page(response.body, kind, response.url, "project")
    files = [
        IndexFile(
            name=file.filename,
            url=file.url,
            page=response.url,
            near=near,
            time=_seconds(file.upload_time),
            sha256=file.hashes.get("sha256"),
            size=file.size,
            requires_python=file.requires_python,
            # PEP 592: an empty reason also yanks the file.
            yanked=file.yanked is not None and file.yanked is not False,
            core_metadata=_core_metadata(file.dist_info_metadata),
        )
        for file in page.files
    ]
    return RemotePage(files=files, projects=projects)


def _core_metadata(given: bool | Mapping[str, str] | None) -> str | None:
    if isinstance(given, Mapping):
        return given.get("sha256", "")
    return "" if given else None


def _seconds(time: datetime | None) -> float | None:
    """Return a time in seconds since 1970; ``None`` if out of range."""
    if time is None:
        return None
    # PEP 700 requires UTC, but Python treats a time without a zone as local.
    zoned = time if time.tzinfo is not None else time.replace(tzinfo=timezone.utc)
    try:
        return zoned.astimezone(timezone.utc).timestamp()
    except (OverflowError, ValueError):
        return None


def _finished(
    url: str, request: Future[tuple[CompleteResponse, int]]
) -> tuple[str, RemotePage | UpstreamError]:
    try:
        return url, _parse(*request.result())
    except UpstreamError as error:
        error.reply = None  # a census keeps all errors
        return url, without_frames(error)


async def _download(
    client: Client,
    url: str,
    target: IO[bytes],
    limit: int,
    tell: Callable[[int, int, int], None],
) -> str:
    """Download a file for `BlockingClient.download`, and return its SHA-256.

    :param tell: called for each piece with its size, the size so far and the file size.
    """
    digest = hashlib.sha256()
    done = 0
    started = time.monotonic()
    async with client.stream(url, {"Accept-Encoding": "identity"}) as response:
        total = content_length(response)
        if total > limit:
            raise too_large(url, limit, "download it first, and check the file")
        async for chunk in response.aiter_raw():
            done += len(chunk)
            if done > limit:
                raise too_large(url, limit, "download it first, and check the file")
            seconds = time.monotonic() - started
            if seconds > _GRACE and done < seconds * _SLOWEST:
                message = f"only {done} bytes came in {seconds:.0f} s"
                raise UpstreamError(message, url, hint="try again")
            digest.update(chunk)
            try:
                target.write(chunk)
            except OSError as error:
                # Convert the error: the client treats an OSError as a connection error.
                why = error.strerror
                message = f"cannot be written to the temporary directory: {why}"
                hint = "make room there, or set TMPDIR to another directory"
                raise UpstreamError(message, url, hint=hint) from None
            tell(len(chunk), done, max(total, done))
    return digest.hexdigest()
