"""The application of the local index: pages and files of several repositories.

This is not an open proxy: a file is looked up by project and name among the files of
an upstream page, never by URL. A file that an installer can download itself keeps its
URL or gets a redirect; other files are streamed, and little of them is in memory at
any time.
"""

from __future__ import annotations

import base64
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from urllib.parse import quote

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version
from simple_repository import content_negotiation, errors, model
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route, Router

from nvidia_variant_provider.errors import InputError

from ..http.urls import UpstreamError, redacted
from ..selection.choice import Choice, ShownPage
from ..selection.decisions import JudgedPage
from ..selection.evaluating import EvaluatedWheel
from ..selection.reader import stream_pieces
from ..selection.renaming import find_label, project_of
from ..selection.wheel_files import may_be_build
from .responses import (
    FILE_HEADERS,
    HEADERS,
    OCTETS,
    Failures,
    HostCheck,
    LocalFileResponse,
    TokenCheck,
    UpstreamResponse,
    find_format,
    find_range,
    respond_forbidden,
    respond_not_acceptable,
    respond_not_found,
    respond_with,
)
from .source import NO_LABEL, Source, link

__all__ = ["OnPage", "OnPick", "make_app"]

logger = logging.getLogger(__name__)

_PASSED_ON = ("content-length", "content-range", "last-modified")

OnPick = Callable[[Choice, "str | None"], None]
"""Called with the label that an installer fetches of a release, or ``None``."""

OnPage = Callable[[JudgedPage], None]
"""Called with what is known of a page that an installer has asked for."""


def make_app(
    sources: Sequence[Source],
    *,
    prefix: str = "",
    hosts: Sequence[str] = ("*",),
    token: str | None = None,
    on_pick: OnPick | None = None,
    on_page: OnPage | None = None,
    warn: Callable[[str], None] | None = None,
) -> Starlette:
    """Make the ASGI application that serves ``sources``.

    :param prefix: what all paths start with, such as ``/secret``.
    :param hosts: the names by which the server may be called.
    :param token: what the ``User-Agent`` of each request must have, if anything.
    :param warn: called with a sentence when an upstream fails.
    """
    failures = Failures(warn or (lambda _: None))
    mounts = [
        # No redirects for slashes: Starlette makes them from the Host header.
        Mount(
            prefix + source.path,
            app=Router(
                _Handlers(source, on_pick, on_page, failures, prefix).routes(),
                redirect_slashes=False,
            ),
        )
        # The empty path comes last: it would take the requests for all other paths.
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
            errors.PackageNotFoundError: respond_not_found,
            errors.ResourceUnavailable: respond_not_found,
            errors.InvalidPackageError: respond_forbidden,
            errors.UnsupportedSerialization: respond_not_acceptable,
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
        on_pick: OnPick | None,
        on_page: OnPage | None,
        failures: Failures,
        prefix: str,
    ) -> None:
        self._source = source
        self._root = f"{prefix}{source.path}/"
        self._on_pick = on_pick
        self._on_page = on_page
        self._failures = failures
        self._asked_for_credentials = False

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
        return [*pages, Route("/f/{project}/{label}/{digest}/{name}", self.file)]

    async def projects(self, request: Request) -> Response:
        """Send the list of projects."""
        form = find_format(request)
        page = await self._source.repository.get_project_list()
        return respond_with(page, form)

    async def add_slash(self, request: Request) -> Response:
        """Redirect to the URL of a page with its slash."""
        name = canonicalize_name(request.path_params["project"])
        return RedirectResponse(f"{quote(name)}/", status_code=301, headers=HEADERS)

    async def project(self, request: Request) -> Response:
        """Send the page of a project."""
        form = find_format(request)
        name = request.path_params["project"]
        normal = canonicalize_name(name, validate=False)
        if normal != name:
            location = f"../{quote(normal)}/"
            return RedirectResponse(location, status_code=301, headers=HEADERS)
        if not _is_name(name):
            raise errors.PackageNotFoundError(ascii(name))
        self._take_credentials(request)
        try:
            page, shown = await self._source.repository.show(name)
        except UpstreamError as error:
            if error.status == 401 and self._source.access.asks:
                self._asked_for_credentials = True
                return PlainTextResponse(f"{error}\n", 401, headers=HEADERS)
            raise
        if self._on_page is not None:
            self._on_page(shown.judged)
        self._report_plain(shown)
        # Only pip downloads a whole wheel to look at its dependencies.
        reads_parts = not request.headers.get("user-agent", "").startswith("pip/")
        files = tuple(
            link(
                self._source,
                file,
                name,
                self._root,
                shown="../../",
                reads_parts=reads_parts,
            )
            for file in page.files
        )
        page = replace(page, files=files)
        logger.info("page of %s: %d files", name, len(files))
        return respond_with(page, form)

    async def links(self, _: Request) -> Response:
        """Send all files on one page, as pip's ``--find-links`` expects them."""
        if self._source.links is None:
            raise errors.PackageNotFoundError("links")
        everything = await self._source.links.read_all()
        projects = {
            project_of(file.filename)
            for file in everything.files
            if find_label(file.filename) is not None or may_be_build(file.filename)
        }
        files = {
            file.filename: self._link_up(file, project_of(file.filename))
            for file in everything.files
            if project_of(file.filename) not in projects
        }
        for name in sorted(projects):
            page = await self._source.repository.get_project_page(name)
            for file in page.files:
                files[file.filename] = self._link_up(file, name)
        form = content_negotiation.Format.HTML_LEGACY
        whole = replace(everything, files=tuple(files.values()))
        return respond_with(whole, form)

    def _link_up(self, file: model.File, project: str) -> model.File:
        return link(self._source, file, project, self._root, shown="../")

    async def file(self, request: Request) -> Response:
        """Send a file, or its METADATA."""
        project = request.path_params["project"]
        name = request.path_params["name"]
        if not _is_name(canonicalize_name(project)):
            raise errors.PackageNotFoundError(ascii(project))
        try:
            resource = await self._source.repository.get_resource(project, name)
        except errors.ResourceUnavailable:
            label = request.path_params["label"].lstrip(NO_LABEL)
            # The URL of a variant wheel in the lock file of another machine has its
            # label, and the rank of the label on that machine.
            choices = self._source.repository.last(project).choices.values()
            renamed = _find_renamed(choices, label, name)
            if renamed is not None:
                # The file has another rank in the selection of this machine.
                location = quote(renamed)
                return RedirectResponse(location, status_code=302, headers=HEADERS)
            why = _explain_missing(choices, label, name)
            if why is None:
                raise
            return PlainTextResponse(f"{why}\n", 404, headers=HEADERS)
        self._report_pick(project, name.removesuffix(".metadata"))
        if isinstance(resource, model.LocalResource):
            path = resource.path
            if not (os.path.isfile(path) and self._source.may_send(path)):
                raise errors.ResourceUnavailable(name)
            logger.info("%s: sent from %s", name, path)
            return LocalFileResponse(path)
        if isinstance(resource, model.TextResource):
            return PlainTextResponse(resource.text, headers=HEADERS)
        if isinstance(resource, EvaluatedWheel):
            if name in self._source.saved:
                return LocalFileResponse(self._source.saved[name])
            logger.info("%s: rewritten on the way", name)
            return await self._rewrite(resource, request)
        if not isinstance(resource, model.HttpResource):
            raise errors.ResourceUnavailable(name)
        if self._source.is_reachable(resource.url):
            logger.info("%s: redirected to %s", name, redacted(resource.url))
            # 302, not 301: the same name may mean another file on the next run.
            return RedirectResponse(resource.url, status_code=302, headers=HEADERS)
        logger.info("%s: streamed from %s", name, redacted(resource.url))
        return await self._stream(resource.url, request)

    async def _stream(self, url: str, request: Request) -> Response:
        # Ask for raw bytes: a Content-Encoding would change the length.
        wanted = {"Accept-Encoding": "identity"}
        if (part := find_range(request.headers)) is not None:
            wanted["Range"] = part
        stack = AsyncExitStack()
        response = await stack.enter_async_context(
            self._source.client.stream(url, wanted)
        )
        headers = {
            key: response.headers[key] for key in _PASSED_ON if key in response.headers
        }
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

    async def _rewrite(self, wheel: EvaluatedWheel, request: Request) -> Response:
        """Send a wheel with other METADATA, as the original arrives."""
        from .rewritten import rewrite_pieces

        headers = {
            "Content-Length": str(wheel.plan.size),
            "Accept-Ranges": "none",
            "Content-Type": OCTETS,
            **FILE_HEADERS,
        }
        if request.method == "HEAD":
            return Response(headers=headers)
        original = wheel.original
        place = getattr(original, "url", None) or getattr(original, "path", "")
        if isinstance(original, model.LocalResource) and not self._source.may_send(
            original.path
        ):
            raise errors.ResourceUnavailable(str(place))
        stack = AsyncExitStack()
        pieces = await stream_pieces(original, self._source.client, stack)
        return UpstreamResponse(
            rewrite_pieces(pieces, wheel.plan, wheel.sha256, self._source.rewritten),
            stack,
            lambda error: self._tell_break(redacted(str(place)), error),
            headers=headers,
        )

    def _tell_break(self, place: str, error: Exception) -> None:
        reason = redacted(str(error)) or type(error).__name__
        self._failures.warn(f"{place}: broke off: {reason}")

    def _take_credentials(self, request: Request) -> None:
        """Use the user and password that pip has asked its user for.

        pip asks after a 401 of the upstream that was passed on to it, and sends the
        credentials with its next request. Ignore credentials that it sends without
        that: those of a netrc file with a default entry are for another server.
        """
        scheme, _, text = request.headers.get("authorization", "").partition(" ")
        if not self._asked_for_credentials or scheme.lower() != "basic":
            return
        try:
            user, _, password = base64.b64decode(text).decode().partition(":")
        except ValueError:
            return
        self._source.client.add_credentials(self._source.url, (user, password))

    def _report_pick(self, project: str, name: str) -> None:
        found = self._source.repository.last(project).find_release(name)
        if self._on_pick is not None and found is not None:
            self._on_pick(*found)

    def _report_plain(self, shown: ShownPage) -> None:
        """Report the non-variant wheel of the newest release, if no variant fits.

        Where that wheel has its own URL, no request for it arrives here.
        """
        choices = shown.choices.values()
        if self._on_pick is None or not choices or self._source.access.local:
            return
        newest = max(choices, key=lambda choice: Version(choice.version))
        if newest.plain and not newest.offers:
            self._on_pick(newest, None)


def _is_name(name: str) -> bool:
    return name.isascii() and name.replace("-", "").isalnum()


def _find_renamed(choices: Iterable[Choice], label: str, name: str) -> str | None:
    """Return the name by which this machine gets a variant wheel.

    :param choices: what the page of the project shows.
    :param label: the label in the URL.
    :param name: the name in the URL, which the page does not have.
    """
    if name.endswith(".metadata"):
        renamed = _find_renamed(choices, label, name.removesuffix(".metadata"))
        return f"{renamed}.metadata" if renamed is not None else None
    for choice in _of_version(choices, name):
        for offer in choice.offers:
            if offer.label == label and _tags(offer.name) == _tags(name):
                return offer.name if offer.name != name else None
    return None


def _explain_missing(choices: Iterable[Choice], label: str, name: str) -> str | None:
    """Say which build a file is that this machine does not get, and which it gets.

    :returns: ``None`` for a file of which nothing is known.
    """
    wheel = name.removesuffix(".metadata")
    for choice in _of_version(choices, name):
        shown = any(offer.name == wheel for offer in choice.offers)
        if shown or label not in choice.available:
            continue
        release = f"{choice.project} {choice.version}"
        start = f"{name}: variant {label} of {release} "
        resolution = choice.resolution
        reasons = resolution.rejected.get(label, ()) if resolution else ()
        why = (
            f"does not fit this machine: {reasons[0].sentence}"
            if reasons
            else ("is not shown to this machine")
        )
        return f"{start}{why}; this machine gets {_best(choice)}"
    return None


def _best(choice: Choice) -> str:
    if choice.labels:
        return f"variant {choice.labels[0]}"
    return "the non-variant wheel" if choice.plain else "no build of this release"


def _of_version(choices: Iterable[Choice], name: str) -> list[Choice]:
    try:
        version = Version(name.split("-")[1])
    except (IndexError, InvalidVersion):
        return []
    return [choice for choice in choices if Version(choice.version) == version]


def _tags(name: str) -> list[str]:
    return name.split("-")[-3:]
