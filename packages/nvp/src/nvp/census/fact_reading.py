"""Reading one wheel for the rules of `lint`, in a worker.

The rules have to report the same whether a wheel is read here or by `validate` alone.
So the files are opened and read by the functions of `lint`.
"""

from __future__ import annotations

import contextlib
import io
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import IO

from nvidia_variant_provider.errors import InputError
from nvidia_variant_provider.strict_json import open_regular

from ..index.http.urls import UpstreamError, is_http, redacted
from ..lint.fact_reading import read_facts
from ..lint.facts import Unread, WheelFacts
from ..lint.index_files import IndexFile, OpenFile, Reading, local_file
from ..lint.pages import open_remote
from ..wheels.archive import explained, open_wheel
from .model import Outcome, Wheel
from .reading import (
    Meter,
    Readable,
    StoppedError,
    Watched,
    describe_report,
    is_native,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..index.http.blocking import BlockingClient

__all__ = ["read_for_rules"]


def read_for_rules(
    wheel: Wheel,
    meter: Meter,
    connect: Callable[[], BlockingClient],
    *,
    hashes: bool,
) -> Outcome:
    """Read a wheel as `validate` does. What is wrong with it is part of the outcome.

    :param connect: returns the client for a wheel on a server.
    :param hashes: read all of it, to compare its hash with that of the page.
    """
    reader = _Reader(wheel, meter, connect, hashes=hashes)
    try:
        facts = read_facts(reader.file)
        outcome = _describe(wheel, facts, native=reader.has_native)
    except StoppedError as stop:
        unread = Unread(message=stop.error.message, hint=stop.error.hint or "")
        outcome = Outcome(
            wheel=wheel,
            status="failed",
            reason=stop.error.message,
            may_pass=stop.may_pass,
            facts=WheelFacts(unread=unread),
        )
    return replace(
        outcome,
        bytes_read=meter.bytes_read,
        seconds=time.monotonic() - meter.started,
    )


class _Reader:
    """One wheel to read; the arguments are those of `read_for_rules`.

    ``has_native`` says whether it has native libraries, once it was read.
    """

    def __init__(
        self,
        wheel: Wheel,
        meter: Meter,
        connect: Callable[[], BlockingClient],
        *,
        hashes: bool,
    ) -> None:
        self._meter = meter
        self.has_native = False
        reading = Reading(hashes=hashes, jobs=1, arrived=meter.add)
        if is_http(wheel.url):
            self.file = IndexFile(
                name=wheel.filename,
                path=redacted(wheel.url),
                url=wheel.url,
                time=None,
                read=bytes,  # nobody reads a wheel as if it were metadata
                open_wheel=lambda: self._watch(
                    open_remote(
                        wheel.url, wheel.sha256, connect(), reading, page=wheel.page
                    )
                ),
                reading=reading,
                listed=True,
                sha256=wheel.sha256,
            )
        else:
            self.file = replace(
                local_file(wheel.url, reading),
                open_wheel=lambda: self._watch(self._open_local(wheel.url)),
            )

    @contextlib.contextmanager
    def _watch(
        self, opening: contextlib.AbstractContextManager[OpenFile]
    ) -> Iterator[OpenFile]:
        """Let errors of the server or of the disk end the reading.

        :raises StoppedError: the wheel could not be read, which says nothing about it.
        """
        try:
            with opening as opened:
                source: Readable = opened.source  # type: ignore[assignment]
                watched = Watched(source, self._meter, counts=False)
                with io.BufferedReader(watched) as wheel:
                    self.has_native = _has_native(wheel)
                    yield replace(opened, source=wheel)
        except UpstreamError as error:
            raise StoppedError(error, may_pass=True) from None

    @contextlib.contextmanager
    def _open_local(self, path: str) -> Iterator[OpenFile]:
        try:
            with explained():
                file = open_regular(path)
        except InputError as error:
            raise StoppedError(error, may_pass=True) from None
        with file:
            before = os.fstat(file.fileno())
            watched = Watched(file, self._meter, counts=True)
            yield OpenFile(source=io.BufferedReader(watched), jobs=1)
        try:
            after = os.stat(path)
        except OSError:
            after = before  # It was there when it was read.
        if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            changed = InputError("it has changed while it was read", hint="try again")
            raise StoppedError(changed, may_pass=True)


def _has_native(file: IO[bytes]) -> bool:
    # What is wrong with the archive is said when it is read for the rules.
    with contextlib.suppress(InputError), open_wheel(file) as archive:
        return any(map(is_native, archive.namelist()))
    return False


def _describe(wheel: Wheel, facts: WheelFacts, *, native: bool) -> Outcome:
    if facts.skipped is not None:
        # The reason may be gone the next time, such as a temporary folder that is full.
        return Outcome(
            wheel=wheel,
            status="skipped",
            reason=facts.skipped,
            may_pass=True,
            facts=facts,
        )
    report = facts.report
    if report is None:
        reason = "it cannot be read" if facts.unread is None else facts.unread.message
        is_whole = facts.content is None
        return Outcome(
            wheel=wheel,
            status="failed",
            reason=reason,
            may_pass=not is_whole,
            facts=facts,
            every_file=is_whole,
        )
    outcome = describe_report(wheel, report, native=native or bool(report.libraries))
    outcome = replace(outcome, facts=facts, every_file=True)
    listed = wheel.sha256
    if facts.sha256 is not None and listed and listed.lower() != facts.sha256:
        reason = f"its sha256 is {facts.sha256}, and not that of the page"
        return replace(outcome, status="failed", reason=reason, claims={}, cuda=None)
    return outcome
