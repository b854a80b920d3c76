"""Suggest pins that run, in place of pins that cannot run.

Packages that depend on each other's releases, such as vllm, torchvision and torch, must
change together. The search finds the newest compatible releases of such a cluster,
starting with the packages that require the others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from nvidia_variant_provider.machine.environment import Environment

from ..builds.vendors import find_elsewhere, pip_command, say_elsewhere
from ..builds.verdicts import judge
from ..doctor.distributions import TRITON, allows
from ..knowledge.builds import (
    PROJECTS,
    BuildRecord,
    Needs,
    build_records,
    required_projects,
)
from ..metadata.requirements import parse_requirement
from .model import CheckedFile, CheckedPin, CheckReport, Suggestion

FindReleases = Callable[[str, Sequence[Environment]], "Iterable[Version] | None"]
"""A function that returns the installable releases of a project that run on all of the
given machines; ``None`` if unknown."""

_DETECTED = ("nvml", "libcuda")
"""The values of `Environment.source` for this machine without forced values."""

_MOST_STEPS = 20_000
_RUNNING = ("runs", "partly")
_BRINGING = ("torch", "tensorflow")
"""Projects that require exact versions of NVIDIA's libraries and of Triton."""

_CUDA = re.compile(r"(?<=-)(cu|cuda)(1[0-9])(?=x?(?:-|$))")


class _Candidate(NamedTuple):
    name: str
    version: Version
    requires: Sequence[Requirement]

    @property
    def line(self) -> str:
        """The release as a line of a requirements file."""
        return f"{self.name}=={self.version}"


def suggest(
    report: CheckReport,
    find_releases: FindReleases = lambda *_: None,
    platforms: Sequence[str] = (),
) -> CheckReport:
    """Return the report with replacements for pins that cannot run.

    :param find_releases: a function that reads the user's indexes; by default, only the
        table of builds is used.
    :param platforms: the user's platform tags, for the commands in comments.
    """
    found: list[Suggestion] = []
    for file in report.files:
        numbers = [
            number
            for number in report.left_out(file)
            if report.machines[number].environment.cuda_driver_version is not None
        ]
        if not numbers:
            continue
        known = [n for n, group in enumerate(report.machines) if group.is_known]
        waiting = _broken(file, numbers)
        # Try all machines, then all on which a pin cannot run, then each of these.
        for tried in ([known], [numbers], [[number] for number in numbers]):
            solved: set[str] = set()
            for attempt in tried:
                broken = _broken(file, set(attempt).intersection(numbers))
                for cluster in _clusters(file, broken):
                    names = {item.pin.name for item in cluster} & waiting.keys()
                    if not names:
                        continue
                    each = _solve(
                        report,
                        file,
                        cluster,
                        attempt,
                        find_releases,
                        platforms=platforms,
                    )
                    if each is not None:
                        found.append(each)
                        solved |= names
            waiting = {name: x for name, x in waiting.items() if name not in solved}
        found += [_nothing(report, file, item, numbers) for item in waiting.values()]
    merged: dict[tuple[object, ...], Suggestion] = {}
    for each in found:
        key = each.path, each.name, each.lines
        machines = each.machines
        if key in merged:
            machines = (*merged[key].machines, *machines)
        merged[key] = replace(each, machines=machines)
    return replace(report, suggestions=tuple(merged.values()))


def _broken(file: CheckedFile, numbers: Iterable[int]) -> dict[str, CheckedPin]:
    """Return the pins that cannot run; NVIDIA libraries only if no program fails."""
    found = {
        item.pin.name: item
        for number in numbers
        for item in file.counting(number)
        if item.judgements[number].verdict == "cannot"
    }
    programs = {name: x for name, x in found.items() if not x.known.is_library}
    return programs or found


def _clusters(
    file: CheckedFile, broken: Mapping[str, CheckedPin]
) -> list[list[CheckedPin]]:
    """Group pins that cannot run with their dependencies and dependents."""
    pins = {item.pin.name: item for item in file.pins} | dict(broken)
    near: dict[str, set[str]] = {name: set() for name in pins}
    for name in pins:
        for other in _related(name) & pins.keys():
            near[name].add(other)
            near[other].add(name)
    clusters: list[list[CheckedPin]] = []
    seen: set[str] = set()
    for start in broken:
        if start in seen:
            continue
        members, waiting = [start], [start]
        while waiting:
            new = sorted(near[waiting.pop()].difference(members))
            members += new
            waiting += new
        seen.update(members)
        clusters.append([pins[name] for name in members])
    return clusters


@cache
def _related(name: str) -> frozenset[str]:
    """Return the projects with GPU builds that any release of a project requires."""
    texts = [x for row in build_records().get(name, ()) for x in row.needs.requires]
    return frozenset(required_projects(texts, PROJECTS - {name}))


def _solve(
    report: CheckReport,
    file: CheckedFile,
    cluster: Sequence[CheckedPin],
    numbers: Sequence[int],
    find_releases: FindReleases,
    *,
    platforms: Sequence[str],
) -> Suggestion | None:
    environments = [report.machines[number].environment for number in numbers]
    names = {item.pin.name for item in cluster}
    wanted_by = {name: sum(name in _related(x) for x in names) for name in names}
    ordered = sorted(cluster, key=lambda item: wanted_by[item.pin.name])
    options: list[list[_Candidate]] = []
    following: list[str] = []
    for item in ordered:
        bad = any(item.judgements[n].verdict == "cannot" for n in numbers)
        needs = item.known.needs
        # A build that fails only because of its requirements may run with other
        # releases of the required projects, so its own release remains an option.
        alone = needs is not None and _runs(needs, environments)
        own = [_own(item)] if alone or not bad else []
        others = _candidates(item, file.platform, environments, find_releases)
        options.append([*own, *others])
        if not others and not bad:
            following.append(item.pin.name)
    taken = _search(options)
    if taken is None and following:
        # Leave out packages with no known runnable release; a comment names them.
        keep = [i for i, item in enumerate(ordered) if item.pin.name not in following]
        taken = _search([options[i] for i in keep])
        ordered = [ordered[i] for i in keep]
    else:
        following = []
    if taken is None:
        return None
    moved = [
        candidate
        for item, candidate in zip(ordered, taken, strict=True)
        if (candidate.name, candidate.version) != (item.pin.name, item.pin.version)
        or any(item.judgements[n].verdict == "cannot" for n in numbers)
    ]
    bad_items = [
        item
        for item in cluster
        if any(item.judgements[n].verdict == "cannot" for n in numbers)
    ]
    lines = [candidate.line for candidate in moved]
    lines += _remarks(file, moved, following, bad_items)
    if len(environments) == 1:
        lines += _elsewhere(file, bad_items, moved, environments[0], platforms)
    machines = tuple(report.machines[n].names[0] for n in numbers)
    return Suggestion(
        path=file.file.path,
        name=", ".join(item.pin.name for item in bad_items),
        machines=machines,
        lines=tuple(lines),
        titles=tuple(item.pin.title for item in bad_items),
    )


def _own(item: CheckedPin) -> _Candidate:
    version = item.pin.version or Version("0")
    return _Candidate(item.pin.name, version, _parsed(item.known.required.values()))


def _parsed(texts: Iterable[str]) -> list[Requirement]:
    return [x for text in texts if (x := parse_requirement(text)) is not None]


def _candidates(
    item: CheckedPin,
    platform: str | None,
    environments: Sequence[Environment],
    find_releases: FindReleases,
) -> list[_Candidate]:
    """Return the releases that run, newest first, or else a sibling project's."""
    name, label = item.pin.name, item.pin.version.local if item.pin.version else None
    found = list(_releases(name, label, platform, environments, find_releases))
    if found:
        return sorted(found, key=lambda x: x.version, reverse=True)
    # If no release of cupy-cuda13x runs, a release of cupy-cuda12x may run.
    majors = {
        e.cuda_driver_version.major for e in environments if e.cuda_driver_version
    }
    for major in range(min(majors, default=0), 10, -1):
        sibling = _CUDA.sub(rf"\g<1>{major}", name)
        if sibling != name:
            found = list(
                _releases(sibling, None, platform, environments, find_releases)
            )
        if found:
            same = [x for x in found if x.version == item.pin.version]
            return same + sorted(found, key=lambda x: x.version, reverse=True)
    return []


def _releases(
    name: str,
    label: str | None,
    platform: str | None,
    environments: Sequence[Environment],
    find_releases: FindReleases,
) -> Iterator[_Candidate]:
    rows = [x for x in build_records().get(name, ()) if x.platform == platform]
    if label is not None and any(row.label for row in rows):
        for row in rows:
            if row.label and _runs(row.needs, environments):
                yield _candidate(row, f"{row.version}+{row.label}")
        return
    plain = {Version(row.version): row for row in rows if row.label is None}
    listed = find_releases(name, environments) if label is None else None
    if listed is not None:
        for version in listed:
            known = plain.get(version)
            yield _candidate(known) if known else _Candidate(name, version, ())
        return
    for row in plain.values():
        if _runs(row.needs, environments) and not Version(row.version).is_prerelease:
            # Companions of a labeled build have the same label, so add the label.
            yield _candidate(row, f"{row.version}+{label}" if label else None)


def _candidate(row: BuildRecord, version: str | None = None) -> _Candidate:
    required = required_projects(row.needs.requires, PROJECTS - {row.project})
    return _Candidate(
        row.project, Version(version or row.version), _parsed(required.values())
    )


def _runs(needs: Needs, environments: Sequence[Environment]) -> bool:
    verdicts = {judge(needs, environment).verdict for environment in environments}
    # Accept "unknown" if requirements are the only evidence: the search checks them.
    follows = bool(needs.requires) and needs.cuda is None
    allowed = (*_RUNNING, "unknown") if follows else _RUNNING
    return verdicts.issubset(allowed)


def _search(options: Sequence[Sequence[_Candidate]]) -> list[_Candidate] | None:
    """Find the first compatible combination of one candidate from each list."""
    steps = 0

    def agree(one: _Candidate, other: _Candidate) -> bool:
        for requirement in one.requires:
            if canonicalize_name(requirement.name) == other.name and not allows(
                requirement, str(other.version)
            ):
                return False
        # A labeled build and its companions must have the same label.
        labels = {one.version.local, other.version.local} - {None}
        return len(labels) < 2

    def follow(taken: list[_Candidate]) -> list[_Candidate] | None:
        nonlocal steps
        if len(taken) == len(options):
            return taken
        for candidate in options[len(taken)]:
            steps += 1
            if steps > _MOST_STEPS:
                return None
            if all(agree(x, candidate) and agree(candidate, x) for x in taken):
                found = follow([*taken, candidate])
                if found is not None:
                    return found
        return None

    return follow([]) if all(options) else None


def _remarks(
    file: CheckedFile,
    moved: Sequence[_Candidate],
    following: Sequence[str],
    broken: Sequence[CheckedPin],
) -> Iterator[str]:
    """Yield comment lines about pins to remove and packages that need new builds."""
    names = {candidate.name for candidate in moved}
    brought = [
        pin.name
        for pin in file.file.pins
        if pin.name.startswith(("nvidia-", "cuda-")) or pin.name in TRITON
        if pin.name not in names and not names.isdisjoint(_BRINGING)
    ]
    drop = [*sorted({item.pin.name for item in broken} - names), *brought]
    if drop:
        yield f"# remove the pins of {', '.join(dict.fromkeys(drop))}"
    if following:
        yield f"# {', '.join(following)} must be built for these releases"


def _elsewhere(
    file: CheckedFile,
    broken: Sequence[CheckedPin],
    moved: Sequence[_Candidate],
    environment: Environment,
    platforms: Sequence[str],
) -> Iterator[str]:
    """Yield comment lines that suggest newer builds from the vendors' own indexes.

    Each command has its own line, so it can be copied.
    """
    versions = {candidate.name: str(candidate.version) for candidate in moved}
    found = [
        each
        for item in broken
        if file.platform and not (item.pin.version and item.pin.version.local)
        for each in find_elsewhere(
            item.pin.name,
            environment,
            file.platform,
            newer_than=versions.get(item.pin.name),
            wanted=item.pin.version.public if item.pin.version else None,
        )
        if each.version is not None
    ]
    machine: list[str] = []
    if platforms or environment.source not in _DETECTED:
        machine += ["--cuda-driver", str(environment.cuda_driver_version)]
        for capability in environment.compute_capabilities[:1]:
            machine += ["--sm-arch", str(capability)]

    def command(words: Sequence[str]) -> str:
        return f"\n#   {pip_command(words, platforms=platforms, machine=machine)}"

    for sentence in say_elsewhere(found, command):
        yield from (line.rstrip() for line in f"# or {sentence}".splitlines())


def _nothing(
    report: CheckReport, file: CheckedFile, item: CheckedPin, numbers: Sequence[int]
) -> Suggestion:
    machines = tuple(report.machines[n].names[0] for n in numbers)
    return Suggestion(
        path=file.file.path,
        name=item.pin.name,
        machines=machines,
        lines=(),
        titles=(item.pin.title,),
    )
