"""Find the distributions that pip installed, and outdated distributions that remain."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from packaging.utils import canonicalize_name
from packaging.version import Version

from nvidia_variant_provider.errors import InputError
from nvidia_variant_provider.machine.environment import CudaVersion
from nvidia_variant_provider.metadata import VariantsMetadata, read_metadata
from nvidia_variant_provider.strict_json import LARGE_BYTES, parse_json, read_bytes

from ...builds.needs import parse_backend
from ...builds.stepping_back import nearest_refusal
from ...builds.vendors import Elsewhere, find_elsewhere, say_source_build
from ...files import read_installed
from ...knowledge.builds import PROJECTS
from ...knowledge.tables import find_vendors
from ...pins.documents import version_of
from ..http.urls import file_name
from ..selection.visibility import PageVerdicts
from ..server.local_index import LocalIndex
from .command import PipCommand

if TYPE_CHECKING:
    from packaging.requirements import Requirement

    from ..selection.options import Selection


@dataclass(frozen=True, kw_only=True, slots=True)
class Installed:
    """A distribution in pip's installation report.

    :param label: the variant label; ``None`` for a non-variant wheel or an sdist.
    :param file: the name of the installed file.
    :param requires: the ``Requires-Dist`` fields.
    :param extras: the ``Provides-Extra`` fields.
    """

    project: str
    version: str
    label: str | None
    file: str = ""
    requires: tuple[str, ...] = ()
    extras: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, object]:
        """Return a JSON object with the keys ``name``, ``version`` and ``label``."""
        return {"name": self.project, "version": self.version, "label": self.label}


@dataclass(frozen=True, kw_only=True, slots=True)
class PipRun:
    """A finished run of pip: its command, its result and the local index.

    :param local_index: the index, which is still serving.
    :param python: the interpreter that pip installs for.
    :param environ: the environment variables of the user.
    :param status: the exit status of pip.
    :param installed: the distributions that pip installed or, in a dry run, would
        install.
    """

    command: PipCommand
    local_index: LocalIndex
    python: str
    environ: Mapping[str, str]
    status: int
    installed: tuple[Installed, ...] = ()

    @property
    def installed_projects(self) -> frozenset[str]:
        """The projects that pip installed."""
        return frozenset(item.project for item in self.installed)

    @property
    def judged(self) -> bool:
        """Whether builds on any of the requested pages were judged."""
        return any(page.visibility.files for page in self.local_index.all_judged())

    def pages(self, project: str) -> list[PageVerdicts]:
        """Return the verdicts on the pages of a project, one page for each index."""
        pages = self.local_index.all_judged()
        return [page for page in pages if page.project == project]


def read_report(path: str | None) -> tuple[Installed, ...]:
    """Read pip's report; return ``()`` if it was printed, or is missing or invalid."""
    if path is None or path == "-":
        return ()
    try:
        report: Any = parse_json(read_bytes(path, limit=LARGE_BYTES), limit=LARGE_BYTES)
        return tuple(map(_installed, report["install"]))
    except (KeyError, TypeError, ValueError):
        return ()


_CUDA = re.compile(r"((?:^|[-_])cu(?:da)?)([0-9]{2})(?=x?(?:$|[-_]))")
"""The CUDA major version in names such as ``cuda13`` and ``cupy-cuda13x``."""


def find_alternatives(run: PipRun, driver: CudaVersion) -> list[str]:
    """Find alternatives to requested extras or projects for the driver's CUDA version.

    jax has the extras ``cuda12`` and ``cuda13``; cupy has a project for each version.

    :returns: names such as ``jax[cuda12]``.
    """
    extras = {item.project: item.extras for item in run.installed}
    names = []
    for asked in run.command.asked:
        other = _CUDA.sub(rf"\g<1>{driver.major}", asked.project)
        if other != asked.project and other in PROJECTS:
            names.append(other)
        for extra in sorted(asked.requirement.extras):
            other = _CUDA.sub(rf"\g<1>{driver.major}", extra)
            if other != extra and other in extras.get(asked.project, ()):
                names.append(f"{asked.project}[{other}]")
    return names


def find_wheels_in(folder: str | None) -> dict[str, Installed]:
    """Return the wheels in a directory of ``pip download``, keyed by file name.

    pip writes no report about downloads. The requirements of the wheels are not read.
    """
    found = {}
    names: list[str] = []
    with suppress(OSError):  # pip creates the directory, or reports the error
        names = os.listdir(folder or "")
    for name in names:
        parts = name.split("-")
        if len(parts) > 4 and name.endswith(".whl"):
            project, version = canonicalize_name(parts[0]), parts[1]
            found[name] = Installed(
                project=project, version=version, label=None, file=name
            )
    return found


def _installed(item: Mapping[str, Any]) -> Installed:
    metadata, url = item["metadata"], str(item["download_info"]["url"])
    return Installed(
        project=canonicalize_name(metadata["name"]),
        version=str(metadata["version"]),
        label=label_of(url),
        file=file_name(url),
        requires=tuple(map(str, metadata.get("requires_dist") or ())),
        extras=tuple(map(str, metadata.get("provides_extra") or ())),
    )


def label_of(url: str) -> str | None:
    """Return the label in a file URL of the local index; ``None`` without a label."""
    parts = urlsplit(url).path.split("/")
    # .../f/{project}/{label}/{mark}/{name}
    if len(parts) < 6 or parts[-5] != "f" or parts[-3] == "-":
        return None
    # In URLs, a label that consists of dots has a dash before it.
    return parts[-3].lstrip("-")


@dataclass(frozen=True, kw_only=True, slots=True)
class InstalledVariant:
    """A distribution that was installed from a variant wheel.

    :param project: the normalized name of the project.
    :param metadata: the content of ``variant.json``, which has a single label.
    """

    project: str
    version: str
    label: str
    metadata: VariantsMetadata


@dataclass(frozen=True, kw_only=True, slots=True)
class StaleVariant:
    """An outdated variant that remains installed.

    :param best: the label to install instead; ``None`` for the non-variant wheel.
    """

    installed: InstalledVariant
    best: str | None

    def to_dict(self) -> dict[str, object]:
        """Return a JSON object with ``name``, ``version``, ``label`` and ``best``."""
        return {
            "name": self.installed.project,
            "version": self.installed.version,
            "label": self.installed.label,
            "best": self.best,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class StaleBuild:
    """An outdated build that remains installed.

    :param best: the requirement to install instead, such as ``torch==2.9.1+cu126``.
    :param reason: why the build is outdated, as a sentence without a period.
    """

    project: str
    version: str
    best: str
    reason: str

    def to_dict(self) -> dict[str, object]:
        """Return a JSON object with ``name``, ``version``, ``best`` and ``reason``."""
        return {
            "name": self.project,
            "version": self.version,
            "best": self.best,
            "reason": self.reason,
        }


def find_installed_variants(paths: Sequence[str]) -> Iterator[InstalledVariant]:
    """Yield the variants that are installed in ``paths``, in Python's search order.

    An unreadable distribution is ignored, because only its installer can fix it.
    """
    for project, version, distribution in _distributions(paths):
        text = _read_variant(distribution)
        with suppress(InputError):
            found = read_metadata((text or "").encode())
            for label in found.variants if len(found.variants) == 1 else ():
                yield InstalledVariant(
                    project=project, version=version, label=label, metadata=found
                )


def find_stale_variants(run: PipRun) -> tuple[StaleVariant, ...]:
    """Find requested projects whose installed variant is not the best one."""
    asked = {item.project for item in run.command.asked if not item.is_constraint}
    asked -= run.installed_projects
    stale = []
    for item in find_installed_variants(_paths(run.command)) if asked else ():
        if item.project not in asked:
            continue
        release = run.local_index.find_shown_releases(item.project).get(item.version)
        if release is None or release.resolution is None:
            continue
        best = release.labels[0] if release.labels else None
        if best != item.label and (best is not None or release.plain):
            stale.append(StaleVariant(installed=item, best=best))
    return tuple(stale)


def find_stale_builds(run: PipRun) -> tuple[StaleBuild, ...]:
    """Find requested projects whose installed build is not the best one.

    Only known GPU projects and versions with a backend are checked, because the check
    may request a page that pip did not need.
    """
    names = {item.project for item in run.command.asked} - run.installed_projects
    stale = []
    paths = _paths(run.command) if names else ()
    for project, text, distribution in _distributions(paths):
        version = version_of(text)
        if project not in names or version is None or _read_variant(distribution):
            continue
        if project not in PROJECTS and parse_backend(version.local) is None:
            continue
        for page in run.local_index.find_judged(project):
            if item := _find_better_build(project, version, page):
                stale.append(item)
                break
    return tuple(stale)


def find_newer_elsewhere(
    run: PipRun,
    selection: Selection,
    requirements: Mapping[str, Sequence[tuple[str, Requirement]]],
) -> tuple[Elsewhere, ...]:
    """Find newer builds of requested projects on indexes of their vendors.

    The indexes are not read. If pip failed, projects with an allowed build that runs
    are left out.

    :param requirements: the result of `find_requirements`.
    """

    def allows(project: str, version: Version) -> bool:
        return all(
            each.specifier.contains(version, prereleases=True)
            for who, each in requirements.get(project, ())
            # Ignore companions such as torchvision, which are upgraded with torch.
            if not any(vendor.leader for vendor in find_vendors(who.partition(" ")[0]))
        )

    taken = {item.project: item.file for item in run.installed}
    torch = _find_torch(run)
    found: list[Elsewhere] = []
    for project in {x.project: 0 for x in run.command.asked if not x.is_constraint}:
        if not find_vendors(project) or (run.status == 0 and project not in taken):
            continue
        builds = [build for page in run.pages(project) for build in page.builds]
        own = [
            build
            for build in builds
            if not build.release.is_prerelease and allows(project, build.release)
        ]
        runs = [
            build.release
            for build in own
            if build.judgement.verdict in ("runs", "partly", "unknown")
            and (run.status or build.file == taken[project])
        ]
        if run.status and runs:
            continue
        newest = max((build.release for build in own), default=None)
        newer = max(runs, default=None)
        found += find_elsewhere(
            project,
            selection.found(),
            selection.platform_of_builds,
            newer_than=None if newer is None else str(newer),
            wanted=None if newest in (None, newer) else str(newest),
            torch=torch,
            beside=found,
            used=[*run.command.indexes, *run.command.find_links],
            allows=allows,
            every_gpu=selection.every_gpu,
        )
    return tuple(found)


def find_sources(run: PipRun) -> tuple[str, ...]:
    """Return sentences on how to build requested projects that have no usable wheel.

    Only projects with builds for torch on an index of their vendor are covered.
    """
    torch = _find_torch(run)
    sentences = []
    for project in {x.project: 0 for x in run.command.asked if not x.is_constraint}:
        pages = run.pages(project)
        wheels = [build for page in pages for build in page.builds]
        taken = any(
            x.project == project and x.file.endswith(".whl") for x in run.installed
        )
        if (
            not pages
            or taken
            or any(
                build.pythons and not build.release.is_prerelease for build in wheels
            )
        ):
            continue
        if not any("torch" in vendor.needs for vendor in find_vendors(project)):
            continue
        local = torch.partition("+")[2] if torch else None
        backend = parse_backend(local or None)
        cuda = backend.cuda if backend else None
        sentences.append(
            f"your indexes have no wheel of {project} for this platform, only its "
            f"source: {say_source_build(project, torch, cuda)}"
        )
    return tuple(sentences)


def _find_torch(run: PipRun) -> str | None:
    """Return the version of torch that pip selected, or else the installed version."""
    taken = (item.version for item in run.installed if item.project == "torch")
    found = (version for _, version, _ in _distributions(_paths(run.command), "torch"))
    return next(taken, None) or next(found, None)


def _paths(command: PipCommand) -> list[str]:
    """Return the directories in which pip installs or replaces distributions."""
    if target := command.options.target_dir:
        return [target]
    return [path for path in command.paths if os.path.isdir(path)]


def _distributions(
    paths: Sequence[str], name: str | None = None
) -> Iterator[tuple[str, str, Distribution]]:
    """Yield the name and version of each project in ``paths``, and its first entry.

    An entry whose METADATA is not UTF-8, or has no name, is ignored.
    """
    seen: set[str] = set()
    for distribution in distributions(name=name, path=list(paths)):
        with suppress(OSError, ValueError):
            metadata = distribution.metadata
            project = canonicalize_name(metadata["Name"] or "")
            if project and project not in seen:
                seen.add(project)
                yield project, metadata["Version"] or "", distribution


def _read_variant(distribution: Distribution) -> str | None:
    """Return the text of ``variant.json``, or ``None``."""
    with suppress(UnicodeDecodeError):
        return read_installed(distribution, "variant.json")
    return None


def _find_better_build(
    project: str, version: Version, page: PageVerdicts
) -> StaleBuild | None:
    visibility = page.visibility
    release = Version(version.public)
    same = [build for build in page.builds if build.version == version]
    backend = parse_backend(version.local)
    refusal = nearest_refusal(same)
    shown = visibility.backends.get(release)
    others = [b for b in page.builds if b.release == release and b.version != version]
    if shown is not None and backend is not None and backend.label != shown.label:
        best = next((b for b in others if b.backend == shown), None)
        if best is not None:
            return StaleBuild(
                project=project,
                version=str(version),
                best=f"{project}=={best.version}",
                reason=f"+{shown.label} is the build of {release} for this machine",
            )
    if refusal is not None and visibility.newest is not None:
        return StaleBuild(
            project=project,
            version=str(version),
            best=f"{project}=={visibility.newest}",
            reason=f"it cannot run here: {refusal[1]}",
        )
    if backend is not None and backend.kind == "cpu":
        for build in others:
            if build.version.local is None and build.judgement.verdict == "runs":
                return StaleBuild(
                    project=project,
                    version=str(version),
                    # The operator == would also allow the installed build.
                    best=f"{project}==={release}",
                    reason=f"the regular build of {release} uses the GPU",
                )
    return None
