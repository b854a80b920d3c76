"""The application of the local index: pages and files of several repositories.

This is not an open proxy: a file is looked up by project and name among the files of
an upstream page, never by URL. A file that an installer can download itself keeps its
URL or gets a redirect; other files are streamed with little memory.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, BinaryIO, TypeVar
from urllib.parse import quote

from packaging.utils import canonicalize_name
from packaging.version import Version
from simple_repository import errors, model
from simple_repository.content_negotiation import Format
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route, Router

from nvidia_variant_provider.errors import InputError, redacted

from ..http.replies import without_frames
from ..http.threads import FOR_INSTALLER, in_steps
from ..http.urls import (
    METADATA,
    CompleteResponse,
    UpstreamError,
    server_of,
    split_credentials,
)
from ..selection.core_metadata import SentWheel
from ..selection.kept import MARK
from ..selection.pieces import (
    HAS_ENDED,
    CopiedWheel,
    IndexFile,
    client_of,
    open_local,
    read_pieces,
    stream_pieces,
)
from ..selection.shown import ShownPage, ShownRelease, with_files
from ..selection.visibility import PageVerdicts
from .places import LinksUpstream
from .rendering import find_forms, link, respond_renamed, respond_with
from .responses import (
    DIRECT,
    HEADERS,
    NO_LABEL,
    Failures,
    HostCheck,
    OnError,
    Source,
    TokenCheck,
    make_handler,
    respond_with_text,
)
from .sent_files import (
    ASKING,
    FILE_HEADERS,
    OCTETS,
    OF_BODIES,
    LocalFileResponse,
    UpstreamResponse,
    conditions_of,
    headers_of,
    with_checked_length,
)
from .upstream import GoneError, UnjudgedError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

T = TypeVar("T")

logger = logging.getLogger(__name__)

_AS_IT_IS = {"Accept-Encoding": "identity"}
"""Headers that request raw bytes. If a server encodes them anyway, uv decodes them."""

_PIECE = 256 * 1024
"""The maximum size of the part of a response that a connection copies, in bytes."""

OnPick = Callable[[ShownRelease, "str | None"], None]
"""Called with the release that an installer fetches, and its label or ``None``."""

OnWait = Callable[[str], None]
"""Called with the project of a page that takes longer than `_SILENCE`."""

_SILENCE = 2.0

LinkUp = Callable[[model.File, str], model.File]
"""Returns a file of a project with the URL for installers."""

OnPage = Callable[[PageVerdicts], None]
"""Called with the verdicts on a requested page."""


def make_app(
    sources: Sequence[Source],
    *,
    prefix: str = "",
    hosts: Sequence[str] = ("*",),
    token: str | None = None,
    on_pick: OnPick | None = None,
    on_page: OnPage | None = None,
    on_wait: OnWait | None = None,
    warn: Callable[[str], None] | None = None,
) -> ASGIApp:
    """Make the ASGI application that serves ``sources``.

    :param prefix: the prefix of all paths, such as ``/secret``.
    :param hosts: the accepted host names of the server.
    :param token: the token that each request must have, or ``None``.
    :param warn: called with a sentence if an upstream fails.
    """
    failures = Failures(warn or (lambda _: None))
    handle = partial(
        _Handlers, on_pick=on_pick, on_page=on_page, on_wait=on_wait, failures=failures
    )
    mounts = [
        # Disable redirects for slashes: Starlette builds them from the Host header.
        Mount(
            prefix + source.path,
            app=Router(handle(source, prefix=prefix).routes(), redirect_slashes=False),
        )
        # The empty path comes last, because it matches the requests for all paths.
        for source in sorted(sources, key=lambda source: not source.path)
    ]
    checks = [Middleware(HostCheck, hosts=frozenset(hosts))]
    if token is not None:
        checks.append(Middleware(TokenCheck, token=token))
    handlers: dict[type[Exception], OnError] = {
        UnjudgedError: failures.respond_without,
        UpstreamError: failures.respond,
        InputError: failures.respond,
        GoneError: make_handler(410),
        errors.PackageNotFoundError: make_handler(404),
        errors.ResourceUnavailable: make_handler(404),
        errors.InvalidPackageError: make_handler(403),
        errors.UnsupportedSerialization: make_handler(406),
        Exception: failures.respond_to_defect,
    }
    app = Starlette(
        routes=mounts,
        middleware=checks,
        exception_handlers={x: _forgetting(y) for x, y in handlers.items()},
    )
    app.router.redirect_slashes = False
    return _in_pieces(app)


def _forgetting(handler: OnError) -> OnError:
    """Return a handler after which an error has no frames; see `without_frames`."""

    async def respond(request: Request, error: Exception) -> Response:
        try:
            return await handler(request, error)
        finally:
            without_frames(error)

    return respond


def _in_pieces(app: ASGIApp) -> ASGIApp:
    """Return ``app``, with large bodies in pieces, each sent after the client has read.

    A connection copies what its client has not read yet.
    """

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_pieces(message: Message) -> None:
            body, start = message.get("body", b""), 0
            while len(body) - start > _PIECE:
                piece = body[start : start + _PIECE]
                await send({**message, "body": piece, "more_body": True})
                await asyncio.sleep(0)  # lets the loop notice a closed connection
                start += _PIECE
            await send({**message, "body": body[start:]} if start else message)

        await app(scope, receive, send_pieces)

    return call


class _Handlers:
    """The request handlers below the path of one source."""

    def __init__(
        self,
        source: Source,
        *,
        on_pick: OnPick | None,
        on_page: OnPage | None,
        on_wait: OnWait | None,
        failures: Failures,
        prefix: str,
    ) -> None:
        self._source = source
        self._root = f"{prefix}{source.path}/"
        self._on_pick = on_pick or (lambda *_: None)
        self._on_page = on_page or (lambda _: None)
        self._on_wait = on_wait or (lambda _: None)
        self._failures = failures

    def routes(self) -> list[Route]:
        """Return the routes, from the most to the least specific."""
        # Only the user's own pip may say what is on a page.
        methods = ["GET", "POST"] if self._source.access.local else ["GET"]
        if isinstance(self._source.upstream, LinksUpstream):
            pages = [Route("/links/{project}/", self.project, methods=methods)]
        else:
            pages = [
                Route("/simple/", self.projects),
                Route("/simple/{project}/", self.project, methods=methods),
                Route("/simple/{project}", self.add_slash),
            ]
        return [*pages, Route("/f/{project}/{label}/{mark}/{name}", self.file)]

    async def projects(self, request: Request) -> Response:
        """Send the list of projects."""
        forms = find_forms(request)
        page = await self._source.repository.get_project_list()
        return await asyncio.to_thread(respond_with, page, forms, self._failures.warn)

    async def add_slash(self, request: Request) -> Response:
        """Redirect to the URL of a page, which ends with a slash."""
        name = canonicalize_name(request.path_params["project"])
        return RedirectResponse(f"{quote(name)}/", status_code=301, headers=HEADERS)

    async def project(self, request: Request) -> Response:
        """Send the page of a project."""
        forms = find_forms(request)
        name = request.path_params["project"]
        normal = canonicalize_name(name, validate=False)
        if normal != name:
            location = f"../{quote(normal)}/"
            return RedirectResponse(location, status_code=301, headers=HEADERS)
        if not _is_name(name):
            raise errors.PackageNotFoundError(ascii(name))
        # pip reads METADATA from the whole wheel, other installers by range requests.
        reads_parts = not request.headers.get("user-agent", "").startswith("pip/")
        if request.method == "POST":
            return await self._take_page(request, name)
        direct = self._is_direct(request)
        link_up = partial(
            link,
            self._source,
            root=self._root,
            shown="../../",
            reads_parts=reads_parts,
            direct=direct,
        )
        work = partial(self._make_page, name, forms, link_up)
        kept = self._source.kept
        if kept is None:
            return await self._with_credentials(request, work)
        key = self._root, self._source.client.logins.identity, name, forms, reads_parts
        return await self._with_credentials(request, lambda: kept.make(key, work))

    async def _take_page(self, request: Request, name: str) -> Response:
        """Take a page that pip has read, or the information that pip uses none."""
        head, _, body = (await request.body()).partition(b"\n")
        url, kind, pair, failed = json.loads(head)
        upstream = self._source.upstream
        if not url:
            upstream.miss(name, None if url is None else "pip alone has read it")
            return Response(status_code=429 if upstream.is_limited(failed) else 204)
        upstream.is_limited(200)
        url, _ = split_credentials(url)
        if pair is not None:
            own = self._source.url
            place = own if server_of(own) == server_of(url) else url  # redirected
            self._source.client.logins.add(place, tuple(pair))
        headers = {"content-type": kind}
        reply = CompleteResponse(status=200, url=url, headers=headers, body=body)
        logger.info("pip has read %s: %d bytes", redacted(url), len(body))
        await upstream.take(reply, name)
        return Response(status_code=200)

    def _is_direct(self, request: Request) -> bool:
        """Return whether a request is one of the pip that has read the page itself."""
        return self._source.upstream.is_taken and DIRECT in request.headers

    async def _make_page(
        self, name: str, forms: tuple[Format, Format], link_up: LinkUp
    ) -> Response:
        late = asyncio.get_running_loop().call_later(_SILENCE, self._on_wait, name)
        try:
            page, shown = await self._source.repository.show(name)
        finally:
            late.cancel()
        self._on_page(shown.judged)
        await asyncio.to_thread(self._report_plain, shown)
        files = [link_up(file, name) async for file in in_steps(page.files)]
        logger.info("page of %s: %d files", name, len(files))
        linked = with_files(page, files)
        return await asyncio.to_thread(respond_with, linked, forms, self._failures.warn)

    async def file(self, request: Request) -> Response:
        """Send a file, or its METADATA."""
        project = request.path_params["project"]
        name = request.path_params["name"]
        if not _is_name(canonicalize_name(project)):
            raise errors.PackageNotFoundError(ascii(project))
        repository = self._source.repository
        mark = model.RequestContext({MARK: request.path_params[MARK]})
        HAS_ENDED.set(request.is_disconnected)
        FOR_INSTALLER.set(True)
        try:
            find = repository.get_resource
            resource = await find(project, name, request_context=mark)
        except errors.ResourceUnavailable:
            label = request.path_params["label"].lstrip(NO_LABEL)
            shown_releases = repository.last(project).releases.values()
            if (response := respond_renamed(shown_releases, label, name)) is None:
                raise
            return response
        found = repository.last(project).find_release(name.removesuffix(METADATA))
        if found is not None:
            await asyncio.to_thread(self._on_pick, *found)
        if isinstance(resource, model.TextResource):
            return respond_with_text(resource.text)
        if isinstance(resource, SentWheel):
            if name not in self._source.saved:
                return await self._send(resource, request)
            resource = model.LocalResource(path=self._source.saved[name])
        if isinstance(resource, model.HttpResource):
            is_direct = self._is_direct(request)
            if not (is_direct or self._source.is_reachable(resource.url)):
                logger.info("%s: streamed from %s", name, redacted(resource.url))
                return await self._stream(resource.url, request)
            logger.info("%s: redirected to %s", name, redacted(resource.url))
            # Use 302, not 301: the same name may mean another file on the next run.
            return RedirectResponse(resource.url, status_code=302, headers=HEADERS)
        file = self._open_local(resource, name)
        logger.info("%s: sent from %s", name, file.name)
        return LocalFileResponse(file)

    async def _stream(self, url: str, request: Request) -> Response:
        wanted = {**_AS_IT_IS, **conditions_of(request.headers)}
        stack = AsyncExitStack()
        opened = self._source.client.stream(url, wanted)
        response = await stack.enter_async_context(opened)
        headers = headers_of(response)
        if request.method == "HEAD" or response.status_code == 304:
            await stack.aclose()
            return Response(status_code=response.status_code, headers=headers)
        return UpstreamResponse(
            response.aiter_raw(),
            stack,
            lambda error: self._tell_break(redacted(url), error),
            status_code=response.status_code,
            headers=headers,
        )

    async def _send(self, wheel: SentWheel, request: Request) -> Response:
        """Send a wheel with possibly changed METADATA while the original arrives."""
        from .rewritten import make_pieces

        headers = {"Accept-Ranges": "none", "Content-Type": OCTETS, **FILE_HEADERS}
        headers |= ASKING
        headers |= {} if wheel.size is None else {"Content-Length": str(wheel.size)}
        if request.method == "HEAD":
            head = Response(headers=headers)
            if wheel.size is None:
                del head.headers["Content-Length"]
            return head
        stack = AsyncExitStack()
        original, lasts = wheel.original, True
        if isinstance(original, model.HttpResource):
            client = client_of(original, self._source.client)
            opened = client.stream(original.url, _AS_IT_IS)
            response = await stack.enter_async_context(opened)
            pieces, sent = response.aiter_raw(), response.headers
            lasts = "no-store" not in sent.get("cache-control", "").lower()
            if wheel.size is None:
                headers |= {key.title(): sent[key] for key in OF_BODIES if key in sent}
        elif isinstance(original, model.LocalResource):
            file = self._open_local(original, wheel.place)
            pieces = read_pieces(stack.enter_context(file))
        else:
            lasts = not isinstance(original, CopiedWheel) or original.lasts
            pieces = await stream_pieces(original, self._source.client, stack)
        headers |= {} if lasts else HEADERS
        return UpstreamResponse(
            make_pieces(wheel, pieces, self._source.rewritten, lasts=lasts),
            stack,
            lambda error: self._tell_break(redacted(wheel.place), error),
            headers=with_checked_length(headers, request.headers),
        )

    def _open_local(self, resource: model.Resource, name: str) -> BinaryIO:
        """Open a local file that installers may read.

        :raises ResourceUnavailable: the file does not belong to the index.
        """
        is_ours = self._source.access.local or isinstance(resource, IndexFile)
        if is_ours and isinstance(resource, model.LocalResource):
            with suppress(OSError, ValueError):
                return open_local(resource)
        raise errors.ResourceUnavailable(name)

    def _tell_break(self, place: str, error: Exception) -> None:
        reason = redacted(str(error)) or type(error).__name__
        self._failures.warn(f"{place}: broke off: {reason}")

    async def _with_credentials(
        self, request: Request, read: Callable[[], Awaitable[T]]
    ) -> T:
        """Read a page, unless it needs credentials that this program does not have.

        The credentials in requests are ignored: pip sends those of one index to all,
        since they are on one server here, and those of a netrc default entry. Clients
        of `serve` may send those of other users.
        """
        try:
            return await read()
        except UpstreamError as shared:
            error = copy(shared)  # because other requests may share it
            if error.status == 401 and "authorization" in request.headers:
                error.reply = None  # otherwise pip would use the next index
            raise self._source.redirecting(error) from None

    def _report_plain(self, shown: ShownPage) -> None:
        """Report the non-variant wheel of the newest release, if no variant fits.

        That wheel may keep its own URL, so this server may not see its download.
        """
        shown_releases = shown.releases.values()
        if not shown_releases or self._source.access.local:
            return
        newest = max(shown_releases, key=lambda release: Version(release.version))
        if newest.plain and not newest.offers:
            self._on_pick(newest, None)


def _is_name(name: str) -> bool:
    short = len(name) < 256  # as the names of its files
    return short and name.isascii() and name.replace("-", "").isalnum()
