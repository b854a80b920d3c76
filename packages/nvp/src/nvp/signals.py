"""Handle signals temporarily, such as those that end the process or a long block."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

if sys.platform != "win32":
    import resource

if sys.platform == "win32":
    ENDING: tuple[signal.Signals, ...] = (signal.SIGTERM,)
else:
    ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""The signals that end a process, except for the interrupt."""

_CLEANING = 3.0
"""The seconds after a signal in which a further one does not interrupt the cleaning.

A terminal that is closed sends SIGHUP twice: from the shell and from the kernel."""


@contextmanager
def handling(
    handlers: Mapping[signal.Signals, Callable[[int, object], object]],
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
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def ending() -> Iterator[None]:
    """Turn the signals that end the process into `SystemExit`.

    The exception closes files, removes temporary directories and kills child processes
    on its way.
    """
    told: list[int] = []
    until = 0.0

    def end(number: int, _: object) -> None:
        nonlocal until
        told.append(number)
        now = time.monotonic()
        if now >= until:
            until = now + _CLEANING
            raise SystemExit(128 + number)

    try:
        with handling(dict.fromkeys(ENDING, end)):
            yield
    except RuntimeError as error:
        # Before 3.12, Python wraps what a signal raises in `__set_name__`, which runs
        # while dataclasses are imported.
        if isinstance(error.__cause__, SystemExit | KeyboardInterrupt):
            raise error.__cause__ from None
        raise
    if told:
        # If a destructor was running, Python has ignored SystemExit: raise it again.
        raise SystemExit(128 + told[0])


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


class StoppedError(BaseException):
    """A block has used up its processor time or memory; the text says which of them.

    No ``except Exception`` catches the error.
    """


_TICK = 0.05
"""The processor time in seconds between two checks of a block."""

_AGAIN = 1.0
"""The processor time in seconds after which the error is raised again: a destructor may
have ignored the first one."""

_LEFT = 2.0
"""The seconds that `unstopped` blocks leave to the surrounding `limited` block."""

_MIB = 1 << 20


class _Limit:
    """The limits of a `limited` block, which a timer checks.

    :param until: the processor time of this process at which the block ends.
    :param is_off: whether the block may go on for now.
    """

    def __init__(self, seconds: float, memory: int) -> None:
        self._seconds = seconds
        self._memory = memory
        self._most = _resident() + memory
        self.until = time.process_time() + seconds
        self.is_off = False
        self._reason = ""

    def check(self, _number: int, _frame: object) -> None:
        now = time.process_time()
        is_late = now >= self.until
        if self.is_off or not (is_late or _resident() > self._most):
            return
        if not self._reason:
            time_used = f"after {self._seconds:g} seconds of processor time"
            memory_used = f"at {self._memory // _MIB} MiB of memory"
            self._reason = time_used if is_late else memory_used
        self.until, self._most = now + _AGAIN, sys.maxsize
        raise StoppedError(self._reason)


_limits: list[_Limit] = []
"""The limit of the current `limited` block, if any; used only in the main thread."""


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
def limited(seconds: float, memory: int) -> Iterator[None]:
    """Limit a block, in all threads but not in child processes.

    The limits have no effect outside of the main thread, on Windows, and in a process
    with a profiler that uses the same timer.

    :param seconds: the processor time of the block.
    :param memory: the additional memory in bytes. The block may exceed this limit by as
        much as it takes within 0.05 seconds, or in one call of a C function.
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
    limit = _Limit(seconds, memory)
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
        limit.until = max(limit.until, time.process_time() + left)
        limit.is_off = False
