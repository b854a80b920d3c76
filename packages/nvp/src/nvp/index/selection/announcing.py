"""METADATA of large wheels (PEP 658), for indexes that do not send it.

An installer that finds no METADATA on an index downloads the whole wheel to learn what
it requires. The page announces it instead, and it is read out of the wheel by ranges
when an installer asks for it.

pip and uv end when METADATA that a page announces does not come: no status of HTTP
leads them to the wheel itself. So it is announced only where the server of the file
sends ranges, which one request finds out; and where they do not come for this one file,
the whole wheel is read.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from simple_repository import model

from ...wheels.names import platform_of
from ..http.ranges import RangeSupport
from ..http.urls import is_http, server_of
from .core_metadata import CoreMetadataReader
from .renaming import find_label
from .wheel_files import SMALLEST

__all__ = ["METADATA_KEY", "Announcer"]

logger = logging.getLogger(__name__)

METADATA_KEY = "_nvidia_variant_provider_metadata"
"""Marks a file whose METADATA is sent from here although the upstream has none."""

_PAGES = 128


class Announcer:
    """Announces METADATA of wheels, and reads it on demand.

    :param metadata: reads it.
    :param ranges: knows which servers send parts of files.
    :param platform: the platform of the wheels, such as ``linux_x86_64``.
    """

    def __init__(
        self, metadata: CoreMetadataReader, ranges: RangeSupport, platform: str
    ) -> None:
        self._metadata = metadata
        self._ranges = ranges
        self._platform = platform
        self._files: OrderedDict[str, Mapping[str, model.File]] = OrderedDict()
        self._reading: dict[str, asyncio.Task[bytes]] = {}

    async def announce(
        self, project: str, files: Sequence[model.File]
    ) -> list[model.File]:
        """Return the files of a page; those whose METADATA can be read say so."""
        large = {file.filename: file for file in files if self._is_for_here(file)}
        servers = {server_of(file.url): file.url for file in large.values()}
        replies = await asyncio.gather(*map(self._ranges.has, servers.values()))
        sends = dict(zip(servers, replies, strict=True))
        shown = []
        announced = {}
        for file in files:
            kept = None if file.dist_info_metadata else self._metadata.find(file)
            readable = file.filename in large and sends[server_of(file.url)]
            if kept is None and not readable:
                shown.append(file)
                continue
            announced[file.filename] = file
            shown.append(_with_metadata(file, kept))
        self._files[project] = announced
        self._files.move_to_end(project)
        if len(self._files) > _PAGES:
            self._files.popitem(last=False)
        return shown

    def knows(self, project: str) -> bool:
        """Return whether the page of a project has been seen, and is remembered."""
        return project in self._files

    async def read(self, project: str, name: str) -> str | None:
        """Return METADATA of a wheel; ``None`` where it was not announced.

        :raises InputError: it cannot be read, or is that of another wheel.
        """
        file = self._files.get(project, {}).get(name)
        if file is None:
            return None
        # An installer that has waited for too long asks again: it waits for the same
        # work then, which goes on when its request ends.
        key = file.hashes.get("sha256") or file.url
        if key not in self._reading:
            work = asyncio.ensure_future(self._read(project, file))
            self._reading[key] = work
            work.add_done_callback(lambda _: self._reading.pop(key, None))
        content = await asyncio.shield(self._reading[key])
        return content.decode("utf-8", "replace")

    async def _read(self, project: str, file: model.File) -> bytes:
        return await self._metadata.read(
            project, file, without_ranges=lambda: self._ranges.deny(file.url)
        )

    def _is_for_here(self, file: model.File) -> bool:
        """Return whether METADATA of a file is worth a request.

        Most wheels that run anywhere are small. Those count where the page says that
        they are large.
        """
        name = file.filename
        if file.dist_info_metadata or not name.endswith(".whl"):
            return False
        if (file.size or SMALLEST) < SMALLEST or not is_http(file.url):
            return False
        label = find_label(name)
        tag = name[:-4].removesuffix(f"-{label}").rpartition("-")[2]
        if tag == "any":
            return bool(file.size)
        return platform_of(tag) == self._platform


def _with_metadata(file: model.File, kept: bytes | None) -> model.File:
    # What has not been read has no hash yet: PEP 658 has "true" for that.
    announced: bool | dict[str, str] = (
        True if kept is None else {"sha256": hashlib.sha256(kept).hexdigest()}
    )
    private: Mapping[str, object] = {
        **dict(file.private_metadata.items()),
        METADATA_KEY: True,
    }
    return replace(
        file,
        dist_info_metadata=announced,
        private_metadata=model.PrivateMetadataMapping.from_any_mapping(private),
    )
