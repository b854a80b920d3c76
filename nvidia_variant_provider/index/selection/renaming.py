"""How the files of a release are shown to an installer that knows no variants.

A labelled wheel is shown under the name of an ordinary one, with its rank and its
label in place of a build tag::

    torch-2.8.0-py3-none-any-cu129.whl    the file on the index
    torch-2.8.0-3cu129-py3-none-any.whl   the same bytes, as they are shown

PEP 427: the build tag "acts as a tie-breaker if two wheel file names are the same
in all other respects": installers take the highest, and any build tag goes before
none. Everything here is a pure function of names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from packaging.utils import canonicalize_name, canonicalize_version

from ...errors import InputError
from ...metadata.names import parse_metadata_name
from ...wheels.archive import WheelName, parse_wheel_name
from .tag_order import find_outranking

__all__ = [
    "Offer",
    "Release",
    "Wheel",
    "find_label",
    "group",
    "make_offers",
    "project_of",
    "served_name",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Wheel:
    """A wheel on a page: the name of its file, and what that says."""

    file_name: str
    parts: WheelName


@dataclass(frozen=True, kw_only=True, slots=True)
class Release:
    """What a page has of one version.

    :param labelled: the variant wheels.
    :param plain: the non-variant ones.
    :param metadata: the name of the ``{name}-{version}-variants.json``, if any.
    """

    version: str
    labelled: list[Wheel] = field(default_factory=list)
    plain: list[Wheel] = field(default_factory=list)
    metadata: str | None = None

    @property
    def labels(self) -> frozenset[str]:
        """The labels that it has wheels of."""
        return frozenset(wheel.parts.label or "" for wheel in self.labelled)


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """A variant wheel that an installer gets to see, and the name it has there."""

    wheel: Wheel
    name: str
    label: str


def find_label(file_name: str) -> str | None:
    """The variant label in the name of a file; quick for those without one."""
    # Five dashes at the least: name, version, three tags, label.
    if not file_name.endswith(".whl") or file_name.count("-") < 5:
        return None
    try:
        return parse_wheel_name(file_name).label
    except InputError:
        return None


def project_of(file_name: str) -> str:
    """The normalized project in the name of a wheel, or an sdist of most projects."""
    return canonicalize_name(file_name.partition("-")[0])


def group(file_names: Iterable[str], project: str) -> dict[str, Release]:
    """The releases that have variant wheels, by version; none cost little.

    :param project: its normalized name; wheels of others are left out.
    """
    names = list(file_names)
    if all(find_label(name) is None for name in names):
        return {}
    releases: dict[str, Release] = {}
    same: dict[str, str] = {}  # 1.0 and 1.0.0 are one release
    own = project.replace("-", "_")
    for name in names:
        try:
            parts = parse_wheel_name(name) if name.endswith(".whl") else None
        except InputError:
            continue
        if parts is None or parts.name != own:
            continue
        version = same.setdefault(canonicalize_version(parts.version), parts.version)
        release = releases.setdefault(version, Release(version=version))
        wheels = release.plain if parts.label is None else release.labelled
        wheels.append(Wheel(file_name=name, parts=parts))
    found = {version: item for version, item in releases.items() if item.labelled}
    for name in names:
        version = same.get(canonicalize_version(_metadata_version(name, own)), "")
        if version in found:
            found[version] = replace(found[version], metadata=name)
    return found


def _metadata_version(file_name: str, own: str) -> str:
    """The normalized version that a metadata file is for; empty for other files."""
    given = parse_metadata_name(file_name)
    parts = given.normalized() if given is not None else None
    return parts.version if parts is not None and parts.name == own else ""


def served_name(file_name: str, rank: int) -> str:
    """The name under which a variant wheel is shown.

    :param file_name: that of a wheel with a label.
    :param rank: higher is better.
    """
    stem, _, label = file_name.removesuffix(".whl").rpartition("-")
    parts = stem.split("-")
    # The digits of a label would go on with those of the rank.
    gap = "_" if label[:1].isdigit() else ""
    return "-".join([*parts[:2], f"{rank}{gap}{label}", *parts[-3:]]) + ".whl"


def make_offers(
    release: Release,
    labels: Sequence[str],
    *,
    base: int = 0,
    conditions: Mapping[str, object] | None = None,
) -> tuple[list[Offer], list[str]]:
    """What to show of a release: variant wheels, best first, and file names to hide.

    :param labels: those that fit the machine, best first.
    :param base: ranks start above it; by it one index goes before another.
    :param conditions: what else of a file decides whether it is taken, by name:
        wheels hide those of the same condition only.
    """
    by_label: dict[str, list[Wheel]] = {label: [] for label in labels}
    for wheel in release.labelled:
        by_label.get(wheel.parts.label or "", []).append(wheel)
    # Non-variant wheels come after all of them, whatever build number they have.
    floor = max(
        (build[0] for w in release.plain if (build := w.parts.build)), default=0
    )
    groups = [*by_label.values(), release.plain]
    hidden = _find_hidden(groups, conditions or {})
    # Of one label, a higher build number of its own goes first.
    fitting = [
        wheel
        for wheels in by_label.values()
        for wheel in sorted(wheels, key=lambda w: w.parts.build, reverse=True)
    ]
    keys = list(dict.fromkeys(map(_rank_key, fitting)))
    ranks = {key: base + floor + len(keys) - place for place, key in enumerate(keys)}
    offers = [
        Offer(
            wheel=wheel,
            name=served_name(wheel.file_name, ranks[_rank_key(wheel)]),
            label=wheel.parts.label or "",
        )
        for wheel in fitting
        if wheel.file_name not in hidden
    ]
    return offers, sorted(hidden)


def _rank_key(wheel: Wheel) -> tuple[str | None, str]:
    """Wheels with one of these differ in their tags; 1 and 01 are other names."""
    build = wheel.file_name.split("-")[2] if wheel.parts.build else ""
    return wheel.parts.label, build


def _find_hidden(
    groups: Sequence[Sequence[Wheel]], conditions: Mapping[str, object]
) -> set[str]:
    """The wheels that tags would put before a better group."""
    hidden = set()
    found = {conditions.get(wheel.file_name) for group in groups for wheel in group}
    for condition in found:
        alike = [
            [w for w in wheels if conditions.get(w.file_name) == condition]
            for wheels in groups
        ]
        for group, place in find_outranking(
            [[wheel.parts.tags for wheel in wheels] for wheels in alike]
        ):
            hidden.add(alike[group][place].file_name)
    return hidden
