"""Where something holds: a set of driver x GPU in few words."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from ..machine.environment import ComputeCapability, CudaVersion
from .grid import span

__all__ = ["describe_lanes", "list_gpus"]


def describe_lanes(
    lanes: Collection[tuple[CudaVersion, ComputeCapability]],
    *,
    drivers: Sequence[CudaVersion],
    gpus: Sequence[ComputeCapability],
) -> list[str]:
    """Rectangles that make up ``lanes``: ``drivers 12.6-12.9, GPUs 5.0-7.2``.

    :param drivers: all of them, ascending: what a range may pass over; so are
    :param gpus:
    """
    rows: dict[tuple[CudaVersion, ...], list[ComputeCapability]] = {}
    for gpu in gpus:
        found = tuple(cuda for cuda in drivers if (cuda, gpu) in lanes)
        if found:
            rows.setdefault(found, []).append(gpu)
    return [
        f"{_listed('driver', found, drivers)}, {_listed('GPU', members, gpus)}"
        for found, members in rows.items()
    ]


def list_gpus(
    lanes: Iterable[tuple[CudaVersion, ComputeCapability]],
    gpus: Sequence[ComputeCapability],
) -> str:
    """The GPUs of ``lanes``: ``GPUs 8.7-8.8, 10.1``."""
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
