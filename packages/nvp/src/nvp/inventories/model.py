"""The machines of an inventory, and helpers for the readers of all sources."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from nvidia_variant_provider.errors import InputError, shown
from nvidia_variant_provider.machine.environment import (
    ComputeCapability,
    CudaVersion,
    Environment,
    Gpu,
)
from nvidia_variant_provider.machine.reasons import NOT_GIVEN

from ..findings import Reported

_SNAPSHOT = "make one with: nvp detect --json"
_NUMBERS = re.compile(r"([0-9]{1,4})\.([0-9]{1,4})(?:\.[0-9]{1,6})*")
MAX_GPUS = 256
"""The maximum number of GPUs of a machine. Known machines have up to 16, and a rack up
to 72."""

_LONGEST_NAME = 600
"""The maximum length of a machine name in characters; host names have at most 253."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine(Reported):
    """A machine of an inventory.

    :param name: the name in the source, such as the name of a cluster node.
    :param notes: sentences without a period about facts that ``environment`` cannot
        express, such as a GPU that MIG splits.
    """

    name: str
    environment: Environment
    notes: tuple[str, ...] = ()


def parse_cuda(text: str) -> CudaVersion:
    """Parse a CUDA version such as ``12.9`` or ``12.9.0``.

    :raises InputError: the text is not a version.
    """
    return CudaVersion(*_numbers(text, "CUDA version"))


def parse_capability(text: str) -> ComputeCapability:
    """Parse a compute capability such as ``8.0`` or ``8.0.0``.

    :raises InputError: the text is not a compute capability.
    """
    return ComputeCapability(*_numbers(text, "compute capability"))


def _numbers(text: str, what: str) -> tuple[int, int]:
    match = _NUMBERS.fullmatch(text.strip())
    if match is None:
        raise InputError(f"{shown(text)} is not a {what}", hint="it is like 12.9")
    return int(match[1]), int(match[2])


def make_environment(
    cuda: CudaVersion | None,
    gpus: Iterable[tuple[str | None, ComputeCapability | None]],
    *,
    kernel: str | None = None,
) -> Environment:
    """Create the environment of a machine, with a reason for missing facts.

    :param gpus: the name and compute capability of each GPU, in the order of indexes.
    """
    return _environment(cuda, tuple(gpus), kernel)


@lru_cache(maxsize=1024)  # many machines are identical
def _environment(
    cuda: CudaVersion | None,
    gpus: tuple[tuple[str | None, ComputeCapability | None], ...],
    kernel: str | None,
) -> Environment:
    listed = [
        Gpu(
            index=index,
            name=name,
            compute_capability=capability,
            reason=None if capability else NOT_GIVEN,
        )
        for index, (name, capability) in enumerate(gpus)
    ]
    complete = cuda is not None and bool(listed)
    return Environment(
        cuda_driver_version=cuda,
        kernel_driver_version=kernel,
        gpus=tuple(listed),
        source="snapshot",
        reason=None if complete else NOT_GIVEN,
    )


def refuse_repeated(machines: Iterable[Machine]) -> Iterator[Machine]:
    """Yield ``machines``, and check their names.

    :raises InputError: a name is repeated or too long.
    """
    names: set[str] = set()
    for machine in machines:
        if len(machine.name) > _LONGEST_NAME:
            message = f"the name of a machine has {len(machine.name):,} characters"
            raise InputError(message, hint=f"{_LONGEST_NAME} are allowed")
        if machine.name in names:
            message = f"two machines have the name {shown(machine.name)}"
            raise InputError(message, hint="give each machine a name of its own")
        names.add(machine.name)
        yield machine


@contextmanager
def errors_at(place: str) -> Iterator[None]:
    """Put ``place`` before the place of an `InputError` that the block raises."""
    try:
        yield
    except InputError as error:
        error.place = ": ".join(filter(None, (place, error.place)))
        raise


def as_mapping(value: object) -> Mapping[str, Any]:
    """Return ``value`` if it is a mapping, otherwise an empty mapping."""
    return value if isinstance(value, dict) else {}


def as_text(value: object) -> str | None:
    """Return a stripped text or a number as text; ``None`` for any other value."""
    if isinstance(value, str):
        return value.strip() or None
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, (int, float)):
        return str(value)
    return None


def environment_of_snapshot(document: object) -> Environment:
    """Return the environment in a snapshot.

    :param document: the JSON report of ``nvp detect``, or only its ``data``.
    :raises InputError: the document is not a valid snapshot.
    """
    if not isinstance(document, dict) or "schema_version" not in document:
        if isinstance(document, dict) and "variants" in document:
            message = "this is variant metadata, not a snapshot of a machine"
            raise InputError(message, hint=_SNAPSHOT)
        return Environment.from_dict(document)
    if document.get("command") != "detect":
        raise InputError("this is not the report of detect", hint=_SNAPSHOT)
    return Environment.from_dict(document.get("data"), "data")
