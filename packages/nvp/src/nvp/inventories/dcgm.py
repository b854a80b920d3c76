"""The DCGM exporter: metrics in the text format of Prometheus."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from nvidia_variant_provider.errors import InputError, shown
from nvidia_variant_provider.machine.environment import ComputeCapability, CudaVersion

from .model import MAX_GPUS, Machine, make_environment

__all__ = ["is_metrics", "read_metrics"]

_CUDA = "DCGM_FI_CUDA_DRIVER_VERSION"
_CAPABILITY = "DCGM_FI_DEV_CUDA_COMPUTE_CAPABILITY"
_LINE = re.compile(rf"({_CUDA}|{_CAPABILITY})(?:\{{(.*)\}})?[ \t]+(\S+)(?:[ \t]+\S+)?")
_LABEL = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"')


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
