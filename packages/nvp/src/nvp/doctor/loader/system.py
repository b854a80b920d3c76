"""Where the loader of a machine looks, and the library files that it finds there."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from functools import cached_property

from nvidia_variant_provider.strict_json import open_regular

from ...gpu_code.dynamic import Dynamic, read_dynamic
from ...gpu_code.ranges import read_seekable
from .cache import read_cache

__all__ = ["LibraryError", "System"]

FOLDER = "glibc-hwcaps"

_LEVELS: Mapping[str, str] = {
    "x86-64-v2": "cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3",
    "x86-64-v3": "avx avx2 bmi1 bmi2 f16c fma abm movbe xsave",
    "x86-64-v4": "avx512f avx512bw avx512cd avx512dq avx512vl",
}
"""The flags of Linux that each level needs in addition to those of the level before."""

_FIRST_GLIBC = (2, 33)


def levels_of(cpuinfo: str, glibc: str | None) -> tuple[str, ...]:
    """Return the names of the folders that the loader of a machine looks into.

    :param cpuinfo: the contents of ``/proc/cpuinfo``.
    :param glibc: its version, such as ``2.36``; ``None`` where it is not known.
    :returns: the preferred one first; none before glibc 2.33, which has other folders.
    """
    numbers = tuple(int(part) for part in (glibc or "").split(".") if part.isdigit())
    if glibc is not None and numbers < _FIRST_GLIBC:
        return ()
    line = next((x for x in cpuinfo.splitlines() if x.startswith("flags")), "")
    flags = set(line.partition(":")[2].split())
    levels: list[str] = []
    for level, needed in _LEVELS.items():
        if not flags.issuperset(needed.split()):
            break
        levels.insert(0, level)
    return tuple(levels)


_CACHE = "etc/ld.so.cache"
_PRELOAD = "etc/ld.so.preload"
_LONGEST = 1024 * 1024
_TRIPLETS = {"x86_64": "x86_64-linux-gnu", "aarch64": "aarch64-linux-gnu"}


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
        self._cache: dict[str, tuple[str, ...]] | None = None
        self._varieties: dict[str, tuple[str, ...]] = {}
        self._files: dict[str, Dynamic | LibraryError | None] = {}

    @property
    def library_folders(self) -> tuple[str, ...]:
        """What ``$LIB`` may stand for: the folder depends on how glibc was built."""
        return (f"lib/{_TRIPLETS.get(self.machine, self.machine)}", "lib64", "lib")

    def cached(self, name: str) -> Iterator[str]:
        """Yield the libraries of a name in ``ld.so.cache``, the preferred one first."""
        if self._cache is None:
            self._cache = self._read_cache() if self._known else {}
        for path in self._cache.get(name, ()):
            yield os.path.join(self._root, path.lstrip("/"))

    def default_folders(self) -> Iterator[str]:
        """Yield ``/lib`` and ``/usr/lib``, by the names that distributions give them.

        Debian builds its loader with the folders of its triplets before them.
        """
        if self._known:
            for folder in self.library_folders:
                yield os.path.join(self._root, folder)
                yield os.path.join(self._root, "usr", folder)

    @cached_property
    def levels(self) -> tuple[str, ...]:
        """The folders of ``glibc-hwcaps`` that the loader looks into."""
        if self.machine != "x86_64" or not self._known:
            return ()
        # "glibc 2.36"; other systems have no such function, or not this name.
        asked = getattr(os, "confstr", None)
        known = "CS_GNU_LIBC_VERSION" in getattr(os, "confstr_names", {})
        named = asked("CS_GNU_LIBC_VERSION") if asked is not None and known else None
        glibc = named.rpartition(" ")[2] if named else None
        return levels_of(self._text("proc/cpuinfo"), glibc)

    def varieties(self, folder: str) -> tuple[str, ...]:
        """Return a folder, after those in it that have copies for newer processors."""
        if folder not in self._varieties:
            inner = [os.path.join(folder, FOLDER, level) for level in self.levels]
            there = filter(os.path.isdir, inner)
            self._varieties[folder] = (*there, folder)
        return self._varieties[folder]

    def preloaded(self) -> tuple[str, ...]:
        """Return what ``/etc/ld.so.preload`` names."""
        if not self._known:
            return ()
        # "a whitespace-separated list"; glibc leaves out comments and takes colons too.
        text = re.sub("#.*", "", self._text(_PRELOAD))
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
        listed = [x for folder in library_path for x in self.varieties(folder)]
        defaults = [x for f in self.default_folders() for x in self.varieties(f)]
        places = [os.path.join(folder, name) for folder in listed]
        places += self.cached(name)
        places += [os.path.join(folder, name) for folder in defaults]
        return next(filter(self.fits, places), None)

    def _text(self, name: str) -> str:
        """Return the text of a file of the system; empty where there is none."""
        try:
            with open_regular(os.path.join(self._root, name)) as file:
                return file.read(_LONGEST).decode("utf-8", "replace")
        except (OSError, ValueError):
            return ""

    def _read_cache(self) -> dict[str, tuple[str, ...]]:
        path = os.path.join(self._root, _CACHE)
        try:
            return read_cache(path, self.machine, self.levels)
        except ValueError as error:
            self.notes.append(f"{path} cannot be read: {error}")
            return {}


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
