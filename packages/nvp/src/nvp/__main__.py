"""The command line as a process of its own: ``nvp``, and ``python -m nvp``.

`nvp.cli.main` runs a verb in a process that goes on afterwards, as tests do.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys

from .cli import main

__all__ = ["run"]


def run() -> int:
    """Run the words of the process, and return its exit code."""
    # At its end, Python would look for cycles among all objects of all modules, which
    # takes longer than many a verb. The memory is freed without that.
    atexit.register(gc.freeze)
    code = main(sys.argv[1:])
    if _has_busy_thread():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _has_busy_thread() -> bool:
    """Return whether a thread of the index has not ended.

    Such a thread waits for a server or a keyring, and Python would wait for the thread.
    """
    # Most verbs have not imported the index.
    threads = sys.modules.get("nvp.index.threads")
    return threads is not None and threads.is_running()


if __name__ == "__main__":
    sys.exit(run())
