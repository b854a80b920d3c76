"""What is known of a pinned package, and whether it runs on a machine.

The steps and the rules are those by which `releases` judges a page, for one wheel of
each project: the table of builds, the label, what `inspect` has kept, METADATA, and the
name. A build cannot run where nothing runs that satisfies what it requires: of the
releases in the table, and of what is pinned with it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from urllib.parse import urlsplit

from packaging.version import Version

from nvidia_variant_provider.machine.environment import Environment

from ..builds.needs import (
    Backend,
    needs_of_backend,
    needs_of_name,
    needs_of_requirements,
    parse_backend,
)
from ..builds.verdicts import (
    UNKNOWN,
    Judgement,
    find_refusal,
    judge,
    judge_by_pin,
    refusal_of_driver,
)
from ..knowledge.builds import (
    PROJECTS,
    BuildRecord,
    Needs,
    build_records,
    find_neighbours,
    find_record,
    required_projects,
)
from ..metadata.requirements import requirements_on
from ..pins.model import Pin, PinnedWheel, SelectedPin
from ..wheels.archive import platform_of

SMALLEST = 1_000_000
"""Bytes of the smallest wheel that may hold GPU code where nothing else says so."""

_FOR_GPUS = re.compile(r"(?!nvidia-|cuda-).*(?:^|-)(?:gpu|cuda|tensorrt)(?:-|[0-9]|$)")
"""Of NVIDIA's own projects, many are headers, compilers and bindings."""

_OF_CUDA = ("nvidia-", "cuda-")
_NAME_ALONE = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[[^]]*\])?\s*(;.*)?")

Judged = Mapping[Version, Sequence[Judgement]]


@dataclass(frozen=True, kw_only=True)
class Known:
    """A pinned package that is a GPU build, or may be one, with what is known of it.

    :param platform: as the table of builds names it; ``None`` for any other.
    :param needs: by the table, its label, an inspection or what it requires.
    :param named: by the name of its project.
    :param requires: what it requires, as texts; `needs` may know more.
    :param is_named: something but the size of its wheel says that it may use a GPU.
    :param is_listed: the table has it.
    :param stands_in: ``wheel`` is for another Python than is installed for.
    """

    pin: Pin
    wheel: PinnedWheel | None
    platform: str | None
    backend: Backend | None = None
    needs: Needs | None = None
    named: Needs | None = None
    requires: tuple[str, ...] = ()
    is_named: bool = True
    is_listed: bool = False
    stands_in: bool = False

    @property
    def release(self) -> Version:
        """Its version without the label."""
        version = self.pin.version
        return Version(version.public) if version else Version("0")

    @property
    def is_library(self) -> bool:
        """Whether it is one of NVIDIA's libraries, which programs bring with them."""
        return self.pin.name.startswith("nvidia-")

    @property
    def lacks_metadata(self) -> bool:
        """Whether METADATA may say more of it than is known."""
        if self.pin.version is None or self.is_library or self.platform is None:
            return False
        if self.backend is not None and self.backend.kind != "cuda":
            return False
        needs, texts = self.needs, self.pin.requires
        if self.is_listed:
            return False
        if needs is not None and (needs.cuda or not needs.gpu or needs.doubt):
            return needs.evidence == "label" and texts is None
        # uv.lock and pylock.toml name projects alone, without versions.
        return not texts or all(_NAME_ALONE.fullmatch(text) for text in texts)

    @cached_property
    def near(self) -> Sequence[BuildRecord]:
        """The releases before and after it whose code was read."""
        return find_neighbours(self.pin.name, self.release, self.platform)

    @cached_property
    def required(self) -> Mapping[str, str]:
        """What it requires of projects with GPU builds: the text by project."""
        texts = self.needs.requires if self.needs else ()
        return required_projects((*self.requires, *texts), PROJECTS - {self.pin.name})

    def with_metadata(self, requires: Sequence[str]) -> Known:
        """Return it with what the ``Requires-Dist`` of its METADATA say."""
        listed = requirements_on(requires, self.platform)
        known = self.needs or self.named
        needs = needs_of_requirements(listed, self.pin.name)
        if needs is None or (needs.doubt and known):
            needs = known
        if needs is None:
            # Nothing is known of its own code, but what it requires may not run.
            needs = Needs(evidence="metadata", source=f"METADATA of {self.pin.title}")
        labelled = known.requires if known is not None else ()
        needs = replace(needs, requires=(*listed, *labelled))
        return replace(self, needs=needs, requires=listed)

    @property
    def may_be_build(self) -> bool:
        """Whether anything says that it uses a GPU, or may."""
        says = self.needs is not None and (
            self.needs.cuda is not None or self.needs.evidence != "metadata"
        )
        return self.is_named or says or bool(self.required)

    def judge(
        self,
        environment: Environment,
        judged_of: Callable[[str], Judged],
        *,
        every_gpu: bool = False,
    ) -> Judgement:
        """Judge it for a machine.

        :param judged_of: returns the judgements on the builds of a project that it
            requires, by release.
        """
        needs, driver = self.needs, environment.cuda_driver_version
        if needs is None or (
            # METADATA may say nothing where the name says that it cannot run.
            (self.named and driver and refusal_of_driver(self.named, driver))
            and (needs.gpu and needs.cuda is None and needs.pieces is None)
        ):
            needs = self.named
        if needs is not None and needs.gpu and driver is not None:
            by_pin = None
            for name, text in self.required.items():
                judged = judged_of(name)
                if (refusal := find_refusal(text, judged)) is not None:
                    return Judgement(
                        verdict="cannot",
                        evidence=needs.evidence,
                        reasons=(refusal,),
                        cuda=needs.cuda,
                    )
                by_pin = by_pin or judge_by_pin(text, judged, environment, self.near)
            if by_pin and needs.evidence == "metadata" and needs.cuda is None:
                return by_pin
        judgement = judge(needs, environment, every_gpu=every_gpu, near=self.near)
        return judgement if judgement != UNKNOWN else self._say_unknown(environment)

    def _say_unknown(self, environment: Environment) -> Judgement:
        if self.backend is not None and self.backend.is_foreign:
            reason = f"it is labelled {self.backend.label}: for other vendors' hardware"
        elif environment.cuda_driver_version is None:
            reason = "nothing says whether it needs a GPU"
        elif self.wheel is None and (self.pin.origin or self.pin.has_sdist):
            reason = "it is built where it is installed, so that no wheel says it"
        else:
            reason = "nothing says what the build needs"
        return Judgement(verdict="unknown", reasons=(reason,))


def find_known(
    item: SelectedPin, platform: str | None, versions: Mapping[str, Version]
) -> Known | None:
    """Find what is known of a package without a request.

    :param platform: the one that is installed on.
    :param versions: what is pinned with it; uv.lock says what a package requires by
        names alone.
    :returns: ``None`` for a package that is no GPU build by anything that is known.
    """
    pin, wheel = item
    # Where a file has wheels for another Python alone, one stands for the build.
    stands_in = wheel is None
    if wheel is None and platform_of(platform or ""):
        ours = (x for x in pin.wheels if platform_of(_platforms(x)) == platform)
        wheel = next(ours, None)
    stands_in = stands_in and wheel is not None
    if wheel is not None:
        stands = "any" if wheel.filename.endswith("-any.whl") else None
        stands = stands or platform_of(_platforms(wheel))
    else:
        stands = platform if platform_of(platform or "") else None
    version, backend = pin.version, _backend_of(pin)
    own = None if stands == "any" else stands
    record = None
    if version is not None and pin.name in PROJECTS and stands is not None:
        record = find_record(
            pin.name,
            str(version),
            stands,
            file_name=wheel.filename if wheel else None,
            sha256=wheel.sha256 if wheel else None,
        )
        if record is None and wheel is None:  # sglang has wheels for any platform.
            record = find_record(pin.name, str(version), "any")
    if own is None and record is None and backend is None:
        return None
    requires = tuple(_completed(text, versions) for text in pin.requires or ())
    requires = requirements_on(requires, own) if requires else ()
    named = None
    if own is not None and backend is None:
        named = needs_of_name(pin.name, Version(version.public) if version else None)
    needs = record.needs if record else needs_of_backend(backend)
    known = Known(
        pin=pin,
        wheel=wheel,
        platform=own,
        backend=backend,
        needs=needs,
        named=named,
        requires=requires,
        is_listed=record is not None,
        stands_in=stands_in,
    )
    if (needs is None or needs.evidence == "label") and requires and own:
        known = known.with_metadata(requires)
    is_named = (
        pin.name in PROJECTS
        or backend is not None
        or named is not None
        or _FOR_GPUS.match(pin.name) is not None
        # Without a label, it has GPU code only where it requires what has it.
        or (_has_vendors(pin.name) and pin.requires is None)
    )
    if is_named or known.required or (known.needs and known.needs.cuda is not None):
        return known
    large = wheel is not None and (wheel.size or 0) >= SMALLEST
    if large and pin.requires is None:
        return replace(known, is_named=False)
    return None


def _platforms(wheel: PinnedWheel) -> str:
    return wheel.filename.rpartition("-")[2]


class Releases(Mapping[Version, Sequence[Judgement]]):
    """The judgements on a project for one machine: of the table, and what is pinned.

    Most requirements are on one release of the hundred in the table, so that each is
    judged when it is asked for.
    """

    def __init__(
        self, project: str, platform: str | None, environment: Environment
    ) -> None:
        self._listed = _listed(project, platform)
        self._environment = environment
        self._judged: dict[Version, list[Judgement]] = {}

    def add(self, release: Version, judgement: Judgement) -> None:
        """Add the judgement on a build that is pinned."""
        self._judged[release] = [*self.get(release, ()), judgement]

    def __getitem__(self, release: Version) -> Sequence[Judgement]:
        if release not in self._judged:
            found = [judge(needs, self._environment) for needs in self._listed[release]]
            self._judged[release] = found
        return self._judged[release]

    def __iter__(self) -> Iterator[Version]:
        return iter({**self._listed, **self._judged})

    def __len__(self) -> int:
        return sum(1 for _ in self)


@cache
def _listed(project: str, platform: str | None) -> Mapping[Version, list[Needs]]:
    found: dict[Version, list[Needs]] = {}
    for row in build_records().get(project, ()):
        if row.label is None and row.platform in (platform, "any"):
            found.setdefault(Version(row.version), []).append(row.needs)
    return found


def _backend_of(pin: Pin) -> Backend | None:
    """Read the label of a build, or else the last directory of its index."""
    if pin.version is not None and pin.version.local:
        return parse_backend(pin.version.local)
    parts = [part for part in urlsplit(pin.index or "").path.split("/") if part]
    while parts and parts[-1] == "simple":
        parts.pop()
    backend = parse_backend(parts[-1]) if parts else None
    # Such a directory has copies of what is the same for every backend, too.
    named: Collection[str] = PROJECTS if backend else ()
    return backend if pin.name in named else None


def _completed(text: str, versions: Mapping[str, Version]) -> str:
    """Return what is required of CUDA by its name alone with the version pinned."""
    match = _NAME_ALONE.fullmatch(text)
    if match is None:
        return text
    name = re.sub(r"[-_.]+", "-", match[1]).lower()
    version = versions.get(name)
    if version is None or not name.startswith(_OF_CUDA):
        return text
    return f"{match[1]}=={version.public} {match[2] or ''}".strip()


def _has_vendors(name: str) -> bool:
    from ..knowledge.tables import find_vendors

    return bool(find_vendors(name))
