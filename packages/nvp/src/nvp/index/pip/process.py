"""The user's pip: let it interpret a command line, and run it.

The probe runs pip's own code, so arguments, environment variables and configuration
files are interpreted exactly as by that version of pip.

For a small package, loading pip takes longer than the rest of its work. If possible,
pip therefore runs in the process of the probe, where it is already loaded.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import select
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from nvidia_variant_provider.errors import InputError, redacted

from ...files import resource_file
from ...signals import ENDING, handling, holding_back
from .command import PipCommand, PipOptions

logger = logging.getLogger(__name__)

_PROBE = ("index", "pip", "probe.py")
# Copies of SIGN, NO_PIP and LIFELINE in probe.py: importing that module would run it.
_SIGN, _NO_PIP, _LIFELINE = "pip_probe", 66, "NVP_LIFELINE"

_TIMEOUT = 120.0
"""The long time limit of the probe in seconds: a keyring may prompt the user."""

_CAN_KEEP = sys.platform != "win32"
"""Whether descriptors can be passed to a process, which `_WarmPip` requires."""

_GRACE = 5.0
"""Seconds before an interrupt is forwarded to pip, which may receive it directly, and
before a process that has sent no reply is killed."""


class Pip:
    """The pip of an interpreter.

    :param python: the path of the interpreter.
    :param environ: the environment variables of pip.
    """

    def __init__(self, python: str, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._python = python
        self._host = python
        self._base = [*self._probe(), "pip"]
        self._paths: list[str] | None = None
        self._search: str | None = None  # the wheel from which pip is imported
        self._warm: _WarmPip | None = None

    def start(self, *, quiet: bool) -> None:
        """Start the process for `understand` and `run`; call `close` at the end.

        :param quiet: send pip's stdout to stderr, as in `run`.
        :raises InputError: the interpreter cannot be run.
        """
        if not _CAN_KEEP:
            return
        try:
            self._warm = _WarmPip(self._probe(), self._environ, quiet=quiet)
        except OSError as error:
            raise _not_run(self._host, error) from None

    def understand(self, arguments: Sequence[str]) -> PipCommand:
        """Let pip interpret ``arguments`` without running a command.

        :raises InputError: the interpreter has no pip.
        """
        names = [field.name for field in fields(PipOptions)]
        question = {"arguments": list(arguments), "names": names}
        if self._warm is None:
            reply = self._ask(question)
        else:
            reply = self._ask_warm(self._warm, question)
        if reply is None:
            logger.info("%s: pip refuses the command line", self._host)
            return PipCommand(command=None)
        try:
            command = PipCommand.from_reply(reply)
        except (AttributeError, IndexError, TypeError):
            raise _no_pip(self._host) from None
        logger.info(
            "%s: pip runs %s with the indexes %s",
            self._host,
            command.command,
            ", ".join(map(redacted, command.indexes)) or "none",
        )
        return command if self._paths is None else replace(command, paths=self._paths)

    def ask_credentials(self, url: str, command: PipCommand) -> tuple[str, str] | None:
        """Let pip look up the user and password for the server of ``url``.

        pip searches the URLs of its indexes, and the keyring.
        """
        question = {
            "url": url,
            "indexes": [*command.indexes],
            "no_input": command.options.no_input,
            "keyring_provider": command.options.keyring_provider,
        }
        reply = self._ask(question)
        return (str(reply[0]), str(reply[1])) if reply else None

    @property
    def python(self) -> str:
        """The path of the target interpreter."""
        return self._python

    def run(
        self,
        arguments: Sequence[str],
        environ: Mapping[str, str],
        *,
        quiet: bool,
        mark: str | None = None,
    ) -> int:
        """Run pip to completion, and return its exit status.

        Signals are sent to pip; `SystemExit` is raised when pip has ended by one.

        :param quiet: send pip's stdout to stderr.
        :param mark: a variable ``NAME=VALUE`` of ``environ`` that only this pip and its
            children have.
        :raises InputError: the interpreter cannot be run.
        """
        logger.info("running %s", " ".join([*self._base, *map(redacted, arguments)]))
        warm, self._warm = self._warm, None
        told: list[int] = []
        process: subprocess.Popen[bytes] | None = None

        def send(number: int) -> None:
            if process is not None:
                process.send_signal(number)

        with ExitStack() as stack:
            stack.enter_context(_passing_signals_on(send, told))
            if warm is not None:
                stack.callback(warm.close)
                process = warm.process
                warm.become_pip(arguments, environ)
            else:
                try:
                    process = subprocess.Popen(  # noqa: S603
                        [*self._base, *arguments],
                        **stack.enter_context(_lifeline(environ)),
                        stdout=2 if quiet else None,
                    )
                except OSError as error:
                    raise _not_run(self._host, error) from None
            for number in told:  # received before the process existed
                send(number)
            # If this process was stopped, another thread may have received a signal.
            # Python calls the handler of the signal when the main thread wakes up.
            while process.poll() is None:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(0.5)
            status = process.returncode
            if told and mark is not None:
                from ...doctor.programs import end_strays

                # End the children of pip too: the index ends next, and without it a
                # build or the pip of --python would report a missing package.
                end_strays(mark)
        status = status if status >= 0 else 128 - status
        terminating = [number for number in told if number != signal.SIGINT]
        if terminating or (told and status):
            raise SystemExit(128 + terminating[0] if terminating else status)
        return status

    def close(self) -> None:
        """End a warm process that has not run pip."""
        if self._warm is not None:
            warm, self._warm = self._warm, None
            warm.end()

    def _ask_warm(self, warm: _WarmPip, question: Mapping[str, object]) -> Any:
        """Return the reply of a warm probe; ``None`` if pip should report an error."""
        warm.send(question)
        sign = warm.read_line(_TIMEOUT)
        reply = warm.read_line(_TIMEOUT) if sign == _SIGN else None
        if reply is None:
            status = warm.end(_GRACE)
            self._warm = None
            if status == _NO_PIP:
                self._borrow()
                return self._ask(question)
            if sign != _SIGN:
                raise _no_pip(self._host)
            return None
        return json.loads(reply)

    def _ask(self, question: Mapping[str, object]) -> Any:
        """Return the reply of the probe; ``None`` if pip should report an error."""
        done = self._run_probe(question)
        if done is not None and done.returncode == _NO_PIP:
            self._borrow()
            done = self._run_probe(question)
        if done is None:
            return None
        # A sitecustomize of the user may have printed text before the reply.
        _, sign, reply = done.stdout.partition(f"{_SIGN}\n")
        if not sign:
            raise _no_pip(self._host)
        try:
            return json.loads(reply) if done.returncode == 0 else None
        except ValueError:
            raise _no_pip(self._host) from None

    def _run_probe(
        self, question: Mapping[str, object]
    ) -> subprocess.CompletedProcess[str] | None:
        environ = {**self._environ, "PYTHONIOENCODING": "utf-8"}
        if self._search is not None:
            environ["PYTHONPATH"] = self._search
        try:
            with _lifeline(environ) as options:
                return subprocess.run(  # noqa: S603
                    self._probe(),
                    **options,
                    input=json.dumps(question),
                    capture_output=True,
                    encoding="utf-8",
                    timeout=_TIMEOUT,
                    check=False,
                )
        except OSError as error:
            raise _not_run(self._host, error) from None
        except (ValueError, subprocess.TimeoutExpired):
            return None

    def _probe(self) -> list[str]:
        """Return the command that runs the probe."""
        return [self._host, resource_file(*_PROBE)]

    def _borrow(self) -> None:
        """Use the pip of the running interpreter, or the pip bundled with Python.

        Either pip can manage other environments.
        """
        host = sys.executable
        if self._host != host and importlib.util.find_spec("pip"):
            self._base = [host, resource_file(*_PROBE), "pip"]
        else:
            wheel = _find_bundled_pip()
            if wheel is None:
                hint = f"{self._python} -m ensurepip"
                raise InputError("has no pip", path=self._python, hint=hint)
            self._base = [host, resource_file(*_PROBE), os.path.join(wheel, "pip")]
            self._search = wheel
        logger.info(
            "%s has no pip: using that of %s", self._python, self._search or host
        )
        self._host = host
        if self._python != host:
            self._base += ["--python", self._python]
            self._paths = _find_paths(self._python, self._environ)


@contextmanager
def _lifeline(environ: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Yield the options of a process that runs the probe, which ends with this process.

    The probe notices the end of a pipe to which only this process can write.
    """
    if not _CAN_KEEP:
        yield {"env": dict(environ)}
        return
    reader, writer = os.pipe()
    try:
        os.set_inheritable(reader, True)
        # pip may have to read a pipe of the shell, too, such as /dev/fd/63.
        yield {"env": {**environ, _LIFELINE: str(reader)}, "close_fds": False}
    finally:
        os.close(reader)
        os.close(writer)


def _not_run(path: str, error: OSError) -> InputError:
    return _no_pip(path, f"cannot be run: {error.strerror}")


def _no_pip(path: str, message: str = "is not a Python with a pip") -> InputError:
    return InputError(message, path=path, hint="see --python")


def _find_bundled_pip() -> str | None:
    """Find the wheel from which ``ensurepip`` installs pip, if there is one."""
    spec = importlib.util.find_spec("ensurepip")
    folders = [sysconfig.get_config_var("WHEEL_PKG_DIR")]
    if spec is not None and spec.origin:
        folders.append(os.path.join(os.path.dirname(spec.origin), "_bundled"))
    for folder in filter(None, folders):
        wheels = sorted(Path(folder).glob("pip-*.whl"))
        if wheels:
            return str(wheels[-1])
    return None


def _find_paths(python: str, environ: Mapping[str, str]) -> list[str]:
    # Since Python 3.13, ``-c`` imports linecache of the current directory.
    try:
        done = subprocess.run(  # noqa: S603
            [python, resource_file(*_PROBE), "paths"],
            env=dict(environ),
            capture_output=True,
            timeout=_TIMEOUT,
            check=True,
        )
        paths: list[str] = json.loads(done.stdout.splitlines()[-1])
    except (OSError, ValueError, IndexError, subprocess.SubprocessError):
        raise _no_pip(python) from None
    return paths


class _WarmPip:
    """A probe that communicates through two pipes, so pip can use the standard streams.

    :param command: runs the probe; the descriptors of the pipes are appended.
    :param quiet: send stdout to stderr.
    :raises OSError: the interpreter cannot be run.
    """

    def __init__(
        self, command: Sequence[str], environ: Mapping[str, str], *, quiet: bool
    ) -> None:
        questions, self._questions = os.pipe()
        self._replies, replies = os.pipe()
        self._received = b""
        try:
            os.set_inheritable(questions, True)
            os.set_inheritable(replies, True)
            with holding_back("SIGINT"):
                self.process = subprocess.Popen(  # noqa: S603
                    [*command, str(questions), str(replies)],
                    env=dict(environ),
                    stdout=2 if quiet else None,
                    close_fds=False,  # see `_lifeline`
                )
        except OSError:
            self.close()
            raise
        finally:
            os.close(questions)
            os.close(replies)

    def send(self, message: Mapping[str, object]) -> None:
        """Send a message, unless the process has ended."""
        line = f"{json.dumps(message)}\n".encode()
        try:
            while line:
                line = line[os.write(self._questions, line) :]
        except BrokenPipeError:
            logger.info("the probe has ended")

    def read_line(self, timeout: float) -> str | None:
        """Return the next line; ``None`` if the probe ends or the timeout expires.

        :param timeout: the maximum wait in seconds.
        """
        until = time.monotonic() + timeout
        while b"\n" not in self._received:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self._replies], [], [], left)[0]:
                return None
            piece = os.read(self._replies, 65536)
            if not piece:
                return None
            self._received += piece
        line, _, self._received = self._received.partition(b"\n")
        return line.decode("utf-8", "replace")

    def become_pip(self, arguments: Sequence[str], environ: Mapping[str, str]) -> None:
        """Let the process run pip; it ends with the exit status of pip.

        Until `close` is called, the process sees that this one has not ended.
        """
        self.send({"run": list(arguments), "environ": dict(environ)})

    def end(self, patience: float = 0.5) -> int:
        """End a process without running pip, and return its exit status.

        :param patience: the seconds until it is killed, perhaps while it writes
            bytecode.
        """
        self.close()
        try:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(patience)
        finally:  # a second signal may interrupt the wait
            self.process.kill()
        return self.process.wait()

    def close(self) -> None:
        """Close the pipes."""
        for name in ("_questions", "_replies"):
            if getattr(self, name) >= 0:
                os.close(getattr(self, name))
                setattr(self, name, -1)


def _passing_signals_on(
    send: Callable[[int], object], told: list[int]
) -> AbstractContextManager[None]:
    """Forward to pip the signals that end this process, so pip ends first.

    :param send: sends a signal to pip.
    :param told: receives the signals.
    """

    def interrupt(number: int, _: object) -> None:
        told.append(number)
        # Ctrl-C reaches pip directly, and a second SIGINT would interrupt its rollback.
        # Others, such as CI systems, may signal only this process: wait for pip first.
        if not _is_foreground():
            timer = threading.Timer(_GRACE, send, [number])
            timer.daemon = True
            timer.start()

    def terminate(number: int, _: object) -> None:
        told.append(number)
        send(number)

    return handling({signal.SIGINT: interrupt, **dict.fromkeys(ENDING, terminate)})


def _is_foreground() -> bool:
    """Return whether the terminal sends signals to this process and its children."""
    if sys.platform == "win32":
        return True
    for stream in (0, 1, 2):
        with suppress(OSError):
            return os.tcgetpgrp(stream) == os.getpgrp()
    return False
