"""The HTTP client for code that is not asynchronous, such as ``validate URL``."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime, timezone
from types import TracebackType
from typing import IO, Any, TypeVar

from nvidia_variant_provider.strict_json import MAX_BYTES

from ..threads import THREAD_NAME
from .byte_ranges import RangeFile, RangeRequest
from .client import Client, CompleteResponse, wait_until
from .downloading import Progress, download
from .pages import ACCEPT, find_projects, parse_page
from .settings import Settings
from .urls import UpstreamError, redacted, split_credentials

__all__ = ["BlockingClient", "RemoteFile", "RemotePage"]

T = TypeVar("T")

_STOP = 2.0
"""Seconds in which the thread of the client should end."""


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
        self._client: Client | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped: asyncio.Event | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> BlockingClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections and end the thread; nothing may be read meanwhile."""
        if self._loop is None or self._stopped is None or self._thread is None:
            return
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(_STOP)
        self._client = self._loop = None

    def read(self, url: str, *, page: str | None = None) -> bytes:
        """Read a metadata file, of at most `MAX_BYTES`.

        :param page: the page that names it.
        :raises UpstreamError: it cannot be read.
        """
        client, loop, bare = self._prepare(url)
        _require_lead(client, loop, page, bare)
        return _wait(client.get(bare, limit=MAX_BYTES), loop).body

    def read_page(self, url: str) -> RemotePage:
        """Read a page of an index, in HTML (PEP 503) or JSON (PEP 691).

        :raises UpstreamError: it cannot be read, or is not a page of an index.
        """
        client, loop, bare = self._prepare(url)
        return _parse(_wait(client.get(bare, {"Accept": ACCEPT}), loop))

    def read_pages(
        self, urls: Iterable[str], *, at_once: int
    ) -> Iterator[tuple[str, RemotePage | UpstreamError]]:
        """Yield each page, in the order of the URLs, or why it cannot be read.

        :param at_once: how many pages are requested at the same time; so many bodies
            are in memory at most.
        """
        waiting: deque[tuple[str, Future[CompleteResponse] | UpstreamError]] = deque()
        try:
            for url in urls:
                waiting.append((url, self._request_page(url)))
                if len(waiting) >= at_once:
                    yield _finished(*waiting.popleft())
            while waiting:
                yield _finished(*waiting.popleft())
        finally:
            for _, request in waiting:
                if isinstance(request, Future):
                    request.cancel()

    def _request_page(self, url: str) -> Future[CompleteResponse] | UpstreamError:
        try:
            client, loop, bare = self._prepare(url)
        except UpstreamError as error:
            return error
        work = client.get(bare, {"Accept": ACCEPT})
        return asyncio.run_coroutine_threadsafe(work, loop)

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
        client, loop, bare = self._prepare(url)
        _require_lead(client, loop, page, bare)
        request = client.make_range_request(bare, loop, whole=whole, until=until)
        if arrived is not None:
            request = _counted(request, arrived)
        return RangeFile(bare, request)

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
        client, loop, bare = self._prepare(url)
        _require_lead(client, loop, page, bare)
        work = download(client, bare, target, limit=limit, progress=progress)
        return wait_until(work, loop, until, bare)

    def add_credentials(self, url: str, pair: tuple[str, str]) -> None:
        """Send user and password with every request to the server of ``url``."""
        client, _, bare = self._prepare(url)
        client.add_credentials(bare, pair)

    def _prepare(self, url: str) -> tuple[Client, asyncio.AbstractEventLoop, str]:
        """Return client, loop and the URL without credentials, which the client has."""
        try:
            bare, pair = split_credentials(url)
        except ValueError as error:
            message = f"is not a URL: {error}"
            raise UpstreamError(
                message, path=redacted(url), hint="check the URL"
            ) from None
        with self._starting:
            if self._client is None or self._loop is None:
                self._client = self._make_client()
                self._loop = self._start(self._client)
            if pair is not None:
                self._client.add_credentials(bare, pair)
            return self._client, self._loop, bare

    def _start(self, client: Client) -> asyncio.AbstractEventLoop:
        started: Future[asyncio.AbstractEventLoop] = Future()

        async def work() -> None:
            self._stopped = asyncio.Event()
            started.set_result(asyncio.get_running_loop())
            await self._stopped.wait()
            await client.close()

        # A daemon: a request that hangs does not keep the process alive.
        self._thread = threading.Thread(
            target=asyncio.run, args=[work()], name=THREAD_NAME, daemon=True
        )
        self._thread.start()
        return started.result()


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
    url: str, request: Future[CompleteResponse] | UpstreamError
) -> tuple[str, RemotePage | UpstreamError]:
    if isinstance(request, UpstreamError):
        return url, request
    try:
        return url, _parse(request.result())
    except UpstreamError as error:
        return url, error


def _require_lead(
    client: Client, loop: asyncio.AbstractEventLoop, page: str | None, url: str
) -> None:
    """Refuse what a page from elsewhere must not lead to.

    :raises UpstreamError: the server is nearer than that of the page.
    """
    if page is not None and not _wait(client.may_lead(page, url), loop):
        message = "only this machine or its network can reach the server"
        message += ", and the page that names the file is elsewhere"
        hint = "tell the owner of the index"
        raise UpstreamError(message, path=redacted(url), hint=hint)


def _counted(request: RangeRequest, arrived: Callable[[int], None]) -> RangeRequest:
    def counting(wanted: str, most: int) -> tuple[bytes, Mapping[str, str]]:
        data, headers = request(wanted, most)
        arrived(len(data))
        return data, headers

    return counting


def _wait(work: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> T:
    return asyncio.run_coroutine_threadsafe(work, loop).result()
