"""The user's pip: what it is asked to do, and running it.

It is asked itself, by `pip_probe`, so that its arguments, environment variables and
configuration files mean here what they mean to that version of pip.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import InputError, UsageError, shown

__all__ = ["Pip", "PipCommand", "find_python"]

_PROBE = Path(__file__).with_name("pip_probe.py")
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
        urls = [self.options["index_url"], *(self.options["extra_index_urls"] or [])]
        return list(dict.fromkeys(url for url in urls if url))

    @property
    def find_links(self) -> list[str]:
        """Folders and pages of links."""
        return list(dict.fromkeys(self.options.get("find_links") or []))


class Pip:
    """The pip of an interpreter.

    :param python: the interpreter.
    :param environ: the environment variables that it sees.
    :raises InputError: there is no pip to run.
    """

    def __init__(self, python: str, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._host = python
        self._base = [python, "-m", "pip"]
        self._paths: list[str] | None = None
        if not _has_pip(python, environ):
            if python == sys.executable or not _has_pip(sys.executable, environ):
                message = "this interpreter has no pip"
                hint = f"{python} -m ensurepip"
                raise InputError(message, path=python, hint=hint)
            # As pip itself does for environments without one.
            self._host = sys.executable
            self._base = [sys.executable, "-m", "pip", "--python", python]
            self._paths = _find_paths(python, environ)

    def understand(self, arguments: Sequence[str]) -> PipCommand:
        """What pip makes of ``arguments``; nothing is run."""
        answer = self._ask({"arguments": list(arguments)})
        if answer is None:
            return PipCommand(command=None)
        del answer["version"]
        pairs = answer.get("credentials") or {}
        answer["credentials"] = {url: (pair[0], pair[1]) for url, pair in pairs.items()}
        if self._paths is not None:
            answer["paths"] = self._paths
        return PipCommand(**answer)

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
        while True:
            try:
                status = process.wait()
            except KeyboardInterrupt:
                # The terminal has told pip as well, which cleans up.
                continue
            return status if status >= 0 else 128 - status

    def _ask(self, question: Mapping[str, object]) -> Any:
        try:
            done = subprocess.run(  # noqa: S603
                # As `python -m pip`: the current folder is on the path.
                [self._host, "-c", _PROBE.read_text("utf-8")],
                input=json.dumps(question),
                env={**self._environ, "PYTHONIOENCODING": "utf-8"},
                capture_output=True,
                encoding="utf-8",
                timeout=_TIMEOUT,
                check=False,
            )
            return json.loads(done.stdout) if done.returncode == 0 else None
        except (OSError, ValueError, subprocess.TimeoutExpired):
            # pip will say itself what is wrong, when it is run.
            return None


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


def _has_pip(python: str, environ: Mapping[str, str]) -> bool:
    code = "import importlib.util as u, sys; sys.exit(u.find_spec('pip') is None)"
    try:
        done = subprocess.run(  # noqa: S603
            [python, "-c", code],
            env=dict(environ),
            capture_output=True,
            timeout=_TIMEOUT,
            check=False,
        )
    except OSError as error:
        message = f"cannot be run: {error.strerror}"
        raise InputError(message, path=python, hint="see --python") from None
    except subprocess.TimeoutExpired:
        message = f"does not answer within {_TIMEOUT:g} s"
        raise InputError(message, path=python, hint="see --python") from None
    return done.returncode == 0


def _find_paths(python: str, environ: Mapping[str, str]) -> list[str]:
    code = "import json, sys; print(json.dumps([p for p in sys.path if p]))"
    done = subprocess.run(  # noqa: S603
        [python, "-c", code],
        env=dict(environ),
        capture_output=True,
        timeout=_TIMEOUT,
        check=True,
    )
    paths: list[str] = json.loads(done.stdout)
    return paths
