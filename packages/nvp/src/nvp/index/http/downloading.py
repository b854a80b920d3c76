"""Downloading a large file to disk, with its hash."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from typing import IO

from .client import Client
from .urls import UpstreamError, redacted

__all__ = ["Progress", "TooLargeError", "download"]

Progress = Callable[[int, int], None]
"""Called with the bytes that have arrived and their total, or 0 if that is unknown."""

_SLOWEST = 64 * 1024
"""Bytes a second below which a download is given up."""

_GRACE = 60.0
"""Seconds before that counts."""


class TooLargeError(UpstreamError):
    """A file is larger than the limit of its reader."""


async def download(
    client: Client,
    url: str,
    target: IO[bytes],
    *,
    limit: int,
    progress: Progress | None = None,
) -> str:
    """Write a file to ``target``, and return its sha256 in hexadecimal digits.

    :param limit: the most bytes that are read.
    :raises TooLargeError: the file is larger.
    :raises UpstreamError: it cannot be read to its end, or arrives very slowly.
    :raises OSError: ``target`` cannot be written.
    """
    digest = hashlib.sha256()
    done = 0
    started = time.monotonic()
    async with client.stream(url, {"Accept-Encoding": "identity"}) as response:
        length = response.headers.get("content-length", "")
        total = int(length) if length.isdecimal() and len(length) < 20 else 0
        if total > limit:
            raise _too_large(url, limit)
        async for chunk in response.aiter_raw():
            done += len(chunk)
            if done > limit:
                raise _too_large(url, limit)
            seconds = time.monotonic() - started
            if seconds > _GRACE and done < seconds * _SLOWEST:
                message = f"only {done} bytes came in {seconds:.0f} s"
                hint = "try again"
                raise UpstreamError(message, path=redacted(url), hint=hint)
            digest.update(chunk)
            _write(target, chunk, url)
            if progress is not None:
                progress(done, max(total, done))
    return digest.hexdigest()


def _write(target: IO[bytes], chunk: bytes, url: str) -> None:
    # The client takes an OSError in the block for one of the connection.
    try:
        target.write(chunk)
    except OSError as error:
        message = f"cannot be written to the temporary folder: {error.strerror}"
        hint = "make room there, or set TMPDIR to another folder"
        raise UpstreamError(message, path=redacted(url), hint=hint) from None


def _too_large(url: str, limit: int) -> TooLargeError:
    message = f"larger than {limit >> 20} MiB"
    hint = "download it first, and check the file"
    return TooLargeError(message, path=redacted(url), hint=hint)
