"""Find and start programs, and end them together with all of their children.

The programs of CUDA toolkits are run to get their versions.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import ntpath
import os
import posixpath
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import IO, Any, Literal, TypeAlias, cast

from nvidia_variant_provider.detection.child.main import end_with_parent
from nvidia_variant_provider.errors import shown
from nvidia_variant_provider.machine.environment import CudaVersion

from ..signals import ENDING, handling

logger = logging.getLogger(__name__)


_SIGNALS = (signal.SIGINT, *ENDING)

_GRACE = 5.0
"""The time limit for a killed process to end, in seconds."""

_SEARCH = 1.0
"""The processor time of the search for a family, in seconds. Usually it takes a few
milliseconds, but processes of others that end all the time prolong it."""

_MARK = "NV_VARIANT_PROVIDER_WORKLOAD"
"""A variable that all processes of a program inherit, even those that leave its
session. Its value is unique for each run."""


def find_program(name: str, environ: Mapping[str, str]) -> str | None:
    """Return the path of a program, or ``None``.

    Only the directories of ``PATH`` are searched, never the current directory, which
    may be untrusted. `shutil.which` searches that directory on Windows.

    :param name: the name of the program, or a path with a directory.
    """
    places = places_of_program(name, environ, windows=sys.platform == "win32")
    return next(
        (x for x in places if os.path.isfile(x) and os.access(x, os.X_OK)), None
    )


def places_of_program(
    name: str, environ: Mapping[str, str], *, windows: bool
) -> Iterator[str]:
    """Yield the possible paths of a program, in the order that a shell uses."""
    if "\0" in name:
        return
    flavour = ntpath if windows else posixpath
    endings = [""]
    if windows:
        known = environ.get("PATHEXT", "").lower().split(";")
        known = list(filter(None, known)) or [".com", ".exe", ".bat", ".cmd"]
        if flavour.splitext(name)[1].lower() not in known:
            endings = known
    folders = [""]
    if not flavour.dirname(name):
        entries = environ.get("PATH", "").split(flavour.pathsep)
        entries = [entry.strip('"') if windows else entry for entry in entries]
        # Skip entries that depend on the current directory, such as "C:x" and "\\x".
        folders = [
            entry
            for entry in entries
            if flavour.isabs(entry) and (not windows or flavour.splitdrive(entry)[0])
        ]
    for folder in folders:
        for ending in endings:
            yield flavour.join(folder, f"{name}{ending}")


@contextlib.contextmanager
def started(
    words: Sequence[str],
    end: Callable[[subprocess.Popen[bytes], str], object],
    *,
    env: Mapping[str, str],
    mark: str | None = None,
    **options: Any,
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a program in its own session, and end it after the block.

    :param end: ends the program and its children, such as `end_family`; called even
        after an error, with the process and the variable that only this family has.
    :param mark: the value of that variable, for programs that are ended together.
    :param options: arguments of `subprocess.Popen`.
    :raises OSError: the program cannot be started.
    """
    mark = mark or uuid.uuid4().hex
    # Drop variables that a process can inherit or a caller can give, but not pass on.
    valid = {k: v for k, v in env.items() if k and "=" not in k and "\0" not in k + v}
    valid[_MARK] = mark
    waiting: list[int] = []
    later = dict.fromkeys(_SIGNALS, lambda number, _: waiting.append(number))
    process: Any = None
    is_known = False
    parting = partial(end_with_parent, os.getpid())
    try:
        # A signal could raise an exception before the process id is known: delay it.
        with handling(later):
            process = subprocess.Popen(  # noqa: S603  # a program of the user's stack
                list(words),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env=valid,
                preexec_fn=parting if sys.platform == "linux" else None,  # noqa: PLW1509
                **options,
            )
        while waiting:
            signal.raise_signal(waiting.pop())
        is_known = True
        yield process
    finally:
        if process is not None:
            # A second signal must not interrupt ``end``, which takes a few seconds.
            with handling(later):
                end(process, f"{_MARK}={mark}")
            streams = () if is_known else (process.stdout, process.stderr)
            for stream in filter(None, streams):
                stream.close()
            while waiting:
                signal.raise_signal(waiting.pop())


def pipe_name(stream: IO[bytes]) -> str:
    """Return the name of a pipe in /proc, such as ``pipe:[4026]``."""
    return f"pipe:[{os.fstat(stream.fileno()).st_ino}]"


def end_family(
    process: subprocess.Popen[bytes],
    variable: str,
    pipes: Collection[str] = (),
    *,
    searches: bool = True,
) -> None:
    """Kill a process and its descendants.

    A daemon leaves the session, but usually keeps the variables or the pipes of its
    parent. On Linux, ``/proc`` shows the variables and pipes of each process, so
    daemons are killed too. A daemon with neither of them survives.

    :param variable: a variable ``NAME=VALUE`` that only this family has.
    :param pipes: the names of the pipes to which only this family writes.
    :param searches: whether to look for daemons.
    """
    if sys.platform == "win32":
        program = find_program("taskkill", {"PATH": ";".join(os.get_exec_path())})
        if program is not None and process.poll() is None:
            subprocess.run(  # noqa: S603  # Windows' own program
                [program, "/T", "/F", "/PID", str(process.pid)],
                capture_output=True,
                check=False,
            )
    else:
        # The ID of a process group is the ID of its first process.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        if searches:
            end_strays(variable, pipes)
    _reap(process)


def _reap(process: subprocess.Popen[bytes]) -> None:
    """Wait for the end of a killed process.

    A process that is stuck in the driver cannot be killed, so it is abandoned.
    """
    if sys.platform == "win32":
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_GRACE)
        return
    # A signal can interrupt a wait of Popen that has just taken its lock. The lock then
    # stays taken, and each further wait of Popen is in vain.
    latest = time.monotonic() + _GRACE
    while process.returncode is None and time.monotonic() < latest:
        try:
            ended, status = os.waitpid(process.pid, os.WNOHANG)
        except ChildProcessError:  # other code in this process reaped it
            ended, status = process.pid, 0
        if ended:
            process.returncode = os.waitstatus_to_exitcode(status)
        else:
            time.sleep(0.001)


def end_strays(variable: str, pipes: Collection[str] = ()) -> None:
    """Kill the processes of a family that have left its process group, using /proc.

    The parameters are the same as in `end_family`.
    """
    if sys.platform == "win32":
        return
    known: dict[int, bool | None] = {}
    latest = time.thread_time() + _SEARCH
    try:
        # A process can start another one while it is looked for, so stop each process,
        # and search until nothing changes.
        while _stop_family(variable.encode(), pipes, known):
            if time.thread_time() >= latest:
                break
    finally:
        for pid in [pid for pid, is_stopped in known.items() if is_stopped]:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _stop_family(
    variable: bytes, pipes: Collection[str], known: dict[int, bool | None]
) -> bool:
    """Stop the processes of a family, and return whether there may be more of them.

    :param known: the results of `_stop` of earlier searches; extended. Processes that
        were stopped, or are of other families, are not looked at again.
    """
    try:
        pids = set(map(int, filter(str.isdigit, os.listdir("/proc"))))
    except OSError:
        return False
    pids -= {os.getpid(), *(pid for pid, found in known.items() if found is not False)}
    has_changed = False
    # The newest come first: one that starts a child and ends lives for 0.1 ms.
    for pid in sorted(pids)[::-1]:
        is_stopped = _stop(pid, variable, pipes)
        has_changed |= is_stopped is not None and is_stopped != known.get(pid)
        known[pid] = is_stopped
    return has_changed


def _stop(pid: int, variable: bytes, pipes: Collection[str]) -> bool | None:
    """Stop a process of a family; ``None`` for a process of another family.

    :returns: ``False`` if the process has ended, perhaps after it has started another.
    """
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            variables = file.read()
        if variable in variables.split(b"\0") or (pipes and _has_pipe(pid, pipes)):
            # Type checkers for Windows need the name, because Windows lacks the signal.
            os.kill(pid, signal.Signals["SIGSTOP"])
            return True
    except PermissionError:
        return None
    except OSError:
        return False
    return None if variables else False


def _has_pipe(pid: int, pipes: Collection[str]) -> bool:
    folder = f"/proc/{pid}/fd"
    for number in os.listdir(folder):
        with contextlib.suppress(OSError):  # closed in the meantime
            if os.readlink(f"{folder}/{number}") in pipes:
                return True
    return False


DEADLINE = 10.0
"""The time in seconds that programs have to print their versions. Usually they need a
twentieth of a second, but more on a slow file system."""

_MOST = 64 * 1024
"""The maximum output to read, in bytes; five lines are usual."""

LINGER = 1.0
"""Seconds to wait for the output of ended programs before it is abandoned."""

_RELEASE = re.compile(rb"release ([0-9]{1,3}\.[0-9]{1,3})(?:, V([0-9][0-9.]{0,30}))?")


Failure: TypeAlias = Literal["missing", "refused", "foreign", "hangs", "garbled"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """A program of a CUDA toolkit; `ask_versions` finds its version.

    :param named_by: the variable or distribution with the path, such as ``PATH``.
    :param cuda: the CUDA version of the toolkit; ``None`` if unknown.
    :param release: the full version, such as ``12.9.86``.
    :param problem: why the version is unknown, as a clause.
    :param failure: the kind of the problem. ``foreign`` means a program for another
        processor or system, and ``garbled`` unexpected output.
    """

    path: str
    named_by: str
    cuda: CudaVersion | None = None
    release: str | None = None
    problem: str | None = None
    failure: Failure | None = None

    def to_dict(self) -> dict[str, object]:
        """Return the program for the JSON report."""
        return {
            "path": self.path,
            "named_by": self.named_by,
            "cuda": None if self.cuda is None else str(self.cuda),
            "release": self.release,
            "problem": self.problem,
        }


def ask_versions(
    programs: Iterable[Program],
    environ: Mapping[str, str],
    *,
    deadline: float = DEADLINE,
) -> dict[Program, Program]:
    """Run each program with ``--version``, and read the CUDA version that it prints.

    The programs run in parallel, so several hanging programs take no longer than one.

    :param environ: the environment variables of the programs.
    :param deadline: seconds after which running programs and their children are killed.
    :returns: for each given program, a copy with its version, or with a ``problem`` if
        the program cannot be run, hangs, or has unexpected output.
    """
    asked: dict[Program, Program] = {}
    runs: dict[Program, Run] = {}
    mark, pipes = uuid.uuid4().hex, set[str]()
    with contextlib.ExitStack() as stack:
        # Close the outputs last, after all programs have ended.
        stack.callback(lambda: _close(runs.values()))
        for program in dict.fromkeys(programs):
            path = program.path
            # Reject a bare name, for which Windows would search the current directory.
            named = "\0" in path or not os.path.dirname(path)
            if named or not os.path.exists(path):
                asked[program] = _failed(program, "missing", "there is no such file")
            elif os.path.isdir(path):
                asked[program] = _failed(program, "refused", "it is a directory")
            else:
                try:
                    # The first program is ended last, with the daemons of all.
                    end = partial(end_family, pipes=pipes, searches=not runs)
                    words = [path, "--version"]
                    run = running(words, pipes, end=end, env=environ, mark=mark)
                    runs[program] = stack.enter_context(run)
                except OSError as error:
                    asked[program] = _refused(program, error)
        latest = time.monotonic() + deadline
        for program, one in runs.items():
            one.wait(latest)
            output = None if one.thread.is_alive() else bytes(one.output)
            asked[program] = _parse(program, output, deadline)
    return asked


def _refused(program: Program, error: OSError) -> Program:
    if error.errno == errno.ENOEXEC or getattr(error, "winerror", 0) == 216:
        return _failed(program, "foreign", "it is not a program for this machine")
    problem = f"it cannot be run: {error.strerror or error}"
    return _failed(program, "refused", problem)


def _parse(program: Program, output: bytes | None, deadline: float) -> Program:
    """Add the version in ``output`` to a program; ``output`` is ``None`` if it hung."""
    if output is None:
        return _failed(program, "hangs", f"it did not reply in {deadline:g} seconds")
    match = _RELEASE.search(output)
    if match is None:
        lines = output.decode("utf-8", "replace").splitlines()
        first = next((line.strip() for line in lines if line.strip()), "")
        printed = shown(first) if first else "nothing"
        problem = f"it prints {printed} instead of its version"
        return _failed(program, "garbled", problem)
    cuda = CudaVersion.parse(match[1].decode())
    logger.info("%s --version says CUDA %s", program.path, cuda)
    release = match[2].decode().rstrip(".") if match[2] else None
    return replace(program, cuda=cuda, release=release)


def _failed(program: Program, failure: Failure, problem: str) -> Program:
    logger.info("%s --version says nothing: %s", program.path, problem)
    return replace(program, problem=problem, failure=failure)


class Run:
    """The output of a program, read by a thread.

    On Windows, only a thread can wait for output with a deadline.
    """

    def __init__(self, stream: IO[bytes], most: int) -> None:
        self._stream = stream
        self._most = most
        self.output = bytearray()
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        piece = b"-"
        while piece and (left := self._most - len(self.output)):
            piece = os.read(self._stream.fileno(), min(left, _MOST))
            self.output += piece

    def wait(self, latest: float) -> None:
        """Wait until all or enough output has been read, or until ``latest``."""
        self.thread.join(max(0.0, latest - time.monotonic()))

    def close(self, latest: float) -> None:
        """Wait as `wait` does, and close the stream if all output has been read."""
        self.wait(latest)
        if not self.thread.is_alive():
            # If the thread still reads, a process outside the session has the pipe
            # open, and closing the stream would wait for that process.
            self._stream.close()


@contextlib.contextmanager
def running(
    words: Sequence[str], pipes: set[str], most: int = _MOST, **options: Any
) -> Iterator[Run]:
    """Start a program, and end it after the block.

    :param pipes: the pipes of all programs that are ended together; extended.
    :param most: the maximum output to read, in bytes.
    :param options: arguments of `started`; by default, stderr is read too.
    """
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, **options}
    with started(words, **options) as process:
        stream = cast("IO[bytes]", process.stdout)
        pipes.add(pipe_name(stream))
        yield Run(stream, most)


def _close(runs: Iterable[Run]) -> None:
    latest = time.monotonic() + LINGER
    for run in runs:
        run.close(latest)
