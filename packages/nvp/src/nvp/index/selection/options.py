"""What builds are selected for, and which builds the user insists on."""

from __future__ import annotations

import asyncio
import logging
import sysconfig
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
from typing import Any, Generic, TypeVar

from nvidia_variant_provider import detection
from nvidia_variant_provider.errors import UsageError, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet

    from nvidia_variant_provider.machine.environment import Environment
    from nvidia_variant_provider.resolution.inputs import Priorities

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Later(Generic[T]):
    """Finds a value out once, when it is first asked for.

    A driver takes a moment to answer, and most pages have nothing that depends on it.

    :param find: finds it out; it is called again after a failure.
    """

    def __init__(self, find: Callable[[], T]) -> None:
        self._find = find
        self._found: tuple[()] | tuple[T] = ()
        self._finding = threading.Lock()

    def __call__(self) -> T:
        """Return the value."""
        with self._finding:
            if not self._found:
                self._found = (self._find(),)
            return self._found[0]

    async def soon(self) -> T:
        """Return the value, which a thread finds out."""
        return self._found[0] if self._found else await asyncio.to_thread(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class Pins:
    """The labels that the user wants, whether or not another one fits better.

    :param everywhere: the label for every project that has it.
    :param projects: ``{project: label}``, by normalized name.
    """

    everywhere: str | None = None
    projects: Mapping[str, str] = field(default_factory=dict)

    def get(self, project: str) -> str | None:
        """Return the label for a project, by its normalized name."""
        return self.projects.get(project, self.everywhere)


@lru_cache(maxsize=1024)
def allows_python(requires_python: str | None, version: str) -> bool:
    """Return whether a file is for a version of Python; pip ignores a malformed rule.

    :param requires_python: such as ``>=3.10``.
    :param version: such as ``3.13.9``.
    """
    from packaging.specifiers import SpecifierSet

    try:
        return not requires_python or version in SpecifierSet(requires_python)
    except ValueError:  # `InvalidSpecifier`, or a number that is too long.
        return True


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """What an installer installs for, as pip describes it.

    :param version: that of Python, such as ``3.13.9``.
    :param tags: the tags of the wheels that it takes, the best first, such as
        ``cp313-cp313-manylinux_2_28_x86_64``.
    :param pre: it takes pre-releases.
    :param no_binary: the projects of which it takes no wheel; ``:all:`` is all.
    """

    version: str
    tags: Mapping[str, None] = field(repr=False)
    pre: bool = False
    no_binary: frozenset[str] = frozenset()

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Target:
        """Make it from what the probe of pip returns."""
        return cls(
            version=data["version"],
            tags=dict.fromkeys(data["tags"]),
            pre=data["pre"],
            no_binary=frozenset(data["no_binary"]),
        )

    @property
    def platform(self) -> str | None:
        """The platform, as the table of builds names it, or else by its tag."""
        from ...wheels.archive import platform_of

        best = next(iter(self.tags), "").rpartition("-")[2]
        return platform_of(best) or best or None

    def find_pythons(self, tags: str, requires_python: str | None) -> frozenset[int]:
        """Return the minor version of its Python if it takes a wheel with these tags.

        :param tags: such as ``cp312-cp312-manylinux_2_17_x86_64.manylinux2014_x86_64``.
        """
        parts = (part.split(".") for part in tags.split("-"))
        takes = any(tag in self.tags for tag in map("-".join, product(*parts)))
        if not takes or not allows_python(requires_python, self.version):
            return frozenset()
        return frozenset({int(self.version.split(".")[1])})

    def builds(self, project: str) -> bool:
        """Return whether the user wants a project to be built from its source."""
        return ":all:" in self.no_binary or project in self.no_binary


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """The options of a selection: a new one is added here and nowhere else.

    :param machine: returns the machine that builds are selected for; it is called
        once, when the first variant wheel is seen. The default is this machine.
    :param pins: the labels that the user wants.
    :param named: by project, the local version labels that the user asks for, such as
        ``xpu`` of ``torch==2.10.0+xpu``.
    :param rewrites: the server can send an `EvaluatedWheel`. Without that, a wheel
        whose dependencies depend on the variant is refused.
    :param announces: pages announce METADATA of large wheels (PEP 658), which is read
        on demand, where an index does not.
    :param range_metadata: METADATA may be read out of wheels by ranges, and is not
        verified before an installer gets the wheel.
    :param requires_hashes: the installer accepts only files with the hashes that the
        user gave.
    :param keeps_hashes: the installer records hashes without downloading a wheel whose
        METADATA is announced, as ``pip lock`` does. A wheel that is rewritten on its
        way then has the hash of the original on the page.
    :param pinned: by project, the versions that the user pins exactly.
    :param vendor_indexes: what vendors publish on their own indexes is shown too, of
        releases that do not run from an index of the user.
    :param limits: by project, the versions that the user requires; ``None`` where
        nobody knows what the user requires.
    :param unchecked: show regular wheels as the index does, without asking whether
        they run.
    :param platform: the platform that regular wheels are installed on, such as
        ``linux_x86_64``; by default, that of this machine.
    :param target: what the installer installs for; ``None`` where nobody knows.
    :param several_platforms: the installer may lock for several platforms at once, as
        uv does, so that a release without a build that runs here is yanked for others
        too.
    :param cache: a directory in which METADATA of wheels is kept for a month.
    :param every_gpu: select only builds with code for each GPU of the machine.
    :param priorities: what the user prefers; by default, the user's
        ``variants.toml`` is read when the first variant wheel is seen.
    :param minor_version_compatibility: variants of a newer CUDA of the same major fit
        too; otherwise the variable in ``environ`` decides.
    :param environ: the environment variables that force values or opt in to something,
        such as `os.environ`; by default there are none.
    """

    machine: Callable[[], Environment] | None = None
    pins: Pins = Pins()
    named: Mapping[str, Collection[str]] = field(default_factory=dict)
    rewrites: bool = False
    announces: bool = False
    range_metadata: bool = True
    requires_hashes: bool = False
    keeps_hashes: bool = False
    pinned: Mapping[str, Collection[str]] = field(default_factory=dict)
    vendor_indexes: bool = False
    limits: Mapping[str, SpecifierSet] | None = None
    unchecked: bool = False
    platform: str | None = None
    target: Target | None = None
    several_platforms: bool = False
    cache: str | None = None
    every_gpu: bool = False
    priorities: Priorities | None = None
    minor_version_compatibility: bool | None = None
    environ: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Remember the machine, in copies of the selection as well."""
        find = self.machine
        if isinstance(find, Later):
            return

        def found() -> Environment:
            environment = find() if find else detection.detect(self.environ)
            logger.info("selecting for %s", environment.to_dict())
            return environment

        object.__setattr__(self, "machine", Later(found))

    @property
    def found(self) -> Later[Environment]:
        """Returns the machine."""
        assert isinstance(self.machine, Later)  # noqa: S101  # as it was made
        return self.machine

    @property
    def platform_of_builds(self) -> str:
        """The platform that regular wheels are judged for."""
        of_target = self.target and self.target.platform
        return self.platform or of_target or default_platform()


def default_platform() -> str:
    """Return the platform of this machine, such as ``linux_x86_64``."""
    return sysconfig.get_platform().replace("-", "_")


def parse_pins(texts: Sequence[str]) -> Pins:
    """Parse the values of ``--label``.

    :raises UsageError: a value is not a label.
    """
    if not texts:  # Most runs have none, and the grammar takes a moment to load.
        return Pins()
    from packaging.utils import InvalidName, canonicalize_name

    from nvidia_variant_provider.metadata.fields import GRAMMARS, explain

    everywhere = None
    projects: dict[str, str] = {}
    for text in texts:
        project, equals, label = text.rpartition("=")
        if not GRAMMARS["label"].fullmatch(label):
            message = explain(text, "label")
            raise UsageError(message, path="--label", hint="give one such as cu126")
        if equals:
            try:
                name = canonicalize_name(project.rstrip("="), validate=True)
            except InvalidName:
                message = f"{shown(project)} is not the name of a project"
                hint = "give one such as torch=cu126"
                raise UsageError(message, path="--label", hint=hint) from None
            projects[name] = label
        else:
            everywhere = label
    return Pins(everywhere=everywhere, projects=projects)
