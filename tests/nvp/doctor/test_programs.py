"""Finding the versions of programs, which may behave in any way."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.processes import ends_soon
from support.toolchains import NVCC_BANNER, banner, needs_programs, program

from nvidia_variant_provider.machine.environment import CudaVersion
from nvp.doctor import programs
from nvp.doctor.programs import DEADLINE, Program, ask_versions

pytestmark = needs_programs


def script(folder: Path, data: bytes, name: str = "ptxas") -> str:
    path = folder / name
    path.write_bytes(data)
    path.chmod(0o755)
    return str(path)


def ask(path: str, deadline: float = DEADLINE) -> Program:
    (program,) = ask_versions(
        [Program(path=path, named_by="PATH")], os.environ, deadline=deadline
    ).values()
    return program


@contextlib.contextmanager
def held_by(folder: Path) -> Iterator[str]:
    """Yield a named pipe that programs can hold, and wait until all have closed it."""
    path = folder / "held"
    os.mkfifo(path)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        yield str(path)
        os.set_blocking(descriptor, True)
        while os.read(descriptor, 4096):
            pass
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("text", [banner("12.9"), NVCC_BANNER.format("12.9")])
def test_what_programs_of_cuda_print(text: str, tmp_path: Path) -> None:
    asked = ask(script(tmp_path, program(text)))
    assert asked.cuda == CudaVersion(12, 9)
    assert str(asked.release).startswith("12.9.")
    assert asked.problem is None


def test_a_program_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    with held_by(tmp_path) as held:
        lines = f"exec 9> {held}\nsleep 1000 &\nwait\n"
        path = script(tmp_path, f"#!/bin/sh\n{lines}".encode())
        asked = ask(path, 0.5)
    assert asked.failure == "hangs"
    assert asked.problem == "it did not reply in 0.5 seconds"


needs_setsid = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("setsid") is None,
    reason="Linux shows the variables and the pipes of a process",
)


@needs_setsid
@pytest.mark.parametrize(
    ("daemon", "hangs"),
    [("env -i sleep 1000", True), ("sleep 1000 > /dev/null 2>&1", False)],
)
def test_a_daemon_that_a_program_starts_is_ended(
    daemon: str, hangs: bool, tmp_path: Path
) -> None:
    with held_by(tmp_path) as held:
        lines = f"exec 9> {held}\nsetsid {daemon} &\necho release 12.9,\n"
        asked = ask(script(tmp_path, f"#!/bin/sh\n{lines}".encode()), 0.5)
    assert (asked.failure == "hangs") is hangs


KILLED = """
import os, signal, sys, threading
from nvp.doctor.programs import Program, ask_versions
def kill():
    with open(sys.argv[2]) as file:
        print(file.read(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
threading.Thread(target=kill).start()
ask_versions([Program(path=sys.argv[1], named_by="PATH")], os.environ)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs PR_SET_PDEATHSIG")
def test_a_program_ends_with_its_killed_parent(tmp_path: Path) -> None:
    started = tmp_path / "started"
    os.mkfifo(started)
    lines = f"#!/bin/sh\necho $$ > {started}\nexec sleep 1000\n"
    words = [sys.executable, "-c", KILLED, script(tmp_path, lines.encode())]
    done = subprocess.run(
        [*words, str(started)], stdout=subprocess.PIPE, check=False, timeout=60
    )
    assert done.returncode == -signal.SIGKILL
    assert ends_soon(int(done.stdout))


WITHOUT_LIBFFI = """
import os, sys
sys.modules["ctypes"] = None
from nvp.doctor.programs import Program, ask_versions
program = Program(path=sys.argv[1], named_by="PATH")
print(ask_versions([program], os.environ)[program].cuda)
"""


def test_a_python_without_libffi_runs_programs(tmp_path: Path) -> None:
    path = script(tmp_path, program(banner("12.9")))
    words = [sys.executable, "-c", WITHOUT_LIBFFI, path]
    done = subprocess.run(words, stdout=subprocess.PIPE, check=False, timeout=60)
    assert done.stdout == b"12.9\n"


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_process_that_always_moves_to_a_child_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listed, ended = os.listdir, iter(range(10**9, 10**9 + 20))

    def move(path: str) -> list[str]:
        pid = next(ended, None) if path == "/proc" else None
        return listed(path) if pid is None else [str(pid)]

    words = [sys.executable, "-c", "import time; time.sleep(1000)"]
    with subprocess.Popen(words, env={"DEMO": "1"}) as process:
        monkeypatch.setattr(os, "listdir", move)
        programs.end_strays("DEMO=1")
        try:
            assert process.wait(timeout=10) == -signal.SIGKILL
        finally:
            process.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_the_search_for_daemons_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    stop, looked_at = programs._stop, []

    def count(pid: int, *rest: Any) -> bool | None:
        looked_at.append(pid)
        return stop(pid, *rest)

    def end_always(_: str) -> list[str]:
        return [str(os.getppid()), str(10**9 + len(looked_at))]

    monkeypatch.setattr(programs, "_stop", count)
    monkeypatch.setattr(os, "listdir", end_always)
    times = iter(range(1000))
    monkeypatch.setattr(time, "thread_time", lambda: next(times) / 100)
    programs.end_strays("DEMO=1")
    assert looked_at.count(os.getppid()) == 1
    assert 50 < len(looked_at) < 200


@needs_setsid
def test_one_search_finds_the_daemons_of_all_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    search, searches = programs.end_strays, []

    def count(*words: Any) -> None:
        searches.append(words)
        search(*words)

    monkeypatch.setattr(programs, "end_strays", count)
    with held_by(tmp_path) as held:
        lines = f"exec 9> {held}\nsetsid sleep 1000 > /dev/null 2>&1 &\n"
        data = f"#!/bin/sh\n{lines}echo release 12.9,\n".encode()
        paths = [script(tmp_path, data, name) for name in ("one", "two", "three")]
        ask_versions([Program(path=x, named_by="PATH") for x in paths], os.environ)
    assert len(searches) == 1


@needs_setsid
def test_a_signal_before_the_pipes_of_a_program_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = subprocess.Popen

    def start_slowly(*args: Any, **kwargs: Any) -> subprocess.Popen[bytes]:
        process = start(*args, **kwargs)
        assert process.stdout is not None
        process.stdout.readline()
        signal.raise_signal(signal.SIGINT)
        return process

    with held_by(tmp_path) as held:
        lines = f"exec 9> {held}\nsetsid sleep 1000 &\necho started\nwait\n"
        path = script(tmp_path, f"#!/bin/sh\n{lines}".encode())
        monkeypatch.setattr(subprocess, "Popen", start_slowly)
        with pytest.raises(KeyboardInterrupt):
            ask(path)


def test_programs_run_side_by_side(tmp_path: Path) -> None:
    # Opening a named pipe waits for the other side: no program ends without the others.
    for name in ("first", "second"):
        os.mkfifo(tmp_path / name)
    lines = (
        f"echo > {tmp_path}/first",
        f"read line < {tmp_path}/first\necho > {tmp_path}/second",
        f"read line < {tmp_path}/second",
    )
    places = [
        Program(
            path=script(
                tmp_path,
                f"#!/bin/sh\n{line}\necho release 12.{number},\n".encode(),
                f"program{number}",
            ),
            named_by="PATH",
        )
        for number, line in enumerate(lines)
    ]
    asked = ask_versions(places, os.environ, deadline=60)
    assert [asked[place].cuda for place in places] == [
        CudaVersion(12, number) for number in range(3)
    ]


def test_programs_that_hang_share_one_deadline(tmp_path: Path) -> None:
    with held_by(tmp_path) as held:
        hangs = f"#!/bin/sh\nexec 9> {held}\nsleep 1000 &\nwait\n".encode()
        names = [f"hangs{number}" for number in range(3)]
        places = [
            Program(path=script(tmp_path, hangs, name), named_by="PATH")
            for name in names
        ]
        good = Program(
            path=script(tmp_path, program(banner("12.9"))), named_by="CUDA_HOME"
        )
        missing = Program(path=str(tmp_path / "missing"), named_by="CUDA_PATH")
        asked = ask_versions([*places, good, missing, good], os.environ, deadline=2)
    assert {asked[place].failure for place in places} == {"hangs"}
    assert asked[good].cuda == CudaVersion(12, 9)
    assert asked[missing].failure == "missing"


def test_an_interrupt_ends_all_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = programs.Run.wait

    def interrupt(*_: object) -> None:
        monkeypatch.setattr(programs.Run, "wait", wait)
        raise KeyboardInterrupt

    monkeypatch.setattr(programs.Run, "wait", interrupt)
    with held_by(tmp_path) as held:
        hangs = f"#!/bin/sh\nexec 9> {held}\nsleep 1000 &\nwait\n".encode()
        paths = [script(tmp_path, hangs, name) for name in ("one", "two")]
        with pytest.raises(KeyboardInterrupt):
            ask_versions([Program(path=x, named_by="PATH") for x in paths], os.environ)


def test_a_program_that_prints_without_end(tmp_path: Path) -> None:
    with held_by(tmp_path) as held:
        lines = f"exec 9> {held}\nwhile :; do echo '\x1b[31mgarbage'; done\n"
        path = script(tmp_path, f"#!/bin/sh\n{lines}".encode())
        asked = ask(path)
    assert asked.failure == "garbled"
    assert str(asked.problem).isprintable()


def test_a_program_that_reads_its_input_gets_none(tmp_path: Path) -> None:
    asked = ask(script(tmp_path, b"#!/bin/sh\ncat\n"))
    assert asked.problem == "it prints nothing instead of its version"


def test_a_long_number_is_no_version(tmp_path: Path) -> None:
    data = program(f"release {'9' * 50}.{'9' * 50}")
    assert ask(script(tmp_path, data)).failure == "garbled"


def test_a_file_that_is_not_executable(tmp_path: Path) -> None:
    path = script(tmp_path, program(banner("12.9")))
    os.chmod(path, 0o644)
    assert ask(path).failure == "refused"
