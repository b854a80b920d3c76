"""Rewrite wheels while they arrive, as streams or into files."""

from __future__ import annotations

import asyncio
import hashlib
import os
import struct
import tempfile
from collections.abc import AsyncIterator, MutableMapping
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import IO, BinaryIO, cast

from simple_repository import model
from simple_repository.components.core import RepositoryContainer, SimpleRepository

from nvidia_variant_provider.errors import InputError

from ...wheels.rewriting import Rewriting
from ..http.client import Client
from ..http.ranges import ChangedFileError, Comparison
from ..selection.core_metadata import EvaluatedWheel, HeldWheel, SentWheel
from ..selection.pieces import ComparedWheel, CopiedWheel, stream_pieces

_LOCAL = struct.Struct("<4s5H3I2H")
_ZIP64 = struct.Struct("<2H2Q")


async def rewrite_pieces(
    wheel: EvaluatedWheel,
    pieces: AsyncIterator[bytes],
    hashes: MutableMapping[str, str] | None = None,
) -> AsyncIterator[bytes]:
    """Yield the bytes of the new wheel.

    The hash of the original is verified before the end of the new wheel is sent.
    Without that end, installers reject the download as incomplete.

    :param pieces: the bytes of the original.
    :param hashes: receives ``{SHA-256 of the new wheel: SHA-256 of the original}``.
    :raises InputError: the original is not the wheel for which the plan was made.
    """
    rewriting = Rewriting(wheel.plan)
    comparison, new = Comparison(wheel.hashes, wheel.parts), hashlib.sha256()
    async for piece in pieces:
        comparison.feed(piece)
        for made in rewriting.feed(piece):
            new.update(made)
            yield made
    _settle(wheel, comparison)
    end = rewriting.finish()
    new.update(end)
    if hashes is not None:
        hashes[new.hexdigest()] = comparison.sha256
    yield end


def _settle(wheel: ComparedWheel, comparison: Comparison) -> None:
    try:
        comparison.finish()
    except ChangedFileError as error:
        wheel.settle(error)
        raise
    wheel.settle(None)


async def check_pieces(
    wheel: ComparedWheel, pieces: AsyncIterator[bytes]
) -> AsyncIterator[bytes]:
    """Yield the bytes of a wheel, but its end only after verification.

    :raises ChangedFileError: the wheel is not the expected one.
    """
    comparison = Comparison(wheel.hashes, wheel.parts)
    last = b""
    async for piece in pieces:
        comparison.feed(piece)
        if last:
            yield last
        last = piece
    _settle(wheel, comparison)
    yield last


class HoldingBack:
    """Passes the start of a wheel on as it arrives, up to members that may change.

    `feed` receives every piece, and returns the bytes to send: members before METADATA
    and RECORD, up to the first member without a size in its header.
    """

    def __init__(self) -> None:
        self._waiting = b""
        self._left = 0
        self._holds = False

    def feed(self, piece: bytes) -> bytes:
        """Return the bytes to send after this piece."""
        if self._holds:
            return b""
        data = self._waiting + piece
        position = min(self._left, len(data))
        self._left -= position
        while not self._left and position < len(data):
            size = _member_size(data, position)
            self._holds = size == 0
            if not size:
                break
            end = min(position + size, len(data))
            self._left = size - (end - position)
            position = end
        self._waiting = b"" if self._holds else data[position:]
        return data[:position]


def _member_size(data: bytes, at: int) -> int | None:
    """Return the size of a member and its header, which starts at a position.

    :returns: 0 for a member that may change; ``None`` if more bytes are needed.
    """
    if not data.startswith(b"PK\x03\x04"[: len(data) - at], at):
        return 0
    if len(data) < at + _LOCAL.size:
        return None
    fields = _LOCAL.unpack_from(data, at)
    start = at + _LOCAL.size + fields[9]
    end = start + fields[10]
    if len(data) < end:
        return None
    packed: int = fields[7]
    if packed == 0xFFFFFFFF:
        kind, length, _, packed = _ZIP64.unpack(data[start:end].ljust(20, b"\0")[:20])
        if kind != 1 or length < 16:
            return 0
    changes = data[at:start].endswith((b".dist-info/METADATA", b".dist-info/RECORD"))
    return 0 if changes or fields[2] & 8 else end - at + packed


async def pass_on(
    wheel: HeldWheel,
    pieces: AsyncIterator[bytes],
    hashes: MutableMapping[str, str] | None = None,
    *,
    lasts: bool = True,
) -> AsyncIterator[bytes]:
    """Yield the bytes of a wheel as they arrive, from a single download.

    METADATA and all later members are held back until the end of the wheel, which lists
    the members, has arrived. Installers limit the time between two pieces, but not the
    total. The parameters and errors are those of `rewrite_pieces`.
    """
    comparison, new = Comparison(wheel.hashes, wheel.parts), hashlib.sha256()
    holding = HoldingBack()
    size = sent = 0
    with ExitStack() as stack:
        opened = tempfile.TemporaryFile(prefix="nvidia-variant-provider-")  # noqa: SIM115
        # Cast the temporary file, which is a wrapper on Windows.
        file = cast(BinaryIO, stack.enter_context(opened))
        async for piece in pieces:
            comparison.feed(piece)
            await asyncio.to_thread(file.write, piece)
            size += len(piece)
            if passed := holding.feed(piece):
                new.update(passed)
                sent += len(passed)
                yield passed
        _settle(wheel, comparison)
        stack.pop_all()  # other requests may use the complete copy, which closes it
    copy = CopiedWheel(file=file, url=wheel.place, received=comparison, lasts=lasts)
    try:
        plan = await wheel.plan(copy)
    except ChangedFileError as error:
        wheel.settle(error)
        raise
    if plan is None:
        async for piece in copy.pieces(sent):
            yield piece
        return
    if wheel.refusal is not None:
        raise InputError(f"refused, because {wheel.refusal}")
    if plan.unchanged < sent or plan.size != size:
        raise InputError("it cannot be rewritten", hint="build the wheel again")
    rewriting = Rewriting(plan)
    position = 0
    async for piece in copy.pieces():
        for made in rewriting.feed(piece):
            rest = made[max(0, sent - position) :]
            position += len(made)
            if rest:
                new.update(rest)
                yield rest
    end = rewriting.finish()
    new.update(end)
    if hashes is not None:
        hashes[new.hexdigest()] = comparison.sha256
    yield end


def make_pieces(
    wheel: SentWheel,
    pieces: AsyncIterator[bytes],
    hashes: MutableMapping[str, str] | None = None,
    *,
    lasts: bool = True,
) -> AsyncIterator[bytes]:
    """Return the bytes to send for a wheel, which depend on its kind.

    :param lasts: see `CopiedWheel`.
    """
    if isinstance(wheel, CopiedWheel):
        return pieces
    if isinstance(wheel, HeldWheel):
        return pass_on(wheel, pieces, hashes, lasts=lasts)
    if isinstance(wheel, EvaluatedWheel):
        return rewrite_pieces(wheel, pieces, hashes)
    return check_pieces(wheel, pieces)


async def save_rewritten(
    wheel: SentWheel,
    file: IO[bytes],
    client: Client,
    hashes: MutableMapping[str, str] | None = None,
) -> str:
    """Write the rewritten wheel to a file, and return its SHA-256."""
    digest = hashlib.sha256()
    async with AsyncExitStack() as stack:
        pieces = await stream_pieces(wheel.original, client, stack)
        async for piece in make_pieces(wheel, pieces, hashes):
            digest.update(piece)
            await asyncio.to_thread(file.write, piece)
    return digest.hexdigest()


class RewrittenWheels(RepositoryContainer):
    """Writes wheels with resolved variant markers into a directory.

    The server of simple-repository sends only files, texts and redirects. Put this
    component on top of a `VariantRepository` whose selection has ``rewrites=True``.

    :param source: the repository with the variants selected.
    :param folder: the directory of the rewritten wheels, which are never removed.
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
        """Return a file; a rewritten wheel is written first, unless it exists.

        :raises UpstreamError: the wheel cannot be read.
        :raises InputError: the wheel differs from that on the page.
        """
        resource = await self.source.get_resource(
            project_name, resource_name, request_context=request_context
        )
        if isinstance(resource, HeldWheel):
            # Download the wheel once to find out whether it must be rewritten.
            with tempfile.TemporaryFile() as nowhere:
                await save_rewritten(resource, nowhere, self._client)
            resource = await self.source.get_resource(
                project_name, resource_name, request_context=request_context
            )
        if not isinstance(resource, SentWheel):
            return resource
        path = self._folder / f"{_digest(resource)}.whl"
        async with self._writing.setdefault(path, asyncio.Lock()):
            # The name does not identify the bytes of a copy or of a held wheel.
            if isinstance(resource, CopiedWheel | HeldWheel) or not path.is_file():
                await self._write(resource, path)
        self._writing.pop(path, None)
        return model.LocalResource(path=path, to_cache=False)

    async def _write(self, wheel: SentWheel, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                await save_rewritten(wheel, file, self._client)
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise


def _digest(wheel: SentWheel) -> str:
    """Return a key for a wheel: a hash of the original and the changes."""
    known = "" if isinstance(wheel, CopiedWheel) else wheel.hashes.get("sha256")
    kind = type(wheel).__name__
    digest = hashlib.sha256(f"{kind} {known or wheel.place}\n".encode())
    for part in wheel.plan.parts if isinstance(wheel, EvaluatedWheel) else ():
        digest.update(part if isinstance(part, bytes) else repr(part).encode())
    return digest.hexdigest()
