"""Which build each machine gets: every driver with every GPU.

A cell is a driver's CUDA version with a compute capability. Other namespaces
than ``nvidia`` are taken as supported in full, best value first as listed, so
that the cells tell what the driver and the GPU decide.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..knowledge.tables import NATIVE, PTX, gpu_models
from ..machine.drivers import CUDA_OF_BRANCH
from ..machine.environment import ComputeCapability, CudaVersion, Environment, Gpu
from ..machine.supported import NAMESPACE, SM_ARCH, supported_sm_arch
from ..metadata.model import VariantsMetadata
from ..resolution.resolver import Resolution, resolve_metadata

__all__ = [
    "CPU",
    "Cell",
    "all_capabilities",
    "all_drivers",
    "every_value",
    "find_cells",
    "machine",
]

CPU = "cpu"
"""How a build runs that does not use the GPU; see `knowledge.tables.NATIVE`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """What one machine gets.

    :param label: the label, or ``None`` when none fits (the non-variant wheel).
    :param how: `NATIVE`: it has machine code for the GPU, or does not say;
        `PTX`: the driver has to compile its PTX; `CPU`: it uses no GPU.
    """

    cuda: CudaVersion
    capability: ComputeCapability
    label: str | None
    how: str


def all_drivers() -> tuple[CudaVersion, ...]:
    """The CUDA versions that drivers report, ascending."""
    return tuple(sorted(CUDA_OF_BRANCH.values()))


def all_capabilities() -> tuple[ComputeCapability, ...]:
    """The compute capabilities that are known, ascending."""
    return tuple(gpu_models())


def machine(cuda: CudaVersion, capability: ComputeCapability | None) -> Environment:
    """The environment of a cell; ``None`` for a driver without a GPU."""
    gpus = () if capability is None else (Gpu(index=0, compute_capability=capability),)
    return Environment(cuda_driver_version=cuda, source="forced", gpus=gpus)


def every_value(metadata: VariantsMetadata) -> dict[str, dict[str, list[str]]]:
    """Answers by which every value of the other namespaces is supported."""
    found: dict[str, dict[str, dict[str, None]]] = {}
    for properties in metadata.variants.values():
        for namespace, features in properties.items():
            if namespace == NAMESPACE:
                continue
            answer = found.setdefault(namespace, {})
            for feature, values in features.items():
                answer.setdefault(feature, {}).update(dict.fromkeys(values))
    return {
        namespace: {feature: list(values) for feature, values in answer.items()}
        for namespace, answer in found.items()
    }


def find_cells(
    metadata: VariantsMetadata,
    *,
    drivers: Iterable[CudaVersion] | None = None,
    capabilities: Iterable[ComputeCapability] | None = None,
    supported: Mapping[str, Mapping[str, Sequence[str]]] | None = None,
    minor_version_compatibility: bool = False,
) -> list[Cell]:
    """The cells of all drivers, each with all GPUs; both ascending.

    :param supported: answers of other namespaces, instead of `every_value`.
    """
    answers = every_value(metadata) if supported is None else supported
    columns = tuple(all_capabilities() if capabilities is None else capabilities)
    return [
        _cell(
            resolve_metadata(
                metadata,
                machine(cuda, capability),
                supported=answers,
                enable_optional=True,
                minor_version_compatibility=minor_version_compatibility,
            ),
            cuda,
            capability,
        )
        for cuda in (all_drivers() if drivers is None else drivers)
        for capability in columns
    ]


def _cell(
    resolution: Resolution, cuda: CudaVersion, capability: ComputeCapability
) -> Cell:
    label = resolution.selected
    return Cell(
        cuda=cuda,
        capability=capability,
        label=label,
        how=_how(resolution.metadata, label, capability),
    )


def _how(
    metadata: VariantsMetadata, label: str | None, capability: ComputeCapability
) -> str:
    features = metadata.variants[label].get(NAMESPACE) if label is not None else None
    if features is None:
        return CPU
    targets = features.get(SM_ARCH)
    if targets is None:
        return NATIVE
    machine_code = supported_sm_arch(capability, ptx=False)
    return NATIVE if set(targets) & set(machine_code) else PTX
