"""HTCondor: slot ads, as ``condor_status -json`` prints them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from nvidia_variant_provider.errors import shown
from nvidia_variant_provider.machine.environment import ComputeCapability, CudaVersion

from .model import (
    MAX_GPUS,
    Machine,
    as_mapping,
    as_text,
    errors_at,
    make_environment,
    parse_capability,
    parse_cuda,
)

__all__ = ["is_slot", "read_slots"]

_GPU = "GPUs_GPU_"
"""Prefix of the attributes that hold an ad for each GPU."""


def is_slot(item: Mapping[str, Any]) -> bool:
    """Return whether an object is the ad of a slot."""
    return "Machine" in item and ("MyType" in item or "Name" in item)


@dataclass(kw_only=True, slots=True)
class _Slots:
    """What the slots of a machine add up to."""

    cuda: CudaVersion | None = None
    gpus: dict[str, tuple[str | None, ComputeCapability | None]] = field(
        default_factory=dict
    )


def read_slots(items: Iterable[Mapping[str, Any]]) -> Iterator[Machine]:
    """Yield the machines that have GPUs, in the order of the first slot of each."""
    machines: dict[str, _Slots] = {}
    for item in items:
        name = as_text(item.get("Machine"))
        if name is None or not any(key.startswith("GPUs_") for key in item):
            continue
        with errors_at(f"machine {shown(name)}"):
            _add(machines.setdefault(name, _Slots()), item)
    for name, slots in machines.items():
        environment = make_environment(slots.cuda, slots.gpus.values())
        yield Machine(name=name, environment=environment)


def _add(slots: _Slots, item: Mapping[str, Any]) -> None:
    slots.cuda = slots.cuda or _cuda(item)
    for key, value in item.items():
        if not key.startswith(_GPU) or len(slots.gpus) >= MAX_GPUS:
            continue
        fields = {**item, **{f"GPUs_{k}": v for k, v in as_mapping(value).items()}}
        slots.gpus[key] = _gpu(fields)
        slots.cuda = slots.cuda or _cuda(fields)
    if not slots.gpus:
        slots.gpus[""] = _gpu(item)


def _gpu(item: Mapping[str, Any]) -> tuple[str | None, ComputeCapability | None]:
    text = as_text(item.get("GPUs_Capability"))
    name = as_text(item.get("GPUs_DeviceName"))
    return name, None if text is None else parse_capability(text)


def _cuda(item: Mapping[str, Any]) -> CudaVersion | None:
    """Return the CUDA version of the driver.

    ``GPUs_DriverVersion`` is a number, in which 12.1 may stand for 12.10; the integer
    ``GPUs_MaxSupportedVersion`` is exact: 12080 is 12.8.
    """
    number = item.get("GPUs_MaxSupportedVersion")
    if isinstance(number, int) and 1000 <= number < 100_000:
        return CudaVersion(number // 1000, number % 1000 // 10)
    text = as_text(item.get("GPUs_DriverVersion"))
    return None if text is None else parse_cuda(text)
