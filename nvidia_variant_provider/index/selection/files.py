"""Reading files of a repository: in full, in parts, and their METADATA."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable
from typing import BinaryIO, TypeVar

from simple_repository import errors, model
from simple_repository.components.core import SimpleRepository

from ...errors import InputError
from ...strict_json import read_bytes
from ...wheels.archive import open_wheel, read_dist_info
from ..http.byte_ranges import RangeFile
from ..http.client import Client
from ..http.urls import UpstreamError

__all__ = ["UNAVAILABLE", "FileReader"]

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
        """Read a file in full.

        :raises ResourceUnavailable: the page does not list the file.
        :raises InputError: it cannot be read.
        """
        resource = await self._source.get_resource(project, name)
        if isinstance(resource, model.HttpResource):
            return (await self._client.get(resource.url)).body
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
            request = self._client.make_range_request(url, asyncio.get_running_loop())

            def work() -> T:
                with io.BufferedReader(RangeFile(url, request)) as file:
                    return read(file)

        else:
            raise _unknown(name)
        try:
            async with self._turns:
                return await asyncio.to_thread(work)
        except OSError as error:
            message = f"cannot be read: {error.strerror or error}"
            raise InputError(message, path=name) from None

    async def read_core_metadata(self, project: str, name: str) -> bytes:
        """Read METADATA of a wheel, from the index or else out of the wheel.

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

        return await self.open(project, name, find)


def _unknown(name: str) -> UpstreamError:
    return UpstreamError("the index sends it in an unknown way", path=name)
