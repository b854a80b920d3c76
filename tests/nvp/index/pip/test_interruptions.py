"""Signals at any moment: ``pip`` and ``serve`` end with all of their processes."""

from __future__ import annotations

import io
import json
import os
import random
import re
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest
from support.processes import (
    Environment,
    Pip,
    clean_environ,
    installed_labels,
    make_environment,
)
from support.range_server import Answer, serve_answers
from support.wheels import stub_wheel

from nvp.files import resource_file
from nvp.index.pip import process

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc shows what runs")

INTERRUPTS = int(os.environ.get("NVP_TEST_INTERRUPTS", "24"))
"""The number of random interrupts; 200 before a release."""

PATIENCE = 10.0
"""The seconds in which remaining processes must end."""

MACHINE = ["--cuda-driver", "12.9", "--sm-arch", "8.0"]
ENDING = [signal.SIGTERM, signal.SIGHUP]
PAGE = '<!DOCTYPE html><a href="{0}">{0}</a>'
numbers = count()


class Run:
    """A program in its own process group, and a directory for its files."""

    def __init__(
        self, command: str, *words: object, folder: Path, **variables: str
    ) -> None:
        self.folder = folder / f"run-{next(numbers)}"
        self.temporary = self.folder / "temporary"
        self.temporary.mkdir(parents=True)
        self.mark = f"NVP_TEST_RUN={self.folder}"
        name, _, value = self.mark.partition("=")
        extra = {name: value, "TMPDIR": str(self.temporary), **variables}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "nvp", command, *MACHINE, *map(str, words)],
            env=clean_environ(folder / "home", extra),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            start_new_session=True,
        )

    def family(self) -> list[str]:
        """Return its running processes: the group, and processes that have left the
        group."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                variables = Path("/proc", pid, "environ").read_bytes().split(b"\0")
                words = Path("/proc", pid, "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if self.mark.encode() in variables:
                found.append(f"{pid}: {b' '.join(words)[:200]!r}")
        return found

    def end(self) -> tuple[int, str]:
        """Wait for the end of the program; return its status and stderr, and check its
        processes."""
        try:
            _, said = self.process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            raise
        # A process whose start was interrupted ends, because its parent no longer
        # listens.
        until = time.monotonic() + PATIENCE
        while (family := self.family()) and time.monotonic() < until:
            time.sleep(0.05)
        assert family == []
        return self.process.returncode, said


def sdist(name: str, settings: str, backend: str = "") -> bytes:
    """Return a source distribution."""
    out = io.BytesIO()
    text = f'[build-system]\nbuild-backend = "x"\n{settings}\n'
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for file, content in (("pyproject.toml", text), ("x.py", backend)):
            info = tarfile.TarInfo(f"{name}-1.0/{file}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content.encode()))
    return out.getvalue()


@contextmanager
def slow_index() -> Iterator[tuple[str, Callable[[str], None]]]:
    """Serve a wheel that never ends, and a source distribution that needs it."""
    wheel, source = "drip-1.0-py3-none-any.whl", "built-1.0.tar.gz"
    answers = {
        "/drip/": Answer(body=PAGE.format(wheel).encode(), kind="text/html"),
        f"/drip/{wheel}": Answer(body=b"x" * 10_000, fault="drip"),
        "/built/": Answer(body=PAGE.format(source).encode(), kind="text/html"),
        f"/built/{source}": Answer(body=sdist("built", 'requires = ["drip"]')),
    }
    with serve_answers(answers) as server:
        yield server.url, server.requests.wait_for


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Return an environment without pip: that of this interpreter starts another."""
    return make_environment(tmp_path_factory.mktemp("environment") / "bare")


@pytest.mark.parametrize(
    ("case", "number"),
    [
        pytest.param("a download", signal.SIGTERM, marks=pytest.mark.slow),
        ("a build", signal.SIGHUP),
        ("another pip", signal.SIGTERM),
        # A process cannot prepare its end by this signal.
        ("a download", signal.SIGKILL),
        ("a build", signal.SIGKILL),
        ("another pip", signal.SIGKILL),
    ],
)
def test_pip_ends_before_its_index(
    case: str, number: signal.Signals, pip: Pip, bare: Environment, tmp_path: Path
) -> None:
    """Processes of pip end, without reporting that packages are missing."""
    python = bare.python if case == "another pip" else pip.python
    project = "built" if case == "a build" else "drip"
    with slow_index() as (url, wait_for):
        words = ["--python", python, "install", "-i", url, "--target", tmp_path / "it"]
        run = Run("pip", *words, project, folder=tmp_path)
        wait_for(".whl")
        run.process.send_signal(number)
        status, said = run.end()
    assert "Traceback" not in said
    assert "No matching distribution" not in said
    assert not (tmp_path / "it").exists()
    if number == signal.SIGKILL:
        # Another user of this machine could now serve the index at its address.
        assert "ERROR" not in said
        return
    assert status == 128 + number
    assert "onnection" not in said
    # pip itself leaves files if it is terminated.
    assert list(run.temporary.glob("nvidia*")) == []


@pytest.mark.parametrize("to_thread", [False, True])
def test_an_interrupted_pip_ends_the_command(
    to_thread: bool, pip: Pip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An explanation would wait for the driver, which may hang.

    After ``kill -STOP``, any thread may get a signal, and ``nvp pip`` did not end.
    """
    monkeypatch.setattr(process, "_GRACE", 0.1)

    def interrupt() -> None:
        wait_for(".whl")
        time.sleep(0.5)  # the main thread waits
        if to_thread:
            signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        else:
            os.kill(os.getpid(), signal.SIGINT)

    with slow_index() as (url, wait_for), ThreadPoolExecutor(1) as executor:
        environ = clean_environ(tmp_path)
        words = ["download", "-i", url, "--dest", str(tmp_path), "drip"]
        sent = executor.submit(interrupt)
        with pytest.raises(SystemExit) as raised:
            process.Pip(str(pip.python), environ).run(words, environ, quiet=True)
        sent.result()
    assert raised.value.code == 1


BACKEND = """
import pathlib, time

def prepare_metadata_for_build_wheel(folder, settings=None):
    place = pathlib.Path(folder, "built-1.dist-info")
    place.mkdir()
    (place / "METADATA").write_text("Metadata-Version: 2.1\\nName: built\\nVersion: 1")
    return place.name

def build_wheel(folder, settings=None, metadata=None):
    pathlib.Path({!r}).touch()
    time.sleep(300)
"""


def test_a_report_has_the_urls_of_the_index_after_a_signal(
    pip: Pip, tmp_path: Path
) -> None:
    wheel = stub_wheel(tmp_path / "wheels", "plain", "1.0")
    begun, report = tmp_path / "begun", tmp_path / "report.json"
    source = sdist(
        "built", 'requires = []\nbackend-path = ["."]', BACKEND.format(str(begun))
    )
    files = {wheel.name: wheel.read_bytes(), "built-1.0.tar.gz": source}
    answers = {}
    for name, content in files.items():
        project = name.partition("-")[0]
        page = PAGE.format(name).encode()
        answers[f"/{project}/"] = Answer(body=page, kind="text/html")
        answers[f"/{project}/{name}"] = Answer(body=content)
    with serve_answers(answers) as server:
        url = server.url.replace("://", "://user:secret@")
        words = ["--python", pip.python, "install", "-i", url]
        words += ["--report", str(report), "--target", str(tmp_path / "it")]
        run = Run("pip", *words, "built", "plain", folder=tmp_path)
        while not begun.exists():
            assert run.process.poll() is None
            time.sleep(0.05)
        assert not report.exists()  # pip's own report has secret URLs
        run.process.send_signal(signal.SIGTERM)
        status, said = run.end()
    assert status == 128 + signal.SIGTERM, said
    items = json.loads(report.read_text())["install"]
    urls = sorted(item["download_info"]["url"] for item in items)
    assert urls == sorted(f"{server.url}/{n.partition('-')[0]}/{n}" for n in files)


def test_an_interpreter_that_hangs_does_not_delay_the_end(tmp_path: Path) -> None:
    asked, late = tmp_path / "asked", tmp_path / "late"
    python = tmp_path / "python"
    # It goes on after the end of the pipe of its questions.
    lines = f": >{asked}\ncat <&$2\nsleep 1\n: >{late}\nexec sleep 300\n"
    python.write_text(f"#!/bin/sh\n{lines}")
    python.chmod(0o700)
    run = Run("pip", "--python", python, "install", "torch", folder=tmp_path)
    while not asked.exists():
        assert run.process.poll() is None
        time.sleep(0.05)
    run.process.send_signal(signal.SIGTERM)
    status, said = run.end()
    assert (status, said) == (128 + signal.SIGTERM, "")
    assert not late.exists()


def test_nohup(pip: Pip, tmp_path: Path) -> None:
    """The program ignores a signal that its parent ignores."""
    wheel = stub_wheel(tmp_path / "wheels", "plain", "1.0")
    page = PAGE.format(wheel.name).encode()
    answers = {
        "/plain/": Answer(body=page, kind="text/html"),
        f"/plain/{wheel.name}": Answer(body=wheel.read_bytes()),
    }
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with serve_answers(answers) as server:
            words = ["--python", pip.python, "install", "-i", server.url, "plain"]
            run = Run("pip", *words, "--target", tmp_path / "it", folder=tmp_path)
            server.requests.wait_for("/plain/")
            os.killpg(run.process.pid, signal.SIGHUP)
            status, said = run.end()
    finally:
        signal.signal(signal.SIGHUP, before)
    assert status == 0, said
    assert installed_labels(tmp_path / "it") == {"plain": "1.0 None"}


SIGNALLED = """
import contextlib, os, signal, sys, threading
from nvp.cli import serve

class Index:
    def serve(self):
        return contextlib.nullcontext()

def trace(frame, event, _):
    global left
    if frame.f_code.co_filename != threading.__file__ or threading.get_ident() != main:
        return None
    left -= 1
    if left == 0:
        signal.raise_signal(signal.SIGTERM)
    return trace

left = int(sys.argv[1])
main = threading.get_ident()
timer = threading.Timer(1, os.kill, [os.getpid(), signal.SIGTERM])
timer.daemon = True
timer.start()
serve._serve(Index(), lambda: sys.settrace(trace))
os._exit(0)
"""


@pytest.mark.parametrize("line", [4, 6, 10])
def test_a_signal_while_it_begins_to_wait_stops_it(line: int) -> None:
    """A handler must not wait for a lock that its own thread has."""
    command = [sys.executable, "-c", SIGNALLED, str(line)]
    assert subprocess.run(command, timeout=30, check=False).returncode == 0


def test_ctrl_c_while_pip_removes_its_files(tmp_path: Path) -> None:
    """pip catches Ctrl-C, but not while it removes its temporary directories."""
    package = tmp_path / "pip" / "_internal" / "cli"
    package.mkdir(parents=True)
    for folder in (package, *package.parents[:2]):
        (folder / "__init__.py").touch()
    (package / "main.py").write_text(
        "def main(arguments):\n    raise KeyboardInterrupt"
    )
    done = subprocess.run(
        [sys.executable, resource_file("index", "pip", "probe.py"), "pip", "install"],
        env=clean_environ(tmp_path, {"PYTHONPATH": str(tmp_path)}),
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert (done.returncode, done.stderr) == (130, "")


@pytest.mark.slow
def test_random_interrupts(
    pip: Pip, bare: Environment, index: str, tmp_path: Path
) -> None:
    """Afterwards, no process is running, no file is left, and no cache is damaged."""

    def install(name: str) -> None:
        words = ["--python", pip.python, "install", "-i", index, "--target"]
        run = Run("pip", *words, tmp_path / name, "torch", folder=tmp_path)
        status, said = run.end()
        assert status == 0, said
        assert installed_labels(tmp_path / name)["torch"] == "2.8.0 cu126"

    started = time.monotonic()
    install("before")
    longest = 1.5 * (time.monotonic() - started)

    def interrupt(seed: int) -> None:
        rng = random.Random(seed)
        number = rng.choice([signal.SIGINT, *ENDING])
        words: Sequence[object] = ["-i", index]
        command = "serve" if seed % 4 == 0 else "pip"
        if command == "pip":
            python = rng.choice([pip.python, bare.python])
            target = tmp_path / f"it-{seed}"
            words = ["--python", python, "install", *words, "--target", target, "torch"]
        run = Run(command, *words, folder=tmp_path)
        time.sleep(longest * rng.random())
        # A terminal signals the group, and a service manager only this process.
        send = os.killpg if rng.random() < 0.5 else os.kill
        # The process may have ended, and is not collected before `end`.
        send(run.process.pid, number)
        status, said = run.end()
        case = f"seed {seed}: {command}, {number.name}, status {status}, {said}"
        assert status in (0, 1, 130, 128 + number, -number), case
        assert "No matching distribution" not in said, case
        # Python itself prints this if it is interrupted before it runs `nvp`.
        start = r'__(init|main)__\.py", line \d+, in <module>'
        ours = re.search(rf"nvp/(?!(src/nvp/)?{start})", said)
        assert "Traceback" not in said or ours is None, case
        left = [path.name for path in run.temporary.iterdir()]
        assert not [name for name in left if name.startswith("nvidia")], case

    with ThreadPoolExecutor(3) as executor:
        list(executor.map(interrupt, range(INTERRUPTS)))
    install("after")


@pytest.mark.slow
def test_ten_at_once_on_a_cold_cache_agree(
    pip: Pip, index: str, tmp_path: Path
) -> None:
    runs = [
        Run(
            *("pip", "--python", pip.python, "install", "-i", index),
            *("--target", tmp_path / f"it-{number}", "torch", "narrow"),
            folder=tmp_path,
        )
        for number in range(10)
    ]
    ended = [run.end() for run in runs]
    assert [status for status, _ in ended] == [0] * 10, ended
    labels = [installed_labels(tmp_path / f"it-{number}") for number in range(10)]
    assert labels[0]["torch"] == "2.8.0 cu126"
    assert labels == [labels[0]] * 10


@pytest.mark.parametrize(
    ("command", "of_pip", "number"),
    [
        ("releases", "subprocess", signal.SIGINT),
        ("releases", "disabled", signal.SIGINT),  # nvp runs it as uv does
        ("pip", "subprocess", signal.SIGTERM),
        pytest.param("releases", "subprocess", signal.SIGHUP, marks=pytest.mark.slow),
    ],
)
def test_a_keyring_that_waits_ends_with_the_command(
    command: str, of_pip: str, number: signal.Signals, tmp_path: Path
) -> None:
    programs, asked = tmp_path / "programs", tmp_path / "asked"
    programs.mkdir()
    (programs / "keyring").write_text(f"#!/bin/sh\n: >{asked}\nexec sleep 300\n")
    (programs / "keyring").chmod(0o700)
    words = ["pip", "install"] if command == "pip" else [command]
    with serve_answers({"/torch/": Answer(status=401)}) as server:
        url = server.url.replace("://", "://somebody@")
        run = Run(
            *(*words, "--index-url", url, "torch"),
            folder=tmp_path,
            PATH=f"{programs}{os.pathsep}{os.environ['PATH']}",
            PIP_KEYRING_PROVIDER=of_pip,
            UV_KEYRING_PROVIDER="subprocess",
        )
        while not asked.exists():
            assert run.process.poll() is None
            time.sleep(0.05)
        run.process.send_signal(number)
        _, said = run.end()
    assert "Traceback" not in said
