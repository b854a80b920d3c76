"""Waiting for the other indexes of an installer, on whose pages a page depends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from simple_repository.components.core import SimpleRepository

from nvidia_variant_provider.errors import InputError

from ..http.replies import without_frames
from ..http.urls import TooSlowError, UpstreamError
from .kept import WARNED, Aging
from .pieces import UNAVAILABLE

T = TypeVar("T")

_LATE, _LEAST, _SOON = 15.0, 3.0, 1.0
"""The seconds for which a page waits for other indexes; see `OtherIndexes`."""

_PAGE: ContextVar[tuple[SimpleRepository, list[float]]] = ContextVar("page")
"""The index of the page that is made, and the time until which it waits for others."""


class OtherIndexes:
    """Limits how long a page waits for other indexes, which uv alone may not need.

    A page waits `_LATE` seconds for all of them, and then `_LEAST` seconds for each.
    For the next minute, all pages wait only `_SOON` seconds for an index that is late.
    """

    def __init__(self) -> None:
        self._late: Aging[SimpleRepository, bool] = Aging(WARNED, 60)

    @contextmanager
    def of(self, index: SimpleRepository) -> Iterator[None]:
        """Make a page of ``index`` in the block, and wait for that index itself."""
        token = _PAGE.set((index, []))
        try:
            yield
        finally:
            _PAGE.reset(token)

    async def wait(self, index: SimpleRepository, work: Awaitable[T]) -> T:
        """Return the result of ``work``, which reads from an index.

        :raises TooSlowError: another index is late.
        """
        own, until = _PAGE.get((index, []))
        if own is index:
            return await work
        now = asyncio.get_running_loop().time()
        until[:] = until or [now + _LATE]
        seconds = _SOON if self._late.get(index) else max(_LEAST, until[0] - now)
        try:
            return await asyncio.wait_for(work, seconds)
        except UpstreamError as error:
            raise without_frames(error) from None
        except asyncio.TimeoutError:
            self._late.put(index, True)
            message = f"not there after {seconds:.2g} s"
            raise TooSlowError(message, hint="try again") from None

    async def read_names(
        self, indexes: Sequence[SimpleRepository], project: str
    ) -> list[list[str]]:
        """Return a project's file names in each index, without unreadable pages."""

        async def read(index: SimpleRepository) -> list[str]:
            try:
                page = await self.wait(index, index.get_project_page(project))
            except (InputError, *UNAVAILABLE):
                return []
            return [file.filename for file in page.files]

        return await asyncio.gather(*map(read, indexes))
