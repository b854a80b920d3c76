"""Signals that mean something else for a while."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

__all__ = ["ENDING", "handling"]

ENDING = (signal.SIGTERM,) if os.name == "nt" else (signal.SIGTERM, signal.SIGHUP)
"""Those by which a process is told to end; an interrupt is another thing."""


@contextmanager
def handling(
    handlers: Mapping[signal.Signals, Callable[[int, object], object]],
) -> Iterator[None]:
    """Handle signals while the block lasts; in the main thread, as Python has it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, to) for number, to in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
