"""The installed software of a machine, and its GPU code.

Results about installed files are cached until one of the files changes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

from nvidia_variant_provider.machine.environment import CudaVersion, Environment

from .. import __version__
from ..builds.needs import needs_of_report
from ..files import file_state, load, store
from ..gpu_code.compression import Budget
from ..gpu_code.files import ARCHIVES, is_text
from ..gpu_code.inspection import Progress, inspect_recorded
from ..gpu_code.report import WheelReport
from ..knowledge.builds import Needs
from ..signals import unstopped
from .commands import Command, project_of
from .distributions import Distribution, Need, RecordedFile, find_needs
from .installation import CODE, FILES, Installation, Limits

logger = logging.getLogger(__name__)


_LONGEST = 16 * 1024 * 1024
"""The maximum size in bytes of a cached result for a distribution. The report of 10,560
loose cubins has 6 MB."""

_LIFE = 30 * 24 * 3600.0
"""Seconds for which a result is cached."""


def kept_path(
    folder: str | None,
    kind: str,
    distribution: Distribution,
    files: Iterable[RecordedFile],
) -> str | None:
    """Return the path of the cache entry for some files of a distribution.

    The path depends on the distribution's directory, on the hash of each file in
    RECORD, and on the file's size and times, which differ if the file was changed after
    its installation.

    :param folder: the cache directory; ``None`` disables the cache.
    :param kind: the kind of result, such as ``symbols``.
    :returns: ``None`` without a cache, or if a file is missing.
    """
    if folder is None:
        return None
    # Hash the directory too: another environment, perhaps of another user, could have
    # different files with the same names, sizes and times, and any hashes in RECORD.
    place = os.path.abspath(distribution.folder)
    start = f"{__version__}\n{kind}\n{distribution.name}\n{place}\n"
    state = hashlib.sha256(start.encode("utf-8", "surrogateescape"))
    state.update(distribution.metadata)
    for item in files:
        found = file_state(distribution.locate(item.path))
        if found is None:
            return None
        line = f"{item.path}\0{item.digest}\0{found}\n"
        state.update(line.encode("utf-8", "surrogateescape"))
    return os.path.join(folder, f"{state.hexdigest()}.json")


def read_kept(path: str | None) -> Any:
    """Read a cache entry; ``None`` if unusable."""
    content = load(path, _LONGEST, _LIFE)
    if content is None:
        return None
    try:
        return json.loads(content)
    except ValueError as error:
        # A full disk may have truncated the cache entry.
        logger.info("%s cannot be used: %r", path, error)
        return None


def write_kept(path: str | None, document: object) -> None:
    """Cache a document; failing to write it is not an error."""
    # Check first, because converting the report of 10,560 cubins to JSON is slow.
    if path is None:
        return
    store(path, json.dumps(document, separators=(",", ":")).encode(), _LIFE)


_TORCH = ("libtorch", "libc10")
_LIBRARY = re.compile(r"nvidia-(.+?)(?:-cu[0-9]+)?")
_PARTS = 2
"""The divisor of the budget for one report: all distributions share the quotient."""

_SECONDS = 6.0
"""The processor time for reading GPU code. torch's libraries, which have 400 MB to
search, need half a second."""

Watch: TypeAlias = "Callable[[str], AbstractContextManager[Progress | None]]"
"""Takes the name of a distribution; returns a context with a progress function."""


class CodeReader:
    """Reads the GPU code of distributions, and caches the reports.

    :param folder: the cache directory; ``None`` disables the cache.
    :param jobs: the number of files to read at the same time.
    :param watch: see `Watch`.
    :param most: the processor time that is left, in seconds.
    """

    def __init__(
        self,
        folder: str | None = None,
        *,
        jobs: int = 1,
        watch: Watch | None = None,
        most: float = _SECONDS,
    ) -> None:
        self.folder = folder
        self._jobs = jobs
        # All distributions share the budget and the seconds.
        self._budget = Budget(_PARTS)
        self._seconds = min(_SECONDS, most)
        self._watch = watch or (lambda _: contextlib.nullcontext())

    def read(self, distribution: Distribution) -> WheelReport | None:
        """Find the GPU code of a distribution.

        :returns: ``None`` if no file can contain GPU code, or if RECORD is missing.
            Unreadable files are defects in the report.
        """
        files = [
            item
            for item in distribution.files
            if may_have_gpu_code(item.path)
            and distribution.limits.take(CODE, of=distribution.name)
        ]
        if not files:
            return None
        path = kept_path(self.folder, "code", distribution, files)
        report = _load(path)
        if report is not None:
            logger.debug("%s: its report is kept in %s", distribution.name, path)
            return report
        with unstopped(), self._watch(distribution.name) as progress:
            started = time.process_time()
            self._budget.until = started + self._seconds
            report = inspect_recorded(
                distribution.name,
                (item.path for item in files),
                distribution.metadata,
                locate=distribution.locate,
                loaded_only=True,
                budget=self._budget,
                jobs=self._jobs,
                progress=progress,
            )
            self._seconds -= time.process_time() - started
        if not report.all_defects and not distribution.limits.is_used_up(FILES):
            write_kept(path, report.to_dict())
        return report


def may_have_gpu_code(path: str) -> bool:
    """Return whether a file may have GPU code, judging by its path in RECORD."""
    # Programs cannot load GPU code from archives, and small archives may expand to GiB.
    if path.startswith("../") or path.lower().endswith((".pyc", *ARCHIVES)):
        return False
    return not is_text(path)


def _load(path: str | None) -> WheelReport | None:
    document = read_kept(path)
    if document is None:
        return None
    try:
        return WheelReport.from_dict(document)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        logger.info("%s cannot be used: %r", path, error)
        return None


@dataclass(frozen=True, kw_only=True)
class Software:
    """A machine with its installed software.

    The files of a distribution are read once, on first access.

    :param environment: the driver and the GPUs, of this machine or another one.
    :param is_here: whether ``environment`` describes this machine; if so, the files of
        its system are checked too.
    :param environ: the environment variables of the machine's programs.
    :param root: the root directory of the system, which tests replace.
    :param machine_options: the command-line options that describe ``environment``.
    :param everything: whether to check compilers even if no package is built with them.
    """

    environment: Environment
    installation: Installation
    distributions: Mapping[str, Distribution]
    reader: CodeReader
    environ: Mapping[str, str] = field(default_factory=dict)
    is_here: bool = True
    root: str = "/"
    machine_options: Sequence[str] = ()
    everything: bool = False
    _reports: dict[str, WheelReport | None] = field(
        default_factory=dict, repr=False, compare=False
    )
    _needs: dict[str, Needs | None] = field(
        default_factory=dict, repr=False, compare=False
    )
    _chosen: dict[tuple[str, str], Need | None] = field(
        default_factory=dict, repr=False, compare=False
    )

    @cached_property
    def limits(self) -> Limits:
        """The limits on reading the environment, which all distributions share."""
        return next((x.limits for x in self.distributions.values()), Limits())

    def code_of(self, distribution: Distribution) -> WheelReport | None:
        """Return the report on the GPU code of a distribution.

        :returns: ``None`` if no file can contain GPU code, or the files are unknown.
        """
        name = distribution.name
        if name not in self._reports:
            self._reports[name] = self.reader.read(distribution)
        return self._reports[name]

    def needs_of(self, distribution: Distribution) -> Needs | None:
        """Return a distribution's requirements on a machine, from its installed files.

        :returns: ``None`` if no file can contain GPU code, or files could not be read.
        """
        name = distribution.name
        if name not in self._needs:
            report = self.code_of(distribution)
            self._needs[name] = None if report is None else needs_of_report(report)
        return self._needs[name]

    def cuda_of(self, distribution: Distribution) -> CudaVersion | None:
        """Return the CUDA version that a distribution needs; ``None`` if unknown."""
        needs = self.needs_of(distribution)
        return None if needs is None else needs.cuda

    def with_gpu_code(self) -> Iterator[tuple[Distribution, WheelReport]]:
        """Yield the distributions that have GPU code, each with its report."""
        for distribution in self.distributions.values():
            report = self.code_of(distribution)
            if report is not None and any(i.has_gpu_code for i in report.libraries):
                yield distribution, report

    @cached_property
    def requirements(self) -> tuple[Need, ...]:
        """The requirements that apply to the environment and concern GPU code."""
        return tuple(find_needs(self.distributions, self.installation))

    @cached_property
    def needs_by_name(self) -> Mapping[str, list[Need]]:
        """The requirements, keyed by the name of the required project."""
        needs: dict[str, list[Need]] = {}
        for need in self.requirements:
            needs.setdefault(need.name, []).append(need)
        return needs

    @cached_property
    def linked_with_torch(self) -> Mapping[str, list[str]]:
        """The libraries linked with torch's, outside of torch, by distribution.

        Each library is its path in RECORD.
        """
        linked: dict[str, list[str]] = {}
        for name, distribution in self.distributions.items():
            report = None if name == "torch" else self.code_of(distribution)
            for library in () if report is None else report.libraries:
                if library.format == "elf" and any(
                    needed.startswith(_TORCH) for needed in library.needed
                ):
                    linked.setdefault(name, []).append(library.path)
        return linked

    def pip(self, subcommand: str, *words: str) -> Command:
        """Return the command line that runs pip in this environment.

        An ``install`` command selects builds for the checked machine.
        """
        program = ["nvp", "pip"]
        python = self.installation.python or self.installation.prefix
        if python != sys.executable:
            program += ["--python", self.installation.prefix]
        machine = self.machine_options if subcommand == "install" else ()
        return Command.of_pip(program, subcommand, *words, machine=machine)

    def reinstall(self, *names: str, words: Sequence[str] = ()) -> Command:
        """Return the command line that reinstalls projects, selecting builds again.

        If conda has installed one of the projects, the command uses conda.

        :param words: further arguments of pip.
        """
        installed = [x for n in names if (x := self.distributions.get(project_of(n)))]
        if any(item.installer == "conda" for item in installed):
            prefix = self.installation.prefix
            # In conda, torch is named pytorch; the pattern excludes its CPU builds.
            packages = ["pytorch=*=cuda*" if x == "torch" else x for x in names]
            return Command(("conda", "install", "--prefix", prefix), names=(*packages,))
        options = ["--upgrade", "--force-reinstall"]
        # Install for every GPU, because the checks cover every GPU too.
        options += ["--every-gpu"] if self.has_several_gpus else []
        return self.pip("install", *options, *words, *names)

    def restore(self, distribution: Distribution) -> Command:
        """Return the command line that reinstalls the files of the same release."""
        wanted = f"{distribution.name}=={distribution.public_version}"
        return self.pip("install", "--force-reinstall", "--no-deps", wanted)

    @cached_property
    def builds_here(self) -> bool:
        """Whether packages are built with the compilers of this machine."""
        return self.everything or any(
            item.is_from_source for item in self.distributions.values()
        )

    @property
    def has_gpu(self) -> bool:
        """Whether the machine has a driver and a GPU."""
        environment = self.environment
        return environment.cuda_driver_version is not None and bool(environment.gpus)

    @property
    def has_several_gpus(self) -> bool:
        """Whether the machine has GPUs of several compute capabilities."""
        return len(self.environment.compute_capabilities) > 1

    def required_by(self, name: str) -> frozenset[str]:
        """Return the names of all direct and indirect dependents of a distribution.

        :param name: the normalized name of the distribution.
        """
        return _reached([name], lambda item: self._users.get(item, ()))

    def needed_for(self, *names: str) -> frozenset[str]:
        """Return the names of direct and indirect dependencies, installed or not."""

        def required(item: str) -> Iterable[str]:
            distribution = self.distributions.get(item)
            return () if distribution is None else distribution.required

        return _reached(names, required)

    def is_required(self, name: str) -> bool:
        """Return whether any installed distribution requires a project."""
        return name in self._users

    @cached_property
    def _users(self) -> Mapping[str, list[str]]:
        users: dict[str, list[str]] = {}
        for distribution in self.distributions.values():
            for name in distribution.required:
                users.setdefault(name, []).append(distribution.name)
        return users

    @cached_property
    def nvidia_files(self) -> Mapping[str, list[tuple[Distribution, str]]]:
        """The libraries in NVIDIA's distributions, keyed by file name.

        Each library is a pair of the distribution and the path in RECORD.
        """
        files: dict[str, list[tuple[Distribution, str]]] = {}
        for distribution in self.distributions.values():
            for item in distribution.files if distribution.is_library else ():
                name = item.path.rpartition("/")[2]
                if ".so" in name:
                    files.setdefault(name, []).append((distribution, item.path))
        return files

    @cached_property
    def _needs_by_user(self) -> Mapping[str, Mapping[str, tuple[int, Need]]]:
        """The first requirement of each distribution for each of NVIDIA's libraries.

        The inner keys are purposes, such as ``cublas`` for nvidia-cublas-cu12. Each
        value is a pair: the index in `requirements`, and the requirement.
        """
        needs: dict[str, dict[str, tuple[int, Need]]] = {}
        for place, need in enumerate(self.requirements):
            if match := _LIBRARY.fullmatch(need.name):
                own = needs.setdefault(need.user.name, {})
                own.setdefault(match[1], (place, need))
        return needs

    def need_of(self, name: str, purpose: str) -> Need | None:
        """Return the requirement through which a distribution gets a library, if any.

        The requirements of required distributions are included: torch requires
        cuda-toolkit[cublas], and this extra requires nvidia-cublas.

        :param name: the normalized name of the distribution.
        :param purpose: the library without its CUDA version, such as ``cublas``.
        """
        key = name, purpose
        if key not in self._chosen:
            needed = self._needed_names.get(name, ())
            pairs = [
                own[purpose]
                for user in {name, *needed}
                if purpose in (own := self._needs_by_user.get(user, {}))
            ]
            first = min(pairs, key=lambda pair: pair[0], default=None)
            self._chosen[key] = None if first is None else first[1]
        return self._chosen[key]

    @cached_property
    def _needed_names(self) -> Mapping[str, list[str]]:
        """The names of the direct GPU dependencies of each distribution."""
        names: dict[str, list[str]] = {}
        for need in self.requirements:
            names.setdefault(need.user.name, []).append(need.name)
        return names


def _reached(
    starts: Iterable[str], following: Callable[[str], Iterable[str]]
) -> frozenset[str]:
    """Return the nodes that are reachable by at least one step from ``starts``."""
    reached: set[str] = set()
    waiting = list(starts)
    while waiting:
        for name in following(waiting.pop()):
            if name not in reached:
                reached.add(name)
                waiting.append(name)
    return frozenset(reached)
