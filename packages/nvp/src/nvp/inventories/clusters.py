"""Clusters without Kubernetes: HTCondor, and machines with the DCGM exporter.

``condor_status -json`` prints the ads of slots. The exporter serves metrics in the text
format of Prometheus.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from nvidia_variant_provider.errors import InputError, shown
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

_GPU = "GPUs_GPU_"
"""Prefix of the attributes that hold an ad for each GPU."""

_CUDA = "DCGM_FI_CUDA_DRIVER_VERSION"
_CAPABILITY = "DCGM_FI_DEV_CUDA_COMPUTE_CAPABILITY"
_LINE = re.compile(rf"({_CUDA}|{_CAPABILITY})(?:\{{(.*)\}})?[ \t]+(\S+)(?:[ \t]+\S+)?")
_LABEL = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"')


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


def is_metrics(text: str) -> bool:
    """Return whether a text is that of an exporter."""
    return re.search(r"^(?:# (?:HELP|TYPE) )?DCGM_FI_", text, re.MULTILINE) is not None


def read_metrics(lines: Iterable[str], name: str) -> Iterator[Machine]:
    """Yield the machines of the metrics, by their label ``Hostname``.

    :param lines: the lines of the text.
    :param name: what to call a machine without this label.
    :raises InputError: a value is malformed, or neither metric is there.
    """
    versions: dict[str, CudaVersion] = {}
    gpus: dict[str, dict[str, tuple[str | None, ComputeCapability]]] = {}
    for line in lines:
        match = _LINE.fullmatch(line.strip())
        if match is None:
            continue
        labels = dict(_LABEL.findall(match[2] or ""))
        host = labels.get("Hostname") or name
        number = _integer(match[3])
        devices = gpus.setdefault(host, {})
        if match[1] == _CUDA:
            versions[host] = CudaVersion(number // 1000, number % 1000 // 10)
        elif len(devices) < MAX_GPUS:
            # The field has major << 16 | minor.
            capability = ComputeCapability(number >> 16, number & 0xFFFF)
            key = labels.get("UUID") or labels.get("gpu") or str(len(devices))
            devices[key] = (labels.get("modelName"), capability)
    if not gpus:
        message = f"it has neither {_CUDA} nor {_CAPABILITY}"
        hint = "add both fields to the list of the exporter: neither is in its default"
        raise InputError(message, hint=hint)
    for host, listed in gpus.items():
        environment = make_environment(versions.get(host), listed.values())
        yield Machine(name=host, environment=environment)


def _integer(text: str) -> int:
    """Return the value of a metric, which Prometheus writes as a float."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not (0 <= number < 2**31 and number == int(number)):
        raise InputError(f"{shown(text)} is not a whole number", hint="see DCGM")
    return int(number)
