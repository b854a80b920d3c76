"""Which wheels of a project a census reads."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from nvidia_variant_provider.errors import InputError

from ..index.http.files import IndexFile
from ..wheels.names import WheelName, parse_wheel_name
from .model import Wheel

__all__ = ["Choice", "select_wheels"]


_LARGEST = 2**63 - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """What the user asked for.

    :param releases: how many of the newest releases; ``None`` for all.
    :param platforms: patterns such as ``*linux*x86_64``, of which one has to match a
        platform tag; empty for all.
    :param every_wheel: read each wheel of a release, and not just one for each
        platform and label. Wheels for different Pythons share their GPU code.
    """

    releases: int | None = None
    platforms: Sequence[str] = ()
    every_wheel: bool = False

    def allows(self, platform: str) -> bool:
        """Return whether wheels for a platform are wanted."""
        if not self.platforms:
            return True
        return any(fnmatch.fnmatchcase(platform, p) for p in self.platforms)


def select_wheels(
    project: str, files: Iterable[IndexFile], choice: Choice
) -> Iterator[Wheel]:
    """Yield the wheels to read, the newest release first.

    :param project: the project of the page; files of other projects are left out.
    """
    releases: dict[Version, list[tuple[WheelName, IndexFile]]] = {}
    for file in files:
        if not file.name.endswith(".whl"):
            continue
        try:
            name = parse_wheel_name(file.name)
            version = Version(name.version)
        except (InputError, InvalidVersion):
            continue
        if canonicalize_name(name.name) != canonicalize_name(project):
            continue
        public = Version(version.public)
        releases.setdefault(public, []).append((name, file))
    # The newest releases are the final ones, as installers see them.
    order = sorted(releases, key=lambda v: (not v.is_prerelease, v), reverse=True)
    for version in order[: choice.releases]:
        wheels = _of_release(releases[version], choice)
        yield from sorted(wheels, key=lambda wheel: wheel.filename)


def _of_release(
    files: Sequence[tuple[WheelName, IndexFile]],
    choice: Choice,
) -> Iterator[Wheel]:
    seen: set[tuple[frozenset[str], str | None, str | None]] = set()
    # Of several wheels with the same GPU code the one for the newest Python is read.
    for name, file in sorted(files, key=_newest_python, reverse=True):
        platforms = frozenset(tag.platform for tag in name.tags)
        if not any(map(choice.allows, platforms)):
            continue
        local = Version(name.version).local
        if not choice.every_wheel and (platforms, name.label, local) in seen:
            continue
        seen.add((platforms, name.label, local))
        yield _wheel(name, file)


def _wheel(name: WheelName, file: IndexFile) -> Wheel:
    """Return a file that is named like a wheel as a census knows it."""
    version = Version(name.version)
    stem = file.name.removesuffix(".whl")
    tags = stem.split("-")[-3 - (name.label is not None) :][:3]
    return Wheel(
        project=canonicalize_name(name.name),
        version=str(Version(version.public)),
        label=name.label or version.local,
        filename=file.name,
        tags="-".join(tags),
        url=file.url,
        sha256=file.sha256,
        # A page may say any number; the store has integers of 64 bits.
        size=file.size if 0 <= (file.size or 0) <= _LARGEST else None,
        upload_time=None if file.time is None else _as_text(file.time),
        page=file.page,
    )


def _newest_python(item: tuple[WheelName, IndexFile]) -> tuple[list[int], str]:
    name, file = item
    numbers = [
        int(digits)
        for tag in name.tags
        # cp39 and cp312: the first digit is the major version.
        if (digits := tag.interpreter.lstrip("abcdefghijklmnopqrstuvwxyz")).isdigit()
    ]
    versions = [int(str(n)[0]) * 1000 + int(str(n)[1:] or 0) for n in numbers]
    return sorted(versions, reverse=True), file.name


def _as_text(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat()
