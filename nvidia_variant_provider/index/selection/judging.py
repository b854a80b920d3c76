"""Judging the builds of a project's page, with as few requests as possible.

The table of builds and the labels cost nothing. METADATA is read from the newest
release down until one may run: of one wheel of each build, and only of wheels for this
platform that are large enough to hold GPU code. Older releases are judged by what is
known without a request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from packaging.utils import InvalidWheelFilename, canonicalize_name
from packaging.version import Version
from simple_repository import model

from ...builds.backends import Backend, parse_backend
from ...builds.needs import Needs, needs_of_backend, needs_of_requirements
from ...builds.page import Build
from ...builds.requirements import find_refusal, required_projects
from ...builds.table import PROJECTS, find_record, needs_of_record
from ...builds.verdicts import Judgement, judge
from ...errors import InputError
from ...machine.environment import Environment
from ...wheels.archive import parse_requires
from ...wheels.names import WheelName, parse_wheel_name

__all__ = ["PageJudge", "Wheel", "platform_of"]

logger = logging.getLogger(__name__)

_SMALLEST = 1_000_000
"""Bytes of the smallest wheel that is asked for METADATA."""

_MOST_READ = 64
"""Wheels of one page that are asked for METADATA. vllm has 20 releases in a row that
require a newer torch than drivers for CUDA 12 run."""

_AT_ONCE = 4

_DEEPEST = 2
"""Requirements of requirements: vllm requires torchvision, which requires torch."""

ReadMetadata = Callable[[str, model.File], Awaitable[bytes]]
"""Reads METADATA of a file of a project."""

ReadPage = Callable[[str], Awaitable[Sequence[model.File]]]
"""Reads the files of a project from every index that the installer uses."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wheel:
    """A wheel of a page, with what its name says.

    :param version: with the local version label.
    :param platform: ``linux_x86_64``, ``linux_aarch64``, ``win_amd64``, or ``None`` for
        wheels that run anywhere, and on systems without NVIDIA GPUs.
    """

    file: model.File
    version: Version
    platform: str | None

    @property
    def backend(self) -> Backend | None:
        """What the label says."""
        return parse_backend(self.version.local)


def platform_of(name: WheelName) -> str | None:
    """Return the platform of a wheel as the table of builds names it."""
    for tag in name.tags:
        platform = tag.platform
        if platform == "win_amd64":
            return platform
        for machine in ("x86_64", "aarch64"):
            if platform.startswith(("manylinux", "linux")) and platform.endswith(
                f"_{machine}"
            ):
                return f"linux_{machine}"
    return None


def find_wheels(files: Iterable[model.File]) -> list[Wheel]:
    """Return the wheels without a variant label, of all files of a page."""
    wheels = []
    for file in files:
        if not file.filename.endswith(".whl"):
            continue
        try:
            name = parse_wheel_name(file.filename)
        except (InputError, InvalidWheelFilename):
            continue
        if name.label is None:
            wheels.append(
                Wheel(
                    file=file,
                    version=Version(name.version.replace("_", "-")),
                    platform=platform_of(name),
                )
            )
    return wheels


class PageJudge:
    """Judges the builds of projects for one machine.

    :param platform: the platform that builds are installed on, such as
        ``linux_x86_64``. Wheels for other platforms are judged without requests.
    :param warn: called with a sentence when METADATA cannot be used.
    """

    def __init__(
        self,
        environment: Environment,
        platform: str | None,
        read_metadata: ReadMetadata,
        read_page: ReadPage,
        warn: Callable[[str], None],
    ) -> None:
        self._environment = environment
        self._platform = platform
        self._read_metadata = read_metadata
        self._read_page = read_page
        self._warn = warn
        self._judged: dict[str, Mapping[Version, list[Judgement]]] = {}
        self.required: dict[str, set[str]] = {}
        """The projects with GPU builds that each project was seen to require."""
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def judge(
        self, project: str, files: Iterable[model.File], asked_by: tuple[str, ...] = ()
    ) -> list[Build]:
        """Judge the wheels of a page, newest release first.

        :param asked_by: the projects whose requirements led here, which are not
            followed again.
        """
        wheels = find_wheels(files)
        releases: dict[Version, dict[tuple[Version, str | None], list[Wheel]]] = {}
        for wheel in wheels:
            key = wheel.version, wheel.platform
            release = releases.setdefault(Version(wheel.version.public), {})
            release.setdefault(key, []).append(wheel)
        builds: list[Build] = []
        asking = self._environment.cuda_driver_version is not None
        budget = _MOST_READ
        for version in sorted(releases, reverse=True):
            groups = releases[version]
            judgements = await asyncio.gather(
                *(
                    self._judge_group(project, group, asking=asking, asked_by=asked_by)
                    for group in groups.values()
                )
            )
            budget -= len(groups)
            for group, judgement in zip(groups.values(), judgements, strict=True):
                builds += [_build(wheel, judgement) for wheel in group]
                ours = group[0].platform == self._platform
                if ours and judgement.verdict in ("runs", "partly", "unknown"):
                    asking = asking and _is_foreign(group[0])
            asking = asking and budget > 0
        return builds

    async def _judge_group(
        self,
        project: str,
        group: Sequence[Wheel],
        *,
        asking: bool,
        asked_by: tuple[str, ...],
    ) -> Judgement:
        """Judge wheels that differ in nothing but the version of Python."""
        first = group[0]
        needs = _known_needs(project, first)
        ours = first.platform is not None and first.platform == self._platform
        large = (first.file.size or _SMALLEST) >= _SMALLEST
        if asking and ours and large and not _is_foreign(first):
            if needs is None or needs.evidence == "label":
                needs = await self._read_needs(project, first, needs)
            if needs is not None:
                refusal = await self._refusal(project, needs, asked_by)
                if refusal is not None:
                    return Judgement(
                        verdict="cannot",
                        evidence=needs.evidence,
                        reasons=(refusal,),
                        cuda=needs.cuda,
                    )
        return judge(needs, self._environment)

    async def _read_needs(
        self, project: str, wheel: Wheel, known: Needs | None
    ) -> Needs | None:
        name = wheel.file.filename
        try:
            async with self._turns:
                metadata = await self._read_metadata(project, wheel.file)
            requires = parse_requires(metadata)
        except (InputError, OSError) as error:
            self._warn(f"{name}: its METADATA could not be read: {error}")
            return known
        logger.info("%s: METADATA has %d requirements", name, len(requires))
        needs = needs_of_requirements(requires) or known
        if needs is None:
            # Nothing is known of its own code, but what it requires may not run.
            needs = Needs(evidence="metadata", source=f"METADATA of {name}")
        return replace(needs, requires=requires)

    async def _refusal(
        self, project: str, needs: Needs, asked_by: tuple[str, ...]
    ) -> str | None:
        """Say which requirement cannot be met by a build that runs."""
        required = required_projects(needs.requires, PROJECTS)
        self.required.setdefault(project, set()).update(required)
        for name, text in required.items():
            if name == project or name in asked_by or len(asked_by) >= _DEEPEST:
                continue
            judged = await self._judge_required(name, (*asked_by, project))
            refusal = find_refusal(text, judged)
            if refusal is not None:
                return refusal
        return None

    async def _judge_required(
        self, project: str, asked_by: tuple[str, ...]
    ) -> Mapping[Version, list[Judgement]]:
        # Keep results only, not work in progress: two projects that require each
        # other would wait for each other for ever.
        if project not in self._judged:
            judged: dict[Version, list[Judgement]] = {}
            files = await self._read_page(project)
            for build in await self.judge(project, files, asked_by):
                foreign = build.backend is not None and build.backend.is_foreign
                if build.platform == self._platform and not foreign:
                    judged.setdefault(build.release, []).append(build.judgement)
            self._judged[project] = judged
        return self._judged[project]


def _known_needs(project: str, wheel: Wheel) -> Needs | None:
    """Take the needs of a wheel from the table, or else from its label."""
    if wheel.platform is not None:
        record = find_record(
            canonicalize_name(project),
            str(wheel.version),
            wheel.platform,
            file_name=wheel.file.filename,
            sha256=wheel.file.hashes.get("sha256"),
        )
        if record is not None:
            return needs_of_record(record)
    return needs_of_backend(wheel.backend)


def _is_foreign(wheel: Wheel) -> bool:
    return wheel.backend is not None and wheel.backend.is_foreign


def _build(wheel: Wheel, judgement: Judgement) -> Build:
    return Build(
        file=wheel.file.filename,
        version=wheel.version,
        backend=wheel.backend,
        platform=wheel.platform,
        judgement=judgement,
    )
