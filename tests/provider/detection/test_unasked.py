"""The provider as installers run it, unasked: the files and programs that it uses, and
the environments in which it works."""

from __future__ import annotations

import errno
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

import pynvml
import pytest
from support.native import environment, machine, needs_compiler

import nvidia_variant_provider
from nvidia_variant_provider.detection.presence import child_variables

pytestmark = needs_compiler

PACKAGES = [str(Path(nvidia_variant_provider.__file__).parents[1])]
PACKAGES += [str(Path(pynvml.__file__).parent)]

ANSWER = f"""
import sys; sys.path[:0] = {PACKAGES!r}
from nvidia_variant_provider.plugin import NvidiaVariantPlugin as Plugin
def answer():
    assert len(Plugin.get_all_configs()) == 3
    return [f.values[0] for f in Plugin.get_supported_configs()]
"""
EXPECTED = ["12.9", "15.20", "90_real"]
WRITE = f"{ANSWER}\nwith open(sys.argv[1], 'a') as file: file.write(f'{{answer()}}\\n')"

SECRETS = {
    "AWS_SECRET_ACCESS_KEY": "secret",
    "NVIDIA_API_KEY": "secret",
    "NV_PASSWORD": "secret",
    "NVIDIA_PASSPHRASE": "secret",
    "NVIDIA_AUTH": "secret",
    "NV_PWD": "secret",
    "NVIDIA_api_key": "secret",
    "PIP_INDEX_URL": "https://user:secret@host/simple",
    "PYTHONSTARTUP": "/secret.py",
    "LD_PRELOAD": "",
    "HOME": "/nowhere",
    "PATH": "/secret",
}


@pytest.fixture
def variables(tmp_path: Path, libraries: Path) -> dict[str, str]:
    """Return the variables of a machine with a GPU, whose libraries print to all
    streams."""
    (tmp_path / "root/dev").mkdir(parents=True)
    (tmp_path / "root/dev/nvidia0").touch()
    noise = {"behaviour.nvmlInitWithFlags": "print noise"}
    scenario = machine("9.0").but(nvml=noise).write(tmp_path / "scenario")
    return {
        **environment(libraries, scenario),
        "NV_VARIANT_PROVIDER_SYSROOT": str(tmp_path / "root"),
        "NV_VARIANT_PROVIDER_DETECT_TIMEOUT": "60",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }


def run(
    code: str, *words: object, variables: dict[str, str], flags: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *flags, "-c", code, *map(str, words)],
        env=variables,
        capture_output=True,
        text=True,
        check=True,
    )


def test_a_child_gets_what_the_driver_may_read() -> None:
    passed = {
        "LD_LIBRARY_PATH": "/a",
        "CUDA_MPS_PIPE_DIRECTORY": "/mps",
        "NVIDIA_TF32_OVERRIDE": "0",
        "SYSTEMROOT": r"C:\Windows",
    }
    tools = {
        "CUDA_INJECTION64_PATH": "/profiler.so",
        "CUDA_LOG_FILE": "/log",
        "CUDA_COREDUMP_PIPE": "/pipe",
        "CUDA_ENABLE_USER_TRIGGERED_COREDUMP": "1",
    }
    own = {"NV_VARIANT_PROVIDER_FORCE_SM_ARCH": "9.0", "CUDA_VISIBLE_DEVICES": "1"}
    given = {**passed, **own, **tools, **SECRETS, "": "x", "A=B": "y"}
    assert child_variables(given) == {**passed, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    gone = {**given, "CUDA_GONE": None}  # a thread removes it
    assert child_variables(cast("dict[str, str]", gone)) == child_variables(given)
    complete = child_variables(given, complete=True)
    assert {*SECRETS, *passed, *tools} <= complete.keys()
    assert not complete.keys() & {"", "A=B", "CUDA_VISIBLE_DEVICES"}


ALONE = """
import signal
signal.signal(signal.SIGALRM, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
from nvidia_variant_provider.detection.child.main import main
main("libcuda", 1)
"""


def test_a_child_ends_without_its_parent(tmp_path: Path, libraries: Path) -> None:
    # A child inherits the signals that its parent ignores or blocks.
    hang = {"behaviour.cuInit": "sleep"}
    scenario = machine("9.0").but(cuda=hang).write(tmp_path / "scenario")
    done = subprocess.run(
        [sys.executable, "-c", ALONE],
        env=environment(libraries, scenario),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == -signal.SIGALRM


# The files and programs of the provider, in the log of strace.

_CALL = re.compile(r"(\w+)\((.*)\) += (-?\d+|\?)")
_PATH = re.compile(r'"((?:[^"\\]|\\.)*)"')
_NO_FILES = ("execve", "readlink", "readlinkat", "access", "faccessat", "faccessat2")


STRACE = shutil.which("strace") or ""


def works(*words: str) -> bool:
    """Return whether a program is installed, and has the permissions that it needs."""
    try:
        return subprocess.run(words, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


needs_strace = pytest.mark.skipif(
    not works(STRACE, "-f", "-o", os.devnull, sys.executable, "-c", ""),
    reason="needs strace, and the right to use it",
)


class Traced:
    """The system calls of a Python program and of its children.

    :ivar written: the files that were opened for writing, made, renamed or removed.
    :ivar started: the programs, with their arguments and variables.
    """

    def __init__(self, folder: Path, code: str, variables: dict[str, str]) -> None:
        folder.mkdir()
        words = [STRACE, "-ff", "-v", "-s", "100000", "-o", str(folder / "trace")]
        words += ["-e", "trace=%file,%network,%process,memfd_create"]
        words += [sys.executable, "-I", "-B", "-c", code]
        done = subprocess.run(
            words, env=variables, stdout=subprocess.PIPE, text=True, check=True
        )
        self.answer = done.stdout
        self.written: list[str] = []
        self.sockets: list[str] = []
        self.started: list[tuple[list[str], dict[str, str]]] = []
        for path in sorted(folder.iterdir()):
            for line in path.read_text("utf-8", "surrogateescape").splitlines():
                if match := _CALL.match(line):
                    self._read(match[1], match[2])

    def _read(self, call: str, words: str) -> None:
        paths = _PATH.findall(words)
        if call == "execve":
            program, arguments, *rest = re.split(r", (?=\[)", words)
            assert program == arguments[1 : len(program) + 1] or "-c" in arguments
            pairs = (text.partition("=") for text in _PATH.findall(rest[0]))
            variables = {name: value for name, _, value in pairs}
            self.started.append((_PATH.findall(arguments), variables))
        elif call in ("socket", "connect", "bind", "sendto", "socketpair"):
            self.sockets.append(f"{call}({words})")
        elif call in ("open", "openat", "creat"):
            if re.search("O_WRONLY|O_RDWR|O_CREAT|O_TRUNC", words) or call == "creat":
                self.written.append(paths[0])
        elif call in ("memfd_create", "mknod", "mknodat") or re.match(
            "mkdir|unlink|rename|link|symlink|rmdir|chmod|fchmodat|truncate|utime|chown",
            call,
        ):
            self.written += paths


@needs_strace
def test_what_it_touches(tmp_path: Path, variables: dict[str, str]) -> None:
    # The files of the copy are not compiled, also not by this run.
    for place in dict.fromkeys(PACKAGES):
        for name in ("nvidia_variant_provider", "pynvml.py"):
            source = Path(place, name)
            if source.is_dir():
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(
                    source,
                    tmp_path / "packages" / name,
                    ignore=ignored,
                    dirs_exist_ok=True,
                )
            elif source.is_file():
                shutil.copy(source, tmp_path / "packages" / name)
    (tmp_path / "cache").mkdir()
    code = ANSWER.replace(repr(PACKAGES), repr([str(tmp_path / "packages")]))
    code += "\nprint(answer())"
    given = {**SECRETS, **variables}
    first = Traced(tmp_path / "first", code, given)
    assert first.answer.strip() == str(EXPECTED)
    own = str(tmp_path / "cache/nvidia-variant-provider")
    assert {path for path in first.written if not path.startswith(own)} == {os.devnull}
    assert not list((tmp_path / "packages").rglob("__pycache__"))
    assert first.sockets == []
    (installer, _), (probe, passed) = first.started
    assert installer[:3] == [sys.executable, "-I", "-B"]
    assert probe[:4] == [sys.executable, "-I", "-S", "-B"]
    assert passed.keys() == {"LD_LIBRARY_PATH", "NV_FAKE_SCENARIO", "CUDA_DEVICE_ORDER"}
    # The result is cached, so the provider starts no program and writes no file.
    again = Traced(tmp_path / "again", code, given)
    assert again.answer == first.answer
    assert (again.written, again.sockets, len(again.started)) == ([], [], 1)


CRASH = f"""
import resource
most = resource.getrlimit(resource.RLIMIT_CORE)[1]
resource.setrlimit(resource.RLIMIT_CORE, (most, most))
{ANSWER}
answer()
"""


def test_a_driver_that_crashes_leaves_no_core_file(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    crash = {"behaviour.nvmlInitWithFlags": "segv"}
    machine("9.0").but(nvml=crash).write(tmp_path / "scenario")
    (tmp_path / "here").mkdir()
    words = [sys.executable, "-B", "-c", CRASH]
    subprocess.run(words, env=variables, cwd=tmp_path / "here", check=True)
    assert not list((tmp_path / "here").iterdir())


@needs_strace
def test_without_a_driver_it_only_looks(tmp_path: Path) -> None:
    code = ANSWER + "\nprint(answer())"
    sysroot = {"NV_VARIANT_PROVIDER_SYSROOT": str(tmp_path / "empty")}
    traced = Traced(tmp_path / "trace", code, {**SECRETS, **sysroot})
    assert traced.answer.strip() == "[]"
    assert (traced.written, traced.sockets, len(traced.started)) == ([], [], 1)


@pytest.mark.parametrize("detail", [1, 64])
def test_it_takes_little_memory(
    detail: int, tmp_path: Path, variables: dict[str, str]
) -> None:
    machine(*["9.0"] * detail).write(tmp_path / "scenario")
    code = ANSWER + (
        "import json, resource\n"
        "def peak(): return [l for l in open('/proc/self/status') if 'VmHWM' in l][0]\n"
        "found = answer()\n"
        "children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss\n"
        "print(json.dumps([found[0], int(peak().split()[1]), children]))"
    )
    version, own, child = json.loads(run(code, variables=variables).stdout)
    assert version == "12.9"
    assert 0 < own < 64 << 10
    assert 0 <= child < 64 << 10


# Environments in which the provider works.

FLAGS = [(), ("-I",), ("-S",), ("-E",), ("-OO",), ("-I", "-S", "-E", "-OO", "-B")]


@pytest.mark.parametrize("flags", FLAGS, ids=" ".join)
def test_flags_of_python(
    flags: tuple[str, ...], tmp_path: Path, variables: dict[str, str]
) -> None:
    run(WRITE, tmp_path / "out", variables=variables, flags=flags)
    assert (tmp_path / "out").read_text() == f"{EXPECTED}\n"


CLOSED = [
    closed for count in range(4) for closed in itertools.combinations((0, 1, 2), count)
]


@pytest.mark.parametrize("closed", CLOSED, ids=str)
def test_streams_that_are_closed(
    closed: tuple[int, ...], tmp_path: Path, variables: dict[str, str]
) -> None:
    redirections = " ".join(f"{number}>&-" for number in closed)
    words = ["sh", "-c", f'exec "$@" {redirections}', "sh"]
    words += [sys.executable, "-c", WRITE, str(tmp_path / "out")]
    subprocess.run(words, env=variables, check=True)
    assert (tmp_path / "out").read_text() == f"{EXPECTED}\n"


@pytest.mark.parametrize(
    "place",
    [
        {},
        {"HOME": ""},
        {"HOME": "relative"},
        {"HOME": "/nowhere/at/all"},
        {"XDG_CACHE_HOME": "/proc/nowhere"},
        {"XDG_CACHE_HOME": "/sys/nowhere"},
        {"XDG_CACHE_HOME": "/dev/null"},
        {"TMPDIR": "/nowhere", "TZ": "\udcff", "LC_ALL": "xx_XX"},
    ],
    ids=str,
)
def test_places_that_cannot_be_written(
    place: dict[str, str], tmp_path: Path, variables: dict[str, str]
) -> None:
    del variables["XDG_CACHE_HOME"]
    run(WRITE, tmp_path / "out", variables={**variables, **place})
    assert (tmp_path / "out").read_text() == f"{EXPECTED}\n"
    assert not (tmp_path / "relative").exists()


@pytest.mark.skipif(
    not works("unshare", "-m", "mount", "--bind", "/", "/"),
    reason="needs a name space of its own",
)
def test_a_read_only_file_system(tmp_path: Path, variables: dict[str, str]) -> None:
    mount = 'mount --bind / / && mount -o remount,ro,bind / && exec "$@"'
    check = "\ntry: open('file', 'w')\nexcept OSError as error: print(error.errno)"
    code = f"{ANSWER}\nprint(answer()){check}"
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", mount, "sh", sys.executable, "-c", code],
        env={**variables, "PATH": os.environ["PATH"]},
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == [str(EXPECTED), str(errno.EROFS)]
    assert not (tmp_path / "cache").exists()


def test_an_application_is_not_started(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    # PyInstaller and similar tools set `sys.frozen`; the executable is the application.
    app = tmp_path / "app"
    app.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    app.chmod(0o700)
    code = f"{ANSWER}\nsys.frozen, sys.executable = True, {str(app)!r}\nprint(answer())"
    assert run(code, variables=variables).stdout == "[]\n"
    assert not (tmp_path / "started").exists()


THREADS = """
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(8) as pool:
    answers = list(pool.map(lambda _: answer(), range(8)))
"""
FORKS = """
import os
before = answer()
pid = os.fork()
if not pid:
    os._exit(0 if answer() == before else 1)
answers = [before, answer()]
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
"""


@pytest.mark.parametrize("code", [THREADS, FORKS], ids=["threads", "forks"])
@pytest.mark.parametrize("cached", [True, False])
def test_threads_and_forks(code: str, cached: bool, variables: dict[str, str]) -> None:
    variables["NV_VARIANT_PROVIDER_NO_CACHE"] = "0" if cached else "1"
    end = "\nprint(*{str(a) for a in answers})"
    assert run(ANSWER + code + end, variables=variables).stdout == f"{EXPECTED}\n"


SUBINTERPRETERS = """
import sys
try:
    import _interpreters as module
except ImportError:
    import _xxsubinterpreters as module
code = f"import sys; sys.argv = ['', {sys.argv[2]!r}]; {sys.argv[1]}"
for _ in range(3):
    number = module.create()
    failure = module.run_string(number, code)
    assert failure is None, failure
    module.destroy(number)
"""


def interpreters() -> Iterator[str]:
    """Yield this Python, and those of other versions that run here."""
    yield sys.executable
    for version in ("3.10", "3.12", "3.13", "3.13t", "3.14", "3.14t"):
        if works(f"python{version}", "-c", ""):
            yield f"python{version}"


@pytest.mark.parametrize("cached", [True, False])
def test_subinterpreters(
    cached: bool, tmp_path: Path, variables: dict[str, str]
) -> None:
    variables["NV_VARIANT_PROVIDER_NO_CACHE"] = "0" if cached else "1"
    tried = 0
    for python in interpreters():
        (tmp_path / "out").unlink(missing_ok=True)
        words = [python, "-I", "-c", SUBINTERPRETERS, WRITE, str(tmp_path / "out")]
        done = subprocess.run(
            words,
            env={**variables, "PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            check=False,
        )
        # PyPy and other implementations do not have this module.
        if "No module named '_xxsub" in done.stderr:
            continue
        assert done.returncode == 0, (python, done.stderr)
        assert (tmp_path / "out").read_text() == f"{EXPECTED}\n" * 3
        tried += 1
    assert tried
