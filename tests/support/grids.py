"""Large tables of cases: a sample by default, all of them where tests may be slow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

__all__ = ["some_of"]


def some_of(cases: Iterable[tuple[Any, ...]], step: int) -> list[Any]:
    """Return ``cases`` for `pytest.mark.parametrize`, all but each nth marked slow.

    Choose a ``step`` that has no divisor in common with the length of the rows of a
    grid: the sample then has something from each row and each column.

    :param step: how many cases to go on for the next one of the sample.
    """
    return [
        pytest.param(*case, marks=[pytest.mark.slow] if number % step else [])
        for number, case in enumerate(cases)
    ]
