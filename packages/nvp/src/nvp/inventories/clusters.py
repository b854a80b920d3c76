"""Read machines from Kubernetes, HTCondor and the DCGM exporter.

NVIDIA/k8s-dra-driver-gpu, ``cmd/gpu-kubelet-plugin/deviceinfo.go``, publishes the
attributes ``cudaDriverVersion`` and ``cudaComputeCapability`` of each device.
NVIDIA/k8s-device-plugin, ``internal/lm/nvml.go``, labels nodes. Despite its name,
``cuda.runtime-version`` is NVML's CUDA version of the driver, and
``cuda.driver-version`` is the version of the kernel driver. ``condor_status -json``
prints a ClassAd for each slot. The exporter serves metrics in the format of Prometheus.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from nvidia_variant_provider.errors import InputError, shown
from nvidia_variant_provider.machine.environment import (
    ComputeCapability,
    CudaVersion,
    Environment,
)

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

DRIVER = "gpu.nvidia.com"
"""``spec.driver`` of ResourceSlices with NVIDIA GPUs."""

_ATTRIBUTES = (
    "cudaComputeCapability",
    "cudaDriverVersion",
    "driverVersion",
    "parentUUID",
    "productName",
    "type",
    "uuid",
)
_GENERATION = re.compile("[0-9]{1,19}")
_LABEL = "nvidia.com/"
_PAIRS = ("cuda.runtime-version", "cuda.runtime", "gpu.compute", "cuda.driver")
_LABELS = frozenset(
    _LABEL + name
    for name in (
        *(f"{pair}.{part}" for pair in _PAIRS for part in ("major", "minor")),
        *("cuda.driver.rev", "cuda.driver-version.full", "cuda.runtime-version.full"),
        *("gpu.product", "gpu.count", "gpu.replicas", "vgpu.present"),
    )
)
"""The node labels to read; other labels are ignored."""

_SHARED = re.compile(r"-SHARED$")
_MIG = re.compile(r"-MIG-[0-9]+g\.[0-9]+gb.*$")


def is_kubernetes(item: Mapping[str, Any]) -> bool:
    """Return whether an object is a Kubernetes node or ResourceSlice."""
    return item.get("kind") in ("Node", "ResourceSlice")


@dataclass(kw_only=True, slots=True)
class _Node:
    """The facts about a node, collected from its ResourceSlices."""

    cuda: set[CudaVersion] = field(default_factory=set)
    kernel: str | None = None
    gpus: dict[str, tuple[str | None, ComputeCapability | None]] = field(
        default_factory=dict
    )
    notes: dict[str, None] = field(default_factory=dict)


def read_objects(items: Iterable[Mapping[str, Any]]) -> Iterator[Machine]:
    """Yield the nodes that have GPUs, from their labels or their ResourceSlices.

    If a node has both, the slices take precedence, because they describe each device.

    :raises InputError: a version is malformed.
    """
    pools: dict[tuple[str, str], _Pool] = {}
    labelled: list[Machine] = []
    for item in items:
        if item.get("kind") == "Node":
            labelled += _read_node(item)
        elif item.get("kind") == "ResourceSlice":
            _add_to_pool(pools, item)
    sliced = {machine.name: machine for machine in _nodes_of(pools)}
    yield from (machine for machine in labelled if machine.name not in sliced)
    yield from sliced.values()


@dataclass(kw_only=True, slots=True)
class _Pool:
    """The devices of the newest generation of a pool.

    :ivar devices: the attributes of each device, with names from `_ATTRIBUTES`. The
        list is complete after all slices of the cluster are read.
    """

    generation: int
    devices: list[dict[str, str]] = field(default_factory=list)


def _add_to_pool(pools: dict[tuple[str, str], _Pool], item: Mapping[str, Any]) -> None:
    """Add the devices of a ResourceSlice to its pool.

    Kubernetes, "ResourcePool": all slices of a pool have the same generation, and
    slices of an older generation "should be ignored".
    """
    spec = as_mapping(item.get("spec"))
    node = as_text(spec.get("nodeName"))
    if spec.get("driver") != DRIVER or node is None:
        return
    described = as_mapping(spec.get("pool"))
    key = node, as_text(described.get("name")) or ""
    # `parse_yaml` returns the generation as a text.
    text = as_text(described.get("generation")) or ""
    generation = int(text) if _GENERATION.fullmatch(text) else 0
    pool = pools.get(key)
    if pool is None or generation > pool.generation:
        pool = pools[key] = _Pool(generation=generation)
    if generation == pool.generation:
        devices = spec.get("devices")
        pool.devices += map(_attributes, devices if isinstance(devices, list) else [])


def _nodes_of(pools: Mapping[tuple[str, str], _Pool]) -> Iterator[Machine]:
    """Yield the nodes of pools, in the order of each node's first slice."""
    of_node: dict[str, list[_Pool]] = {}
    for (name, _), pool in pools.items():
        of_node.setdefault(name, []).append(pool)
    for name, its_pools in of_node.items():
        collected = _Node()
        for pool in its_pools:
            for number, attributes in enumerate(pool.devices):
                place = f"node {shown(name)}, device {number}"
                _add_device(collected, attributes, place)
        if len(collected.cuda) > 1:
            versions = " and ".join(map(str, sorted(collected.cuda)[:9]))
            collected.notes[f"its devices name drivers for CUDA {versions}"] = None
        if not collected.gpus:
            continue
        yield Machine(
            name=name,
            environment=make_environment(
                min(collected.cuda, default=None),
                collected.gpus.values(),
                kernel=collected.kernel,
            ),
            notes=tuple(collected.notes),
        )


def _add_device(node: _Node, attributes: Mapping[str, str], place: str) -> None:
    kind = attributes.get("type", "gpu")
    if kind == "vfio":
        note = "a GPU is passed through to virtual machines, and does not count"
        node.notes[note] = None
        return
    if kind == "mig":
        node.notes["a GPU is split by MIG"] = None
    with errors_at(place):
        if text := attributes.get("cudaDriverVersion"):
            node.cuda.add(parse_cuda(text))
        capability = attributes.get("cudaComputeCapability")
        parsed = parse_capability(capability) if capability else None
    node.kernel = node.kernel or attributes.get("driverVersion")
    # Add a GPU once for all its MIG devices, which have it as their parent.
    key = attributes.get("parentUUID") or attributes.get("uuid") or place
    if key not in node.gpus and len(node.gpus) < MAX_GPUS:
        node.gpus[key] = (attributes.get("productName"), parsed)


def _attributes(device: object) -> dict[str, str]:
    """Return ``{name: text}`` for the attributes of a device in `_ATTRIBUTES`.

    In API versions up to v1beta1, a device has its attributes below ``basic``.
    """
    fields = as_mapping(device)
    holder = as_mapping(fields.get("basic")) or fields
    values: dict[str, str] = {}
    for name, value in as_mapping(holder.get("attributes")).items():
        short = name.rpartition("/")[2]
        for text in map(as_text, as_mapping(value).values()):
            if text is not None and short in _ATTRIBUTES:
                values[short] = text
    return values


def _read_node(item: Mapping[str, Any]) -> Iterator[Machine]:
    """Yield the node if it has labels of GPU feature discovery."""
    metadata = as_mapping(item.get("metadata"))
    given = as_mapping(metadata.get("labels"))
    labels = {
        key.removeprefix(_LABEL): text
        for key in given.keys() & _LABELS  # a node has many other labels
        if (text := as_text(given[key]))
    }
    name = as_text(metadata.get("name"))
    starts = ("gpu.compute.", "cuda.runtime")
    is_of_gpu = {"gpu.product", "gpu.count"} & labels.keys()
    if name is not None and (
        is_of_gpu or any(key.startswith(starts) for key in labels)
    ):
        capacity = as_mapping(as_mapping(item.get("status")).get("capacity"))
        total = as_text(capacity.get("nvidia.com/gpu"))
        with errors_at(f"node {shown(name)}"):
            environment, notes = _described(frozenset(labels.items()), total)
        yield Machine(name=name, environment=environment, notes=notes)


@lru_cache(maxsize=1024)  # many nodes are identical
def _described(
    items: frozenset[tuple[str, str]], capacity: str | None
) -> tuple[Environment, tuple[str, ...]]:
    """Return the environment that the labels of a node describe, and notes."""
    labels, notes = dict(items), list[str]()
    cuda = _pair(labels, "cuda.runtime-version", notes)
    if cuda is None:
        cuda = _pair(labels, "cuda.runtime", notes)
    capability = _pair(labels, "gpu.compute", notes)
    product = labels.get("gpu.product")
    if product is not None:
        product, shared = _SHARED.subn("", product)
        product, split = _MIG.subn("", product)
        if shared:
            notes.append("its GPUs are shared by time slicing")
        if split:
            notes.append("a GPU is split by MIG")
        product = product.replace("-", " ")
    if labels.get("vgpu.present") == "true":
        notes.append("its GPU is a vGPU, which runs under the driver of its host")
    count = _count(labels.get("gpu.count"))
    total = _count(capacity)
    replicas = _count(labels.get("gpu.replicas")) or 1
    is_split = any("MIG" in note for note in notes)
    if count and total > count * replicas and not is_split:
        # The labels of GPU feature discovery describe only one of several models.
        notes.append(
            f"it has {total} GPUs and its labels describe {count * replicas} of them: "
            "it may have several models"
        )
    environment = make_environment(
        None if cuda is None else CudaVersion(*cuda),
        [(product, None if capability is None else ComputeCapability(*capability))]
        * max(count, 1),
        kernel=_kernel(labels),
    )
    return environment, tuple(notes)


def _pair(
    labels: Mapping[str, str], key: str, notes: list[str]
) -> tuple[int, int] | None:
    """Return ``KEY.major`` and ``KEY.minor`` if both exist; note if only one does."""
    texts = [labels.get(f"{key}.{part}") for part in ("major", "minor")]
    if None in texts:
        if any(texts):
            notes.append(
                f"it has only one of the labels {_LABEL}{key}.major and .minor"
            )
        return None
    numbers = [text for text in texts if text is not None]
    for text in numbers:
        if not (text.isascii() and text.isdigit() and len(text) <= 4):
            message = f"{shown(text)} is not a number"
            raise InputError(message, place=f"{_LABEL}{key}", hint="it is like 12")
    return int(numbers[0]), int(numbers[1])


def _kernel(labels: Mapping[str, str]) -> str | None:
    full = labels.get("cuda.driver-version.full")
    if full is not None:
        return full
    parts = [labels.get(f"cuda.driver.{part}") for part in ("major", "minor", "rev")]
    return ".".join(part for part in parts if part) or None


def _count(text: str | None) -> int:
    if text is None or not (text.isascii() and text.isdigit() and len(text) <= 6):
        return 0
    return min(int(text), MAX_GPUS)


_GPU = "GPUs_GPU_"
"""The prefix of the slot attributes that each describe one GPU."""

_OF_GPU = (
    *("GPUs_Capability", "GPUs_DeviceName"),
    *("GPUs_DriverVersion", "GPUs_MaxSupportedVersion"),
)
"""The attributes of a slot about the GPU. `_GPU` attributes take precedence."""

_CUDA = "DCGM_FI_CUDA_DRIVER_VERSION"
_CAPABILITY = "DCGM_FI_DEV_CUDA_COMPUTE_CAPABILITY"
_LINE = re.compile(rf"({_CUDA}|{_CAPABILITY})(?:\{{(.*)\}})?[ \t]+(\S+)(?:[ \t]+\S+)?")
_LONGEST_LINE = 20_000  # matching takes 180 bytes for each character of a label
# Without the lookbehind, each character of a long name would begin a new attempt.
_METRIC_LABEL = re.compile(
    r'(?<![A-Za-z0-9_])([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"'
)


def is_slot(item: Mapping[str, Any]) -> bool:
    """Return whether an object is the ClassAd of an HTCondor slot."""
    return "Machine" in item and ("MyType" in item or "Name" in item)


@dataclass(kw_only=True, slots=True)
class _Slots:
    """The facts about a machine, collected from its slots."""

    cuda: CudaVersion | None = None
    gpus: dict[str, tuple[str | None, ComputeCapability | None]] = field(
        default_factory=dict
    )


def read_slots(items: Iterable[Mapping[str, Any]]) -> Iterator[Machine]:
    """Yield the machines that have GPUs, in the order of each machine's first slot."""
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
        own = {f"GPUs_{name}": text for name, text in as_mapping(value).items()}
        # Do not copy the slot, which may be large, for each GPU.
        fields = {name: item.get(name) for name in _OF_GPU} | own
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

    ``GPUs_MaxSupportedVersion`` takes precedence, because this integer is exact: 12080
    is 12.8. In the number ``GPUs_DriverVersion``, 12.1 may stand for 12.10.
    """
    number = item.get("GPUs_MaxSupportedVersion")
    if isinstance(number, int) and 1000 <= number < 100_000:
        return CudaVersion(number // 1000, number % 1000 // 10)
    text = as_text(item.get("GPUs_DriverVersion"))
    return None if text is None else parse_cuda(text)


def is_metrics(text: str) -> bool:
    """Return whether text looks like DCGM exporter metrics."""
    return re.search(r"^(?:# (?:HELP|TYPE) )?DCGM_FI_", text, re.MULTILINE) is not None


def read_metrics(lines: Iterable[str], name: str) -> Iterator[Machine]:
    """Yield a machine for each value of the label ``Hostname`` in DCGM metrics.

    :param lines: the lines of the text.
    :param name: the machine name for metrics without this label.
    :raises InputError: a value is malformed, or there is no metric to read.
    """
    versions: dict[str, CudaVersion] = {}
    gpus: dict[str, dict[str, tuple[str | None, ComputeCapability]]] = {}
    for line in lines:
        if len(line) > _LONGEST_LINE:
            message = f"a line has {len(line):,} characters"
            raise InputError(message, hint=f"{_LONGEST_LINE:,} are allowed")
        match = _LINE.fullmatch(line.strip())
        if match is None:
            continue
        labels = dict(_METRIC_LABEL.findall(match[2] or ""))
        host = labels.get("Hostname") or name
        number = _integer(match[3])
        devices = gpus.setdefault(host, {})
        if match[1] == _CUDA:
            versions[host] = CudaVersion(number // 1000, number % 1000 // 10)
        elif len(devices) < MAX_GPUS:
            # The value is major << 16 | minor.
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
    """Parse the whole number of a metric, which Prometheus writes as a float."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not (0 <= number < 2**31 and number == int(number)):
        raise InputError(f"{shown(text)} is not a whole number", hint="see DCGM")
    return int(number)
