"""Waiting for the other indexes of an installer, on whose pages a page depends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TypeVar

from simple_repository.components.core import SimpleRepository

from nvidia_variant_provider.errors import InputError

from ..http.replies import without_frames
from ..http.urls import TooSlowError, UpstreamError
from .kept import WARNED, Aging
from .pieces import UNAVAILABLE

T = TypeVar("T")

_LATE, _LEAST, _SOON, _KEPT = 15.0, 3.0, 1.0, 0.1
"""The seconds for which a page waits for other indexes; see `OtherIndexes`."""


@dataclass(slots=True)
class _Waits:
    """The waits of a page for the indexes other than ``own``."""

    own: SimpleRepository
    until: float | None = None
    is_late: bool = False
    known: set[SimpleRepository] = field(default_factory=set)


_WAITS: ContextVar[_Waits | None] = ContextVar("waits", default=None)
"""The waits of the page that is made."""


class OtherIndexes:
    """Limits how long a page waits for other indexes, which uv alone may not need.

    A page waits `_LATE` seconds for all of them, also if it reads much, then `_LEAST`
    seconds for one that it has not waited for, and `_KEPT` seconds for what is cached.
    For the next minute, all pages wait only `_SOON` seconds for an index that is late.
    A page without the files of an index must not be judged: the page of that index
    would be judged with all files, so both could have no file that is shown.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._late: Aging[SimpleRepository, bool] = Aging(WARNED, 60, clock)

    @contextmanager
    def of(self, index: SimpleRepository) -> Iterator[None]:
        """Make a page of ``index`` in the block, and wait for that index itself."""
        token = _WAITS.set(_Waits(index))
        try:
            yield
        finally:
            _WAITS.reset(token)

    @property
    def is_late(self) -> bool:
        """Whether another index was late for the page that is made."""
        waits = _WAITS.get()
        return waits is not None and waits.is_late

    async def wait(self, index: SimpleRepository, work: Awaitable[T]) -> T:
        """Return the result of ``work``, which reads from an index.

        :raises TooSlowError: another index is late.
        """
        waits = _WAITS.get()
        if waits is None or waits.own is index:
            return await work
        now = asyncio.get_running_loop().time()
        waits.until = waits.until or now + _LATE
        left = max(waits.until - now, _KEPT if index in waits.known else _LEAST)
        waits.known.add(index)
        was_late = self._late.get(index)
        seconds = min(left, _SOON) if was_late else left
        try:
            return await asyncio.wait_for(work, seconds)
        except UpstreamError as error:
            raise without_frames(error) from None
        except asyncio.TimeoutError:
            waits.is_late = True
            if not was_late and seconds >= _SOON:
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
