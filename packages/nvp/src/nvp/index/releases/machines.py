"""The releases of a project on an index, judged for one machine or many.

`nvp releases` uses one machine, `matrix` and `diff` use driver-GPU pairs, and `fleet`
uses the machines of a fleet. Pages and METADATA are read once for all machines.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from threading import Thread

from packaging.utils import canonicalize_name
from packaging.version import Version
from simple_repository import model

from nvidia_variant_provider.errors import InputError, UsageError, shown
from nvidia_variant_provider.machine.environment import Environment

from ...builds.releases import PLAIN, ListedBuild, ReleaseTable
from ...builds.vendors import Elsewhere, find_elsewhere
from ...fleet.serving import Selected
from ...matrix.cells import (
    Cell,
    Matrix,
    Pair,
    list_pairs,
    machine,
)
from ...matrix.changes import (
    CHANGED,
    LOST,
    Differences,
    IndexDifferences,
    PairChange,
    find_change,
)
from ...metadata.requirements import parse_requirement
from ..http.client import Client
from ..pip.command import find_python
from ..pip.settings import Indexes, find_indexes, make_settings
from ..selection.options import Selection, default_platform, parse_pins
from .rows import (
    NUMBERS,
    cell_of,
    depends_on_machine,
    find_pick_change,
    find_selected,
    find_unknown,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .reading import Inspect, Sources, Watch

_DEADLINE = 30.0
"""The time limit of a page in seconds, because the user is waiting."""

_RELEASES = 8
"""The number of newest releases that are judged for every machine, and the factor by
which this number grows for machines that run none of these releases."""

_MOST_BUILDS = 3
"""The maximum number of builds in the reason for a lost driver-GPU pair."""


def list_releases(
    project: str,
    *,
    environment: Environment,
    environ: Mapping[str, str],
    indexes: Indexes,
    vendor_indexes: bool = False,
    every_gpu: bool = False,
    labels: Sequence[str] = (),
    inspect: Inspect = False,
    watch: Watch | None = None,
    cache: str | None = None,
) -> ReleaseTable:
    """Read the releases of a project, and judge their builds for a machine.

    :param vendor_indexes: also read the indexes of vendors.
    :param labels: the requested labels, each of the form ``LABEL`` or
        ``PROJECT=LABEL``.
    :param watch: shows the progress of each inspected wheel.
    :param cache: the cache directory.
    :raises InputError: no index has the project, or no index can be read.
    :raises UsageError: the name is malformed, or there is no index or interpreter.
    """
    name, extras = _read_project(project)
    # Treat a global label as the named project's, so a missing label is an error.
    pins = parse_pins(labels)
    if pins.everywhere is not None and name not in pins.projects:
        pins = replace(pins, projects={**pins.projects, name: pins.everywhere})
    notes: list[str] = []
    with open_sources(indexes, environ, cache) as opened:
        from .reading import read_tables

        selection = Selection(
            machine=lambda: environment,
            pins=pins,
            target=opened.interpreter.target,
            every_gpu=every_gpu,
            environ=environ,
        )
        sources = opened
        if vendor_indexes:
            sources = opened.with_vendors(selection, notes.append)
        (table,) = read_tables(name, sources, [selection], inspect=inspect, watch=watch)
    table = replace(table, extras=tuple(extras))
    if vendor_indexes:
        return replace(table, notes=(*table.notes, *notes))
    return replace(table, elsewhere=_find_elsewhere(table, selection, sources.places))


def _find_elsewhere(
    table: ReleaseTable, selection: Selection, places: Sequence[str]
) -> tuple[Elsewhere, ...]:
    """Find newer runnable builds on vendors' indexes that are not configured."""
    listed = [r.version for r in table.releases if not Version(r.version).is_prerelease]
    wanted = listed[0] if listed and listed[0] != table.newest else None
    return find_elsewhere(
        table.project,
        selection.found(),
        table.platform or default_platform(),
        newer_than=table.newest,
        wanted=wanted,
        used=places,
        every_gpu=selection.every_gpu,
    )


def open_sources(
    indexes: Indexes, environ: Mapping[str, str], cache: str | None
) -> Sources:
    """Return the indexes and the interpreter that pip would use."""
    path = find_python(indexes.python, environ)
    # pip takes half a second to list its indexes: import other modules meanwhile. A
    # signal ends pip only if the main thread waits for it.
    Thread(target=import_module, args=(f"{__package__}.reading",), daemon=True).start()
    command, ask_credentials = find_indexes(environ, indexes)
    from ..pip.settings import find_interpreter, interpreter_of
    from .reading import make_sources

    interpreter = find_interpreter(path, environ)
    settings = replace(make_settings(command, environ), deadline=_DEADLINE)
    client = Client(settings, ask_credentials=ask_credentials)
    if indexes.platforms:
        if command.target is None:
            message = "only a pip can tell which wheels are for a platform"
            hint = "give --python with an environment that has pip"
            raise UsageError(message, path="--platform", hint=hint)
        interpreter = interpreter_of(command.target)
    return make_sources(command, client, interpreter, cache)


def _read_project(text: str) -> tuple[str, Sequence[str]]:
    """Parse a name such as ``jax`` or ``jax[cuda13]`` into name and extras."""
    requirement = parse_requirement(text)
    hint = "give only the name, such as: nvp releases torch"
    if text.endswith(".whl"):
        path = shlex.quote((requirement and requirement.url) or text)
        hint = f"for the GPU code of a wheel: nvp inspect {path}"
    elif requirement is not None:
        name = canonicalize_name(requirement.name)
        if not (requirement.specifier or requirement.url or requirement.marker):
            return name, sorted(requirement.extras)
        hint = f"give only the name: nvp releases {name}"
    raise UsageError(f"{shown(text)} is not the name of a project", hint=hint)


def parse_project(text: str) -> tuple[str, str | None]:
    """Parse ``torch`` or ``torch==2.15.0``.

    :returns: the normalized name, and the version or ``None``.
    :raises UsageError: the text has a different form.
    """
    requirement = parse_requirement(text)
    specifiers = list(requirement.specifier) if requirement else []
    if (
        requirement is None
        or requirement.extras
        or requirement.url
        or requirement.marker
        or len(specifiers) > 1
        or any(item.operator != "==" or "*" in item.version for item in specifiers)
    ):
        message = f"{shown(text)} is not a project, or a project with one version"
        raise UsageError(message, hint="give NAME or NAME==VERSION")
    version = specifiers[0].version if specifiers else None
    return canonicalize_name(requirement.name), version


@dataclass(frozen=True, kw_only=True, slots=True)
class ProjectJudge:
    """Judges the builds of projects on indexes for many machines.

    The verdicts are the same as in `list_releases`, for the interpreter and the
    platform of this machine.

    :param minor_version_compatibility: ``None`` reads the setting from ``environ``.
    :param cache: the cache directory.
    """

    environ: Mapping[str, str]
    indexes: Indexes
    every_gpu: bool = False
    minor_version_compatibility: bool | None = None
    cache: str | None = None

    def judge(
        self, project: str, version: str | None, environments: Sequence[Environment]
    ) -> list[ReleaseTable]:
        """Read a project once, and judge its builds for each machine.

        :param version: the only release to judge; ``None`` for all.
        :raises InputError: the project or the release is on no readable index.
        :raises UsageError: there is no index.
        """
        with open_sources(self.indexes, self.environ, self.cache) as opened:
            sources = opened.only(project, Version(version)) if version else opened
            tables = self._read(project, sources, environments)
        if version is not None and tables and not any(t.releases for t in tables):
            hint = f"list what there is: nvp releases {project}"
            raise InputError(f"no index has {project} {version}", hint=hint)
        return tables

    def _read(
        self, project: str, sources: Sources, environments: Sequence[Environment]
    ) -> list[ReleaseTable]:
        from .reading import read_tables

        target = sources.interpreter.target
        selections = [
            Selection(
                machine=lambda found=environment: found,  # type: ignore[misc]
                target=target,
                every_gpu=self.every_gpu,
                minor_version_compatibility=self.minor_version_compatibility,
                environ=self.environ,
            )
            for environment in environments
        ]
        return read_tables(project, sources, selections)

    def select(
        self, project: str, environments: Sequence[Environment]
    ) -> list[Selected]:
        """Select a build for each machine among all releases, including regular wheels.

        The name of a build consists of its version and label: ``2.14.1+cu126``.

        :param project: such as ``torch``, or ``torch==2.15.0`` for one release.
        """
        return [
            find_selected(t) for t in self.judge(*parse_project(project), environments)
        ]

    def find_matrix(self, project: str, *, all_pairs: bool = False) -> Matrix:
        """Return the build of a release on an index for each driver-GPU pair.

        :param project: such as ``torch==2.15.0``; without a version, the newest release
            that any machine runs.
        """
        judged = self._judge_pairs(project, all_pairs=all_pairs)
        descriptions = {
            build.label or PLAIN: f"CUDA {build.cuda}" if build.cuda else ""
            for pair in judged.tables
            for build in judged.builds(pair)
        }
        tables = judged.tables.values()
        notes = {note for table in tables for note in table.notes}
        notes |= {table.without_code for table in tables if table.is_for_any_platform}
        cells = tuple(map(judged.cell, judged.tables))
        if any(cell.label == PLAIN for cell in cells):
            notes.add(f"{PLAIN}: the build without a label")
        return Matrix(
            metadata=None,
            title=judged.title,
            builds=descriptions,
            notes=tuple(sorted(notes)),
            cells=cells,
            left_out=len(list_pairs(all_pairs=True)) - len(judged.tables),
            minor_version_compatibility=False,
        )

    def compare(self, old: str, new: str, *, all_pairs: bool = False) -> Differences:
        """Compare the builds of two releases on an index for each driver-GPU pair.

        :param old: such as ``torch==2.14.1``.
        :param new: such as ``torch==2.15.0``.
        """
        before = self._judge_pairs(old, all_pairs=all_pairs)
        after = self._judge_pairs(new, all_pairs=all_pairs)
        return Differences(
            old=before.title,
            new=after.title,
            pairs=tuple(_change_of(before, after, pair) for pair in after.tables),
        )

    def compare_indexes(
        self, old: str, new: str, *, all_pairs: bool = False
    ) -> IndexDifferences:
        """Return which machines get a different build after an index has changed.

        :param old: a directory or a saved page, as for `read_index`; likewise ``new``.
        """
        from ..server.static_files import read_index, same_files, without_ignored

        before, after = read_index(old), read_index(new)
        saved = [os.path.isfile(path) for path in (old, new)]
        # Use only pip's connection settings: saved pages may link to files on servers.
        here = replace(self.indexes, url=".", links=["."])
        pairs = list_pairs(all_pairs=all_pairs)
        projects: dict[str, Differences] = {}
        notes: dict[str, None] = {}
        unchanged = []
        with open_sources(here, self.environ, self.cache) as sources:
            for project in sorted({*before, *after}):
                first, second = (side.get(project, []) for side in (before, after))
                sides = first, without_ignored(first, second)
                if len(sides[1]) < len(second):
                    notes[f"{project}: NEW has variants and not their metadata"] = None
                if same_files(*sides):
                    unchanged.append(project)
                    continue
                judged = []
                for side, files in zip(("OLD", "NEW"), sides, strict=True):
                    tables = self._judge_files(project, sources, files, pairs)
                    notes |= {f"{side}: {x}": None for t in tables for x in t.notes}
                    judged.append(tables)
                changes = tuple(
                    find_pick_change(pair, tables, saved)
                    for pair, *tables in zip(pairs, *judged, strict=True)
                )
                notes |= dict.fromkeys(find_unknown(project, changes))
                names = {"old": f"{project} (OLD)", "new": f"{project} (NEW)"}
                projects[project] = Differences(**names, pairs=changes)
        return IndexDifferences(
            projects=projects,
            unchanged=tuple(unchanged),
            platform=default_platform(),
            notes=tuple(notes),
        )

    def _judge_files(
        self,
        project: str,
        sources: Sources,
        files: Sequence[model.File],
        pairs: Sequence[Pair],
    ) -> list[ReleaseTable]:
        """Judge some files of a project for each pair.

        To save time, a table may lack releases that are older than one that runs.
        """
        if not files:
            empty = ReleaseTable(project=project, newest=None, releases=())
            return [empty] * len(pairs)
        own = sources.with_files(project, files)
        (table,) = self._read(project, own, [machine(*pairs[-1])])
        if not depends_on_machine(table):
            return [table] * len(pairs)
        versions = [Version(release.version) for release in table.releases]
        tables: dict[Pair, ReleaseTable] = {}
        depth = _RELEASES
        while left := [pair for pair in pairs if pair not in tables]:
            newest = own.only(project, *versions[:depth])
            found = self._read(project, newest, [machine(*pair) for pair in left])
            tables |= {
                pair: table
                for pair, table in zip(left, found, strict=True)
                if depth >= len(versions) or table.gpu_pick
            }
            depth *= _RELEASES
        return [tables[pair] for pair in pairs]

    def _judge_pairs(self, project: str, *, all_pairs: bool) -> _Judged:
        name, version = parse_project(project)
        pairs = list_pairs(all_pairs=all_pairs)
        if version is None:
            # Take the newest release that the newest driver with the newest GPU runs.
            (table,) = self.judge(name, None, [machine(*pairs[-1])])
            if not table.releases:
                hint = f"see why: nvp releases {name}"
                raise InputError(f"no index has wheels of {name} to show", hint=hint)
            version = table.newest or table.releases[0].version
        tables = self.judge(name, version, [machine(*pair) for pair in pairs])
        title = f"{name} {version}"
        return _Judged(title=title, tables=dict(zip(pairs, tables, strict=True)))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Judged:
    """One release, judged for every driver with every GPU."""

    title: str
    tables: Mapping[Pair, ReleaseTable]

    def cell(self, pair: Pair) -> Cell:
        """Return the build of the release for a driver-GPU pair."""
        selected = {r.selected for r in self.tables[pair].releases[:1]}
        build = next((b for b in self.builds(pair) if b.file in selected), None)
        return cell_of(pair, build, (build and build.label) or PLAIN)

    def builds(self, pair: Pair) -> Sequence[ListedBuild]:
        """Return the builds of the release, with the verdicts for a driver-GPU pair."""
        releases = self.tables[pair].releases
        return releases[0].builds if releases else ()


def _change_of(before: _Judged, after: _Judged, pair: Pair) -> PairChange:
    was, now = before.cell(pair), after.cell(pair)
    change = find_change(was, now)
    if change == LOST:
        reasons = [
            (build.label or PLAIN, "; ".join(build.reasons))
            for build in after.builds(pair)
            if build.verdict == "cannot"
        ][:_MOST_BUILDS]
        if not reasons:
            reasons = [(after.title, "it has no build for this platform and Python")]
        return PairChange(
            old=was,
            new=now,
            change=change,
            reason="; ".join(f"{label}: {reason}" for label, reason in reasons),
            causes=tuple(f"{x}: {NUMBERS.sub('', reason)}" for x, reason in reasons),
            workaround=tuple(_workarounds(before, after, was, pair)),
            risk=("an installer takes a build all the same, and the GPU stays idle",),
        )
    if change != CHANGED:
        return PairChange(old=was, new=now, change=change)
    why = f"{after.title} has other builds than {before.title}"
    return PairChange(old=was, new=now, change=change, reason=why, causes=(why,))


def _workarounds(
    before: _Judged, after: _Judged, was: Cell, pair: Pair
) -> Sequence[str]:
    stay = f"stay with {before.title}: it has {was.label}"
    for cuda, capability in sorted(after.tables):
        if capability == pair[1] and cuda > pair[0]:
            cell = after.cell((cuda, capability))
            if cell.exists and cell.uses_gpu:
                return [f"a driver for CUDA {cuda} gets {cell.label}", stay]
    return [stay]
