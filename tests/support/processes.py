"""The command line in a process of its own, and Python environments with real pips."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import Distribution
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, NamedTuple

import uv
from packaging.utils import canonicalize_name

from nvp.cli import main

__all__ = [
    "PIPS",
    "Done",
    "Environment",
    "Pip",
    "clean_environ",
    "ends_soon",
    "installed_labels",
    "make_environment",
    "provider",
    "provider_process",
]

PIPS = ("23.2.1", "24.3.1", "25.3", "26.3")
"""Versions of pip, from the oldest supported one to the newest one."""

_TIMEOUT = 120

_OWN = (
    *("PIP_", "UV_", "POETRY_", "PYTHON", "NV_VARIANT_PROVIDER_FORCE"),
    *("REQUESTS_CA", "CURL_CA", "SSL_CERT", "NETRC", "VIRTUAL_ENV", "XDG_DATA"),
)


def ends_soon(pid: int) -> bool:
    """Return whether a process ends within ten seconds, and kill it otherwise."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    ended, _, _ = select.select([process], [], [], 10)
    os.close(process)
    if not ended:
        os.kill(pid, signal.SIGKILL)
    return bool(ended)


class Done(NamedTuple):
    """Exit code, stdout and stderr."""

    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        """The whole output, stdout first."""
        return self.out + self.err


class Environment(NamedTuple):
    """A virtual environment."""

    folder: Path

    @property
    def python(self) -> Path:
        scripts = "Scripts/python.exe" if os.name == "nt" else "bin/python"
        return self.folder / scripts

    @property
    def packages(self) -> Path:
        if os.name == "nt":
            return self.folder / "Lib" / "site-packages"
        major, minor = sys.version_info[:2]
        return self.folder / "lib" / f"python{major}.{minor}" / "site-packages"

    def labels(self) -> dict[str, str]:
        """Return the label of each installed project."""
        return installed_labels(self.packages)


def installed_labels(folder: Path) -> dict[str, str]:
    """Return version and label of each distribution below ``folder``.

    The modules of stub wheels have both as constants, so the result does not depend on
    file names. The label of a non-variant wheel is ``None``.
    """
    labels = {}
    for info in folder.glob("*.dist-info"):
        name = Distribution.at(info).metadata["Name"]
        module = folder / f"{canonicalize_name(name).replace('-', '_')}.py"
        if module.is_file():
            values: dict[str, object] = {}
            exec(module.read_text(), values)
            labels[name] = f"{values['VERSION']} {values['LABEL']}"
    return labels


def clean_environ(home: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return environment variables without the user's configuration of installers.

    :param home: an empty directory, where programs keep their caches.
    """
    environ = {
        name: value
        for name, value in os.environ.items()
        if not name.upper().startswith(_OWN) and not name.upper().endswith("_PROXY")
    }
    home.mkdir(exist_ok=True)
    return environ | {
        "HOME": str(home),
        "USERPROFILE": str(home),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_CACHE_DIR": str(home / "pip-cache"),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        # Without this variable, programs query the operating system for a proxy.
        "NO_PROXY": "127.0.0.1",
        **(extra or {}),
    }


def provider(
    *arguments: object, environ: Mapping[str, str], cwd: Path | None = None
) -> Done:
    """Run ``nvp ARGUMENTS``, and wait for its end.

    This process has already loaded nvp. The main thread therefore runs the command
    without a new process, but with the variables, the current directory and the
    standard streams of a new one.
    """
    if threading.current_thread() is not threading.main_thread():
        return provider_process(*arguments, environ=environ, cwd=cwd)
    before, folder = dict(os.environ), os.getcwd()
    with TemporaryFile() as out, TemporaryFile() as err:
        with _streams(out, err):
            try:
                _set_environ(environ)
                os.chdir(cwd or folder)
                code = main([*map(str, arguments)])
            except SystemExit as exit_:
                code = int(exit_.code or 0)
            finally:
                os.chdir(folder)
                _set_environ(before)
        texts = []
        for file in (out, err):
            file.seek(0)
            text = file.read().decode()
            texts.append(text.replace("\r\n", "\n"))
    return Done(code, *texts)


def _set_environ(environ: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environ)


@contextmanager
def _streams(out: IO[bytes], err: IO[bytes]) -> Iterator[None]:
    """Send stdout and stderr to files, including the output of child processes."""
    streams = sys.stdout, sys.stderr
    kept = [(number, os.dup(number)) for number in (1, 2)]
    try:
        for stream, number, file in zip(streams, (1, 2), (out, err), strict=True):
            stream.flush()
            os.dup2(file.fileno(), number)
        with (
            open(1, "w", encoding="utf-8", closefd=False) as sys.stdout,
            open(2, "w", 1, encoding="utf-8", closefd=False) as sys.stderr,
        ):
            yield
    finally:
        sys.stdout, sys.stderr = streams
        for number, copy in kept:
            os.dup2(copy, number)
            os.close(copy)


def provider_process(
    *arguments: object, environ: Mapping[str, str], cwd: Path | None = None
) -> Done:
    """Run ``nvp ARGUMENTS`` in a process of its own, and wait for its end."""
    done = subprocess.run(
        [sys.executable, "-m", "nvp", *map(str, arguments)],
        env=dict(environ),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=_TIMEOUT,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)


class Pip:
    """``nvp pip`` for a machine with driver 12.9 and GPU 8.0."""

    def __init__(self, python: Path, environ: Mapping[str, str]) -> None:
        self.python = python
        self.environ = dict(environ)

    def __call__(
        self, *arguments: object, forced: bool = True, cwd: Path | None = None
    ) -> Done:
        machine = ("--cuda-driver", "12.9", "--sm-arch", "8.0") if forced else ()
        return provider(
            "pip",
            *("--python", self.python, *machine, *arguments),
            environ=self.environ,
            cwd=cwd,
        )


def make_environment(folder: Path, *packages: str) -> Environment:
    """Make a virtual environment with ``packages``."""
    program = uv.find_uv_bin()
    made = Environment(folder)
    command = [program, "venv", "--quiet", "--python", sys.executable, str(folder)]
    subprocess.run(command, check=True, timeout=_TIMEOUT)
    if packages:
        install = [program, "pip", "install", "--quiet", "--python", str(made.python)]
        # Use the versions in the cache of uv, because querying an index takes minutes.
        kept = subprocess.run(
            [*install, "--offline", *packages], capture_output=True, check=False
        )
        if kept.returncode:
            subprocess.run([*install, *packages], check=True, timeout=600)
    return made
