"""Machines in groups that are alike to every build."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nvidia_variant_provider.machine.environment import (
    ComputeCapability,
    CudaVersion,
    Environment,
)
from nvidia_variant_provider.machine.reasons import NOT_GIVEN

from ..inventories.model import Machine

__all__ = ["Group", "Kind", "group_machines", "kind_of"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Machines with the same driver and GPUs of the same compute capabilities.

    :param names: the machines, in the order of their inventories.
    :param environment: that of the first machine.
    :param notes: what the inventories leave open about any of them.
    """

    names: tuple[str, ...]
    environment: Environment
    notes: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Such as ``CUDA 12.9, compute capability 9.0``."""
        cuda = self.environment.cuda_driver_version
        capabilities = self.environment.compute_capabilities
        driver = f"CUDA {cuda}" if cuda else "an unknown driver"
        if not capabilities:
            return f"{driver}, compute capability unknown"
        return f"{driver}, compute capability {' and '.join(map(str, capabilities))}"

    @property
    def is_known(self) -> bool:
        """Whether the inventory says which driver and which GPUs the machines have."""
        return not self.missing

    @property
    def missing(self) -> str | None:
        """What the inventory does not say, and without which nothing is chosen."""
        environment = self.environment
        if environment.cuda_driver_version is None:
            return "the CUDA version of its driver"
        # A snapshot says why the driver could not tell a capability, and what it can
        # tell is what an installer goes by.
        if not environment.compute_capabilities and any(
            gpu.reason == NOT_GIVEN for gpu in environment.gpus
        ):
            return "the compute capability of its GPU"
        return None


Kind = tuple[CudaVersion | None, tuple[ComputeCapability, ...], bool]
"""What builds see of a machine: driver, GPUs, and whether one of these is unknown."""


def group_machines(
    machines: Iterable[Machine], *, per_machine: bool = False
) -> Sequence[Group]:
    """Put machines together that every build sees as the same.

    :param per_machine: make a group of each machine, in the order of ``machines``.
    :returns: the largest group first; of groups of one size, the one whose first
        machine comes first.
    """
    members: dict[object, list[Machine]] = {}
    for machine in machines:
        key = machine.name if per_machine else kind_of(machine.environment)
        members.setdefault(key, []).append(machine)
    groups = [
        Group(
            names=tuple(machine.name for machine in alike),
            environment=alike[0].environment,
            notes=tuple(dict.fromkeys(n for machine in alike for n in machine.notes)),
        )
        for alike in members.values()
    ]
    return sorted(groups, key=lambda group: -len(group.names))


def kind_of(environment: Environment) -> Kind:
    """Return what is the same for machines that are alike to every build."""
    unknown = any(gpu.compute_capability is None for gpu in environment.gpus)
    return environment.cuda_driver_version, environment.compute_capabilities, unknown
