"""Judge the pins of a file, for each choice of extras and each group of machines.

A program also judges the packages beside it, before it imports them.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from packaging.utils import canonicalize_name
from packaging.version import Version

from nvidia_variant_provider.errors import UsageError, shown
from nvidia_variant_provider.machine.environment import is_failure
from nvidia_variant_provider.machine.reasons import NOT_GIVEN

from ..builds.verdicts import Judgement
from ..doctor.distributions import find_distributions
from ..fleet.serving import Group
from ..pins.model import Choice, Edge, Pin, PinnedFile, SelectedPin
from ..pins.reading import pin_of
from ..pins.targets import PinTarget
from .agreement import find_disagreements, stem_of
from .evidence import Judged, Known, Releases, find_known
from .model import CannotRunError, CheckedFile, CheckedPin, Disagreement

_CUDA = re.compile(r"-(?:cu|cuda)[0-9]{2,3}x?(?=-|$)")
"""The part of a name that distinguishes builds of one program by CUDA version."""

Ask = Callable[[Sequence[Known]], Sequence[Known]]
"""A function that returns the same packages in the same order, with more evidence."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Selected:
    """The packages that an installer selects from a file for one choice of extras."""

    choice: Choice | None
    versions: Mapping[str, Version]
    items: Sequence[SelectedPin]


def check_file(
    file: PinnedFile,
    target: PinTarget,
    groups: Sequence[Group],
    *,
    chosen: frozenset[Choice] | None = None,
    every_gpu: bool = False,
    ask: Ask = lambda known: known,
) -> CheckedFile:
    """Check the builds that a file pins.

    :param chosen: the user's extras and groups; ``None`` judges every choice.
    :param ask: a function that reads METADATA and wheels; by default, none are read.
    """
    rivals, selections = select_all(file, target, chosen)
    found: dict[tuple[int, int], Known | None] = {}
    keys: list[list[tuple[int, int]]] = []
    # The evidence on a package may depend on the CUDA packages beside it.
    beside: dict[tuple[str, ...], int] = {(): 0}
    for selected in selections:
        own = []
        named = beside.setdefault(_cuda_packages(selected.versions), len(beside))
        for item in selected.items:
            place = id(item.pin), named if _names_cuda(item.pin) else 0
            if place not in found:
                found[place] = find_known(item, target.platform, selected.versions)
            own.append(place)
        keys.append(own)
    known = {place: item for place, item in found.items() if item is not None}
    asked = dict(zip(known, ask(list(known.values())), strict=True))
    asked = {place: item for place, item in asked.items() if item.may_be_build}
    rows: dict[tuple[int, tuple[Judgement, ...]], list[Choice]] = {}
    pins: dict[int, Known] = {}
    disagreements: dict[tuple[int, str], tuple[Disagreement, list[Choice]]] = {}
    for selected, own in zip(selections, keys, strict=True):
        builds = [asked[place] for place in own if place in asked]
        judged = _judge_all(builds, groups, target.platform, every_gpu=every_gpu)
        mark = [] if selected.choice is None else [selected.choice]
        for build, judgements in zip(builds, judged, strict=True):
            pins[id(build.pin)] = build
            rows.setdefault((id(build.pin), judgements), []).extend(mark)
        for each in find_disagreements(selected.items, builds, target):
            key = id(each.pin), each.message
            disagreements.setdefault(key, (each, []))[1].extend(mark)
    everywhere = len(selections) if rivals else 0
    return CheckedFile(
        file=file,
        rivals=rivals,
        platform=target.platform,
        python=target.python,
        pins=tuple(
            CheckedPin(
                known=pins[number],
                judgements=judgements,
                choices=() if len(marks) == everywhere else tuple(marks),
            )
            for (number, judgements), marks in rows.items()
        ),
        disagreements=tuple(
            replace(each, choices=() if len(marks) == everywhere else tuple(marks))
            for each, marks in disagreements.values()
        ),
    )


def select_all(
    file: PinnedFile, target: PinTarget, chosen: frozenset[Choice] | None
) -> tuple[tuple[Choice, ...], list[Selected]]:
    """Select packages for the user's choices, or else for each conflicting choice.

    :returns: the conflicting choices, and a selection for each. Without a conflict, no
        choices and a single selection.
    """
    if chosen is not None or not file.choices:
        choices = file.defaults if chosen is None else chosen
        return (), [_select(file, choices, target)]
    rivals = {choice for conflict in file.conflicts for choice in conflict}
    rivals |= _find_rivals(file, target)
    # If a workspace itself requires an extra, the extras that conflict with this extra
    # can never be selected.
    selectable = frozenset[Choice]().union(*file.alternatives())
    common = selectable.difference(rivals)
    ordered = tuple(x for x in file.choices if x in rivals & selectable)
    if not ordered:
        return (), [_select(file, common, target)]
    return ordered, [
        _select(file, common | {choice}, target, choice) for choice in ordered
    ]


def _select(
    file: PinnedFile,
    choices: frozenset[Choice],
    target: PinTarget,
    choice: Choice | None = None,
) -> Selected:
    items = file.select(choices, target)
    versions = {item.pin.name: item.pin.version for item in items if item.pin.version}
    return Selected(choice=choice, versions=versions, items=items)


def _find_rivals(file: PinnedFile, target: PinTarget) -> set[Choice]:
    """Find choices that pin different builds of the same program.

    The function is needed because poetry.lock and pylock.toml do not record conflicts.
    """
    stems = {pin.name: _CUDA.sub("", stem_of(pin.name)) for pin in file.pins}
    programs: dict[str, dict[frozenset[int], list[Choice]]] = {}
    for choice in file.choices:
        own: dict[str, set[int]] = {}
        for pin in file.installed(frozenset({*file.defaults, choice}), target):
            own.setdefault(stems[pin.name], set()).add(id(pin))
        for program, numbers in own.items():
            builds = programs.setdefault(program, {})
            builds.setdefault(frozenset(numbers), []).append(choice)
    return {
        choice
        for builds in programs.values()
        if len(builds) > 1
        for choices in builds.values()
        for choice in choices
    }


def _names_cuda(pin: Pin) -> bool:
    return any("nvidia" in text or "cuda" in text for text in pin.requires or ())


def _cuda_packages(versions: Mapping[str, Version]) -> tuple[str, ...]:
    """Return ``NAME==VERSION`` of each pinned CUDA package."""
    return tuple(
        sorted(
            f"{name}=={version}"
            for name, version in versions.items()
            if name.startswith(("nvidia-", "cuda-"))
        )
    )


def _judge_all(
    builds: Sequence[Known],
    groups: Sequence[Group],
    platform: str | None,
    *,
    every_gpu: bool,
) -> list[tuple[Judgement, ...]]:
    """Return the judgements on each build of a selection, one for each group."""
    columns = [
        _judge_for(group, builds, platform, every_gpu=every_gpu) for group in groups
    ]
    return list(zip(*columns, strict=True)) if builds else []


def _judge_for(
    group: Group, builds: Sequence[Known], platform: str | None, *, every_gpu: bool
) -> list[Judgement]:
    environment = group.environment
    reason = None
    if environment.reason == NOT_GIVEN and group.missing is not None:
        reason = f"the inventory does not say {group.missing}"
    elif is_failure(environment.reason):
        reason = "the driver could not be asked"
    if reason is not None:
        return [Judgement(verdict="unknown", reasons=(reason,)) for _ in builds]
    by_name: dict[str, list[Known]] = {}
    for item in builds:
        by_name.setdefault(item.pin.name, []).append(item)
    judged: dict[str, Judged] = {}

    def judged_of(project: str) -> Judged:
        if project not in judged:
            releases = Releases(project, platform, environment)
            judged[project] = {}  # ends recursion if two projects require each other
            for item in by_name.get(project, ()):
                releases.add(item.release, judge(item))
            judged[project] = releases
        return judged[project]

    def judge(item: Known) -> Judgement:
        found = item.judge(environment, judged_of, every_gpu=every_gpu)
        if item.pin.is_open and found.verdict != "cannot":
            reason = "no version of it is pinned, so any release may be installed"
            return Judgement(verdict="unknown", reasons=(reason,))
        if item.pin.wheels and item.wheel is None and found.verdict in _RUNNING:
            reason = "the file has no wheel of it for this platform and this Python"
            return Judgement(verdict="unknown", reasons=(reason,))
        return found

    return [judge(item) for item in builds]


_RUNNING = ("runs", "partly")


def pins_of_projects(projects: Sequence[str]) -> PinnedFile:
    """Return pins of installed projects and all their direct and indirect dependencies.

    :param projects: the names of the projects; empty for every installed project.
    :raises UsageError: a project is not installed.
    """
    folders = dict.fromkeys(path or os.curdir for path in sys.path)
    there = find_distributions(folder for folder in folders if os.path.isdir(folder))
    names = dict.fromkeys(str(canonicalize_name(name)) for name in projects)
    for name in names:
        if name not in there:
            message = f"{shown(name)} is not installed here"
            raise UsageError(message, hint=f"install it: nvp pip install {name}")
    reached = dict.fromkeys(names or there)
    waiting = list(names)
    while waiting:
        for name in there[waiting.pop()].required:
            if name in there and name not in reached:
                reached[name] = None
                waiting.append(name)
    pins = tuple(pin_of(there[name]) for name in reached)
    return PinnedFile(
        path=sys.prefix,
        form="environment",
        pins=pins,
        roots=tuple(Edge(number) for number in range(len(pins))),
    )


def refuse(checked: CheckedFile, *, unknown: bool = False) -> None:
    """Raise an error for the first build that cannot run.

    The error names a program rather than the NVIDIA libraries that the program
    requires, or the packages that require the program.

    :param unknown: raise also for a build with the verdict ``unknown``.
    :raises CannotRunError: a build cannot run or, with ``unknown``, might not run.
    """
    verdicts = ("cannot", "unknown") if unknown else ("cannot",)
    found = sorted(
        (item for item in checked.pins if item.worst.verdict in verdicts),
        key=lambda item: (
            item.worst.verdict != "cannot",
            item.known.is_library,
            # Prefer a required build to builds that fail because they require it.
            item.worst.reasons[0].startswith("it requires "),
        ),
    )
    if not found:
        return
    first = found[0]
    word = "cannot run here" if first.worst.verdict == "cannot" else "may not run here"
    reasons = "; ".join(first.worst.reasons)
    names = [x.pin.name for x in found if not x.known.is_library] or [first.pin.name]
    words = ["install", "--upgrade", "--force-reinstall", *names]
    command = shlex.join(["nvp", "pip", "--python", sys.executable, *words])
    raise CannotRunError(f"{first.pin.title} {word}: {reasons}", hint=f"run: {command}")
