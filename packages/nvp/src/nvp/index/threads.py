"""The threads of the index that run an event loop."""

from __future__ import annotations

import threading

__all__ = ["THREAD_NAME", "is_running"]

THREAD_NAME = "nvidia-variant-provider index"


def is_running() -> bool:
    """Return whether such a thread runs, although the verb has ended."""
    return any(thread.name == THREAD_NAME for thread in threading.enumerate())
