"""The bytes of files in repositories, piece by piece, and the hashes of these bytes."""

from __future__ import annotations

import asyncio
import hashlib
import io
import logging
import os
import re
import threading
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import AsyncExitStack
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO, TypeVar

from packaging.utils import canonicalize_name
from packaging.version import Version
from simple_repository import errors, model
from simple_repository.components.core import RepositoryContainer, SimpleRepository

from nvidia_variant_provider.errors import InputError
from nvidia_variant_provider.strict_json import (
    open_regular,
    read_stream,
    unreadable,
)

from ...files import path_of
from ...wheels.archive import expands_too_far
from ..http.client import Client
from ..http.ranges import ChangedFileError, Comparison, Parts
from ..http.urls import is_http, path_of_file_url, with_suffix
from .kept import FOREVER, MARK, Aging, Kept, key_of, mark_of
from .options import Selection
from .renaming import find_label

logger = logging.getLogger(__name__)

T = TypeVar("T")

UNAVAILABLE = (
    errors.PackageNotFoundError,
    errors.ResourceUnavailable,
    errors.SourceRepositoryUnavailable,
)
"""The exceptions that third-party components raise if they cannot send a file."""

_PIECE = 1024 * 1024

_LONG, _GRACE = 1800.0, 15.0
"""The time limits in seconds of a download for which clients wait, and of one without
clients, as after a timeout of an installer that tries again."""

_HASHED = 10_000
"""The number of cached hashes, each of which required a download."""

_MOST = 8 << 30
"""The maximum number of bytes that are downloaded for hashes, for each index."""

_PATIENCE, _SLOWEST = 30.0, 1 << 20
"""These downloads end after so many seconds, and one more for each so many bytes."""


SERVED = re.compile(
    r"(?i)\w.*-v?\d.*(\.(whl|zip|egg|gz|bz2|xz|tgz)(\.metadata)?|-variants\.json)"
)
"""The names of the files that an index may serve, all with a version."""

PAGE = re.compile(r"index.*\.html")
"""The names of pages: mirrors have links to older pages."""

ANY = re.compile(r"(?s).*")
"""The names of directories."""

Settle = Callable[["ChangedFileError | None"], None]
"""Called with the result of verifying a wheel: the error, or ``None``."""

Check = Callable[[int], None]
"""Called with the size of the received part of a wheel; raises an error to stop."""

HAS_ENDED: ContextVar[Callable[[], Awaitable[bool]] | None] = ContextVar(
    "HAS_ENDED", default=None
)
"""Returns whether the client of a request has closed its connection."""


class Waiting:
    """Work for which clients wait; a download in it must call `check`."""

    def __init__(self, work: asyncio.Task[Kept]) -> None:
        self.work = work
        self.size = 0
        self._last = time.monotonic() + _LONG
        self._until = 0.0
        # asyncio reports an error that no client has waited for.
        work.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def wait(self) -> Kept | None:
        """Return the result; ``None`` if the client has ended before."""
        has_ended = HAS_ENDED.get()
        while not self.work.done():
            self._until = min(self._last, time.monotonic() + _GRACE)
            await asyncio.wait([self.work], timeout=1)
            if has_ended is not None and await has_ended():
                return None
        return self.work.result()

    def check(self, size: int) -> None:
        """Record the received size; raise `InputError` some time after the clients."""
        self.size = size
        if time.monotonic() > self._until:
            raise InputError("its download takes too long")


@dataclass(frozen=True, kw_only=True)
class IndexUrl(model.HttpResource):
    """A file on a server, which is named by the page of an index.

    :param index: the URL of the only index that gets the user's credentials; ``None``
        for all servers.
    """

    index: str | None


def client_of(resource: model.HttpResource, client: Client) -> Client:
    """Return the client that may read a file."""
    return client.only(resource.index) if isinstance(resource, IndexUrl) else client


def location_of(resource: model.Resource) -> str:
    """Return the URL or the path of a resource."""
    return str(getattr(resource, "url", None) or getattr(resource, "path", ""))


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedWheel(model.Resource):
    """A wheel that is compared, while it is sent, with the parts read for METADATA.

    :param original: the wheel, or its location.
    :param hashes: the hashes on the page, keyed by algorithm.
    :param parts: the parts that were read.
    """

    original: model.Resource
    hashes: Mapping[str, str]
    parts: tuple[Parts, ...] = ()
    settle: Settle = lambda _: None
    context: model.Context = field(default_factory=model.Context)
    to_cache: bool = False

    @property
    def place(self) -> str:
        """The URL or the path of the wheel."""
        return location_of(self.original)

    @property
    def size(self) -> int | None:
        """``None``: the size of the wheel is unknown."""
        return None


@dataclass(frozen=True, kw_only=True, eq=False)
class CopiedWheel(model.Resource):
    """A downloaded wheel, in a file that is removed with this object.

    :param url: the URL of the download.
    :param received: has the SHA-256 of the download; pages may give others for its URL.
    :param file: the file; unnamed if the system allows that, so it never outlives this
        process.
    :param lasts: whether its server allows installers to keep the wheel.
    :param size: the size of the download in bytes.
    """

    file: BinaryIO
    url: str
    received: Comparison
    lasts: bool = True
    size: int = field(init=False)
    context: model.Context = field(default_factory=model.Context)
    to_cache: bool = False
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        # Use a finalizer, which also works in garbage-collected cycles.
        weakref.finalize(self, self.file.close)
        object.__setattr__(self, "size", self.file.seek(0, os.SEEK_END))

    @property
    def original(self) -> CopiedWheel:
        """The wheel to send: this object itself."""
        return self

    @property
    def place(self) -> str:
        """The URL of the original."""
        return self.url

    def read(self, read: Callable[[BinaryIO], T]) -> T:
        """Return the result of ``read``, which has exclusive access to the file."""
        with self._turn:
            self.file.seek(0)
            return read(self.file)

    async def pieces(self, start: int = 0) -> AsyncIterator[bytes]:
        """Yield the bytes from position ``start`` to the end."""
        while piece := await asyncio.to_thread(self._read_at, start):
            start += len(piece)
            yield piece

    def _read_at(self, position: int) -> bytes:
        with self._turn:
            self.file.seek(position)
            return self.file.read(_PIECE)


async def find_own(
    index: SimpleRepository, project: str, file: model.File, suffix: str = ""
) -> model.Resource:
    """Return the resource of a file on a page, or of the file beside it with a suffix.

    A page may list several files of one name, of which the repository knows one. The
    results of reading another one must not be cached for this file.
    """
    resource = await index.get_resource(project, file.filename + suffix)
    url = with_suffix(file.url, suffix)
    is_stored = isinstance(resource, model.LocalResource) and not resource.to_cache
    if is_http(url) and isinstance(resource, model.HttpResource):
        return replace(resource, url=url)
    if is_http(url) and is_stored:
        return IndexUrl(url=url, index="")
    if isinstance(resource, model.LocalResource) and url.startswith("file:"):
        return replace(resource, path=Path(path_of_file_url(url)))
    return resource


def is_of_index(path: Path, index: Path, names: re.Pattern[str] = SERVED) -> bool:
    """Return whether a page, a directory or a named file belongs to an index.

    A copied mirror is untrusted, and may link to any local file. Mirrors often have
    files in sibling directories, beside which may be private files.

    :param index: the directory of the index without links when the command started: a
        stranger may exchange it for a link to any other later.
    """
    try:
        target = path.resolve()
    except (RuntimeError, ValueError):  # a chain of links, or a NUL byte
        return False
    # The directory of the index may itself be hidden.
    root = index if target.is_relative_to(index) else index.parent
    both = path.name, target.name  # a link may have another name
    if not (target.is_relative_to(root) and all(map(names.fullmatch, both))):
        return False
    return not any(part.startswith(".") for part in target.relative_to(root).parts)


@dataclass(frozen=True)
class IndexFile(model.LocalResource):
    """A local file of an index in a directory; see `is_of_index`."""

    index: Path | None = None
    names: re.Pattern[str] = SERVED


def open_local(resource: model.LocalResource) -> BinaryIO:
    """Open a local file.

    The links of an index may be those of a stranger, who may exchange them at any time.
    So the file that was opened counts.

    :raises ResourceUnavailable: the index must not name the file; see `is_of_index`.
    """
    file = open_regular(resource.path)
    if not isinstance(resource, IndexFile) or resource.index is None:
        return file
    path = Path(path_of(file.fileno(), file.name))
    if is_of_index(path, resource.index, resource.names):
        return file
    file.close()
    raise errors.ResourceUnavailable(resource.path.name)


def read_local(resource: model.LocalResource, limit: int | None = None) -> bytes:
    """Read a local metadata file or a page; see `open_local`.

    :raises InputError: the file cannot be read, or is too large.
    """
    name = str(resource.path)
    try:
        file = open_local(resource)
    except (OSError, ValueError) as error:
        raise unreadable(error, name) from None
    with file:
        return read_stream(file, name, limit=limit)


async def stream_pieces(
    resource: model.Resource, client: Client, stack: AsyncExitStack
) -> AsyncIterator[bytes]:
    """Open a resource; return an iterator over its bytes.

    :param stack: closes the file or the connection at the end of its block.
    :raises ResourceUnavailable: the kind of the resource is unknown.
    """
    if isinstance(resource, CopiedWheel):
        return resource.pieces()
    if isinstance(resource, model.LocalResource):
        return read_pieces(stack.enter_context(open_local(resource)))
    if isinstance(resource, model.TextResource):
        return read_pieces(io.BytesIO(resource.text.encode()))
    if not isinstance(resource, model.HttpResource):
        raise errors.ResourceUnavailable("a file of an unknown kind")
    # Request raw bytes: a Content-Encoding would change them.
    client = client_of(resource, client)
    opened = client.stream(resource.url, {"Accept-Encoding": "identity"})
    return (await stack.enter_async_context(opened)).aiter_raw()


async def read_pieces(file: BinaryIO) -> AsyncIterator[bytes]:
    """Yield the bytes of an open file."""
    while piece := await asyncio.to_thread(file.read, _PIECE):
        yield piece


class HashingRepository(RepositoryContainer):
    """Downloads wheels without a hash, and adds their SHA-256 to the page.

    pip selects the best file of a page and compares its hash afterwards. Without hashes
    on the page, it would download the best variant, and reject it if the user pinned
    the hash of another wheel of the release. Only wheels for the target are read, and
    only in pinned releases of projects with variants. A variant that cannot be read is
    not shown; pip alone would not see any.

    :param selection: has the versions that the user pins, and the target.
    """

    def __init__(
        self,
        source: SimpleRepository,
        client: Client,
        selection: Selection,
    ) -> None:
        super().__init__(source)
        self._client = client
        self._target = selection.target
        self._pinned = {
            project: {version for text in texts if (version := _parse(text))}
            for project, texts in selection.pinned.items()
        }
        self._turn = asyncio.Lock()
        self._arrived, self._waited = 0, 0.0
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
        missing = [file for file in page.files if self._lacks_hash(file, wanted)]
        # pip alone needs the regular wheels, so the limits end their downloads last.
        missing.sort(key=lambda file: find_label(file.filename) is not None)
        async with self._turn:  # a second request for the page finds the hashes
            digests = {key_of(x): await self._hash(project_name, x) for x in missing}
        files = []
        for file in page.files:
            digest = digests.get(key_of(file), "")
            if digest is None and find_label(file.filename) is not None:
                continue
            files.append(replace(file, hashes={"sha256": digest}) if digest else file)
            self._marks.put(mark_of(files[-1]), mark_of(file))
        return replace(page, files=tuple(files))

    def _lacks_hash(self, file: model.File, versions: Collection[Version]) -> bool:
        """Return whether a file is a wheel for the target that the user may mean."""
        name, target = file.filename, self._target
        is_meant = _parse((*name.split("-"), "")[1]) in versions
        if file.hashes or not name.endswith(".whl") or not is_meant or target is None:
            return False
        stem = name[:-4].removesuffix(f"-{find_label(name)}")
        tags = "-".join(stem.split("-")[-3:])
        return not expands_too_far(tags) and bool(target.find_pythons(tags, None))

    async def _hash(self, project: str, file: model.File) -> str | None:
        """Return the SHA-256 of a file; ``None`` if the file cannot be read."""
        key, digest = key_of(file), hashlib.sha256()
        if (known := self._known.get(key)) is not None:
            return known
        logger.info("%s: downloading it for its hash", file.filename)
        size, since = 0, time.monotonic() - self._waited
        try:
            self._check(file, 0, self._waited)
            resource = await find_own(self.source, project, file)
            async with AsyncExitStack() as stack:
                async for piece in await stream_pieces(resource, self._client, stack):
                    size += len(piece)
                    self._arrived += len(piece)
                    self._check(file, size, time.monotonic() - since)
                    digest.update(piece)
        except (InputError, OSError, *UNAVAILABLE) as error:
            logger.info("%s: cannot be read: %s", file.filename, error)
            return None
        finally:
            self._waited = time.monotonic() - since
        self._known.put(key, digest.hexdigest())
        return digest.hexdigest()

    def _check(self, file: model.File, size: int, waited: float) -> None:
        """End the downloads of an index that sends too much, or too slowly."""
        is_late = waited > _PATIENCE + self._arrived / _SLOWEST
        if is_late or self._arrived > _MOST or size > (file.size or size):
            raise InputError("the index sends too much, or too slowly")


def _parse(text: str) -> Version | None:
    try:
        return Version(text)
    except ValueError:
        return None
