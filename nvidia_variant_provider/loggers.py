"""Loggers for modules that must not import `logging`.

Importing `logging` costs an installer more than the whole plugin does, and ``resolve``
a tenth of its time. These loggers log only if the process has imported `logging`: the
command line does so for ``-v``, and a caller of the Python API that wants log lines
has configured them.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from logging import Logger as StandardLogger

__all__ = ["Logger"]


class Logger:
    """Stands for the logger of a module.

    :param name: the module's name.
    """

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def info(self, message: str, *values: object) -> None:
        """Log at INFO, if this process has imported `logging`."""
        logger = self._find()
        if logger is not None:
            logger.info(message, *values)

    def debug(self, message: str, *values: object) -> None:
        """Log at DEBUG, if this process has imported `logging`."""
        logger = self._find()
        if logger is not None:
            logger.debug(message, *values)

    def logs_debug(self) -> bool:
        """Return whether DEBUG is logged, for values that take long to compute."""
        logger = self._find()
        return logger is not None and logger.isEnabledFor(10)

    def _find(self) -> StandardLogger | None:
        logging = sys.modules.get("logging")
        return None if logging is None else logging.getLogger(self._name)
