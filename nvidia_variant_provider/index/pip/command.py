"""The user's pip: what it is asked to do, and running it.

It is asked itself, by `pip_probe`, so that its arguments, environment variables and
configuration files mean here what they mean to that version of pip.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ...errors import InputError, UsageError, shown
from .signals import ENDING, handling

__all__ = ["Pip", "PipCommand", "find_python"]

_PROBE = Path(__file__).with_name("probe.py")
# As pip_probe has them.
_SIGN, _NO_PIP = "pip_probe", 66

_GRACE = 5.0
"""Seconds after an interrupt in which pip should have noticed it itself."""

_TIMEOUT = 120.0
"""Seconds for a question: a keyring may ask its user something."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PipCommand:
    """A command line, as pip understands it.

    :param command: as ``install``; ``None`` for none, or one that pip refuses.
    :param options: the values of pip's options that count here.
    :param words: the options on the command line, each ``[option, spelling,
        value...]``.
    :param credentials: user and password of the indexes, as pip knows them.
    :param paths: where its packages are.
    """

    command: str | None
    uses_index: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    words: Sequence[Sequence[str]] = ()
    positional: Sequence[str] = ()
    credentials: Mapping[str, tuple[str, str]] = field(default_factory=dict, repr=False)
    paths: Sequence[str] = ()

    @property
    def indexes(self) -> list[str]:
        """The URLs of the indexes, in pip's order."""
        if self.options.get("no_index"):
            return []
        more = self.options.get("extra_index_urls") or []
        urls = [self.options.get("index_url"), *more]
        return list(dict.fromkeys(url for url in urls if url))

    @property
    def find_links(self) -> list[str]:
        """Folders and pages of links."""
        return list(dict.fromkeys(self.options.get("find_links") or []))


class Pip:
    """The pip of an interpreter.

    :param python: the interpreter.
    :param environ: the environment variables that it sees.
    """

    def __init__(self, python: str, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._python = python
        self._host = python
        self._base = [python, "-m", "pip"]
        self._paths: list[str] | None = None

    def understand(self, arguments: Sequence[str]) -> PipCommand:
        """What pip makes of ``arguments``; nothing is run.

        :raises InputError: there is no pip.
        """
        answer = self._ask({"arguments": list(arguments)})
        if answer is None:
            return PipCommand(command=None)
        try:
            pairs = answer.pop("credentials", {})
            command = PipCommand(
                **answer,
                credentials={url: (pair[0], pair[1]) for url, pair in pairs.items()},
            )
        except (AttributeError, IndexError, KeyError, TypeError):
            raise _no_pip(self._host) from None
        return command if self._paths is None else replace(command, paths=self._paths)

    def ask_credentials(
        self, url: str, options: Mapping[str, Any]
    ) -> tuple[str, str] | None:
        """User and password for the server of ``url``, from the user's keyring."""
        answer = self._ask({"url": url, "options": dict(options)})
        return (str(answer[0]), str(answer[1])) if answer else None

    def run(
        self, arguments: Sequence[str], environ: Mapping[str, str], *, quiet: bool
    ) -> int:
        """Run it to its end; the value is its exit status.

        :param quiet: its stdout goes to stderr.
        """
        try:
            process = subprocess.Popen(  # noqa: S603
                [*self._base, *arguments],
                env=dict(environ),
                stdout=2 if quiet else None,
            )
        except OSError as error:
            raise InputError(
                f"cannot be run: {error.strerror}", path=self._host, hint="see --python"
            ) from None
        with _passing_on(process):
            status = process.wait()
        return status if status >= 0 else 128 - status

    def _ask(self, question: Mapping[str, object]) -> Any:
        """The probe's answer; ``None`` where pip has to say what is wrong."""
        done = self._run_probe(question)
        if done is not None and done.returncode == _NO_PIP:
            self._borrow()
            done = self._run_probe(question)
        if done is None:
            return None
        # What a sitecustomize prints comes before it.
        _, sign, answer = done.stdout.partition(f"{_SIGN}\n")
        if not sign:
            raise _no_pip(self._host)
        try:
            return json.loads(answer) if done.returncode == 0 else None
        except ValueError:
            raise _no_pip(self._host) from None

    def _run_probe(
        self, question: Mapping[str, object]
    ) -> subprocess.CompletedProcess[str] | None:
        try:
            return subprocess.run(  # noqa: S603
                [self._host, "-c", _without_folder(_PROBE.read_text("utf-8"))],
                input=json.dumps(question),
                env={**self._environ, "PYTHONIOENCODING": "utf-8"},
                capture_output=True,
                encoding="utf-8",
                timeout=_TIMEOUT,
                check=False,
            )
        except OSError as error:
            message = f"cannot be run: {error.strerror}"
            raise InputError(message, path=self._host, hint="see --python") from None
        except (ValueError, subprocess.TimeoutExpired):
            return None

    def _borrow(self) -> None:
        """Use the pip of this interpreter, as pip does for environments without."""
        if self._host == sys.executable or not importlib.util.find_spec("pip"):
            hint = f"{self._python} -m ensurepip"
            raise InputError("has no pip", path=self._python, hint=hint)
        self._host = sys.executable
        self._base = [sys.executable, "-m", "pip", "--python", self._python]
        self._paths = _find_paths(self._python, self._environ)


def _passing_on(process: subprocess.Popen[bytes]) -> AbstractContextManager[None]:
    """What would stop us stops the process, and we end after it."""

    def interrupt(*_: object) -> None:
        # A terminal tells both, and a second one would break off what pip undoes.
        # Who else tells the whole group, as a CI does, cannot be seen from here.
        if not _is_foreground():
            timer = threading.Timer(_GRACE, process.send_signal, [signal.SIGINT])
            timer.daemon = True
            timer.start()

    def terminate(*_: object) -> None:
        process.terminate()

    return handling({signal.SIGINT: interrupt, **dict.fromkeys(ENDING, terminate)})


def _is_foreground() -> bool:
    """Does the terminal send its signals to this process, and so to its children."""
    if os.name == "nt":
        return True
    for stream in (0, 1, 2):
        with suppress(OSError):
            return os.tcgetpgrp(stream) == os.getpgrp()
    return False


def _without_folder(code: str) -> str:
    """``code`` for ``-c``, where modules in the current folder do not count.

    Nor do they for ``python -m pip``, which takes the folder off the path first.
    """
    first = "import sys; sys.path[:] = [path for path in sys.path if path]"
    return f"{first}\nexec(compile({code!r}, 'pip_probe', 'exec'))"


def _no_pip(path: str) -> InputError:
    return InputError("is no Python with a pip", path=path, hint="see --python")


def find_python(path: str | None) -> str:
    """The interpreter at ``path``: a program, or the folder of an environment.

    :raises UsageError: there is none.
    """
    if path is None:
        return sys.executable
    for name in ("", "bin/python", "Scripts/python.exe"):
        found = os.path.join(path, name) if name else path
        if os.path.isfile(found):
            return os.path.abspath(found)
    message = f"{shown(path)} is neither an interpreter nor an environment"
    raise UsageError(message, hint="give --python the path of one")


def _find_paths(python: str, environ: Mapping[str, str]) -> list[str]:
    code = "import json; print(json.dumps([p for p in sys.path if p]))"
    try:
        done = subprocess.run(  # noqa: S603
            [python, "-c", _without_folder(code)],
            env=dict(environ),
            capture_output=True,
            timeout=_TIMEOUT,
            check=True,
        )
        paths: list[str] = json.loads(done.stdout.splitlines()[-1])
    except (OSError, ValueError, IndexError, subprocess.SubprocessError):
        raise _no_pip(python) from None
    return paths
