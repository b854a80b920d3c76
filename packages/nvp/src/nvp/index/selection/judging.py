"""Judge the builds on a project's page with as few requests as possible.

Judging by the table of builds and by labels needs no request. METADATA is read from
the newest release down to the first one that may run, for one wheel of each build, and
only for large wheels for this platform. Older releases are judged without requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from packaging.utils import canonicalize_name
from packaging.version import Version
from simple_repository import model

from nvidia_variant_provider.errors import shown
from nvidia_variant_provider.machine.environment import ComputeCapability, Environment

from ...builds.needs import Backend, needs_of_name
from ...builds.page import Build
from ...builds.stepping_back import Limits
from ...builds.verdicts import (
    UNKNOWN,
    Judgement,
    find_lacking,
    find_refusal,
    judge,
    judge_by_pin,
    leave_out,
    not_asked,
    refusal_of_driver,
)
from ...knowledge.builds import PROJECTS, Needs, find_neighbours, required_projects
from ...metadata.requirements import Work, parse_requirement
from ..http.threads import in_steps, in_thread
from .evidence import (
    PATIENCE,
    FoundVerdicts,
    NeedsReader,
    Reading,
    ReadMetadata,
    Required,
    Verdicts,
)
from .options import NO_TAKERS, Takers, Target
from .wheel_files import (
    OrdinaryWheel,
    find_allowed,
    find_installable,
    find_known_needs,
    find_pythons_of,
    find_wheels,
    is_large,
)

logger = logging.getLogger(__name__)

_MOST_READ = 64
"""The maximum number of wheels of a page whose METADATA is read. vllm has 20
consecutive releases that require a newer torch than drivers for CUDA 12 can run."""

_DEEPEST = 2
"""The maximum depth of requirements: vllm needs torchvision, which needs torch."""

_FILTERS = 4  # how often a requirement is compared with each release of its project

_NO_PYTHON: frozenset[int] = frozenset()

_Key = tuple[Version, "str | None"]
"""The key of a build in a release: the version with its label, and the platform."""

FindEnvironment = Callable[[], Awaitable[Environment]]
FindInspected = Callable[[model.File], "Needs | None"]


FindVerdicts = Callable[[str, int], Awaitable[FoundVerdicts]]
"""Finds the verdicts on the builds of a required project; see `Leaders.find`."""


class PageJudge:
    """Judges the builds of projects for one machine.

    :param find_environment: called only for pages with possible builds, because
        querying a driver is slow and most projects have no builds.
    :param platform: the target platform, such as ``linux_x86_64``. Wheels for other
        platforms are judged without requests.
    :param warn: called with a sentence, once for each project with unusable METADATA.
    :param folder_of: returns the backend of a file, from the URL of its index.
    :param find_inspected: returns cached results of `inspect`.
    :param target: the installation; without it, every wheel is installable.
    :param every_gpu: require builds to run on every GPU of the machine.
    :param limits: the user's requirements.
    :param patience: the time limit for the METADATA of a page in seconds.
    """

    def __init__(
        self,
        find_environment: FindEnvironment,
        platform: str | None,
        read_metadata: ReadMetadata,
        find_verdicts: FindVerdicts,
        warn: Callable[[str], None],
        *,
        folder_of: Callable[[model.File], Backend | None] = lambda _: None,
        find_inspected: FindInspected = lambda _: None,
        target: Target | None = None,
        every_gpu: bool = False,
        limits: Limits | None = None,
        patience: float = PATIENCE,
    ) -> None:
        self._find_environment = find_environment
        self._platform = platform
        self._needs = NeedsReader(read_metadata, warn, patience)
        self._find_verdicts = find_verdicts
        self._folder_of = folder_of
        self._find_inspected = find_inspected
        self._target = target
        self._every_gpu = every_gpu
        self._limits = limits or Limits()
        self._patience = patience

    async def judge(
        self,
        project: str,
        files: Iterable[model.File],
        depth: int = 0,
    ) -> tuple[list[Build], Required]:
        """Judge the wheels of a page of one index.

        :param depth: 0 for the page that is made, 1 for a project that it requires, 2
            for one that such a project requires. The verdicts of the last are by their
            own evidence, because projects may require each other.
        :returns: the wheels, newest release first, and the requirements of releases
            whose METADATA was read.
        """
        until = asyncio.get_running_loop().time() + self._patience
        reading = Reading(wheels=_MOST_READ, until=until)
        builds = await self._judge_all(project, files, depth, reading)
        gpus = reading.environment.compute_capabilities
        if self._every_gpu and len(gpus) > 1:
            builds = self._only_whole(builds)
        return builds, reading.required.get(project, {})

    async def _judge_all(
        self,
        project: str,
        files: Iterable[model.File],
        depth: int,
        reading: Reading,
    ) -> list[Build]:
        wheels = await in_thread(find_wheels, files, project, self._folder_of)
        installable = await in_thread(find_installable, wheels, self._target)

        def takers_of(wheel: OrdinaryWheel) -> Takers:
            return installable.get((wheel.file.filename, wheel.file.url), NO_TAKERS)

        if not await in_thread(self._may_hold_builds, project, wheels):
            return [
                wheel.judged(UNKNOWN, takers_of(wheel))
                for wheel in sorted(wheels, key=lambda w: w.release, reverse=True)
            ]
        reading.environment = await self._find_environment()
        work = Work(len(wheels))
        releases: dict[Version, dict[_Key, list[OrdinaryWheel]]] = {}
        for wheel in wheels:
            release = releases.setdefault(wheel.release, {})
            release.setdefault((wheel.version, wheel.platform), []).append(wheel)
        builds: list[Build] = []
        # The versions of Python that still lack a release that may run, and the
        # versions with a release that cannot run.
        waiting = _NO_PYTHON.union(*(each.pythons for each in installable.values()))
        refused = _NO_PYTHON
        has_driver = reading.environment.cuda_driver_version is not None
        async for version in in_steps(sorted(releases, reverse=True)):
            groups = [
                # METADATA of the first wheel counts: take one that can be installed.
                sorted(group, key=lambda wheel: not takers_of(wheel).pythons)
                for group in releases[version].values()
            ]
            asking = has_driver and bool(waiting) and not reading.is_over
            takers = [
                _NO_PYTHON.union(*(takers_of(wheel).pythons for wheel in group))
                for group in groups
            ]
            judging = [
                self._judge_group(project, group, depth, reading, work=work, asks=asks)
                for group, taker in zip(groups, takers, strict=True)
                for asks in [asking and bool(taker & waiting)]
            ]
            # Await known results without tasks: a page may have thousands of releases.
            judgements = (
                await asyncio.gather(*judging)
                if asking
                else [await one for one in judging]
            )
            for group, every, judgement in zip(groups, takers, judgements, strict=True):
                builds += [wheel.judged(judgement, takers_of(wheel)) for wheel in group]
                taker = judgement.limit(every)
                # Consider a platform-independent wheel only if there is evidence.
                verdict = judgement.verdict
                anywhere = group[0].platform is None and verdict != "unknown"
                is_ours = anywhere or group[0].platform == self._platform
                if not is_ours or judgement.fits is False:
                    continue
                if judgement.is_open or (verdict == "cannot" and not judgement.fits):
                    refused |= taker
                elif group[0].is_foreign:
                    continue
                elif verdict in ("runs", "partly") or judgement.fits:
                    # With ``_every_gpu``, continue until a release runs on all GPUs.
                    is_part = verdict == "partly" and self._every_gpu
                    waiting -= _NO_PYTHON if judgement.lacking or is_part else taker
                elif verdict == "unknown" and taker & waiting:
                    # A release that replaces a newer one must be known to run, so an
                    # unknown verdict ends the search only at the newest release.
                    waiting &= refused
        return builds

    def _only_whole(self, builds: list[Build]) -> list[Build]:
        """Refuse a build for only some GPUs if its Pythons have builds for all GPUs."""
        here = [x for x in builds if x.platform == self._platform]
        whole = [x.able for x in here if x.judgement.verdict == "runs"]
        has_whole = _NO_PYTHON.union(*whole)
        refused = {
            x.file
            for x in here
            if x.judgement.verdict == "partly" and x.pythons <= has_whole and whole
        }
        return [
            replace(x, judgement=replace(x.judgement, verdict="cannot"))
            if x.file in refused
            else x
            for x in builds
        ]

    def _may_hold_builds(self, project: str, wheels: Sequence[OrdinaryWheel]) -> bool:
        """Return whether any of the wheels may get a verdict other than unknown."""
        is_known = canonicalize_name(project) in PROJECTS
        ours = [wheel for wheel in wheels if wheel.platform is not None]
        return (
            any(wheel.backend is not None for wheel in wheels)
            or (is_known and bool(ours))
            or (is_known and any(find_known_needs(project, w) for w in wheels))
            or (needs_of_name(project) is not None and bool(ours))
            or any(self._may_be_read(wheel) for wheel in ours)
        )

    async def _judge_group(
        self,
        project: str,
        group: Sequence[OrdinaryWheel],
        depth: int,
        reading: Reading,
        *,
        work: Work,
        asks: bool,
    ) -> Judgement:
        """Judge wheels that differ only in the version of Python.

        :param work: limits the comparisons of the page with requirements.
        :param asks: whether METADATA may be read.
        """
        first = group[0]
        judgement, fits, pythons = None, None, None
        elsewhere: list[str] = []
        lacking: dict[ComputeCapability, str] = {}
        needs = find_known_needs(project, first)
        if needs is None or needs.evidence == "label":
            found = (self._find_inspected(wheel.file) for wheel in group)
            needs = next(filter(None, found), needs)
        named = None
        if first.platform is not None and first.backend is None:
            named = needs_of_name(project, first.release)
        driver = reading.environment.cuda_driver_version
        if needs is None or (
            # The project's name may show that the driver is too old.
            (named and driver and refusal_of_driver(named, driver))
            and (needs.gpu and needs.cuda is None and needs.pieces is None)
        ):
            needs = named
        # The table also covers platform-independent wheels with GPU requirements, such
        # as sglang's.
        known = needs is not None and needs.evidence != "label"
        known = known and first.platform in (None, self._platform)
        uses_gpu = needs is None or needs.gpu
        if asks and uses_gpu and (known or self._may_be_read(first)):
            if needs is None and reading.is_over:
                return self._unknown(first, reading)
            is_read = needs is not None and needs.evidence != "label"
            if not is_read and not reading.is_over:
                # Files of other indexes must not decide which requirements count.
                find, read = find_pythons_of(self._target), self._needs.read
                each = await in_thread(lambda: [*map(find, group)])
                takers = _NO_PYTHON.union(*each)
                needs = await read(project, first, needs, reading, takers)
            if needs is not None:
                own = (project, first.release, needs, depth, reading)
                judgement, fits, pythons = await self._judge_by_requirements(
                    *own, work=work, lacking=lacking, elsewhere=elsewhere
                )
        elif needs is None:
            return self._unknown(first, reading)
        if judgement is None:
            near = find_neighbours(project, first.release, first.platform)
            environment = reading.environment
            judgement = judge(needs, environment, every_gpu=self._every_gpu, near=near)
            if elsewhere and judgement.verdict != "cannot":
                # An installer may use one index alone, where this build must not take
                # the place of another one.
                reasons = (f"{elsewhere[0]}; an index may have a build that runs",)
                judgement = Judgement(verdict="unknown", reasons=reasons, is_open=True)
        return replace(leave_out(judgement, lacking), fits=fits, pythons=pythons)

    def _may_be_read(self, wheel: OrdinaryWheel) -> bool:
        """Return whether METADATA may show a GPU build for this platform."""
        ours = wheel.platform is not None and wheel.platform == self._platform
        return ours and is_large(wheel.file) and not wheel.is_foreign

    def _unknown(self, wheel: OrdinaryWheel, reading: Reading) -> Judgement:
        """Return the verdict on a wheel without evidence."""
        if not self._may_be_read(wheel):
            return UNKNOWN
        if reading.environment.cuda_driver_version is None:
            return not_asked("this machine has no NVIDIA driver")
        if reading.is_over:
            return not_asked("reading that of newer wheels has taken long enough")
        return not_asked("a newer release may run")

    async def _judge_by_requirements(
        self,
        project: str,
        release: Version,
        needs: Needs,
        depth: int,
        reading: Reading,
        *,
        work: Work,
        lacking: dict[ComputeCapability, str],
        elsewhere: list[str],
    ) -> tuple[Judgement | None, bool | None, frozenset[int] | None]:
        """Judge a build by its requirements.

        :param lacking: collects the GPUs for which a required project has no code.
        :param elsewhere: collects why the own index does not meet a requirement that
            another index may meet.
        :returns: the verdict, `Judgement.fits` and `Judgement.pythons`. The verdict is
            ``None`` if builds that run may meet all requirements, so the build's own
            needs decide.
        """
        required = required_projects(needs.requires, PROJECTS, work)
        if required:
            seen = reading.required.setdefault(project, {})
            seen.setdefault(release, {}).update(required)
        by_pin: Judgement | None = None
        refused: Judgement | None = None
        fits: list[bool] = []
        pythons: frozenset[int] | None = None

        def compare(name: str, text: str, judged: Verdicts) -> tuple[str | None, bool]:
            """Return why no release fits, and whether the next requirement counts."""
            nonlocal by_pin
            parsed = parse_requirement(text)
            steps = _FILTERS * sum(map(len, judged.values()))
            if parsed and not work.parses(parsed.specifier, steps):
                return None, False
            refusal = find_refusal(text, judged)
            fit = self._limits.find_fit(name, text, judged, work)
            if fit is not None:
                fits.append(fit)
            elif refusal is not None:
                return refusal, False
            lacking.update(dict.fromkeys(sorted(find_lacking(text, judged)), name))
            near = find_neighbours(project, release, self._platform)
            if by_pin is None or by_pin.is_open:
                found = judge_by_pin(text, judged, reading.environment, near)
                by_pin = found or by_pin
            return refusal, True

        for name, text in required.items():
            if name == project or depth >= _DEEPEST:
                continue
            own, others = await self._judge_required(name, depth + 1, reading)
            allows = partial(find_allowed, work, text)
            found = await in_thread(allows, own)
            is_there = own is None or bool(found)
            pythons = _find_pythons(found, pythons)
            judged = (own if is_there else others) or {}
            refusal, goes_on = await in_thread(compare, name, text, judged)
            allowed = list[Judgement]()
            if bool(refusal) is is_there:  # otherwise builds elsewhere do not matter
                allowed = await in_thread(allows, others)
            if is_there:
                # A CPU build of another index gives way to an older GPU build.
                allowed = [x for x in allowed if x.verdict not in ("cannot", "cpu")]
            left = [x for x in found if x.verdict != "cannot"]
            is_open = allowed != [] or (left != [] and all(x.is_open for x in left))
            # If a page of the project cannot be judged, installers see all of its
            # builds. Then this build must withdraw no other build.
            if is_open or own is None or others is None:
                elsewhere.append(refusal or f"it requires {shown(text, 100)[1:-1]}")
                continue
            if refusal is not None:
                refused = refused or Judgement(
                    verdict="cannot",
                    evidence=needs.evidence,
                    reasons=(refusal,),
                    cuda=needs.cuda,
                    is_open=not is_there or all(x.is_open for x in found),
                )
            if not goes_on:
                break
        silent = needs.evidence == "metadata" and needs.cuda is None
        judgement = refused or (by_pin if silent and not elsewhere else None)
        return judgement, all(fits) if fits else None, pythons

    async def _judge_required(
        self, project: str, depth: int, reading: Reading
    ) -> FoundVerdicts:
        async with reading.turn:  # the builds of a release ask at the same time
            if project not in reading.judged:
                reading.judged[project] = None, None
                with suppress(asyncio.TimeoutError):
                    finding = self._find_verdicts(project, depth)
                    known = await asyncio.wait_for(finding, reading.seconds)
                    reading.judged[project] = known
        return reading.judged[project]


def _find_pythons(
    allowed: Iterable[Judgement], before: frozenset[int] | None
) -> frozenset[int] | None:
    """Return the versions of Python for which a requirement, too, has a build."""
    found = [x.pythons for x in allowed if x.verdict != "cannot"]
    some = [each for each in found if each is not None]
    if not found or len(some) < len(found):
        return before
    pythons = _NO_PYTHON.union(*some)
    return pythons if before is None else before & pythons
