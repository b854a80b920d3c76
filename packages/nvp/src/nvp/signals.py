"""Handle signals temporarily, such as those that end the process or a long block."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

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

    with handling(dict.fromkeys(ENDING, end)):
        yield
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


class OutOfTimeError(BaseException):
    """A block has used up its processor time. No ``except Exception`` catches it."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Limit the processor time of a block, in all threads but not in child processes.

    The limit has no effect outside of the main thread, on Windows, and in a process
    with a profiler that uses the same timer.

    :raises OutOfTimeError: the time is used up. Catch it outside of the ``with`` block,
        because it may also be raised at the end of the block.
    """
    if (
        sys.platform == "win32"
        or threading.current_thread() is not threading.main_thread()
        or signal.getitimer(signal.ITIMER_PROF)[0]
    ):
        yield
        return

    def stop(_number: int, _frame: object) -> None:
        raise OutOfTimeError

    with handling({signal.SIGPROF: stop}):
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)


_LEFT = 2.0
"""The seconds that `unstopped` blocks leave to the surrounding `limited` block."""


@contextmanager
def unstopped() -> Iterator[None]:
    """Do not end a block because of the surrounding `limited` block, if any.

    The block's processor time counts, except that `_LEFT` seconds are left afterwards.
    """
    if sys.platform == "win32":
        yield
        return
    left, again = signal.setitimer(signal.ITIMER_PROF, 0)
    started = time.process_time()
    try:
        yield
    finally:
        left = max(left - (time.process_time() - started), min(left, _LEFT))
        signal.setitimer(signal.ITIMER_PROF, left, again)
