"""The build that each machine gets, for every driver-GPU pair.

A pair is a driver's CUDA version with a compute capability, and a cell is the build for
machines of that pair. Sets of pairs are described as rectangles:
``drivers 12.6-12.9, GPUs 5.0-7.2``.

Every value of a namespace other than ``nvidia`` counts as supported, in the order in
which the metadata lists the values, so cells depend only on the driver and the GPU.
Namespaces of other vendors' hardware count as absent, because the machines have NVIDIA
GPUs; callers can name exceptions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from nvidia_variant_provider.machine.environment import (
    ComputeCapability,
    CudaVersion,
    Environment,
    Gpu,
)
from nvidia_variant_provider.machine.supported import (
    NAMESPACE,
    SM_ARCH,
    has_machine_code,
    supported_sm_arch,
)
from nvidia_variant_provider.metadata.model import VariantsMetadata
from nvidia_variant_provider.resolution.resolver import resolve_metadata

from ..knowledge.tables import NATIVE, PTX, can_exist, driver_versions, gpu_models

Pair: TypeAlias = tuple[CudaVersion, ComputeCapability]
"""A driver's CUDA version and a GPU's compute capability."""

CPU = "cpu"
"""`Cell.how` of a build that does not use the GPU."""

NO_BUILD, UNKNOWN = "none", "unknown"
"""`Cell.how` for regular wheels: no build runs, or whether a build runs is unknown."""

OTHER_MAKERS = frozenset({"amd", "ascend", "google", "intel", "rocm", "xpu"})
"""Namespaces of other vendors' hardware.

``amd`` and ``intel`` are the namespaces of published providers (amd-variant-provider,
intel-variant-provider), which the metadata of torch has contained since 2.9. The other
names occur in labels and projects of other vendors.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """The build that one machine gets.

    :param label: the label, or ``None`` if no label fits, so an installer selects the
        non-variant wheel.
    :param how: `NATIVE` if the build has machine code for the GPU, or declares no
        targets; `PTX` if the driver must compile PTX; `CPU` if the build does not use
        the GPU; `NO_BUILD` or `UNKNOWN`, only for regular wheels.
    """

    cuda: CudaVersion
    capability: ComputeCapability
    label: str | None
    how: str

    @property
    def uses_gpu(self) -> bool:
        """Whether the build runs on the GPU, or may do so."""
        return self.how not in (CPU, NO_BUILD)

    @property
    def exists(self) -> bool:
        """Whether some driver for this CUDA version supports the GPU."""
        return can_exist(self.cuda, self.capability)

    def to_dict(self) -> dict[str, object]:
        """Return the cell as an object of the JSON reports."""
        return {
            "cuda": str(self.cuda),
            "sm": str(self.capability),
            "label": self.label,
            "how": self.how,
            "exists": self.exists,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Matrix:
    """The builds of one release for all machines.

    :param metadata: the metadata of the release; ``None`` for a release on an index.
    :param cells: a cell for each driver-GPU pair, if the driver supports the GPU. The
        cells are sorted by driver, then by GPU.
    :param minor_version_compatibility: whether builds for a newer CUDA minor version
        than the driver's were accepted.
    :param absent: the namespaces of the metadata that count as absent.
    :param left_out: the number of pairs without a cell, because the driver does not
        support the GPU.
    :param title: the name of a release on an index.
    :param builds: for each label on an index, the requirements of the build in words.
    :param notes: sentences about unreadable files.
    """

    metadata: VariantsMetadata | None
    cells: tuple[Cell, ...]
    minor_version_compatibility: bool
    absent: tuple[str, ...] = ()
    left_out: int = 0
    title: str | None = None
    builds: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, object]:
        """Return the ``data`` of the ``matrix --json`` report."""
        return {"cells": [cell.to_dict() for cell in self.cells]}


def all_capabilities() -> tuple[ComputeCapability, ...]:
    """Return the compute capabilities that properties can name, in ascending order."""
    return tuple(filter(supported_sm_arch, gpu_models()))


def list_pairs(*, all_pairs: bool = False) -> tuple[Pair, ...]:
    """Return each driver with each GPU that it supports, both in ascending order.

    :param all_pairs: include drivers with GPUs that they do not support.
    """
    return tuple(
        (cuda, capability)
        for cuda in driver_versions()
        for capability in all_capabilities()
        if all_pairs or can_exist(cuda, capability)
    )


def machine(cuda: CudaVersion, capability: ComputeCapability | None) -> Environment:
    """Return the environment of a machine.

    :param capability: the compute capability, or ``None`` for a machine without a GPU.
    """
    gpus = () if capability is None else (Gpu(index=0, compute_capability=capability),)
    return Environment(cuda_driver_version=cuda, source="forced", gpus=gpus)


def every_value(metadata: VariantsMetadata) -> dict[str, dict[str, list[str]]]:
    """Return all values that labels use in namespaces other than ``nvidia``.

    The shape is ``{namespace: {feature: [value, ...]}}``, as for supported values.
    """
    answers: dict[str, dict[str, dict[str, None]]] = {}
    for properties in metadata.variants.values():
        for namespace, features in properties.items():
            if namespace == NAMESPACE:
                continue
            answer = answers.setdefault(namespace, {})
            for feature, values in features.items():
                answer.setdefault(feature, {}).update(dict.fromkeys(values))
    return {
        namespace: {feature: list(values) for feature, values in answer.items()}
        for namespace, answer in answers.items()
    }


def assumed_values(
    metadata: VariantsMetadata, assume: Collection[str] = ()
) -> dict[str, dict[str, list[str]]]:
    """Return `every_value`, with other vendors' namespaces empty.

    These namespaces are empty rather than missing, because an installed plugin of a
    missing namespace would be queried.

    :param assume: namespaces of other vendors that keep their values.
    """
    return {
        namespace: {} if namespace in OTHER_MAKERS - {*assume} else answer
        for namespace, answer in every_value(metadata).items()
    }


def find_matrix(
    metadata: VariantsMetadata,
    *,
    assume: Collection[str] = (),
    minor_version_compatibility: bool = False,
    all_pairs: bool = False,
) -> Matrix:
    """Return the builds of a release for all machines, as `nvp.api.matrix` does."""
    answers = assumed_values(metadata, assume)
    cells = find_cells(
        metadata,
        supported=answers,
        minor_version_compatibility=minor_version_compatibility,
    )
    kept = tuple(cell for cell in cells if all_pairs or cell.exists)
    return Matrix(
        metadata=metadata,
        cells=kept,
        left_out=len(cells) - len(kept),
        minor_version_compatibility=minor_version_compatibility,
        absent=tuple(sorted(name for name, answer in answers.items() if not answer)),
    )


def find_cells(
    metadata: VariantsMetadata,
    *,
    drivers: Iterable[CudaVersion] | None = None,
    capabilities: Iterable[ComputeCapability] | None = None,
    supported: Mapping[str, Mapping[str, Sequence[str]]] | None = None,
    minor_version_compatibility: bool = False,
) -> list[Cell]:
    """Return a cell for each driver-GPU pair, sorted by driver, then by GPU.

    :param supported: the supported values of other namespaces; by default
        `assumed_values`.
    """
    answers = assumed_values(metadata) if supported is None else supported
    columns = tuple(all_capabilities() if capabilities is None else capabilities)
    cells = []
    for cuda in driver_versions() if drivers is None else drivers:
        for capability in columns:
            label = resolve_metadata(
                metadata,
                machine(cuda, capability),
                supported=answers,
                enable_optional=True,
                minor_version_compatibility=minor_version_compatibility,
            ).selected
            how = _find_how(metadata, label, capability)
            cells.append(Cell(cuda=cuda, capability=capability, label=label, how=how))
    return cells


def _find_how(
    metadata: VariantsMetadata, label: str | None, capability: ComputeCapability
) -> str:
    """Return `Cell.how` for the selected label."""
    features = metadata.variants[label].get(NAMESPACE) if label is not None else None
    if features is None:
        return CPU
    targets = features.get(SM_ARCH)
    if targets is None:
        return NATIVE
    return NATIVE if has_machine_code(targets, capability) else PTX


def span(band: Sequence[object]) -> str:
    """Return ``12.6-12.9`` for several adjacent versions, or ``12.6`` for one."""
    return str(band[0]) if len(band) == 1 else f"{band[0]}-{band[-1]}"


def describe_pairs(pairs: Collection[Pair], known: Collection[Pair]) -> list[str]:
    """Return rectangles that cover ``pairs``, as ``drivers 12.6-12.9, GPUs 5.0-7.2``.

    A rectangle covers no other pair of ``known``. It may cover pairs that are not in
    ``known``, because no machine has them.

    :param known: all pairs of the matrix.
    """
    drivers = sorted({cuda for cuda, _ in known})
    gpus = sorted({gpu for _, gpu in known})
    # Each rectangle has its GPUs, the drivers that it must cover, and the drivers that
    # it may cover.
    rows: list[tuple[list[ComputeCapability], set[CudaVersion], set[CudaVersion]]] = []
    for gpu in gpus:
        needed = {cuda for cuda in drivers if (cuda, gpu) in pairs}
        allowed = needed | {cuda for cuda in drivers if (cuda, gpu) not in known}
        if not needed:
            continue
        for members, covered, bounds in rows:
            if covered | needed <= bounds & allowed:
                members.append(gpu)
                covered.update(needed)
                bounds.intersection_update(allowed)
                break
        else:
            rows.append(([gpu], needed, allowed))
    described = []
    for members, columns, _ in rows:
        # Let a range such as 12.6-12.9 include versions without any known pair.
        versions = {*columns, *(cuda for cuda, gpu in known if gpu in members)}
        models = {*members, *(gpu for cuda, gpu in known if cuda in columns)}
        described.append(
            f"{_listed('driver', sorted(columns), sorted(versions))}, "
            f"{_listed('GPU', members, sorted(models))}"
        )
    return described


def list_gpus(pairs: Iterable[Pair], gpus: Sequence[ComputeCapability]) -> str:
    """Return the GPUs of ``pairs`` in words, such as ``GPUs 8.7-8.8, 10.1``."""
    return _listed("GPU", sorted({gpu for _, gpu in pairs}), gpus)


def _listed(noun: str, members: Sequence[object], known: Sequence[object]) -> str:
    ranges: list[list[object]] = []
    for item in members:
        if ranges and known.index(item) == known.index(ranges[-1][-1]) + 1:
            ranges[-1].append(item)
        else:
            ranges.append([item])
    plural = "s" if len(members) > 1 else ""
    return f"{noun}{plural} {', '.join(map(span, ranges))}"
