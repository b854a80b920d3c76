"""Rename variant wheels for an installer that does not support variants.

A variant wheel is shown under the name of a regular wheel. The build tag is its rank,
its label and, so that uv caches no other build under this name, its own build tag::

    torch-2.8.0-py3-none-any-cu129.whl    the file on the index
    torch-2.8.0-3cu129-py3-none-any.whl   the same bytes, as an installer sees them

PEP 427: the build tag "acts as a tie-breaker if two wheel file names are the same in
all other respects": installers select the highest one, and prefer any build tag to
none. All functions of this module are pure functions of names.

Installers compare the tags of wheels (interpreter, ABI, platform) before their build
tags. They would prefer a lower-ranked build whose tags are closer to the machine, such
as manylinux_2_34 instead of manylinux_2_28. A higher-ranked build therefore gets such
tags, too, if all their machines can use the build. No regular wheel is hidden: on a
machine that cannot use the build, installers must find what they find without variants.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import chain, product
from typing import NamedTuple

from packaging.tags import Tag, compatible_tags, cpython_tags, mac_platforms, parse_tag
from packaging.utils import canonicalize_version

from nvidia_variant_provider.errors import InputError
from nvidia_variant_provider.metadata.document import parse_metadata_name

from ...metadata.requirements import Work
from ...wheels.archive import (
    WheelName,
    count_tags,
    expands_too_far,
    parse_wheel_name,
    release_of_sdist,
)

_LEGACY = {"manylinux1": "2_5", "manylinux2010": "2_12", "manylinux2014": "2_17"}
_VERSIONED = re.compile(r"(manylinux|musllinux)_(\d+)_(\d+)_(\w+)")
_OLD = re.compile(rf"^({'|'.join(_LEGACY)})_")
_MAC = re.compile(r"macosx_(\d{1,2})_(\d{1,2})_(?:x86_64|arm64|universal2)")
_MACS = ("arm64", "x86_64")
_CPYTHON = re.compile(r"(?:(?:cp|py)[23]\d{0,2}\.?)+-.*")
_INTERPRETER = re.compile(r"(?:cp|py)3(\d{1,2})")

_NEWEST = 14
"""The minor version that represents every version of Python that is in no wheel tag."""

_HIGHEST = 2**63
"""The highest build number to use; uv does not read numbers of more than 64 bits."""

_FOR_TAG = 20
"""The steps of `Work` to make a tag. To rank a tag on a machine is one step."""

_LONGEST = 255 - len(".metadata")
"""The maximum length of a name with added tags, which installers use for files."""

_Machine = tuple[Mapping[tuple[str, str, bool], int], Mapping[str, int]]


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
    """A variant wheel, and its name for installers.

    :param bare: the same name, without added tags.
    """

    wheel: Wheel
    name: str
    bare: str
    label: str


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
            # The ranks of a page start above the ranks of the pages after it.
            ranks = len(set(map(_rank_key, release.labelled)))
            highest[version] = after + own + ranks if ranks else max(after, own)
    return highest


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


def served_name(file_name: str, rank: int, tags: str) -> str:
    """Return the name under which a variant wheel is shown.

    :param file_name: the name of a wheel with a label.
    :param rank: higher is better.
    :param tags: the tags to show, such as ``py3-none-any``.
    """
    stem, _, label = file_name.removesuffix(".whl").rpartition("-")
    parts = stem.split("-")
    # No label has these letters. Digits of the rank and of a label must stay apart.
    gap = "" if label[:1].isalpha() else "L"
    own = f"B{parts[2]}" if len(parts) > 5 else ""
    return f"{'-'.join([*parts[:2], f'{rank}{gap}{label}{own}', tags])}.whl"


def make_offers(
    release: Release,
    labels: Sequence[str],
    *,
    base: int = 0,
    work: Work | None = None,
) -> list[Offer]:
    """Return the variant wheels to show, best first.

    :param labels: the labels that fit the machine, best first.
    :param base: the build number above which the ranks start, as from
        `find_highest_builds` for the indexes with lower priority.
    :param work: limits the comparisons of the page; see `add_tags`.
    """
    by_label: dict[str, list[Wheel]] = {label: [] for label in labels}
    for wheel in release.labelled:
        by_label.get(wheel.parts.label or "", []).append(wheel)
    # Within a label, put the wheels with the highest build number first.
    groups = [
        sorted(wheels, key=lambda w: w.parts.build, reverse=True)
        for wheels in by_label.values()
    ]
    fitting = [*chain.from_iterable(groups)]
    keys = list(dict.fromkeys(map(_rank_key, fitting)))
    # Use numbers above those of all non-variant wheels, so installers prefer variants.
    best = base + _highest_build(release) + len(keys)
    if best > _HIGHEST:
        return []
    ranks = {key: best - place for place, key in enumerate(keys)}
    own = [[w.parts.supports for w in wheels] for wheels in (*groups, release.plain)]
    tags = add_tags(own, work or Work())
    offers = []
    for wheel, text in zip(fitting, chain.from_iterable(tags), strict=False):
        make = partial(served_name, wheel.file_name, ranks[_rank_key(wheel)])
        name, bare = make(text), make(wheel.parts.supports)
        name = name if len(name) <= _LONGEST else bare
        label = wheel.parts.label or ""
        offers.append(Offer(wheel=wheel, name=name, bare=bare, label=label))
    return offers


def _highest_build(release: Release) -> int:
    """Return the highest build number of the non-variant wheels."""
    return max((w.parts.build[0] for w in release.plain if w.parts.build), default=0)


def _rank_key(wheel: Wheel) -> tuple[str | None, str]:
    """Return the label and the build tag of a wheel, which determine its rank.

    The build tag is text, because 1 and 01 belong to different file names.
    """
    build = wheel.file_name.split("-")[2] if wheel.parts.build else ""
    return wheel.parts.label, build


def add_tags(groups: Sequence[Sequence[str]], work: Work) -> list[list[str]]:
    """Add tags to wheels, so that machines prefer none of a worse variant to them.

    A wheel gets only tags of machines that can use it, with CPython, also without the
    GIL, or with another implementation, which uses wheels for any.

    :param groups: the tags of the wheels of each variant, such as ``py3-none-any``;
        the best variant is first.
    :param work: limits the comparisons; if no work is left, no further tag is added.
    :returns: the tags to show for each wheel.
    """
    shown = [list(group) for group in groups]
    texts = {text for group in shown for text in group}
    size = sum(map(count_tags, texts))
    kinds = {frozenset(group) for group in shown if group}  # usually one
    if len(kinds) < 2 or not work.take(_FOR_TAG * size):
        return shown
    tags = frozenset().union(*map(parse_tag, texts))
    machines = _Machines(_list_machines(tags, work), work)
    if not work.take((size + sum(map(len, shown))) * len(machines.all)):
        return shown
    # The best wheel of the worse variants on each machine.
    worse = machines.find_best([])
    for group in reversed(shown):
        machines.improve(group, worse)
        worse = [*map(min, worse, machines.find_best(group))]
    return shown


class _Best(NamedTuple):
    """The best tag of some wheels on a machine, and all tags of its wheel.

    The rank is that of the interpreter and ABI, then that of the platform.
    """

    rank: tuple[int, int]
    tag: Tag
    text: str


_NONE = _Best((sys.maxsize, 0), Tag("", "", ""), "")
"""The best of no wheels that fit the machine."""


class _Machines:
    """Machines on which wheels are compared by their tags.

    :param machines: the ranks of interpreters and ABIs, and those of platforms.
    """

    def __init__(self, machines: list[_Machine], work: Work) -> None:
        self.all = machines
        self._work = work
        self._found: dict[str, list[_Best]] = {}

    def find_best(self, texts: Iterable[str]) -> list[_Best]:
        """Return the best of the wheels with these tags for each machine."""
        found = [self._rank(text) for text in dict.fromkeys(texts)]
        best = [min(each) for each in zip(*found, strict=True)]
        return best or [_NONE] * len(self.all)

    def improve(self, group: list[str], worse: Sequence[_Best]) -> None:
        """Add tags to ``group``, the wheels of a variant.

        :param worse: the best wheels of the worse variants.
        """
        best = self.find_best(group)
        for place, other in enumerate(worse):
            own = best[place]
            if not other.rank < own.rank < _NONE.rank:
                continue
            # The platform that fewer machines have is the one to add.
            for platform in (other.tag.platform, own.tag.platform):
                tag = (other.tag.interpreter, other.tag.abi, platform)
                text = _with_tag(own.text, tag)
                if (
                    self._fits(text, own.text)
                    and self._rank(text)[place].rank <= other.rank
                ):
                    group[:] = [text if x == own.text else x for x in group]
                    best = self.find_best(group)
                    break

    def _fits(self, text: str, original: str) -> bool:
        """Return whether tags are allowed, and fit only machines that others fit."""
        steps = (count_tags(text) + len(self._found)) * len(self.all)
        if expands_too_far(text) or not _CPYTHON.fullmatch(text):
            return False
        if not self._work.take(steps):
            return False
        pairs = zip(self._rank(text), self._rank(original), strict=True)
        return all(new == _NONE or old != _NONE for new, old in pairs)

    def _rank(self, text: str) -> list[_Best]:
        if text not in self._found:
            found = parse_tag(text)
            tags = [(x, (x.interpreter, x.abi, x.platform == "any")) for x in found]
            self._found[text] = [
                min(
                    (
                        _Best((order[key], places[tag.platform]), tag, text)
                        for tag, key in tags
                        if key in order and tag.platform in places
                    ),
                    default=_NONE,
                )
                for order, places in self.all
            ]
        return self._found[text]


def _with_tag(text: str, tag: Iterable[str]) -> str:
    """Add the parts of a tag to tags such as ``py3-none-any``."""
    parts = zip(text.split("-"), tag, strict=True)
    return "-".join(x if new in x.split(".") else f"{x}.{new}" for x, new in parts)


def _list_machines(tags: frozenset[Tag], work: Work) -> list[_Machine]:
    """Return the machines to compare, each with the ranks of the parts of its tags.

    There is one machine for each relevant platform and version of Python; there is none
    if no work is left.
    """
    named = {int(m[1]) for t in tags if (m := _INTERPRETER.fullmatch(t.interpreter))}
    # Add the neighbors of each named version: they cannot use wheels for only that one.
    minors = {near for m in named for near in (m - 1, m, m + 1)} | {_NEWEST}
    platforms = {t.platform for t in tags} - {"any"}
    # Since 3.13, CPython is also built without the GIL.
    orders = [
        _order(minor, abi)
        for minor in sorted(minors)
        for abi in (None, f"cp3{minor}", f"cp3{minor}t")[: 2 + (minor > 12)]
    ]
    # There are at most two machines for each platform, and one for no platform.
    if not work.take(len(orders) * (1 + 2 * len(platforms)) * len(tags)):
        return []
    found = [("any", *names) for names in sorted(_find_machines(platforms))]
    places = [{name: place for place, name in enumerate(names)} for names in found]
    return [*product(orders, places)]


def _find_machines(platforms: set[str]) -> set[tuple[str, ...]]:
    """Return which of ``platforms`` each kind of machine accepts, best first."""
    kinds: dict[str, list[str]] = {}
    macs = {m for platform in platforms if (m := _MAC.fullmatch(platform))}
    for platform in platforms.difference(m[0] for m in macs):
        for kind in _kinds(platform):
            kinds.setdefault(kind, []).append(platform)
    machines: set[tuple[str, ...]] = {()}
    for names in kinds.values():
        ordered = sorted(names, key=_platform_key, reverse=True)
        machines.update(tuple(ordered[start:]) for start in range(len(ordered)))
    for version, arch in product({(int(m[1]), int(m[2])) for m in macs}, _MACS):
        order = mac_platforms(version, arch)
        machines.add(tuple(name for name in order if name in platforms))
    return machines


@lru_cache(maxsize=256)
def _order(minor: int, abi: str | None) -> Mapping[tuple[str, str, bool], int]:
    """Return the ranks of the interpreters and ABIs that a version of Python accepts.

    :param abi: that of CPython; ``None`` for another implementation.
    :returns: the rank of each interpreter and ABI, on a platform and on any platform.
    """
    version, names = (3, minor), ("some_platform",)
    ordered = [
        *(cpython_tags(version, abis=[abi], platforms=names) if abi else ()),
        *compatible_tags(version, f"cp3{minor}" if abi else None, names),
    ]
    return {
        (tag.interpreter, tag.abi, tag.platform == "any"): rank
        for rank, tag in reversed(list(enumerate(ordered)))
    }


def _kinds(platform: str) -> list[str]:
    """Return the kinds of machines for a platform, such as ``manylinux x86_64``."""
    if match := _VERSIONED.fullmatch(_modern(platform)):
        return [f"{match[1]} {match[4]}"]
    start, _, arch = platform.partition("_")
    libraries = ("manylinux", "musllinux") if start == "linux" else ()
    return [f"{library} {arch}" for library in libraries] or [platform]


def _platform_key(platform: str) -> tuple[int, int, bool]:
    """Return the sort key of platforms of one kind; machines prefer higher keys."""
    new = _modern(platform)
    match = _VERSIONED.fullmatch(new)
    return (int(match[2]), int(match[3]), new == platform) if match else (0, 0, False)


def _modern(platform: str) -> str:
    """Return ``manylinux_2_17_x86_64`` for ``manylinux2014_x86_64``."""
    return _OLD.sub(lambda match: f"manylinux_{_LEGACY[match[1]]}_", platform)
