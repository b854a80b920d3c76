"""Log lines of detection, for processes that log.

Importing `logging` costs an installer more than the whole plugin does, so that
detection never imports it. The command line imports and configures `logging`
before it detects anything; elsewhere these functions do nothing.
"""

from __future__ import annotations

import sys

__all__ = ["debug", "info"]

_NAME = "nvidia_variant_provider.detection"


def info(message: str, *values: object) -> None:
    """Log at INFO, if this process has imported `logging`."""
    logging = sys.modules.get("logging")
    if logging is not None:
        logging.getLogger(_NAME).info(message, *values)


def debug(message: str, *values: object) -> None:
    """Log at DEBUG, if this process has imported `logging`."""
    logging = sys.modules.get("logging")
    if logging is not None:
        logging.getLogger(_NAME).debug(message, *values)
