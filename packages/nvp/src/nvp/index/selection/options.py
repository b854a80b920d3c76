"""The options of a selection, and the labels that the user requests."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import sysconfig
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cache, lru_cache
from itertools import product
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from nvidia_variant_provider import detection
from nvidia_variant_provider.errors import UsageError, shown

from ...builds.needs import parse_backend
from ...metadata.requirements import PLAIN_LIMIT
from ...wheels.archive import parse_versions, platform_of
from ..http.urls import Settings
from .renaming import find_label

TYPE_CHECKING = False
if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet
    from simple_repository import model

    from nvidia_variant_provider.machine.environment import Environment
    from nvidia_variant_provider.resolution.inputs import Priorities

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Later(Generic[T]):
    """A value that is computed once, on first access.

    For example, querying a driver is slow, and most pages do not depend on the machine.

    :param find: computes the value; called again after a failure.
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
        """Return the value; compute it in another thread."""
        return self._found[0] if self._found else await asyncio.to_thread(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class Pins:
    """The labels that the user requested, which take precedence over better labels.

    :param everywhere: the label for every project that has it.
    :param projects: ``{project: label}``, with normalized names.
    """

    everywhere: str | None = None
    projects: Mapping[str, str] = field(default_factory=dict)

    def get(self, project: str) -> str | None:
        """Return the label for a project, given its normalized name."""
        return self.projects.get(project, self.everywhere)


# A page may have 200 different values, each compared with twelve versions, and again;
# the cache keeps their texts.
@lru_cache(maxsize=4096)
def allows_python(requires_python: str | None, version: str) -> bool:
    """Return whether a file supports a version of Python; invalid limits are ignored.

    :param requires_python: such as ``>=3.10``.
    :param version: such as ``3.13.9``.
    """
    from packaging.specifiers import SpecifierSet

    try:
        return not requires_python or version in SpecifierSet(requires_python)
    except ValueError:  # `InvalidSpecifier`, or an overlong number
        return True


def clauses_of(requires_python: str | None) -> frozenset[str]:
    """Return the clauses of a limit of Python, such as ``>=3.10`` and ``<4``.

    Not all installers read a limit of another form, such as ``>=3. 10``. Its only
    clause is its start, because METADATA may have megabytes.
    """
    text = (requires_python or "").strip(" ")
    if PLAIN_LIMIT.fullmatch(text):
        return frozenset(text.replace(" ", "").split(","))
    return frozenset({text[:500]} if text else ())


def find_pythons(tags: str, requires_python: str | None) -> frozenset[int]:
    """Return the minor versions of Python 3 that can use a wheel.

    Versions for which GPU projects no longer publish releases are left out.

    :param tags: such as ``cp312-cp312-manylinux_2_28_x86_64``.
    """
    python, abi, _ = tags.split("-")
    pairs = {f"{one}-{other}" for one in python.split(".") for other in abi.split(".")}
    return frozenset(
        minor
        for minor in range(10, 16)
        if not pairs.isdisjoint(_tags_of(minor))
        and allows_python(requires_python, f"3.{minor}.99")
    )


class Takers(NamedTuple):
    """The clients that could select a wheel if GPUs did not matter.

    :param pythons: the minor versions of Python 3.
    :param is_sure: whether each of these clients on this machine can use the wheel.
    """

    pythons: frozenset[int]
    is_sure: bool = True


NO_TAKERS = Takers(frozenset())

_NAME = re.compile(
    r"\w[\w.]*-[0-9][0-9a-z.]*(?:\+[0-9a-z.]+)?-(?:[0-9]\w*-)?"
    r"[0-9a-z_.]+-[0-9a-z_.]+-(?P<platforms>[0-9a-z_.]+)\.whl",
    re.ASCII,
)
"""The form of names of wheels that all installers read alike."""

# Clauses that leave out a patch release, unless they are about Python 3.9 or older.
_LEAVES_OUT = re.compile(r"!= ?(?!3\.[0-9](?![0-9])|[0-9]+\.[0-9]+\.\*)")


def takers_of(
    file: model.File, pythons: frozenset[int], target: Target | None
) -> Takers:
    """Return the clients that can install a wheel.

    :param pythons: the versions of Python that can use the wheel.
    """
    if target is not None:
        return Takers(pythons)
    limit = (file.requires_python or "").strip(" ")
    is_sure = not limit or bool(PLAIN_LIMIT.fullmatch(limit))
    is_sure = is_sure and not _LEAVES_OUT.search(limit)
    is_sure = is_sure and all(allows_python(limit, f"3.{x}.0") for x in pythons)
    name = _NAME.fullmatch(file.filename)
    return Takers(pythons, is_sure and name is not None and _fits(name["platforms"]))


@lru_cache(maxsize=1024)
def _fits(platforms: str) -> bool:
    """Return whether tags for this platform, if any, fit this machine's glibc."""
    tags = platforms.split(".")
    own = default_platform()
    ours = [tag for tag in tags if platform_of(tag) == own]
    return not ours or "any" in tags or not _own_tags().isdisjoint(ours)


@cache
def _own_tags() -> frozenset[str]:
    from packaging.tags import platform_tags

    return frozenset(platform_tags())


@cache
def _tags_of(minor: int) -> frozenset[str]:
    from packaging.tags import compatible_tags, cpython_tags

    abi = f"cp3{minor}"
    own = cpython_tags((3, minor), [abi], ["any"])
    others = compatible_tags((3, minor), abi, ["any"])
    return frozenset(f"{t.interpreter}-{t.abi}" for t in (*own, *others))


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """The target of an installation, in pip's terms.

    :param version: the version of Python, such as ``3.13.9``.
    :param tags: the supported wheel tags, best first, such as
        ``cp313-cp313-manylinux_2_28_x86_64``.
    :param pre: whether pre-releases are allowed.
    :param no_binary: the projects whose wheels are not allowed; ``:all:`` for all.
    :param only_binary: the projects whose sources are not allowed.
    """

    version: str
    tags: Mapping[str, None] = field(repr=False)
    pre: bool = False
    no_binary: frozenset[str] = frozenset()
    only_binary: frozenset[str] = frozenset()

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Target:
        """Create the target from the reply of pip's probe."""
        return cls(
            version=data["version"],
            tags=dict.fromkeys(data["tags"]),
            pre=data["pre"],
            no_binary=frozenset(data["no_binary"]),
            only_binary=frozenset(data["only_binary"]),
        )

    @property
    def platform(self) -> str | None:
        """The platform as in the table of builds; the tag for other platforms."""
        from ...wheels.archive import platform_of

        best = next(iter(self.tags), "").rpartition("-")[2]
        return platform_of(best) or best or None

    def find_pythons(self, tags: str, requires_python: str | None) -> frozenset[int]:
        """Return the minor versions of Python, at most one, that can use the wheel.

        :param tags: such as ``cp312-cp312-manylinux_2_17_x86_64.manylinux2014_x86_64``.
        """
        parts = (part.split(".") for part in tags.split("-"))
        takes = any(tag in self.tags for tag in map("-".join, product(*parts)))
        if not takes or not allows_python(requires_python, self.version):
            return frozenset()
        return frozenset({int(self.version.split(".")[1])})

    def builds(self, project: str) -> bool:
        """Return whether the user requires a project to be built from source."""
        return _names(self.no_binary, project, self.only_binary)

    def takes_sources(self, project: str, requires_python: str | None) -> bool:
        """Return whether the user lets pip build the source of a project."""
        is_allowed = not _names(self.only_binary, project, self.no_binary)
        return is_allowed and allows_python(requires_python, self.version)


def _names(projects: Set[str], project: str, others: Set[str]) -> bool:
    """Return whether an option of pip applies to a project, unlike its opposite."""
    return project in projects or (":all:" in projects and project not in others)


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """The options of a selection. Add new options only here.

    :param machine: returns the target machine; called once, when a page first depends
        on it. The default is this machine.
    :param pins: the labels that the user requested.
    :param named: the requested local version labels of each project, such as ``xpu``
        for ``torch==2.10.0+xpu``.
    :param rewrites: whether the server can send an `EvaluatedWheel`. Otherwise a wheel
        whose dependencies depend on the variant is rejected.
    :param announces: whether pages announce METADATA (PEP 658) of large wheels if the
        index lacks it. This METADATA is read on demand.
    :param range_metadata: whether to read METADATA by range requests, which is verified
        only when an installer downloads the wheel.
    :param requires_hashes: whether the installer accepts only files with given hashes.
    :param keeps_hashes: whether the installer records hashes without downloading wheels
        with announced METADATA, as ``pip lock`` does. If so, the page gives the hash of
        the original for a rewritten wheel.
    :param pinned: the versions of each project that the user pins exactly.
    :param vendor_indexes: whether to also show builds from vendors' indexes, for
        releases without a runnable build on the user's indexes.
    :param limits: the versions of each project that the user requires; ``None`` if the
        requirements are unknown.
    :param unchecked: show regular wheels unchanged, without judging them.
    :param platform: the target platform of regular wheels, such as ``linux_x86_64``; by
        default, the platform of ``target`` or of this machine.
    :param target: the target of the installation; ``None`` if unknown.
    :param several_platforms: whether the installer may lock for several platforms at
        once, as uv does. If so, a release without a build that runs here is also yanked
        for other platforms.
    :param cache: the cache directory.
    :param every_gpu: select only builds with code for every GPU of the machine.
    :param priorities: the user's priorities; by default, ``variants.toml`` is read when
        the first variant wheel is found.
    :param minor_version_compatibility: accept variants for a newer CUDA of the same
        major version; otherwise the variable in ``environ`` decides.
    :param environ: the environment variables with overrides and opt-ins, such as
        `os.environ`; empty by default.
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
        """Cache the machine, also for copies of the selection."""
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
        """The target machine, which is found on first access."""
        assert isinstance(self.machine, Later)  # noqa: S101  # set by `__post_init__`
        return self.machine

    @property
    def platform_of_builds(self) -> str:
        """The target platform of regular wheels."""
        of_target = self.target and self.target.platform
        return self.platform or of_target or default_platform()


def trusted_cache(cache: str | Path | None, settings: Settings) -> Path | None:
    """Return the directory of the cache for data of servers.

    Not all of the data is verified. If the certificates of some hosts are not checked,
    the data may be from anybody, so only runs that trust the same hosts use it.
    """
    return part_of(Path(cache), settings.trusted_hosts) if cache else None


def part_of(folder: Path, names: Collection[str]) -> Path:
    """Return the part of a cache that only runs with the same names use, if any."""
    if not names:
        return folder
    text = repr(sorted(names)).encode("utf-8", "replace")
    return folder / hashlib.sha256(text).hexdigest()[:16]


def default_platform() -> str:
    """Return the platform of this machine, such as ``linux_x86_64``."""
    return sysconfig.get_platform().replace("-", "_")


def parse_pins(texts: Sequence[str]) -> Pins:
    """Parse the values of ``--label``.

    :raises UsageError: a value is not a label.
    """
    if not texts:  # the usual case: avoid loading the grammar, which is slow
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


def find_labels(names: Iterable[str]) -> frozenset[str]:
    """Return the variant labels and the local version labels of files."""
    return frozenset(label for name in names if (label := _label_of(name)) is not None)


def has_label(name: str, label: str) -> bool:
    """Return whether a wheel has a label that the user requested."""
    own = _label_of(name)
    if own is None or own == label.lower():
        return own is not None
    backend = parse_backend(own) if "+" in name else None
    return backend is not None and backend.base == label.lower()


def _label_of(name: str) -> str | None:
    label = find_label(name)
    if label is not None or "+" not in name or not name.endswith(".whl"):
        return label
    versions = parse_versions(name.split("-", 2)[1])
    return versions[0].local if versions else None
