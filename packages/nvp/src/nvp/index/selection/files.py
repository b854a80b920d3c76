"""Reading files of a repository: in full, in parts, and their METADATA."""

from __future__ import annotations

import asyncio
import io
import logging
import tempfile
from collections.abc import Callable
from typing import BinaryIO, TypeVar, cast

from simple_repository import errors, model
from simple_repository.components.core import SimpleRepository

from nvidia_variant_provider.errors import InputError
from nvidia_variant_provider.strict_json import MAX_BYTES, read_bytes

from ...wheels.archive import open_wheel, read_dist_info
from ..http.client import Client
from ..http.ranges import open_range_file
from ..http.urls import NoRangesError, UpstreamError, redacted

__all__ = ["UNAVAILABLE", "FileReader"]

logger = logging.getLogger(__name__)

UNAVAILABLE = (
    errors.PackageNotFoundError,
    errors.ResourceUnavailable,
    errors.SourceRepositoryUnavailable,
)
"""What the components of other authors raise when they cannot send a file."""

T = TypeVar("T")

_MOST_AT_ONCE = 8
"""Wheels that are read at the same time."""


class FileReader:
    """Reads the files that a repository names.

    :param source: the repository.
    :param client: reads what ``source`` names on other servers.
    """

    def __init__(self, source: SimpleRepository, client: Client) -> None:
        self._source = source
        self._client = client
        self._turns = asyncio.Semaphore(_MOST_AT_ONCE)

    async def read(self, project: str, name: str) -> bytes:
        """Read a metadata file in full, of at most `MAX_BYTES`.

        :raises ResourceUnavailable: the page does not list the file.
        :raises InputError: it cannot be read.
        """
        resource = await self._source.get_resource(project, name)
        if isinstance(resource, model.HttpResource):
            return (await self._client.get(resource.url, limit=MAX_BYTES)).body
        if isinstance(resource, model.LocalResource):
            return await asyncio.to_thread(read_bytes, resource.path)
        if isinstance(resource, model.TextResource):
            return resource.text.encode()
        raise _unknown(name)

    async def open(self, project: str, name: str, read: Callable[[BinaryIO], T]) -> T:
        """Return what ``read`` finds in a file, of which only parts are downloaded.

        :raises InputError: it cannot be read.
        """
        resource = await self._source.get_resource(project, name)
        if isinstance(resource, model.LocalResource):
            path = resource.path

            def work() -> T:
                with open(path, "rb") as file:
                    return read(file)

        elif isinstance(resource, model.HttpResource):
            url = resource.url
            loop = asyncio.get_running_loop()

            def work() -> T:
                with io.BufferedReader(
                    open_range_file(self._client, url, loop)
                ) as file:
                    return read(file)

        else:
            raise _unknown(name)
        try:
            async with self._turns:
                return await asyncio.to_thread(work)
        except OSError as error:
            message = f"cannot be read: {error.strerror or error}"
            raise InputError(message, path=name) from None

    async def open_copy(
        self, project: str, name: str, read: Callable[[BinaryIO], T]
    ) -> T:
        """Return what ``read`` finds in a file, which is downloaded in full.

        :raises InputError: it cannot be read.
        """
        resource = await self._source.get_resource(project, name)
        if not isinstance(resource, model.HttpResource):
            return await self.open(project, name, read)
        wanted = {"Accept-Encoding": "identity"}
        logger.info("%s: downloading it to look into it", redacted(resource.url))
        try:
            with tempfile.TemporaryFile(prefix="nvidia-variant-provider-") as copy:
                async with self._client.stream(resource.url, wanted) as response:
                    async for piece in response.aiter_raw():
                        await asyncio.to_thread(copy.write, piece)
                # On Windows it is a wrapper of such a file.
                return await asyncio.to_thread(read, cast(BinaryIO, copy))
        except OSError as error:
            message = f"cannot be read: {error.strerror or error}"
            raise InputError(message, path=name) from None

    async def read_core_metadata(
        self,
        project: str,
        name: str,
        *,
        without_ranges: Callable[[], None] | None = None,
    ) -> bytes:
        """Read METADATA of a wheel, from the index or else out of the wheel.

        :param without_ranges: called before the whole of a large wheel is downloaded
            because its server sends no parts of it; without it, that is an error.
        :raises InputError: it cannot be read.
        """
        try:
            return await self.read(project, f"{name}.metadata")
        except errors.ResourceUnavailable:
            pass  # The index does not serve METADATA as a file (PEP 658).
        except UpstreamError as error:
            if error.status not in (404, 410):
                raise
            # Some mirrors pass on the attribute of PEP 658, but not the files.

        def find(file: BinaryIO) -> bytes:
            with open_wheel(file) as archive:
                return read_dist_info(archive, "METADATA") or b""

        try:
            return await self.open(project, name, find)
        except NoRangesError:
            if without_ranges is None:
                raise
        without_ranges()
        return await self.open_copy(project, name, find)


def _unknown(name: str) -> UpstreamError:
    return UpstreamError("the index sends it in an unknown way", path=name)
