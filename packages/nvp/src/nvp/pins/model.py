"""The pins of a lock file, a requirements file or an environment.

All forms are read into the same kind of graph. `PinnedFile.roots` are the packages that
the project itself requires, always or for one of its extras and groups. `Pin.edges` are
the packages that each package requires. Forms that record for each package when it is
installed have only roots.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from nvidia_variant_provider.errors import UsageError, shown

if TYPE_CHECKING:
    from packaging.version import Version

    from .targets import PinTarget


_OWN_PYTHON = re.compile(r"-cp3([0-9]{1,2})-cp3\1-")
"""Matches the names of wheels for a single Python version."""


class Choice(NamedTuple):
    """An extra or a dependency group that a user can select."""

    kind: Literal["extra", "group"]
    name: str

    def __str__(self) -> str:
        return f"--{self.kind} {self.name}"


class Edge(NamedTuple):
    """A dependency on a package.

    :param pin: the position of the package in `PinnedFile.pins`.
    :param marker: the condition; empty for always.
    :param choice: the extra or group of the project that activates a root.
    :param extra: the extra of the requiring package that activates the edge.
    :param extras: the extras of the package that the edge requires.
    """

    pin: int
    marker: str = ""
    choice: Choice | None = None
    extra: str = ""
    extras: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class PinnedWheel:
    """A wheel that a lock file lists.

    :param url: the URL or the path in the lock file.
    """

    filename: str
    url: str | None = None
    sha256: str | None = None
    size: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Pin:
    """A package at one version.

    :param name: the normalized name.
    :param version: ``None`` if the file does not record it, as for a directory or an
        unpinned requirement.
    :param wheels: every wheel that the file lists, for any platform and interpreter.
    :param hashes: the SHA-256 hashes of files whose names are unknown.
    :param requires: the requirements of the package in the file; ``None`` if the form
        does not record them. In uv.lock and pylock.toml they have no versions.
    :param index: the URL of the index that the file records.
    :param origin: the URL or path of the package, if it is not from an index.
    :param path: the file with the pin, such as a file that another file includes.
    :param line: the line of the pin in the file, from 1.
    :param marker: the condition of the installation; empty for always.
        `PinnedFile.select` evaluates the markers of roots.
    :param edges: the dependencies, in forms that are a graph.
    :param is_project: whether the package is the project of the lock file itself.
    """

    name: str
    version: Version | None
    wheels: tuple[PinnedWheel, ...] = ()
    hashes: frozenset[str] = frozenset()
    has_sdist: bool = False
    requires: tuple[str, ...] | None = None
    index: str | None = None
    origin: str | None = None
    path: str = ""
    line: int | None = None
    marker: str = ""
    edges: tuple[Edge, ...] = field(default=(), repr=False)
    is_project: bool = False

    @property
    def is_open(self) -> bool:
        """Whether the version is not pinned, so an installer selects one."""
        return self.version is None and self.origin is None and not self.is_project

    @property
    def title(self) -> str:
        """The name and the version, such as ``torch 2.9.1+cu128``."""
        return f"{self.name} {self.version}" if self.version else self.name


class SelectedPin(NamedTuple):
    """A package that is installed on a target.

    :param wheel: the wheel that an installer selects; ``None`` if the file lists none
        for the target.
    """

    pin: Pin
    wheel: PinnedWheel | None


@dataclass(frozen=True, kw_only=True, slots=True)
class PinnedFile:
    """The pins of a file or an environment.

    :param form: the form, such as ``uv.lock``, ``requirements.txt`` or ``environment``.
    :param choices: all extras and groups of the project.
    :param defaults: the groups that are installed by default.
    :param conflicts: sets of choices of which at most one can be selected.
    :param requires_python: the supported Python versions, such as ``>=3.10``.
    :param environments: the markers of the supported environments; empty for all.
    :param platform: the platform tag, if the file records one.
    :param notes: a sentence for each item that cannot be checked.
    """

    path: str
    form: str
    pins: tuple[Pin, ...]
    roots: tuple[Edge, ...] = field(repr=False)
    choices: tuple[Choice, ...] = ()
    defaults: frozenset[Choice] = frozenset()
    conflicts: tuple[frozenset[Choice], ...] = ()
    requires_python: str | None = None
    environments: tuple[str, ...] = ()
    platform: str | None = None
    notes: tuple[str, ...] = ()

    def target(
        self,
        platforms: Sequence[str] = (),
        python_version: str | None = None,
        abis: Sequence[str] = (),
    ) -> PinTarget:
        """Return the target of the installation; see `find_target`.

        If the file does not record its Python versions, the names of its wheels may
        show the version, because pip locks for a single one.

        :raises UsageError: an option has an invalid value.
        """
        from .targets import find_target

        own = () if self.platform is None else (self.platform,)
        requires = self.requires_python or self._python_of_wheels()
        return find_target(
            requires,
            platforms=platforms or own,
            python_version=python_version,
            abis=abis,
        )

    def _python_of_wheels(self) -> str | None:
        names = (wheel.filename for pin in self.pins for wheel in pin.wheels)
        found = {match[1] for name in names if (match := _OWN_PYTHON.search(name))}
        return f"==3.{found.pop()}.*" if len(found) == 1 else None

    def why_not(self, target: PinTarget) -> str | None:
        """Return why the file does not support a target; ``None`` if it does."""
        from packaging.specifiers import SpecifierSet

        try:
            allowed = SpecifierSet(self.requires_python or "")
            if target.variables["python_full_version"] not in allowed:
                return f"it is for Python {allowed}, not for {target.python}"
        except ValueError:
            pass
        nothing: frozenset[str] = frozenset()
        if self.environments and not any(
            target.holds(marker, nothing, nothing) for marker in self.environments
        ):
            return "it is for other platforms: " + "; ".join(self.environments[:3])
        return None

    def choose(
        self, extras: Collection[str] = (), groups: Collection[str] = ()
    ) -> frozenset[Choice]:
        """Return the named extras and groups, with the default groups.

        Some tools call every extra a group. So if the file has no extra with a name,
        the group with that name is used, and the other way round.

        :raises UsageError: the file has no such choice, or two named choices conflict.
        """
        chosen = set(self.defaults)
        named: set[Choice] = set()
        for kind, names in (("extra", extras), ("group", groups)):
            for name in names:
                wanted = _normalized(name)
                same = [x for x in self.choices if _normalized(x.name) == wanted]
                found = [x for x in same if x.kind == kind] or same
                if not found:
                    there = ", ".join(map(str, self.choices[:20]))
                    message = f"there is no {kind} {shown(name)}"
                    hint = f"choose from: {there}" if there else "leave the option out"
                    raise UsageError(message, path=self.path, hint=hint)
                named.add(found[0])
        for conflict in self.conflicts:
            if len(both := sorted(conflict & named)) > 1:
                names = " and ".join(map(str, both))
                hint = "select one of them"
                raise UsageError(f"{names} conflict", path=self.path, hint=hint)
            if conflict & named:
                chosen -= conflict
        return frozenset(chosen | named)

    def alternatives(self) -> tuple[frozenset[Choice], ...]:
        """Return the selections that are checked if the user selects nothing.

        These are the default groups, alone and with each of the other choices. A choice
        is left out if it conflicts with an extra that a project of the workspace
        requires anyway.
        """
        edges = [edge for pin in self.pins if pin.is_project for edge in pin.edges]
        always = [x for x in edges if not x.extra and self.pins[x.pin].is_project]
        asked = {Choice("extra", name) for edge in always for name in edge.extras}
        found = {self.defaults: None}
        conflicts: dict[Choice, list[frozenset[Choice]]] = {}
        for conflict in self.conflicts:
            for choice in conflict:
                conflicts.setdefault(choice, []).append(conflict)
        for choice in self.choices:
            own = conflicts.get(choice, ())
            others = asked - {choice}
            if choice in self.defaults or not all(map(others.isdisjoint, own)):
                continue
            found[self.defaults.difference(*own) | {choice}] = None
        return tuple(found)

    def select(
        self, chosen: frozenset[Choice], target: PinTarget
    ) -> tuple[SelectedPin, ...]:
        """Return the packages of `installed` with their wheels."""
        return tuple(
            SelectedPin(pin, self._best(pin, target))
            for pin in self.installed(chosen, target)
        )

    def installed(
        self, chosen: frozenset[Choice], target: PinTarget
    ) -> tuple[Pin, ...]:
        """Return the packages that choices install on a target, in file order.

        Markers of uv may name an extra of a workspace project. The graph is followed
        again until all extras that other projects require are active in markers.
        """
        extras = frozenset(x.name for x in chosen if x.kind == "extra")
        groups = frozenset(x.name for x in chosen if x.kind == "group")
        while True:
            taken = self._follow(chosen, target, extras, groups)
            asked = (
                self._named(number, wanted)
                for number, wanted in taken.items()
                if self.pins[number].is_project
            )
            if (more := extras.union(*asked)) == extras:
                break
            extras = more
        pins = (self.pins[number] for number in sorted(taken))
        return tuple(pin for pin in pins if not pin.is_project)

    def _follow(
        self,
        chosen: frozenset[Choice],
        target: PinTarget,
        extras: frozenset[str],
        groups: frozenset[str],
    ) -> dict[int, set[str]]:
        """Return ``{position in `pins`: extras}`` of the installed packages.

        :param extras: the extras that are active in markers.
        """
        known: dict[tuple[str, frozenset[str]], bool] = {}
        taken: dict[int, set[str]] = {}
        waiting: list[tuple[int, str]] = []

        def follow(edge: Edge) -> None:
            if edge.marker:
                # In the marker of an edge, uv treats the extras of the edge as active.
                key = edge.marker, self._named(edge.pin, edge.extras)
                if key not in known:
                    known[key] = target.holds(edge.marker, extras | key[1], groups)
                if not known[key]:
                    return
            new = {"", *edge.extras} - taken.setdefault(edge.pin, set())
            taken[edge.pin] |= new
            waiting.extend((edge.pin, extra) for extra in new)

        for root in self.roots:
            if root.choice is None or root.choice in chosen:
                follow(root)
        while waiting:
            number, extra = waiting.pop()
            for edge in self.pins[number].edges:
                if edge.extra == extra:
                    follow(edge)
        return taken

    def _named(self, number: int, extras: Collection[str]) -> frozenset[str]:
        """Return the names that uv's markers use for extras of a package."""
        name = self.pins[number].name
        return frozenset(f"extra-{len(name)}-{name}-{x}" for x in extras if x)

    def _best(self, pin: Pin, target: PinTarget) -> PinnedWheel | None:
        if self.form == "environment":  # The wheel is installed, so it needs no match.
            return next(iter(pin.wheels), None)
        name = target.best(wheel.filename for wheel in pin.wheels)
        return next((wheel for wheel in pin.wheels if wheel.filename == name), None)


def _normalized(name: str) -> str:
    return re.sub("[-_.]+", "-", name).lower()
