"""Compute the hashes of files on indexes that provide none."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace

from packaging.utils import canonicalize_name
from packaging.version import Version
from simple_repository import model
from simple_repository.components.core import RepositoryContainer, SimpleRepository

from nvidia_variant_provider.errors import InputError

from ..http.client import Client
from ..selection.kept import FOREVER, MARK, Aging, key_of, mark_of
from ..selection.pieces import find_own, stream_pieces
from ..selection.reader import UNAVAILABLE
from ..selection.renaming import find_label

logger = logging.getLogger(__name__)

_HASHED = 10_000
"""The number of cached hashes, each of which required a download."""


class HashingRepository(RepositoryContainer):
    """Downloads files without a hash, and adds their SHA-256 to the page.

    pip selects the best file of a page and compares its hash afterwards. Without hashes
    on the page, it would download the best variant, and reject it if the user pinned
    the hash of another wheel of the release. Only pinned releases of projects with
    variants are read.

    :param pinned: for each project, the versions that the user pins.
    """

    def __init__(
        self,
        source: SimpleRepository,
        client: Client,
        pinned: Mapping[str, Collection[str]],
    ) -> None:
        super().__init__(source)
        self._client = client
        self._pinned = {
            project: {version for text in texts if (version := _parse(text))}
            for project, texts in pinned.items()
        }
        self._known: Aging[str, str] = Aging(_HASHED, FOREVER)
        self._marks: Aging[str, str] = Aging(_HASHED, FOREVER)

    async def get_resource(
        self,
        project_name: str,
        resource_name: str,
        *,
        request_context: model.RequestContext | None = None,
    ) -> model.Resource:
        """Return a file of the source, which lacks the marks of added hashes."""
        mark = request_context.context.get(MARK) if request_context else None
        if mark and (own := self._marks.get(str(mark))):
            request_context = model.RequestContext({MARK: own})
        return await self.source.get_resource(
            project_name, resource_name, request_context=request_context
        )

    async def get_project_page(
        self,
        project_name: str,
        *,
        request_context: model.RequestContext | None = None,
    ) -> model.ProjectDetail:
        """Return the page with missing hashes added."""
        page = await self.source.get_project_page(
            project_name, request_context=request_context
        )
        wanted = self._pinned.get(canonicalize_name(project_name), set())
        if not wanted or all(find_label(f.filename) is None for f in page.files):
            return page
        files = []
        for file in page.files:
            name, hashes = file.filename, file.hashes
            is_wanted = _parse((*name.split("-"), "")[1]) in wanted
            if is_wanted and not hashes and name.endswith(".whl"):
                digest = await self._hash(project_name, file)
                hashes = {"sha256": digest} if digest else {}
            files.append(replace(file, hashes=hashes))
            self._marks.put(mark_of(files[-1]), mark_of(file))
        return replace(page, files=tuple(files))

    async def _hash(self, project: str, file: model.File) -> str | None:
        """Return the SHA-256 of a file; ``None`` if the file cannot be read."""
        key = key_of(file)
        if (known := self._known.get(key)) is not None:
            return known
        logger.info("%s: downloading it for its hash", file.filename)
        digest = hashlib.sha256()
        try:
            resource = await find_own(self.source, project, file)
            async with AsyncExitStack() as stack:
                async for piece in await stream_pieces(resource, self._client, stack):
                    digest.update(piece)
        except (InputError, OSError, *UNAVAILABLE) as error:
            logger.info("%s: cannot be read: %s", file.filename, error)
            return None
        self._known.put(key, digest.hexdigest())
        return digest.hexdigest()


def _parse(text: str) -> Version | None:
    try:
        return Version(text)
    except ValueError:
        return None
