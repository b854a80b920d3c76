"""The indexes behind the local index: on servers, in directories, or as pages of links.

Each index is a `SimpleRepository`, as are the components of simple-repository itself.
The `HttpRepository` of simple-repository 0.11.1 is not suitable: it reads the page for
each file, has no limits, and resolves URLs against the page before redirects.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import compress, islice
from operator import itemgetter
from pathlib import Path
from urllib.parse import urlsplit

from packaging.utils import canonicalize_name
from simple_repository import errors, model
from simple_repository.components.core import SimpleRepository

from nvidia_variant_provider.errors import redacted
from nvidia_variant_provider.strict_json import LARGE_BYTES

from ..http.client import Client
from ..http.connecting import Nearness
from ..http.kept_keys import LINKS, may_list
from ..http.pages import (
    ACCEPT,
    estimate_files,
    parse_page,
    parse_projects,
    with_absolute_links,
)
from ..http.replies import TOO_MANY, OddReply, has_unread_body, without_frames
from ..http.threads import Share, Turn, in_steps
from ..http.urls import (
    METADATA,
    REFUSED,
    CompleteResponse,
    TooLargeError,
    UpstreamError,
    is_text,
    path_of_file_url,
    server_of,
    with_suffix,
)
from ..selection.kept import FOREVER, PAGES, Aging, is_named, weigh
from ..selection.pieces import PAGE, IndexFile, IndexUrl, read_local
from .kept_pages import LIMITING, KeptPage, KeptPages, mark, patiently

logger = logging.getLogger(__name__)

_FORBIDDING = "pytorch.org"
"""The domain whose 403 means a missing project to uv, which then uses the next index
(``IndexStatusCodeStrategy`` in its sources). This server hides the domain from uv."""

_MOST_SERVERS = 64  # the most servers that a page may name; real pages name up to 3

_LARGE = 256 * 1024  # the size in bytes from which pages are parsed one at a time

_LARGEST_UNREAD = 1024 * 1024
"""The size in bytes of the largest unreadable page whose names are looked at."""


class Upstream(SimpleRepository):
    """The base class of upstreams, which caches the files of the latest pages."""

    takes_parts = False
    """Whether to read truncated pages, which `mark` marks."""

    is_of_pip = False
    """Whether pip gets pages of links in JSON, and local pages that are not judged."""

    is_taken = False
    """Whether pip itself has read a page, and can read the files with credentials."""

    kept: KeptPages | None = None
    """The cache of pages, if any."""

    identifies: str | None = None
    """The URL of the only index that gets credentials for files; ``None`` for all."""

    def __init__(self) -> None:
        self._has_answered = False
        # The files of pages, for requests right after a page, each with its weight.
        self._pages: Aging[str, tuple[int, dict[str, list[model.File]]]]
        self._pages = Aging(PAGES, FOREVER, weigh=itemgetter(0))
        # The pages that pip has read.
        self._taken = Aging[str, model.ProjectDetail](PAGES, FOREVER, weigh=weigh)
        # The pages that pip has not read or, with a reason, that only pip can read.
        self._missed: dict[str, UpstreamError | None] = {}

    async def get_project_page(
        self,
        project_name: str,
        *,
        request_context: model.RequestContext | None = None,  # noqa: ARG002
    ) -> model.ProjectDetail:
        """Return the page of a project, with absolute URLs.

        :raises PackageNotFoundError: the index does not have the project.
        :raises UpstreamError: the index sends an invalid response.
        """
        name = canonicalize_name(project_name)
        self._check_missed(name)
        page = self._taken.get(name) or await self._read_page(name)
        files: dict[str, list[model.File]] = {}
        for file in page.files:
            files.setdefault(file.filename, []).append(file)
        self._pages.put(name, (weigh(page), files))
        return page

    async def get_resource(
        self,
        project_name: str,
        resource_name: str,
        *,
        request_context: model.RequestContext | None = None,
    ) -> model.Resource:
        """Return the location of a file of the page, or of its METADATA.

        Of files with the same name, it is the last one that the context names
        (`is_named`), because pip prefers the last one.

        :raises ResourceUnavailable: the page does not list this file.
        """
        name = canonicalize_name(project_name)
        if self._pages.get(name) is None:
            await self.get_project_page(name)
        _, files = self._pages.get(name) or (0, {})
        suffix = ""
        same = files.get(resource_name, [])
        if not same and resource_name.endswith(METADATA):
            suffix = METADATA
            wheels = files.get(resource_name.removesuffix(suffix), [])
            same = [wheel for wheel in wheels if wheel.dist_info_metadata]
        file = next((x for x in reversed(same) if is_named(x, request_context)), None)
        if file is None:
            raise errors.ResourceUnavailable(resource_name)
        if file.url.startswith("file:"):
            return self._local(local_path(file.url + suffix))
        return IndexUrl(url=with_suffix(file.url, suffix), index=self.identifies)

    def _local(self, path: Path) -> model.LocalResource:
        return model.LocalResource(path, to_cache=False)

    async def get_project_list(
        self,
        *,
        request_context: model.RequestContext | None = None,  # noqa: ARG002
    ) -> model.ProjectList:
        """Return all projects of the index."""
        found = map(model.ProjectListElement, await self._read_names())
        projects = await asyncio.to_thread(frozenset, found)
        return model.ProjectList(meta=model.Meta("1.0"), projects=projects)

    async def _fetch(
        self, client: Client, url: str, accept: str, project: str
    ) -> model.ProjectDetail:
        """Read a page from a server. An error contains the reply, if there was one."""

        async def ask(
            last: KeptPage | None = None, answered: Callable[[], None] = lambda: None
        ) -> tuple[CompleteResponse, model.ProjectDetail]:
            # Several large pages at once would take gigabytes.
            async with Turn(client.large, answered) as turn:
                return await self._ask(
                    client, url, accept, project, answered, turn=turn, last=last
                )

        if self.kept is not None:
            key = url, accept, project, self.takes_parts
            return await self.kept.read(url, lambda: (key, client.logins.identity), ask)
        return (await ask())[1]

    async def _ask(
        self,
        client: Client,
        url: str,
        accept: str,
        project: str,
        answered: Callable[[], None],
        *,
        turn: Turn,
        last: KeptPage | None = None,
    ) -> tuple[CompleteResponse, model.ProjectDetail]:
        """Read a page; if the server confirms the last page, return that page."""
        broken = None
        validators = last.validators if last is not None else {}
        again = partial(self._ask, client, url, accept, project, answered, turn=turn)
        try:
            asked = {"Accept": accept, **validators}
            reply = await client.get(url, asked, turn=turn)
        except UpstreamError as error:
            if validators and (error.reply is not None or error.status == 502):
                return await again()  # some servers fail only with validators
            if error.reply is None or 400 <= error.reply.status < 600:
                raise
            if error.reply.is_whole or not self.takes_parts:
                error.reply = with_absolute_links(error.reply)
                raise
            reply, broken = error.reply, without_frames(error)
        if last is not None and validators and reply.status == 304:
            if reply.url == last.url:
                return reply, last.page
            return await again()  # the validators belong to another URL
        if client.settings.client_cert and reply.away:
            message = "redirects to a server that may know you by your certificate"
            raise UpstreamError(message, url, reply=reply, hint="serve that URL")
        answered()
        # Parsed pages take many times their size, until their responses are made.
        is_large = len(reply.body) > _LARGE
        await Share.take(estimate_files(reply.body))
        async with client.parsing if is_large else nullcontext():
            page = await asyncio.to_thread(_parse, reply, project, broken)
        return reply, await refuse_near_files(page, client, url, reply.url)

    def miss(self, name: str, reason: str | None = None) -> None:
        """Do not read a page in this run of pip.

        :param reason: why only pip can read the page; ``None`` if pip uses no page.
        """
        url = getattr(self, "url", None)
        self._missed[name] = None if reason is None else UnjudgedError(reason, url)

    def _check_missed(self, name: str) -> None:
        if error := self._missed.get(name):
            raise error.with_traceback(None)  # else it would grow with each request
        if name in self._missed:
            raise errors.PackageNotFoundError(name)

    async def take(self, reply: CompleteResponse, name: str) -> None:
        """Keep a page that pip has read for this run of pip.

        :raises UnjudgedError: this program cannot read the page.
        """
        try:
            page = await asyncio.to_thread(_parse, reply, name)
        except UpstreamError as error:
            unjudged = self._missed[name] = UnjudgedError(error.message, reply.url)
            unjudged.page = unread = error.page
            # There may be many pages: keep only whether this one may name the project.
            if unread is not None and name != LINKS:
                lists = await asyncio.to_thread(may_list, unread, name)
                unjudged.page = None if lists else replace(unread, body=b"")
            raise unjudged from None
        self._taken.put(name, page)
        self._missed.pop(name, None)
        self.is_taken = True

    def is_limited(self, status: int | None) -> bool:
        """Return whether a page may be refused because of requests of this program.

        With 429, the requests may be those of an earlier run. An index that was never
        available fails for an installer alone, too.
        """
        is_refusal = status in LIMITING
        self._has_answered = self._has_answered or not (is_refusal or status is None)
        client: Client | None = getattr(self, "_client", None)
        asked = client is not None and client.logins.asked.is_set()
        is_refusal = is_refusal and self._has_answered and asked
        return is_refusal or status == TOO_MANY

    async def _read_page(self, project: str) -> model.ProjectDetail:
        raise NotImplementedError

    async def _read_names(self) -> Iterable[str]:
        raise NotImplementedError


class UnjudgedError(UpstreamError):
    """pip has read a page that this program cannot read."""

    usual_hint = "tell the owner of the index"


class GoneError(errors.PackageNotFoundError):
    """An index responds with 410, after which uv does not use the next index."""


class HttpUpstream(Upstream):
    """An index on a server.

    :param url: the URL of the index, without credentials.
    :param client: reads the index, and has its credentials.
    """

    def __init__(self, url: str, client: Client) -> None:
        super().__init__()
        self.url = url if url.endswith("/") else f"{url}/"
        self._client = client

    async def _read_names(self) -> Iterable[str]:
        client = self._client
        async with Turn(client.large) as turn:
            reply = await client.get(self.url, {"Accept": ACCEPT}, turn=turn)
            kind = reply.headers.get("content-type", "")
            page = await asyncio.to_thread(parse_projects, reply.body, kind, reply.url)
        return (item.name for item in page.projects)

    async def _read_page(self, project: str) -> model.ProjectDetail:
        url = f"{self.url}{project}/"
        try:
            ask = partial(self._fetch, self._client, url, ACCEPT, project)
            page = await patiently(ask, url, self.is_limited)
            self._has_answered = True
            return page
        except UpstreamError as error:
            status = error.reply.status if error.reply is not None else 0
            if status == 403 and (urlsplit(url).hostname or "").endswith(_FORBIDDING):
                status = 404
            missing = {404: errors.PackageNotFoundError, 410: GoneError}.get(status)
            if missing is not None and not (error.reply and _needs_care(error.reply)):
                raise missing(project) from None
            raise


def _needs_care(reply: CompleteResponse) -> bool:
    """Return whether an installer may not understand a reply as a missing project."""
    is_odd = isinstance(reply, OddReply) or has_unread_body(reply)
    return bool(reply.away) or is_odd


def _parse(
    reply: CompleteResponse, project: str, broken: UpstreamError | None = None
) -> model.ProjectDetail:
    """Parse a page. An error contains the reply, which an installer may understand."""
    is_odd, kind = isinstance(reply, OddReply), reply.headers.get("content-type", "")
    kind = "a reply with an odd head" if is_odd else kind
    try:
        page = parse_page(reply.body, kind, reply.url, project, exact=True)
        return mark(page, reply, broken)
    except UpstreamError as error:
        if isinstance(error, TooLargeError):
            raise
        failure = broken or error
        failure.reply = with_absolute_links(reply)
        failure.page = reply if len(reply.body) <= _LARGEST_UNREAD else None
        raise failure from None


_SCHEMES = ("http://", "https://", "ftp://")
"""The allowed schemes of files, without those that are unsafe in a browser."""


async def refuse_near_files(
    page: model.ProjectDetail, client: Client, *places: str
) -> model.ProjectDetail:
    """Mark local files, to which a public page must not link, with `REFUSED`.

    These are files in local directories and, if others can read the results of this
    program, files on servers that only this machine or its network can reach, and on
    more than `_MOST_SERVERS`. An index on this machine may name local servers.

    The files stay on the page, so that installers select no files of another index.

    :param places: the URL of the page, and its URL after redirects. Without one, it is
        a saved page, perhaps a stranger's, whose files in directories are judged.
    """
    # A page may name each file on another server, so this may take seconds.
    servers = await asyncio.to_thread(_servers_of, page.files)
    # Each server is looked up by its name, and a page could name thousands.
    allowed = dict.fromkeys(filter(None, servers))
    if not client.trusts_pages:
        some = list(islice(allowed, _MOST_SERVERS))
        # The servers that a saved page names must be public themselves.
        near = Nearness.MACHINE if places else Nearness.ELSEWHERE
        for place in places or ("",):
            leads = (client.may_lead(place or x, x, near) for x in some)
            some = list(compress(some, await asyncio.gather(*leads)))
        allowed = dict.fromkeys(some)
    shown = [
        file
        if (server in allowed if server else not places)
        else replace(file, url=REFUSED + file.url)
        async for file, server in in_steps(zip(page.files, servers, strict=True))
    ]
    files = tuple(shown)
    if files != page.files:
        place = redacted(places[0]) if places else "a saved page"
        logger.info("%s names local files: they are refused", place)
    return replace(page, files=files)


def _servers_of(files: Iterable[model.File]) -> list[str | None]:
    """Return the server of each file, or ``None`` for a file in a directory."""
    return [server_of(x.url) if x.url.startswith(_SCHEMES) else None for x in files]


def read_page_file(
    path: Path, project: str, passes: bool, index: Path | None = None
) -> model.ProjectDetail:
    """Read a page in HTML.

    :param passes: whether an installer gets the page if this program cannot read it.
    :param index: the index to which the page must belong; see `is_of_index`.
    """
    file = IndexFile(path, to_cache=False, index=index, names=PAGE)
    try:
        body, url = read_local(file, LARGE_BYTES), path.absolute().as_uri()
    except errors.ResourceUnavailable:
        raise outside_of_index(path) from None
    head = {"content-type": "text/html"}
    reply = CompleteResponse(status=200, url=url, headers=head, body=body, raw=body)
    try:
        return _parse(reply, project)
    except UpstreamError as error:
        error.reply = error.reply if passes else None
        raise


def outside_of_index(path: Path) -> UpstreamError:
    """Return an error for a page or a directory that a stranger may have linked."""
    message = "it is a link to a place outside of the index"
    hint = "move that below the directory that contains the index"
    return UpstreamError(message, path=str(path), hint=hint)


def list_folder(
    folder: Path, project: str, names: Iterable[str] | None = None
) -> model.ProjectDetail:
    """Return a page with the files in a directory, or with one file.

    :param names: the names in the directory, if they are known.
    :raises UpstreamError: the directory cannot be read.
    """
    try:
        paths = [folder / name for name in names or ()]
        if names is None:
            paths = [*folder.iterdir()] if os.path.isdir(folder) else [folder]
        files = tuple(
            model.File(path.name, path.as_uri(), hashes={}, size=os.path.getsize(path))
            for path in sorted(paths)
            if os.path.isfile(path) and is_text(path.name)  # Path.is_file() may raise
        )
    except OSError as error:
        message = f"cannot be read: {error.strerror}"
        raise UpstreamError(message, path=str(folder)) from None
    return model.ProjectDetail(meta=model.Meta("1.0"), name=project, files=files)


def local_path(location: str) -> Path:
    """Return the path of a ``file:`` URL; a path is returned unchanged."""
    is_url = location.startswith("file:")
    return Path(path_of_file_url(location) if is_url else location)
