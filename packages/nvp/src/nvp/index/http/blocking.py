"""The HTTP client for code that is not asynchronous, such as ``validate URL``."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import IO

from nvidia_variant_provider.strict_json import MAX_BYTES

from ..threads import LoopThread
from .client import Client, CompleteResponse, content_length, too_large
from .pages import ACCEPT, find_projects, parse_page
from .ranges import RangeFile, open_range_file, wait_until
from .settings import Settings
from .urls import UpstreamError, redacted, split_credentials

__all__ = ["BlockingClient", "Progress", "RemoteFile", "RemotePage"]

Progress = Callable[[int, int], None]
"""Called with the bytes that have arrived and their total, or 0 if that is unknown."""

_SLOWEST = 64 * 1024
"""Bytes a second below which a download is given up."""

_GRACE = 60.0
"""Seconds before that counts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RemoteFile:
    """A file that a project page lists.

    :param page: the URL of the page, after redirects.
    :param time: when it was uploaded, in seconds since 1970; ``None`` if unknown.
    :param sha256: its hash, if the page gives it.
    :param size: its bytes, if the page gives them.
    :param yanked: whether the index yanked it (PEP 592).
    """

    name: str
    url: str
    page: str
    time: float | None
    sha256: str | None = None
    size: int | None = None
    yanked: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class RemotePage:
    """What a page of an index links.

    :param files: the files, which the page of a project has.
    :param projects: the URLs of project pages, which the root page has.
    """

    files: Sequence[RemoteFile]
    projects: Sequence[str]


class BlockingClient:
    """Reads pages and files from the calling thread; use it in a ``with`` block.

    A file that a page names is read together with the URL of that ``page``: a page
    from elsewhere must not make this program send requests to servers that only this
    machine, or its network, can reach.

    A thread of its own runs the event loop of the `Client`. Both are made by the
    first request, so that a run without a URL costs nothing.

    :param make_client: makes the `Client`; the default one has no settings of pip.
    """

    def __init__(self, make_client: Callable[[], Client] | None = None) -> None:
        self._make_client = make_client or (lambda: Client(Settings(plain_http=True)))
        # Several threads may make the first request at the same time.
        self._starting = threading.Lock()
        self._running: tuple[Client, LoopThread] | None = None

    def __enter__(self) -> BlockingClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections and end the thread; nothing may be read meanwhile."""
        if self._running is not None:
            client, thread = self._running
            self._running = None
            thread.close(client.close())

    def read(self, url: str, *, page: str | None = None) -> bytes:
        """Read a metadata file, of at most `MAX_BYTES`.

        :param page: the page that names it.
        :raises UpstreamError: it cannot be read.
        """
        client, thread, bare = self._prepare(url, page)
        return thread.call(client.get(bare, limit=MAX_BYTES)).body

    def read_page(self, url: str) -> RemotePage:
        """Read a page of an index, in HTML (PEP 503) or JSON (PEP 691).

        :raises UpstreamError: it cannot be read, or is not a page of an index.
        """
        client, thread, bare = self._prepare(url)
        return _parse(thread.call(client.get(bare, {"Accept": ACCEPT})))

    def read_pages(
        self, urls: Iterable[str], *, at_once: int
    ) -> Iterator[tuple[str, RemotePage | UpstreamError]]:
        """Yield each page, in the order of the URLs, or why it cannot be read.

        :param at_once: how many pages are requested at the same time; so many bodies
            are in memory at most.
        """
        waiting: deque[tuple[str, Future[CompleteResponse]]] = deque()
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

    def _request_page(self, url: str) -> Future[CompleteResponse]:
        try:
            client, thread, bare = self._prepare(url)
        except UpstreamError as error:
            failed: Future[CompleteResponse] = Future()
            failed.set_exception(error)
            return failed
        return thread.submit(client.get(bare, {"Accept": ACCEPT}))

    def open(
        self,
        url: str,
        *,
        page: str | None = None,
        whole: int | None = None,
        until: float | None = None,
        arrived: Callable[[int], None] | None = None,
    ) -> RangeFile:
        """Open a file that is read in parts.

        :param page: the page that names it.
        :param whole: the most bytes of a file that is taken whole from a server without
            ranges; 16 MiB by default.
        :param until: when the last read has to be over, by `time.monotonic`.
        :param arrived: called with the number of bytes of each response.
        :raises NoRangesError: the server sends only whole files, and this is larger.
        :raises UpstreamError: it cannot be read, now or by any later read.
        """
        client, thread, bare = self._prepare(url, page)
        return open_range_file(
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
    ) -> str:
        """Write a whole file to ``target``, and return its sha256.

        :param limit: the most bytes that are read.
        :param page: the page that names it.
        :param until: when it has to be over, by `time.monotonic`.
        :raises TooLargeError: the file is larger.
        :raises UpstreamError: it cannot be read to its end, or not be written.
        """
        client, thread, bare = self._prepare(url, page)
        work = _download(client, bare, target, limit=limit, progress=progress)
        return wait_until(work, thread.loop, until, bare)

    def add_credentials(self, url: str, pair: tuple[str, str]) -> None:
        """Send user and password with every request to the server of ``url``."""
        client, _, bare = self._prepare(url)
        client.add_credentials(bare, pair)

    def _prepare(
        self, url: str, page: str | None = None
    ) -> tuple[Client, LoopThread, str]:
        """Return client, thread and the URL without credentials, which the client has.

        :param page: the page that names the URL.
        :raises UpstreamError: it is no URL, or its server is nearer than that of the
            page, and the page must not lead there.
        """
        try:
            bare, pair = split_credentials(url)
        except ValueError as error:
            message = f"is not a URL: {error}"
            raise _error(message, url, "check the URL") from None
        with self._starting:
            if self._running is None:
                self._running = self._make_client(), LoopThread()
            client, thread = self._running
            if pair is not None:
                client.add_credentials(bare, pair)
        if page is not None and not thread.call(client.may_lead(page, bare)):
            message = "only this machine or its network can reach the server"
            message += ", and the page that names the file is elsewhere"
            raise _error(message, bare, "tell the owner of the index")
        return client, thread, bare


def _error(message: str, url: str, hint: str) -> UpstreamError:
    return UpstreamError(message, path=redacted(url), hint=hint)


def _parse(response: CompleteResponse) -> RemotePage:
    """Read the body of a page.

    :raises UpstreamError: it is not a page of an index.
    """
    kind = response.headers.get("content-type", "")
    projects = find_projects(response.body, kind, response.url)
    if projects and kind.partition(";")[0].strip().lower().endswith("json"):
        # The root page in JSON has no files, which a project page must have.
        return RemotePage(files=[], projects=projects)
    page = parse_page(response.body, kind, response.url, "project")
    files = [
        RemoteFile(
            name=file.filename,
            url=file.url,
            page=response.url,
            time=_seconds(file.upload_time),
            sha256=file.hashes.get("sha256"),
            size=file.size,
            yanked=bool(file.yanked),
        )
        for file in page.files
    ]
    return RemotePage(files=files, projects=projects)


def _seconds(time: datetime | None) -> float | None:
    """Return a time in seconds since 1970; ``None`` where it is not in these years."""
    if time is None:
        return None
    # PEP 700 requires times in UTC. Without a zone, Python would take a local time.
    zoned = time if time.tzinfo is not None else time.replace(tzinfo=timezone.utc)
    try:
        return zoned.astimezone(timezone.utc).timestamp()
    except (OverflowError, ValueError):
        return None


def _finished(
    url: str, request: Future[CompleteResponse]
) -> tuple[str, RemotePage | UpstreamError]:
    try:
        return url, _parse(request.result())
    except UpstreamError as error:
        return url, error


async def _download(
    client: Client,
    url: str,
    target: IO[bytes],
    *,
    limit: int,
    progress: Progress | None = None,
) -> str:
    """Write a file to ``target``, and return its sha256 in hexadecimal digits.

    :param limit: the most bytes that are read.
    :raises TooLargeError: the file is larger.
    :raises UpstreamError: it cannot be read to its end, or arrives very slowly.
    :raises OSError: ``target`` cannot be written.
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
                raise _error(message, url, "try again")
            digest.update(chunk)
            _write(target, chunk, url)
            if progress is not None:
                progress(done, max(total, done))
    return digest.hexdigest()


def _write(target: IO[bytes], chunk: bytes, url: str) -> None:
    # The client takes an OSError in the block for one of the connection.
    try:
        target.write(chunk)
    except OSError as error:
        message = f"cannot be written to the temporary folder: {error.strerror}"
        hint = "make room there, or set TMPDIR to another folder"
        raise _error(message, url, hint) from None
