"""Pages and METADATA in memory for the judge of pages, and its requests for them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from simple_repository import model
from simple_repository.components.core import SimpleRepository

from nvidia_variant_provider.errors import InputError
from nvidia_variant_provider.machine.environment import (
    ComputeCapability,
    CudaVersion,
    Environment,
    Gpu,
)
from nvp.builds.page import Build
from nvp.index.selection.evidence import FoundVerdicts, Leaders, ReadMetadata
from nvp.index.selection.indexes import Indexes
from nvp.index.selection.judging import PageJudge
from nvp.index.selection.options import Selection

OLD = Environment(
    cuda_driver_version=CudaVersion(12, 8),
    gpus=(Gpu(index=0, compute_capability=ComputeCapability(8, 0)),),
)
NONE = Environment(reason="no-device")
LARGE = 50_000_000

T = TypeVar("T")
ReadPage: TypeAlias = Callable[[str], Awaitable[Sequence[model.File]]]


def wheel(name: str, size: int | None = LARGE) -> model.File:
    return model.File(
        filename=name, url=f"https://wheels.example/{name}", hashes={}, size=size
    )


def linux(project: str, version: str, size: int | None = LARGE) -> model.File:
    name = f"{project}-{version}-cp311-cp311-manylinux_2_28_x86_64.whl"
    return wheel(name, size)


class _Required(Indexes):
    """The pages of required projects.

    :param read_page: returns the files of a project.
    """

    def __init__(self, read_page: ReadPage, clock: Callable[[], float]) -> None:
        super().__init__([SimpleRepository()], clock)
        self._read_page = read_page

    async def read(
        self, _: SimpleRepository, project: str
    ) -> tuple[model.ProjectDetail, str]:
        files = await self._read_page(project)
        meta = model.Meta("1.0")
        return model.ProjectDetail(meta=meta, name=project, files=tuple(files)), ""


def make_judge(
    environment: Environment,
    read_metadata: ReadMetadata,
    read_page: ReadPage,
    warn: Callable[[str], None],
    *,
    clock: Callable[[], float] = time.monotonic,
    **options: Any,
) -> PageJudge:
    """Return a judge of pages for Linux, which reads required projects from pages.

    :param options: those of `PageJudge`.
    """

    async def find_environment() -> Environment:
        return environment

    async def find_verdicts(project: str, depth: int) -> FoundVerdicts:
        return await leaders.find(project, depth)

    options = {"find_environment": find_environment, **options}
    judge = PageJudge(
        platform="linux_x86_64",
        read_metadata=read_metadata,
        find_verdicts=find_verdicts,
        warn=warn,
        **options,
    )
    selection = Selection(machine=lambda: environment, platform="linux_x86_64")
    leaders = Leaders(_Required(read_page, clock), selection, judge.judge)
    return judge


@dataclass
class Index:
    """Pages and METADATA in memory, and the requests for them."""

    pages: Mapping[str, Sequence[model.File]]
    requires: Mapping[str, Sequence[str]] = field(default_factory=dict)
    stalled: frozenset[str] = frozenset()
    asked: list[str] = field(default_factory=list)
    read: list[str] = field(default_factory=list)
    pages_take: float = 0
    warnings: list[str] = field(default_factory=list)
    detected: int = 0

    async def read_metadata(
        self, project: str, file: model.File, parse: Callable[[bytes], T]
    ) -> T:
        assert project in self.pages
        self.asked.append(file.filename)
        key = "-".join(file.filename.split("-")[:2])
        if key in self.stalled:
            await asyncio.Event().wait()
        if key not in self.requires:
            raise InputError("the server hangs up", path=file.filename)
        lines = [f"Requires-Dist: {text}" for text in self.requires[key]]
        head = ["Metadata-Version: 2.1", f"Name: {project}"]
        version = f"Version: {key.partition('-')[2]}"
        metadata = "\n".join([*head, version, *lines, ""]).encode()
        return await asyncio.to_thread(parse, metadata)

    async def read_page(self, project: str) -> Sequence[model.File]:
        self.read.append(project)
        await asyncio.sleep(self.pages_take)
        return self.pages.get(project, ())

    def judge(
        self,
        project: str,
        *later: str,
        environment: Environment = OLD,
        patience: float = 60,
    ) -> list[Build]:
        """Return the builds of a project, or of the last one of several pages."""

        async def find_environment() -> Environment:
            self.detected += 1
            return environment

        async def work() -> list[Build]:
            judge = make_judge(
                environment,
                self.read_metadata,
                self.read_page,
                self.warnings.append,
                find_environment=find_environment,
                patience=patience,
            )
            for name in (project, *later):
                builds, _ = await judge.judge(name, self.pages[name])
            return builds

        return asyncio.run(work())

    def verdicts(self, project: str, environment: Environment = OLD) -> dict[str, str]:
        return {
            str(build.version): build.judgement.verdict
            for build in self.judge(project, environment=environment)
        }
