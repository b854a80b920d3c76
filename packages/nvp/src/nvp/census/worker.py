"""The code of a worker: read one wheel, and return the outcome.

A worker is a separate process, on this machine or on another one. Like the modules of
`cli/`, this module is therefore an entry point: it reads the environment variables of
its process, which may configure pip.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import queue
import re
import signal
import sys
import threading
import time
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import IO, Any, TypeAlias

from nvidia_variant_provider.errors import InputError, shown
from nvidia_variant_provider.strict_json import open_regular

from ..gpu_code.bounds import newest_runtime
from ..gpu_code.claims import find_claim
from ..gpu_code.files import is_text
from ..gpu_code.inspection import inspect_listing, list_wheel
from ..gpu_code.report import WheelReport
from ..gpu_code.units import split_units
from ..index import connect
from ..index.http.urls import TooLargeError, is_http
from ..signals import MEMORY, SECONDS, StoppedError, count_input, limited
from .model import Claimed, Outcome, Wheel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..index.http.blocking import BlockingClient

RETRIES = 5
"""How often a request is retried after a temporary failure."""

_WHOLE = 1024**3
"""The largest wheel to download if its server does not support range requests, or if it
has a defect."""

_SMALL = 1024 * 1024
"""The size in bytes up to which a wheel is downloaded whole. One request costs less
than several, and the hash can be compared with the hash on the page."""

_NATIVE = re.compile(
    r"(?:.*\.)?(?:so(?:\.[0-9.]+)?|pyd|dll|dylib|a|lib|o|obj|exe|cubin|fatbin|nvfatbin|ptx)"
    r"|[^.]+",
    re.IGNORECASE,
)
"""Names of files that may contain machine code. Programs such as ``ptxas`` have no dot
in their names."""

_IDLE = 60.0
"""The seconds without a wheel after which a process ends; its parent starts another."""

_INFO = re.compile(r"[^/]+\.dist-info/.*", re.DOTALL)

Credentials: TypeAlias = "tuple[tuple[str, tuple[str, str]], ...]"
"""Pairs of a server and its login: ``(server, (user, password))``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """A wheel to read.

    :param deadline: the time limit in seconds.
    :param credentials: the credentials from the user's URL.
    """

    wheel: Wheel
    deadline: float = 900.0
    credentials: Credentials = field(default=(), repr=False)


class _StoppedError(Exception):
    """Ends the reading of a wheel early.

    The class is neither an `OSError` nor a `ValueError`, which `gpu_code` would treat
    as damage to the wheel.

    :param error: the reason.
    """

    def __init__(self, error: InputError) -> None:
        super().__init__(error.message)
        self.error = error


class _Meter:
    """Counts the bytes read for a wheel, and enforces the time limit.

    :param seconds: the time limit.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.started = time.monotonic()
        self.until = self.started + seconds
        self.bytes_read = 0

    def add(self, count: int) -> None:
        self.bytes_read += count
        # Only bytes that have come raise the limits: a page can claim any size.
        count_input("", count, is_new=False)

    def check(self) -> None:
        """Check the time limit.

        :raises _StoppedError: the time limit was reached.
        """
        if self.is_over:
            raise _StoppedError(self.late())

    @property
    def is_over(self) -> bool:
        return time.monotonic() > self.until

    def late(self) -> InputError:
        return InputError(f"not read within {self._seconds:g} s")


class _Watched(io.RawIOBase):
    """A file whose read errors end the inspection instead of counting as damage.

    :param counts: whether to add the bytes to ``meter``; otherwise, ``file`` adds them.
    """

    def __init__(
        self, file: IO[bytes] | io.RawIOBase, meter: _Meter, *, counts: bool
    ) -> None:
        super().__init__()
        self._file = file
        self._meter = meter
        self._counts = counts

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._file.seek(offset, whence)
        # In Python 3.10, seek of a temporary file returns None.
        return self._file.tell()

    def readinto(self, buffer: Any) -> int:
        """Fill ``buffer``.

        :raises _StoppedError: the file cannot be read, or the time limit was reached.
        """
        self._meter.check()
        try:
            data = self._file.read(len(buffer)) or b""
        except InputError as error:
            raise _StoppedError(error) from None
        except OSError as error:
            message = f"cannot be read: {error.strerror or error}"
            raise _StoppedError(InputError(message)) from None
        if self._counts:
            self._meter.add(len(data))
        buffer[: len(data)] = data
        return len(data)


class _SkippedError(Exception):
    """A wheel is skipped on purpose; the text is the reason."""


def read_wheel(task: Task) -> Outcome:
    """Read a wheel; errors of the wheel or its server are part of the outcome.

    Only the bytes of a wheel make a failure or a defect final: bytes with the hash of
    the page, or of a local file whose size and time identify it. The server may send
    other bytes, or another status, the next time or for another login. So a wheel with
    a defect in some parts is downloaded, or each census would read the parts again. In
    the main thread of a process, the wheel has the limits of a command.
    """
    wheel, meter = task.wheel, _Meter(task.deadline)
    hashed, outcome = False, None
    try:
        opened = _open_remote if is_http(wheel.url) else _open_local
        with limited(SECONDS, MEMORY, grows=True):
            with opened(task, meter) as (file, hashed):
                outcome = inspect_wheel(file, wheel, meter)
            if not (hashed or _is_final(outcome)) and _can_be_hashed(outcome.wheel):
                with (
                    contextlib.suppress(_StoppedError, _SkippedError, InputError),
                    _open_remote(task, meter, whole=True) as (file, is_whole),
                ):
                    outcome, hashed = inspect_wheel(file, wheel, meter), is_whole
    except StoppedError as stop:
        error = InputError(f"reading it was stopped {stop}")
        outcome = outcome or _failed(wheel, error, meter)
    except _SkippedError as error:
        outcome = Outcome(wheel=wheel, status="skipped", reason=str(error))
    except _StoppedError as stop:
        outcome = _failed(wheel, stop.error, meter)
    except InputError as error:
        outcome = _failed(wheel, error, meter)
    except MemoryError:
        outcome = _failed(wheel, InputError("not enough memory"), meter)
    return replace(
        outcome,
        bytes_read=meter.bytes_read,
        seconds=time.monotonic() - meter.started,
        hashed=hashed,
        may_pass=outcome.may_pass or not (hashed or _is_final(outcome)),
    )


def serve() -> None:
    """Answer a parent process: with ``None``, and then with the outcome of each task.

    The process ends with its parent, or as soon as the parent closes the pipe.
    """
    # Windows sends Ctrl-C to all processes, but only the parent reacts to it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Keep a library that prints from writing between the outcomes.
    outcomes = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    tasks: queue.SimpleQueue[Task] = queue.SimpleQueue()

    def receive() -> None:
        try:
            while True:
                tasks.put(pickle.load(sys.stdin.buffer))  # noqa: S301  # it is ours
        finally:  # also while a wheel is read
            os._exit(1)

    threading.Thread(target=receive, name="waits for the parent", daemon=True).start()
    outcome = None
    try:
        while True:
            pickle.dump(outcome, outcomes)
            outcomes.flush()
            task = tasks.get(timeout=_IDLE)
            try:
                outcome = read_wheel(task)
            except Exception as error:  # noqa: BLE001  # it is part of the outcome
                outcome = lost(task.wheel, explain(error))
    finally:  # the parent has ended, or has no wheels: print no traceback
        os._exit(1)


def explain(error: Exception) -> str:
    """Return why a wheel was not read, given the exception of its worker."""
    name = type(error).__name__
    # Compare by name, because Dask might not be installed.
    if name == "KilledWorker":
        return "each worker that read it was lost"
    return f"its worker failed: {shown(f'{name}: {error}', 200)[1:-1]}"


def lost(wheel: Wheel, reason: str) -> Outcome:
    """Return the outcome of a wheel whose worker failed."""
    return Outcome(wheel=wheel, status="failed", reason=reason, may_pass=True)


def _is_final(outcome: Outcome) -> bool:
    """Return whether an outcome is final, although the bytes were not hashed."""
    if outcome.report is not None and outcome.report.complete:
        return True
    return outcome.wheel.hash is None and not is_http(outcome.wheel.url)


def _can_be_hashed(wheel: Wheel) -> bool:
    is_small = wheel.size is not None and wheel.size <= _WHOLE
    return is_small and wheel.hash is not None and is_http(wheel.url)


def _failed(wheel: Wheel, error: InputError, meter: _Meter) -> Outcome:
    if meter.is_over:
        error = meter.late()
    return lost(wheel, error.message)


@contextlib.contextmanager
def _open_local(task: Task, meter: _Meter) -> Iterator[tuple[IO[bytes], bool]]:
    path = task.wheel.url
    try:
        with open_regular(path) as file:
            before = os.fstat(file.fileno())
            with io.BufferedReader(_Watched(file, meter, counts=True)) as watched:
                yield watched, False
            after = os.stat(path)
    except OSError as error:
        message = f"cannot be read: {error.strerror or error}"
        raise InputError(message) from None
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise InputError("it has changed while it was read")


@contextlib.contextmanager
def _open_remote(
    task: Task, meter: _Meter, *, whole: bool = False
) -> Iterator[tuple[IO[bytes], bool]]:
    """Open a wheel on a server, by range requests or as a download.

    The second item is ``True`` if all bytes were read and have the hash of the page.

    :param whole: whether to download wheels of all sizes.
    """
    from ..index.http.blocking import room_for_copy

    wheel = task.wheel
    limit = room_for_copy(_WHOLE, _SMALL)
    with contextlib.ExitStack() as stack:
        try:
            source, digest = stack.enter_context(
                _client_for(task).provide(
                    wheel.file,
                    whole=whole or (wheel.size is not None and wheel.size <= _SMALL),
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
            raise _StoppedError(error)
        source.seek(0, io.SEEK_END)
        size = source.tell()
        if wheel.size is not None and size != wheel.size:
            message = f"it has {size} bytes, and {wheel.size} by the page"
            raise _StoppedError(InputError(message))
        source.seek(0)
        watched = io.BufferedReader(_Watched(source, meter, counts=False))
        hashed = digest is not None and digest == wheel.hash
        yield stack.enter_context(watched), hashed


_clients: dict[object, BlockingClient] = {}
_lock = threading.Lock()


def _client_for(task: Task) -> BlockingClient:
    """Return the client of this process, which reuses connections."""
    # A cluster keeps its workers for the next census, which may have other credentials
    # and then needs its own client.
    with _lock:
        if task.credentials not in _clients:
            client = connect(os.environ, retries=RETRIES)
            for server, pair in task.credentials:
                client.add_credentials(server, pair)
            _clients[task.credentials] = client
        return _clients[task.credentials]


def inspect_wheel(file: IO[bytes], wheel: Wheel, meter: _Meter) -> Outcome:
    """Inspect a wheel.

    METADATA and the list of members are read first. If there is no native library,
    nothing else is read.

    :param file: the open wheel, which must be seekable.
    :raises _StoppedError: the time limit was reached, or the file could not be read.
    """
    native = False

    def look(archive: zipfile.ZipFile) -> None:
        nonlocal native
        # Include damaged libraries, so a wheel that has only those is not skipped.
        native = any(map(is_native, archive.namelist()))

    listing = list_wheel(file, wheel.filename, look=look)
    if not native:
        listing.files.clear()
    report = inspect_listing(
        listing, wheel.filename, progress=lambda _done, _total: meter.check()
    )
    return _describe(wheel, report, native=native)


def _describe(wheel: Wheel, report: WheelReport, *, native: bool) -> Outcome:
    """Return the outcome of an inspected wheel.

    :param native: whether the wheel has a native library, or a file with GPU code.
    """
    if wheel.size is None:
        wheel = replace(wheel, size=report.size)
    for defect in report.defects:
        if not defect.path and not report.members:
            return Outcome(wheel=wheel, status="failed", reason=defect.message)
    if not native:
        reason = "it has no native library"
        return Outcome(wheel=wheel, status="skipped", reason=reason, report=report)
    claims, cuda = _claims(report)
    return Outcome(
        wheel=wheel, status="inspected", report=report, claims=claims, cuda=cuda
    )


def is_native(path: str) -> bool:
    """Return whether the name of a file suggests that it may contain machine code."""
    name = path.rpartition("/")[2]
    return (
        _NATIVE.fullmatch(name) is not None
        and _INFO.fullmatch(path) is None
        and not is_text(name)
    )


def _claims(report: WheelReport) -> tuple[Mapping[str, Claimed], str | None]:
    """Return the properties that a wheel could declare, and its CUDA version.

    The version comes from the libraries that the wheel links. To decide which drivers
    run a build, `builds.needs_of_report` also uses the toolkit of the code, because a
    library may link CUDA statically.
    """
    units = split_units(report)
    runtime = newest_runtime(report, units)
    claim = find_claim(report)
    sets = {
        "strict": (claim.strict, (*claim.sm_arch, *claim.exact)),
        "relaxed": (claim.relaxed, claim.relaxed_sm_arch),
    }
    claims = {
        name: Claimed(
            lower_bound=None if bound.version is None else str(bound.version),
            reason=bound.reason,
            sm_arch=tuple(values),
        )
        for name, (bound, values) in sets.items()
        if bound.version is not None or values
    }
    return claims, None if runtime is None else str(runtime.version)
