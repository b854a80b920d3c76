"""Wheels that are rewritten while they arrive: their bytes, or files of them."""

from __future__ import annotations

import asyncio
import hashlib
import os
import tempfile
from collections.abc import AsyncIterator, MutableMapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import IO

from simple_repository import model
from simple_repository.components.core import RepositoryContainer, SimpleRepository

from nvidia_variant_provider.errors import InputError

from ...wheels.rewriting import Rewriting
from ..http.client import Client
from ..selection.core_metadata import EvaluatedWheel
from ..selection.reader import stream_pieces


async def rewrite_pieces(
    wheel: EvaluatedWheel,
    pieces: AsyncIterator[bytes],
    hashes: MutableMapping[str, str] | None = None,
) -> AsyncIterator[bytes]:
    """Yield the bytes of the new wheel.

    The hash of the original is compared before the end of the new wheel is sent.
    Without that end the download is too short, and no installer takes it.

    :param pieces: the bytes of the original.
    :param hashes: gets the SHA-256 of the original by that of the new wheel.
    :raises InputError: the original is not the wheel that was planned.
    """
    rewriting = Rewriting(wheel.plan)
    digest, new = hashlib.sha256(), hashlib.sha256()
    async for piece in pieces:
        digest.update(piece)
        for made in rewriting.feed(piece):
            new.update(made)
            yield made
    if wheel.sha256 is not None and digest.hexdigest() != wheel.sha256.lower():
        message = "its sha256 is not the one that the page gives"
        raise InputError(message, hint="report it to the index")
    end = rewriting.finish()
    new.update(end)
    if hashes is not None:
        hashes[new.hexdigest()] = digest.hexdigest()
    yield end


async def save_rewritten(
    wheel: EvaluatedWheel,
    file: IO[bytes],
    client: Client,
    hashes: MutableMapping[str, str] | None = None,
) -> str:
    """Write the new wheel to a file, as `rewrite_pieces` does; return its SHA-256."""
    digest = hashlib.sha256()
    async with AsyncExitStack() as stack:
        pieces = await stream_pieces(wheel.original, client, stack)
        async for piece in rewrite_pieces(wheel, pieces, hashes):
            digest.update(piece)
            await asyncio.to_thread(file.write, piece)
    return digest.hexdigest()


class RewrittenWheels(RepositoryContainer):
    """Writes the wheels whose variant markers are evaluated to a folder.

    The server of simple-repository sends files, texts and redirects. Put this component
    on top of a `VariantRepository` whose selection has ``rewrites=True``.

    :param source: the repository with the variants selected.
    :param folder: where each rewritten wheel is kept; nothing is removed from it.
    :param client: reads the wheels on other servers.
    """

    def __init__(
        self,
        source: SimpleRepository,
        folder: str | os.PathLike[str],
        *,
        client: Client | None = None,
    ) -> None:
        super().__init__(source)
        self._folder = Path(folder)
        self._client = client or Client()
        self._writing: dict[Path, asyncio.Lock] = {}

    async def get_resource(
        self,
        project_name: str,
        resource_name: str,
        *,
        request_context: model.RequestContext | None = None,
    ) -> model.Resource:
        """Return a file; a rewritten wheel is written first, unless it is there.

        :raises UpstreamError: the wheel cannot be read.
        :raises InputError: it is not the one that the page names.
        """
        resource = await self.source.get_resource(
            project_name, resource_name, request_context=request_context
        )
        if not isinstance(resource, EvaluatedWheel):
            return resource
        path = self._folder / f"{_digest(resource)}.whl"
        async with self._writing.setdefault(path, asyncio.Lock()):
            if not path.is_file():
                await self._write(resource, path)
        self._writing.pop(path, None)
        return model.LocalResource(path=path, to_cache=False)

    async def _write(self, wheel: EvaluatedWheel, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                await save_rewritten(wheel, file, self._client)
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise


def _digest(wheel: EvaluatedWheel) -> str:
    """Identify what is written: by the original, and by all that replaces parts."""
    digest = hashlib.sha256(f"{wheel.sha256 or wheel.place}\n".encode())
    for part in wheel.plan.parts:
        digest.update(part if isinstance(part, bytes) else repr(part).encode())
    return digest.hexdigest()
