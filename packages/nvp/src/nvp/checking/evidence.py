"""Collect the evidence about a pinned package, and judge it for a machine.

The rules are the same as in ``nvp releases``, but one wheel of each project is judged.
Evidence is taken from the table of builds, the label, cached results of ``inspect``,
METADATA and the name. A build cannot run if one of its requirements excludes every
release that runs, among the releases in the table and the pinned ones.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

from packaging.version import Version

from nvidia_variant_provider.machine.environment import Environment

from ..builds.needs import (
    Backend,
    needs_of_backend,
    needs_of_name,
    needs_of_requirements,
    parse_backend,
    requirements_on,
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
from ..pins.model import Pin, PinnedWheel, SelectedPin
from ..wheels.archive import platform_of

SMALLEST = 1_000_000
"""The minimum size in bytes of a wheel that may contain GPU code if there is no other
evidence."""

_FOR_GPUS = re.compile(r"(?!nvidia-|cuda-).*(?:^|-)(?:gpu|cuda|tensorrt)(?:-|[0-9]|$)")
"""A pattern that matches names of GPU projects. NVIDIA's own projects are excluded,
because many are headers, compilers and bindings."""

_OF_CUDA = ("nvidia-", "cuda-")
_NAME_ALONE = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[[^]]*\])?\s*(;.*)?")

Judged = Mapping[Version, Sequence[Judgement]]


@dataclass(frozen=True, kw_only=True)
class Known:
    """A pinned package that may be a GPU build, with the evidence about it.

    :param platform: a platform in the table of builds; ``None`` for any other platform.
    :param needs: evidence from the table, the label, an inspection or METADATA.
    :param named: evidence from the name of the project.
    :param requires: the requirements as texts; those in ``needs`` may be more precise.
    :param is_named: whether there is evidence for GPU use besides the wheel's size.
    :param is_listed: whether the table contains the build.
    :param stands_in: whether ``wheel`` is for a Python other than the target's.
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
        """The version of the package without the local label."""
        version = self.pin.version
        return Version(version.public) if version else Version("0")

    @property
    def is_library(self) -> bool:
        """Whether the package is an NVIDIA library, which is usually a dependency."""
        return self.pin.name.startswith("nvidia-")

    @property
    def lacks_metadata(self) -> bool:
        """Whether METADATA may add evidence about the package."""
        if self.pin.version is None or self.is_library or self.platform is None:
            return False
        if self.backend is not None and self.backend.kind != "cuda":
            return False
        needs, texts = self.needs, self.pin.requires
        if self.is_listed:
            return False
        if needs is not None and (needs.cuda or not needs.gpu or needs.doubt):
            return needs.evidence == "label" and texts is None
        # METADATA has the version limits that uv.lock and pylock.toml omit.
        return not texts or all(_NAME_ALONE.fullmatch(text) for text in texts)

    @cached_property
    def near(self) -> Sequence[BuildRecord]:
        """The nearest older and newer releases with an inspected wheel."""
        return find_neighbours(self.pin.name, self.release, self.platform)

    @cached_property
    def required(self) -> Mapping[str, str]:
        """The requirements on projects with GPU builds, keyed by project."""
        texts = self.needs.requires if self.needs else ()
        return required_projects((*self.requires, *texts), PROJECTS - {self.pin.name})

    def with_metadata(self, requires: Sequence[str]) -> Known:
        """Return a copy with ``Requires-Dist`` fields from METADATA as evidence."""
        listed = requirements_on(requires, self.platform)
        known = self.needs or self.named
        needs = needs_of_requirements(listed, self.pin.name)
        if needs is None or (needs.doubt and known):
            needs = known
        if needs is None:
            # The code of the package is unknown, but its requirements can be judged.
            needs = Needs(evidence="metadata", source=f"METADATA of {self.pin.title}")
        labelled = known.requires if known is not None else ()
        needs = replace(needs, requires=(*listed, *labelled))
        return replace(self, needs=needs, requires=listed)

    @property
    def may_be_build(self) -> bool:
        """Whether there is evidence that the package may use a GPU."""
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
        """Judge the package for a machine.

        :param judged_of: a function that returns the judgements on the builds of a
            required project, keyed by release.
        """
        needs, driver = self.needs, environment.cuda_driver_version
        if needs is None or (
            # The name may show that a build cannot run, even if METADATA does not.
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
            reason = "it is unknown whether it needs a GPU"
        elif self.wheel is None and (self.pin.origin or self.pin.has_sdist):
            reason = "it is built where it is installed, so that no wheel says it"
        else:
            reason = "it is unknown what the build needs"
        return Judgement(verdict="unknown", reasons=(reason,))


def find_known(
    item: SelectedPin, platform: str | None, versions: Mapping[str, Version]
) -> Known | None:
    """Collect the evidence about a package, without making requests.

    :param platform: the target platform.
    :param versions: the versions of the other pins, to complete the requirements in
        uv.lock, which have only names.
    :returns: ``None`` for a package without evidence of GPU code.
    """
    pin, wheel = item
    # If no wheel fits the target's Python, judge a wheel of the same platform.
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
        if record is None and wheel is None:  # sglang has platform-independent wheels.
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
        # A build without a label uses the GPU only through its requirements, so the
        # name counts only if these are unknown.
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
    """The judgements on a project's builds in the table and the pins, for one machine.

    Judgements are computed on access, because most requirements name only one of a
    hundred releases in the table.
    """

    def __init__(
        self, project: str, platform: str | None, environment: Environment
    ) -> None:
        self._listed = _listed(project, platform)
        self._environment = environment
        self._judged: dict[Version, list[Judgement]] = {}

    def add(self, release: Version, judgement: Judgement) -> None:
        """Add the judgement on a pinned build."""
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
    """Return the backend from the version label, or else from the index URL."""
    if pin.version is not None and pin.version.local:
        return parse_backend(pin.version.local)
    # urlsplit() raises an error for some texts, such as "http://[".
    url = re.split(r"[?#]", pin.index or "")[0]
    parts = [part for part in url.split("/") if part]
    while parts and parts[-1] == "simple":
        parts.pop()
    backend = parse_backend(parts[-1]) if parts else None
    # The index of a backend also has packages that are the same for every backend, so
    # its name is evidence only for projects with GPU builds.
    named: Collection[str] = PROJECTS if backend else ()
    return backend if pin.name in named else None


def _completed(text: str, versions: Mapping[str, Version]) -> str:
    """Add the pinned version to a requirement that only names a CUDA package."""
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
