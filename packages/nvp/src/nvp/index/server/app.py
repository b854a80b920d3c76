"""The application of the local index: pages and files of several repositories.

This is not an open proxy: a file is looked up by project and name among the files of
an upstream page, never by URL. A file that an installer can download itself keeps its
URL or gets a redirect; other files are streamed with little memory.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, suppress
from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from packaging.utils import canonicalize_name
from packaging.version import Version
from simple_repository import errors, model
from simple_repository.content_negotiation import Format
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route, Router

from nvidia_variant_provider.errors import InputError, redacted

from ..http.urls import METADATA, UpstreamError, server_of
from ..selection.core_metadata import SentWheel
from ..selection.kept import MARK
from ..selection.pieces import ComparedWheel, stream_pieces
from ..selection.renaming import find_label, project_of
from ..selection.shown import ShownPage, ShownRelease, with_files
from ..selection.visibility import PageVerdicts
from ..selection.wheel_files import may_be_build
from .rendering import find_forms, respond_with
from .responses import (
    FILE_HEADERS,
    HEADERS,
    NO_LABEL,
    OCTETS,
    Failures,
    HostCheck,
    LocalFileResponse,
    Source,
    TokenCheck,
    UpstreamResponse,
    find_range,
    link,
    make_handler,
    with_checked_length,
)
from .upstream import GoneError

T = TypeVar("T")

logger = logging.getLogger(__name__)

_AS_IT_IS = {"Accept-Encoding": "identity"}
"""Headers that request raw bytes. If a server encodes them anyway, uv decodes them."""

_OF_BODIES = ("content-length", "content-encoding")
_PASSED_ON = (*_OF_BODIES, "content-range", "etag", "last-modified")
_RESUMING = ("range", "if-range")

OnPick = Callable[[ShownRelease, "str | None"], None]
"""Called with the release that an installer fetches, and its label or ``None``."""

OnWait = Callable[[str], None]
"""Called with the project of a page that takes longer than `_SILENCE`."""

_SILENCE = 2.0

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
) -> Starlette:
    """Make the ASGI application that serves ``sources``.

    :param prefix: the prefix of all paths, such as ``/secret``.
    :param hosts: the accepted host names of the server.
    :param token: a text that each ``User-Agent`` must contain, or ``None``.
    :param warn: called with a sentence if an upstream fails.
    """
    failures = Failures(warn or (lambda _: None))
    mounts = [
        # Disable redirects for slashes: Starlette builds them from the Host header.
        Mount(
            prefix + source.path,
            app=Router(
                _Handlers(
                    source,
                    on_pick=on_pick,
                    on_page=on_page,
                    on_wait=on_wait,
                    failures=failures,
                    prefix=prefix,
                ).routes(),
                redirect_slashes=False,
            ),
        )
        # The empty path comes last, because it matches the requests for all paths.
        for source in sorted(sources, key=lambda source: not source.path)
    ]
    checks = [Middleware(HostCheck, hosts=frozenset(hosts))]
    if token is not None:
        checks.append(Middleware(TokenCheck, token=token))
    app = Starlette(
        routes=mounts,
        middleware=checks,
        exception_handlers={
            UpstreamError: failures.respond,
            InputError: failures.respond,
            GoneError: make_handler(410),
            errors.PackageNotFoundError: make_handler(404),
            errors.ResourceUnavailable: make_handler(404),
            errors.InvalidPackageError: make_handler(403),
            errors.UnsupportedSerialization: make_handler(406),
            Exception: failures.respond_to_defect,
        },
    )
    app.router.redirect_slashes = False
    return app


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
        self._asked: dict[str, str] = {}  # the server that needs them, for each path

    def routes(self) -> list[Route]:
        """Return the routes, from the most to the least specific."""
        if self._source.links is not None:
            pages = [Route("/links/", self.links)]
        else:
            pages = [
                Route("/simple/", self.projects),
                Route("/simple/{project}/", self.project),
                Route("/simple/{project}", self.add_slash),
            ]
        return [*pages, Route("/f/{project}/{label}/{mark}/{name}", self.file)]

    async def projects(self, request: Request) -> Response:
        """Send the list of projects."""
        forms = find_forms(request)
        page = await self._source.repository.get_project_list()
        return respond_with(page, forms, self._failures.warn)

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
        work = partial(self._make_page, name, forms, reads_parts=reads_parts)
        kept = self._source.kept
        if kept is None:
            return await self._with_credentials(request, work)
        key = self._root, self._source.client.identity, name, forms, reads_parts
        return await self._with_credentials(request, lambda: kept.make(key, work))

    async def _make_page(
        self, name: str, forms: tuple[Format, Format], *, reads_parts: bool
    ) -> Response:
        late = asyncio.get_running_loop().call_later(_SILENCE, self._on_wait, name)
        try:
            page, shown = await self._source.repository.show(name)
        finally:
            late.cancel()
        self._on_page(shown.judged)
        self._report_plain(shown)
        files = tuple(
            self._link_up(file, name, "../../", reads_parts=reads_parts)
            for file in page.files
        )
        logger.info("page of %s: %d files", name, len(files))
        return respond_with(with_files(page, files), forms, self._failures.warn)

    async def links(self, request: Request) -> Response:
        """Send all files on one page, for pip's ``--find-links``."""
        if self._source.links is None:
            raise errors.PackageNotFoundError("links")
        forms = find_forms(request)
        everything = await self._with_credentials(request, self._source.links.read_all)
        projects = {
            project_of(file.filename)
            for file in everything.files
            if find_label(file.filename) is not None or may_be_build(file.filename)
        }
        files = [
            self._link_up(file, project_of(file.filename), "../")
            for file in everything.files
            if project_of(file.filename) not in projects
        ]
        for name in sorted(projects):
            page = await self._source.repository.get_project_page(name)
            files += [self._link_up(file, name, "../") for file in page.files]
        return respond_with(with_files(everything, files), forms, self._failures.warn)

    def _link_up(
        self, file: model.File, project: str, root: str, *, reads_parts: bool = False
    ) -> model.File:
        return link(
            self._source, file, project, self._root, shown=root, reads_parts=reads_parts
        )

    async def file(self, request: Request) -> Response:
        """Send a file, or its METADATA."""
        project = request.path_params["project"]
        name = request.path_params["name"]
        if not _is_name(canonicalize_name(project)):
            raise errors.PackageNotFoundError(ascii(project))
        repository = self._source.repository
        find = repository.get_resource
        mark = model.RequestContext({MARK: request.path_params[MARK]})
        try:
            resource = await find(project, name, request_context=mark)
        except errors.ResourceUnavailable:
            label = request.path_params["label"].lstrip(NO_LABEL)
            shown_releases = repository.last(project).releases.values()
            if (response := _respond_renamed(shown_releases, label, name)) is None:
                raise
            return response
        found = repository.last(project).find_release(name.removesuffix(METADATA))
        if found is not None:
            self._on_pick(*found)
        if isinstance(resource, model.TextResource):
            return PlainTextResponse(resource.text, headers=HEADERS)
        if isinstance(resource, SentWheel):
            if name not in self._source.saved:
                return await self._send(resource, request)
            resource = model.LocalResource(path=self._source.saved[name])
        if isinstance(resource, model.HttpResource):
            if not self._source.is_reachable(resource.url):
                logger.info("%s: streamed from %s", name, redacted(resource.url))
                return await self._stream(resource.url, request)
            logger.info("%s: redirected to %s", name, redacted(resource.url))
            # Use 302, not 301: the same name may mean another file on the next run.
            return RedirectResponse(resource.url, status_code=302, headers=HEADERS)
        path = self._check_local(resource, name)
        logger.info("%s: sent from %s", name, path)
        return LocalFileResponse(path)

    async def _stream(self, url: str, request: Request) -> Response:
        asked = request.headers
        resumes = find_range(asked) is not None
        wanted = {key: asked[key] for key in _RESUMING if resumes and key in asked}
        stack = AsyncExitStack()
        opened = self._source.client.stream(url, {**_AS_IT_IS, **wanted})
        response = await stack.enter_async_context(opened)
        headers = {k: v for k, v in response.headers.items() if k in _PASSED_ON}
        headers |= {"Content-Type": OCTETS, **FILE_HEADERS}
        if request.method == "HEAD":
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
        headers |= {} if wheel.size is None else {"Content-Length": str(wheel.size)}
        if request.method == "HEAD":
            head = Response(headers=headers)
            if wheel.size is None:
                del head.headers["Content-Length"]
            return head
        if isinstance(wheel.original, model.LocalResource):
            self._check_local(wheel.original, wheel.place)
        stack = AsyncExitStack()
        compared = wheel.original if isinstance(wheel, ComparedWheel) else None
        if isinstance(compared, model.HttpResource):
            opened = self._source.client.stream(compared.url, _AS_IT_IS)
            response = await stack.enter_async_context(opened)
            pieces, sent = response.aiter_raw(), response.headers
            headers |= {key.title(): sent[key] for key in _OF_BODIES if key in sent}
        else:
            pieces = await stream_pieces(wheel.original, self._source.client, stack)
        return UpstreamResponse(
            make_pieces(wheel, pieces, self._source.rewritten),
            stack,
            lambda error: self._tell_break(redacted(wheel.place), error),
            headers=with_checked_length(headers, request.headers),
        )

    def _check_local(self, resource: model.Resource, name: str) -> Path:
        """Return the path of a local file that installers may read.

        :raises ResourceUnavailable: the file does not belong to the index.
        """
        if isinstance(resource, model.LocalResource):
            path = resource.path
            if os.path.isfile(path) and self._source.may_send(path):
                return path
        raise errors.ResourceUnavailable(name)

    def _tell_break(self, place: str, error: Exception) -> None:
        reason = redacted(str(error)) or type(error).__name__
        self._failures.warn(f"{place}: broke off: {reason}")

    async def _with_credentials(
        self, request: Request, read: Callable[[], Awaitable[T]]
    ) -> T:
        """Read a page, with credentials that pip got from its user after a 401.

        Other requests' credentials are ignored: pip sends those of one index to all,
        since they are on one server here, and those of a netrc default entry.
        """
        client = self._source.client
        scheme, _, text = request.headers.get("authorization", "").partition(" ")
        if request.url.path in self._asked and scheme.lower() == "basic":
            place = self._asked.pop(request.url.path)
            with suppress(ValueError):
                pair = base64.b64decode(text).decode("latin-1").partition(":")
                client.add_credentials(place, (pair[0], pair[2]))
        try:
            return await read()
        except UpstreamError as shared:
            error = copy(shared)  # because other requests may share it
            if error.status == 401:
                # Clients of `serve` may send credentials of other users.
                place = self._source.url
                if error.reply and server_of(error.reply.url) != server_of(place):
                    place = error.reply.url  # after a redirect
                if self._source.access.local and client.may_prompt(place):
                    self._asked[request.url.path] = place
                elif self._source.access.local and error.reply:
                    error.reply = replace(error.reply, status=403)  # pip skips both
                elif scheme:
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
    return name.isascii() and name.replace("-", "").isalnum()


def _respond_renamed(
    shown_releases: Iterable[ShownRelease], label: str, name: str
) -> Response | None:
    """Respond to a request for a variant wheel whose name this machine's page lacks.

    The URL contains the wheel's label and the rank of the label, which depends on the
    machine. A lock file of another machine may therefore have a different URL.

    :param shown_releases: the shown releases of the project.
    :param name: the name in the URL, which the page does not have.
    :returns: a redirect to the wheel's name on this machine, or an error that names the
        build for this machine; ``None`` for an unknown file.
    """
    wheel = name.removesuffix(METADATA)
    try:
        version = Version(wheel.split("-")[1])
    except (IndexError, ValueError):
        return None
    shown = next((c for c in shown_releases if Version(c.version) == version), None)
    if shown is None or any(offer.name == wheel for offer in shown.offers):
        return None
    tags = wheel.split("-")[-3:]
    for offer in shown.offers:
        if offer.label == label and offer.name.split("-")[-3:] == tags:
            # The file has a different rank on this machine.
            location = quote(name.replace(wheel, offer.name))
            return RedirectResponse(location, status_code=302, headers=HEADERS)
    if label not in shown.available:
        return None
    resolution = shown.resolution
    reasons = resolution.rejected.get(label, ()) if resolution else ()
    why = "is not shown to this machine"
    if reasons:
        why = f"does not fit this machine: {reasons[0].sentence}"
    gets = "the non-variant wheel" if shown.plain else "no build of this release"
    if shown.labels:
        gets = f"variant {shown.labels[0]}"
    release = f"{shown.project} {shown.version}"
    text = f"{name}: variant {label} of {release} {why}; this machine gets {gets}\n"
    return PlainTextResponse(text, 404, headers=HEADERS)
