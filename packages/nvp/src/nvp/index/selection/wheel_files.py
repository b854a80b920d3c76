"""What the names of the wheels of a page say: builds, and labels of any kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from email.parser import HeaderParser
from functools import lru_cache

from packaging.utils import (
    InvalidSdistFilename,
    canonicalize_name,
    parse_sdist_filename,
)
from packaging.version import InvalidVersion, Version
from simple_repository import model

from nvidia_variant_provider.errors import InputError, shown

from ...builds.needs import Backend, parse_backend
from ...knowledge.builds import PROJECTS
from ...wheels.archive import platform_of
from .options import Target
from .renaming import find_label

SMALLEST = 1_000_000
"""Bytes of the smallest wheel that is taken for one with GPU code."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OrdinaryWheel:
    """A wheel of a page that is no variant, with what its name says.

    :param version: with the local version label.
    :param release: without it.
    :param platform: ``linux_x86_64``, ``linux_aarch64``, ``win_amd64``, or ``None`` for
        wheels that run anywhere, and on systems without NVIDIA GPUs.
    :param backend: what the label says or, for a wheel for a platform that has none,
        the folder of the index.
    """

    file: model.File
    version: Version
    release: Version
    platform: str | None
    backend: Backend | None


def find_wheels(
    files: Iterable[model.File],
    project: str,
    folder_of: Callable[[model.File], Backend | None] = lambda _: None,
) -> list[OrdinaryWheel]:
    """Return the wheels without a variant label, of all files of a page.

    A page may have ten thousand files, so that names are taken apart at their dashes
    and versions are parsed once. Files with malformed names are left out.
    """
    wheels = []
    for file in files:
        name = file.filename
        parts = name.split("-")
        # PEP 427: a build tag starts with a digit. PEP 825: a Python tag does not.
        has_build = len(parts) > 5 and parts[2][:1].isdigit()
        if len(parts) != 5 + has_build or not name.endswith(".whl"):
            continue
        versions = _versions(parts[1])
        if versions is None or _normalized(parts[0]) != project:
            continue
        version, release = versions
        platform = platform_of(parts[-1])
        backend = _backend(version.local)
        if platform is not None and version.local is None:
            backend = folder_of(file)
        wheels.append(
            OrdinaryWheel(
                file=file,
                version=version,
                release=release,
                platform=platform,
                backend=backend,
            )
        )
    return wheels


def find_installable(
    wheels: Sequence[OrdinaryWheel], target: Target | None
) -> frozenset[str]:
    """Find the names of the wheels that an installer could take if all of them ran.

    pip takes a pre-release where there is nothing else. Many projects have a tiny
    release that does nothing but keep their name.

    :param target: what is installed for; without it, every wheel for Python 3 may be.
    """
    has_builds = any(wheel.platform is not None for wheel in wheels)
    taken = [
        wheel
        for wheel in wheels
        if not wheel.file.yanked
        and (wheel.platform is not None or not has_builds or is_large(wheel.file))
        and (
            "3" in wheel.file.filename.split("-")[-3]
            if target is None
            else target.takes(wheel.file.filename, wheel.file.requires_python)
        )
    ]
    final = [wheel for wheel in taken if not wheel.release.is_prerelease]
    found = final if final and not (target and target.pre) else taken
    return frozenset(wheel.file.filename for wheel in found)


def release_of_sdist(file_name: str) -> Version | None:
    """Return the release of a source distribution; ``None`` for any other file."""
    if not file_name.endswith((".tar.gz", ".zip")):
        return None
    try:
        return parse_sdist_filename(file_name)[1]
    except (InvalidSdistFilename, InvalidVersion):
        return None


def may_be_build(file_name: str) -> bool:
    """Return whether a wheel is a build by what is known without a request.

    It has a local version label, or is of a project of the table of builds.
    """
    if not file_name.endswith(".whl"):
        return False
    project, _, rest = file_name.partition("-")
    return "+" in rest or _normalized(project) in PROJECTS


def is_large(file: model.File) -> bool:
    """Return whether a wheel may hold GPU code by its size.

    Pages in HTML have no sizes; a wheel of unknown size may hold some.
    """
    return (file.size or SMALLEST) >= SMALLEST


def check_metadata(metadata: bytes, project: str, release: Version) -> None:
    """Check that METADATA is that of a release, as pip does before it installs.

    :raises InputError: it is of another project or release, or is no METADATA.
    """
    headers = HeaderParser().parsestr(metadata.decode("utf-8", "replace"))
    name, version = str(headers.get("Name", "")), str(headers.get("Version", ""))
    versions = _versions(version)
    if canonicalize_name(name) != project or versions is None:
        raise InputError(f"it is of {shown(f'{name} {version}')}", hint=_HINT)
    if versions[1] != release:
        raise InputError(f"it is of version {shown(version)}", hint=_HINT)


_HINT = "report it to the index"

_normalized = lru_cache(maxsize=1024)(canonicalize_name)
_backend = lru_cache(maxsize=1024)(parse_backend)


@lru_cache(maxsize=16384)
def _versions(text: str) -> tuple[Version, Version] | None:
    """Parse a version; return it with and without its local version label."""
    try:
        version = Version(text.replace("_", "-"))
    except InvalidVersion:
        return None
    return version, Version(version.public) if version.local else version


def find_labels(names: Iterable[str]) -> frozenset[str]:
    """Return the variant labels and the local version labels of files."""
    return frozenset(label for name in names if (label := _label_of(name)) is not None)


def has_label(name: str, label: str) -> bool:
    """Return whether a wheel is the build that a user asks for by its label."""
    own = _label_of(name)
    if own is None or own == label.lower():
        return own is not None
    backend = _backend(own) if "+" in name else None
    return backend is not None and backend.base == label.lower()


def _label_of(name: str) -> str | None:
    label = find_label(name)
    if label is not None or "+" not in name or not name.endswith(".whl"):
        return label
    versions = _versions(name.split("-", 2)[1])
    return versions[0].local if versions else None
