"""The bytes of a wheel that is rewritten while it arrives."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, MutableMapping
from pathlib import Path

from nvidia_variant_provider.errors import InputError

from ...wheels.rewriting import RewritePlan, Rewriting

__all__ = ["read_pieces", "rewrite_pieces"]

_PIECE = 1024 * 1024


async def read_pieces(path: Path) -> AsyncIterator[bytes]:
    """Yield the bytes of a file of this machine."""
    with path.open("rb") as file:
        while piece := await asyncio.to_thread(file.read, _PIECE):
            yield piece


async def rewrite_pieces(
    pieces: AsyncIterator[bytes],
    plan: RewritePlan,
    sha256: str | None,
    hashes: MutableMapping[str, str] | None = None,
) -> AsyncIterator[bytes]:
    """Yield the bytes of the new wheel.

    The hash of the original is compared before the end of the new wheel is sent.
    Without that end the download is too short, and no installer takes it.

    :param sha256: the hash of the original, if it is known.
    :param hashes: gets the SHA-256 of the original by that of the new wheel.
    :raises InputError: the original is not the wheel that was planned.
    """
    rewriting = Rewriting(plan)
    digest, new = hashlib.sha256(), hashlib.sha256()
    async for piece in pieces:
        digest.update(piece)
        for made in rewriting.feed(piece):
            new.update(made)
            yield made
    if sha256 is not None and digest.hexdigest() != sha256.lower():
        message = "its sha256 is not the one that the page gives"
        raise InputError(message, hint="report it to the index")
    end = rewriting.finish()
    new.update(end)
    if hashes is not None:
        hashes[new.hexdigest()] = digest.hexdigest()
    yield end
