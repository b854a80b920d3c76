"""Where something holds: a set of drivers with GPUs, described in few words."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TypeAlias

from nvidia_variant_provider.machine.environment import ComputeCapability, CudaVersion

__all__ = ["Place", "describe_lanes", "list_gpus", "span"]

Place: TypeAlias = tuple[CudaVersion, ComputeCapability]
"""A driver with a GPU."""


def span(band: Sequence[object]) -> str:
    """Return ``12.6-12.9`` for several adjacent versions, or ``12.6`` for one."""
    return str(band[0]) if len(band) == 1 else f"{band[0]}-{band[-1]}"


def describe_lanes(lanes: Collection[Place], known: Collection[Place]) -> list[str]:
    """Return rectangles that make up ``lanes``, as ``drivers 12.6-12.9, GPUs 5.0-7.2``.

    A rectangle covers no other lane of ``known``. It may cover drivers with GPUs that
    are not known, since no machine has both.

    :param known: all lanes of the matrix.
    """
    drivers = sorted({cuda for cuda, _ in known})
    gpus = sorted({gpu for _, gpu in known})
    # For each rectangle its GPUs, the drivers that it has to cover, and those that it
    # may cover.
    rows: list[tuple[list[ComputeCapability], set[CudaVersion], set[CudaVersion]]] = []
    for gpu in gpus:
        needed = {cuda for cuda in drivers if (cuda, gpu) in lanes}
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
        # A range may pass over versions that no machine of the rectangle has.
        versions = {*columns, *(cuda for cuda, gpu in known if gpu in members)}
        models = {*members, *(gpu for cuda, gpu in known if cuda in columns)}
        described.append(
            f"{_listed('driver', sorted(columns), sorted(versions))}, "
            f"{_listed('GPU', members, sorted(models))}"
        )
    return described


def list_gpus(lanes: Iterable[Place], gpus: Sequence[ComputeCapability]) -> str:
    """Return the GPUs of ``lanes``, as ``GPUs 8.7-8.8, 10.1``."""
    return _listed("GPU", sorted({gpu for _, gpu in lanes}), gpus)


def _listed(noun: str, members: Sequence[object], known: Sequence[object]) -> str:
    ranges: list[list[object]] = []
    for item in members:
        if ranges and known.index(item) == known.index(ranges[-1][-1]) + 1:
            ranges[-1].append(item)
        else:
            ranges.append([item])
    plural = "s" if len(members) > 1 else ""
    return f"{noun}{plural} {', '.join(map(span, ranges))}"
