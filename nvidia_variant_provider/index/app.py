"""The loopback index: pages and files of several repositories over HTTP.

No open proxy: a file is looked up by project and name among those that a page of its
upstream names, never by URL. Files that an installer can fetch from where they are
keep their URL, or are answered with a redirect; the others go through here as a
stream, of which little is in memory at any time.
"""

from __future__ import annotations

import base64
import hashlib
import html
import os
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import httpx
from packaging.utils import canonicalize_name
from simple_repository import content_negotiation, errors, model, serializer
from simple_repository.components.core import SimpleRepository
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import (
    FileResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Mount, Route, Router

from ..errors import InputError
from .client import Client, UpstreamError
from .offers import find_label
from .repository import LABEL_KEY, Choice, VariantRepository
from .upstream import LinksUpstream

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ["Source", "make_app"]

_NO_LABEL = "-"
"""Stands in the path of files that are not shown as a variant."""

_PORT = re.compile(r":\d*\Z")

_CHUNK = 1024 * 1024

# A page depends on the machine, and so does what a name on it means.
_HEADERS = {"Cache-Control": "no-store"}

_PASSED_ON = ("content-length", "content-range", "content-type", "last-modified")

OnPick = Callable[[Choice, "str | None"], None]
"""Is told which label an installer fetches of a release; ``None``: non-variant."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """One upstream as the server shows it.

    :param path: where, as ``/0``; may be empty.
    :param repository: with the variants selected, or as it is.
    :param links: it is a page of links (pip's ``--find-links``), not an index.
    :param client: reads files of it; says which of them installers may read.
    :param direct: installers can fetch files without this server.
    :param local: they are programs of this user: they can open files of this machine,
        and pass on what they ask the user for.
    :param url: of the upstream, without credentials.
    """

    path: str
    repository: SimpleRepository
    client: Client
    links: LinksUpstream | None = None
    direct: bool = True
    local: bool = False
    url: str = ""

    def is_open(self, url: str) -> bool:
        """Can an installer fetch ``url`` itself, with nothing that only we know."""
        if url.startswith("file:"):
            return self.local
        if not self.direct or not url.startswith(("http://", "https://")):
            return False
        return self.client.is_allowed(url) and not self.client.has_credentials(url)


def make_app(
    sources: Sequence[Source],
    *,
    prefix: str = "",
    hosts: Sequence[str] = ("*",),
    on_pick: OnPick | None = None,
    warn: Callable[[str], None] | None = None,
) -> Starlette:
    """The ASGI application that serves ``sources``.

    :param prefix: what all paths start with, as ``/secret``.
    :param hosts: the names it may be called by.
    :param warn: is told of upstreams that do not answer.
    """
    mounts = [
        # No redirect to what a client says the name of this server is.
        Mount(
            prefix + source.path,
            app=Router(_Pages(source, on_pick).routes(), redirect_slashes=False),
        )
        # The empty path last: it would take the requests for all others.
        for source in sorted(sources, key=lambda source: not source.path)
    ]
    failures = _Failures(warn or (lambda _: None))
    app = Starlette(
        routes=mounts,
        middleware=[Middleware(_ByName, hosts=frozenset(hosts))],
        exception_handlers={
            UpstreamError: failures.answer,
            InputError: failures.answer,
            errors.PackageNotFoundError: _answer_missing,
            errors.ResourceUnavailable: _answer_missing,
            errors.InvalidPackageError: _answer_refusal,
            errors.UnsupportedSerialization: _answer_unacceptable,
        },
    )
    app.router.redirect_slashes = False
    # Only pip asks its user for what `_take_credentials` then passes on.
    app.state.asks = any(source.local for source in sources)
    return app


class _ByName:
    """Refuses requests to another name, as that of a site that a browser is on.

    Starlette's own counts capitals, or no address in brackets, in some versions.
    """

    def __init__(self, app: ASGIApp, hosts: frozenset[str]) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope["type"] == "http" and "*" not in self._hosts:
            host = Headers(scope=scope).get("host", "").lower()
            if _PORT.sub("", host) not in self._hosts:
                app = PlainTextResponse("Invalid host header", status_code=400)
        await app(scope, receive, send)


class _Pages:
    """What is below the path of one source."""

    def __init__(self, source: Source, on_pick: OnPick | None) -> None:
        self._source = source
        self._on_pick = on_pick

    def routes(self) -> list[Route]:
        """From most to least specific."""
        if self._source.links is not None:
            pages = [Route("/links/", self.links)]
        else:
            pages = [
                Route("/simple/", self.projects),
                Route("/simple/{project}/", self.project),
                Route("/simple/{project}", self.moved),
            ]
        return [*pages, Route("/f/{project}/{label}/{digest}/{name}", self.file)]

    async def projects(self, request: Request) -> Response:
        """The list of projects."""
        form = _format(request)
        page = await self._source.repository.get_project_list()
        return _page(serializer.serialize(page, form), form)

    async def moved(self, request: Request) -> Response:
        """A page without its slash."""
        name = canonicalize_name(request.path_params["project"])
        return RedirectResponse(f"{quote(name)}/", status_code=301, headers=_HEADERS)

    async def project(self, request: Request) -> Response:
        """The page of a project."""
        form = _format(request)
        name = request.path_params["project"]
        normal = canonicalize_name(name, validate=False)
        if normal != name:
            location = f"../{quote(normal)}/"
            return RedirectResponse(location, status_code=301, headers=_HEADERS)
        if not _is_name(name):
            raise errors.PackageNotFoundError(ascii(name))
        self._take_credentials(request)
        page = await self._source.repository.get_project_page(name)
        files = tuple(self._linked(file, name, "../../") for file in page.files)
        page = replace(page, files=files)
        if form is not content_negotiation.Format.JSON_V1:
            page = _escaped(page)
        return _page(serializer.serialize(page, form), form)

    async def links(self, _: Request) -> Response:
        """All files, as pip's ``--find-links`` wants them."""
        if self._source.links is None:
            raise errors.PackageNotFoundError("links")
        everything = await self._source.links.read_all()
        projects = {
            canonicalize_name(file.filename.partition("-")[0])
            for file in everything.files
            if find_label(file.filename) is not None
        }
        files = {
            file.filename: self._linked(file, _project_of(file.filename), "../")
            for file in everything.files
            if _project_of(file.filename) not in projects
        }
        for name in sorted(projects):
            page = await self._source.repository.get_project_page(name)
            for file in page.files:
                files[file.filename] = self._linked(file, name, "../")
        form = content_negotiation.Format.HTML_LEGACY
        whole = replace(everything, files=tuple(files.values()))
        return _page(serializer.serialize(_escaped(whole), form), form)

    async def file(self, request: Request) -> Response:
        """A file, or its METADATA."""
        project = request.path_params["project"]
        name = request.path_params["name"]
        if not _is_name(canonicalize_name(project)):
            raise errors.PackageNotFoundError(ascii(project))
        resource = await self._source.repository.get_resource(project, name)
        await self._picked(project, name.removesuffix(".metadata"))
        if isinstance(resource, model.LocalResource):
            if not os.path.isfile(resource.path):
                raise errors.ResourceUnavailable(name)
            return _Local(resource.path, media_type="application/octet-stream")
        if isinstance(resource, model.TextResource):
            return PlainTextResponse(resource.text, headers=_HEADERS)
        if not isinstance(resource, model.HttpResource):
            raise errors.ResourceUnavailable(name)
        if self._source.is_open(resource.url):
            # Not 301: another time the name may stand for another file.
            return RedirectResponse(resource.url, status_code=302, headers=_HEADERS)
        return await self._stream(resource.url, request)

    async def _stream(self, url: str, request: Request) -> Response:
        # As it is: what is compressed on the way has another length.
        wanted = {"Accept-Encoding": "identity"}
        if "range" in request.headers:
            wanted["Range"] = request.headers["range"]
        stack = AsyncExitStack()
        answer = await stack.enter_async_context(
            self._source.client.stream(url, wanted)
        )
        found = {
            key: answer.headers[key] for key in _PASSED_ON if key in answer.headers
        }
        if request.method == "HEAD":
            await stack.aclose()
            return Response(status_code=answer.status_code, headers=found)
        chunks = answer.aiter_raw(_CHUNK)
        return _Stream(stack, chunks, status_code=answer.status_code, headers=found)

    def _take_credentials(self, request: Request) -> None:
        """Use the user and password that pip has asked its user for.

        It asks when the upstream wants some that nobody knows: that answer is passed
        on to pip, and pip's next request has them.
        """
        scheme, _, text = request.headers.get("authorization", "").partition(" ")
        if not self._source.local or scheme.lower() != "basic":
            return
        try:
            user, _, password = base64.b64decode(text).decode().partition(":")
        except ValueError:
            return
        self._source.client.add_credentials(self._source.url, (user, password))

    async def _picked(self, project: str, name: str) -> None:
        repository = self._source.repository
        if self._on_pick is None or not isinstance(repository, VariantRepository):
            return
        for choice in repository.choices(project).values():
            for offer in choice.offers:
                if offer.name == name:
                    self._on_pick(choice, offer.label)
            if name in choice.plain:
                self._on_pick(choice, None)

    def _linked(self, file: model.File, project: str, root: str) -> model.File:
        """``file`` with the URL at which an installer gets it."""
        label: Any = file.private_metadata.get(LABEL_KEY, _NO_LABEL)
        if label == _NO_LABEL and self._source.is_open(file.url):
            return file
        digest = (
            file.hashes.get("sha256") or hashlib.sha256(file.url.encode()).hexdigest()
        )
        parts = (project, label or _NO_LABEL, digest[:8], file.filename)
        return replace(file, url=f"{root}f/{'/'.join(map(_segment, parts))}")


class _Local(FileResponse):
    chunk_size = _CHUNK


class _Stream(StreamingResponse):
    """An answer of an upstream; where that breaks off, this one does."""

    def __init__(
        self, stack: AsyncExitStack, chunks: AsyncIterator[bytes], **more: Any
    ) -> None:
        super().__init__(chunks, **more)
        self._stack = stack

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._stack.aclose()

    async def stream_response(self, send: Send) -> None:
        # Its beginning is sent: all that is left is to close the connection, which
        # the server does with an answer that is not complete.
        with suppress(httpx.HTTPError):
            await super().stream_response(send)


def _segment(text: str) -> str:
    return quote(text, safe="")


def _is_name(name: str) -> bool:
    return name.isascii() and name.replace("-", "").isalnum()


def _project_of(file_name: str) -> str:
    return canonicalize_name(file_name.partition("-")[0])


def _format(request: Request) -> content_negotiation.Format:
    accept = request.headers.get("accept", "")
    try:
        return content_negotiation.select_response_format(accept)
    except ValueError:
        raise errors.UnsupportedSerialization(ascii(accept[:100])) from None


def _page(text: str, form: content_negotiation.Format) -> Response:
    return Response(text, media_type=form.value, headers=_HEADERS)


def _escaped(page: model.ProjectDetail) -> model.ProjectDetail:
    """Text that can stand in HTML; the library puts it there as it is."""
    return replace(
        page,
        name=html.escape(page.name),
        files=tuple(
            replace(
                file,
                filename=html.escape(file.filename),
                url=html.escape(file.url),
                yanked=html.escape(file.yanked)
                if isinstance(file.yanked, str)
                else file.yanked,
                hashes=_escaped_pairs(file.hashes),
                dist_info_metadata=_escaped_pairs(file.dist_info_metadata)
                if isinstance(file.dist_info_metadata, dict)
                else file.dist_info_metadata,
            )
            for file in page.files
        ),
    )


def _escaped_pairs(pairs: dict[str, Any]) -> dict[str, str]:
    return {html.escape(key): html.escape(str(text)) for key, text in pairs.items()}


class _Failures:
    """What an upstream did wrong; installers show little of it, or nothing."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._last: str | None = None

    async def answer(self, request: Request, error: Exception) -> Response:
        """The status of the upstream, where that is of use."""
        status = error.status if isinstance(error, UpstreamError) else 502
        # Many indexes say 403 for a project that they do not have. Installers try
        # again: once is enough.
        if status != 403 and str(error) != self._last:
            self._last = str(error)
            self._warn(str(error))
        if status == 407 or (status == 401 and not request.app.state.asks):
            # Installers would ask their users for the password of this server.
            status = 403
        elif not 400 <= status < 600:
            status = 502
        return PlainTextResponse(f"{error}\n", status_code=status, headers=_HEADERS)


async def _answer_missing(_: Request, error: Exception) -> Response:
    return PlainTextResponse(f"{error}\n", status_code=404, headers=_HEADERS)


async def _answer_refusal(_: Request, error: Exception) -> Response:
    return PlainTextResponse(f"{error}\n", status_code=403, headers=_HEADERS)


async def _answer_unacceptable(_: Request, error: Exception) -> Response:
    return PlainTextResponse(f"{error}\n", status_code=406, headers=_HEADERS)
