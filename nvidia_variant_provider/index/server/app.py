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
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
from packaging.utils import canonicalize_name
from simple_repository import content_negotiation, errors, model, serializer
from simple_repository.components.core import SimpleRepository
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route, Router

from ...errors import InputError
from ..http.byte_ranges import redacted
from ..http.client import Client, UpstreamError
from ..selection.renaming import find_label, project_of
from ..selection.repository import LABEL_KEY, Choice, VariantRepository
from .responses import (
    HEADERS,
    ByName,
    Failures,
    Local,
    Stream,
    answer_missing,
    answer_refusal,
    answer_unacceptable,
)
from .upstream import LinksUpstream, local_path

__all__ = ["Source", "make_app"]

_NO_LABEL = "-"
"""Stands in the path of files that are not shown as a variant."""

_PASSED_ON = ("content-length", "content-range", "content-type", "last-modified")

_KINDS = (".whl", ".metadata", ".json", ".zip", ".egg", ".gz", ".bz2", ".xz", ".tgz")
"""What indexes have of files, by the ends of their names."""

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
    :param local: they are programs of this user: they can open files of this machine.
    :param asks: where credentials are missing, they ask their user for them.
    :param url: of the upstream, without credentials.
    """

    path: str
    repository: SimpleRepository
    client: Client
    links: LinksUpstream | None = None
    direct: bool = True
    local: bool = False
    asks: bool = False
    url: str = ""

    def is_open(self, url: str) -> bool:
        """Can an installer fetch ``url`` itself, with nothing that only we know."""
        if url.startswith("file:"):
            return self.local
        if not self.direct or not url.startswith(("http://", "https://")):
            return False
        # Of files over plain HTTP installers think as they do without this server.
        return not self.client.has_credentials(url)


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
    failures = Failures(warn or (lambda _: None))
    mounts = [
        # No redirect to what a client says the name of this server is.
        Mount(
            prefix + source.path,
            app=Router(
                _Pages(source, on_pick, failures).routes(), redirect_slashes=False
            ),
        )
        # The empty path last: it would take the requests for all others.
        for source in sorted(sources, key=lambda source: not source.path)
    ]
    app = Starlette(
        routes=mounts,
        middleware=[Middleware(ByName, hosts=frozenset(hosts))],
        exception_handlers={
            UpstreamError: failures.answer,
            InputError: failures.answer,
            errors.PackageNotFoundError: answer_missing,
            errors.ResourceUnavailable: answer_missing,
            errors.InvalidPackageError: answer_refusal,
            errors.UnsupportedSerialization: answer_unacceptable,
            Exception: failures.answer_defect,
        },
    )
    app.router.redirect_slashes = False
    return app


class _Pages:
    """What is below the path of one source."""

    def __init__(
        self, source: Source, on_pick: OnPick | None, failures: Failures
    ) -> None:
        self._source = source
        self._on_pick = on_pick
        self._failures = failures
        self._asked = False

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
        return RedirectResponse(f"{quote(name)}/", status_code=301, headers=HEADERS)

    async def project(self, request: Request) -> Response:
        """The page of a project."""
        form = _format(request)
        name = request.path_params["project"]
        normal = canonicalize_name(name, validate=False)
        if normal != name:
            location = f"../{quote(normal)}/"
            return RedirectResponse(location, status_code=301, headers=HEADERS)
        if not _is_name(name):
            raise errors.PackageNotFoundError(ascii(name))
        self._take_credentials(request)
        try:
            page = await self._source.repository.get_project_page(name)
        except UpstreamError as error:
            if error.status == 401 and self._source.asks:
                self._asked = True
                return PlainTextResponse(f"{error}\n", 401, headers=HEADERS)
            raise
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
            project_of(file.filename)
            for file in everything.files
            if find_label(file.filename) is not None
        }
        files = {
            file.filename: self._linked(file, project_of(file.filename), "../")
            for file in everything.files
            if project_of(file.filename) not in projects
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
        self._picked(project, name.removesuffix(".metadata"))
        if isinstance(resource, model.LocalResource):
            if not (os.path.isfile(resource.path) and self._may_send(resource.path)):
                raise errors.ResourceUnavailable(name)
            return Local(resource.path, media_type="application/octet-stream")
        if isinstance(resource, model.TextResource):
            return PlainTextResponse(resource.text, headers=HEADERS)
        if not isinstance(resource, model.HttpResource):
            raise errors.ResourceUnavailable(name)
        if self._source.is_open(resource.url):
            # Not 301: another time the name may stand for another file.
            return RedirectResponse(resource.url, status_code=302, headers=HEADERS)
        return await self._stream(resource.url, request)

    def _may_send(self, path: Path) -> bool:
        """Is a file of this machine one of an index, and not just named by a page.

        A mirror may come from elsewhere. It often has pages and files side by side.
        """
        if self._source.local:
            return True
        root = local_path(self._source.url).resolve().parent
        return path.resolve().is_relative_to(root) and path.name.endswith(_KINDS)

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
        chunks = answer.aiter_raw()

        def broken(error: httpx.HTTPError) -> None:
            reason = str(error) or type(error).__name__
            self._failures.tell(f"{redacted(url)}: broke off: {reason}")

        return Stream(
            chunks, stack, broken, status_code=answer.status_code, headers=found
        )

    def _take_credentials(self, request: Request) -> None:
        """Use the user and password that pip has asked its user for.

        It asks when the upstream wants some that nobody knows: that answer is passed
        on to pip, and pip's next request has them. Any that come unasked, as from a
        netrc file with a default, are for another server.
        """
        scheme, _, text = request.headers.get("authorization", "").partition(" ")
        if not self._asked or scheme.lower() != "basic":
            return
        try:
            user, _, password = base64.b64decode(text).decode().partition(":")
        except ValueError:
            return
        self._source.client.add_credentials(self._source.url, (user, password))

    def _picked(self, project: str, name: str) -> None:
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
        # A segment of dots would be another folder.
        named = f"{_NO_LABEL}{label}" if label and not label.strip(".") else label
        parts = (project, named or _NO_LABEL, digest[:8], file.filename)
        return replace(file, url=f"{root}f/{'/'.join(map(_segment, parts))}")


def _segment(text: str) -> str:
    return quote(text, safe="")


def _is_name(name: str) -> bool:
    return name.isascii() and name.replace("-", "").isalnum()


def _format(request: Request) -> content_negotiation.Format:
    accept = request.headers.get("accept", "")
    try:
        return content_negotiation.select_response_format(accept)
    except ValueError:
        raise errors.UnsupportedSerialization(ascii(accept[:100])) from None


def _page(text: str, form: content_negotiation.Format) -> Response:
    return Response(text, media_type=form.value, headers=HEADERS)


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
