"""The loopback index as a whole: upstreams, the selection, a server before them."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from simple_repository import errors

from ...errors import InputError
from ...machine.environment import Environment
from ..http.byte_ranges import redacted
from ..http.client import Client, Settings, split_credentials
from ..selection.pins import Pins
from ..selection.renaming import find_label
from ..selection.repository import Choice, VariantRepository
from .app import OnPick, Source, make_app
from .server import HOSTS, Server
from .upstream import FolderUpstream, HttpUpstream, LinksUpstream, local_path

__all__ = ["Loopback"]

_STEP = 10**9
"""More than ranks and build numbers come to, dates among them: indexes keep apart."""


class Loopback:
    """Indexes of the user, each with the variants that fit, under its own URL.

    PEP 825, "Installing wheels from multiple sources": "it is recommended to consider
    their variant metadata in isolation." Where several have variants of one release,
    those of the index that was added first go before the others.

    :param machine: says which one to select for, once it is needed.
    :param secret: no other program of this machine can guess the URLs.
    :param hosts: the names it may be called by; ``None``: any.
    :param direct: installers may fetch files that need no credentials themselves.
    :param local: the installer is a program of this user, and opens files itself.
    :param asks: it asks its user for credentials that are missing.
    :param every_gpu: only builds with code for each GPU of the machine.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        machine: Callable[[], Environment],
        environ: Mapping[str, str],
        warn: Callable[[str], None],
        pins: Pins | None = None,
        on_pick: OnPick | None = None,
        ask_credentials: Callable[[str], tuple[str, str] | None] | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        secret: bool = True,
        hosts: tuple[str, ...] | None = HOSTS,
        direct: bool = True,
        local: bool = False,
        asks: bool = False,
        every_gpu: bool = False,
    ) -> None:
        self.client = Client(settings, ask_credentials=ask_credentials)
        self._machine = machine
        self._environ = environ
        self._pins = pins
        self._warn = warn
        self._on_pick = on_pick
        self._hosts = hosts or ("*",)
        self._direct = direct
        self._local = local
        self._asks = asks
        self._every_gpu = every_gpu
        self._server = Server(host, port)
        self._prefix = f"/{secrets.token_urlsafe(16)}" if secret else ""
        self._sources: list[Source] = []
        self._urls: dict[tuple[str, bool], str] = {}

    @property
    def url(self) -> str:
        """What all URLs start with."""
        return self._server.url + self._prefix

    @property
    def places(self) -> dict[str, str]:
        """What is here, and what each stands for, without credentials."""
        return {here: redacted(url) for (url, _), here in self._urls.items()}

    def add_index(self, url: str, pair: tuple[str, str] | None = None) -> str:
        """The URL of an index here, in place of its own.

        :param pair: user and password, where they are not in ``url``.
        """
        return self._add(url, pair, links=False)

    def add_links(self, location: str, pair: tuple[str, str] | None = None) -> str:
        """The URL of a page of links here; or ``location``, if it has no variants."""
        if not location.startswith(("http:", "https:")):
            try:
                names = os.listdir(local_path(location))
            except OSError:
                names = []
            if all(find_label(name) is None for name in names):
                return location
        return self._add(location, pair, links=True)

    def _add(self, url: str, pair: tuple[str, str] | None, *, links: bool) -> str:
        if (url, links) in self._urls:
            return self._urls[url, links]
        bare, own = split_credentials(url)
        is_http = bare.startswith(("http:", "https:"))
        if is_http and not self.client.is_allowed(bare):
            # pip says the same, and ignores it.
            self._warn(f"{redacted(url)} is neither https nor a trusted host: ignored")
            return url
        if not is_http and not links and not os.path.isdir(local_path(bare)):
            return url
        if own is not None and (own[1] or pair is None):
            pair = own
        if pair is not None and is_http:
            self.client.add_credentials(bare, pair)
        number = len(self._sources)
        path = f"/{number}" if number or self._prefix else ""
        upstream = (
            LinksUpstream(bare, self.client)
            if links
            else HttpUpstream(bare, self.client)
            if is_http
            else FolderUpstream(local_path(bare))
        )
        repository = VariantRepository(
            upstream,
            machine=self._machine,
            client=self.client,
            environ=self._environ,
            pins=self._pins,
            every_gpu=self._every_gpu,
            warn=self._warn,
        )
        self._sources.append(
            Source(
                path=path,
                repository=repository,
                client=self.client,
                links=upstream if isinstance(upstream, LinksUpstream) else None,
                direct=self._direct,
                local=self._local,
                asks=self._asks,
                url=bare,
            )
        )
        found = f"{self.url}{path}/{'links' if links else 'simple'}/"
        self._urls[url, links] = found
        return found

    @contextmanager
    def serve(self) -> Iterator[None]:
        """Serve while the block lasts."""
        repositories = self._repositories
        for number, repository in enumerate(reversed(repositories)):
            repository.base = number * _STEP
            repository.others = [item for item in repositories if item != repository]
        app = make_app(
            self._sources,
            prefix=self._prefix,
            hosts=self._hosts,
            on_pick=self._on_pick,
            warn=self._warn,
        )
        # A program of this user that has ended waits for nothing.
        with self._server.serve(app, self.client.close, patient=not self._local):
            yield

    @property
    def _repositories(self) -> list[VariantRepository]:
        """Of the sources that select variants, in their order."""
        found = (source.repository for source in self._sources)
        return [item for item in found if isinstance(item, VariantRepository)]

    def all_choices(self) -> list[Choice]:
        """What was shown of each release that was looked at, index by index."""
        return [c for found in self._repositories for c in found.all_choices()]

    def find_choices(self, project: str) -> Mapping[str, Choice]:
        """What is chosen of each release of a project, in the first index with it.

        Only while it serves.
        """
        for repository in self._repositories:
            try:
                if not repository.choices(project):
                    self._server.call(repository.get_project_page(project))
            except (InputError, errors.PackageNotFoundError):
                continue
            if found := repository.choices(project):
                return found
        return {}
