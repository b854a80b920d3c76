"""The complete local index: upstreams, the selection, and the server."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING
from urllib.parse import unquote

from simple_repository.components.core import SimpleRepository

from nvidia_variant_provider.errors import InputError, redacted

from ..http.client import Client
from ..http.connecting import Nearness
from ..http.urls import (
    directory_of,
    file_name,
    is_http,
    is_plain,
    server_of,
    split_credentials,
)
from ..selection.component import VariantRepository, select
from ..selection.options import Selection
from ..selection.pieces import UNAVAILABLE, HashingRepository
from ..selection.reader import Reader
from ..selection.shown import ShownPage, ShownRelease
from ..selection.visibility import PageVerdicts
from .app import OnPage, OnPick, OnWait, make_app
from .kept_pages import KeptPages
from .places import (
    LinksUpstream,
    find_links_path,
    is_distribution,
    is_file_of_pip,
    is_page,
    join_paths,
    make_upstream,
)
from .responses import ANY_HOST, Access, Source
from .server import Server
from .upstream import Upstream

if TYPE_CHECKING:
    from .served_locks import LockableRelease, LockFiles

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Place:
    """An index or a page of links, with its location on the server.

    :param url: the URL of the index, without credentials.
    """

    path: str
    url: str
    upstream: Upstream


class LocalIndex:
    """The user's indexes under local URLs, each with the variants for this machine.

    PEP 825, "Installing wheels from multiple sources": "it is recommended to consider
    their variant metadata in isolation." If several indexes have variants of one
    release, those of the index that was added first come first.

    Call ``read_*`` and ``find_*`` methods only while the index is serving.

    :param client: reads the indexes.
    :param selection: the options of the selection.
    :param access: who uses the local index, and which files they can read without it.
    :param port: 0 for any free port.
    :param on_pick: called with each build that an installer fetches, from another
        thread.
    :param on_wait: called with the project of a page that takes a long time, from
        another thread.
    :param on_page: called with the verdicts on each requested page, from another
        thread.
    :param warn: called with a sentence for each ignored item.
    :param kept: the cache of pages; ``None`` requests every page from the indexes.
    """

    def __init__(
        self,
        client: Client,
        selection: Selection,
        access: Access,
        *,
        warn: Callable[[str], None],
        host: str = "127.0.0.1",
        port: int = 0,
        on_pick: OnPick | None = None,
        on_page: OnPage | None = None,
        on_wait: OnWait | None = None,
        kept: KeptPages | None = None,
    ) -> None:
        self._client = client
        self._selection = selection
        self._access = access
        self._warn = warn
        self._on_pick = on_pick
        self._on_page = on_page
        self._on_wait = on_wait
        self._kept = kept
        self._originals: dict[str, str] = {}
        self.passing: dict[str, str] = {}
        """For each project, why its files have temporary URLs of this index."""
        self.token = secrets.token_urlsafe(16) if access.secret else None
        """The token that each request must have; see `TokenCheck`."""
        self._server = Server(host, port)
        self._prefix = f"/{secrets.token_urlsafe(16)}" if access.secret else ""
        self._places: list[_Place] = []
        self.rewritten: dict[str, str] = {}
        """``{SHA-256 of the rewritten wheel: SHA-256 of the original}``."""
        self.refusals: Sequence[str] = ()
        """A sentence for each wheel that differs from the source of its METADATA."""
        self._urls: dict[tuple[str, bool], str] = {}
        self._watched: list[str] = []
        self._locks: LockFiles | None = None
        # `serve` creates these objects, when all upstreams are known.
        self._repositories: list[VariantRepository] = []
        self._locked: list[VariantRepository] = []

    @property
    def url(self) -> str:
        """The prefix of all URLs of the index."""
        return self._server.url + self._prefix

    @property
    def locks(self) -> LockFiles:
        """The lock files whose files are also served."""
        from .served_locks import LockFiles

        if self._locks is None:
            self._locks = LockFiles(self._server, self._prefix, self._warn)
        return self._locks

    @property
    def pages_of_pip(self) -> dict[str, str]:
        """``{local URL: URL as the user gave it}`` of the pages that pip can read."""
        return {
            here: url
            for (url, links), here in self._urls.items()
            if is_http(url) and not (links and is_distribution(file_name(url)))
        }

    @property
    def known(self) -> list[tuple[str, bool]]:
        """The places whose files the verdicts know, before whether they are links."""
        return [*((place, True) for place in self._watched), *self._urls]

    def add_index(self, url: str, pair: tuple[str, str] | None = None) -> str:
        """Add an index, and return its local URL.

        :param url: the URL or the directory of an index. If this server cannot serve
            the index, ``url`` is returned unchanged.
        :param pair: user and password, unless they are in ``url``.
        """
        return self._add(url, pair, links=False)

    def add_links(self, location: str, pair: tuple[str, str] | None = None) -> str:
        """Add a page of links, and return its local URL.

        :param location: the value of pip's ``--find-links``: a directory, a file or a
            URL. A path is returned unchanged; see `join_links`.
        """
        if not is_http(location):
            return location
        if self._access.local and is_file_of_pip(location):
            with suppress(ValueError):  # pip reports a malformed URL
                upstream = make_upstream(location, pair, self._client, links=True)
                if isinstance(upstream, LinksUpstream):
                    self._watched.append(location)
                    self._watch(upstream)
            return location
        return self._add(location, pair, links=True)

    def join_links(self, locations: Iterable[str]) -> dict[str, list[str]]:
        """Add the paths among the values of ``--find-links``: files, and their pages.

        All files are on one page, because several pages would not have pip's order.

        :returns: the local URLs of each path: that of all files, and those of its own
            pages; empty if pip reads the paths itself.
        """
        paths = {x: path for x in locations if (path := find_links_path(x))}
        self._watched += paths
        for location in [x for x, path in paths.items() if is_page(path)]:
            if paths[location].is_file():
                self._watch(LinksUpstream(str(paths.pop(location)), self._client))
        if not paths:
            return {}
        judges = not self._selection.unchecked
        files, pages, joins = join_paths(paths.values(), self._client, judges=judges)
        if not joins:
            for upstream in (files, *chain(*pages.values())):
                self._watch(upstream)
            return {}
        here = self._place(files.location, files, links=True)
        urls = {
            path: [self._place(x.location, x, links=True) for x in own]
            for path, own in pages.items()
        }
        return {x: [here, *urls[path]] for x, path in paths.items()}

    def _watch(self, upstream: LinksUpstream) -> None:
        """Add links that pip reads itself, because verdicts depend on all files."""
        self._place(upstream.location, upstream, links=True)
        del self._urls[upstream.location, True]

    def add_vendors(self) -> list[str]:
        """Add the indexes of vendors, if requested, and return their local URL."""
        if not self._selection.vendor_indexes:
            return []
        from .vendors import NAME, VendorUpstream

        upstream = VendorUpstream(
            self._only(NAME),
            self._selection,
            own=lambda: [x.upstream for x in self._places if x.upstream != upstream],
            warn=self._warn,
        )
        return [self._place(NAME, upstream)]

    def _add(self, url: str, pair: tuple[str, str] | None, *, links: bool) -> str:
        if (url, links) in self._urls:
            return self._urls[url, links]
        try:
            bare, own = split_credentials(url)
        except ValueError:
            return url  # pip reports that it is malformed
        is_odd = not is_plain(bare) or "?" in bare or "#" in bare
        if is_odd and is_http(bare) and not self._access.local:
            message = "is a URL to which installers add a project differently"
            hint = "give it without a query, a fragment and odd characters"
            # Without slashes, the URL has a user and a password only for uv.
            raise InputError(message, path=bare.rpartition("@")[2], hint=hint)
        for other, _ in self._urls:
            same, pair_of_other = split_credentials(other)
            is_same = server_of(same) == server_of(bare)
            is_same = is_same and directory_of(same) == directory_of(bare)
            if own and pair_of_other not in (None, own) and is_same:
                message = "is given twice, with different credentials"
                raise InputError(message, path=url, hint="give it once")
        upstream = make_upstream(url, pair, self._only(bare), links=links)
        if upstream is None:
            if is_http(bare):
                # pip ignores such an index with a similar warning.
                why = "is neither https nor a trusted host: ignored"
                self._warn(f"{redacted(url)} {why}")
            return url
        upstream.takes_parts = True
        return self._place(url, upstream, links=links)

    def _place(self, url: str, upstream: Upstream, *, links: bool = False) -> str:
        number = len(self._places)
        path = f"/{number}" if number or self._prefix else ""
        upstream.kept, upstream.is_of_pip = self._kept, self._access.local
        bare, _ = split_credentials(url)
        upstream.identifies = None if self._access.local else bare
        self._places.append(_Place(path=path, url=bare, upstream=upstream))
        here = f"{self.url}{path}/{'links' if links else 'simple'}/"
        self._urls[url, links] = here
        logger.info("%s stands for %s", path or "/", redacted(url))
        return here

    def _only(self, index: str) -> Client:
        # Other users read the pages of `serve`, and what they name.
        return self._client.only(None if self._access.local else index)

    def close(self) -> None:
        """Release the address of an index that will not be served."""
        self._server.close()

    def is_reachable(self, url: str) -> bool:
        """Return whether an installer can download ``url`` without credentials."""
        return self._access.direct and not self._client.logins.has(url)

    @contextmanager
    def serve(self) -> Iterator[None]:
        """Serve the indexes while the block lasts."""
        by_ranges = self._selection.range_metadata
        selection = replace(self._selection, rewrites=True, announces=by_ranges)
        served = () if self._access.local else [place.url for place in self._places]
        reader = Reader(self._client, selection.cache, ranges=by_ranges, served=served)
        self.refusals = reader.metadata.refusals
        self._repositories = select(
            self._find_upstreams(),
            selection=selection,
            reader=reader,
            warn=self._warn,
        )
        sources = [
            self._make_source(place.path, place.url, repository, place.upstream)
            for place, repository in zip(self._places, self._repositories, strict=True)
        ]
        if self._locks is not None:
            locked = self._locks.open(
                selection, len(sources), reader, self._make_source
            )
            self._locked = [source.repository for source in locked]
            sources += locked
        app = make_app(
            sources,
            prefix=self._prefix,
            hosts=self._access.hosts,
            token=self.token,
            on_pick=self._on_pick,
            on_page=self._on_page,
            on_wait=self._on_wait,
            warn=self._warn,
        )
        # A local installer ends before the server, so no response is in progress then.
        patient = not self._access.local
        with self._server.serve(app, self._client.close, patient=patient):
            yield

    def _make_source(
        self,
        path: str,
        url: str,
        repository: VariantRepository,
        upstream: Upstream,
    ) -> Source:
        access = replace(self._access, direct=self._gives_urls(url))
        # Keep records only for a local run: a permanent server would collect too many.
        remembers = access.local
        return Source(
            path=path,
            url=url,
            upstream=upstream,
            repository=repository,
            client=self._client.only(upstream.identifies),
            access=access,
            originals=self._originals if remembers else None,
            passing=self.passing,
            rewritten=self.rewritten if remembers else None,
            kept=self._kept,
        )

    def _gives_urls(self, url: str) -> bool:
        """Return whether installers may get URLs that an index names."""
        direct = self._access.direct
        if not direct or self._access.hosts != ANY_HOST or not is_http(url):
            return direct
        # If the index is on this machine, its URLs may mean the machine of the client.
        return asyncio.run(self._only(url).find_nearness(url)) != Nearness.MACHINE

    def _find_upstreams(self) -> list[SimpleRepository]:
        """Return the upstreams; if hashes are required, wrap them to compute hashes."""
        upstreams = [place.upstream for place in self._places]
        if not self._selection.requires_hashes:
            return [*upstreams]
        client, selection = self._client, self._selection
        return [HashingRepository(item, client, selection) for item in upstreams]

    def original_url(self, url: str) -> str | None:
        """Return the original URL behind a URL of this index, without credentials.

        Original URLs are recorded only for an installer on this machine.
        """
        if not url.startswith(self._server.url):
            return None
        original = self._originals.get(url.removeprefix(self._server.url))
        return None if original is None else split_credentials(original)[0]

    def read_lockable(self, url: str) -> LockableRelease | None:
        """Read the information that a lock file needs about the release of a wheel.

        :returns: ``None`` if the URL does not belong to a variant wheel.
        """
        from .served_locks import read_lockable

        if not url.startswith(f"{self.url}/"):
            return None
        path = url.removeprefix(f"{self.url}/")
        place, project, name = path.split("/")[0], *path.split("/")[-4::3]
        if not place.isdecimal():
            return None
        number = int(place)
        repositories = [*self._repositories, *self._locked]
        if number >= len(repositories):
            return None
        return self._server.call(
            read_lockable(repositories[number], project, unquote(name))
        )

    def all_choices(self) -> list[ShownRelease]:
        """Return the shown releases of all requested pages, index by index."""
        return [
            release
            for item in (*self._repositories, *self._locked)
            for page in item.all_shown()
            for release in page.releases.values()
        ]

    def asked_labels(self) -> dict[str, frozenset[str]]:
        """Return the labels of each project for which the user requested a label."""
        asked: dict[str, frozenset[str]] = {}
        for item in self._repositories:
            for project, labels in item.requested.items():
                if labels is not None:
                    asked[project] = asked.get(project, frozenset()) | labels
        return asked

    def all_judged(self) -> list[PageVerdicts]:
        """Return the verdicts on the regular wheels of all requested pages."""
        shown = (page for item in self._repositories for page in item.all_shown())
        return self._judged(shown)

    @property
    def requested(self) -> frozenset[str]:
        """The projects whose pages were requested, and could be read."""
        return frozenset().union(*(item.requested for item in self._repositories))

    def find_judged(self, project: str) -> list[PageVerdicts]:
        """Return the verdicts on a project's page in each index that has it."""
        pages = self._judged(self.find_shown(project))
        return [page for page in pages if page.project == project]

    def _judged(self, shown: Iterable[ShownPage]) -> list[PageVerdicts]:
        pages = [] if self._selection.unchecked else [page.judged for page in shown]
        return [*pages, *(self._locks.judged if self._locks else ())]

    def find_shown(self, project: str) -> list[ShownPage]:
        """Return the page of a project in each index that has it."""
        pages = []
        for repository in self._repositories:
            try:
                _, shown = self._server.call(repository.show(project))
            except (InputError, *UNAVAILABLE):
                continue
            pages.append(shown)
        return pages

    def find_shown_releases(self, project: str) -> Mapping[str, ShownRelease]:
        """Return the shown releases of a project in the first index that has it."""
        for repository in self._repositories:
            with suppress(InputError):
                if found := self._server.call(repository.recall(project)).releases:
                    return found
        return {}
