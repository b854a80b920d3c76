"""Commands of users: ND604 and ND605, deadlines, and the end of all processes."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support.stacks import make_stack

from nvidia_variant_provider.errors import UsageError
from nvp import signals
from nvp.doctor.compile_log import CompileLog
from nvp.doctor.model import Finding, Stack
from nvp.doctor.programs import end_family, started
from nvp.doctor.workloads import (
    environment_of,
    find_broken_graphs,
    find_failed_workloads,
    run_command,
    run_workloads,
    split_command,
)
from nvp.signals import ending

PYTHON = shlex.quote(sys.executable)
PLENTY = 60.0

TORCH = os.environ.get("NVP_TEST_TORCH")
"""The directory of an environment with torch, for the tests that compile something."""


def python(source: str) -> str:
    return f"{PYTHON} -c {shlex.quote(source)}"


def run(stack: Stack, command: str, deadline: float = PLENTY) -> dict[str, Any]:
    (record,) = run_workloads({command: deadline}, stack)
    return dict(record)


def findings(stack: Stack, record: dict[str, Any]) -> list[Finding]:
    return [*find_failed_workloads(stack, [record]), *find_broken_graphs([record])]


@pytest.fixture
def stack(tmp_path: Path) -> Stack:
    return make_stack(tmp_path / "env", environ=dict(os.environ))


def test_a_workload_that_passes(stack: Stack) -> None:
    record = run(stack, python("print('one'); print('two')"))
    assert record["outcome"] == "passed"
    assert record["exit_code"] == 0
    assert record["last_lines"] == []
    assert record["output_bytes"] == len(f"one{os.linesep}two{os.linesep}")
    assert record["gpu_memory"] is None
    assert record["gpu_memory_reason"] == "there is no GPU"
    assert findings(stack, record) == []


def test_a_workload_that_fails(stack: Stack) -> None:
    record = run(stack, python("raise RuntimeError('no kernel image is available')"))
    (finding,) = findings(stack, record)
    assert finding.code == "ND604"
    assert finding.message.endswith(
        "ended with exit code 1: RuntimeError: no kernel image is available"
    )


def test_a_workload_that_is_killed(stack: Stack) -> None:
    record = run(stack, python("import os; os.kill(os.getpid(), 9)"))
    assert (record["outcome"], record["signal"]) == ("killed", "SIGKILL")
    assert record["exit_code"] is None
    (finding,) = findings(stack, record)
    assert "was killed by SIGKILL" in finding.message
    assert "memory" in finding.hint


def test_a_workload_that_does_not_exist(stack: Stack) -> None:
    record = run(stack, "no-such-program --option")
    assert record["outcome"] == "not-started"
    (finding,) = findings(stack, record)
    assert "there is no program 'no-such-program'" in finding.message


def test_a_file_that_is_no_program(stack: Stack, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_bytes(b"\x7fELF")
    script.chmod(0o755)
    record = run(stack, shlex.quote(str(script)))
    assert record["outcome"] == "not-started"
    assert "cannot be started: " in record["error"]


def test_the_deadline_kills_the_whole_family(stack: Stack, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    pids.mkdir()
    waiting = (
        "import os, pathlib, time\n"
        f"pathlib.Path({str(pids)!r}, str(os.getpid())).touch()\n"
        "time.sleep(600)\n"
    )
    # The second child leaves the session, as daemons do.
    child = f"""
import os, subprocess, sys, time
command = [sys.executable, "-c", {waiting!r}]
subprocess.Popen(command)
subprocess.Popen(command, start_new_session=True)
while len(os.listdir({str(pids)!r})) < 2:
    time.sleep(0.01)
print("ready", flush=True)
time.sleep(600)
"""
    record = run(stack, python(child), deadline=5)
    assert record["outcome"] == "timed-out"
    assert record["last_lines"] == ["ready"]
    (finding,) = findings(stack, record)
    assert "did not end within 5 s" in finding.message
    names = os.listdir(pids)
    assert len(names) == 2
    assert [name for name in names if is_running(int(name))] == []


def test_what_a_workload_leaves_behind_is_ended(stack: Stack, tmp_path: Path) -> None:
    source = "import time; time.sleep(600)"
    child = "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', "
    child += f"{source!r}]); open({str(tmp_path / 'pid')!r}, 'w').write(str(p.pid))"
    record = run(stack, python(child))
    assert record["outcome"] == "passed"
    assert not is_running(int((tmp_path / "pid").read_text()))


@pytest.mark.skipif(sys.platform != "linux", reason="Linux shows who has a pipe")
def test_a_daemon_that_clears_its_variables_is_ended(
    stack: Stack, tmp_path: Path
) -> None:
    source = f"""
import subprocess, sys
waiting = "import time; print('there', flush=True); time.sleep(600)"
command = [sys.executable, "-c", waiting]
process = subprocess.Popen(command, start_new_session=True, env={{}})
open({str(tmp_path / "pid")!r}, "w").write(str(process.pid))
"""
    record = run(stack, python(source))
    assert record["outcome"] == "passed"
    assert not is_running(int((tmp_path / "pid").read_text()))


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_an_interrupt_while_a_command_is_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pids: list[int] = []
    start = subprocess.Popen

    def start_slowly(*args: Any, **kwargs: Any) -> subprocess.Popen[bytes]:
        process = start(*args, **kwargs)
        pids.append(process.pid)
        # Only this function knows the process.
        signal.raise_signal(signal.SIGINT)
        return process

    monkeypatch.setattr(subprocess, "Popen", start_slowly)
    words = [sys.executable, "-c", "import time; time.sleep(600)"]
    with pytest.raises(KeyboardInterrupt):
        run_command(words, dict(os.environ), deadline=PLENTY, log=CompileLog())
    assert not is_running(pids[0])


@pytest.mark.skipif(sys.platform == "win32", reason="its wait has no lock")
def test_a_signal_while_a_wait_has_the_lock_of_the_process() -> None:
    """Otherwise, the process stays a zombie until its parent has ended."""
    processes: list[Any] = []

    class Lock:
        def acquire(self, *_: object) -> bool:
            signal.raise_signal(signal.SIGTERM)
            return False

    def work() -> None:
        words = [sys.executable, "-c", "import time; time.sleep(600)"]
        with started(words, end_family, env=os.environ) as process:
            processes.append(process)
            processes[0]._waitpid_lock = Lock()
            process.wait(timeout=PLENTY)

    with pytest.raises(SystemExit), ending():
        work()
    with pytest.raises(ProcessLookupError):
        os.kill(processes[0].pid, 0)


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGHUP")
def test_a_second_signal_while_a_command_is_ended() -> None:
    ended: list[int] = []

    def end(process: subprocess.Popen[bytes], _: str) -> None:
        signal.raise_signal(signal.SIGTERM)
        process.kill()
        ended.append(process.wait())

    def work() -> None:
        words = [sys.executable, "-c", "import time; time.sleep(600)"]
        with started(words, end, env=os.environ):
            signal.raise_signal(signal.SIGHUP)

    with pytest.raises(SystemExit), ending():
        work()
    assert ended


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGHUP")
@pytest.mark.parametrize(("seconds", "cleaned"), [(60, True), (0, False)])
@pytest.mark.parametrize(
    ("first", "second"),
    [("SIGHUP", "SIGHUP"), ("SIGINT", "SIGTERM"), ("SIGTERM", "SIGINT")],
)
def test_a_second_signal_while_files_are_removed(
    first: str,
    second: str,
    seconds: int,
    cleaned: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # After some seconds, a further signal ends a command that hangs in its cleaning.
    monkeypatch.setattr(signals, "_CLEANING", seconds)
    removed: list[str] = []

    def work() -> None:
        try:
            signal.raise_signal(signal.Signals[first])
        finally:
            signal.raise_signal(signal.Signals[second])
            removed.append("folder")

    with pytest.raises((SystemExit, KeyboardInterrupt)) as raised, ending():
        work()
    number = signal.Signals[first if cleaned else second]
    assert bool(removed) is cleaned
    assert getattr(raised.value, "code", 130) == 128 + number


def is_running(pid: int) -> bool:
    """Return whether a process exists and is no zombie."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        try:
            stat = Path(f"/proc/{pid}/stat").read_bytes()
        except FileNotFoundError:
            return False
        if stat.rpartition(b")")[2].split()[0] in (b"Z", b"X"):
            return False
    return True


def test_output_is_bounded(stack: Stack) -> None:
    source = """
import sys
line = b"x" * 1023 + b"\\n"
for _ in range(64):
    sys.stdout.buffer.write(line * 1024)
sys.stdout.buffer.write(b"y" * 10_000_000)
sys.stdout.buffer.write(b"\\nGraph break in user code at a.py:7\\n")
sys.exit(3)
"""
    record = run(stack, python(source))
    assert record["output_bytes"] > 74_000_000
    assert record["totals"]["graph_breaks"] == 1
    assert sum(map(len, record["last_lines"])) < 20_000


def test_both_streams_are_read(stack: Stack) -> None:
    source = """
import sys
print("Graph break in user code at out.py:1", flush=True)
print("Graph break in user code at err.py:2", file=sys.stderr, flush=True)
print("Reason: of out")
sys.stderr.write("Reason: of err")
"""
    record = run(stack, python(source))
    reasons = {e["path"]: e["reason"] for e in record["graph_breaks"]}
    assert reasons == {"out.py": "of out", "err.py": "of err"}
    (finding,) = findings(stack, record)
    assert finding.code == "ND605"
    assert finding.severity == "warning"
    assert "broke its graph 2 times" in finding.message


def test_a_recompilation_alone_is_not_reported(stack: Stack) -> None:
    record = run(stack, python("print('Recompiling function f in a.py:3')"))
    assert record["totals"]["recompilations"] == 1
    assert "ND605" not in [finding.code for finding in findings(stack, record)]


def test_a_command_that_passes_with_a_warning_is_no_failure(stack: Stack) -> None:
    record = run(stack, python("import sys; sys.stderr.write('Error: not really')"))
    assert "ND604" not in [finding.code for finding in findings(stack, record)]


@pytest.mark.parametrize("command", ["", "  ", "''", "a 'b", "a\0b"])
def test_a_command_that_is_none(stack: Stack, command: str) -> None:
    with pytest.raises(UsageError, match="--workload"):
        run_workloads({"true": PLENTY, command: PLENTY}, stack)


def test_words_are_not_read_by_a_shell() -> None:
    assert split_command("echo '$HOME; *' a\\ b") == ["echo", "$HOME; *", "a b"]


def test_backslashes_are_kept_on_windows() -> None:
    command = r"""C:\env\python.exe -c "print(1)" 'a b' plain"""
    words = [r"C:\env\python.exe", "-c", "print(1)", "a b", "plain"]
    assert split_command(command, windows=True) == words


class TestEnvironment:
    def test_the_environment_is_activated(self, tmp_path: Path) -> None:
        prefix = tmp_path / "env"
        (prefix / "bin").mkdir(parents=True)
        (prefix / "pyvenv.cfg").touch()
        environ = {"PATH": "/usr/bin", "PYTHONHOME": "/x", "VIRTUAL_ENV": "/other"}
        python = str(prefix / "bin" / "python")
        variables = environment_of(environ, prefix=str(prefix), python=python)
        assert variables["PATH"] == f"{prefix}/bin:/usr/bin"
        assert variables["VIRTUAL_ENV"] == str(prefix)
        assert "PYTHONHOME" not in variables

    def test_a_system_python_is_no_virtual_environment(self, tmp_path: Path) -> None:
        variables = environment_of(
            {"PATH": "/bin", "VIRTUAL_ENV": "/other"},
            prefix=str(tmp_path),
            python=str(tmp_path / "python3"),
        )
        assert "VIRTUAL_ENV" not in variables
        assert variables["PATH"].split(os.pathsep)[0] == str(tmp_path)

    @pytest.mark.parametrize(
        ("given", "expected"),
        [
            (None, "graph_breaks,recompiles"),
            ("", "graph_breaks,recompiles"),
            ("+inductor", "+inductor,graph_breaks,recompiles"),
            ("recompiles,+dynamo", "recompiles,+dynamo,graph_breaks"),
        ],
    )
    def test_the_users_own_logs_are_kept(
        self, given: str | None, expected: str
    ) -> None:
        environ = {} if given is None else {"TORCH_LOGS": given}
        variables = environment_of(environ, prefix="/env", python=None)
        assert variables["TORCH_LOGS"] == expected
        assert variables["TRITON_PRINT_AUTOTUNING"] == "1"


def test_an_interrupt_ends_the_workload(tmp_path: Path) -> None:
    waiting = (
        "import os, time\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\n"
        "print(flush=True)\n"
        "time.sleep(600)\n"
    )
    program = f"""
import os
from nvp.doctor.compile_log import CompileLog
from nvp.doctor.workloads import run_command

class Interrupting(CompileLog):
    def is_relevant(self, stream, data):
        os.kill(os.getpid(), 2)
        return False

words = [{sys.executable!r}, "-c", {waiting!r}]
run_command(words, os.environ, deadline=60, log=Interrupting())
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, timeout=60, check=False
    )
    assert b"KeyboardInterrupt" in done.stderr
    assert not is_running(int((tmp_path / "pid").read_text()))


def test_a_program_that_is_gone_when_it_is_started() -> None:
    outcome = run_command(["/no/such"], {"PATH": ""}, deadline=1, log=CompileLog())
    assert outcome.error == "there is no program '/no/such' in the environment"


@pytest.mark.skipif(TORCH is None, reason="NVP_TEST_TORCH names no environment")
def test_a_real_graph_break(tmp_path: Path) -> None:
    from nvp import api
    from nvp.doctor.runner import Evidence

    script = tmp_path / "train.py"
    script.write_text(
        "import torch\n"
        "@torch.compile\n"
        "def step(x):\n"
        "    if x.sum().item() > 0:\n"
        "        x = x + 1\n"
        "    return x * 2\n"
        "assert step(torch.ones(4)).tolist() == [4.0] * 4\n"
    )
    diagnosis = api.doctor(
        TORCH,
        environ={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")},
        evidence=Evidence(workloads=[f"python {script}"], with_receipt=True),
    )
    (record,) = diagnosis.workloads
    assert record["outcome"] == "passed"
    (entry,) = record["graph_breaks"]
    assert (entry["path"], entry["line"]) == (str(script), 4)
    assert "Tensor.item()" in entry["reason"]
    assert "ND605" in [finding.code for finding in diagnosis.findings]


def test_the_command_of_a_hint_is_quoted_for_a_shell(stack: Stack) -> None:
    """`doctor` runs it without a shell, and the user pastes the hint into one."""
    (finding,) = findings(stack, run(stack, "/bin/sh -c 'exit 3' ;touch PWN"))
    assert finding.hint.endswith("$PATH /bin/sh -c 'exit 3' ';touch' PWN")


def test_no_password_of_a_failed_workload_is_reported(stack: Stack) -> None:
    script = "echo https://user:word@wheels.example/x?token=key; exit 3"
    record = run(stack, f"/bin/sh -c {shlex.quote(script)}")
    (finding,) = findings(stack, record)
    assert record["last_lines"] == ["https://****@wheels.example/x?token=****"]
    assert finding.message.endswith("https://****@wheels.example/x?token=****")
