"""Rename variant wheels for an installer that does not support variants.

A variant wheel is shown under the name of a regular wheel, with its rank and its
label as the build tag::

    torch-2.8.0-py3-none-any-cu129.whl    the file on the index
    torch-2.8.0-3cu129-py3-none-any.whl   the same bytes, as an installer sees them

PEP 427: the build tag "acts as a tie-breaker if two wheel file names are the same in
all other respects": installers select the highest one, and prefer any build tag to
none. All functions of this module are pure functions of names.

Installers compare the tags of wheels (interpreter, ABI, platform) before their build
tags. They would prefer a lower-ranked build whose tags are closer to the machine, such
as manylinux_2_34 instead of manylinux_2_28. Such a build is hidden.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from packaging.tags import Tag, compatible_tags, cpython_tags, mac_platforms
from packaging.utils import canonicalize_name, canonicalize_version

from nvidia_variant_provider.errors import InputError
from nvidia_variant_provider.metadata.document import parse_metadata_name

from ...metadata.requirements import Work
from ...wheels.archive import (
    WheelName,
    count_tags,
    parse_wheel_name,
    release_of_sdist,
)

_LEGACY = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}
_VERSIONED = re.compile(r"(manylinux|musllinux)_(\d+)_(\d+)_(\w+)")
_OLD = re.compile(rf"({'|'.join(_LEGACY)})_(\w+)")
_MAC = re.compile(r"macosx_(\d{1,2})_(\d{1,2})_\w+")
_INTERPRETER = re.compile(r"(?:cp|py)3(\d{1,2})")

_NEWEST = 14
"""The minor version that represents every version of Python that is in no wheel tag."""

_HIGHEST = 2**63
"""The highest build number to use; uv does not read numbers of more than 64 bits."""

_FREE_THREADED = 13
"""The first minor version of Python that is also built without the GIL."""

_FOR_TAG = 20
"""The steps of `Work` to make a tag. A rank of a tag or of a wheel on a machine is one
step; torch 2.9 needs 10,000 ranks."""

_OTHER_PLATFORM = "unnamed"
"""A placeholder for the platform."""

_UNUSABLE = sys.maxsize
"""The rank of a wheel that a machine cannot use."""

Tags = frozenset[Tag]


@dataclass(frozen=True, kw_only=True, slots=True)
class Wheel:
    """A wheel on a page: its file name and the parts of the name."""

    file_name: str
    parts: WheelName


@dataclass(frozen=True, kw_only=True, slots=True)
class Release:
    """The files of one version on a page.

    :param labelled: the variant wheels.
    :param plain: the non-variant wheels.
    :param sources: the names of the source distributions.
    :param metadata: the name of the file ``{name}-{version}-variants.json``, if any.
    """

    version: str
    labelled: list[Wheel] = field(default_factory=list)
    plain: list[Wheel] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    metadata: str | None = None

    @property
    def labels(self) -> frozenset[str]:
        """The labels of the variant wheels."""
        return frozenset(wheel.parts.label or "" for wheel in self.labelled)


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """A variant wheel, and its name for installers."""

    wheel: Wheel
    name: str
    label: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Others:
    """The wheels of a project on the other indexes of an installer.

    :param bases: as from `find_highest_builds`, for the indexes with lower priority.
    :param versions: the versions on all indexes, as in ``bases``; ``None`` if unknown.
    """

    bases: Mapping[str, int] = field(default_factory=dict)
    versions: Collection[str] | None = ()


def find_label(file_name: str) -> str | None:
    """Return the variant label in the name of a file, if it has one."""
    # Five dashes separate the name, the version, three tags and a label. Counting
    # dashes first is fast for pages with ten thousand files without a label.
    if not file_name.endswith(".whl") or file_name.count("-") < 5:
        return None
    try:
        return parse_wheel_name(file_name).label
    except InputError:
        return None


def project_of(file_name: str) -> str:
    """Return the normalized project name in the name of a wheel, or of most sdists."""
    return canonicalize_name(file_name.partition("-")[0])


def group(file_names: Iterable[str], project: str) -> dict[str, Release]:
    """Group the files of a page by version; omit releases without variant wheels.

    :param project: the normalized name; wheels of other projects are ignored.
    """
    names = list(file_names)
    if all(find_label(name) is None for name in names):
        return {}
    releases = _group_wheels(names, project)
    labelled = {key: item for key, item in releases.items() if item.labelled}
    own = project.replace("-", "_")
    for name in names:
        source = release_of_sdist(name, project)
        if source and (key := canonicalize_version(source)) in labelled:
            labelled[key].sources.append(name)
        given = parse_metadata_name(name)
        parts = given.normalized() if given is not None else None
        version = parts.version if parts is not None and parts.name == own else ""
        if (key := canonicalize_version(version)) in labelled:
            labelled[key] = replace(labelled[key], metadata=name)
    return {release.version: release for release in labelled.values()}


def find_highest_builds(pages: Sequence[Iterable[str]], project: str) -> dict[str, int]:
    """Return the highest build number that pages can show for each version.

    The ranks of a page with higher priority must start above this number.

    :param pages: the file names of the pages of ``project`` on several indexes, in
        the order of preference.
    :returns: ``{version: number}``, with versions in the form of
        `canonicalize_version`.
    """
    highest: dict[str, int] = {}
    for file_names in reversed(pages):
        for version, release in _group_wheels(file_names, project).items():
            own = _highest_build(release)
            after = highest.get(version, 0)
            if release.labelled:
                # The ranks of a page start above the ranks of the pages after it.
                ranks = len({_rank_key(wheel) for wheel in release.labelled})
                highest[version] = after + own + ranks
            else:
                highest[version] = max(after, own)
    return highest


def find_others(
    pages: Sequence[Iterable[str] | None], place: int, project: str
) -> Others:
    """Return the wheels on the pages of other indexes.

    :param pages: the file names of each page; ``None`` for an unreadable page.
    :param place: the number of these pages that have higher priority.
    """
    names = [page or () for page in pages]
    bases = find_highest_builds(names[place:], project)
    known = {*find_highest_builds(names[:place], project), *bases}
    return Others(bases=bases, versions=None if None in pages else known)


def _group_wheels(file_names: Iterable[str], project: str) -> dict[str, Release]:
    """Group wheels by canonical version: 1.0 and 1.0.0 are the same release."""
    releases: dict[str, Release] = {}
    own = project.replace("-", "_")
    for name in file_names:
        try:
            parts = parse_wheel_name(name) if name.endswith(".whl") else None
        except InputError:
            continue
        if parts is None or parts.name != own:
            continue
        key = canonicalize_version(parts.version)
        release = releases.setdefault(key, Release(version=parts.version))
        wheels = release.plain if parts.label is None else release.labelled
        wheels.append(Wheel(file_name=name, parts=parts))
    return releases


def served_name(file_name: str, rank: int) -> str:
    """Return the name under which a variant wheel is shown.

    :param file_name: the name of a wheel with a label.
    :param rank: higher is better.
    """
    stem, _, label = file_name.removesuffix(".whl").rpartition("-")
    parts = stem.split("-")
    # Separate the digits of a label from the digits of the rank.
    gap = "_" if label[:1].isdigit() else ""
    return "-".join([*parts[:2], f"{rank}{gap}{label}", *parts[-3:]]) + ".whl"


def make_offers(
    release: Release,
    labels: Sequence[str],
    *,
    others: Others | None = None,
    condition_of: Callable[[Wheel], object] = lambda _: None,
    work: Work | None = None,
) -> tuple[list[Offer], list[str]]:
    """Return the variant wheels to show, best first, and the file names to hide.

    There are none if a wheel of another index could replace a hidden regular wheel.

    :param labels: the labels that fit the machine, best first.
    :param others: the other indexes, to order several indexes.
    :param condition_of: returns the other properties that installers check; a wheel
        hides only wheels with the same properties.
    :param work: limits the comparisons of the page; if no work is left, no wheel is
        hidden.
    """
    by_label: dict[str, list[Wheel]] = {label: [] for label in labels}
    for wheel in release.labelled:
        by_label.get(wheel.parts.label or "", []).append(wheel)
    groups = [*by_label.values(), release.plain]
    hidden = _find_hidden(groups, condition_of, work or Work())
    # Within a label, put the wheels with the highest build number first.
    fitting = [
        wheel
        for wheels in by_label.values()
        for wheel in sorted(wheels, key=lambda w: w.parts.build, reverse=True)
    ]
    keys = list(dict.fromkeys(map(_rank_key, fitting)))
    # Use numbers above those of all non-variant wheels, so installers prefer variants.
    others, version = others or Others(), canonicalize_version(release.version)
    best = others.bases.get(version, 0) + _highest_build(release) + len(keys)
    is_shared = others.versions is None or version in others.versions
    exposes = is_shared and not hidden.isdisjoint(x.file_name for x in release.plain)
    if exposes or best > _HIGHEST:
        return [], []
    ranks = {key: best - place for place, key in enumerate(keys)}
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


def _highest_build(release: Release) -> int:
    """Return the highest build number of the non-variant wheels."""
    return max((w.parts.build[0] for w in release.plain if w.parts.build), default=0)


def _rank_key(wheel: Wheel) -> tuple[str | None, str]:
    """Return the label and the build tag of a wheel, which determine its rank.

    The build tag is text, because 1 and 01 belong to different file names.
    """
    build = wheel.file_name.split("-")[2] if wheel.parts.build else ""
    return wheel.parts.label, build


def _find_hidden(
    groups: Sequence[Sequence[Wheel]],
    condition_of: Callable[[Wheel], object],
    work: Work,
) -> set[str]:
    """Find the wheels whose tags make installers prefer them to better variants."""
    alike: dict[object, dict[int, list[Wheel]]] = {}
    for number, group in enumerate(groups):
        for wheel in group:
            same = alike.setdefault(condition_of(wheel), {})
            same.setdefault(number, []).append(wheel)
    hidden = set()
    for same in alike.values():
        found = [*same.values()]
        texts = {wheel.parts.supports for wheels in found for wheel in wheels}
        if len(found) < 2 or not work.take(_FOR_TAG * sum(map(count_tags, texts))):
            continue
        for group_, place in find_outranking(
            [[wheel.parts.tags for wheel in wheels] for wheels in found], work
        ):
            hidden.add(found[group_][place].file_name)
    return hidden


def find_outranking(
    groups: Sequence[Sequence[Tags]], work: Work
) -> list[tuple[int, int]]:
    """Find the wheels that some machine would prefer to wheels of a better variant.

    Only CPython is considered, with and without the GIL.

    :param groups: the tags of the wheels of each variant, best variant first.
    :param work: limits the comparisons; if no work is left, no wheel is found.
    :returns: for each wheel, the position of its group, and its position in the group.
    """
    if len({frozenset(group) for group in groups if group}) < 2:
        # Shortcut for the usual case: all variants are built for the same platforms.
        return []
    wheels = {tags for group in groups for tags in group}
    clients = _clients(frozenset().union(*wheels), work)
    count = sum(map(len, wheels)) + sum(map(len, groups))
    if not work.take(count * len(clients)):
        return []
    ranks = {
        tags: [min(client.get(tag, _UNUSABLE) for tag in tags) for client in clients]
        for tags in wheels
    }
    # For each machine, the rank of its best wheel in the best group that fits.
    best = [_UNUSABLE] * len(clients)
    outranking: list[tuple[int, int]] = []
    for number, group in enumerate(groups):
        seen = [_UNUSABLE] * len(clients)
        for place, tags in enumerate(group):
            own = ranks[tags]
            if any(mine < b < _UNUSABLE for mine, b in zip(own, best, strict=True)):
                outranking.append((number, place))
            else:
                seen = list(map(min, seen, own))
        best = [s if b == _UNUSABLE else b for b, s in zip(best, seen, strict=True)]
    return outranking


def _clients(tags: Tags, work: Work) -> list[dict[Tag, int]]:
    """Return the machines to compare, each as a mapping of its tags to ranks.

    There is one machine for each relevant platform and version of Python: a newer
    machine may support a wheel of the best group that an older machine does not.

    :returns: empty if no work is left.
    """
    named = {int(m[1]) for t in tags if (m := _INTERPRETER.fullmatch(t.interpreter))}
    # Add the neighbors of each named version: they cannot use wheels for only that one.
    minors = {near for m in named for near in (m - 1, m, m + 1)} | {_NEWEST}
    named_platforms = {t.platform for t in tags} - {"any"}
    orders = [
        _order(minor, abi)
        for minor in sorted(minors)
        for abi in (f"cp3{minor}", f"cp3{minor}t")
        if minor >= _FREE_THREADED or not abi.endswith("t")
    ]
    # There are at most two machines for each platform, and one for no platform.
    most = 1 + 2 * len(named_platforms)
    if not work.take(len(orders) * most * len(tags)):
        return []
    machines = [
        {"any": 0} | {name: place for place, name in enumerate(names)}
        for names in sorted(_machines(named_platforms))
    ]
    keys = {tag: (tag.interpreter, tag.abi, tag.platform == "any") for tag in tags}
    # Ranks are compared only with each other: the platform decides last.
    return [
        {
            tag: order[key] * len(tags) + places[tag.platform]
            for tag, key in keys.items()
            if key in order and tag.platform in places
        }
        for order in orders
        for places in machines
    ]


def _machines(platforms: set[str]) -> set[tuple[str, ...]]:
    """Return which of ``platforms`` each kind of machine accepts, best first."""
    kinds: dict[str, list[str]] = {}
    versions: set[tuple[int, int]] = set()
    for platform in platforms:
        if match := _MAC.fullmatch(platform):
            versions.add((int(match[1]), int(match[2])))
        else:
            for kind in _kinds(platform):
                kinds.setdefault(kind, []).append(platform)
    machines: set[tuple[str, ...]] = {()}
    for names in kinds.values():
        ordered = sorted(names, key=_platform_key, reverse=True)
        machines.update(tuple(ordered[start:]) for start in range(len(ordered)))
    for version in versions:
        for arch in ("arm64", "x86_64"):
            order = mac_platforms(version, arch)
            machines.add(tuple(name for name in order if name in platforms))
    return machines


@lru_cache(maxsize=256)
def _order(minor: int, abi: str) -> Mapping[tuple[str, str, bool], int]:
    """Return the ranks of the interpreters and ABIs that a version of Python accepts.

    :returns: the rank of each interpreter and ABI, on a platform and on any platform.
    """
    version, names = (3, minor), (_OTHER_PLATFORM,)
    ordered = [
        *cpython_tags(version, abis=[abi], platforms=names),
        *compatible_tags(version, f"cp3{minor}", names),
    ]
    return {
        (tag.interpreter, tag.abi, tag.platform == "any"): rank
        for rank, tag in reversed(list(enumerate(ordered)))
    }


def _kinds(platform: str) -> list[str]:
    """Return the kinds of machines for a platform, such as ``manylinux x86_64``."""
    if match := _VERSIONED.fullmatch(platform):
        return [f"{match[1]} {match[4]}"]
    if match := _OLD.fullmatch(platform):
        return [f"manylinux {match[2]}"]
    if platform.startswith("linux_"):
        arch = platform.removeprefix("linux_")
        return [f"manylinux {arch}", f"musllinux {arch}"]
    return [platform]


def _platform_key(platform: str) -> tuple[int, int, bool]:
    """Return the sort key of platforms of one kind; machines prefer higher keys."""
    if match := _VERSIONED.fullmatch(platform):
        return int(match[2]), int(match[3]), True
    if match := _OLD.fullmatch(platform):
        return *_LEGACY[match[1]], False
    return 0, 0, False
