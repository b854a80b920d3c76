"""The libraries that one process loads, found as glibc finds them.

ld.so(8), DESCRIPTION: "If a shared object dependency does not contain a slash, then it
is searched for in the following order": RPATH, ``LD_LIBRARY_PATH``, RUNPATH, the cache
file, the default path. What ``LD_PRELOAD`` and ``/etc/ld.so.preload`` name is loaded
before all of that. One thing of glibc is not followed: the folders for certain
processors, such as ``glibc-hwcaps``. They hold copies of what is found anyway.

The loader of musl has other rules, and NVIDIA's libraries do not run with it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from nvidia_variant_provider.strict_json import open_regular

from ..gpu_code.dynamic import Dynamic, read_dynamic
from ..gpu_code.ranges import read_seekable
from .installation import read_head

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
        path = os.path.join(self._root, "etc/ld.so.preload")
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
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ValueError(f"{program} cannot be run: {error}") from None
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


LIBRARY_PATH = "LD_LIBRARY_PATH"

_TOKEN = re.compile(
    r"\$(?:\{(ORIGIN|LIB|PLATFORM)\}|(ORIGIN|LIB|PLATFORM)(?![A-Za-z]))"
)


@dataclass(frozen=True, slots=True, eq=False)
class Loaded:
    """A library that a process has loaded.

    :param path: the file, by the path under which the loader opens it.
    :param place: where it was found: ``RPATH``, ``LD_LIBRARY_PATH``, ``RUNPATH``,
        ``cache``, ``default``, or ``path`` where a path was given.
    :param real: the file without links: two paths of one file are loaded once.
    :param loader: the library that needed it first.
    :param names: the names under which it was asked for.
    """

    path: str
    dynamic: Dynamic
    place: str
    real: str
    loader: Loaded | None = None
    names: set[str] = field(default_factory=set)

    @property
    def chain(self) -> Iterator[Loaded]:
        """The library, the one that needed it, and so on up."""
        item: Loaded | None = self
        while item is not None:
            yield item
            item = item.loader


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """A library that cannot be loaded.

    :param name: as it was asked for.
    :param user: the file that needs it, or itself where a program asked for it.
    :param reason: why the file found cannot be loaded; empty where none was found.
    :param path: the file found.
    """

    name: str
    user: str
    reason: str = ""
    path: str | None = None


class Process:
    """What a process has loaded.

    :param library_path: the folders of ``LD_LIBRARY_PATH``.
    :param program: its program, whose RPATH counts for all libraries.
    :param preload: what ``LD_PRELOAD`` names.
    :param is_supplied: says of a library that is found nowhere whether it counts as
        loaded all the same, such as the driver's on a machine without a driver.
    """

    def __init__(
        self,
        system: System,
        *,
        library_path: Iterable[str] = (),
        program: str | None = None,
        preload: Iterable[str] = (),
        is_supplied: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self.system = system
        self.loaded: list[Loaded] = []
        self._is_supplied = is_supplied
        self._library_path = tuple(library_path)
        self._program: Loaded | None = None
        if program is not None:
            # $ORIGIN of a program is the folder that /proc/self/exe is a link into.
            path = os.path.realpath(program)
            self._open(path, None, path, [])
            self._program = next(iter(self.loaded), None)
        # ld.so passes over a library that it cannot preload, with a message.
        for name in (*preload, *system.preloaded()):
            self._open(name, self._program, name, [])
        self._open_needed(0, [])

    @property
    def is_musl(self) -> bool:
        """Whether the program runs with the loader of musl instead of that of glibc."""
        program = self._program
        needed = () if program is None else program.dynamic.needed
        return any(name.startswith("libc.musl-") for name in needed)

    def load(self, path: str) -> list[Failure]:
        """Load a file and what it needs, as ``dlopen`` does.

        :param path: its path; a name without a slash is searched for.
        :returns: what could not be loaded. In that case nothing has been loaded.
        """
        before = len(self.loaded)
        failures: list[Failure] = []
        self._open(path, self._program, path, failures)
        self._open_needed(before, failures)
        if failures:
            del self.loaded[before:]
        return failures

    def find(self, name: str) -> Loaded | None:
        """Return the loaded library that has a name."""
        for item in self.loaded:
            if name in item.names or name == item.dynamic.soname:
                return item
        return None

    def _open_needed(self, at: int, failures: list[Failure]) -> None:
        """Load what the libraries need that have been loaded since ``at``."""
        # Of a tree, the loader takes first what is near its root: it goes breadth
        # first. What is appended to the list is visited later.
        while at < len(self.loaded):
            user = self.loaded[at]
            for name in user.dynamic.needed:
                self._open(name, user, user.path, failures)
            at += 1

    def _open(
        self, name: str, user: Loaded | None, asking: str, failures: list[Failure]
    ) -> None:
        known = self.find(name)
        if known is not None:
            known.names.add(name)
            return
        place, path = self._search(name, user)
        try:
            dynamic = None if path is None else self.system.read(path)
        except LibraryError as error:
            reason = str(error)
            failures.append(Failure(name=name, user=asking, reason=reason, path=path))
            return
        if path is None or dynamic is None:
            if not self._is_supplied(name):
                failures.append(Failure(name=name, user=asking))
            return
        real = os.path.realpath(path)
        for item in self.loaded:
            if item.real == real:
                item.names.add(name)
                return
        self.loaded.append(Loaded(path, dynamic, place, real, user, {name}))

    def _search(self, name: str, user: Loaded | None) -> tuple[str, str | None]:
        if "/" in name or os.path.isabs(name):
            paths = list(self._expand(name, user))
            return "path", next((p for p in paths if os.path.exists(p)), None)
        for place, path in self._candidates(name, user):
            if self.system.fits(path):
                return place, path
        return "", None

    def _candidates(self, name: str, user: Loaded | None) -> Iterator[tuple[str, str]]:
        for place, folder in self._folders(user):
            yield place, os.path.join(folder, name)
        # "If, however, the binary was linked with the -z nodeflib linker option,
        # shared objects in the default paths are skipped."
        nodeflib = user is not None and user.dynamic.nodeflib
        defaults = tuple(self.system.default_folders())
        below = tuple(f"{folder}{os.sep}" for folder in defaults)
        for path in self.system.cached(name):
            if not (nodeflib and path.startswith(below)):
                yield "cache", path
        for folder in () if nodeflib else defaults:
            yield "default", os.path.join(folder, name)

    def _folders(self, user: Loaded | None) -> Iterator[tuple[str, str]]:
        """Yield the folders that are searched first, with what names them."""
        # "Using the directories specified in the DT_RPATH dynamic section attribute of
        # the binary if present and DT_RUNPATH attribute does not exist." DT_RPATH "is
        # applied to searches for all children in the dependency tree".
        if user is None or user.dynamic.runpath is None:
            chain = [] if user is None else list(user.chain)
            if self._program is not None and self._program not in chain:
                chain.append(self._program)
            for item in chain:
                if item.dynamic.runpath is None:
                    for folder in self._split(item.dynamic.rpath, item):
                        yield "RPATH", folder
        for entry in self._library_path:
            for folder in self._expand(entry, self._program):
                yield LIBRARY_PATH, folder
        if user is not None:
            for folder in self._split(user.dynamic.runpath, user):
                yield "RUNPATH", folder

    def _split(self, folders: str | None, user: Loaded) -> Iterator[str]:
        for folder in folders.split(":") if folders else ():
            yield from self._expand(folder or os.curdir, user)

    def _expand(self, text: str, user: Loaded | None) -> Iterator[str]:
        """Yield the paths that a text with dynamic string tokens may stand for."""
        if "$" not in text:
            yield text
            return
        if user is None and "ORIGIN" in text:
            return
        values = {"PLATFORM": self.system.machine}
        if user is not None:
            values["ORIGIN"] = os.path.dirname(user.path)
        for library_folder in self.system.library_folders:
            values["LIB"] = library_folder
            yield _TOKEN.sub(lambda match: values[match[1] or match[2]], text)
            if "LIB" not in text:
                return


def split_library_path(value: str) -> tuple[str, ...]:
    """Return the folders of ``LD_LIBRARY_PATH``."""
    # "The items in the list are separated by either colons or semicolons", and "A
    # zero-length directory name indicates the current working directory."
    return tuple(x or os.curdir for x in re.split("[:;]", value)) if value else ()


def split_preload(value: str) -> tuple[str, ...]:
    """Return what ``LD_PRELOAD`` names."""
    # "The items of the list can be separated by spaces or colons".
    return tuple(filter(None, re.split("[ :]", value)))
