"""Explain why pip installed certain builds, or found none.

pip itself cannot report the requirements of builds, or why a build is hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version
from simple_repository import model

from nvidia_variant_provider.errors import InputError

from ...builds.needs import Backend, needs_of_name, parse_backend
from ...builds.page import RUNNING, Build, Visibility
from ...builds.releases import newest_for_all, say_lacking
from ...builds.stepping_back import (
    REQUIRED,
    PassedOver,
    find_passed_over,
    nearest_refusal,
    without_source,
)
from ...knowledge.builds import PROJECTS, required_projects
from ...metadata.requirements import Work, holds, parse_requirement
from ...pins.documents import version_of
from ...wheels.archive import parse_wheel_name, without_gpu
from ..selection.kept import given_sha256
from ..selection.options import Pins
from ..selection.shown import ShownPage
from ..selection.visibility import PageVerdicts
from ..server.local_index import LocalIndex
from .command import Asked, find_hashes
from .installed import Installed, PipRun

_MOST = 16
"""The maximum number of projects whose pages are read before pip starts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class InstalledBuild:
    """An installed regular wheel of a project whose builds were judged.

    :param passed_over: the newer releases that were hidden, newest first.
    :param required_by: requirements that allow only this version, or no build that
        runs, as texts such as ``vllm 0.9.2 requires torch==2.7.0``.
    :param cpu_because: why a build without GPU code was installed, if known.
    :param note: why no build of any release uses the GPU, if none does.
    :param brought: whether only another build required the wheel: a build that cannot
        run, or that runs without the wheel's GPU code, as torch does without triton's.
    :param lacking: a sentence on the machine's GPUs for which the wheel has no code.
    :param for_all: the newest release that runs on every GPU, if this release does not.
    """

    project: str
    version: str
    build: Build
    passed_over: tuple[PassedOver, ...] = ()
    required_by: tuple[str, ...] = ()
    cpu_because: str | None = None
    note: str | None = None
    brought: bool = False
    lacking: str | None = None
    for_all: Version | None = None

    def to_dict(self) -> dict[str, object]:
        """Return the JSON object for the report."""
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


def explain_unknown_label(
    asked: Iterable[Asked], pins: Pins, local_index: LocalIndex
) -> str | None:
    """Return a message if the label for all projects belongs to no requested project.

    A backend such as ``cu126`` needs no check, because a project with builds only for
    other backends is hidden. If no requested project has any label, the label may
    belong to a dependency, which is checked at the end of the run.

    :param local_index: the index, which must be serving.
    :returns: ``None`` if pip may run.
    """
    label = pins.everywhere
    if label is None or parse_backend(label) is not None:
        return None
    names = dict.fromkeys(item.project for item in asked if not item.is_constraint)
    for name in list(names)[:_MOST]:
        if name not in pins.projects:
            local_index.find_shown(name)
    labels = local_index.asked_labels()
    known = frozenset[str]().union(*labels.values())
    if label in known or not known:
        return None
    first = next(name for name, its in labels.items() if its)
    has = ", ".join(sorted(labels[first]))
    return (
        f"no project that you name has the label {label}, so pip was not started: "
        f"{first} has {has}; for a dependency, give --label PROJECT={label}"
    )


def explain_builds(run: PipRun) -> tuple[InstalledBuild, ...]:
    """Explain pip's choice of each regular wheel, for projects with judged builds.

    A wheel without evidence of GPU code is left out, unless newer releases were hidden
    or the project is a known GPU project.
    """
    requirements = find_requirements(run)
    steps = _find_steps(run)
    work = Work()
    refused: set[str] = set()
    explained: list[InstalledBuild] = []
    for item in run.installed:
        pages = run.pages(item.project)
        listed = _listed_builds(pages)
        build = next((build for build, _ in listed if build.file == item.file), None)
        if build is None or item.label is not None:
            continue
        own = requirements.get(item.project, ())
        visibility = [page.visibility for page in pages]
        runs_elsewhere = any(each.newest is not None for each in visibility)
        notes = [] if runs_elsewhere else [each.note for each in visibility]
        others = [r for who, r in own if item.project not in steps.get(who, ())]
        passed_over = find_passed_over(listed, build, allows=_allows(others, work))
        is_known = item.project in PROJECTS or needs_of_name(item.project) is not None
        if build.judgement.is_silent and not (passed_over or is_known):
            continue
        if build.judgement.verdict == "cannot":
            refused.add(f"{item.project} {item.version} requires ")
        name = f"{item.project} {item.version}"
        # A set, because a page has many wheels of one version.
        running = {b.version for b, _ in listed if b.judgement.verdict in RUNNING}
        lacking = build.judgement.lacking
        for_all = newest_for_all(each for each, _ in listed) if lacking else None
        explained.append(
            InstalledBuild(
                project=item.project,
                version=item.version,
                build=build,
                passed_over=passed_over,
                required_by=tuple(
                    f"{who}{requirement.name}{requirement.specifier}"
                    for who, requirement in own
                    if _is_exact(requirement)
                    or (running and _excludes(requirement, running, work))
                ),
                cpu_because=_cpu_because(item.project, build, listed),
                note=next(filter(None, notes), None),
                lacking=say_lacking(name, lacking, pages[0].environment, for_all)
                if lacking
                else None,
                for_all=for_all,
            )
        )
    asked = {item.project for item in run.command.asked if not item.is_constraint}

    def is_brought(item: InstalledBuild) -> bool:
        by_table = item.build.judgement.evidence == "table"
        users = {who for who, _ in requirements.get(item.project, ())}
        optional = by_table and item.project not in PROJECTS
        return item.project not in asked and (optional or bool(refused & users))

    return tuple(replace(item, brought=is_brought(item)) for item in explained)


def _find_steps(run: PipRun) -> Mapping[str, set[str]]:
    """Return the dependencies that hold each installed project at an old release.

    `explain_builds` ignores the project's requirements on these dependencies, because
    the dependencies are the cause. The keys have the form ``NAME VERSION requires ``.
    """
    steps: dict[str, set[str]] = {}
    for item in run.installed:
        listed = _listed_builds(run.pages(item.project))
        build = next((build for build, _ in listed if build.file == item.file), None)
        groups = find_passed_over(listed, build) if build else ()
        found = (REQUIRED.match(group.reason) for group in groups)
        steps[f"{item.project} {item.version} requires "] = {m[1] for m in found if m}
    return steps


def _listed_builds(pages: Iterable[PageVerdicts]) -> list[tuple[Build, Visibility]]:
    """Return the judged wheels of all pages, each with its visibility."""
    return [
        (build, each)
        for page in pages
        for build in page.builds
        if (each := page.visibility.files.get(build.file)) is not None
    ]


def find_requirements(run: PipRun) -> Mapping[str, list[tuple[str, Requirement]]]:
    """Map each project to the requirements on it, each as ``(origin, requirement)``."""
    requirements: dict[str, list[tuple[str, Requirement]]] = {}
    for asked in run.command.asked:
        pair = "you asked for ", asked.requirement
        requirements.setdefault(asked.project, []).append(pair)
    for item in run.installed:
        for text in dict.fromkeys(item.requires):
            # The parser is slow, and a wheel may have thousands of extras.
            is_optional = "extra" in text.partition(";")[2]
            requirement = None if is_optional else parse_requirement(text)
            if requirement is not None and holds(requirement, {"extra": ""}):
                project = canonicalize_name(requirement.name)
                pair = f"{item.project} {item.version} requires ", requirement
                requirements.setdefault(project, []).append(pair)
    return requirements


def _allows(
    requirements: Sequence[Requirement], work: Work
) -> Callable[[Version], bool]:
    return lambda release: all(
        work.allows(requirement.specifier, release) for requirement in requirements
    )


def _excludes(
    requirement: Requirement, versions: Collection[Version], work: Work
) -> bool:
    taken = work.parses(requirement.specifier, len(versions))
    return taken and not any(requirement.specifier.filter(versions, prereleases=True))


def _is_exact(requirement: Requirement) -> bool:
    """Return whether a requirement pins a version, so pip also accepts yanked files."""
    return any(item.operator in ("==", "===") for item in requirement.specifier)


def _cpu_because(
    project: str, build: Build, listed: Sequence[tuple[Build, Visibility]]
) -> str | None:
    if build.judgement.verdict != "cpu":
        return None
    same = [other for other, _ in listed if other.release == build.release]
    refusal = nearest_refusal(same)
    if refusal is None:
        # Ignore older releases without evidence.
        verdicts = {
            other.judgement.verdict
            for other, _ in listed
            if other.release >= build.release or other.judgement.verdict != "unknown"
        }
        return without_gpu(project, build.platform) if verdicts == {"cpu"} else None
    other, reason = refusal
    return f"{other.version}: {without_source(reason)}"


def find_mixed(installed: Iterable[Installed]) -> list[str]:
    """Return sentences on builds whose backend differs from a dependency's.

    For example, torchvision for CUDA 12.6 fails at import with torch for CUDA 13.0.
    """
    items = list(installed)
    backends = {
        canonicalize_name(item.project): backend
        for item in items
        if (backend := _backend(item.version)) is not None
    }
    sentences = []
    taken = (item.version for item in items if item.project == "torch")
    torch = version_of(next(taken, ""))
    for item in items:
        own = _backend(item.version)
        if own is None:
            continue
        if own.torch and torch and torch.release[:2] != own.torch:
            sentences.append(
                f"{item.project} {item.version} is a build for torch "
                f"{own.torch[0]}.{own.torch[1]}, and torch {torch} comes with it: they "
                "will not work together"
            )
        for name in required_projects(item.requires, backends):
            other = backends[canonicalize_name(name)]
            if not own.agrees(other) and name != canonicalize_name(item.project):
                sentences.append(
                    f"{item.project} {item.version} is a build for {own.label}, and "
                    f"{name}, which it requires, is one for {other.label}: the index "
                    "has no builds of both for one of them, and they may not work "
                    "together"
                )
    return sentences


def _backend(version: str) -> Backend | None:
    parsed = version_of(version)
    return parse_backend(parsed.local) if parsed else None


def explain_failure(run: PipRun) -> tuple[str, ...]:
    """Return sentences on those causes of a failure that pip itself cannot report."""
    if run.command.requires_hashes:
        # An index that does not respond would take a timeout for each project.
        requested, find_shown = run.local_index.requested, run.local_index.find_shown
        hashes = find_hashes(run.command.asked)
        read = ((name, find_shown(name)) for name in hashes if name in requested)
        pages = takewhile(lambda item: bool(item[1]), read)
        sentences = (explain_hashes(name, hashes[name], shown) for name, shown in pages)
        if found := tuple(filter(None, sentences)):
            return found
    return _explain_platform(run)


def _explain_platform(run: PipRun) -> tuple[str, ...]:
    """Explain that pip evaluates markers for this machine, despite ``--platform``."""
    tags = [word[-1] for word in run.command.words if word[0] == "platforms"]
    sentences = []
    projects = {x.project: None for x in run.command.asked if not x.is_constraint}
    for project in projects if tags else ():
        listed = _listed_builds(run.pages(project))
        shown = [b for b, each in listed if each.action == "show" and b.pythons]
        if not shown:
            continue
        best = max(shown, key=lambda build: build.version)
        if because := _cpu_because(project, best, listed):
            sentences.append(because)
        sentences.append(
            f"{project} {best.version} is the newest shown for {tags[0]}, but pip "
            "reads markers such as platform_system as on this machine, and may look "
            f"for what {project} does not require there; to leave requirements "
            "out: --no-deps"
        )
    return tuple(sentences)


def find_hidden(run: PipRun) -> dict[str, tuple[PassedOver, ...]]:
    """Map each project to its hidden releases, which may have caused the failure."""
    projects: dict[str, list[PageVerdicts]] = {}
    for page in run.local_index.all_judged():
        projects.setdefault(page.project, []).append(page)
    found = {
        project: find_passed_over(_listed_builds(pages), None)
        for project, pages in projects.items()
    }
    return {project: groups for project, groups in found.items() if groups}


def explain_hashes(
    project: str, hashes: Collection[str], pages: Sequence[ShownPage]
) -> str | None:
    """Explain why no build with one of the hashes is shown.

    If the hash of the selected file differs from the given one, pip reports possible
    tampering or no match. Often the hash belongs to a build for another machine.

    :param hashes: the hashes given for the project.
    :param pages: the pages of the project, one for each index that has the project.
    :returns: ``None`` if a matching file is shown, or if no file has any of the hashes.
    """
    for page in pages:
        if any(given_sha256(file) in hashes for file in page.shown):
            return None
    for page in pages:
        for file in page.files:
            if given_sha256(file) in hashes:
                return _explain_hash(project, file, page)
    return None


def _explain_hash(project: str, file: model.File, page: ShownPage) -> str | None:
    try:
        parts = parse_wheel_name(file.filename)
        version = Version(parts.version)
    except (InputError, InvalidVersion):
        return None
    if parts.label is None:
        return _explain_build(project, version, file, page)
    for release in page.releases.values():
        if Version(release.version) != version or parts.label in release.labels:
            continue
        rejected = release.resolution.rejected if release.resolution else {}
        if reasons := rejected.get(parts.label):
            why = f"does not fit this machine: {reasons[0].sentence}"
        elif parts.label in release.unread:
            why = f"is passed over: {release.unread[parts.label]}"
        else:
            why = f"is not shown: {release.problem or 'another one is requested'}"
        others = [offer.wheel.file_name for offer in release.offers]
        others += sorted(release.plain)
        what = f"variant {parts.label} of {project} {release.version}"
        return _sentence(file, what, why, others, page)
    return None


def _explain_build(
    project: str, version: Version, file: model.File, page: ShownPage
) -> str | None:
    if page.judged is None:
        return None
    visibility = page.judged.visibility
    each = visibility.files.get(file.filename)
    if each is None or each.action != "hide":
        return None
    release = Version(version.public)
    others = [
        build.file
        for build in page.judged.builds
        if build.release == release
        and visibility.files.get(build.file, each).action == "show"
    ]
    what = f"{project} {version}"
    why = f"is not for this machine: {each.reason}"
    return _sentence(file, what, why, others, page)


def _sentence(
    file: model.File, what: str, why: str, others: Sequence[str], page: ShownPage
) -> str:
    """Return a sentence on the file with the hash: why it is hidden and what to pin."""
    files = {item.filename: item for item in page.files}
    # Prefer the wheel for the same interpreter and platform.
    tags = file.filename.split("-")[-4:-1] if "-any" not in file.filename else []
    same = [name for name in others if all(tag in name for tag in tags)]
    hashed = (name for name in [*same, *others] if given_sha256(files[name]))
    instead = next(hashed, None)
    end = "no build of this release is for this machine"
    if instead is not None:
        end = f"pin that of {instead}: --hash=sha256:{given_sha256(files[instead])}"
    digest = given_sha256(file) or ""
    return (
        f"the hash sha256:{digest[:12]}... that you give is that of {what} "
        f"({file.filename}), which {why}; {end}"
    )
