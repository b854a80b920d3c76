"""Decide which builds of a project are shown to installers, and give the reasons.

An installer without knowledge of GPUs selects the newest release and its highest local
version. Two measures lead it to a build that runs: a *yanked* file (PEP 592) is
skipped unless the user pins its version exactly, and then the installer prints the
reason; a *hidden* file is not on the page.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, NamedTuple, TypeAlias

from packaging.version import Version

from ..wheels.archive import without_label
from .needs import Backend
from .verdicts import Judgement

Action: TypeAlias = Literal["show", "yank", "hide"]
RUNNING = ("runs", "partly")
ANY_PYTHON = frozenset({0})  # a placeholder, if the versions of Python do not matter


@dataclass(frozen=True, kw_only=True, slots=True)
class Build:
    """A wheel on the page of a project.

    :param version: the version with the local version label.
    :param backend: the target of the build, from its label or its directory; ``None``
        without a label, or if the label is not understood.
    :param platform: ``linux_x86_64``, ``linux_aarch64`` or ``win_amd64``; ``None`` for
        other platforms, and for platform-independent wheels.
    :param pythons: the minor versions of Python 3 for which an installer could select
        the wheel if GPUs did not matter; a single one if the client's Python is known.
    :param is_sure: whether every installer with one of these Pythons could select it.
    :param withdrawn: whether the index yanked the wheel.
    :param index: the number of another index, with which ``file`` starts, if any.
    """

    file: str
    version: Version
    backend: Backend | None
    judgement: Judgement
    platform: str | None = None
    pythons: frozenset[int] = ANY_PYTHON
    is_sure: bool = True
    withdrawn: bool = False
    index: int | None = None

    @property
    def is_silent(self) -> bool:
        """Whether nothing, not even METADATA, says that the wheel has GPU code."""
        unknown = self.judgement.verdict == "unknown" and self.judgement.cuda is None
        return unknown and self.backend is None

    @property
    def able(self) -> frozenset[int]:
        """The versions of Python for which all required projects have builds, too."""
        return self.judgement.limit(self.pythons)

    @property
    def name(self) -> str:
        """The file name of the wheel, in which a stranger may have put slashes."""
        return self.file if self.index is None else self.file.partition("/")[2]

    @property
    def release(self) -> Version:
        """The version without its label."""
        return without_label(self.version)

    def has_label(self, label: str) -> bool:
        """Return whether the build matches a label from the user, such as ``cu128``."""
        own = (self.backend.label, self.backend.base) if self.backend else ()
        return label.lower() in (self.version.local, *own)


@dataclass(frozen=True, kw_only=True, slots=True)
class Visibility:
    """Whether a wheel is shown, yanked or hidden, and why.

    :param reason: one line for the user; empty for a wheel that is shown.
    """

    action: Action
    reason: str = ""


SHOW = Visibility(action="show")
_FOREIGN = Visibility(action="hide", reason="it is for hardware of another vendor")


@dataclass(frozen=True, kw_only=True, slots=True)
class PageVisibility:
    """The visibility of all wheels of a page.

    :param files: the visibility of each wheel, keyed by file name.
    :param newest: the newest release with a build that runs, or ``None``.
    :param backends: the chosen backend of each release whose builds have labels.
    :param note: why no GPU will be used on a machine with a driver.
    """

    files: Mapping[str, Visibility]
    newest: Version | None
    backends: Mapping[Version, Backend]
    note: str | None = None


def find_visibility(
    builds: Iterable[Build],
    *,
    driver: bool,
    named: Collection[str] = (),
    label: str | None = None,
    follow: Mapping[Version, Backend] | None = None,
    has_plain: bool = False,
    early: Mapping[frozenset[int], Collection[str]] | None = None,
) -> PageVisibility:
    """Decide which builds of a project an installer sees.

    :param driver: whether the machine has an NVIDIA driver.
    :param named: local version labels that the user pinned, such as ``xpu``. Their
        builds are shown unless they cannot run.
    :param label: the label that the user requested. On a page with this label, its
        builds are shown unless they cannot run, and all others are hidden, because an
        exact pin would admit yanked files.
    :param follow: for each release, the backend of the project that it depends on, such
        as torch. If the release has a build for that backend, the build is chosen.
    :param has_plain: whether a final release has a file for any machine, such as its
        source. Then, builds for other hardware are no last resort.
    :param early: the wheels of pre-releases, keyed by the Pythons that can use them.
    """
    releases: dict[Version, list[Build]] = {}
    for build in builds:
        releases.setdefault(build.release, []).append(build)
    every = [build for group in releases.values() for build in group]
    # Compare only builds that the installer could select.
    left = [build for build in every if not build.withdrawn] or every
    candidates = [build for build in left if build.pythons] or left
    indexes = {build.index for build in every}
    by_python = _find_known(releases, indexes)
    by_index = dict.fromkeys(indexes, by_python)
    if len(indexes) > 1:
        # A release of another index does not show that the newest release of this index
        # cannot run.
        by_index = {index: _find_known(releases, {index}) for index in indexes}
    newest = by_python[None].newest
    if label is not None and any(build.has_label(label) for build in every):
        return _by_label(every, label, newest)
    files: dict[str, Visibility] = {}
    backends: dict[Version, Backend] = {}
    for release, group in releases.items():
        able = [x for x in group if x.able] or [x for x in group if x.pythons] or group
        choose = partial(_choose, driver=driver, follow=(follow or {}).get(release))
        choices: dict[int | None, Backend | None] = {None: choose(able)}
        for python in frozenset().union(*(build.able for build in able)):
            choices[python] = choose([b for b in able if python in b.able])
        if (choice := choices[None]) is not None:
            backends[release] = choice
        plain = [b.able for b in able if b.backend is None and _may_run(b)]
        with_plain = frozenset().union(*plain)
        for build in group:
            # A build for another Python is no alternative.
            own = [choices[python] for python in build.able]
            own = own or [None if build.pythons else choices[None]]
            label_of = build.backend and build.backend.label
            same = (c for c in own if c is None or c.label == label_of)
            files[build.file] = _visibility_of(
                build,
                next(same, own[-1]),
                by_python,
                by_index[build.index],
                driver=driver,
                named=named,
                plain=bool(plain) and build.pythons <= with_plain,
            )
    final = [build for build in left if not build.version.is_prerelease]
    actions: tuple[Action, ...] = ("yank",) if has_plain else ("yank", "hide")
    if newest is None or not _is_any_shown(files, final or left):
        _show_last_resorts(files, candidates, actions)
    elif early and not has_plain:
        # Not for each Python: uv and Poetry would lock a release that cannot run.
        known = {(files[x.file] == SHOW, x.name) for x in every}
        hidden = {x for _, x in known if (True, x) not in known}  # on every index
        left_for = (x for x, names in early.items() if not hidden.issuperset(names))
        pythons = frozenset[int]().union(*left_for)
        some = [replace(x, pythons=x.pythons & pythons) for x in final]
        _show_last_resorts(files, [x for x in some if x.pythons], actions)
    if not (has_plain or _is_any_shown(files, final)):  # not even for other Pythons
        anywhere = [replace(x, pythons=frozenset()) for x in left]
        _show_last_resorts(files, anywhere, actions)
    if unsure := [build for build in every if not build.is_sure]:
        # Builds that not every installer could select withdraw no others.
        again = find_visibility(
            [build for build in every if build.is_sure and build.pythons],
            driver=driver,
            named=named,
            follow=follow,
            has_plain=has_plain,
            early=early,
        )
        files |= {name: each for name, each in again.files.items() if each == SHOW}
        files |= {x.file: SHOW for x in unsure if x.judgement.verdict in RUNNING}
    note = _note(candidates) if driver and newest is None else None
    return PageVisibility(files=files, newest=newest, backends=backends, note=note)


class _Known(NamedTuple):
    """The newest release that runs under one version of Python.

    :param newest: the newest release with a build that runs.
    :param steps_back: whether the newest release cannot run.
    """

    newest: Version | None
    steps_back: bool


def _find_known(
    releases: Mapping[Version, Sequence[Build]], indexes: Collection[int | None]
) -> Mapping[int | None, _Known]:
    """Find the newest release that runs on each Python, or, keyed ``None``, on any.

    :param indexes: the indexes whose builds count.
    """
    is_installable = any(build.pythons for its in releases.values() for build in its)
    by_python: dict[int | None, _Known] = {}
    for release in sorted(releases, reverse=True):
        verdicts: dict[int | None, set[str]] = {}
        for build in releases[release]:
            if build.index not in indexes or (is_installable and not build.pythons):
                continue
            its = "unknown" if build.judgement.is_open else build.judgement.verdict
            ok = {*build.able, None} if build.able or not build.pythons else ()
            for key in (*build.pythons, None):
                verdicts.setdefault(key, set()).add(its if key in ok else "unknown")
        for python, found in verdicts.items():
            newest, refused = by_python.get(python, (None, found == {"cannot"}))
            if newest is None and not found.isdisjoint(RUNNING):
                newest = release
            by_python[python] = _Known(newest, refused)
    steps_back = any(refused and newest for newest, refused in by_python.values())
    newest = by_python[None].newest if by_python else None
    return by_python | {None: _Known(newest, steps_back)}


def _find_stand_in(
    build: Build, every: Mapping[int | None, _Known], *, steps_back: bool
) -> Version | None:
    """Return the older release to select instead of a build, or ``None``.

    A wheel for several versions of Python is replaced only if each of these versions
    has a release that runs.

    :param steps_back: replace only builds for a Python whose newest release cannot run.
    """
    pythons = [every[python] for python in build.pythons or (None,)]
    older = [x for x in pythons if x.newest and x.newest < build.release]
    is_step = not steps_back or any(item.steps_back for item in older)
    if not (is_step and all(known.newest for known in pythons)):
        return None
    return max((item.newest for item in older if item.newest), default=None)


def _is_any_shown(files: Mapping[str, Visibility], builds: Iterable[Build]) -> bool:
    """Return whether a build is shown that requires no unknown build."""
    shown = (build for build in builds if files[build.file].action == "show")
    return any(not build.judgement.is_open for build in shown)


def _show_last_resorts(
    files: dict[str, Visibility],
    candidates: Sequence[Build],
    actions: Sequence[Action],
) -> None:
    """Show files for each version of Python for which none, or no final one, is shown.

    Without a file for its Python, an installer stops with an error, even if there are
    files for other versions. Without a final release, it may take a pre-release.

    :param actions: files with the second are shown only where none with the first is.
    """
    final = [build for build in candidates if not build.version.is_prerelease]
    for group in (final, candidates):
        for action in actions:
            shown = {
                python
                for build in group
                if _is_any_shown(files, [build])
                for python in (build.able if build.pythons else (None,))
            }
            for build in group:
                is_left = not shown.issuperset(build.pythons or (None,))
                if is_left and files[build.file].action == action:
                    files[build.file] = SHOW


def _by_label(
    builds: Sequence[Build], label: str, newest: Version | None
) -> PageVisibility:
    files: dict[str, Visibility] = {}
    backends: dict[Version, Backend] = {}
    for build in builds:
        is_other = not build.has_label(label)
        if is_other or build.judgement.verdict == "cannot":
            other = f"another build was requested: {label}"
            reason = other if is_other else "; ".join(build.judgement.reasons)
            files[build.file] = Visibility(action="hide", reason=reason)
        else:
            files[build.file] = SHOW
            if build.backend is not None:
                backends[build.release] = build.backend
    return PageVisibility(files=files, newest=newest, backends=backends)


def _choose(
    group: Sequence[Build], *, driver: bool, follow: Backend | None
) -> Backend | None:
    """Choose a backend of a release; ``None`` if no backend is preferred."""
    labelled = [build for build in group if build.backend is not None]
    # Otherwise, each page could withdraw its builds for those of another page.
    own = (x for x in labelled if x.index is None and not x.judgement.is_open)
    able = (x.backend for x in own if x.judgement.verdict != "cannot")
    same = (x for x in able if x and follow and x.label == follow.label)
    if (first := next(same, None)) is not None:
        return first
    running = [build for build in labelled if build.judgement.verdict in RUNNING]
    if driver and running:
        return max(running, key=_preference).backend
    if driver and any(_may_run(build) for build in group):
        return None
    cpu = [b.backend for b in labelled if b.backend and b.backend.kind == "cpu"]
    return min(cpu, key=lambda backend: len(backend.label), default=None)


def _preference(build: Build) -> tuple[object, object]:
    return build.judgement.preference, build.backend and build.backend.preference


def _may_run(build: Build) -> bool:
    if build.backend is None:
        return build.judgement.verdict in RUNNING
    return build.backend.kind == "cuda" and build.judgement.verdict == "unknown"


def _visibility_of(
    build: Build,
    choice: Backend | None,
    by_python: Mapping[int | None, _Known],
    own: Mapping[int | None, _Known],
    *,
    driver: bool,
    named: Collection[str],
    plain: bool,
) -> Visibility:
    backend, judgement = build.backend, build.judgement
    is_named = build.version.local is not None and build.version.local in named
    # Yank even a named build that cannot run: under an exact pin, installers select the
    # yanked file and print the reason.
    if is_named and not (driver and judgement.verdict == "cannot"):
        return SHOW
    if backend is not None and backend.is_foreign:
        if driver:
            # Hide the file instead of yanking it: under an exact pin, pip selects the
            # highest local version of yanked files, which is +xpu.
            return _FOREIGN
        if choice is not None:
            reason = f"+{choice.label} is for any machine"
            return Visibility(action="yank", reason=reason)
        return SHOW
    if driver and judgement.verdict == "cannot":
        return Visibility(action="yank", reason="; ".join(judgement.reasons))
    if judgement.is_open:
        return SHOW  # no other build takes its place
    if driver and judgement.verdict == "unknown" and own[None].steps_back:
        # The newest release cannot run: yank this build if an older release runs.
        newest = _find_stand_in(build, own, steps_back=True)
        if newest is not None:
            reason = f"it is not known to run here, as {newest} is"
            return Visibility(action="yank", reason=reason)
    if backend and choice and backend.label != choice.label:
        reason = f"+{choice.label} is the build of {build.release} for this machine"
        return Visibility(action="yank", reason=reason)
    is_cpu = backend is not None and backend.kind == "cpu"
    newest = _find_stand_in(build, by_python, steps_back=False) if is_cpu else None
    if driver and newest is not None:
        reason = f"it does not use the GPU; {newest} is the newest release that does"
        return Visibility(action="yank", reason=reason)
    if driver and is_cpu and plain:
        # Otherwise installers prefer the CPU build, because its version has a label.
        reason = f"it does not use the GPU; the regular build of {build.release} does"
        return Visibility(action="yank", reason=reason)
    return SHOW


def _note(builds: Sequence[Build]) -> str | None:
    """Explain why no build runs, using the newest incompatible build."""
    refused = [build for build in builds if build.judgement.verdict == "cannot"]
    if not refused or any(build.judgement.verdict == "unknown" for build in builds):
        return None
    reasons = "; ".join(max(refused, key=lambda x: x.version).judgement.reasons)
    return f"the GPU will not be used: no release has a build that runs; {reasons}"


def find_visibility_elsewhere(
    here: Collection[Build],
    visibilities: Mapping[str, Visibility],
    elsewhere: Collection[Build],
    *,
    driver: bool,
) -> dict[str, Visibility]:
    """Decide the visibility of wheels that this machine cannot install.

    uv, Poetry and PDM lock one version for every platform, and a release is a candidate
    if one of its files is not yanked. A wheel for Windows would therefore bring in a
    release whose wheel for this machine is yanked, and both wheels would be locked.

    A version with a local label has the same visibility as on this machine. If a
    release has wheels for this machine, but none is shown, its other wheels are not
    shown either.

    :param here: the wheels that this machine can install.
    :param visibilities: the visibility of these wheels, keyed by file name.
    :returns: the visibility of the wheels ``elsewhere``, keyed by file name.
    """
    versions: dict[Version, Visibility] = {}
    releases: dict[Version, Visibility] = {}
    for build in here:
        each = visibilities[build.file]
        for known, key in ((versions, build.version), (releases, build.release)):
            if key not in known or each.action == "show":
                known[key] = each
    files: dict[str, Visibility] = {}
    final = [x for x in here if not (x.version.is_prerelease or x.withdrawn)]
    has_final = _is_any_shown(visibilities, final)
    has_final = has_final or all(x.version.is_prerelease for x in elsewhere)
    for build in elsewhere:
        each = releases.get(build.release, SHOW)
        if each.action == "show":
            # A shown release may have builds that are not shown: also compare labels.
            each = versions.get(build.version, SHOW)
        foreign = build.backend is not None and build.backend.is_foreign
        if foreign and driver and has_final and build.version not in versions:
            # Hide the build for other platforms too: under an exact pin, pip and uv
            # would select +xpu there.
            each = _FOREIGN
        files[build.file] = each
    return files
