"""The software that is installed on a machine, and the GPU code in it.

The code is read once for each content: what is read of installed files is kept in a
cache until one of the files changes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

from nvidia_variant_provider.machine.environment import CudaVersion, Environment

from .. import __version__
from ..builds.needs import needs_of_report
from ..files import load, store
from ..gpu_code.bounds import MAX_PARSED
from ..gpu_code.compression import Budget
from ..gpu_code.files import is_text
from ..gpu_code.inspection import Progress, inspect_recorded
from ..gpu_code.report import WheelReport
from ..knowledge.builds import Needs
from .commands import Command, project_of
from .distributions import Distribution, Need, RecordedFile, cost_of, find_needs
from .installation import CODE, FILES, REQUIREMENTS, Installation, Limits

logger = logging.getLogger(__name__)


_LONGEST = 16 * 1024 * 1024
"""The most bytes that are kept of one distribution. The report of 10,560 loose cubins
has 6 MB."""


def kept_path(
    folder: str | None,
    kind: str,
    distribution: Distribution,
    files: Iterable[RecordedFile],
) -> str | None:
    """Return where what was read of exactly these files is kept.

    RECORD has the hash of each file. A file that was changed after it had been
    installed has another size or another time.

    :param folder: ``None`` keeps nothing.
    :param kind: what was read.
    :returns: ``None`` where nothing is kept, or a file is missing.
    """
    if folder is None:
        return None
    state = hashlib.sha256(f"{__version__}\n{kind}\n{distribution.name}\n".encode())
    state.update(distribution.metadata)
    for item in files:
        try:
            status = os.stat(distribution.locate(item.path))
        except (OSError, ValueError):
            return None
        line = f"{item.path}\0{item.digest}\0{status.st_size}\0{status.st_mtime_ns}"
        state.update(f"{line}\n".encode("utf-8", "surrogateescape"))
    return os.path.join(folder, f"{state.hexdigest()}.json")


def read_kept(path: str | None) -> Any:
    """Read what is kept; ``None`` where there is nothing that can be used."""
    content = load(path, _LONGEST)
    if content is None:
        return None
    try:
        return json.loads(content)
    except ValueError as error:
        # A full disk may have cut it.
        logger.info("%s cannot be used: %r", path, error)
        return None


def write_kept(path: str | None, document: object) -> None:
    """Keep a document; a cache that cannot be written is not an error."""
    # The report of 10,560 cubins takes long to write as JSON, so look first.
    if path is None:
        return
    store(path, json.dumps(document, separators=(",", ":")).encode())


_CUDA = ("nvidia-", "cuda-")
_PARTS = 2
"""By what the budget of one report is divided for all distributions together."""

_SEARCHED = 4 << 30
"""Bytes of files that are searched. The parts of a library that programs cannot hand to
CUDA, its machine code for GPUs and the holes of a file do not count; the libraries of
torch have 400 MB."""

Watch: TypeAlias = "Callable[[str], AbstractContextManager[Progress | None]]"
"""Called with the name of a distribution, and returns what takes the progress."""


class CodeReader:
    """Reads the GPU code of distributions, and keeps what it finds.

    :param folder: where reports are kept; ``None`` keeps none.
    :param jobs: how many files are read at the same time.
    :param watch: returns what takes the progress of reading it.
    """

    def __init__(
        self,
        folder: str | None = None,
        *,
        jobs: int = 1,
        watch: Watch | None = None,
    ) -> None:
        self.folder = folder
        self._jobs = jobs
        # All distributions share it, and it is used up in seconds.
        self._budget = Budget(_PARTS)
        self._budget.searched = _SEARCHED
        self._watch = watch or (lambda _: contextlib.nullcontext())

    def read(self, distribution: Distribution) -> WheelReport | None:
        """Find the GPU code of a distribution.

        :returns: ``None`` where it has no file that could hold any, or no RECORD. What
            cannot be read is a defect of the report.
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
        # The report says which CUDA they ask for.
        texts = [text for name, text in distribution.requires if name.startswith(_CUDA)]
        cost = sum(map(cost_of, texts[:MAX_PARSED]))
        limits = distribution.limits
        known = limits.take(REQUIREMENTS, cost, of=distribution.name)
        known = known and not limits.is_used_up(FILES)
        with self._watch(distribution.name) as progress:
            report = inspect_recorded(
                distribution.name,
                (item.path for item in files),
                distribution.metadata if known else b"",
                locate=distribution.locate,
                loaded_only=True,
                budget=self._budget,
                jobs=self._jobs,
                progress=progress,
            )
        if known and not report.all_defects:
            write_kept(path, report.to_dict())
        return report


def may_have_gpu_code(path: str) -> bool:
    """Return whether a file of a RECORD is looked into, by its name."""
    if path.startswith("../") or path.endswith(".pyc"):
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
    """A machine with the software that is installed on it.

    The files of a distribution are read when they are asked for, and once.

    :param environment: the driver and the GPUs, of this machine or of another one.
    :param is_here: whether the software runs on ``environment``, so that the files of
        the system count as well.
    :param environ: the environment variables that its programs see.
    :param root: the root directory of the system; tests name another one.
    :param machine_options: the options of a command line that name ``environment``.
    :param everything: check compilers too where nothing is built with them.
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

    @cached_property
    def limits(self) -> Limits:
        """What may be read of the environment; its distributions share it."""
        return next((x.limits for x in self.distributions.values()), Limits())

    def code_of(self, distribution: Distribution) -> WheelReport | None:
        """Return the GPU code of a distribution.

        :returns: ``None`` where no file could hold any, or its files are not known.
        """
        name = distribution.name
        if name not in self._reports:
            self._reports[name] = self.reader.read(distribution)
        return self._reports[name]

    def needs_of(self, distribution: Distribution) -> Needs | None:
        """Return what a distribution needs of a machine, by the files installed.

        :returns: ``None`` where its files could not be read completely, or hold
            nothing that counts.
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
        """Yield the distributions that have GPU code, with the code."""
        for distribution in self.distributions.values():
            report = self.code_of(distribution)
            if report is not None and any(i.has_gpu_code for i in report.libraries):
                yield distribution, report

    @cached_property
    def requirements(self) -> tuple[Need, ...]:
        """What the distributions require of each other."""
        return tuple(find_needs(self.distributions, self.installation))

    def pip(self, subcommand: str, *words: str) -> Command:
        """Return the command line that runs pip in this environment.

        What it installs is for the machine that the checks are about.
        """
        program = ["nvp", "pip"]
        python = self.installation.python or self.installation.prefix
        if python != sys.executable:
            program += ["--python", self.installation.prefix]
        machine = self.machine_options if subcommand == "install" else ()
        return Command.of_pip(program, subcommand, *words, machine=machine)

    def reinstall(self, *names: str, words: Sequence[str] = ()) -> Command:
        """Return the command line that chooses builds of projects again.

        Files that conda has installed are known to conda, and not to pip.

        :param words: more words for pip.
        """
        installed = [x for n in names if (x := self.distributions.get(project_of(n)))]
        if any(item.installer == "conda" for item in installed):
            prefix = self.installation.prefix
            # The package of torch has another name, and a build without CUDA as well.
            packages = ["pytorch=*=cuda*" if x == "torch" else x for x in names]
            return Command(("conda", "install", "--prefix", prefix), names=(*packages,))
        options = ["--upgrade", "--force-reinstall"]
        # The checks are about each GPU of the machine.
        options += ["--every-gpu"] if self.has_several_gpus else []
        return self.pip("install", *options, *words, *names)

    def restore(self, distribution: Distribution) -> Command:
        """Return the command line that installs the files of a release once more."""
        wanted = f"{distribution.name}=={distribution.public_version}"
        return self.pip("install", "--force-reinstall", "--no-deps", wanted)

    @cached_property
    def builds_here(self) -> bool:
        """Whether compilers of this machine matter: something is built with them."""
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
        """Return the distributions that need another one, through others too.

        :param name: the normalized name of the distribution that is needed.
        """
        return _reached([name], lambda item: self._users.get(item, ()))

    def needed_for(self, *names: str) -> frozenset[str]:
        """Return what distributions need, through others too, installed or not."""

        def required(item: str) -> Iterable[str]:
            distribution = self.distributions.get(item)
            return () if distribution is None else distribution.required

        return _reached(names, required)

    def is_required(self, name: str) -> bool:
        """Return whether any distribution needs another one."""
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
        """The libraries in NVIDIA's distributions, by the names of their files.

        Each has its distribution, and its path in RECORD.
        """
        files: dict[str, list[tuple[Distribution, str]]] = {}
        for distribution in self.distributions.values():
            for item in distribution.files if distribution.is_library else ():
                name = item.path.rpartition("/")[2]
                if ".so" in name:
                    files.setdefault(name, []).append((distribution, item.path))
        return files

    @cached_property
    def needed_names(self) -> Mapping[str, frozenset[str]]:
        """The names of what each distribution requires here, by its name."""
        names: dict[str, set[str]] = {}
        for need in self.requirements:
            names.setdefault(need.user.name, set()).add(need.name)
        return {name: frozenset(needed) for name, needed in names.items()}

    @cached_property
    def needs_of_libraries(self) -> Mapping[str, list[tuple[int, Need]]]:
        """The requirements of NVIDIA's distributions, by the name of who has them.

        Each has its place in `requirements`.
        """
        needs: dict[str, list[tuple[int, Need]]] = {}
        for place, need in enumerate(self.requirements):
            if need.name.startswith("nvidia-"):
                needs.setdefault(need.user.name, []).append((place, need))
        return needs


def _reached(
    starts: Iterable[str], following: Callable[[str], Iterable[str]]
) -> frozenset[str]:
    """Return what is reached from ``starts``, which do not count by themselves."""
    reached: set[str] = set()
    waiting = list(starts)
    while waiting:
        for name in following(waiting.pop()):
            if name not in reached:
                reached.add(name)
                waiting.append(name)
    return frozenset(reached)
