"""Find the smallest set of builds that contains a build for each machine."""

from __future__ import annotations

import functools
import itertools
import operator
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

EXACT = 20
"""The maximum number of labels for an exact search. With more labels, a greedy search
adds the label that serves the most machines still without a build."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cover:
    """A set of builds that serves every machine that any build serves.

    :param gains: the number of machines that each label of the set adds, largest number
        first.
    :param is_smallest: whether no smaller set serves as many machines.
    """

    gains: Mapping[str, int]
    is_smallest: bool

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels, in the order of `gains`."""
        return tuple(self.gains)


def find_cover(fitting: Sequence[tuple[int, Sequence[str]]]) -> Cover:
    """Find the smallest set of labels that has a label for each group of machines.

    Among several such sets, return the one whose labels are nearest to the front of the
    groups' own lists, weighted by the number of machines.

    :param fitting: for each group, the number of its machines and the labels that run
        on them, best first. A group without labels is ignored.
    """
    counts = Counter[tuple[str, ...]]()
    for count, labels in fitting:
        if labels:
            counts[tuple(labels)] += count
    groups = [(count, labels) for labels, count in counts.items()]
    served = _served_by(groups)
    useful = _without_dominated(served)
    everything = (1 << len(groups)) - 1
    exact = len(useful) <= EXACT
    members: Iterable[str]
    if exact:
        members = _smallest(groups, served, list(served), everything)
    else:
        members = _gains(groups, served, useful)
    return Cover(gains=_gains(groups, served, sorted(members)), is_smallest=exact)


def _served_by(groups: Sequence[tuple[int, Sequence[str]]]) -> dict[str, int]:
    """Return, for each label, a bit mask of the groups that it serves."""
    served: dict[str, int] = {}
    for number, (_, labels) in enumerate(groups):
        for label in labels:
            served[label] = served.get(label, 0) | 1 << number
    return served


def _without_dominated(served: Mapping[str, int]) -> list[str]:
    """Return the labels, except those whose groups are all served by another label."""
    first = {mask: label for label, mask in reversed([*served.items()])}
    return [
        label
        for label, mask in served.items()
        if first[mask] == label
        and not any(other & mask == mask and other != mask for other in first)
    ]


def _smallest(
    groups: Sequence[tuple[int, Sequence[str]]],
    served: Mapping[str, int],
    labels: Sequence[str],
    everything: int,
) -> tuple[str, ...]:
    useful = _without_dominated(served)
    size = next(
        size
        for size in range(len(useful) + 1)
        for combination in itertools.combinations(useful, size)
        if _union(served, combination) == everything
    )
    # Also consider dominated labels: the groups that they serve may prefer them.
    candidates = labels if len(labels) <= EXACT else useful
    return min(
        (
            combination
            for combination in itertools.combinations(candidates, size)
            if _union(served, combination) == everything
        ),
        key=lambda combination: (_distance(groups, combination), combination),
    )


def _union(served: Mapping[str, int], labels: Iterable[str]) -> int:
    return functools.reduce(operator.or_, map(served.__getitem__, labels), 0)


def _distance(
    groups: Sequence[tuple[int, Sequence[str]]], labels: Iterable[str]
) -> int:
    chosen = set(labels)
    return sum(
        count * next(rank for rank, label in enumerate(listed) if label in chosen)
        for count, listed in groups
    )


def _machines(groups: Sequence[tuple[int, Sequence[str]]], mask: int) -> int:
    total = 0
    while mask:
        last = mask.bit_length() - 1
        total += groups[last][0]
        mask ^= 1 << last
    return total


def _gains(
    groups: Sequence[tuple[int, Sequence[str]]],
    served: Mapping[str, int],
    labels: Sequence[str],
) -> dict[str, int]:
    """Return labels that serve all groups, each with the number of machines it adds.

    Each step selects the label that adds the most machines, so the result may omit some
    of ``labels``.
    """
    gains: dict[str, int] = {}
    left = (1 << len(groups)) - 1
    while left:
        best = max(labels, key=lambda label: _machines(groups, served[label] & left))
        gains[best] = _machines(groups, served[best] & left)
        left &= ~served[best]
    return gains
