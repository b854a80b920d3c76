"""Handling signals differently for a while, such as those that end the process."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

if sys.platform == "win32":
    ENDING: tuple[signal.Signals, ...] = (signal.SIGTERM,)
else:
    ENDING = (signal.SIGTERM, signal.SIGHUP)
"""The signals that tell a process to end; an interrupt is handled apart."""


@contextmanager
def handling(
    handlers: Mapping[signal.Signals, Callable[[int, object], object]],
) -> Iterator[None]:
    """Handle signals while the block lasts.

    In other threads than the main one this does nothing, because Python allows
    handlers there only. A signal of `ENDING` that is ignored stays ignored: ``nohup``
    starts programs like that, which are to outlive their terminal.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {
        number: signal.signal(number, to)
        for number, to in handlers.items()
        if number not in ENDING or signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def ending() -> Iterator[None]:
    """Turn the signals that tell the process to end into `SystemExit`.

    On the way out, what the block has opened is closed, its temporary directories are
    removed, and what runs a child process kills the child.
    """
    told: list[int] = []

    def end(number: int, _: object) -> None:
        told.append(number)
        raise SystemExit(128 + number)

    with handling(dict.fromkeys(ENDING, end)):
        yield
    if told:
        # Python swallows an exception while it deletes an object.
        raise SystemExit(128 + told[0])
