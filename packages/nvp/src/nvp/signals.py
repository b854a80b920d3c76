"""Handle signals temporarily, such as those that end the process or a long block."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

TYPE_CHECKING = False
if TYPE_CHECKING:
    from concurrent.futures import Future
    from types import CodeType, FrameType
    from typing import Any

if sys.platform != "win32":
    import resource

S = TypeVar("S")
T = TypeVar("T")

if sys.platform == "win32":
    ENDING: tuple[signal.Signals, ...] = (signal.SIGTERM,)
else:
    ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""The signals that end a process, except for the interrupt."""

_CLEANING = 3.0
"""The seconds after a signal in which a further one does not interrupt the cleaning.

A terminal that is closed sends SIGHUP twice: from the shell and from the kernel."""

_SOON = 0.01
"""The seconds until a signal is raised again, if Python has ignored its exception."""


@contextmanager
def handling(
    handlers: Mapping[signal.Signals, Callable[[int, Any], object]],
) -> Iterator[None]:
    """Handle signals while the block lasts.

    The context has no effect outside of the main thread, because Python allows handlers
    only there. An ignored signal of `ENDING` stays ignored, because ``nohup`` starts
    programs that way to outlive their terminal.
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
    except RuntimeError as error:
        # Before 3.12, Python wraps what a signal raises in `__set_name__`, which runs
        # while dataclasses are imported. A second signal may be raised before a lock is
        # taken again, which Python then fails to release.
        cause = error.__cause__ or error.__context__
        if isinstance(cause, _RAISED):
            raise cause from None
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _is_delicate(frame: FrameType | None, *codes: CodeType) -> bool:
    """Return whether an exception would leave something behind for ever.

    This is a lock of ``import``, a child process that has no object yet, or a temporary
    directory that is being made or removed. Windows has no timer for `_raise_soon`.

    :param codes: other code in which an exception would be ignored.
    """
    if frame is None or sys.platform == "win32":
        return False
    if frame.f_code in codes or "importlib._bootstrap" in frame.f_code.co_filename:
        return True
    caller: FrameType | None = frame
    while caller is not None:
        name = os.path.basename(caller.f_code.co_filename)
        is_start = caller.f_code.co_name == "__init__"
        if name == "tempfile.py" or (name == "subprocess.py" and is_start):
            return True
        caller = caller.f_back
    return False


def _raise_soon(seconds: float = _SOON) -> None:
    if sys.platform != "win32":
        signal.setitimer(signal.ITIMER_REAL, seconds)


@contextmanager
def ending() -> Iterator[None]:
    """Turn Ctrl-C into `KeyboardInterrupt`, other signals of the end into `SystemExit`.

    The exception closes files, removes temporary directories and kills child processes
    on its way. A signal is raised again if Python ignores its exception, as in a
    destructor. An exception in the code of ``import`` would be ignored, or leave a lock
    for which other threads wait, and one in that of `subprocess.Popen` or `tempfile` a
    child process or a file. There, the signal is raised a moment later.
    """
    told: list[int] = []
    until = 0.0

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal until
        told.append(number)
        if _is_delicate(frame, note.__code__):
            _raise_soon()
        elif time.monotonic() >= until:
            until = time.monotonic() + _CLEANING
            is_interrupt = number == signal.SIGINT
            raise KeyboardInterrupt if is_interrupt else SystemExit(128 + number)

    def note(ignored: Any) -> None:
        nonlocal until
        if not isinstance(ignored.exc_value, _RAISED):
            report(ignored)
        elif told:  # otherwise it is from `limited`, which raises it again
            until = 0.0
            _raise_soon()

    handlers = dict.fromkeys(ENDING, end)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        handlers[signal.SIGINT] = end
    if sys.platform != "win32":
        handlers[signal.SIGALRM] = lambda number, frame: end([*told, number][0], frame)
    with handling(handlers):
        report, sys.unraisablehook = sys.unraisablehook, note
        try:
            yield
        finally:
            _raise_soon(0)
            sys.unraisablehook = report
    if told:
        until = 0.0
        end(told[0], None)


@contextmanager
def holding_back(*names: str) -> Iterator[None]:
    """Block signals in this thread, and in processes started in the ``with`` block.

    A process unblocks Ctrl-C as soon as it can end without a traceback. Windows cannot
    block signals.

    :param names: names such as ``SIGINT``, because Windows lacks some of the signals.
    """
    if sys.platform == "win32":
        yield
        return
    numbers = [signal.Signals[name] for name in names]
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


SECONDS, MEMORY = 20.0, 700 << 20
"""The processor time and the memory of a command, or of a wheel in a census. Large
inputs raise these limits."""


class StoppedError(BaseException):
    """A block has used up its processor time or memory; the text says which of them.

    No ``except Exception`` catches the error.

    :param path: the largest input of the block, if any; see `count_input`.
    """

    def __init__(self, reason: str, path: str | None = None) -> None:
        super().__init__(reason)
        self.path = path


_RAISED = (SystemExit, KeyboardInterrupt, StoppedError)
"""What the handlers of signals raise."""

_TICK = 0.05
"""The processor time in seconds between two checks of a block."""

_AGAIN = 1.0
"""The processor time in seconds after which the error is raised again: a destructor may
have ignored the first one."""

_LEFT = 2.0
"""The seconds that `unstopped` blocks leave to the surrounding `limited` block."""

_MIB = 1 << 20

_AWAKE = 0.05
"""The number of seconds after which a waiting thread wakes up."""

_FREE = 32 * _MIB
"""The size of the inputs that every block may have. Larger inputs raise its limits."""

_SECONDS_PER_INPUT, _SECONDS_PER_MIB = 0.05, 1.0
"""The processor time for each input, and for each MiB after `_FREE`. The slowest form
is YAML, with 0.2 seconds for a MiB."""

_TIMES = 8
"""The memory for the inputs after `_FREE`, as a multiple of their size."""

_SHARE = 0.75
"""The part of the limits of a block that one input may use up."""

STOPPED = "check that this is the right file, or split it"
"""The hint for an input with which a limit is reached."""


class _Limit:
    """The limits of a `limited` block, which a timer checks.

    :param grows: whether inputs raise the limits.
    :param start: the processor time of this process from which the limit counts.
    :param until: the processor time at which the block ends.
    :param is_off: whether the block may go on for now.
    """

    def __init__(self, seconds: float, memory: int, *, grows: bool) -> None:
        self.start, self._base = time.process_time(), _resident()
        self.until, self._most = self.start + seconds, self._base + memory
        self.grows = grows
        self.is_off = False
        self._reason, self._again = "", 0.0
        self._size = self._largest = 0
        self._path: str | None = None

    def add(self, path: str, size: int, *, is_new: bool) -> None:
        """Raise the limits for an input."""
        if size > self._largest or self._path is None:
            self._largest, self._path = size, path
        before = max(self._size, _FREE)
        self._size += size
        more = max(self._size, _FREE) - before
        self.until += more / _MIB * _SECONDS_PER_MIB + is_new * _SECONDS_PER_INPUT
        self._most += more * _TIMES

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Hold back a part of the limits for what follows the block."""
        before = self.start, self._base
        self.start, self._base = time.process_time(), _resident()
        seconds = (self.until - self.start) * (1 - _SHARE)
        memory = int((self._most - self._base) * (1 - _SHARE))
        self.until, self._most = self.until - seconds, self._most - memory
        try:
            yield
        finally:
            self.until, self._most = self.until + seconds, self._most + memory
            self.start, self._base = before
            self._reason, self._again = "", 0.0

    def check(self, _number: int, frame: FrameType | None) -> None:
        now = time.process_time()
        if self.is_off or now < self._again or _is_delicate(frame):
            return
        if now >= self.until:
            reason = f"after {self.until - self.start:.3g} seconds of processor time"
        elif self._reason or _resident() > self._most:
            reason = f"at {(self._most - self._base) // _MIB} MiB of memory"
        else:
            return
        self._reason, self._again = self._reason or reason, now + _AGAIN
        raise StoppedError(self._reason, self._path)


_limits: list[_Limit] = []
"""The limit of the current `limited` block, if any; changed only in the main thread."""


def _resident() -> int:
    """Return the memory of this process in bytes: current on Linux, else the peak."""
    if sys.platform != "win32":
        try:
            with open("/proc/self/statm", "rb") as file:
                return int(file.read().split()[1]) * resource.getpagesize()
        except OSError:
            most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            return most if sys.platform == "darwin" else most * 1024
    return 0


@contextmanager
def limited(seconds: float, memory: int, *, grows: bool = False) -> Iterator[None]:
    """Limit a block, in all threads but not in child processes.

    The limits have no effect outside of the main thread, on Windows, and in a process
    with a profiler that uses the same timer.

    :param seconds: the processor time of the block.
    :param memory: the additional memory in bytes. The block may exceed this limit by as
        much as it takes within 0.05 seconds, or in one call of a C function.
    :param grows: whether inputs raise the limits; see `count_input`.
    :raises StoppedError: a limit is reached. Catch it outside of the ``with`` block,
        because it may also be raised at the end of the block.
    """
    if (
        sys.platform == "win32"
        or threading.current_thread() is not threading.main_thread()
        or signal.getitimer(signal.ITIMER_PROF)[0]
    ):
        yield
        return
    limit = _Limit(seconds, memory, grows=grows)
    with handling({signal.SIGPROF: limit.check}):
        try:
            _limits.append(limit)
            signal.setitimer(signal.ITIMER_PROF, _TICK, _TICK)
            yield
        finally:
            limit.is_off = True
            signal.setitimer(signal.ITIMER_PROF, 0)
            _limits.remove(limit)


@contextmanager
def bounded(seconds: float = SECONDS, memory: int = MEMORY) -> Iterator[None]:
    """Limit a block; unlike `limited`, raise `InputError` if a limit is reached."""
    try:
        with limited(seconds, memory, grows=True):
            yield
    except StoppedError as error:
        from nvidia_variant_provider.errors import InputError, redacted

        path = None if error.path is None else redacted(error.path)
        message = f"the command was stopped {error}"
        raise InputError(message, path=path, hint=STOPPED) from None


@contextmanager
def unstopped() -> Iterator[None]:
    """Do not end a block because of the surrounding `limited` block, if any.

    The block's processor time counts, except that `_LEFT` seconds are left afterwards.
    Its memory counts at its end.
    """
    is_main = threading.current_thread() is threading.main_thread()
    limit = _limits[-1] if _limits and is_main else None
    if limit is None:
        yield
        return
    limit.is_off = True
    left = min(limit.until - time.process_time(), _LEFT)
    try:
        yield
    finally:
        more = max(0.0, time.process_time() + left - limit.until)
        limit.start, limit.until = limit.start + more, limit.until + more
        limit.is_off = False


def wait_for(futures: Sequence[Future[Any]]) -> None:
    """Wait for the work of other threads, and wake up regularly.

    Python calls the handlers of signals, such as that of the timer of `limited`, only
    in the main thread, and not while it waits.
    """
    from concurrent.futures import wait

    while wait(futures, _AWAKE).not_done:
        pass


_threads = threading.local()


def go_on() -> None:
    """End a thread of `map_in_threads` after an error in another thread.

    :raises StoppedError: another thread has failed, or was stopped.
    """
    if getattr(_threads, "failed", None) and _threads.failed.is_set():
        raise StoppedError("after an error in another thread")


def map_in_threads(
    jobs: int,
    function: Callable[[T], S],
    items: Iterable[T],
    stop: Callable[[], object] = bool,
) -> list[S]:
    """Return the results of a function, which threads call; wake up as `wait_for`.

    :param stop: called after an error, to make the function fail in other threads. So
        does `go_on`, if the function calls it.
    """
    from concurrent.futures import ThreadPoolExecutor

    failed = threading.Event()
    pool = ThreadPoolExecutor(
        jobs, initializer=setattr, initargs=(_threads, "failed", failed)
    )
    try:
        tasks = [pool.submit(function, item) for item in items]
        for task in tasks:
            if not task.done():
                wait_for([task])
            task.result()
    except BaseException as error:
        failed.set()
        stop()
        # At its end, the process waits for threads too, but only for a short time.
        pool.shutdown(wait=isinstance(error, Exception), cancel_futures=True)
        raise
    pool.shutdown()
    return [task.result() for task in tasks]


def count_input(path: str, size: int = 0, *, is_new: bool = True) -> None:
    """Raise the limits of the surrounding `limited` block, if it grows, for an input.

    :param size: the size in bytes.
    :param is_new: whether this is a further input, not a further part of one.
    """
    for limit in _limits[-1:]:
        if limit.grows:
            limit.add(path, size, is_new=is_new)


@contextmanager
def reading(path: str, size: int = 0) -> Iterator[None]:
    """Count an input, and leave a part of the limits to the inputs after the block.

    :raises InputError: a limit is reached.
    """
    count_input(path, size)
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or not _limits or not _limits[-1].grows:
        yield
        return
    try:
        with _limits[-1].shared():
            yield
    except StoppedError as error:
        from nvidia_variant_provider.errors import InputError

        message = f"reading it was stopped {error}"
        raise InputError(message, path=path, hint=STOPPED) from None
