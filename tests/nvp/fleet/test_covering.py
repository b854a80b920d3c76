"""The smallest set of builds, compared to all possible sets."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvp.fleet import covering
from nvp.fleet.covering import find_cover

LABELS = ["cpu", "cu118", "cu126", "cu128", "cu130", "cu132"]
Fitting = Sequence[tuple[int, Sequence[str]]]

fleets = st.lists(
    st.tuples(
        st.integers(min_value=1, max_value=9),
        st.lists(st.sampled_from(LABELS), unique=True),
    ),
    max_size=8,
)


def serves(fitting: Fitting, labels: Sequence[str]) -> bool:
    """Return whether each group that any label serves has one of ``labels``."""
    return all(set(fits) & set(labels) for _, fits in fitting if fits)


@given(fleets)
def test_no_smaller_set_serves_all(fitting: Fitting) -> None:
    cover = find_cover(fitting)
    assert cover.is_smallest
    assert serves(fitting, cover.labels)
    for smaller in itertools.combinations(LABELS, max(0, len(cover.labels) - 1)):
        assert not serves(fitting, smaller) or not cover.labels


@given(fleets)
def test_gains_add_up_to_all_machines_that_can_be_served(fitting: Fitting) -> None:
    cover = find_cover(fitting)
    assert sum(cover.gains.values()) == sum(count for count, fits in fitting if fits)
    assert list(cover.gains.values()) == sorted(cover.gains.values(), reverse=True)
    assert all(cover.gains.values())


@given(fleets)
def test_of_the_smallest_sets_the_best_is_taken(fitting: Fitting) -> None:
    def distance(labels: Sequence[str]) -> int:
        return sum(
            count * min(fits.index(label) for label in labels if label in fits)
            for count, fits in fitting
            if fits
        )

    cover = find_cover(fitting)
    for other in itertools.combinations(LABELS, len(cover.labels)):
        if serves(fitting, other):
            assert distance(cover.labels) <= distance(other)


def test_many_labels_are_searched_greedily() -> None:
    fitting = [(1, [f"cu{number}"]) for number in range(covering.EXACT + 1)]
    cover = find_cover(fitting)
    assert not cover.is_smallest
    assert len(cover.labels) == covering.EXACT + 1


class Served(dict[str, int]):
    """Masks that count how often all of them are looked at."""

    looks = 0

    def values(self) -> Any:
        Served.looks += 1
        return super().values()


def test_labels_for_the_same_machines_are_not_compared() -> None:
    """30,000 labels that fit the same machines took minutes."""
    served = Served({f"l{number}": 1 + number % 3 for number in range(9)})
    assert covering._without_dominated(served) == ["l2"]
    assert Served.looks == 0


@pytest.mark.parametrize("fitting", [[], [(3, [])]])
def test_no_machine_can_be_served(fitting: Fitting) -> None:
    assert find_cover(fitting).labels == ()
