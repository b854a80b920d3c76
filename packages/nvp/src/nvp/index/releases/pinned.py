"""Read METADATA and GPU code of individual pinned wheels.

A lock file may contain the URL of a wheel. Otherwise the wheel is searched for on the
user's own indexes, never on an index that only the lock file names.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.version import Version
from simple_repository import errors, model
from simple_repository.components.core import SimpleRepository

from nvidia_variant_provider.errors import InputError, ProviderError, listed

from ...knowledge.builds import Needs
from ...wheels.archive import parse_requires
from ..http.client import Client
from ..http.threads import LoopThread
from ..http.urls import Settings, is_long
from ..pip.settings import Indexes
from ..selection.pieces import UNAVAILABLE
from ..selection.reader import Reader
from ..selection.wheel_files import find_wheels
from .machines import open_sources
from .reading import Watch

logger = logging.getLogger(__name__)

_PATIENCE = 20.0
"""The time limit in seconds for METADATA of one wheel. After this time, METADATA of
further wheels is not requested."""

_AT_ONCE = 8
_NAMED = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Pinned:
    """A pinned wheel.

    :param platform: the platform, as in the table of builds.
    :param filename: the file name; ``None`` if the lock file does not contain it.
    :param url: the URL, or the absolute path of a local file.
    """

    project: str
    version: Version
    platform: str | None
    filename: str | None = None
    url: str | None = None
    sha256: str | None = None
    size: int | None = None

    @property
    def file(self) -> model.File | None:
        """The wheel as a file of an index page; ``None`` without a usable URL."""
        if self.filename is None or self.url is None or is_long(self.url, ""):
            return None
        hashes = {"sha256": self.sha256} if self.sha256 else {}
        return model.File(self.filename, self.url, hashes, size=self.size)


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """The evidence about a wheel.

    :param requires: the ``Requires-Dist`` fields; ``None`` if they were not read.
    :param needs: the result of a new or cached inspection.
    """

    requires: tuple[str, ...] | None = None
    needs: Needs | None = None


class _Wheels(SimpleRepository):
    """A repository of the wheels with known URLs."""

    def __init__(self, files: Mapping[str, model.File]) -> None:
        self._files = files

    async def get_resource(
        self,
        project_name: str,  # noqa: ARG002
        resource_name: str,
        *,
        request_context: model.RequestContext | None = None,  # noqa: ARG002
    ) -> model.Resource:
        """Return the location of a wheel."""
        file = self._files.get(resource_name)
        if file is None:
            raise errors.ResourceUnavailable(resource_name)
        if file.url.startswith(("http://", "https://")):
            return model.HttpResource(url=file.url)
        return model.LocalResource(path=Path(file.url), to_cache=False)


def find_kept(wheels: Sequence[Pinned], cache: str | None) -> list[Found]:
    """Return the results of cached inspections of wheels, without requests."""
    reader = Reader(Client(Settings()), cache)
    return [
        Found(needs=reader.find_inspected(file) if file else None)
        for file in (wheel.file for wheel in wheels)
    ]


def read_pinned(
    wheels: Sequence[Pinned],
    *,
    environ: Mapping[str, str],
    indexes: Indexes,
    is_taken: Callable[[str], int | None],
    cache: str | None,
    inspects: Callable[[Pinned, Found], bool],
    watch: Watch,
    warn: Callable[[str], None],
) -> list[Found]:
    """Read METADATA of wheels, and the GPU code of selected ones.

    :param is_taken: returns the rank of a wheel, given its name; ``None`` if the wheel
        is for another platform or Python.
    :param inspects: returns whether to inspect a wheel, given its METADATA.
    :param warn: called with a sentence for each wheel that cannot be read.
    """
    opened: Sequence[SimpleRepository] = ()
    turns = asyncio.Semaphore(_AT_ONCE)
    late: list[str] = []

    async def read(wheel: Pinned) -> Found:
        title = f"{wheel.project} {wheel.version}"
        async with turns:
            if time.monotonic() > until:
                late.append(title)
                return Found()
            try:
                return await _read(
                    wheel, reader, opened, is_taken, inspects=inspects, watch=watch
                )
            except UNAVAILABLE as error:
                logger.debug("%s: %s", wheel.project, error)
                warn(f"{title}: no index sends its METADATA")
            except asyncio.TimeoutError:
                late.append(title)
            except (OSError, ProviderError) as error:
                warn(f"{title}: {error}")
            except ValueError:  # of Python, which may quote a password
                warn(f"{title}: its URL or its path is malformed")
            return Found()

    async def read_all() -> list[Found]:
        return await asyncio.gather(*map(read, wheels))

    with ExitStack() as stack:
        try:
            sources = stack.enter_context(open_sources(indexes, environ, cache))
            reader, opened = sources.releases.reader, sources.indexes
            thread = sources.thread
        except ProviderError as error:
            # Without pip, the indexes are unknown: read at least the wheels with URLs.
            if not any(wheel.file for wheel in wheels):
                raise
            warn(f"no index was asked: {error}")
            reader, thread = Reader(Client(Settings()), cache), LoopThread()
            stack.callback(lambda: thread.close(reader.client.close()))
        until = time.monotonic() + _PATIENCE
        found = thread.call(read_all())
    if late:
        warn(f"no METADATA in {_PATIENCE:g} s of {listed(late, _NAMED)}")
    return found


async def _read(
    wheel: Pinned,
    reader: Reader,
    indexes: Sequence[SimpleRepository],
    is_taken: Callable[[str], int | None],
    *,
    inspects: Callable[[Pinned, Found], bool],
    watch: Watch,
) -> Found:
    file = wheel.file
    index: SimpleRepository
    if file is not None:
        index = _Wheels({file.filename: file})
    else:
        file, index = await _find_on_indexes(wheel, indexes, is_taken)
    if file is None:
        return Found()
    project = wheel.project
    metadata = await asyncio.wait_for(
        reader.read_metadata(index, project, file), _PATIENCE
    )
    found = Found(requires=parse_requires(metadata), needs=reader.find_inspected(file))
    if found.needs is None and wheel.platform and inspects(wheel, found):
        with watch(file.filename) as progress:
            needs = await reader.inspect(index, project, file, wheel.platform, progress)
        found = replace(found, needs=needs)
    return found


async def _find_on_indexes(
    wheel: Pinned,
    indexes: Sequence[SimpleRepository],
    is_taken: Callable[[str], int | None],
) -> tuple[model.File | None, SimpleRepository]:
    """Find the file that an installer would select for a wheel, and its index."""
    best: tuple[int, model.File, SimpleRepository] | None = None
    failures: list[BaseException] = []
    for index in indexes:
        try:
            page = await index.get_project_page(wheel.project)
        except (InputError, *UNAVAILABLE) as error:
            failures.append(error)
            continue
        for each in find_wheels(page.files, wheel.project):
            name = each.file.filename
            same = each.version == wheel.version and name == (wheel.filename or name)
            rank = is_taken(name) if same else None
            if rank is not None and (best is None or rank < best[0]):
                best = rank, each.file, index
    if failures and len(failures) == len(indexes):
        raise failures[0]
    return (best[1], best[2]) if best else (None, _Wheels({}))
