"""What is known of GPUs, CUDA toolkits and drivers: typed access to ``data/``.

Every record there has its source and date. ``tests/test_knowledge.py`` holds the
rules that all of them obey.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from ..machine.environment import ComputeCapability, CudaVersion

__all__ = [
    "NATIVE",
    "PTX",
    "GpuModel",
    "MinorVersionFloor",
    "Toolkit",
    "ToolkitDriver",
    "gpu_models",
    "minor_version_floors",
    "parse_isa",
    "ptx_targets",
    "runs_machine_code",
    "runs_ptx",
    "toolkit_drivers",
    "toolkits",
]

NATIVE, PTX = "native", "ptx"
"""How code runs on a GPU: as machine code, or as PTX that the driver compiles."""

_FOLDER = os.path.dirname(os.path.abspath(__file__))


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuModel:
    """The GPUs of one compute capability.

    :param tegra: a system on a chip: it runs no machine code of desktop GPUs.
    :param first_toolkit: first CUDA version that compiles for it.
    :param last_toolkit: last one, or ``None`` while it still does.
    """

    compute_capability: ComputeCapability
    architecture: str
    products: str
    tegra: bool
    first_toolkit: CudaVersion
    last_toolkit: CudaVersion | None
    source: str
    date: str

    @property
    def name(self) -> str:
        """The first product, as people call it."""
        _, _, products = self.products.rpartition(": ")
        return products.partition(" (")[0].split(",")[0].strip()


@dataclass(frozen=True, kw_only=True, slots=True)
class Toolkit:
    """A CUDA toolkit release.

    :param targets: what its assembler makes machine code for: ``90``, ``90a``,
        ``100f``, as in ``sm_90``.
    :param ptx_isa: the PTX version that it emits, as (major, minor).
    :param default_target: what nvcc compiles for when it is not told.
    """

    version: CudaVersion
    targets: tuple[str, ...]
    ptx_isa: tuple[int, int]
    default_target: str
    source: str
    date: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolkitDriver:
    """The driver that a toolkit release was published with.

    :param release: as ``12.8 Update 1``; ``cuda`` is its version.
    :param linux: lowest driver version, or ``None`` when not known; so is
    :param windows:
    """

    release: str
    cuda: CudaVersion
    linux: str | None
    windows: str | None
    source: str
    date: str


@dataclass(frozen=True, kw_only=True, slots=True)
class MinorVersionFloor:
    """The lowest drivers that run machine code of any toolkit of a major."""

    major: int
    linux: str
    windows: str
    source: str
    date: str


@cache
def gpu_models() -> Mapping[ComputeCapability, GpuModel]:
    """GPUs by compute capability, ascending."""
    models = [
        GpuModel(
            compute_capability=ComputeCapability.parse(record["compute_capability"]),
            architecture=record["architecture"],
            products=record["products"],
            tegra=record["tegra"],
            first_toolkit=CudaVersion.parse(record["first_toolkit"]),
            last_toolkit=_version(record["last_toolkit"]),
            source=record["source"],
            date=record["date"],
        )
        for record in _read("gpus")
    ]
    models.sort(key=lambda model: model.compute_capability)
    return {model.compute_capability: model for model in models}


@cache
def toolkits() -> Mapping[CudaVersion, Toolkit]:
    """Toolkits by version, ascending; 12.7 was never published."""
    found = [
        Toolkit(
            version=CudaVersion.parse(record["version"]),
            targets=tuple(record["targets"]),
            ptx_isa=parse_isa(record["ptx_isa"]),
            default_target=record["default_target"],
            source=record["source"],
            date=record["date"],
        )
        for record in _read("toolkits")
    ]
    return {toolkit.version: toolkit for toolkit in sorted(found, key=_by_version)}


@cache
def toolkit_drivers() -> tuple[ToolkitDriver, ...]:
    """The drivers that toolkit releases were published with, newest first."""
    return tuple(
        ToolkitDriver(**{**record, "cuda": CudaVersion.parse(record["cuda"])})
        for record in _read("drivers")["toolkit_drivers"]
    )


@cache
def minor_version_floors() -> Mapping[int, MinorVersionFloor]:
    """The floors of minor-version compatibility, by CUDA major."""
    records = _read("drivers")["minor_version_floors"]
    return {record["major"]: MinorVersionFloor(**record) for record in records}


@cache
def ptx_targets() -> Mapping[str, Mapping[str, frozenset[str]]]:
    """By version of ptxas: which targets PTX for a target assembles for."""
    return {
        record["ptxas"]: {
            target: frozenset(found) for target, found in record["assembles"].items()
        }
        for record in _read("ptx_targets")
    }


def runs_machine_code(target: str, capability: ComputeCapability) -> bool:
    """Does machine code for ``target`` (``90``, ``90a``, ``100f``) run on a GPU?

    CUDA C++ programming guide: code for X.y runs on X.z with z >= y, which does
    not hold between desktop GPUs and Tegra. ``a`` code runs on X.y only, ``f``
    code where plain code does.
    """
    number, suffix = target.rstrip("af"), target[-1:]
    wanted = ComputeCapability(int(number[:-1]), int(number[-1]))
    if wanted == capability:
        return True
    if suffix == "a" or wanted.major != capability.major or wanted > capability:
        return False
    return not (_is_tegra(wanted) or _is_tegra(capability))


def runs_ptx(target: str, capability: ComputeCapability) -> bool:
    """Can the driver compile PTX for ``target`` for a GPU, if it knows its ISA?

    Measured with ptxas: plain PTX compiles for every target that is not lower,
    ``f`` PTX within its family, ``a`` PTX for its own target only.
    """
    if target.isdigit():
        return int(target) <= int(capability.sm)
    if target == f"{capability.sm}a":
        return True
    # Whatever a ptxas that knows `f` assembled it for: the newest have forgotten
    # 10.1, which they know as 11.0.
    found = frozenset[str]().union(
        *(
            table.get(target, frozenset())
            for version, table in ptx_targets().items()
            if parse_isa(version) >= (12, 9)
        )
    )
    return capability.sm in found or f"{capability.sm}a" in found


def _is_tegra(capability: ComputeCapability) -> bool:
    model = gpu_models().get(capability)
    return model is not None and model.tegra


def _read(name: str) -> Any:
    with open(os.path.join(_FOLDER, f"{name}.json"), encoding="utf-8") as file:
        return json.load(file)


def _version(text: str | None) -> CudaVersion | None:
    return None if text is None else CudaVersion.parse(text)


def parse_isa(text: str) -> tuple[int, int]:
    """``8.7`` as (8, 7), also of longer versions."""
    major, minor = text.split(".")[:2]
    return int(major), int(minor)


def _by_version(toolkit: Toolkit) -> CudaVersion:
    return toolkit.version
