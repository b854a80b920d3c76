"""What a worker does: it reads one wheel, and says what became of it.

A worker is a process of its own, on this machine or on another one. So this module is
an entry point, as the modules of `cli/` are: it reads the environment variables of its
own process, by which pip is configured there.
"""

from __future__ import annotations

import contextlib
import io
import os
import platform
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import IO

from nvidia_variant_provider.errors import InputError

from .. import __version__
from ..index import connect
from ..index.http.urls import UpstreamError, is_http
from .model import Outcome, Wheel
from .reading import Meter, Readable, StoppedError, Watched, inspect_wheel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..index.http.blocking import BlockingClient

__all__ = ["RETRIES", "Limits", "OtherVersionError", "Task", "read_wheel"]

RETRIES = 5
"""How often a request is sent again that failed for a reason that may pass."""

_SMALL = 1024 * 1024
"""Bytes of a wheel that is read as a whole. One request costs less than several, and
its hash can be compared with that of the page."""

_GONE = (404, 410, 451)
"""Statuses by which a server says that a file will not be there again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What one wheel may cost.

    :param seconds: how long it may be read.
    :param whole: the most bytes of a wheel that is read as a whole because its server
        sends no parts.
    """

    seconds: float = 900.0
    whole: int = 1024**3


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """A wheel to read.

    :param version: the version of the package that made the task.
    :param credentials: user and password of the URL that the user gave, by server.
    """

    wheel: Wheel
    limits: Limits = field(default_factory=Limits)
    version: str = __version__
    credentials: tuple[tuple[str, tuple[str, str]], ...] = field(default=(), repr=False)


class OtherVersionError(InputError):
    """A worker has another version of this package than the census."""


class _SkippedError(Exception):
    """A wheel is not read on purpose; the text says why."""


def read_wheel(task: Task) -> Outcome:
    """Read a wheel. What is wrong with it, or with its server, is part of the outcome.

    :raises OtherVersionError: this process has another version of the package.
    """
    if task.version != __version__:
        message = f"this worker has version {__version__} of nvp"
        hint = f"install version {task.version} there"
        raise OtherVersionError(message, path=_own_name(), hint=hint)
    wheel, meter = task.wheel, Meter(task.limits.seconds)
    try:
        opened = _open_remote if is_http(wheel.url) else _open_local
        with opened(task, meter) as file:
            outcome = inspect_wheel(file, wheel, meter)
    except _SkippedError as error:
        outcome = Outcome(wheel=wheel, status="skipped", reason=str(error))
    except StoppedError as stop:
        outcome = _failed(wheel, stop.error, meter, may_pass=stop.may_pass)
    except InputError as error:
        outcome = _failed(wheel, error, meter)
    except MemoryError:
        outcome = _failed(wheel, InputError("not enough memory"), meter)
    return replace(
        outcome,
        bytes_read=meter.bytes_read,
        seconds=time.monotonic() - meter.started,
    )


def _failed(
    wheel: Wheel, error: InputError, meter: Meter, *, may_pass: bool = True
) -> Outcome:
    if may_pass and meter.is_over:
        error = meter.late()
    gone = isinstance(error, UpstreamError) and error.status in _GONE
    return Outcome(
        wheel=wheel,
        status="failed",
        reason=error.message,
        may_pass=may_pass and not gone,
    )


@contextlib.contextmanager
def _open_local(task: Task, meter: Meter) -> Iterator[IO[bytes]]:
    path = task.wheel.url
    try:
        with open(path, "rb", buffering=0) as file:
            before = os.fstat(file.fileno())
            with _buffered(file, meter, counts=True) as watched:
                yield watched
            after = os.stat(path)
    except OSError as error:
        message = f"cannot be read: {error.strerror or error}"
        raise InputError(message) from None
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise InputError("it has changed while it was read")


@contextlib.contextmanager
def _open_remote(task: Task, meter: Meter) -> Iterator[IO[bytes]]:
    """Open a wheel on a server: in parts, or all of it where that is better.

    :raises _SkippedError: the server sends only whole files, and this is too large.
    """
    from ..index.http.blocking import room_for_copy
    from ..index.http.urls import TooLargeError

    wheel = task.wheel
    limit = room_for_copy(task.limits.whole, _SMALL)
    with contextlib.ExitStack() as stack:
        try:
            source, digest = stack.enter_context(
                _client_for(task).provide(
                    wheel.file,
                    whole=wheel.size is not None and wheel.size <= _SMALL,
                    most=limit,
                    in_memory=_SMALL,
                    largest_answer=0,
                    until=meter.until,
                    arrived=meter.add,
                )
            )
        except TooLargeError:
            message = (
                f"its server sends only whole files, and it has more than "
                f"{limit >> 20} MiB"
            )
            raise _SkippedError(message) from None
        given = wheel.sha256
        if digest is not None and given is not None and digest != given.lower():
            error = InputError(f"its sha256 is {digest}, and not that of the page")
            raise StoppedError(error, may_pass=False)
        source.seek(0, io.SEEK_END)
        _check_size(source.tell(), wheel)
        source.seek(0)
        yield stack.enter_context(_buffered(source, meter, counts=False))


def _check_size(size: int, wheel: Wheel) -> None:
    if wheel.size is not None and size != wheel.size:
        message = f"it has {size} bytes, and {wheel.size} by the page"
        raise StoppedError(InputError(message), may_pass=False)


@contextlib.contextmanager
def _buffered(file: Readable, meter: Meter, *, counts: bool) -> Iterator[IO[bytes]]:
    with io.BufferedReader(Watched(file, meter, counts=counts)) as watched:
        yield watched


_clients: dict[object, BlockingClient] = {}
_lock = threading.Lock()


def _client_for(task: Task) -> BlockingClient:
    """Return the client of this process, whose connections are used again."""
    # A cluster keeps its workers from one census to the next, which may have others.
    with _lock:
        if task.credentials not in _clients:
            client = connect(os.environ, retries=RETRIES)
            for server, pair in task.credentials:
                client.add_credentials(server, pair)
            _clients[task.credentials] = client
        return _clients[task.credentials]


def _own_name() -> str:
    """Return the address of a Dask worker, or else the machine and the process."""
    if "distributed" in sys.modules:
        from distributed import get_worker

        with contextlib.suppress(ValueError):
            return str(get_worker().address)
    return f"{platform.node()}:{os.getpid()}"
