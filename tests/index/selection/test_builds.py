"""What installers see of ordinary wheels on indexes such as PyTorch's and PyPI."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from functools import cache

import pytest
from packaging.utils import parse_wheel_filename
from packaging.version import Version
from simple_repository import model
from support.builds import machine
from support.label_index import (
    Pages,
    html_page,
    torch_records,
    union_names,
)

from benchmarks.selection import DRIVERS, GPUS, works
from nvidia_variant_provider.index.http.client import Client
from nvidia_variant_provider.index.selection.builds import BuildRepository
from nvidia_variant_provider.index.selection.options import Selection
from nvidia_variant_provider.knowledge.tables import can_exist
from nvidia_variant_provider.machine.environment import (
    ComputeCapability,
    CudaVersion,
    Environment,
)

MACHINES = [
    (driver, gpu)
    for driver in DRIVERS
    for gpu in GPUS
    if can_exist(CudaVersion.parse(driver), ComputeCapability.parse(gpu))
]


def repository(
    *sources: Pages, environment: Environment, **selection: object
) -> BuildRepository:
    """Return the first source as it is shown, next to the others."""
    first, *others = sources
    return BuildRepository(
        first,
        selection=Selection(
            machine=lambda: environment,
            platform="linux_x86_64",
            environ={},
            **selection,  # type: ignore[arg-type]
        ),
        client=Client(),
        others=others,
        warn=pytest.fail,
    )


def show(repository: BuildRepository, project: str = "torch") -> list[model.File]:
    return list(asyncio.run(repository.get_project_page(project)).files)


def version_of(file: model.File) -> Version:
    return parse_wheel_filename(file.filename)[1]


def pick(files: Iterable[model.File]) -> str | None:
    """Return what pip takes: the highest version that is not yanked."""
    versions = [version_of(file) for file in files if not file.yanked]
    return str(max(versions)) if versions else None


def pick_of_all(sources: Sequence[Pages], environment: Environment) -> str | None:
    """Return what pip takes of several indexes, each of which is served."""
    files: list[model.File] = []
    for source in sources:
        others = [other for other in sources if other is not source]
        files += show(repository(source, *others, environment=environment))
    return pick(files)


@cache
def surely_works(version: str, driver: str, gpu: str) -> bool:
    """Say by the rules of the benchmark whether a build of torch runs."""
    record = torch_records().get(version)
    if record is None:
        return False
    exact = gpu.replace(".", "")
    for piece in record.pieces:
        (library,) = piece
        real = [
            int(target.rstrip("af"))
            for target in library.machine_code
            if target.isdigit() or target.rstrip("af") == exact
        ]
        ptx = [int(target.rstrip("af")) for target in library.ptx]
        build = (str(library.cuda or record.cuda), real, ptx)
        if not library.minor and works(build, driver, gpu):
            return True
    return False


UNION = Pages({"torch": html_page(union_names())})
PYPI = Pages({"torch": html_page(union_names(plain=True), hashes=False)})


def test_there_are_69_machines() -> None:
    assert len(MACHINES) == 69


@pytest.mark.parametrize(
    "sources",
    [[UNION], [PYPI], [PYPI, UNION], [UNION, PYPI]],
    ids=["union", "pypi", "both", "reverse"],
)
def test_every_machine_that_can_exist_gets_a_torch_that_runs(
    sources: Sequence[Pages],
) -> None:
    wrong = {}
    for driver, gpu in MACHINES:
        shown = {
            str(parse_wheel_filename(name)[1])
            for name, source in (
                *((name, UNION) for name in union_names()),
                *((name, PYPI) for name in union_names(plain=True)),
            )
            if source in sources
        }
        possible = any(surely_works(version, driver, gpu) for version in shown)
        found = pick_of_all(sources, machine(driver, gpu))
        if found is None or (possible and not surely_works(found, driver, gpu)):
            wrong[driver, gpu] = found
    assert wrong == {}
