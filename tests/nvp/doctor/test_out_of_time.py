"""The processor time and the memory of all checks of `doctor` together are limited."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from support.command import Run
from support.gpu_wheels import binary
from support.stacks import Installed, machine, make_environment, make_stack

from nvp import signals
from nvp.doctor import runner, software
from nvp.doctor.installation import find_installation
from nvp.doctor.model import CHECKS, Finding, Stack
from nvp.doctor.runner import diagnose
from nvp.gpu_code.inspection import inspect_recorded

pytestmark = pytest.mark.skipif(
    sys.platform == "win32", reason="Windows has no timer of processor time"
)

SLOW = "ND302"
"""The check that takes too long: a check before it and all checks after it exist."""


def endless(_: Stack) -> Iterator[Finding]:
    while True:
        with contextlib.suppress(Exception):  # as code that continues after an error
            yield from ()


def growing(_: Stack) -> Iterator[Finding]:
    piece = b"x" * (100 << 20)
    while piece:
        yield from ()


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    find, seconds = getattr(request, "param", (endless, 0.5))
    monkeypatch.setattr(runner, "_SECONDS", seconds)
    monkeypatch.setattr(runner, "_FOR_CHECKS", -9.0)  # GPU code is still read
    monkeypatch.setattr(runner, "_MEMORY", 50 << 20)
    monkeypatch.setitem(CHECKS, SLOW, CHECKS[SLOW]._replace(find=find))


@pytest.mark.parametrize(
    ("slow", "stopped"),
    [
        ((endless, 0.5), "after 0.5 seconds of processor time"),
        ((growing, 60), "at 50 MiB of memory"),
    ],
    indirect=["slow"],
)
@pytest.mark.usefixtures("slow")
def test_a_check_that_takes_too_much_is_stopped(
    stopped: str, run: Run, tmp_path: Path
) -> None:
    wanted = "nvidia-cublas==1"  # found by ND304, which is not run
    demo = Installed(files={"demo/plain.so": binary("plain.so")}, requires=[wanted])
    make_environment(tmp_path, demo)
    words = ["doctor", "--python", str(tmp_path), "--cuda-driver", "11.0"]
    words += ["--sm-arch", "12.1", "--receipt", str(tmp_path / "receipt.json")]
    before = signal.getsignal(signal.SIGPROF)
    result = run(*words)
    later = [code for code in sorted(CHECKS) if code >= SLOW and CHECKS[code].find]
    assert result.code == 3
    sentence = f"the checks were stopped {stopped}; not checked: {', '.join(later)}"
    assert " ".join(result.err.split()).count(sentence) == 1
    assert set(re.findall("^ND[0-9]+", result.out, re.MULTILINE)) == {"ND201"}
    assert not (tmp_path / "receipt.json").exists()
    assert signal.getsignal(signal.SIGPROF) == before
    assert signal.getitimer(signal.ITIMER_PROF) == (0, 0)


def search_for(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the search for the environment take processor time."""

    def find(*given: Any) -> Any:
        latest = time.process_time() + seconds
        while time.process_time() < latest:
            pass
        return find_installation(*given)

    monkeypatch.setattr(runner, "find_installation", find)


def test_the_search_for_the_environment_is_stopped(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_environment(tmp_path, Installed())
    monkeypatch.setattr(runner, "_SECONDS", 0.2)
    search_for(2, monkeypatch)
    result = run("doctor", "--python", str(tmp_path))
    assert result.code == 3
    assert "distributions was stopped after 0.2 seconds" in " ".join(result.err.split())


@pytest.mark.usefixtures("slow")
def test_the_search_leaves_less_time_for_the_checks(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search and checks of ten seconds each took twenty."""
    make_environment(tmp_path, Installed())
    search_for(0.3, monkeypatch)
    result = run("doctor", "--python", str(tmp_path))
    assert result.code == 3
    text = " ".join(result.err.split())
    assert re.search(r"the checks were stopped after 0\.[12] seconds", text)


def test_the_receipt_is_stopped(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It read all variants again, outside of the limit: `doctor` took 18 seconds."""
    make_environment(tmp_path, Installed())

    def make(*_: Any, **__: Any) -> None:
        while True:
            pass

    monkeypatch.setattr(runner, "make_receipt", make)
    monkeypatch.setattr(runner, "_SECONDS", 0.5)
    words = ["--receipt", str(tmp_path / "receipt.json")]
    result = run("doctor", "--python", str(tmp_path), *words)
    assert result.code == 3
    assert "the receipt was stopped after 0.5 seconds" in " ".join(result.err.split())


@pytest.mark.parametrize(("used", "left"), [(0.0, 6.0), (4.0, 3.0), (8.5, 0.0)])
def test_the_search_leaves_less_time_for_gpu_code(
    used: float, left: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They took 13 seconds together."""
    make_environment(tmp_path, Installed())
    seconds = iter([0.0, used])

    class Clock:
        monotonic = staticmethod(time.monotonic)

        @staticmethod
        def process_time() -> float:
            return next(seconds, used)

    monkeypatch.setattr(runner, "time", Clock)
    found = runner.diagnose_installation(
        str(tmp_path), environment=machine("12.8", "9.0"), is_here=False, environ={}
    )
    assert found.stack.reader._seconds == pytest.approx(left)


@pytest.mark.usefixtures("slow")
def test_the_report_of_checks_that_were_stopped(
    run: Run, tmp_path: Path, report_schema: Draft202012Validator
) -> None:
    make_environment(tmp_path, Installed())
    outcome = run("doctor", "--python", str(tmp_path), "--json")
    document = json.loads(outcome.out)
    report_schema.validate(document)
    assert (document["status"], outcome.code) == ("error", 3)
    assert document["data"]["distributions"] == []
    (error,) = document["errors"]
    assert "-v shows the time of each check" in error["hint"]


def test_the_reading_of_gpu_code_is_not_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*given: Any, **options: Any) -> Any:
        latest = time.process_time() + 0.6
        while time.process_time() < latest:
            pass
        return inspect_recorded(*given, **options)

    monkeypatch.setattr(software, "inspect_recorded", read)
    monkeypatch.setattr(runner, "_SECONDS", 0.5)
    demo = Installed(files={"demo/plain.so": binary("plain.so")})
    stack = make_stack(tmp_path, demo, environment=machine("13.4", "9.0"))
    diagnosis = diagnose(stack)
    assert diagnosis.unfinished is None
    assert [item.name for item, _ in diagnosis.stack.with_gpu_code()] == ["demo"]


@pytest.mark.parametrize(("seconds", "left"), [(3, 7), (9, 2)])
def test_the_reading_of_gpu_code_leaves_less_time(
    seconds: int, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Files of 18 MB took 4 seconds, and the checks took 10 more.
    with signals.limited(10, 1 << 40):
        # The reading may also fail.
        with contextlib.suppress(OSError), signals.unstopped():
            now = time.process_time() + seconds
            monkeypatch.setattr(time, "process_time", lambda: now)
            raise OSError
        (limit,) = signals._limits
        assert left - 0.5 < limit.until - now <= left + 0.1


class Careless:
    """An object during whose destruction a limit is reached."""

    def __del__(self) -> None:
        try:
            while True:
                pass
        finally:
            signals._limits[-1]._again = 0


def destroy() -> None:
    Careless()
    while True:
        pass


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_destructor_does_not_end_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "_AGAIN", 1e6)
    with pytest.raises(signals.StoppedError), signals.limited(0.1, 1 << 40):
        destroy()


@pytest.mark.skipif(sys.platform == "win32", reason="uses signals")
@pytest.mark.parametrize(
    ("number", "error"), [("SIGTERM", SystemExit), ("SIGINT", KeyboardInterrupt)]
)
def test_a_signal_while_a_class_is_made(number: str, error: type) -> None:
    class Name:
        def __set_name__(self, owner: type, name: str) -> None:
            signal.raise_signal(signal.Signals[number])

    with pytest.raises(error), signals.ending():
        type("Owner", (), {"name": Name()})


@pytest.mark.skipif(sys.platform == "win32", reason="uses signals")
@pytest.mark.parametrize(
    ("number", "error"), [("SIGTERM", SystemExit), ("SIGINT", KeyboardInterrupt)]
)
@pytest.mark.parametrize("place", ["destructor", "weak reference", "import"])
def test_a_signal_whose_exception_is_ignored(
    number: str, error: type, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        signal.raise_signal(signal.Signals[number])

    def work() -> None:
        methods = {"__del__": interrupt} if place == "destructor" else {}
        things = [type("Thing", (), methods)()]
        weak = place == "weak reference"
        reference = weakref.ref(things[0], interrupt if weak else None)
        things.clear()
        if place == "import":
            code = "signal.raise_signal(signal.Signals[number]); done.append(1)"
            names = {"signal": signal, "number": number, "done": things}
            exec(compile(code, "<frozen importlib._bootstrap>", "exec"), names)
            assert things == [1]
        while reference() is None:
            pass

    printed: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", printed.append)
    with pytest.raises(error), signals.limited(5, 1 << 40), signals.ending():
        work()
    assert printed == []


@pytest.mark.skipif(sys.platform == "win32", reason="uses signals")
@pytest.mark.parametrize("name", ["mkdir", "rmdir"])
def test_a_signal_while_a_temporary_directory_is_made(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    change = getattr(os, name)

    def interrupt(*args: Any, **options: Any) -> None:
        if name == "mkdir":
            change(*args, **options)
        signal.raise_signal(signal.SIGTERM)
        if name == "rmdir":
            change(*args, **options)

    def work() -> None:
        with tempfile.TemporaryDirectory():
            pass
        while True:
            pass

    monkeypatch.setattr(os, name, interrupt)
    with pytest.raises(SystemExit), signals.ending():
        work()
    assert [*tmp_path.iterdir()] == []


@pytest.mark.skipif(sys.platform == "win32", reason="uses signals")
def test_a_signal_of_the_timer_from_elsewhere() -> None:
    with pytest.raises(SystemExit, match="142"), signals.ending():
        signal.raise_signal(signal.SIGALRM)


@pytest.mark.skipif(sys.platform == "win32", reason="uses signals")
def test_a_second_signal_before_a_lock_is_taken_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`Condition.wait` releases its lock, and takes it again after an exception."""
    monkeypatch.setattr(signals, "_CLEANING", 0)
    lock = threading.Lock()

    def wait() -> None:
        try:
            lock.release()
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt), signals.ending(), lock:
        wait()


def test_a_thread_has_no_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "_SECONDS", 1e-6)
    stack = make_stack(tmp_path, Installed(), environment=machine("13.4", "9.0"))
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(diagnose(stack).unfinished))
    thread.start()
    thread.join()
    assert found == [None]
