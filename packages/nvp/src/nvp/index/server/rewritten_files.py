"""Rewritten wheels as files, for servers that can send nothing else."""

from __future__ import annotations

import asyncio
import hashlib
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

from simple_repository import errors, model
from simple_repository.components.core import RepositoryContainer, SimpleRepository

from ..http.client import Client
from ..selection.evaluating import EvaluatedWheel
from .rewritten import read_pieces, rewrite_pieces

__all__ = ["RewrittenWheels"]


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
            async with AsyncExitStack() as stack:
                file = stack.enter_context(os.fdopen(descriptor, "wb"))
                pieces = await self._open(wheel.original, stack)
                async for piece in rewrite_pieces(pieces, wheel.plan, wheel.sha256):
                    await asyncio.to_thread(file.write, piece)
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise

    async def _open(
        self, original: model.Resource, stack: AsyncExitStack
    ) -> AsyncIterator[bytes]:
        if isinstance(original, model.LocalResource):
            return read_pieces(original.path)
        if not isinstance(original, model.HttpResource):
            raise errors.ResourceUnavailable("a file of an unknown kind")
        response = await stack.enter_async_context(
            self._client.stream(original.url, {"Accept-Encoding": "identity"})
        )
        return response.aiter_raw()


def _digest(wheel: EvaluatedWheel) -> str:
    """Identify what is written: by the original, and by all that replaces parts."""
    original = wheel.original
    place = getattr(original, "url", None) or getattr(original, "path", "")
    digest = hashlib.sha256(f"{wheel.sha256 or place}\n".encode())
    for part in wheel.plan.parts:
        digest.update(part if isinstance(part, bytes) else repr(part).encode())
    return digest.hexdigest()
