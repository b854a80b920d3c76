"""A machine with the software that is installed on it."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from nvidia_variant_provider.machine.environment import Environment

from ..builds.needs import needs_of_report
from ..gpu_code.report import WheelReport
from ..knowledge.builds import Needs
from .distributions import Distribution, Need, find_needs
from .installation import Installation
from .reading import CodeReader

__all__ = ["Software"]


@dataclass(frozen=True, kw_only=True)
class Software:
    """A machine with the software that is installed on it.

    The files of a distribution are read when they are asked for, and once.

    :param environment: the driver and the GPUs, of this machine or of another one.
    :param is_here: whether the software runs on ``environment``, so that the files of
        the system count as well.
    :param environ: the environment variables that its programs see.
    :param root: the root folder of the system; tests name another one.
    :param machine_options: the options of a command line that name ``environment``.
    """

    environment: Environment
    installation: Installation
    distributions: Mapping[str, Distribution]
    reader: CodeReader
    environ: Mapping[str, str] = field(default_factory=dict)
    is_here: bool = True
    root: str = "/"
    machine_options: Sequence[str] = ()
    _reports: dict[str, WheelReport | None] = field(
        default_factory=dict, repr=False, compare=False
    )
    _needs: dict[str, Needs | None] = field(
        default_factory=dict, repr=False, compare=False
    )

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

    def pip(self, *words: str) -> str:
        """Return the command line that runs pip in this environment.

        What it installs is for the machine that the checks are about. The names and
        versions of distributions come from files, so that every word is quoted.
        """
        command = ["nvidia-variant-provider", "pip"]
        python = self.installation.python or self.installation.prefix
        if python != sys.executable:
            command += ["--python", self.installation.prefix]
        options = self.machine_options if words[0] == "install" else ()
        return shlex.join([*command, *words, *options])

    def reinstall(self, *names: str) -> str:
        """Return the command line that chooses builds of projects again.

        Files that conda has installed are known to conda, and not to pip.
        """
        installed = filter(None, map(self.distributions.get, names))
        if any(item.installer == "conda" for item in installed):
            prefix = self.installation.prefix
            # The package of torch has another name, and a build without CUDA as well.
            packages = ["pytorch=*=cuda*" if x == "torch" else x for x in names]
            return shlex.join(["conda", "install", "--prefix", prefix, *packages])
        return self.pip("install", "--upgrade", "--force-reinstall", *names)

    def required_by(self, name: str) -> frozenset[str]:
        """Return the distributions that need another one, through others too.

        :param name: the normalized name of the distribution that is needed.
        """
        return _reached(name, lambda item: self._users.get(item, ()))

    def needed_for(self, name: str) -> frozenset[str]:
        """Return what a distribution needs, through others too, installed or not."""

        def required(item: str) -> Iterable[str]:
            distribution = self.distributions.get(item)
            return () if distribution is None else distribution.required

        return _reached(name, required)

    def is_required(self, name: str) -> bool:
        """Return whether any distribution needs another one."""
        return name in self._users

    @cached_property
    def _users(self) -> Mapping[str, list[str]]:
        """The distributions that require each project themselves."""
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


def _reached(start: str, following: Callable[[str], Iterable[str]]) -> frozenset[str]:
    """Return what is reached from ``start``, which does not count by itself."""
    reached: set[str] = set()
    waiting = [start]
    while waiting:
        for name in following(waiting.pop()):
            if name not in reached:
                reached.add(name)
                waiting.append(name)
    return frozenset(reached)
