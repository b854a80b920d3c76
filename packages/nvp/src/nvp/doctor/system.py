"""The libraries of a machine: directories, dynamic sections, and ``ld.so.cache``.

Each directory is listed once, and each file is read once, within the limits of the
environment.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from itertools import islice

from nvidia_variant_provider.strict_json import open_regular

from ..gpu_code.dynamic import Dynamic, read_dynamic
from ..gpu_code.ranges import read_seekable
from .installation import SEARCHES, Limits, read_head
from .programs import find_program

_TRIPLETS = {"x86_64": "x86_64-linux-gnu", "aarch64": "aarch64-linux-gnu"}
_PROCESSORS = {"x86_64": "x86-64", "aarch64": "AArch64"}
"""The names of processors in the output of ``ldconfig -p``."""

_CACHED = re.compile(r"^\t(\S+) \((.*?)\) => (.*)$", re.MULTILINE)
_FOLDERS_OF_LDCONFIG = os.pathsep.join(("/sbin", "/usr/sbin", "/usr/local/sbin"))
_STEPS_OF_FOLDER, _STEPS_OF_FILE, STEPS_OF_NAME, STEPS_OF_FAILURE = 20, 100, 10, 500
"""The costs of reading a directory, of reading a library, of storing the name of a
linked library, and of explaining why one is missing, in units of one lookup in a
listing."""

_AS_STEP = 16
"""The number of bytes of a text that take as much memory as one step takes time."""

_MOST_NAMES = 20_000
"""The maximum length of a cached directory listing; Debian has 4,000 libraries."""

_DEADLINE = 10.0
"""The time limit of ``ldconfig`` in seconds; it needs a hundredth of a second."""


class LibraryError(Exception):
    """A file that the loader rejects; the message is the reason."""


class System:
    """The libraries of a machine; each file is read once.

    :param root: the root directory of the machine.
    :param machine: the processor of the machine, such as ``x86_64``.
    :param known: whether the files of the machine are accessible; otherwise, no file is
        found.
    :param limits: the limits on work, shared with the environment.
    """

    def __init__(
        self,
        root: str = "/",
        *,
        machine: str = "x86_64",
        known: bool = True,
        limits: Limits | None = None,
    ) -> None:
        self.machine = machine
        self.notes: list[str] = []
        self._limits = limits or Limits()
        self._names: dict[str, Collection[str] | None] = {}
        self._listings: dict[tuple[int, int], Collection[str] | None] = {}
        self._root = root
        self._known = known
        self._files: dict[str, Dynamic | LibraryError | None] = {}
        self._resolved: dict[str, str] = {}

    @property
    def library_folders(self) -> tuple[str, ...]:
        """The possible values of ``$LIB``, which depend on the build of glibc."""
        return (f"lib/{_TRIPLETS.get(self.machine, self.machine)}", "lib64", "lib")

    def cached(self, name: str) -> Iterator[str]:
        """Yield the paths of a library in ``ld.so.cache``, in order of preference."""
        for path in (self._cache or {}).get(name, ()):
            yield os.path.join(self._root, path.lstrip("/"))

    @property
    def is_cache_known(self) -> bool:
        """Whether the libraries in ``ld.so.cache`` are known; if not, a note says why.

        Without the cache, no library can be reported as missing.
        """
        return self._cache is not None

    def default_folders(self) -> Iterator[str]:
        """Yield the default directories of all Linux distributions.

        Directories with a triplet come first, as in Debian's loader.
        """
        if self._known:
            for folder in self.library_folders:
                yield os.path.join(self._root, folder)
                yield os.path.join(self._root, "usr", folder)

    def preloaded(self) -> tuple[str, ...]:
        """Return the libraries in ``/etc/ld.so.preload``."""
        if not self._known:
            return ()
        # ld.so(8): "a whitespace-separated list"; glibc also allows comments and ":".
        path = os.path.join(self._root, "etc/ld.so.preload")
        text = re.sub("#.*", "", read_head(path))
        return tuple(filter(None, re.split(r"[\s:]", text)))

    def fits(self, path: str) -> bool:
        """Return whether the loader would stop its search at a file.

        The loader skips files for another processor, and fails at a file that is not a
        library.
        """
        try:
            dynamic = self.read(path)
        except LibraryError:
            return True
        if dynamic is None:
            return False
        return dynamic.wide and dynamic.machine == self.machine

    def take(self, steps: int, of: str) -> bool:
        """Count steps of the search, and return whether the search may continue.

        :param of: the file to search for.
        """
        return self._limits.take(SEARCHES, steps, of=os.path.basename(of))

    @property
    def is_searched(self) -> bool:
        """Whether all searches were complete; if not, a note names affected files."""
        return not self._limits.is_used_up(SEARCHES)

    def names(self, folder: str) -> Collection[str]:
        """Return the names in a directory; empty if unknown."""
        return self._list(folder) or ()

    def has_folder(self, folder: str) -> bool:
        """Return whether a directory may have files."""
        names = self._list(folder)
        return names is None or bool(names)

    def may_have(self, folder: str, name: str) -> bool:
        """Return whether a directory may have a file, according to its listing."""
        names = self._list(folder)
        return names is None or name in names

    def _list(self, folder: str) -> Collection[str] | None:
        """Return the names in a directory; ``None`` if unknown."""
        if folder not in self._names:
            self._names[folder] = self._read_folder(folder)
        return self._names[folder]

    def _read_folder(self, folder: str) -> Collection[str] | None:
        if not self.take(_STEPS_OF_FOLDER + len(folder) // _AS_STEP, folder):
            return ()
        try:
            status = os.stat(folder)
            # List a directory with two paths, such as /lib and /usr/lib, only once.
            place = status.st_dev, status.st_ino
            if place not in self._listings or not status.st_ino:
                with os.scandir(folder) as entries:
                    names = [item.name for item in islice(entries, _MOST_NAMES + 1)]
                steps = len(names) + sum(map(sys.getsizeof, names)) // _AS_STEP
                many = len(names) > _MOST_NAMES or not self.take(steps, folder)
                self._listings[place] = None if many else frozenset(names)
            return self._listings[place]
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return ()
        except OSError:  # the files may be readable even if the directory is not
            return None

    def read(self, path: str) -> Dynamic | None:
        """Read a library; ``None`` if the file does not exist, or the limit is reached.

        :raises LibraryError: the file is not a library or cannot be read.
        """
        if path not in self._files:
            steps = _STEPS_OF_FILE + len(path) // _AS_STEP
            result = _read(path) if self.take(steps, path) else None
            needed = result.needed if isinstance(result, Dynamic) else ()
            memory = sum(map(sys.getsizeof, needed))
            self.take(STEPS_OF_NAME * len(needed) + memory // _AS_STEP, path)
            self._files[path] = result
        result = self._files[path]
        if isinstance(result, LibraryError):
            raise result
        return result

    def resolve(self, path: str) -> str:
        """Return the path of a library with links resolved."""
        if path not in self._resolved:
            self._resolved[path] = os.path.realpath(path)
        return self._resolved[path]

    def find(self, name: str, library_path: tuple[str, ...] = ()) -> str | None:
        """Return the path that the loader finds for the name of a library, if any.

        :param library_path: the directories of ``LD_LIBRARY_PATH``.
        """
        places = [os.path.join(folder, name) for folder in library_path]
        places += self.cached(name)
        places += [os.path.join(folder, name) for folder in self.default_folders()]
        return next(filter(self.fits, places), None)

    @cached_property
    def _cache(self) -> Mapping[str, tuple[str, ...]] | None:
        path = os.path.join(self._root, "etc/ld.so.cache")
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
    """Run ``ldconfig`` to list the libraries in a file ``ld.so.cache``.

    :param machine: the processor of the libraries, such as ``x86_64``.
    :param program: the path of ``ldconfig``; by default, this system's program.
    :returns: the paths of each library, keyed by name, in order of preference. Copies
        for certain processors come last: other processors use the generic library.
    :raises ValueError: there is no ``ldconfig``, or it cannot read the file.
    """
    program = program or find_program("ldconfig", {"PATH": _FOLDERS_OF_LDCONFIG})
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
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ValueError(f"{program} cannot be run: {error}") from None
    if done.returncode:
        # An example of the output: "/sbin/ldconfig: File is not a cache file."
        text = " ".join(done.stderr.split()).removeprefix(f"{program}: ")
        raise ValueError(f"{program} says: {text.rstrip('.')}")
    wanted = _PROCESSORS.get(machine)
    libraries: dict[str, list[tuple[bool, str]]] = {}
    for name, kind, library in _CACHED.findall(done.stdout):
        words = kind.split(", ")
        if wanted is None or words[0] == f"libc6,{wanted}":
            libraries.setdefault(name, []).append(("hwcap: " in kind, library))
    return {
        # The sort must be stable: the loader selects the first of equal entries.
        name: tuple(path for _, path in sorted(paths, key=lambda item: item[0]))
        for name, paths in libraries.items()
    }


def _read(path: str) -> Dynamic | LibraryError | None:
    # Circular links also raise OSError.
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
