"""Simulate which libraries the programs of a stack load, and find failures.

torch and jax preload NVIDIA's libraries from the directories of the distributions
``nvidia-*``, such as ``nvidia/cublas/lib`` for CUDA 12, and ``nvidia/cu13/lib`` since
CUDA 13. The libraries and their order change between releases, so they are parsed from
the source code, which is never run.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

from ..gpu_code.report import LibraryReport
from ..gpu_code.units import choices_by_cuda, is_of_nvidia
from .distributions import Distribution
from .installation import read_head
from .loader import Failure, Process, split_library_path, split_preload
from .software import Software
from .system import System

_PAIR = re.compile(
    r"""["'](\w+)["']\s*[:,]\s*["'](lib[\w-]{1,60}\.so[^"'/\0]{0,60})["']"""
)
"""A library in torch's source: ``"cublas": "libcublas.so.*[0-9]"``, or a tuple.

The second text is a pattern of `glob`, whose translation takes quadratic time."""

_JAX_LOADS = re.compile(r"""_load\(\s*["'](\w+)["'],\s*\[([^\]]{0,1000})\]""")
"""A call in jax's source, such as ``_load("cublas", ["libcublas.so.12"])``."""

_JAX_NAME = re.compile(r"""["'](lib[\w-]+\.so[\w.]*)["']""")
_CUDA = re.compile(r"""^cuda\b[^=\n]*=\s*["']([0-9]{1,3})""", re.MULTILINE)
_MOST = 100
"""The maximum number of libraries read from a source file. torch and jax list 15."""

_GLOBAL_DEPS = "libtorch_global_deps.so"


def load_torch(process: Process, folders: Sequence[str]) -> list[Failure]:
    """Load the libraries that ``import torch`` loads.

    :param folders: the directories of ``sys.path``.
    :returns: the failures; empty if torch is not installed.
    """
    home = _first(folders, "torch", "lib", _GLOBAL_DEPS)
    if home is None:
        return []
    package = os.path.join(home, "torch")
    library = os.path.join(package, "lib", _GLOBAL_DEPS)
    source = read_head(os.path.join(package, "__init__.py"))
    before, _, loading = source.partition("def _load_global_deps")
    loading = loading.partition("\ndef ")[0]
    major = _CUDA.search(read_head(os.path.join(package, "version.py")))
    layout = f"cu{major[1]}" if major else None
    listed = _pairs(before)
    failures = process.load(library)
    if failures:
        stems = {name.partition(".")[0] for _, name in listed}
        if failures[0].name.partition(".")[0] not in stems:
            return failures
        _load_listed(process, folders, layout, listed)
        failures = process.load(library)
        if failures:
            return failures
    elif any("libcudart" in item.path for item in process.loaded):
        # After libcudart, torch preloads libraries, which take precedence over other
        # copies. In older releases, ``_load_global_deps`` itself lists these libraries.
        if "_preload_cuda_deps(required=False)" not in loading:
            listed = _pairs(loading)
        _load_listed(process, folders, layout, listed)
    libraries = glob.iglob(os.path.join(glob.escape(package), "_C.*.so"))
    for path in sorted(islice(libraries, _MOST)):
        failures += process.load(path)
    return failures


def _pairs(source: str) -> list[tuple[str, str]]:
    matches = islice(_PAIR.finditer(source), _MOST)
    return [(match[1], match[2]) for match in matches]


def load_jax(process: Process, folders: Sequence[str]) -> None:
    """Load the libraries that jax's CUDA plug-in preloads, skipping missing ones."""
    for folder in folders:
        pattern = os.path.join(glob.escape(folder), "jax_plugins/xla_cuda*/__init__.py")
        for path in sorted(glob.glob(pattern))[:_MOST_PLUGINS]:
            for match in islice(_JAX_LOADS.finditer(read_head(path)), _MOST):
                for name in _JAX_NAME.findall(match[2]):
                    place = ("nvidia", match[1], "lib", name)
                    home = _first(folders, *place)
                    if home is not None:
                        process.load(os.path.join(home, *place))


def _load_listed(
    process: Process,
    folders: Sequence[str],
    layout: str | None,
    listed: Sequence[tuple[str, str]],
) -> None:
    for folder_name, pattern in listed:
        # The directories are in torch's order of preference.
        names = [os.path.join("nvidia", x) for x in (folder_name, layout) if x]
        for place in (
            os.path.join(folder, name, "lib")
            for folder in folders
            for name in (*names, folder_name)
        ):
            found = fnmatch.filter(process.system.names(place), pattern)
            if found:
                process.load(os.path.join(place, min(found)))
                break


def _first(folders: Sequence[str], *path: str) -> str | None:
    return next((f for f in folders if os.path.exists(os.path.join(f, *path))), None)


_MACHINES = ("x86_64", "aarch64")
_MOST_PLUGINS = 8
_JAX = re.compile(r"jax-cuda[0-9]+-(?:pjrt|plugin)")
_TORCH = re.compile(r"lib(?:torch|c10)[a-z0-9_]*\.so.*")
_REPAIRED = re.compile(r".+[-.][0-9a-f]{8,}\.so.*")
"""A library that a tool such as auditwheel has copied into a wheel, and renamed."""

_DRIVER = re.compile(r"lib(?:cuda|nvidia-[a-z0-9-]+|nvcuvid|nvoptix)\.so\.\d+")
_BASE = re.compile(
    r"ld-linux.*|lib(?:c|m|dl|rt|pthread|util|nsl|resolv|gcc_s|stdc\+\+|z|expat|X\w+|GL"
    r"|ICE|SM|glib-2\.0|gobject-2\.0|gthread-2\.0)\.so.*"
)
"""The libraries that every system provides for wheels (PEP 599 and PEP 600)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Loading:
    """The simulated loading of one library of a distribution.

    :param alternatives: the paths from which a program selects one by CUDA version; for
        a library without alternatives, only its own path.
    """

    distribution: Distribution
    library: LibraryReport
    alternatives: tuple[str, ...]
    failures: tuple[Failure, ...]


class Libraries:
    """The simulated processes of a stack; each loads its libraries once.

    :param library_path: the value of ``LD_LIBRARY_PATH``; ignored for another machine.
    """

    def __init__(self, software: Software, library_path: str = "") -> None:
        self._software = software
        self.system = System(
            software.root,
            machine=_machine(software),
            known=software.is_here,
            limits=software.limits,
        )
        self._library_path = library_path if software.is_here else ""
        self._processes: dict[str, Process] = {}
        self._known: dict[str, tuple[Collection[str], Collection[str]]] = {}

    @cached_property
    def loadings(self) -> tuple[Loading, ...]:
        """The results of loading each library that uses CUDA, one after the other."""
        if self._start().is_musl:
            self.system.notes.append(
                "which libraries programs load was not checked: the interpreter is of "
                "musl, and NVIDIA's libraries are made for glibc"
            )
            return ()
        return tuple(self._load())

    def _load(self) -> Iterator[Loading]:
        for distribution in self._software.distributions.values():
            report = self._software.code_of(distribution)
            if report is None:
                continue
            alternatives = choices_by_cuda(report)
            for library in report.libraries:
                if not self._counts(distribution, library):
                    continue
                process = self._process(distribution, library)
                path = distribution.locate(library.path)
                yield Loading(
                    distribution=distribution,
                    library=library,
                    alternatives=alternatives.get(library.path, (library.path,)),
                    failures=tuple(process.load(path)),
                )

    @cached_property
    def working(self) -> frozenset[str]:
        """The names of the distributions with at least one library that loads."""
        return frozenset(x.distribution.name for x in self.loadings if not x.failures)

    @property
    def processes(self) -> tuple[Process, ...]:
        """The processes with their loaded libraries."""
        _ = self.loadings  # creates the processes
        return tuple(self._processes.values())

    def owner(self, path: str) -> Distribution | None:
        """Return the distribution that contains the library at a path, if any."""
        return self._owners.get(os.path.normpath(path))

    @cached_property
    def _owners(self) -> Mapping[str, Distribution]:
        return {
            distribution.locate(item.path): distribution
            for distribution in self._software.distributions.values()
            for item in distribution.files
            if ".so" in item.path
        }

    def _counts(self, distribution: Distribution, library: LibraryReport) -> bool:
        if library.format != "elf" or library.machine != self.system.machine:
            return False
        if library.vendored or library.tests:
            return False
        name = distribution.name
        if distribution.is_library and not self._software.is_required(name):
            return False
        return library.has_gpu_code or any(map(is_of_nvidia, library.needed))

    def _process(self, distribution: Distribution, library: LibraryReport) -> Process:
        name = distribution.name
        if any(map(is_of_torch, library.needed)) or self._uses(distribution, "torch"):
            return self._torch_process
        if any(self._uses(distribution, item) for item in self._jax):
            return self._jax_process
        if name not in self._processes:
            self._processes[name] = self._start()
        return self._processes[name]

    def _uses(self, distribution: Distribution, project: str) -> bool:
        """Return whether a distribution uses a project, or is one of its libraries."""
        name = distribution.name
        users, needed = self._around(project)
        return name in users or (distribution.is_library and name in needed)

    def _around(self, project: str) -> tuple[Collection[str], Collection[str]]:
        """Return the names of a project and its dependents, and of its dependencies."""
        if project not in self._known:
            software = self._software
            users = {project, *software.required_by(project)}
            self._known[project] = users, software.needed_for(project)
        return self._known[project]

    @cached_property
    def _jax(self) -> tuple[str, ...]:
        names = filter(_JAX.fullmatch, self._software.distributions)
        return tuple(islice(names, _MOST_PLUGINS))

    @cached_property
    def _torch_process(self) -> Process:
        process = self._processes["torch"] = self._start()
        load_torch(process, self._software.installation.folders)
        return process

    @cached_property
    def _jax_process(self) -> Process:
        process = self._processes["jax"] = self._start()
        load_jax(process, self._software.installation.folders)
        return process

    def _start(self) -> Process:
        environ = self._software.environ if self._software.is_here else {}
        return Process(
            self.system,
            preload=split_preload(environ.get("LD_PRELOAD", "")),
            library_path=split_library_path(self._library_path),
            program=self._software.installation.python,
            is_supplied=self._is_supplied,
        )

    def _is_supplied(self, name: str) -> bool:
        """Return whether a missing library may be ignored, because the system has it.

        The system of another machine is unknown, so any library may be ignored there,
        except libraries that only distributions provide.
        """
        if _DRIVER.fullmatch(name) or _BASE.fullmatch(name):
            return True
        if self._software.is_here:
            return not self.system.is_cache_known
        return not (
            is_of_nvidia(name) or is_of_torch(name) or _REPAIRED.fullmatch(name)
        )


def is_of_torch(name: str) -> bool:
    """Return whether the file name of a library belongs to torch."""
    return _TORCH.fullmatch(name) is not None


def _machine(software: Software) -> str:
    """Return the processor for which the first library of an environment was built."""
    for distribution in software.distributions.values():
        report = software.code_of(distribution)
        for library in () if report is None else report.libraries:
            if library.format == "elf" and library.machine in _MACHINES:
                return library.machine
    return _MACHINES[0]
