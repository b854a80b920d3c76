"""What pip took among ordinary wheels, and why not the newest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import distributions

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from ...builds.backends import parse_backend
from ...builds.page import Build, Decision
from ...builds.passing import (
    PassedOver,
    find_passed_over,
    nearest_refusal,
    without_source,
)
from ...knowledge.builds import PROJECTS
from ...metadata.requirements import parse_requirement
from ..selection.decisions import JudgedPage
from .reports import Installed

__all__ = [
    "FindPages",
    "Kept",
    "Taken",
    "decided_builds",
    "explain_taken",
    "find_kept",
    "is_exact",
    "without_options",
]

FindPages = Callable[[str], Sequence[JudgedPage]]
"""Returns what is known of the page of a project in each index."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Taken:
    """An ordinary wheel that pip took of a project whose builds were judged.

    :param passed_over: the newer releases that were not shown, newest first.
    :param required_by: each requirement that admits this version alone, after the
        name and the version of the project that has it.
    :param cpu_because: why a build without GPU code was taken of this release, where
        that is known.
    :param note: why no build of any release uses the GPU.
    """

    project: str
    version: str
    build: Build
    passed_over: tuple[PassedOver, ...] = ()
    required_by: tuple[str, ...] = ()
    cpu_because: str | None = None
    note: str | None = None

    def to_dict(self) -> dict[str, object]:
        """Return the object of the report."""
        judgement = self.build.judgement
        return {
            "name": self.project,
            "version": self.version,
            "file": self.build.file,
            "cuda": str(judgement.cuda) if judgement.cuda else None,
            "verdict": judgement.verdict,
            "how": judgement.how,
            "evidence": judgement.evidence,
            "reasons": list(judgement.reasons),
            "passed_over": [item.to_dict() for item in self.passed_over],
            "required_by": list(self.required_by),
            "note": self.note,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept:
    """A build that stays installed although another one fits.

    :param best: the requirement that replaces it, such as ``torch==2.9.1+cu126``.
    :param reason: a sentence without a full stop.
    """

    project: str
    version: str
    best: str
    reason: str

    def to_dict(self) -> dict[str, object]:
        """Keys: ``name``, ``version``, ``best``, ``reason``."""
        return {
            "name": self.project,
            "version": self.version,
            "best": self.best,
            "reason": self.reason,
        }


def explain_taken(
    installed: Sequence[Installed], find_pages: FindPages, asked: Iterable[str]
) -> tuple[Taken, ...]:
    """Explain each ordinary wheel that pip took of a project with judged builds.

    A wheel of which nothing is known, of a project without such releases, is left out.

    :param asked: the requirements that the user gave.
    """
    requirements = _requirements(installed, asked)
    taken = []
    for item in installed:
        decided = decided_builds(find_pages(item.project))
        build = next((build for build, _ in decided if build.file == item.file), None)
        if build is None or item.label is not None:
            continue
        wanted = requirements.get(item.project, ())
        decisions = [page.decisions for page in find_pages(item.project)]
        runs_elsewhere = any(decision.newest is not None for decision in decisions)
        notes = [] if runs_elsewhere else [decision.note for decision in decisions]
        passed_over = find_passed_over(
            decided, build, allows=_allows([r for _, r in wanted])
        )
        if build.judgement.verdict == "unknown" and not passed_over:
            continue
        taken.append(
            Taken(
                project=item.project,
                version=item.version,
                build=build,
                passed_over=passed_over,
                required_by=tuple(
                    f"{who}{requirement.name}{requirement.specifier}"
                    for who, requirement in wanted
                    if is_exact(requirement)
                ),
                cpu_because=_cpu_because(build, decided),
                note=next(filter(None, notes), None),
            )
        )
    return tuple(taken)


def find_kept(
    asked: Iterable[str],
    fresh: Iterable[str],
    paths: Sequence[str],
    find_pages: FindPages,
) -> tuple[Kept, ...]:
    """Find what the user asked for and stays installed, although another build fits.

    Only projects that are known to have builds for GPUs are looked up, since a page
    that pip did not need is read for it.

    :param asked: the requirements that the user gave.
    :param fresh: the projects that pip has just installed.
    :param paths: the folders in which pip finds packages.
    """
    names = {
        canonicalize_name(requirement.name)
        for text in asked
        if (requirement := parse_requirement(without_options(text))) is not None
    }
    names -= {*fresh}
    kept = []
    for distribution in distributions(path=list(paths)) if names else ():
        project = canonicalize_name(distribution.metadata["Name"] or "")
        if project not in names:
            continue
        names.discard(project)  # Python imports the first one on the path.
        if distribution.read_text("variant.json") is not None:
            continue
        try:
            version = Version(distribution.version)
        except InvalidVersion:
            continue
        if project not in PROJECTS and parse_backend(version.local) is None:
            continue
        for page in find_pages(project):
            if item := _kept(project, version, page):
                kept.append(item)
                break
    return tuple(kept)


def _kept(project: str, version: Version, page: JudgedPage) -> Kept | None:
    decisions = page.decisions
    release = Version(version.public)
    same = [build for build in page.builds if build.version == version]
    backend = parse_backend(version.local)
    refusal = nearest_refusal(same)
    choice = decisions.chosen.get(release)
    others = [b for b in page.builds if b.release == release and b.version != version]
    if choice is not None and backend is not None and backend.label != choice.label:
        best = next((b for b in others if b.backend == choice), None)
        if best is not None:
            reason = f"+{choice.label} is the build of {release} for this machine"
            text = f"{project}=={best.version}"
            return Kept(project=project, version=str(version), best=text, reason=reason)
    if refusal is not None and decisions.newest is not None:
        return Kept(
            project=project,
            version=str(version),
            best=f"{project}=={decisions.newest}",
            reason=f"it cannot run here: {refusal[1]}",
        )
    if backend is not None and backend.kind == "cpu":
        for build in others:
            if build.version.local is None and build.judgement.verdict == "runs":
                return Kept(
                    project=project,
                    version=str(version),
                    # The operator == would admit what is installed.
                    best=f"{project}==={release}",
                    reason=f"the plain build of {release} uses the GPU",
                )
    return None


def decided_builds(pages: Iterable[JudgedPage]) -> list[tuple[Build, Decision]]:
    """Return the wheels of all indexes, each with what becomes of it."""
    return [
        (build, decision)
        for page in pages
        for build in page.builds
        if (decision := page.decisions.files.get(build.file)) is not None
    ]


def _requirements(
    installed: Iterable[Installed], asked: Iterable[str]
) -> Mapping[str, list[tuple[str, Requirement]]]:
    """Return all requirements by project, each after the words for who has it."""
    texts = [("you asked for ", without_options(text)) for text in asked]
    texts += [
        (f"{item.project} {item.version} requires ", text)
        for item in installed
        for text in item.requires
    ]
    requirements: dict[str, list[tuple[str, Requirement]]] = {}
    for who, text in texts:
        requirement = parse_requirement(text)
        if requirement is not None and _counts(requirement):
            project = canonicalize_name(requirement.name)
            requirements.setdefault(project, []).append((who, requirement))
    return requirements


def without_options(line: str) -> str:
    """Return the requirement in a line of a requirements file."""
    return line.partition("#")[0].partition(" --")[0].rstrip("\\ ")


def _counts(requirement: Requirement) -> bool:
    if requirement.marker is None:
        return True
    try:
        return requirement.marker.evaluate({"extra": ""})
    except ValueError:  # such as one with a variant marker
        return False


def _allows(requirements: Sequence[Requirement]) -> Callable[[Version], bool]:
    return lambda release: all(
        requirement.specifier.contains(release, prereleases=True)
        for requirement in requirements
    )


def is_exact(requirement: Requirement) -> bool:
    """Return whether a requirement pins one version, which admits yanked files."""
    return any(item.operator in ("==", "===") for item in requirement.specifier)


def _cpu_because(build: Build, decided: Sequence[tuple[Build, Decision]]) -> str | None:
    if build.judgement.verdict != "cpu":
        return None
    same = [other for other, _ in decided if other.release == build.release]
    refusal = nearest_refusal(same)
    if refusal is None:
        return None
    other, reason = refusal
    return f"{other.version}: {without_source(reason)}"
