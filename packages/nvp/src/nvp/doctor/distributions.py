"""The distributions that are installed in an environment, and what they require."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from packaging.utils import canonicalize_name

from nvidia_variant_provider.strict_json import open_regular

from ..knowledge.builds import PROJECTS
from ..metadata.requirements import parse_requirement
from ..wheels.archive import parse_requires
from .installation import Installation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from packaging.requirements import Requirement


_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
"""A valid name, by the specification of core metadata."""

_FOLDER = re.compile(rf"(?P<name>{_NAME})-(?P<version>[^-]+)\.dist-info")
_OLD_FOLDER = re.compile(r"(?P<name>.+?)-[0-9][^-]*(?:-py[0-9.]+)?\.egg-info")
_LEFT = re.compile(r"~.+\.dist-info")
"""pip gives such a name to what it removes, and leaves it where it is stopped."""

TRITON = ("triton", "triton-windows", "pytorch-triton")
"""The names of distributions with the package ``triton``."""

_LONGEST = 32 * 1024 * 1024
"""The most bytes of METADATA, RECORD and variant.json. The RECORD of the largest
distribution that is known has 4 MB."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedFile:
    """One line of a RECORD.

    :param path: relative to the folder of packages, with ``/``.
    :param digest: such as ``sha256=...``; empty where RECORD has none.
    """

    path: str
    digest: str = ""
    size: int | None = None


@dataclass(frozen=True, kw_only=True)
class Distribution:
    """An installed distribution. Its files are read when they are asked for.

    :param name: the normalized name.
    :param version: as the folder spells it, with the local label.
    :param folder: its ``*.dist-info``.
    """

    name: str
    version: str
    folder: str
    defects: list[str] = field(default_factory=list, compare=False)

    @property
    def root(self) -> str:
        """The folder of packages that it is installed in."""
        return os.path.dirname(self.folder)

    @property
    def title(self) -> str:
        """Such as ``torch 2.15.0``."""
        return f"{self.name} {self.version}"

    @property
    def public_version(self) -> str:
        """The version without the local label, such as ``2.15.0``."""
        return self.version.partition("+")[0]

    @property
    def is_library(self) -> bool:
        """Whether it is one of NVIDIA's libraries, which programs bring with them."""
        return self.name.startswith("nvidia-")

    @cached_property
    def installer(self) -> str:
        """The program that has installed it, such as ``pip`` or ``conda``."""
        return (self.read("INSTALLER") or b"").decode("utf-8", "replace").strip()

    @cached_property
    def metadata(self) -> bytes:
        """The bytes of METADATA; empty where it cannot be read."""
        data = self.read("METADATA") or b""
        if b"Name:" not in data and not self.defects:
            self.defects.append("its METADATA is missing or damaged")
        return data

    @cached_property
    def requires(self) -> tuple[str, ...]:
        """The texts of ``Requires-Dist``."""
        return parse_requires(self.metadata)

    @cached_property
    def required(self) -> frozenset[str]:
        """The normalized names in ``Requires-Dist``, with those of all extras.

        torch requires ``cuda-toolkit[cublas]``, which requires nvidia-cublas for the
        extra alone.
        """
        requirements = map(parse_requirement, self.requires)
        return frozenset(
            canonicalize_name(item.name) for item in requirements if item is not None
        )

    @cached_property
    def variant_json(self) -> bytes | None:
        """The bytes of variant.json; ``None`` for an ordinary wheel."""
        return self.read("variant.json")

    @cached_property
    def record(self) -> bytes | None:
        """The bytes of RECORD; ``None`` where it is missing."""
        return self.read("RECORD")

    @cached_property
    def files(self) -> tuple[RecordedFile, ...]:
        """The files that RECORD lists; empty where it is missing or malformed."""
        text = (self.record or b"").decode("utf-8", "replace")
        try:
            return tuple(_parse_record(text.splitlines()))
        except csv.Error as error:
            self.defects.append(f"its RECORD cannot be read: {error}")
            return ()

    def locate(self, path: str) -> str:
        """Return where a file of RECORD is."""
        return os.path.normpath(os.path.join(self.root, *path.split("/")))

    def read(self, name: str) -> bytes | None:
        """Read a file of ``*.dist-info``; ``None`` where that is not possible."""
        path = os.path.join(self.folder, name)
        try:
            with open_regular(path) as file:
                data = file.read(_LONGEST + 1)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else None
            self.defects.append(f"its {name} cannot be read: {reason or error}")
            return None
        if len(data) > _LONGEST:
            self.defects.append(f"its {name} is larger than {_LONGEST >> 20} MiB")
            return None
        return data


def find_distributions(folders: Iterable[str]) -> Mapping[str, Distribution]:
    """Return the distributions in some folders of packages, by normalized name.

    Of two distributions of one name, Python imports the one in the earlier folder.
    """
    distributions: dict[str, Distribution] = {}
    for folder in folders:
        try:
            names = sorted(os.listdir(folder))
        except OSError:
            continue
        for name in names:
            match = _FOLDER.fullmatch(name)
            if match is None:
                continue
            project = canonicalize_name(match["name"])
            distributions.setdefault(
                project,
                Distribution(
                    name=project,
                    version=match["version"],
                    folder=os.path.join(folder, name),
                ),
            )
    return dict(sorted(distributions.items()))


def find_triton(distributions: Mapping[str, Distribution]) -> Distribution | None:
    """Return the distribution that has the package ``triton``."""
    return next(filter(None, map(distributions.get, TRITON)), None)


def find_leftovers(folders: Iterable[str]) -> Iterator[str]:
    """Yield a sentence for each folder that says nothing about what is installed."""
    for folder in folders:
        try:
            names = sorted(os.listdir(folder))
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


def _parse_record(lines: Iterable[str]) -> Iterable[RecordedFile]:
    for row in csv.reader(lines):
        if not row or not row[0]:
            continue
        digest = row[1] if len(row) > 1 else ""
        size = row[2] if len(row) > 2 else ""
        yield RecordedFile(
            path=row[0].replace("\\", "/"),
            digest=digest,
            size=int(size) if size.isascii() and size.isdigit() else None,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Need:
    """One requirement of an installed distribution that holds here.

    :param user: the distribution that has the requirement.
    :param text: the requirement without its marker, such as ``triton==3.9.0``.
    """

    user: Distribution
    name: str
    text: str
    requirement: Requirement

    def allows(self, version: str) -> bool:
        """Return whether a version satisfies it; one that is malformed does not."""
        # PEP 440: "Local version identifiers are ignored" where the specifier has none.
        return self.requirement.specifier.contains(version, prereleases=True)


def find_needs(
    distributions: Mapping[str, Distribution], installation: Installation
) -> Iterator[Need]:
    """Yield the requirements that hold for an environment.

    Requirements of extras count where another installed distribution asks for the
    extra, such as torch for ``cuda-toolkit[cublas]``.
    """
    variables = installation.marker_variables()
    extras: dict[str, set[str]] = {name: {""} for name in distributions}
    waiting = list(distributions)
    seen: set[tuple[str, str, str]] = set()
    parsed: dict[str, list[Requirement]] = {}
    while waiting:
        user = distributions[waiting.pop()]
        if user.name not in parsed:
            parsed[user.name] = [
                item for text in user.requires if (item := parse_requirement(text))
            ]
        for requirement in parsed[user.name]:
            active = extras[user.name]
            if not any(holds(requirement, {**variables, "extra": e}) for e in active):
                continue
            name = canonicalize_name(requirement.name)
            text = f"{requirement.name}{requirement.specifier}"
            key = (user.name, name, text)
            if key not in seen:
                seen.add(key)
                yield Need(user=user, name=name, text=text, requirement=requirement)
            wanted = {canonicalize_name(extra) for extra in requirement.extras}
            if name in extras and not wanted <= extras[name]:
                extras[name] |= wanted
                waiting.append(name)


def holds(requirement: Requirement, variables: Mapping[str, str]) -> bool:
    """Return whether the marker of a requirement holds, or there is none."""
    if requirement.marker is None:
        return True
    try:
        return requirement.marker.evaluate(dict(variables))
    except (ValueError, RecursionError):
        return False
