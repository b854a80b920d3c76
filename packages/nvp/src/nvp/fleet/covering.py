"""The fewest builds that give each machine one that runs."""

from __future__ import annotations

import functools
import itertools
import operator
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

EXACT = 20
"""The most labels for which the smallest set is searched. With more, each further label
is the one that serves the most machines without a build."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cover:
    """A set of builds that serves every machine that any build serves.

    :param gains: each label of the set with the machines that it adds, in the order in
        which they add the most.
    :param is_smallest: whether no smaller set serves as many machines.
    """

    gains: Mapping[str, int]
    is_smallest: bool

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels, the one that serves the most machines first."""
        return tuple(self.gains)


def find_cover(fitting: Sequence[tuple[int, Sequence[str]]]) -> Cover:
    """Find the smallest set of labels that has one for each group of machines.

    Of several such sets, return the one whose labels stand nearest to the front of the
    groups' own lists, weighted by the number of their machines.

    :param fitting: for each group, how many machines it has and the labels that run on
        them, best first. A group without labels is passed over.
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
    """Return for each label the groups that it serves, one bit for each group."""
    served: dict[str, int] = {}
    for number, (_, labels) in enumerate(groups):
        for label in labels:
            served[label] = served.get(label, 0) | 1 << number
    return served


def _without_dominated(served: Mapping[str, int]) -> list[str]:
    """Return the labels that serve a group which no better label serves as well."""
    kept: list[str] = []
    for label, mask in served.items():
        if any(other & mask == mask and other != mask for other in served.values()):
            continue
        if any(served[item] == mask for item in kept):
            continue
        kept.append(label)
    return kept


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
    # Labels that serve fewer groups may still be better for those that they serve.
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
    return sum(count for i, (count, _) in enumerate(groups) if mask >> i & 1)


def _gains(
    groups: Sequence[tuple[int, Sequence[str]]],
    served: Mapping[str, int],
    labels: Sequence[str],
) -> dict[str, int]:
    """Return labels that serve all groups, each with the machines that it adds.

    The label that adds the most machines is the next one, so that the result may do
    without some of ``labels``.
    """
    gains: dict[str, int] = {}
    left = (1 << len(groups)) - 1
    while left:
        best = max(labels, key=lambda label: _machines(groups, served[label] & left))
        gains[best] = _machines(groups, served[best] & left)
        left &= ~served[best]
    return gains
