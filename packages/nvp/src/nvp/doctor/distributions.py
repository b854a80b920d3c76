"""The installed distributions of an environment, and their requirements."""

from __future__ import annotations

import csv
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion

from nvidia_variant_provider.errors import InputError
from nvidia_variant_provider.strict_json import open_regular, parse_json

from ..files import path_of
from ..knowledge.builds import PROJECTS
from ..metadata.requirements import holds, parse_requirement
from ..wheels.archive import parse_requires
from .installation import (
    BYTES,
    DISTRIBUTIONS,
    FILES,
    REQUIREMENTS,
    Installation,
    Limits,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import BinaryIO

    from packaging.requirements import Requirement


_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
"""A pattern for valid names, from the specification of core metadata."""

_FOLDER = re.compile(rf"(?P<name>{_NAME})-(?P<version>[^-]+)\.dist-info")
_OLD_FOLDER = re.compile(r"(?P<name>.+?)-[0-9][^-]*(?:-py[0-9.]+)?\.egg-info")
_PROJECT = re.compile(rf"\s*({_NAME})(?![A-Za-z0-9._-])")
_LEFT = re.compile(r"~.+\.dist-info")
"""A pattern for directories that pip has renamed, but not removed."""

BUILT_FOR = PROJECTS | {"jax", "jaxlib", "numpy"}
"""Projects, besides NVIDIA's and Triton, that other builds pin to one release."""

_NAMED = re.compile(r".*-cu(?:da)?[0-9]{2,3}x?(?:-.*)?")


def is_built_for(name: str) -> bool:
    """Return whether other packages are built for exactly one release of a project.

    Names with a CUDA version, such as rmm-cu12, are included, but not ``nvidia-*``.
    """
    own = name in BUILT_FOR or _NAMED.fullmatch(name) is not None
    return own and not name.startswith(_OF_GPUS)


_OF_GPUS = ("nvidia-", "cuda-", "triton", "pytorch-triton")
TRITON = ("triton", "triton-windows", "pytorch-triton")
"""The names of distributions that contain the package ``triton``."""

_LONGEST = {"METADATA": 1 << 20, "RECORD": 16 << 20}
"""The maximum size of each file in bytes. The largest known RECORD has 4 MB. Only the
headers of METADATA are read, which have a few kilobytes."""

_LONGEST_OTHER = 256 << 10
"""The maximum size in bytes of any other file; variant.json has only one variant."""

_PIECE = 64 << 10
_END_OF_HEADERS = re.compile(rb"\n\r?\n")
_SIZE = re.compile("[0-9]{1,18}", re.ASCII)


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedFile:
    """One line of a RECORD.

    :param path: the path relative to the directory of packages, separated by ``/``.
    :param digest: the hash, such as ``sha256=...``; empty if RECORD has none.
    """

    path: str
    digest: str = ""
    size: int | None = None


@dataclass(frozen=True, kw_only=True)
class Distribution:
    """An installed distribution, whose files are read on access.

    :param name: the normalized name.
    :param version: the version as in the name of the directory, with the local label.
    :param folder: the path of its ``*.dist-info``.
    :param limits: the limits on reading, shared by all distributions of an environment.
    """

    name: str
    version: str
    folder: str
    defects: list[str] = field(default_factory=list, compare=False)
    limits: Limits = field(default_factory=Limits, compare=False, repr=False)

    @property
    def root(self) -> str:
        """The directory of packages that contains the distribution."""
        return os.path.dirname(self.folder)

    @property
    def title(self) -> str:
        """The name and the version, such as ``torch 2.15.0``."""
        return f"{self.name} {self.version}"

    @property
    def public_version(self) -> str:
        """The version without the local label, such as ``2.15.0``."""
        return self.version.partition("+")[0]

    @property
    def is_library(self) -> bool:
        """Whether this is an NVIDIA library, which is usually a dependency."""
        return self.name.startswith("nvidia-")

    @cached_property
    def installer(self) -> str:
        """The installing program, such as ``pip`` or ``conda``; empty if unknown."""
        return (self.read("INSTALLER") or b"").decode("utf-8", "replace").strip()

    @cached_property
    def metadata(self) -> bytes:
        """The headers of METADATA; empty if unreadable."""
        data = self.read("METADATA") or b""
        if not self.limits.take(FILES, data.count(b"\n"), of=self.name):
            return b""
        known = self.defects or self.limits.is_used_up(BYTES)
        if b"Name:" not in data and not known:
            self.defects.append("its METADATA is missing or damaged")
        return data

    @cached_property
    def requires(self) -> tuple[tuple[str, str], ...]:
        """The normalized project and the text of each ``Requires-Dist`` field."""
        texts = parse_requires(self.metadata)
        # Text with one wide character takes up to four bytes for each character.
        memory = sum(map(sys.getsizeof, texts))
        if not self.limits.take(BYTES, memory, of=self.name):
            return ()
        return tuple(
            (sys.intern(canonicalize_name(match[1])), text)
            for text in texts
            if (match := _PROJECT.match(text))
        )

    @cached_property
    def required(self) -> frozenset[str]:
        """The normalized names in ``Requires-Dist``, including requirements of extras.

        Extras matter: torch requires ``cuda-toolkit[cublas]``, which requires
        nvidia-cublas only for that extra.
        """
        return frozenset(name for name, _ in self.requires)

    @cached_property
    def variant_json(self) -> bytes | None:
        """The bytes of variant.json; ``None`` for a regular wheel."""
        return self.read("variant.json")

    @cached_property
    def origin(self) -> Mapping[str, object]:
        """The content of direct_url.json (PEP 610); empty for a wheel from an index."""
        try:
            document = parse_json(self.read("direct_url.json") or b"{}")
        except InputError:
            return {}
        return document if isinstance(document, dict) else {}

    @property
    def origin_url(self) -> str:
        """The URL in direct_url.json; empty for a wheel from an index."""
        return str(self.origin.get("url", ""))

    @property
    def is_from_source(self) -> bool:
        """Whether the origin is a directory, a repository or a source archive."""
        is_wheel = self.origin_url.endswith(".whl")
        is_archive = "archive_info" in self.origin and not is_wheel
        return is_archive or "dir_info" in self.origin or "vcs_info" in self.origin

    @cached_property
    def files(self) -> tuple[RecordedFile, ...]:
        """The files in RECORD; empty if it is missing or malformed."""
        data = self.read("RECORD") or b""
        text = data.decode("utf-8", "replace")
        # A wide character makes the text up to four times as long as the file.
        wide = max(0, sys.getsizeof(text) - sys.getsizeof(data))
        if not self.limits.take(BYTES, wide, of=self.name):
            return ()
        try:
            return tuple(self._parse_record(text))
        except csv.Error as error:
            self.defects.append(f"its RECORD cannot be read: {error}")
            return ()

    def _parse_record(self, text: str) -> Iterator[RecordedFile]:
        # Import late, because many callers read only METADATA.
        from ..gpu_code.files import MAX_RECORDED, recorded_rows

        for number, row in enumerate(recorded_rows(text)):
            if number == MAX_RECORDED:
                message = f"only the first {number:,} lines of its RECORD are read"
                self.defects.append(message)
                return
            if not self.limits.take(FILES, of=self.name):
                return
            if not row[0]:
                continue
            size = row[2] if len(row) > 2 else ""
            yield RecordedFile(
                path=row[0].replace("\\", "/"),
                digest=row[1] if len(row) > 1 else "",
                size=int(size) if _SIZE.fullmatch(size) else None,
            )

    def locate(self, path: str) -> str:
        """Return the path of a file in RECORD."""
        return os.path.normpath(os.path.join(self.root, *path.split("/")))

    def read(self, name: str) -> bytes | None:
        """Read a file in ``*.dist-info``; for METADATA, read only the headers.

        :returns: ``None`` if the file is unreadable or too long.
        """
        path = os.path.join(self.folder, name)
        most = _LONGEST.get(name, _LONGEST_OTHER)
        try:
            with open_regular(path) as file:
                # A stranger's link may lead to secrets, which notes would quote. The
                # links that an installer makes lead to files of the same name.
                if os.path.basename(path_of(file.fileno(), path)) != name:
                    self.defects.append(f"its {name} links to a file of another name")
                    return None
                if name == "METADATA":
                    data = _read_headers(file, most)
                else:
                    data = file.read(most + 1)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else None
            self.defects.append(f"its {name} cannot be read: {reason or error}")
            return None
        if len(data) > most:
            self.defects.append(f"its {name} is not read: more than {most >> 10:,} KiB")
            return None
        return data if self.limits.take(BYTES, len(data), of=self.name) else None


def _read_headers(file: BinaryIO, most: int) -> bytes:
    """Read METADATA up to the empty line before the description.

    :param most: the limit in bytes; the result is longer if the headers exceed it.
    """
    data = b""
    while len(data) <= most and (piece := file.read(_PIECE)):
        data += piece
        if end := _END_OF_HEADERS.search(data):
            return data[: end.end()]
    return data


def find_distributions(folders: Iterable[str]) -> Mapping[str, Distribution]:
    """Map normalized names to the distributions in directories of packages.

    If several directories have a distribution, the first is used, as for imports.
    """
    distributions: dict[str, Distribution] = {}
    limits = Limits()
    for folder in folders:
        try:
            names = _sorted_names(folder, _FOLDER)
        except OSError:
            continue
        for name in names:
            match = _FOLDER.fullmatch(name)
            if match is None or not limits.take(DISTRIBUTIONS, of=folder):
                continue
            project = canonicalize_name(match["name"])
            distributions.setdefault(
                project,
                Distribution(
                    name=project,
                    version=match["version"],
                    folder=os.path.join(folder, name),
                    limits=limits,
                ),
            )
    return dict(sorted(distributions.items()))


def _sorted_names(folder: str, *patterns: re.Pattern[str]) -> list[str]:
    """Return the names in a directory that match one of the patterns.

    :raises OSError: the directory cannot be read.
    """
    # A directory may have a million files: keep only the names of interest.
    with os.scandir(folder) as entries:
        names = (item.name for item in entries)
        return sorted(
            name for name in names if any(x.fullmatch(name) for x in patterns)
        )


def find_triton(distributions: Mapping[str, Distribution]) -> Distribution | None:
    """Return the distribution that contains the package ``triton``, if any."""
    return next(filter(None, map(distributions.get, TRITON)), None)


def find_leftovers(folders: Iterable[str]) -> Iterator[str]:
    """Yield a sentence for each unreadable directory, pip leftover and old egg-info."""
    for folder in folders:
        try:
            names = _sorted_names(folder, _LEFT, _OLD_FOLDER)
        except FileNotFoundError:
            continue
        except OSError as error:
            yield f"{folder} cannot be read: {error.strerror or error}"
            continue
        for name in names:
            path = os.path.join(folder, name)
            if _LEFT.fullmatch(name):
                yield f"{path} is what pip has left of an old release: remove it"
            match = _OLD_FOLDER.fullmatch(name)
            if match and canonicalize_name(match["name"]) in PROJECTS:
                yield (
                    f"{path} does not list the files of {match['name']}: they are "
                    "not looked at"
                )


@dataclass(frozen=True, kw_only=True, slots=True)
class Need:
    """A requirement of an installed distribution; its marker, if any, holds.

    :param user: the distribution that has the requirement.
    :param text: the requirement without its marker, such as ``triton==3.9.0``.
    """

    user: Distribution
    name: str
    text: str
    requirement: Requirement

    def allows(self, version: str) -> bool:
        """Return whether a version is allowed; see the function `allows`."""
        return allows(self.requirement, version)

    @property
    def is_exact(self) -> bool:
        """Whether the requirement allows only one version or one series of releases."""
        items = list(self.requirement.specifier)
        exact = any(item.operator in ("==", "===", "~=") for item in items)
        return exact or len(items) > len({item.version for item in items})


def find_needs(
    distributions: Mapping[str, Distribution], installation: Installation
) -> Iterator[Need]:
    """Yield the requirements that apply to an environment and concern GPU code.

    These are requirements on GPU projects, on NVIDIA's projects, and on distributions
    that require such projects directly or indirectly. Other requirements are skipped,
    because parsing them is slow.

    Requirements of an extra are included if another installed distribution requests the
    extra. For example, torch requires ``cuda-toolkit[cublas]``.
    """
    variables = installation.marker_variables()
    leading = _leading(distributions.values())
    extras: dict[str, set[str]] = {name: {""} for name in distributions}
    waiting = [(name, "") for name in distributions if name in leading]
    seen: set[tuple[str, str, str]] = set()
    parsed: dict[str, list[Requirement]] = {}
    while waiting:
        user_name, extra = waiting.pop()
        user = distributions[user_name]
        if user_name not in parsed:
            parsed[user_name] = [*parse_requirements(user, leading.__contains__)]
        for requirement in parsed[user_name]:
            # A requirement without a marker was already yielded, for the empty extra.
            if requirement.marker is None and extra:
                continue
            if not holds(requirement, {**variables, "extra": extra}):
                continue
            name = canonicalize_name(requirement.name)
            text = f"{requirement.name}{requirement.specifier}"
            key = (user_name, name, text)
            if key not in seen:
                seen.add(key)
                yield Need(user=user, name=name, text=text, requirement=requirement)
            wanted = {canonicalize_name(item) for item in requirement.extras}
            if name in extras:
                waiting += [(name, item) for item in sorted(wanted - extras[name])]
                extras[name] |= wanted


def _leading(distributions: Iterable[Distribution]) -> set[str]:
    """Return the names of the required GPU projects and of all their dependents."""
    users: dict[str, list[str]] = {}
    for distribution in distributions:
        for name in distribution.required:
            users.setdefault(name, []).append(distribution.name)
    waiting = [x for x in users if x.startswith(_OF_GPUS) or is_built_for(x)]
    leading = set(waiting)
    while waiting:
        for name in users.get(waiting.pop(), ()):
            if name not in leading:
                leading.add(name)
                waiting.append(name)
    return leading


def parse_requirements(
    user: Distribution, counts: Callable[[str], bool]
) -> Iterator[Requirement]:
    """Yield the requirements of a distribution, without malformed ones.

    :param counts: a function that returns whether to yield requirements on a project.
    """
    for name, text in user.requires:
        if not counts(name):
            continue
        # A parsed requirement takes memory in proportion to its length.
        if not user.limits.take(REQUIREMENTS, 1 + len(text) // 200, of=user.name):
            return
        requirement = parse_requirement(text)
        if requirement is not None:
            yield requirement


def allows(requirement: Requirement, version: str) -> bool:
    """Return whether a version satisfies a requirement; malformed versions never do."""
    # PEP 440: "Local version identifiers are ignored" if the specifier has none.
    try:
        return requirement.specifier.contains(version, prereleases=True)
    except InvalidVersion:  # raised by packaging before 26
        return False
