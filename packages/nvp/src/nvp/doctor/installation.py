"""The Python environment to check, and the limits of the checks.

The environment is found without running its code. Anybody can publish a distribution
that takes hours to read: METADATA of many megabytes, RECORDs with millions of lines, or
libraries whose hundreds of dependencies must be searched for in many directories. All
checks of a diagnosis share one limit for each kind of work that takes memory. Skipped
parts are named in a note, and never reported as findings. `runner.diagnose` limits the
processor time and the memory.
"""

from __future__ import annotations

import glob
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from nvidia_variant_provider.errors import UsageError, listed, shown
from nvidia_variant_provider.strict_json import open_regular

from ..findings import Reported
from .programs import find_program

_VERSION = re.compile(r"python(3\.[0-9]+)(t?)")
_HINT = "give the path of an interpreter, or of the directory of an environment"
_HINT_OF_SCRIPT = (
    "where it is a script that starts an interpreter, such as one of pyenv's, give the "
    "path in its sys.executable"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Installation(Reported):
    """A Python environment.

    :param prefix: the directory of the environment, such as ``/home/me/project/.venv``.
    :param python: the path of the interpreter; ``None`` if not found.
    :param folders: the directories of packages, in the order of ``sys.path``.
    :param version: the version of Python, such as ``3.11``; ``None`` if unknown.
    """

    prefix: str
    python: str | None
    folders: tuple[str, ...]
    version: str | None = None

    def marker_variables(self) -> dict[str, str]:
        """Return the marker variables that the environment's Python determines.

        All other marker variables have the values of the running Python.
        """
        if self.version is None:
            return {}
        plain = self.version.removesuffix("t")
        settings = _read_settings(os.path.join(self.prefix, "pyvenv.cfg"))
        given = settings.get("version") or settings.get("version_info", "")
        exact = re.match(rf"{re.escape(plain)}\.[0-9]+", given, re.ASCII)
        full = exact[0] if exact else f"{plain}.0"
        return {"python_version": plain, "python_full_version": full}


def find_installation(path: str | None, environ: Mapping[str, str]) -> Installation:
    """Find an environment and the directories of its packages.

    :param path: an interpreter, or the directory of an environment; by default the
        activated environment, or else the running interpreter.
    :raises UsageError: the path, or the activated environment, is unusable.
    """
    active = environ.get("VIRTUAL_ENV") or environ.get("CONDA_PREFIX")
    if path is None and not active:
        return _running()
    given = path or active or ""
    named = shown(given)
    hint = _HINT
    if path is None:
        variable = "VIRTUAL_ENV" if environ.get("VIRTUAL_ENV") else "CONDA_PREFIX"
        named = f"{named}, which {variable} names,"
        hint = f"activate another environment, unset {variable}, or give --python PATH"
    neither = f"{named} is neither an interpreter nor an environment"
    if not given or "\0" in given:
        raise UsageError(neither, hint=hint)
    # The interpreter of an environment is a link to the interpreter that created the
    # environment, so do not resolve the link.
    try:
        prefix = os.path.abspath(given)
    except FileNotFoundError:
        message = f"{named} is in the current directory, which no longer exists"
        raise UsageError(message, hint="change to another directory") from None
    program: str | None = None
    if not os.path.isdir(prefix):
        program = _find_program(given, environ)
        if program is None:
            raise UsageError(neither, hint=hint)
        hint = hint if _is_binary(program) else _HINT_OF_SCRIPT
        prefix = _prefix_of(program)
    folders, version = _package_folders(prefix, program)
    if not folders:
        message = f"{named} has no directory of packages"
        raise UsageError(message, hint=hint)
    return Installation(
        prefix=prefix,
        python=program or _interpreter(prefix),
        folders=tuple(dict.fromkeys(folders)),
        version=version,
    )


def _running() -> Installation:
    """Return the environment of the running interpreter."""
    import site

    folders = list(site.getsitepackages())
    if site.ENABLE_USER_SITE:
        folders.insert(0, site.getusersitepackages())
    return Installation(
        prefix=sys.prefix,
        python=sys.executable,
        folders=tuple(folder for folder in folders if os.path.isdir(folder)),
        version=f"{sys.version_info[0]}.{sys.version_info[1]}",
    )


def _is_binary(program: str) -> bool:
    try:
        with open_regular(program) as file:
            return file.read(2) in (b"\x7fE", b"MZ", b"\xcf\xfa")
    except (OSError, ValueError):
        return True


def _find_program(given: str, environ: Mapping[str, str]) -> str | None:
    program = (
        None
        if os.path.dirname(given)
        else find_program(given, {"PATH": os.defpath, **environ})
    )
    # Accept any file: an interpreter may lack a suffix, or run on another platform.
    program = given if program is None and os.path.isfile(given) else program
    return None if program is None else os.path.abspath(program)


def _prefix_of(program: str) -> str:
    """Return the directory of an interpreter's environment.

    An interpreter is in ``bin`` or ``Scripts`` of its environment or, without a virtual
    environment on Windows, in the environment's directory itself. A path outside of
    environments, such as ``/usr/local/bin/python``, may be a link to an interpreter.
    """
    folder = os.path.dirname(program)
    prefix = _above(folder)
    if _package_folders(prefix, program)[0]:
        return prefix
    return _above(os.path.dirname(os.path.realpath(program)))


def _above(folder: str) -> str:
    inside = os.path.basename(folder).lower() in ("bin", "scripts")
    return os.path.dirname(folder) if inside else folder


def _interpreter(prefix: str) -> str | None:
    for name in ("bin/python", "bin/python3", "Scripts/python.exe", "python.exe"):
        program = os.path.join(prefix, *name.split("/"))
        if os.path.isfile(program):
            return program
    return None


def _package_folders(prefix: str, program: str | None) -> tuple[list[str], str | None]:
    """Return an environment's directories of packages, and the version of its Python.

    System packages are included if ``pyvenv.cfg`` enables them. They belong to the
    interpreter that created the environment, whose directory is in ``pyvenv.cfg``.
    """
    settings = _read_settings(os.path.join(prefix, "pyvenv.cfg"))
    version = _version(prefix, program, settings)
    folders = _folders_in(prefix, version)
    home = settings.get("home")
    if settings.get("include-system-site-packages", "").lower() == "true" and home:
        folders += _folders_in(_above(home), version)
    if version is None and len(folders) == 1:
        match = _VERSION.fullmatch(os.path.basename(os.path.dirname(folders[0])))
        version = match[1] + match[2] if match else None
    return folders, version


def _folders_in(prefix: str, version: str | None) -> list[str]:
    python = f"python{version or '3.*'}"
    names = [
        f"lib/{python}/site-packages",
        "Lib/site-packages",
        f"lib64/{python}/site-packages",
        # Debian separates its own packages from the packages that pip installs.
        f"local/lib/{python}/dist-packages",
        f"lib/{python}/dist-packages",
        "lib/python3/dist-packages",
    ]
    folders: dict[str, str] = {}
    # The directory in pyvenv.cfg may have a zero byte, which glob refuses.
    for name in names if "\0" not in prefix else ():
        pattern = os.path.join(glob.escape(prefix), *name.split("/"))
        for folder in sorted(glob.glob(pattern)):
            # Keep one path for each directory, because lib64 is often a link to lib.
            # `realpath` fails for a chain of links that is too long for Linux.
            if os.path.isdir(folder):
                folders.setdefault(os.path.realpath(folder), folder)
    return list(folders.values())


def _version(
    prefix: str, program: str | None, settings: Mapping[str, str]
) -> str | None:
    """Return the version of Python, such as ``3.11``; ``None`` if unknown.

    Free-threaded builds add a ``t``: their directory is ``python3.14t``.
    """
    for key in ("version", "version_info"):
        numbers = settings.get(key, "").split(".")
        if len(numbers) >= 2 and all(map(str.isdigit, numbers[:2])):
            plain = ".".join(numbers[:2])
            threaded = os.path.isdir(os.path.join(prefix, "lib", f"python{plain}t"))
            return f"{plain}t" if threaded else plain
    if program is not None:
        name = os.path.basename(os.path.realpath(program)).removesuffix(".exe")
        if match := _VERSION.fullmatch(name):
            return match[1] + match[2]
    return None


def _read_settings(path: str) -> dict[str, str]:
    lines = read_head(path).splitlines()
    pairs = (line.partition("=") for line in lines)
    return {key.strip().lower(): value.strip() for key, _, value in pairs}


def read_head(path: str) -> str:
    """Return the first MiB of a text file; empty if unreadable."""
    try:
        with open_regular(path) as file:
            return file.read(1024 * 1024).decode("utf-8", "replace")
    except (OSError, ValueError):
        return ""


DISTRIBUTIONS = "distributions"
BYTES = "bytes of METADATA, RECORD and the like"
FILES = "lines of RECORD and METADATA"
CODE = "files with data, in the search for GPU code"
REQUIREMENTS = "requirements that lead to GPU code"
SEARCHES = "steps of the search for libraries"
OPENED = "bytes of libraries that are searched for names or hashed"
SYMBOLS = "symbols of libraries (or as much work)"

MOST = {
    DISTRIBUTIONS: 10_000,
    BYTES: 32 << 20,
    FILES: 250_000,
    CODE: 15_000,
    REQUIREMENTS: 8_000,
    SEARCHES: 4_000_000,
    OPENED: 1 << 30,
    SYMBOLS: 4_000_000,
}
"""The limit for each kind of work. An environment of 104 distributions with 43,000
files needs at most a third of each limit. torch 2.15 has 120,000 relevant symbols."""

_NAMED = 5
"""The maximum number of distributions named in a note."""


class Limits:
    """The remaining amount of each kind of work in `MOST`."""

    def __init__(self) -> None:
        self._left = dict(MOST)
        self._without: dict[str, dict[str, None]] = {}

    def take(self, kind: str, amount: int = 1, *, of: str) -> bool:
        """Use up an amount of a kind of work, and return whether that much was left.

        :param of: the distribution or file that a note names if the limit is reached.
        """
        if amount <= self._left[kind]:
            self._left[kind] -= amount
            return True
        self._left[kind] = 0
        self._without.setdefault(kind, {})[of] = None
        return False

    def is_used_up(self, kind: str) -> bool:
        """Return whether the limit of a kind of work has been reached."""
        return kind in self._without

    def notes(self) -> Iterator[str]:
        """Yield a sentence for each limit that has been reached."""
        for kind, names in self._without.items():
            yield (
                f"only {MOST[kind]:,} {kind} are looked at, and not all of "
                f"{listed(list(names), _NAMED)}"
            )
