"""METADATA of wheels, read once for ever: it belongs to a file's SHA-256.

The hash is what a page says of a wheel that nobody downloads for it. A page can give
the hash of a wheel of another index, with METADATA of its own making, so that what was
read is kept for the URL of the file too.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path

from simple_repository import model

from nvidia_variant_provider.errors import InputError

from ...kept_files import load, store
from ..http.urls import split_credentials
from .aging import Aging
from .files import FileReader

__all__ = ["CoreMetadataReader"]

logger = logging.getLogger(__name__)

_REMEMBERED = 256
_LONGEST = 4 * 1024 * 1024
_HEX = frozenset("0123456789abcdef")


class CoreMetadataReader:
    """Reads METADATA, and keeps it in a folder of the user.

    :param folder: where METADATA is kept by the SHA-256 of its wheel; ``None`` keeps
        it in memory only.
    :param clock: returns the time in seconds, by which METADATA of files without a
        SHA-256 ages.
    """

    def __init__(
        self,
        files: FileReader,
        folder: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._files = files
        self._folder = folder
        # By file name, with the hash or the URL that it belongs to. What is at a URL
        # may change.
        self._read: OrderedDict[str, tuple[str, bytes]] = OrderedDict()
        self._fresh: Aging[str, bool] = Aging(_REMEMBERED, clock=clock)

    def find(self, file: model.File) -> bytes | None:
        """Return METADATA of a file if it has been read."""
        identity = _identity(file)
        known = self._read.get(file.filename)
        # The page may have another file of this name by now.
        if known is None or known[0] != identity:
            return None
        if "sha256" not in file.hashes and not self._fresh.get(identity):
            return None
        return known[1]

    async def read(
        self,
        project: str,
        file: model.File,
        *,
        without_ranges: Callable[[], None] | None = None,
    ) -> bytes:
        """Read METADATA of a wheel.

        :param without_ranges: as for `FileReader.read_core_metadata`.
        :raises InputError: it cannot be read, or is not what the page announces.
        """
        name = file.filename
        known = self.find(file)
        if known is not None:
            return known
        path = self._path(file)
        content = _unseal(load(path, _LONGEST + len(_seal(b""))))
        if content is None:
            content = await self._files.read_core_metadata(
                project, name, without_ranges=without_ranges
            )
            if len(content) > _LONGEST:
                message = f"its METADATA is larger than {_LONGEST >> 20} MiB"
                raise InputError(message, path=name, hint="report it to the index")
            _check(file, content)
            # Make it text: it is sent as such, and its hash has to agree.
            text = content.decode("utf-8", "replace").encode()
            if text != content and file.dist_info_metadata:
                # pip compares what it gets with the hash of the page: the index has
                # to send it.
                return text
            content = text
            logger.info("%s: read %d bytes of METADATA", name, len(content))
            store(path, _seal(content))
        identity = _identity(file)
        self._fresh.put(identity, True)
        self._read[name] = identity, content
        if len(self._read) > _REMEMBERED:
            self._read.popitem(last=False)
        return content

    def _path(self, file: model.File) -> Path | None:
        digest = file.hashes.get("sha256", "").lower()
        if self._folder is None or len(digest) != 64 or not _HEX.issuperset(digest):
            return None
        # The query may be a signature that differs each time.
        place = split_credentials(file.url)[0].partition("?")[0].partition("#")[0]
        mark = hashlib.sha256(place.encode()).hexdigest()[:16]
        return self._folder / digest[:2] / f"{digest}-{mark}.metadata"


def _identity(file: model.File) -> str:
    return file.hashes.get("sha256") or file.url


def _seal(content: bytes) -> bytes:
    """Put the hash before METADATA: a crash of the machine can leave a file empty."""
    return hashlib.sha256(content).hexdigest().encode() + b"\n" + content


def _unseal(sealed: bytes | None) -> bytes | None:
    """Return METADATA of a file of the cache; ``None`` where it is damaged."""
    content = (sealed or b"").partition(b"\n")[2]
    return content if sealed == _seal(content) else None


def _check(file: model.File, content: bytes) -> None:
    """Compare METADATA with the hash that the page gives of it (PEP 658)."""
    announced = file.dist_info_metadata
    if not isinstance(announced, Mapping):
        return
    expected = announced.get("sha256")
    if expected and hashlib.sha256(content).hexdigest() != expected.lower():
        message = "its METADATA has another sha256 than the page says"
        raise InputError(message, path=file.filename, hint="report it to the index")
