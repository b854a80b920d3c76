"""Run a child process with a deadline, in both ways of `spawn`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from nvidia_variant_provider.detection import spawn
from nvidia_variant_provider.detection.probe import PARENT_OF_PACKAGE

Run = Callable[[Sequence[str], Mapping[str, str], float], tuple[bytes, bool]]

posix = pytest.mark.skipif(sys.platform == "win32", reason="POSIX only")


@pytest.fixture(
    # Windows has only the second way, which works on every system.
    params=[
        pytest.param(spawn._run_with_posix_spawn, marks=posix, id="posix_spawn"),
        pytest.param(spawn._run_with_subprocess, id="subprocess"),
    ]
)
def run(request: pytest.FixtureRequest) -> Run:
    way: Run = request.param
    return way


def python(code: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", code]


def test_the_whole_output_is_returned(run: Run) -> None:
    assert run(python("print('x' * 200_000)"), os.environ, 60) == (
        b"x" * 200_000 + os.linesep.encode(),
        True,
    )


def test_the_child_has_the_given_variables_only(run: Run) -> None:
    code = "import os; print(os.environ['A'], 'B' in os.environ)"
    output, _ = run(python(code), {"A": "1", "SYSTEMROOT": ""}, 60)
    assert output.split() == [b"1", b"False"]


def test_stdin_is_empty_and_stderr_goes_nowhere(
    run: Run, capfd: pytest.CaptureFixture[str]
) -> None:
    code = "import sys; sys.stderr.write('noise'); print(repr(sys.stdin.read()))"
    assert run(python(code), os.environ, 60)[0].strip() == b"''"
    assert capfd.readouterr().err == ""


@posix
def test_what_was_written_before_the_deadline_is_kept(run: Run) -> None:
    code = "import sys, time; print('known', flush=True); time.sleep(1000)"
    output, in_time = run(python(code), os.environ, 2)
    assert (output, in_time) == (b"known\n", False)


@posix
def test_a_child_that_ignores_signals_is_not_waited_for(run: Run) -> None:
    code = (
        "import signal, time\n"
        "for number in range(1, 65):\n"
        "    try: signal.signal(number, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\n"
        "time.sleep(1000)"
    )
    start = time.monotonic()
    assert run(python(code), os.environ, 0.5)[1] is False
    # The limit is not for speed: a call that waits for the child takes 1000 s.
    assert time.monotonic() - start < 50


def test_a_program_that_does_not_exist_is_an_error(run: Run) -> None:
    with pytest.raises(OSError, match="no-such-program"):
        run(["/no-such-program"], os.environ, 60)


@posix
def test_a_crash_ends_the_output_in_time(run: Run) -> None:
    code = f"import os; os.kill(os.getpid(), {int(signal.SIGKILL)})"
    assert run(python(code), os.environ, 60) == (b"", True)


@posix
@pytest.mark.parametrize("again", [False, True])
def test_an_interrupt_kills_the_child(
    again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []

    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    def start(*arguments: Any) -> tuple[int, int]:
        pid, reader = _start(*arguments)
        started.append(pid)
        return pid, reader

    class Interrupted:
        """A fake of `select.poll`, whose wait Ctrl-C interrupts."""

        def register(self, *_: object) -> None: ...

        def poll(self, _: float) -> list[object]:
            if again:  # a second Ctrl-C at the next call
                monkeypatch.setattr(os, "close", interrupted)
            raise KeyboardInterrupt

    _start = spawn._start
    monkeypatch.setattr(spawn, "_start", start)
    monkeypatch.setattr("select.poll", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        spawn._run_with_posix_spawn(
            python("import time; time.sleep(1000)"), os.environ, 60
        )
    monkeypatch.undo()
    (pid,) = started
    for _ in range(1000):
        spawn._reap()
        if pid not in spawn._left:
            break
        time.sleep(0.01)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@posix
def test_a_child_that_prints_without_end_is_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(spawn, "_MOST", 100_000)
    output, in_time = spawn.run(python("while True: print('x' * 1000)"), os.environ, 60)
    assert in_time is False
    assert 100_000 < len(output) < 1_000_000


@posix
def test_threads_do_not_wait_for_each_others_children() -> None:
    def ask(number: int) -> tuple[bytes, bool]:
        return spawn.run(python(f"print({number})"), os.environ, 60)

    with ThreadPoolExecutor(8) as pool:
        outputs = list(pool.map(ask, range(32)))
    assert outputs == [(f"{number}\n".encode(), True) for number in range(32)]


@posix
def test_no_descriptor_and_no_zombie_is_left() -> None:
    before = len(os.listdir("/dev/fd"))
    for _ in range(5):
        spawn.run(python("pass"), os.environ, 60)
    assert len(os.listdir("/dev/fd")) == before
    for _ in range(1000):
        spawn._reap()
        if not spawn._left:
            break
        time.sleep(0.01)
    assert not spawn._left


def test_an_interrupt_of_the_terminal_does_not_look_like_a_crash(run: Run) -> None:
    """A program that detects in a thread may go on after Ctrl-C."""
    code = f"""
import signal, sys
sys.path.append({PARENT_OF_PACKAGE!r})
from nvidia_variant_provider.detection.child import libcuda, main
def ask():
    signal.raise_signal(signal.SIGINT)
    return ()
libcuda.ask = ask
main.main("libcuda", 60)
"""
    output, in_time = run(python(code), os.environ, 60)
    assert (output.split(), in_time) == ([b"ready", b"end"], True)


@posix
def test_a_child_that_ends_after_its_output_is_reaped() -> None:
    """Otherwise, it stayed a zombie until the end of the installer."""
    for _ in range(9):  # a busy machine may take longer once
        code = "import os, time; os.write(1, b'end\\n'); time.sleep(0.01); os._exit(0)"
        output, in_time = spawn.run(python(code), os.environ, 100, last=b"end\n")
        assert (output, in_time) == (b"end\n", True)
        if not spawn._left:
            return
    raise AssertionError


@posix
def test_a_thread_that_forks_does_not_delay_the_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forked: list[int] = []
    spawn_child = os.posix_spawn

    def fork_and_spawn(*arguments: Any, **options: Any) -> int:
        pid = os.fork()  # as a thread does at this moment; the child has the pipe
        if not pid:
            time.sleep(1000)
            os._exit(0)
        forked.append(pid)
        return spawn_child(*arguments, **options)

    monkeypatch.setattr(os, "posix_spawn", fork_and_spawn)
    start = time.monotonic()
    try:
        output, in_time = spawn.run(
            python("print('end')"), os.environ, 100, last=b"end\n"
        )
    finally:
        for pid in forked:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    assert (output, in_time) == (b"end\n", True)
    # The limit is not for speed: a call that waits for the pipe takes 100 s.
    assert time.monotonic() - start < 90


@posix
def test_an_interrupt_kills_the_child_of_windows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def communicate(child: subprocess.Popen[bytes], **_: object) -> None:
        started.append(child)
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess.Popen, "communicate", communicate)
    with pytest.raises(KeyboardInterrupt):
        spawn._run_with_subprocess(
            python("import time; time.sleep(1000)"), os.environ, 60
        )
    (child,) = started
    for _ in range(1000):
        if os.waitpid(child.pid, os.WNOHANG)[0]:
            return
        time.sleep(0.01)
    raise AssertionError("the child still runs")


def run_code(code: str) -> subprocess.CompletedProcess[bytes]:
    """Run code in a fresh Python."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, timeout=100, check=False)


def test_a_python_without_posix_spawn() -> None:
    # `subprocess` looks for these functions when it is imported.
    code = (
        "import os, sys\n"
        "for name in dir(os):\n"
        "    if name.lower().startswith('posix_spawn'):\n"
        "        delattr(os, name)\n"
        "from nvidia_variant_provider.detection import spawn\n"
        "command = [sys.executable, '-c', 'print(1)']\n"
        "print(spawn.run(command, os.environ, 60, last=b'1\\n'))"
    )
    done = run_code(code)
    assert done.stdout.split() == [b"(b'1\\n',", b"True)"], done.stderr


def test_a_child_whose_parent_was_killed_ends_on_windows() -> None:
    code = (
        "import sys, time, types\n"
        "from nvidia_variant_provider.detection.child import main\n"
        "fake = types.ModuleType('nvml')\n"
        "fake.ask = lambda: time.sleep(1000)\n"
        "sys.modules[f'{main.__package__}.nvml'] = fake\n"
        "sys.platform = 'win32'\n"
        "main.main('nvml', 1)"
    )
    done = run_code(code)
    assert (done.returncode, done.stdout) == (1, b"ready\n")
