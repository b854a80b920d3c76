"""What the files of a page tell: their names, and the builds to choose from."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from urllib.parse import unquote, urlsplit

from packaging.utils import canonicalize_name
from packaging.version import Version
from simple_repository import model
from simple_repository.components.core import SimpleRepository

from ...builds.needs import (
    Backend,
    needs_of_backend,
    parse_backend,
)
from ...builds.page import ANY_PYTHON, RUNNING, SHOW, Build, Visibility
from ...builds.verdicts import UNKNOWN, Judgement
from ...knowledge.builds import PROJECTS, Needs, find_record
from ...metadata.requirements import Work, parse_requirement
from ...wheels.archive import (
    expands_too_far,
    is_for_platform,
    parse_versions,
    platform_of,
    release_of,
    release_of_sdist,
)
from ..http.kept_keys import is_yanked
from .indexes import is_vendor
from .options import Takers, Target, find_pythons, takers_of

SMALLEST = 1_000_000
"""The minimum size in bytes of a wheel that may contain GPU code."""

_EARLY = re.compile("[^-]*-[^-+]*[A-Za-z]")  # a wheel whose version has letters


@dataclass(frozen=True, kw_only=True, slots=True)
class OrdinaryWheel:
    """A regular wheel of a page, with its parsed name.

    :param version: the version with the local version label.
    :param release: the version without that label.
    :param platform: ``linux_x86_64``, ``linux_aarch64``, ``win_amd64``, or ``None`` for
        any platform, and for platforms without NVIDIA GPUs.
    :param backend: the backend from the label or, for a platform wheel without a label,
        from the directory of the index.
    """

    file: model.File
    version: Version
    release: Version
    platform: str | None
    backend: Backend | None

    @property
    def is_foreign(self) -> bool:
        """Whether the wheel's label is for hardware of another vendor."""
        return self.backend is not None and self.backend.is_foreign

    def judged(self, judgement: Judgement, takers: Takers) -> Build:
        """Return the wheel as a build."""
        return Build(
            file=self.file.filename,
            version=self.version,
            backend=self.backend,
            platform=self.platform,
            judgement=judgement,
            pythons=takers.pythons,
            is_sure=takers.is_sure,
            withdrawn=is_yanked(self.file),
        )


def find_known_needs(project: str, wheel: OrdinaryWheel) -> Needs | None:
    """Return the GPU requirements of a wheel from the table, or else from its label."""
    name = wheel.file.filename
    platform = "any" if name.endswith("-any.whl") else wheel.platform
    if platform is not None:
        record = find_record(
            canonicalize_name(project),
            wheel.version,
            platform,
            file_name=name,
            sha256=wheel.file.hashes.get("sha256"),
        )
        if record is not None:
            return record.needs
    return needs_of_backend(wheel.backend)


def find_wheels(
    files: Iterable[model.File],
    project: str,
    folder_of: Callable[[model.File], Backend | None] = lambda _: None,
) -> list[OrdinaryWheel]:
    """Return the wheels of a page that have no variant label.

    Pages may have ten thousand files, so names are only split at dashes, and each
    version is parsed once. Files with malformed names are skipped.
    """
    wheels = []
    for file in files:
        name = file.filename
        parts = name.split("-")
        # PEP 427: a build tag starts with a digit. PEP 825: a Python tag does not.
        has_build = len(parts) > 5 and parts[2][:1].isdigit()
        if len(parts) != 5 + has_build or not name.endswith(".whl"):
            continue
        versions = parse_versions(parts[1])
        if versions is None or _normalized(parts[0]) != project:
            continue
        version, release = versions
        platform = platform_of(parts[-1])
        backend = parse_backend(version.local)
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
) -> Mapping[tuple[str, str], Takers]:
    """Find the wheels that an installer could select if all of them ran.

    pip selects a pre-release if there is no other release. A release with only a tiny
    wheel is ignored, because it may only reserve the name of the project.

    :param target: the target of the installation; ``None`` means every Python.
    :returns: the clients that can use each wheel, keyed by file name and URL: another
        index may list a file of the same name, which nobody can install.
    """
    has_builds = any(wheel.platform is not None for wheel in wheels)
    find = find_pythons_of(target)
    found: list[tuple[OrdinaryWheel, Takers]] = []
    for wheel in wheels:
        if wheel.platform is None and has_builds and not is_large(wheel.file):
            continue
        if not is_yanked(wheel.file) and (pythons := find(wheel)):
            found.append((wheel, takers_of(wheel.file, pythons, target)))
    final = [item for item in found if not item[0].release.is_prerelease]
    newest = max({wheel.release for wheel, _ in final or found}, default=None)
    # An old wheel without an upper limit does not show support for a newer Python.
    some = [(wheel.release, its.pythons) for wheel, its in final or found]
    last = max((max(p) for r, p in some if r == newest or len(p) == 1), default=0)
    every = early = frozenset(range(last + 1))
    if not (target and target.pre):
        early = every.difference(*(its.pythons for _, its in final if its.is_sure))
    return {
        (wheel.file.filename, wheel.file.url): its._replace(pythons=kept)
        for wheel, its in found
        if (kept := its.pythons & (early if wheel.release.is_prerelease else every))
    }


def builds_for(builds: Iterable[Build], platform: str) -> list[Build]:
    """Return the builds for a platform or any platform.

    A release with only wheels for others, such as macOS, cannot be installed there.
    """
    found = [x for x in builds if is_for_platform(x.file.rpartition("-")[2], platform)]
    if not all(build.is_silent for build in found):
        return found
    # A final release may only reserve the name of a project of another index, so it
    # does not count as what is left for a Python.
    return [
        replace(x, pythons=ANY_PYTHON)
        if x.pythons and not x.release.is_prerelease
        else x
        for x in found
    ]


def has_plain(files: Iterable[model.File], project: str, target: Target | None) -> bool:
    """Return whether the installer can take a final release on a machine of any kind.

    :param target: the target of the installation; without one, each version of Python
        must have a wheel, because the user may allow no sources.
    """
    find = find_pythons_of(target)
    every = (target.find_pythons if target else find_pythons)("py3-none-any", None)
    plain = [x for x in files if "+" not in x.filename and not is_yanked(x)]
    wheels = find_wheels((x for x in plain if x.filename.endswith("-any.whl")), project)
    takers = ((x.release, takers_of(x.file, find(x), target)) for x in wheels)
    releases = [release for release, its in takers if its == Takers(every)]
    if target is not None:
        sources = (x for x in plain if target.takes_sources(project, x.requires_python))
        found = (release_of_sdist(x.filename, project) for x in sources)
        releases += filter(None, found)
    return any(not release.is_prerelease for release in releases)


def find_kept(
    files: Iterable[model.File], builds: Sequence[Build], project: str
) -> list[model.File]:
    """Return the files of another index that may be left instead of builds.

    A small file that is older than the builds of the index may only reserve the name
    of the project, as a page without builds may.
    """
    some = [build for build in builds if build.pythons and not build.is_silent]
    newest = max((build.release for build in some), default=None)
    if newest is None:
        return []
    return [
        file
        for file in files
        if (file.size or 0) >= SMALLEST
        or ((release := release_of(file.filename, project)) and release >= newest)
    ]


def find_early(
    files: Iterable[model.File], project: str, target: Target | None
) -> dict[frozenset[int], set[str]]:
    """Find the wheels of pre-releases by the versions of Python that can use them."""
    find = find_pythons_of(target)
    early: dict[frozenset[int], set[str]] = {}
    named = (x for x in files if _EARLY.match(x.filename) and not is_yanked(x))
    for wheel in find_wheels(named, project):
        if wheel.release.is_prerelease and (pythons := find(wheel)):
            early.setdefault(pythons, set()).add(wheel.file.filename)
    return early


def find_pythons_of(target: Target | None) -> Callable[[OrdinaryWheel], frozenset[int]]:
    """Return a function that finds the versions of Python that can use a wheel."""
    # Cache results, because a page has thousands of wheels with the same tags.
    find = cache(target.find_pythons if target else find_pythons)

    def find_for(wheel: OrdinaryWheel) -> frozenset[int]:
        tags = "-".join(wheel.file.filename[:-4].rsplit("-", 3)[1:])
        is_short = not expands_too_far(tags)
        return find(tags, wheel.file.requires_python) if is_short else frozenset()

    return find_for


def find_candidates(
    index: SimpleRepository | None,
    every: Mapping[SimpleRepository, Sequence[Build]],
    named: Collection[str],
    label: str | None,
    target: Target | None,
) -> tuple[list[Build], list[Build]]:
    """Find the builds to choose from, and those of an index that come after them.

    The user's own indexes take precedence over the indexes of vendors. A pre-release is
    only for Pythons without a final release on any index, unless the user wants it.

    :param every: the builds of a project on each index.
    :param named: the local version labels that the user pinned.
    :param label: the label that the user requested, if a build has the label.
    """
    running: dict[Version, frozenset[int]] = {}
    final = none = frozenset[int]()
    own = [x for one, builds in every.items() if not is_vendor(one) for x in builds]
    for build in own if label is None else [x for x in own if x.has_label(label)]:
        if build.judgement.verdict in RUNNING and not build.withdrawn:
            running[build.release] = running.get(build.release, none) | build.able
    if not (target and target.pre):
        each = [x for builds in every.values() for x in builds if not x.withdrawn]
        sure = [x for x in each if x.is_sure and not x.release.is_prerelease]
        final = final.union(*(x.pythons for x in sure))
    candidates, late = list[Build](), list[Build]()
    for number, (one, builds) in enumerate(every.items()):
        for build in builds:
            before = running.get(build.release)
            is_last = before is not None and build.pythons <= before
            if is_vendor(one) and is_last and build.version.local not in named:
                late += [build] if one is index else []
                continue
            pythons = build.pythons - (final if build.release.is_prerelease else none)
            if one is not index and not pythons:
                continue  # nobody can install the build instead of one of this index
            # Different files on two indexes may have the same name.
            other = None if one is index else number
            file = build.file if one is index else f"{number}/{build.file}"
            candidates.append(replace(build, file=file, index=other, pythons=pythons))
    return candidates, late


def find_withdrawn(files: Iterable[model.File], project: str) -> frozenset[Version]:
    """Find the releases with a file that its index yanked."""
    found = (release_of(x.filename, project) for x in files if is_yanked(x))
    return frozenset(filter(None, found))


def find_exposed(
    files: Mapping[str, Visibility],
    releases: Mapping[str, Version],
    withdrawn: Set[Version],
    builds: Sequence[Build],
) -> dict[str, Visibility]:
    """Return the files that may not be yanked or hidden, with their visibility.

    Installers take a file that its index yanked only if a pin fits no other file, and
    pip takes a pre-release only if no final release fits. Which files fit depends on
    the installer, so the rules are the same for every platform and Python.

    :param releases: the releases of all files on all indexes of the user.
    :param withdrawn: the releases with a file that its index yanked.
    :param builds: the builds of the page. A build of a release that has been withdrawn
        is shown with all newer ones where it would be the newest one.
    """
    left, least = frozenset[int](), None
    for build in sorted(builds, key=lambda build: build.version, reverse=True):
        if files.get(build.file, SHOW).action == "show":
            left |= build.pythons
        elif build.release in withdrawn and build.pythons - left:
            least = build.release
    newer = {x.release for x in builds if least is not None and x.release >= least}
    exposed = newer.union(withdrawn)
    early = any(release.is_prerelease for release in releases.values())
    changed: dict[str, Visibility] = {}
    for file in files.keys() & releases.keys():
        each, release = files[file], releases[file]
        if release in exposed:
            changed[file] = SHOW
        elif early and each.action == "hide" and not release.is_prerelease:
            changed[file] = replace(each, action="yank")
    return changed


def find_verdicts(
    builds: Sequence[Build], shown: Mapping[str, Visibility], platform: str
) -> dict[Version, list[Judgement]]:
    """Find the verdicts on the builds that an installer may take, by release.

    :param shown: the visibility of each build.
    """
    verdicts: dict[Version, dict[Judgement, frozenset[int]]]
    verdicts = {build.release: {} for build in builds}
    for build in builds:
        foreign = build.backend is not None and build.backend.is_foreign
        is_ours = build.platform == platform or build.file.endswith("-any.whl")
        if is_ours and build.able and not foreign:
            judgement, each = build.judgement, shown[build.file]
            if judgement.verdict == "cpu" and each.action != "show":
                # Refuse hidden builds, which an exact pin would allow.
                reasons = (each.reason,)
                judgement = replace(judgement, verdict="cannot", reasons=reasons)
            judgement = replace(judgement, pythons=None)
            before = verdicts[build.release].get(judgement, frozenset())
            verdicts[build.release][judgement] = before | build.able
    # Keep equal verdicts once: a release may have thousands of builds.
    return {
        release: [replace(x, pythons=pythons) for x, pythons in each.items()]
        for release, each in verdicts.items()
    }


def without_exposed(
    verdicts: Mapping[Version, Sequence[Judgement]],
    builds: Sequence[Build],
    shown: Mapping[str, Visibility],
    withdrawn: Set[Version],
) -> dict[Version, Sequence[Judgement]]:
    """Return verdicts without those on releases whose builds are all shown.

    Nothing is known of such a release if only some of its builds run.

    :param builds: as for `find_verdicts`, like ``shown``.
    :param withdrawn: as for `find_exposed`.
    """
    releases = {build.file: build.release for build in builds}
    found = find_exposed(shown, releases, withdrawn, builds)
    exposed = {
        releases[file]
        for file, each in found.items()
        if each == SHOW and shown[file] != SHOW
    }
    return {
        release: [UNKNOWN]
        if release in exposed and any(x.verdict != "cannot" for x in each)
        else each
        for release, each in verdicts.items()
    }


def find_allowed(
    work: Work, requirement: str, judged: Mapping[Version, Sequence[Judgement]] | None
) -> list[Judgement]:
    """Return the verdicts on the releases that a requirement allows.

    A release of which an installer may take no build counts as unknown.
    """
    parsed = parse_requirement(requirement)
    if not (parsed and judged and work.parses(parsed.specifier, len(judged))):
        return []
    found = parsed.specifier.filter(judged, prereleases=True)
    return [each for version in found for each in judged[version] or [UNKNOWN]]


def folder_of_file(file: model.File, backend: Backend | None) -> Backend | None:
    """Return the backend of the index directory that lists a large file, if any.

    The directory for a backend also has copies of files that are the same for every
    backend, so the file's own URL must also contain the backend.
    """
    if backend is None or not is_large(file):
        return None
    words = re.split(r"[/-]", unquote(urlsplit(file.url).path).lower())
    return backend if backend.label.lower() in words else None


def may_be_build(file_name: str) -> bool:
    """Return whether a file may be a build, judging by its name.

    A build has a local version label, or its project is in the table of builds.
    """
    if not file_name.endswith(".whl"):
        return False
    project, _, rest = file_name.partition("-")
    return "+" in rest or _normalized(project) in PROJECTS


def is_large(file: model.File) -> bool:
    """Return whether a wheel is large enough to contain GPU code.

    Pages in HTML have no sizes, so a wheel of unknown size may contain GPU code.
    """
    return (file.size or SMALLEST) >= SMALLEST


_normalized = lru_cache(maxsize=1024)(canonicalize_name)
