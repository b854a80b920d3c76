"""A stack, its checks, their findings, and the commands that fix the findings."""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple, TypeAlias

from nvidia_variant_provider.errors import redacted

from .. import findings
from ..findings import NOTE, Severity
from ..wheels.archive import platform_of
from .abi import (
    Extension,
    TorchSymbols,
    find_extensions,
    libraries_of_extensions,
    read_torch,
)
from .commands import Advice, Command, merge
from .distributions import Distribution
from .loader import LIBRARY_PATH
from .loading import Libraries
from .software import Software
from .toolchain import Toolchain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..builds.vendors import Elsewhere

_INDEXES = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL")


@dataclass(frozen=True, kw_only=True)
class Stack(Software):
    """A machine with its software, including loaded libraries and compilers.

    Each part is computed once, on first access.
    """

    @cached_property
    def libraries(self) -> Libraries:
        """The libraries that programs load with the current ``LD_LIBRARY_PATH``."""
        return Libraries(self, self.environ.get(LIBRARY_PATH, ""))

    @cached_property
    def toolchain(self) -> Toolchain:
        """The compilers and the assemblers that make GPU code for the stack."""
        return Toolchain(self)

    @cached_property
    def torch_symbols(self) -> TorchSymbols | None:
        """The symbols that the installed torch defines; ``None`` if unknown."""
        torch = self.distributions.get("torch")
        return None if torch is None else read_torch(torch, self.reader.folder)

    def elsewhere(
        self, distribution: Distribution, torch: tuple[int, int] | None = None
    ) -> tuple[Elsewhere, ...]:
        """Find builds on vendors' indexes that run and are newer than those on PyPI.

        :param torch: the release of torch that builds must fit, such as ``(2, 8)``.
        """
        from ..builds.vendors import find_elsewhere

        name = distribution.name
        platform = platform_of_wheel(distribution)
        build = self.toolchain.torch if torch else None
        urls = " ".join(self.environ.get(key, "") for key in _INDEXES)
        several = self.has_several_gpus
        return find_elsewhere(
            name,
            self.environment,
            platform,
            newer_than=self.newest_on_pypi(distribution),
            wanted=distribution.public_version,
            torch=f"{torch[0]}.{torch[1]}" if torch else None,
            cuda=build.cuda if build else None,
            used=urls.split(),
            every_gpu=several,
        )

    def newest_on_pypi(self, distribution: Distribution) -> str | None:
        """Return the newest PyPI release in the table that runs on all GPUs, if any."""
        from ..builds.vendors import newest_in_table

        return newest_in_table(
            distribution.name,
            self.environment,
            platform_of_wheel(distribution),
            every_gpu=self.has_several_gpus,
        )

    @cached_property
    def extensions(self) -> tuple[Extension, ...]:
        """The libraries of torch extensions that have undefined symbols."""
        libraries = tuple(libraries_of_extensions(self))
        torch = self.torch_symbols if libraries else None
        return () if torch is None else tuple(find_extensions(libraries, torch))


def platform_of_wheel(distribution: Distribution) -> str:
    """Return the platform of an installed wheel, such as ``win_amd64``."""
    wheel = distribution.read("WHEEL") or b""
    found = re.search(rb"(?m)^Tag: *[^-\s]+-[^-\s]+-(\S+)", wheel)
    tag = found[1].decode("ascii", "replace") if found else ""
    # Outdated tools made wheels without a tag: use the platform of this machine.
    return platform_of(tag) or sysconfig.get_platform().replace("-", "_")


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding(findings.Finding):
    """A problem with a stack.

    :param distribution: the normalized name of the affected distribution.
    :param path: the affected file or directory.
    :param commands: the commands in the hint that fix the problem.
    """

    REPORTED: ClassVar[tuple[str, ...]] = (
        "code",
        "severity",
        "distribution",
        "path",
        "message",
        "hint",
    )
    distribution: str | None = None
    path: str | None = None
    commands: tuple[Command, ...] = ()

    @classmethod
    def of(
        cls,
        *,
        code: str,
        message: str,
        hint: str | Command | Advice,
        distribution: str | None = None,
        path: str | None = None,
        severity: Severity | None = None,
    ) -> Finding:
        """Create a finding of a check.

        :param severity: the severity; by default, the severity of the check.
        """
        advice = Advice.of(hint)
        return cls(
            code=code,
            severity=severity or CHECKS[code].severity,
            message=redacted(findings.shortened(message)),
            hint=advice.text,
            commands=advice.commands,
            distribution=distribution,
            path=path,
        )


def in_order(reported: Iterable[Finding]) -> tuple[Finding, ...]:
    """Sort findings: most severe first, then by code."""
    rank = findings.SEVERITIES.index
    return tuple(sorted(reported, key=lambda item: (rank(item.severity), item.code)))


Find: TypeAlias = Callable[[Stack], Iterable[Finding]]
"""A function that checks a stack, and yields findings."""


class Check(NamedTuple):
    """A check, explained in docs/reference/doctor-checks.md.

    :param severity: the default severity of the findings.
    :param title: the condition for a finding, in one sentence.
    :param find: the check's function; ``None`` if the check needs more than a stack.
    """

    code: str
    severity: Severity
    title: str
    find: Find | None = None


MOST_FINDINGS = 100
"""The maximum number of findings of one check: hints take long to find."""

CHECKS: dict[str, Check] = {}
"""The checks in the modules that have been imported, keyed by code."""


def check(code: str, severity: Severity) -> Callable[[Find], Find]:
    """Declare a function as a check; the first line of its docstring is the title."""

    def declaring(find: Find) -> Find:
        title = (find.__doc__ or "").partition("\n")[0]
        CHECKS[code] = Check(code, severity, title, find)
        return find

    return declaring


def declare(code: str, severity: Severity, title: str) -> None:
    """Declare a check that needs more than a stack, such as a workload."""
    CHECKS[code] = Check(code, severity, title)


def commands_of(findings: Iterable[Finding]) -> list[str]:
    """Return the commands that fix all findings, in the order to run them.

    Commands from findings of severity ``note`` are left out.
    """
    commands = [x for item in findings if item.severity != NOTE for x in item.commands]
    return list(map(str, merge(commands)))
