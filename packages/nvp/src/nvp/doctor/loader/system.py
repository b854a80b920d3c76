"""Where the loader of a machine looks, and the library files that it finds there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from functools import cached_property

from nvidia_variant_provider.strict_json import open_regular

from ...gpu_code.dynamic import Dynamic, read_dynamic
from ...gpu_code.ranges import read_seekable
from ..installation import read_head

__all__ = ["LibraryError", "System", "read_cache"]

_CACHE = "etc/ld.so.cache"
_PRELOAD = "etc/ld.so.preload"
_TRIPLETS = {"x86_64": "x86_64-linux-gnu", "aarch64": "aarch64-linux-gnu"}
_PROCESSORS = {"x86_64": "x86-64", "aarch64": "AArch64"}
"""What ``ldconfig -p`` calls each processor."""

_CACHED = re.compile(r"^\t(\S+) \((.*?)\) => (.*)$", re.MULTILINE)
_FOLDERS_OF_LDCONFIG = os.pathsep.join(("/sbin", "/usr/sbin", "/usr/local/sbin"))
_DEADLINE = 10.0
"""Seconds that ``ldconfig`` has. It takes a hundredth of one."""


class LibraryError(Exception):
    """A file that stops the loader; the message says why."""


class System:
    """The libraries of a machine; each file is read once.

    :param root: the root folder of the machine.
    :param machine: its processor, such as ``x86_64``.
    :param known: whether its files can be looked at; nothing is found on a machine
        that is known by its properties alone.
    """

    def __init__(
        self, root: str = "/", *, machine: str = "x86_64", known: bool = True
    ) -> None:
        self.machine = machine
        self.notes: list[str] = []
        self._root = root
        self._known = known
        self._files: dict[str, Dynamic | LibraryError | None] = {}

    @property
    def library_folders(self) -> tuple[str, ...]:
        """What ``$LIB`` may stand for: the folder depends on how glibc was built."""
        return (f"lib/{_TRIPLETS.get(self.machine, self.machine)}", "lib64", "lib")

    def cached(self, name: str) -> Iterator[str]:
        """Yield the libraries of a name in ``ld.so.cache``, the preferred one first."""
        for path in (self._cache or {}).get(name, ()):
            yield os.path.join(self._root, path.lstrip("/"))

    @property
    def is_cache_known(self) -> bool:
        """Whether the libraries in ``ld.so.cache`` are known; if not, a note says why.

        Without it, nobody knows of a library that the loader does not find it.
        """
        return self._cache is not None

    def default_folders(self) -> Iterator[str]:
        """Yield ``/lib`` and ``/usr/lib``, by the names that distributions give them.

        Debian builds its loader with the folders of its triplets before them.
        """
        if self._known:
            for folder in self.library_folders:
                yield os.path.join(self._root, folder)
                yield os.path.join(self._root, "usr", folder)

    def preloaded(self) -> tuple[str, ...]:
        """Return what ``/etc/ld.so.preload`` names."""
        if not self._known:
            return ()
        # "a whitespace-separated list"; glibc leaves out comments and takes colons too.
        path = os.path.join(self._root, _PRELOAD)
        text = re.sub("#.*", "", read_head(path))
        return tuple(filter(None, re.split(r"[\s:]", text)))

    def fits(self, path: str) -> bool:
        """Return whether the loader would stop its search at a file.

        It passes over files for another processor. A file that is no library stops it
        with an error.
        """
        try:
            dynamic = self.read(path)
        except LibraryError:
            return True
        if dynamic is None:
            return False
        return dynamic.wide and dynamic.machine == self.machine

    def read(self, path: str) -> Dynamic | None:
        """Read a library; ``None`` where there is no such file.

        :raises LibraryError: the file is no library, or cannot be read.
        """
        if path not in self._files:
            self._files[path] = _read(path)
        result = self._files[path]
        if isinstance(result, LibraryError):
            raise result
        return result

    def find(self, name: str, library_path: tuple[str, ...] = ()) -> str | None:
        """Return the library that a program gets when it asks for a name itself.

        :param library_path: the folders of ``LD_LIBRARY_PATH``.
        """
        places = [os.path.join(folder, name) for folder in library_path]
        places += self.cached(name)
        places += [os.path.join(folder, name) for folder in self.default_folders()]
        return next(filter(self.fits, places), None)

    @cached_property
    def _cache(self) -> Mapping[str, tuple[str, ...]] | None:
        path = os.path.join(self._root, _CACHE)
        if not self._known or not os.path.exists(path):
            return {}
        try:
            return read_cache(path, self.machine)
        except ValueError as error:
            self.notes.append(
                f"{path} cannot be read: {error}; a library that is found nowhere "
                "else may be listed there, and is not reported as missing"
            )
            return None


def read_cache(
    path: str, machine: str, program: str | None = None
) -> dict[str, tuple[str, ...]]:
    """Ask ``ldconfig`` for the libraries in a file ``ld.so.cache``.

    :param machine: the processor whose libraries are looked for, such as ``x86_64``.
    :param program: ``ldconfig``; by default that of this system.
    :returns: the paths of the libraries of each name, the preferred one first. Copies
        for certain processors come last: the loader takes one of them only where it
        takes the plain one elsewhere.
    :raises ValueError: there is no ``ldconfig``, or it cannot read the file.
    """
    program = program or shutil.which("ldconfig", path=_FOLDERS_OF_LDCONFIG)
    if program is None:
        raise ValueError("there is no ldconfig on this system")
    try:
        done = subprocess.run(  # noqa: S603  # the system's own program
            [program, "-p", "-C", path],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",
            env={"LC_ALL": "C"},
            timeout=_DEADLINE,
            check=False,
        )
    except OSError as error:
        raise ValueError(f"{program} cannot be run: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        message = f"{program} did not reply in {_DEADLINE:g} seconds"
        raise ValueError(message) from None
    if done.returncode:
        # "/sbin/ldconfig: File is not a cache file."
        text = " ".join(done.stderr.split()).removeprefix(f"{program}: ")
        raise ValueError(f"{program} says: {text.rstrip('.')}")
    wanted = _PROCESSORS.get(machine)
    libraries: dict[str, list[tuple[bool, str]]] = {}
    for name, kind, library in _CACHED.findall(done.stdout):
        words = kind.split(", ")
        if wanted is None or words[0] == f"libc6,{wanted}":
            libraries.setdefault(name, []).append(("hwcap: " in kind, library))
    return {
        # Sorting is stable: of equal entries the loader takes the first.
        name: tuple(path for _, path in sorted(paths, key=lambda item: item[0]))
        for name, paths in libraries.items()
    }


def _read(path: str) -> Dynamic | LibraryError | None:
    # Links that go round in circles are an OSError too.
    try:
        with open_regular(path) as file:
            return read_seekable(read_dynamic(), file)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    except OSError as error:
        return None if not os.path.isfile(path) else LibraryError(_reason(path, error))
    except ValueError as error:
        return LibraryError(_reason(path, error))


def _reason(path: str, error: Exception) -> str:
    reason = error.strerror if isinstance(error, OSError) else None
    return f"{path} cannot be loaded: {reason or error}"
