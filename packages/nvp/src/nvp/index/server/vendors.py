"""The indexes of vendors, combined into one index that ranks after the user's.

The project, the machine and the user's pins decide which pages are read; see
`nvp.builds.vendors`. For projects without a vendor's index, no request is made.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from itertools import chain

from packaging.version import Version
from simple_repository import errors, model
from simple_repository.components.core import SimpleRepository

from nvidia_variant_provider.errors import InputError

from ...builds.vendors import find_elsewhere
from ...knowledge.tables import MISSING, VendorIndex, find_vendors
from ..http.client import Client
from ..http.kept_keys import first_keys
from ..http.urls import is_http
from ..selection.options import Selection
from ..selection.pieces import UNAVAILABLE
from ..selection.wheel_files import find_wheels
from .places import LinksUpstream
from .upstream import HttpUpstream, Upstream

logger = logging.getLogger(__name__)

NAME = "the indexes of vendors"
"""The name of this index in messages, in place of a URL."""


class VendorUpstream(Upstream):
    """The builds of vendors for this machine.

    :param selection: the options of the selection.
    :param own: the user's indexes. If a vendor has an index for each release, the
        index of the pinned release is read, or else that of the newest release on the
        user's indexes.
    :param warn: called with a sentence for each index that cannot be read.
    """

    is_vendor = True

    def __init__(
        self,
        client: Client,
        selection: Selection,
        *,
        own: Callable[[], Sequence[SimpleRepository]],
        warn: Callable[[str], None],
    ) -> None:
        super().__init__()
        self._client = client
        self._selection = selection
        self._own = own
        self._warn = warn

    async def _read_page(self, project: str) -> model.ProjectDetail:
        places = await self._find_places(project)
        found = [await self._read_vendor(project, *place) for place in places]
        pages = [page for page in found if page is not None]
        files: dict[str, model.File] = {}
        for file in chain.from_iterable(page.files for page in pages):
            # A vendor's page must not link to files of this machine.
            if is_http(file.url):
                files.setdefault(file.filename, file)
        if not files:
            raise errors.PackageNotFoundError(project)
        return model.ProjectDetail(
            meta=model.Meta("1.0", first_keys([page.meta for page in pages])),
            name=project,
            files=tuple(files.values()),
            private_metadata=first_keys(pages),
        )

    async def _read_names(self) -> Iterable[str]:
        return ()

    async def _find_places(self, project: str) -> list[tuple[VendorIndex, str]]:
        """Return the indexes to read, and the URL of each one for this machine."""
        indexes = find_vendors(project)
        if not indexes:
            return []
        wanted = None
        if any("{version}" in index.url for index in indexes):
            wanted = await self._find_release(project)
        # Companions (torchvision) must come from the index of their leader (torch).
        leader = next((x.leader for x in indexes if x.leader and not x.gpus), project)
        pins = self._selection.pinned.get(leader, ())
        releases = {text.partition("+")[0] for text in pins}
        found = find_elsewhere(
            leader,
            await self._selection.found.soon(),
            self._selection.platform_of_builds,
            wanted=wanted,
            allows=lambda _, version: not releases or str(version) in releases,
            every_gpu=self._selection.every_gpu,
        )
        places = [(item.index, item.url) for item in found]
        labels = {text.partition("+")[2] for text in pins}
        for label in sorted(labels | {self._selection.pins.get(project) or ""} - {""}):
            asked = (x for x in indexes if label in x.backends and not x.gpus)
            places += [(x, x.find_url(label, version=wanted)) for x in asked]
        return [each for each in dict.fromkeys(places) if MISSING not in each[1]]

    async def _find_release(self, project: str) -> str | None:
        """Return the user's pinned release, or the newest on the user's indexes."""
        for text in self._selection.pinned.get(project, ()):
            return text.partition("+")[0]
        releases: set[Version] = set()
        for index in self._own():
            try:
                page = await index.get_project_page(project)
            except (InputError, *UNAVAILABLE):
                continue
            releases |= {wheel.release for wheel in find_wheels(page.files, project)}
        final = [release for release in releases if not release.is_prerelease]
        return str(max(final)) if final else None

    async def _read_vendor(
        self, project: str, index: VendorIndex, url: str
    ) -> model.ProjectDetail | None:
        links = index.kind == "links"
        upstream = (LinksUpstream if links else HttpUpstream)(url, self._client)
        upstream.kept = self.kept
        try:
            page = await upstream.get_project_page(project)
        except errors.PackageNotFoundError:
            logger.info("%s does not have %s", url, project)
            return None
        except (InputError, *UNAVAILABLE) as error:
            self._warn(f"{index.maker}'s index was not read: {error}")
            return None
        logger.info("%s: %d files at %s", project, len(page.files), url)
        return page
