"""Log lines of both packages on stderr, for ``-v`` and ``-vv``.

Only this module configures ``logging``; all others only log.
"""

from __future__ import annotations

import contextlib
import logging
import platform
import re
import threading
import time
from collections.abc import Iterator

from .. import __version__
from .render import complain, waiting_line

_logger = logging.getLogger(__name__)

_PACKAGES = "nvp", "nvidia_variant_provider"
_LEVELS = {1: logging.INFO}

_SILENCE = 2.0
"""Seconds that a command may work before the waiting line appears."""

_PAUSE = 0.25
"""Seconds between two updates of the waiting line."""

_CREDENTIALS = re.compile(r"(?<=://)[^/\s@]*(?:@[^/\s@]+)*(?=@)")
_SECRET = re.compile(
    r"((?:token|key|secret|signature|sig|password|authorization)[\w-]{0,99}['\"]?\s*[=:]\s*['\"]?"
    r"(?:(?:basic|bearer)\s+)?)[^\s&#,;'\"]+",
    re.IGNORECASE,
)


class _Handler(logging.Handler):
    """Prints to the current stderr, which a progress bar may have replaced."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            complain(redact(self.format(record)), wraps=False)
        except Exception:  # noqa: BLE001  # a bad log line must not end the command
            self.handleError(record)


@contextlib.contextmanager
def logging_to_stderr(verbosity: int) -> Iterator[None]:
    """Print log lines of nvp and of the provider while the context lasts.

    :param verbosity: the number of ``-v``: 1 for INFO, more for DEBUG.
    """
    handler = _Handler()
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    with _handling(handler, _LEVELS.get(verbosity, logging.DEBUG)):
        yield


@contextlib.contextmanager
def showing_waits(command: str) -> Iterator[None]:
    """Show the latest log message on the terminal if a command takes over two seconds.

    The line is hidden while a progress bar is shown.
    """
    latest = _Latest()
    ended = threading.Event()

    def show() -> None:
        started = time.monotonic()
        if ended.wait(_SILENCE):
            return
        while not ended.wait(_PAUSE):
            seconds = time.monotonic() - started
            waiting_line.show(f"{command}, {seconds:.0f} s: {latest.text()}")
        waiting_line.clear()

    thread = threading.Thread(target=show, name="waiting")
    thread.start()
    try:
        with _handling(latest, logging.INFO):
            yield
    finally:
        ended.set()
        thread.join()


class _Latest(logging.Handler):
    """Keeps the latest record, and formats it only if the line is shown."""

    record: logging.LogRecord | None = None

    def emit(self, record: logging.LogRecord) -> None:
        self.record = record

    def text(self) -> str:
        return "working" if self.record is None else redact(self.record.getMessage())


@contextlib.contextmanager
def _handling(handler: logging.Handler, level: int) -> Iterator[None]:
    """Send the log of nvp and of the provider to a handler while the context lasts."""
    loggers = [logging.getLogger(name) for name in _PACKAGES]
    before = [(logger.level, logger.propagate) for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(level)
        logger.propagate = False
    try:
        yield
    finally:
        for logger, (own, propagates) in zip(loggers, before, strict=True):
            logger.removeHandler(handler)
            logger.setLevel(own)
            logger.propagate = propagates


def log_start(command: str) -> None:
    """Log the command, the versions of nvp and Python, and the platform."""
    _logger.info(
        "running %s: version %s, Python %s, %s",
        command,
        __version__,
        platform.python_version(),
        platform.platform(),
    )


def redact(text: str) -> str:
    """Return ``text`` without passwords in URLs, query strings and headers.

    Callers also redact their messages. This is a second line of defense, because users
    paste logs into public issues.
    """
    return _SECRET.sub(r"\1****", _CREDENTIALS.sub("****", text))
