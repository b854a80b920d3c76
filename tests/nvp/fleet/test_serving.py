"""The builds for groups of machines, by a function that counts its calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from nvidia_variant_provider.machine.environment import (
    ComputeCapability,
    CudaVersion,
    Environment,
)
from nvidia_variant_provider.metadata.document import metadata_from_dict
from nvidia_variant_provider.metadata.model import VariantsMetadata
from nvidia_variant_provider.resolution import resolver
from nvp.fleet.serving import Selected, choose, group_machines, select_by_metadata
from nvp.inventories.model import Machine, make_environment

OLDEST = CudaVersion(11, 0)


def machine(name: str, cuda: str, gpu: str) -> Machine:
    gpus = [(name, ComputeCapability.parse(gpu))]
    environment = make_environment(CudaVersion.parse(cuda), gpus, kernel=name)
    return Machine(name=name, environment=environment)


MACHINES = [
    machine(f"{cuda} {gpu} {number}", cuda, gpu)
    for number in range(20)
    for cuda, gpu in (("12.2", "7.0"), ("12.9", "9.0"))
]


def test_machines_that_are_alike_are_decided_once() -> None:
    asked: list[Environment] = []

    def select(environments: Sequence[Environment]) -> list[Selected]:
        asked.extend(environments)
        return [
            Selected(selected="cu126", runs=("cu126",), gpu=("cu126",))
            if (environment.cuda_driver_version or OLDEST) >= CudaVersion(12, 6)
            else Selected(selected=None)
            for environment in environments
        ]

    fleet = choose(group_machines(MACHINES, per_machine=True), select)
    kinds = [
        (item.cuda_driver_version, item.compute_capabilities, item.source)
        for item in asked
    ]
    assert len(kinds) == len(set(kinds)), "each kind, and each newer driver, once"
    assert [choice.group.names[0] for choice in fleet.served] == [
        item.name for item in MACHINES
    ]
    for choice in fleet.served:
        if choice.group.environment.cuda_driver_version == CudaVersion(12, 9):
            assert (choice.is_unserved, choice.driver) == (False, None)
        else:
            assert choice.driver == CudaVersion(12, 6)
    assert fleet.cover is not None
    assert fleet.cover.gains == {"cu126": 20}
    alike = choose(group_machines(MACHINES), select)
    assert alike.cover == fleet.cover
    assert alike.covering == fleet.covering == ()


def metadata_of_labels(count: int) -> VariantsMetadata:
    labels = {f"l{i}": {"nvidia": {"sm_arch": ["50_real"]}} for i in range(count)}
    return metadata_from_dict(
        {"default-priorities": {"namespace": ["nvidia"]}, "variants": labels}
    )


def test_reasons_are_written_on_access(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[object] = []
    real = resolver.explain

    def counted(*arguments: Any, **more: Any) -> resolver.Reason:
        written.append(arguments)
        return real(*arguments, **more)

    monkeypatch.setattr(resolver, "explain", counted)
    select = select_by_metadata(metadata_of_labels(50))
    fleet = choose(group_machines(MACHINES), select)
    assert not written
    rejected = [x.selection.rejected for x in fleet.served if x.selection]
    assert [len(reasons["l7"]) for reasons in rejected] == [1, 1]
    assert len(written) == len(rejected) == 2


class Labels(tuple[str, ...]):
    """Labels that count how often somebody searches them one by one."""

    searches = 0

    def __contains__(self, label: object) -> bool:
        Labels.searches += 1
        return super().__contains__(label)


def test_labels_of_machines_are_not_compared_one_by_one() -> None:
    """1,500 labels that fit 1,000 kinds of machines took minutes."""
    runs = Labels(f"l{number}" for number in range(5))

    def select(environments: Sequence[Environment]) -> list[Selected]:
        return [
            Selected(selected="l0", runs=runs, gpu=runs, rejected={str(item): ()})
            for item in environments
        ]

    fleet = choose(group_machines(MACHINES), select)
    assert (fleet.covering, Labels.searches) == (runs, 0)
