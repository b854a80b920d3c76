"""Simulate which libraries a process loads, by the rules of glibc.

ld.so(8), DESCRIPTION: "If a shared object dependency does not contain a slash, then it
is searched for in the following order": RPATH, ``LD_LIBRARY_PATH``, RUNPATH, the cache
file, the default path. Libraries in ``LD_PRELOAD`` and ``/etc/ld.so.preload`` are
loaded first. Directories for certain processors, such as ``glibc-hwcaps``, are ignored,
because each of their libraries is also in another directory.

The rules of musl's loader differ, and NVIDIA's libraries do not run with musl.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from ..gpu_code.dynamic import Dynamic
from .system import STEPS_OF_FAILURE, STEPS_OF_NAME, LibraryError, System

LIBRARY_PATH = "LD_LIBRARY_PATH"

_TOKEN = re.compile(
    r"\$(?:\{(ORIGIN|LIB|PLATFORM)\}|(ORIGIN|LIB|PLATFORM)(?![A-Za-z]))"
)

_MOST_PATH = 4096
"""The length of a path that Linux does not open (``PATH_MAX``)."""


@dataclass(frozen=True, slots=True, eq=False)
class Loaded:
    """A library that a process has loaded.

    :param path: the path with which the loader opens the file.
    :param place: how the loader found the file: ``RPATH``, ``LD_LIBRARY_PATH``,
        ``RUNPATH``, ``cache``, ``default``, or ``path`` for a given path.
    :param real: the path with links resolved: a file with two paths is loaded once.
    :param loader: the library that requested this one first; ``None`` if a program did.
    :param names: the names under which this library was requested.
    """

    path: str
    dynamic: Dynamic
    place: str
    real: str
    loader: Loaded | None = None
    names: set[str] = field(default_factory=set)

    @property
    def chain(self) -> Iterator[Loaded]:
        """Yield the library, the library that requested it, and so on."""
        item: Loaded | None = self
        while item is not None:
            yield item
            item = item.loader


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """A library that cannot be loaded.

    :param name: the requested name.
    :param user: the file that is linked with the library; the path of the library
        itself if a program requested it.
    :param reason: why the file cannot be loaded; empty if no file was found.
    :param path: the file that was found.
    """

    name: str
    user: str
    reason: str = ""
    path: str | None = None


class Process:
    """A simulated process and its loaded libraries.

    :param library_path: the directories of ``LD_LIBRARY_PATH``.
    :param program: the program of the process; its RPATH applies to all libraries.
    :param preload: the libraries in ``LD_PRELOAD``.
    :param is_supplied: a function that returns whether a missing library may be
        ignored, such as the driver's library on a machine without a driver.
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
        self._by_name: dict[str, Loaded] = {}
        self._by_file: dict[str, Loaded] = {}
        self._folders_of: dict[str, tuple[str, ...]] = {}
        self._searched: dict[Loaded | None, list[tuple[str, str]]] = {}
        if program is not None:
            # Resolve links, because $ORIGIN of a program comes from /proc/self/exe.
            path = os.path.realpath(program)
            self._open(path, None, path, [])
            self._program = next(iter(self.loaded), None)
        # Ignore failures: ld.so prints a message, and skips the library.
        for name in (*preload, *system.preloaded()):
            self._open(name, self._program, name, [])
        self._open_needed(0, [])

    @property
    def is_musl(self) -> bool:
        """Whether the program uses musl's loader instead of glibc's."""
        program = self._program
        needed = () if program is None else program.dynamic.needed
        return any(name.startswith("libc.musl-") for name in needed)

    def load(self, path: str) -> list[Failure]:
        """Load a file and its dependencies, as ``dlopen`` does.

        :param path: the path of the file, or a name without a slash to search for.
        :returns: the failures; if there are any, this call leaves no library loaded.
        """
        before = len(self.loaded)
        failures: list[Failure] = []
        self._open(path, self._program, path, failures)
        self._open_needed(before, failures)
        if failures:
            for item in self.loaded[before:]:
                self._searched.pop(item, None)
                del self._by_file[item.real]
                for name in {*item.names, item.dynamic.soname}:
                    if self._by_name.get(name) is item:
                        del self._by_name[name]
            del self.loaded[before:]
        return failures

    def find(self, name: str) -> Loaded | None:
        """Return the loaded library with a name, if any."""
        return self._by_name.get(name)

    def _open_needed(self, at: int, failures: list[Failure]) -> None:
        """Load the dependencies of ``loaded[at:]``, and of the libraries added."""
        # The loader works breadth first: appended libraries are visited later.
        while at < len(self.loaded):
            user = self.loaded[at]
            if not self.system.take(1 + len(user.dynamic.needed), user.path):
                return
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
            if self.system.take(STEPS_OF_FAILURE, name):
                failures.append(
                    Failure(name=name, user=asking, reason=reason, path=path)
                )
            return
        if path is None or dynamic is None:
            # An incomplete search does not prove that the library is missing.
            searched = self.system.take(STEPS_OF_NAME, name)
            searched = searched and self.system.is_searched
            if not searched or self._is_supplied(name):
                return
            if self.system.take(STEPS_OF_FAILURE, name):
                failures.append(Failure(name=name, user=asking))
            return
        real = self.system.resolve(path)
        item = self._by_file.get(real)
        if item is None:
            item = Loaded(path, dynamic, place, real, user)
            self.loaded.append(item)
            self._by_file[real] = item
            self._by_name.setdefault(dynamic.soname, item)
        item.names.add(name)
        self._by_name.setdefault(name, item)

    def _search(self, name: str, user: Loaded | None) -> tuple[str, str | None]:
        if "/" in name or os.path.isabs(name):
            paths = list(self._expand(name, user))
            return "path", next((p for p in paths if os.path.exists(p)), None)
        for place, path in self._candidates(name, user):
            if self.system.fits(path):
                return place, path
        return "", None

    def _candidates(self, name: str, user: Loaded | None) -> Iterator[tuple[str, str]]:
        if not self.system.is_searched:
            return
        if user not in self._searched:
            self._searched[user] = list(dict.fromkeys(self._folders(user)))
        folders = self._searched[user]
        if not self.system.take(1 + len(folders), name):
            return
        for place, folder in folders:
            if self.system.may_have(folder, name):
                yield place, os.path.join(folder, name)
        # ld.so(8): "If, however, the binary was linked with the -z nodeflib linker
        # option, shared objects in the default paths are skipped."
        nodeflib = user is not None and user.dynamic.nodeflib
        defaults = tuple(self.system.default_folders())
        below = tuple(f"{folder}{os.sep}" for folder in defaults)
        for path in self.system.cached(name):
            if not (nodeflib and path.startswith(below)):
                yield "cache", path
        for folder in () if nodeflib else defaults:
            if self.system.may_have(folder, name):
                yield "default", os.path.join(folder, name)

    def _folders(self, user: Loaded | None) -> Iterator[tuple[str, str]]:
        """Yield the sources and directories to search before the cache, as pairs."""
        # ld.so(8): "Using the directories specified in the DT_RPATH dynamic section
        # attribute of the binary if present and DT_RUNPATH attribute does not exist."
        # DT_RPATH "is applied to searches for all children in the dependency tree".
        if user is None or user.dynamic.runpath is None:
            chain = [] if user is None else list(user.chain)
            if self._program is not None and self._program not in chain:
                chain.append(self._program)
            own = [self._listed(x) for x in chain if x.dynamic.runpath is None]
            if not self.system.take(len(chain) + sum(map(len, own)), "an RPATH"):
                return
            yield from (("RPATH", folder) for folders in own for folder in folders)
        for entry in self._library_path:
            for folder in filter(
                self.system.has_folder, self._expand(entry, self._program)
            ):
                yield LIBRARY_PATH, folder
        if user is not None and user.dynamic.runpath is not None:
            yield from (("RUNPATH", folder) for folder in self._listed(user))

    def _listed(self, user: Loaded) -> tuple[str, ...]:
        """Return the existing directories in a library's RUNPATH, or else its RPATH."""
        text = user.dynamic.runpath
        text = user.dynamic.rpath if text is None else text
        if not text:
            return ()
        if user.path not in self._folders_of:
            found: dict[str, None] = {}
            if self.system.take(1 + text.count(":") + 20 * text.count("$"), user.path):
                for entry in text.split(":"):
                    found.update(dict.fromkeys(self._expand(entry or os.curdir, user)))
            self._folders_of[user.path] = (*filter(self.system.has_folder, found),)
        return self._folders_of[user.path]

    def _expand(self, text: str, user: Loaded | None) -> Iterator[str]:
        """Yield the possible expansions of a text with tokens such as ``$ORIGIN``."""
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
            path = _TOKEN.sub(lambda match: values[match[1] or match[2]], text)
            if len(path) < _MOST_PATH:
                yield path
            if "LIB" not in text:
                return


def split_library_path(value: str) -> tuple[str, ...]:
    """Return the directories of ``LD_LIBRARY_PATH``."""
    # ld.so(8): "The items in the list are separated by either colons or semicolons",
    # and "A zero-length directory name indicates the current working directory."
    return tuple(x or os.curdir for x in re.split("[:;]", value)) if value else ()


def split_preload(value: str) -> tuple[str, ...]:
    """Return the libraries in ``LD_PRELOAD``."""
    # ld.so(8): "The items of the list can be separated by spaces or colons".
    return tuple(filter(None, re.split("[ :]", value)))
