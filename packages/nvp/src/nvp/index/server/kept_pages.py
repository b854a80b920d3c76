"""Cache pages of indexes, and merge equal requests.

The index sets the lifetime (RFC 9111; RFC 5861 for ``stale-if-error``). The cache is
private, like that of a browser, so ``s-maxage`` and ``private`` are ignored.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Mapping
from contextlib import nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from simple_repository import model
from simple_repository.content_negotiation import Format

from nvidia_variant_provider.errors import redacted

from ..http.kept_keys import kept_keys
from ..http.replies import TOO_MANY, read_date, without_frames
from ..http.threads import Share
from ..http.urls import CompleteResponse, PassingError, UpstreamError, server_of
from ..selection.kept import FOREVER, PAGES, SIZE_KEY, Aging, weigh

T = TypeVar("T")

logger = logging.getLogger(__name__)

Ask = Callable[
    ["KeptPage | None", Callable[[], None]],
    Awaitable[tuple[CompleteResponse, model.ProjectDetail]],
]
"""Reads a page again, given the cached one; returns the reply and the page. Calls the
function before the page waits for this program only, such as to be parsed."""

CUT_KEY = "_nvidia_variant_provider_cut"
"""The key that marks a truncated page. Its value has the reason in ``why``, and in
``has_length`` whether the reply announced a length."""

HTML_KEY = "_nvidia_variant_provider_html"
"""The key that marks a page that its index sent in HTML."""

_PERIOD = 10.0
"""The lifetime in seconds of a page whose index sets none, and the longest lifetime of
results made from pages, because verdicts on their wheels may change."""

_LONGEST = 600.0
"""The longest lifetime of a page in seconds, which is what PyPI sets. An index may have
yanked a file since, and the clients of this server cannot ask for a new page."""

LIMITING = frozenset({TOO_MANY, 503})
"""The statuses of servers that limit requests: RFC 6585, and the default of nginx."""

_PAUSES = (1.0, 2.0, 4.0, 8.0)  # in seconds, after one of these

_SKEW = 5.0  # the difference of clocks in seconds that does not count as an age

_PATIENCE, _STEPS = 3.0, 30
"""The seconds to wait for an index before its last page is sent instead, in steps: a
step takes longer while this program is busy, but the index is not slow. For as many
seconds after that, the last page is sent without another request."""

_MADE, _RESULT = 32 * 1024 * 1024, 4096
"""The maximum memory of results made from pages, and the memory of an empty one."""

_MEMORY = {b"{": 200, b"[": 90, b",": 80, b"=": 100}
"""The measured memory of a value after each character of a page, in bytes: a page of
many small values takes 35 times its size."""

_DIRECTIVE = re.compile(r'([\w-]+)(?:\s*=\s*(?:"([^"]*)"|([^\s,"]*)))?')
_VARYING = {"*", "user-agent"}  # each client may get another page
_LASTING = ("cache-control", "etag", "last-modified", "vary")
_VALIDATORS = {"etag": "If-None-Match", "last-modified": "If-Modified-Since"}

_TIMES: ContextVar[list[float]] = ContextVar("_TIMES")


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptPage:
    """A cached page of an index.

    :param url: the URL, after redirects.
    :param headers: the headers among `_LASTING`.
    :param since: the time when the index sent or confirmed the page.
    :param fresh: the time until which the page needs no request, by `time.monotonic`.
    :param usable: the time until which the page is sent instead of an error.
    """

    page: model.ProjectDetail
    url: str
    headers: Mapping[str, str]
    since: float
    fresh: float
    usable: float

    @property
    def weight(self) -> int:
        """The estimated memory in bytes."""
        return weigh(self.page) + sum(map(len, (self.url, *self.headers.values())))

    @property
    def validators(self) -> dict[str, str]:
        """The headers of a conditional request for the page."""
        found = ((name, self.headers.get(own, "")) for own, name in _VALIDATORS.items())
        return {name: text for name, text in found if text and text.isascii()}


class KeptPages:
    """Caches pages, and merges equal concurrent requests.

    :param warn: called with a sentence if an index fails and its last pages are sent.
    :param fresh: disable the cache.
    """

    def __init__(
        self,
        warn: Callable[[str], None],
        *,
        fresh: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._warn = warn
        self._keeps = not fresh
        self._clock = clock
        self._pages: Aging[Hashable, KeptPage] = Aging(
            PAGES, FOREVER, weigh=lambda kept: kept.weight
        )
        self._made: Aging[Hashable, tuple[float, Any]] = Aging(
            _MADE, _PERIOD, clock, lambda made: _RESULT + len(made[1].body)
        )
        self._running: dict[Hashable, asyncio.Task[Any]] = {}
        self._answered: set[Hashable] = set()
        # The failing servers that were reported to the user.
        self._failing: set[str] = set()

    async def read(
        self, url: str, make_key: Callable[[], Hashable], ask: Ask
    ) -> model.ProjectDetail:
        """Return a cached page, or the page that ``ask`` reads.

        :param make_key: returns the key of the page, with the current credentials of
            requests.
        """
        until = 0.0
        try:
            key = make_key()
            kept = self._pages.get(key)
            if kept is None or self._clock() >= kept.fresh:
                work = partial(self._renew, url, make_key, ask, kept)
                kept = await self._wait(url, key, kept, work)
            until = kept.fresh
            return kept.page
        except UpstreamError as error:
            raise without_frames(error) from None
        finally:
            note(until)

    async def make(self, key: Hashable, work: Callable[[], Awaitable[T]]) -> T:
        """Return the result of ``work``, cached while its pages are fresh."""
        made = self._made.get(key)
        if made is not None and self._clock() < made[0]:
            value: T = made[1]
            return value

        async def do() -> T:
            # Tasks that this task starts copy the variable, but share its list.
            times: list[float] = []
            _TIMES.set(times)
            result = await work()
            # Without times, no page came from a server: do not cache the result.
            until = min(times, default=0.0)
            if self._clock() < until:
                self._made.put(key, (until, result))
            return result

        return await asyncio.shield(self._start(("made", key), do))

    def _start(
        self, key: Hashable, work: Callable[[], Coroutine[Any, Any, T]]
    ) -> asyncio.Task[T]:
        """Return the task that runs ``work``, which may already be running."""
        task = self._running.get(key)
        if task is None:
            task = self._running[key] = asyncio.create_task(work())

            def end(done: asyncio.Task[T]) -> None:
                del self._running[key]
                if not done.cancelled():
                    done.exception()  # avoid a warning if no waiter is left

            task.add_done_callback(end)
        return task

    async def _wait(
        self,
        url: str,
        key: Hashable,
        last: KeptPage | None,
        work: Callable[[], Coroutine[Any, Any, KeptPage]],
    ) -> KeptPage:
        """Return the requested page, or the last page if the request fails or is slow.

        The last page is returned only while it is usable.
        """
        is_joined = ("page", key) in self._running
        task = self._start(("page", key), work)
        with Share.waits() if is_joined else nullcontext():
            if last is None or self._clock() >= last.usable:
                return await asyncio.shield(task)
            for _ in range(_STEPS):
                if not (task.done() or key in self._answered):
                    await asyncio.wait({task}, timeout=_PATIENCE / _STEPS)
            if key in self._answered:  # only this program is slow
                await asyncio.wait({task})
        try:
            found = await asyncio.wait_for(asyncio.shield(task), 0)
            cut: Any = found.page.private_metadata.get(CUT_KEY)
            if cut is None:
                return found
            why = cut["why"]
        except PassingError as error:
            why = error.message
        except asyncio.TimeoutError:
            why = f"no page within {_PATIENCE:g} s"
        now = self._clock()
        server = server_of(url)
        if server not in self._failing:
            self._failing.add(server)
            age = now - last.since
            self._warn(
                f"{redacted(url)}: {why}; pages of this index are sent as they were, "
                f"this one as {age:.0f} s ago"
            )
        stale = replace(last, fresh=min(now + _PATIENCE, last.usable))
        if self._pages.get(key) is last:  # else a newer page has arrived
            self._pages.put(key, stale)
        return stale

    async def _renew(
        self,
        url: str,
        make_key: Callable[[], Hashable],
        ask: Ask,
        last: KeptPage | None,
    ) -> KeptPage:
        key = make_key()
        try:
            reply, page = await ask(last, partial(self._answered.add, key))
        except Exception as error:
            if not isinstance(error, PassingError):
                self._pages.drop(key)
            raise
        finally:
            self._answered.discard(key)
        headers = {k: reply.headers[k] for k in _LASTING if k in reply.headers}
        if last is not None and page is last.page:
            logger.info("%s: has not changed", redacted(url))
            headers = {**last.headers, **headers}
        seconds = _lifetime(headers, _age_of(reply.headers))
        is_cut = CUT_KEY in page.private_metadata
        if not is_cut:
            self._failing.discard(server_of(url))
        now = self._clock()
        new = KeptPage(
            page=page,
            url=reply.url,
            headers=headers,
            since=now,
            fresh=now + sum(seconds[:1]),
            usable=now + sum(seconds),
        )
        # If credentials changed, the page may belong to the old ones: do not cache it.
        is_same = key == make_key() and reply.status in (200, 304)
        if self._keeps and seconds and is_same and not is_cut:
            self._pages.put(key, new)
            return new
        if not is_cut:
            self._pages.drop(key)
        return replace(new, fresh=0.0)


async def patiently(
    ask: Callable[[], Awaitable[T]], url: str, is_limited: Callable[[int | None], bool]
) -> T:
    """Return the page that ``ask`` reads, also if the server limits requests.

    :param is_limited: whether a status may be caused by requests that only this program
        sends; see `Upstream.is_limited`. Without these, an installer might have its
        page, so the status must not lead to the next index.
    :raises UpstreamError: the server refuses the page for too long.
    """
    status = None
    for seconds in (*_PAUSES, 0.0):
        try:
            return await ask()
        except UpstreamError as error:
            status = error.reply.status if error.reply is not None else None
            if not is_limited(status):
                raise
        with Share.waits():
            await asyncio.sleep(seconds)
    message = f"HTTP {status}, perhaps because of the requests of nvp"
    raise UpstreamError(message, url, hint="try again later")


def mark(
    page: model.ProjectDetail, reply: CompleteResponse, broken: Exception | None
) -> model.ProjectDetail:
    """Return a page with the keys of this module.

    :param broken: the reason why the reply is not complete, if it is not.
    """
    # A base is repeated in each URL.
    urls = sum(
        len(text)
        for file in page.files
        for text in (file.url, kept_keys(file).get("provenance"))
        if isinstance(text, str)
    )
    own: dict[str, Any] = {SIZE_KEY: _memory_of(reply.body) + urls}
    kind = reply.headers.get("content-type", "").lower()
    if not kind.startswith(Format.JSON_V1.value):
        own[HTML_KEY] = True
    if broken is not None:
        has_length = "content-length" in reply.headers
        own[CUT_KEY] = {"why": str(broken), "has_length": has_length}
    return replace(page, private_metadata=page.private_metadata | own)


def note(until: float) -> None:
    """Record the time until which a page is fresh, for `KeptPages.make`."""
    if (times := _TIMES.get(None)) is not None:
        times.append(until)


def _age_of(headers: Mapping[str, str]) -> float:
    """Return the seconds since an index, or a cache before it, made a reply.

    RFC 9111, section 4.2.3: "A response's age can be calculated in two entirely
    independent ways", by ``Age`` and by ``Date``, and the higher age counts.
    """
    date = read_date(headers.get("date", ""))
    apparent = 0.0 if date is None else time.time() - date
    # The clocks of servers differ.
    return max(_seconds(headers.get("age", "")), apparent if apparent > _SKEW else 0.0)


def _lifetime(headers: Mapping[str, str], age: float) -> tuple[float, ...]:
    """Return the seconds for which a page is fresh, and then usable after an error.

    :param age: the seconds since the page was made.
    :returns: an empty tuple if the page must not be cached.
    """
    found: dict[str, str] = {}
    for name, quoted, bare in _DIRECTIVE.findall(headers.get("cache-control", "")):
        found.setdefault(name.lower(), quoted or bare)
    vary = {name.strip().lower() for name in headers.get("vary", "").split(",")}
    if "no-store" in found or not vary.isdisjoint(_VARYING):
        return ()
    if "no-cache" in found:
        return 0.0, 0.0
    fresh, stale = _PERIOD, 0.0
    if "max-age" in found:
        left = _seconds(found["max-age"]) - age
        fresh, stale = max(0.0, left), max(0.0, -left)
    strict = "must-revalidate" in found
    after = 0.0 if strict else _seconds(found.get("stale-if-error", "")) - stale
    return min(fresh, _LONGEST), max(0.0, min(after, _LONGEST))


def _seconds(text: str) -> float:
    """Return a number of seconds; 0 if invalid (RFC 9111, 4.2.1)."""
    return float(text[:9]) if text.isascii() and text.isdigit() else 0.0


def _memory_of(body: bytes) -> int:
    """Return the estimated memory of the values of a page in bytes, without files."""
    # Text with other characters, perhaps escaped, takes up to four bytes for each.
    is_wide = not body.isascii() or b"\\u" in body or b"&" in body
    size = sum(each * body.count(sign) for sign, each in _MEMORY.items())
    return size + len(body) * (4 if is_wide else 1)
