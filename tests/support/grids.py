"""Large tables of cases: a sample by default, and all cases in slow test runs."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest

__all__ = ["some_of"]

_ALL = os.environ.get("NVP_TEST_ALL") == "1"
"""Whether to run the largest tables, which take longer than all other tests,
completely."""


def some_of(cases: Iterable[tuple[Any, ...]], step: int, *, slow: int = 1) -> list[Any]:
    """Return ``cases`` for `pytest.mark.parametrize`, all but each nth marked slow.

    Choose a ``step`` that has no divisor in common with the length of the rows of a
    grid: the sample then has something from each row and each column.

    :param step: the distance between two cases of the sample.
    :param slow: the distance between two cases that are marked slow. The cases between
        them are left out unless the variable ``NVP_TEST_ALL`` is 1.
    """
    return [
        pytest.param(*case, marks=[pytest.mark.slow] if number % step else [])
        for number, case in enumerate(cases)
        if _ALL or number % step == 0 or number % slow == 0
    ]
