"""The rows of the table of releases, from the verdicts on index pages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from packaging.version import Version
from simple_repository import model

from nvidia_variant_provider.errors import InputError
from nvidia_variant_provider.machine.environment import Environment
from nvidia_variant_provider.machine.supported import (
    LOWER_BOUND,
    NAMESPACE,
    SM_ARCH,
    has_machine_code,
)
from nvidia_variant_provider.metadata.model import NULL_LABELS, Features

from ...builds.page import Build, Visibility
from ...builds.releases import (
    ListedBuild,
    ListedRelease,
    ReleaseTable,
    find_newest,
    sort_builds,
)
from ...builds.verdicts import Judgement
from ...fleet.serving import Selected
from ...knowledge.builds import How
from ...knowledge.tables import NATIVE
from ...matrix.cells import CPU, NO_BUILD, UNKNOWN, Cell, Pair
from ...matrix.changes import (
    CHANGED,
    GAINED,
    LOST,
    SAME,
    PairChange,
    Pick,
    find_index_change,
)
from ...wheels.archive import (
    WheelName,
    parse_wheel_name,
    release_of_sdist,
    without_label,
)
from ..pip.settings import Interpreter
from ..selection.shown import ShownPage, ShownRelease

NUMBERS = re.compile(r"[0-9]+(?:\.[0-9]+)*[af]?")
"""The numbers in reasons, which differ between machines with the same problem."""


def cell_of(pair: Pair, build: ListedBuild | None, name: str) -> Cell:
    """Return the cell of a driver-GPU pair that gets a build called ``name``."""
    if build is None or build.verdict == "cannot":
        return Cell(cuda=pair[0], capability=pair[1], label=None, how=NO_BUILD)
    hows = {"cpu": CPU, "unknown": UNKNOWN}
    how = hows.get(build.verdict, build.how or NATIVE)
    return Cell(cuda=pair[0], capability=pair[1], label=name, how=how)


def name_of(version: str, build: ListedBuild) -> str:
    """Return the name of a build, which is unique among all releases."""
    label = None if build.label in NULL_LABELS else build.label
    return f"{version}+{label}" if label else version


def find_selected(table: ReleaseTable) -> Selected:
    """Return the selected build, and which builds of all releases run."""
    runs: list[str] = []
    gpu: list[str] = []
    rejected: dict[str, Sequence[str]] = {}
    versions: dict[str, str] = {}
    selected = None
    for release in table.releases:
        for build in release.builds:
            name = (
                f"{release.version}+{build.label}" if build.label else release.version
            )
            if build.verdict in ("runs", "partly"):
                gpu.append(name)
            elif build.verdict != "cpu":
                rejected[name] = build.reasons
                continue
            runs.append(name)
            if parse_wheel_name(build.file).label is not None:
                versions[name] = release.version
            if release.version == table.newest and build.file == release.selected:
                selected = name
    return Selected(
        selected=selected,
        runs=tuple(runs),
        gpu=tuple(gpu),
        rejected=rejected,
        versions=versions,
    )


def depends_on_machine(table: ReleaseTable) -> bool:
    """Return whether the build of a project may depend on the driver or the GPU."""
    return any(
        build.verdict not in ("cpu", "unknown") or build.label or build.cuda
        for release in table.releases
        for build in release.builds
    )


def find_pick(pair: Pair, table: ReleaseTable, *, saved: bool = False) -> Pick:
    """Return the build that an installer selects from all releases of a table.

    :param saved: whether the table is from a saved page, perhaps without metadata.
    """
    release = table.chosen
    if release is None or release.selected is None:
        return Pick(cell=cell_of(pair, None, ""))
    file = release.selected
    unread = [item.label or "" for item in release.builds if _is_unread(item)]
    if saved and unread:
        # An installer may select one of the variants, but which one is unknown.
        name = f"{release.version}+{'|'.join(sorted(unread))}"
        cell = Cell(cuda=pair[0], capability=pair[1], label=name, how=UNKNOWN)
        return Pick(cell=cell, version=Version(release.version), is_variant=True)
    build = next((item for item in release.builds if item.file == file), None)
    if build is None or (build.verdict == "unknown" and file.endswith("-any.whl")):
        # An unjudged wheel for any platform has no GPU code of its own.
        build = ListedBuild(
            file=file, label=None, cuda=None, verdict="cpu", how=None, evidence=None
        )
    cell = cell_of(pair, build, name_of(release.version, build))
    is_variant = parse_wheel_name(file).label is not None
    version = None if cell.label is None else Version(release.version)
    return Pick(cell=cell, version=version, is_variant=is_variant)


def _is_unread(build: ListedBuild) -> bool:
    return build.verdict == "unknown" and _parse(build.file)[0].label is not None


def find_pick_change(
    pair: Pair, tables: Sequence[ReleaseTable], saved: Sequence[bool]
) -> PairChange:
    """Return whether a driver-GPU pair gets a different build of a project, and why.

    :param tables: the tables of the old and the new state.
    :param saved: for each table, the parameter of `find_pick`.
    """
    _, after = tables
    was, now = (
        find_pick(pair, table, saved=is_saved)
        for table, is_saved in zip(tables, saved, strict=True)
    )
    change = find_index_change(was, now)
    if change in (SAME, GAINED):
        return PairChange(old=was.cell, new=now.cell, change=change)
    old, new = was.cell.label, now.cell.label
    builds = (
        (release.version, build)
        for release in after.releases
        for build in release.builds
    )
    build = next((b for version, b in builds if name_of(version, b) == old), None)
    workaround: tuple[str, ...] = ()
    if was.version is None:
        why = "nothing of OLD runs"
    elif change == CHANGED and now.version and now.version > was.version:
        why = f"NEW has {new}, which is newer"
    elif build is None:
        why = f"NEW has no {old} for this platform and Python"
    elif build.reasons:
        why = f"{old}: {'; '.join(build.reasons)}"
    else:
        why = f"{old} is still there, but {new} goes before it"
        workaround = (f"ask for {after.project}=={was.version}",)
    risks = {
        CPU: "an installer silently takes a build without GPU code",
        NO_BUILD: "an installer takes whatever else there is, or fails",
        UNKNOWN: f"it is unknown whether {new} runs on the GPU",
    }
    risk = risks.get(now.cell.how)
    return PairChange(
        old=was.cell,
        new=now.cell,
        change=change,
        reason=why,
        causes=(NUMBERS.sub("", why),),
        workaround=workaround if change == LOST else (),
        risk=(risk,) if risk else (),
    )


def find_unknown(project: str, pairs: Iterable[PairChange]) -> Iterable[str]:
    """Yield sentences about missing and unknown builds of a project."""
    cells = [cell for pair in pairs for cell in (pair.old, pair.new)]
    if not any(cell.label for cell in cells):
        yield f"{project}: no build that runs is for this platform and Python"
    for label in sorted({x.label or "" for x in cells if x.how == UNKNOWN}):
        yield f"{project}: it is unknown whether {label} runs on the GPU"


class _Key(NamedTuple):
    """The key that distinguishes the builds of a release."""

    variant: bool
    label: str | None


class _Name(NamedTuple):
    """A file with its parsed name.

    :param version: the version without its label; ``full`` has the label.
    """

    file: model.File
    parts: WheelName
    version: Version
    full: Version


def make_table(
    project: str,
    pages: Sequence[ShownPage],
    interpreter: Interpreter,
    notes: Iterable[str] = (),
    *,
    only_selected: bool = False,
) -> ReleaseTable:
    """Join the pages of all indexes; the first page with a build takes precedence.

    :param only_selected: count a release as running only if its selected build runs,
        because the user requested a label that other builds lack.
    """
    selected: dict[Version, tuple[_Order, str]] = {}
    builds: dict[Version, dict[_Key, ListedBuild]] = {}
    kept: set[Version] = set()
    for page in pages:
        names = _parse_all(page.files)
        kept |= {name.version for name in names if not name.file.yanked}
        for version in _find_versions(page.files, names):
            builds.setdefault(version, {})
        for version, order, wheel in _candidates(page, names, interpreter):
            if version not in selected or order > selected[version][0]:
                selected[version] = order, wheel
        for version, key, build in _list_builds(page, names, interpreter):
            builds[version].setdefault(key, build)
    releases = []
    for version in sorted(builds, reverse=True):
        file = selected[version][1] if version in selected else None
        listed = sort_builds(builds[version].values(), file)
        release = ListedRelease(version=str(version), selected=file, builds=listed)
        releases.append(release)
    withdrawn = frozenset(str(version) for version in builds.keys() - kept)
    return ReleaseTable(
        project=project,
        newest=find_newest(
            [r for r in releases if r.selected_runs] if only_selected else releases,
            withdrawn,
        ),
        releases=tuple(releases),
        notes=tuple(notes),
        sources=frozenset(
            str(version) for page in pages for version in _find_versions(page.files, ())
        ),
    )


_Order = tuple[Version, int, "tuple[()] | tuple[int, str]"]
"""pip's sort key: the version with its label, the tags, and the build tag."""


def _candidates(
    page: ShownPage, names: Sequence[_Name], interpreter: Interpreter
) -> Iterable[tuple[Version, _Order, str]]:
    """Yield the version, sort key and original name of each wheel that pip compares."""
    renamed = page.originals
    for name in _parse_all(page.shown, {name.file.filename: name for name in names}):
        rank = interpreter.rank(name.parts.tags)
        file = name.file
        if (
            rank is None
            or file.yanked
            or not interpreter.is_allowed(file.requires_python)
        ):
            continue
        order: _Order = (name.full, -rank, name.parts.build)
        yield name.version, order, renamed.get(file.filename, file.filename)


def _list_builds(
    page: ShownPage, names: Sequence[_Name], interpreter: Interpreter
) -> Iterable[tuple[Version, _Key, ListedBuild]]:
    """Yield the builds of a page that are for the platform of this machine."""
    platforms = interpreter.platforms
    judged = {build.file: build for build in page.judged.builds}
    best: dict[tuple[Version, _Key], tuple[int, _Name]] = {}
    for name in names:
        build = judged.get(name.file.filename)
        if build is None and name.parts.label is None:
            continue
        here = any(tag.platform in platforms for tag in name.parts.tags)
        if not here and (build is None or build.platform is None):
            continue
        key = _Key(False, build.version.local if build else None)
        if name.parts.label is not None:
            key = _Key(True, name.parts.label)
        found = interpreter.rank(name.parts.tags)
        # If a build has no wheel for this Python, list its wheel for another Python.
        takes = found is not None
        takes = takes and interpreter.is_allowed(name.file.requires_python)
        rank = len(interpreter.ranks) + (not here)
        if takes and found is not None:
            rank = found
        place = name.version, key
        if place not in best or rank < best[place][0]:
            best[place] = rank, name
    visibility = page.judged.visibility.files
    # PEP 440 allows several spellings of a version: 1.0 equals 1.0.0.
    shown_releases = {
        Version(version): release for version, release in page.releases.items()
    }
    for (version, key), (rank, name) in best.items():
        if key.variant:
            listed = _list_variant(name, shown_releases.get(version))
        else:
            file = name.file.filename
            listed = _list_ordinary(name, judged[file], visibility.get(file))
        last = len(interpreter.ranks)
        listed = replace(listed, installable=rank < last, fits_platform=rank <= last)
        yield version, key, listed


def _list_ordinary(
    name: _Name, build: Build, visibility: Visibility | None
) -> ListedBuild:
    judgement = build.judgement
    backend = build.backend
    cuda = judgement.cuda or (backend.cuda if backend else None)
    return ListedBuild(
        file=name.file.filename,
        label=build.version.local,
        cuda=None if cuda is None else str(cuda),
        verdict=judgement.verdict,
        how=judgement.how,
        evidence=judgement.evidence,
        reasons=_reasons(name.file, judgement, visibility),
        lacking=judgement.lacking,
    )


def _reasons(
    file: model.File, judgement: Judgement, visibility: Visibility | None
) -> tuple[str, ...]:
    """Return why a build does not run, or why installers do not select it."""
    reasons = list(judgement.reasons)
    if not judgement.asked:
        reasons[-1] += "; --inspect --all reads the wheel"
    if visibility is not None and visibility.reason and judgement.verdict != "cannot":
        # For a hidden build with an unknown verdict, give only the reason for hiding.
        known = judgement.verdict != "unknown" or visibility.action != "hide"
        reasons = [*(reasons if known else []), visibility.reason]
    return (*reasons, *_withdrawal(file))


def _withdrawal(file: model.File) -> list[str]:
    if not file.yanked:
        return []
    because = f": {file.yanked}" if isinstance(file.yanked, str) else ""
    return [f"the index has yanked it{because}"]


def _list_variant(name: _Name, release: ShownRelease | None) -> ListedBuild:
    label = name.parts.label or ""
    resolution = release.resolution if release else None
    if resolution is None or label not in resolution.metadata.variants:
        problem = release.problem if release else None
        return ListedBuild(
            file=name.file.filename,
            label=label,
            cuda=None,
            verdict="unknown",
            how=None,
            evidence=None,
            reasons=(
                problem or "the metadata of its variants does not have its label",
            ),
        )
    own = resolution.metadata.variants[label].get(NAMESPACE)
    bounds = (own or {}).get(LOWER_BOUND, ())
    sentences = [reason.sentence for reason in resolution.rejected.get(label, ())]
    fits = label in resolution.compatible
    return ListedBuild(
        file=name.file.filename,
        label=label,
        cuda=bounds[-1] if bounds else None,
        verdict="cannot" if not fits else "cpu" if own is None else "runs",
        how=_how(own, resolution.environment) if fits and own is not None else None,
        evidence="variants.json",
        reasons=(*dict.fromkeys(sentences), *_withdrawal(name.file)),
    )


def _how(features: Features, environment: Environment) -> How | None:
    targets = features.get(SM_ARCH)
    for capability in environment.compute_capabilities[:1]:
        native = targets is None or has_machine_code(targets, capability)
        return "native" if native else "ptx"
    return None


def _parse_all(
    files: Iterable[model.File], known: Mapping[str, _Name] | None = None
) -> list[_Name]:
    """Parse the names of the wheels, and skip other files.

    :param known: names that are already parsed.
    """
    known = known or {}
    names = []
    for file in files:
        if not file.filename.endswith(".whl"):
            continue
        if file.filename in known:
            names.append(known[file.filename]._replace(file=file))
            continue
        try:
            names.append(_Name(file, *_parse(file.filename)))
        except InputError:
            continue
    return names


@lru_cache(maxsize=4096)
def _parse(name: str) -> tuple[WheelName, Version, Version]:
    """Parse the name of a wheel once for all machines, as for `_Name`."""
    parts = parse_wheel_name(name)
    full = Version(parts.version)
    return parts, without_label(full), full


def _find_versions(files: Iterable[model.File], names: Iterable[_Name]) -> set[Version]:
    sdists = (release_of_sdist(file.filename) for file in files)
    return {name.version for name in names} | {x for x in sdists if x is not None}
