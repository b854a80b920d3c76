"""Where something holds: a set of drivers with GPUs, described in few words."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from ..machine.environment import ComputeCapability, CudaVersion

__all__ = ["describe_lanes", "list_gpus", "span"]


def span(band: Sequence[object]) -> str:
    """Return ``12.6-12.9`` for several adjacent versions, or ``12.6`` for one."""
    return str(band[0]) if len(band) == 1 else f"{band[0]}-{band[-1]}"


def describe_lanes(
    lanes: Collection[tuple[CudaVersion, ComputeCapability]],
    *,
    drivers: Sequence[CudaVersion],
    gpus: Sequence[ComputeCapability],
) -> list[str]:
    """Return rectangles that make up ``lanes``, as ``drivers 12.6-12.9, GPUs 5.0-7.2``.

    :param drivers: all drivers of the matrix in ascending order. A range names its
        ends alone, so it may only leave out versions that are not in this list.
    :param gpus: all GPUs of the matrix in ascending order, for the same reason.
    """
    rows: dict[tuple[CudaVersion, ...], list[ComputeCapability]] = {}
    for gpu in gpus:
        columns = tuple(cuda for cuda in drivers if (cuda, gpu) in lanes)
        if columns:
            rows.setdefault(columns, []).append(gpu)
    return [
        f"{_listed('driver', columns, drivers)}, {_listed('GPU', members, gpus)}"
        for columns, members in rows.items()
    ]


def list_gpus(
    lanes: Iterable[tuple[CudaVersion, ComputeCapability]],
    gpus: Sequence[ComputeCapability],
) -> str:
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
