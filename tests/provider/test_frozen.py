"""Records that load quickly; `environment` and others are made of them."""

from __future__ import annotations

import copy
import pickle

import pytest

from nvidia_variant_provider.frozen import EMPTY, Frozen


class Point(Frozen):
    x: int
    y: int = 0


class Named(Frozen):
    GREETING = "hello"

    name: str
    more: tuple[str, ...] = ()

    def __init__(self, name: str) -> None:
        super().__init__(name=name)


def test_fields_have_defaults() -> None:
    assert (Point(x=1).x, Point(x=1).y, Point(x=1, y=2).y) == (1, 0, 2)
    assert (Named("n").more, Named.GREETING) == ((), "hello")
    assert EMPTY == {}


def test_a_missing_and_an_unknown_argument_are_named() -> None:
    with pytest.raises(TypeError, match=r"Point\(\) needs the argument x"):
        Point(y=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"Point\(\) has no argument z, w"):
        Point(x=1, z=2, w=3)  # type: ignore[call-arg]


def test_records_cannot_be_changed() -> None:
    point = Point(x=1)
    with pytest.raises(AttributeError, match=r"Point\.x cannot be assigned to"):
        point.x = 2  # type: ignore[misc]
    with pytest.raises(AttributeError, match=r"Point\.z"):
        point.z = 2
    with pytest.raises(AttributeError, match=r"Point\.x cannot be deleted"):
        del point.x
    assert point.replace(y=5) == Point(x=1, y=5)
    assert not hasattr(point, "__dict__")


def test_equal_records_are_equal() -> None:
    point = Point(x=1, y=2)
    assert point == Point(y=2, x=1)
    assert hash(point) == hash(Point(x=1, y=2))
    assert point != Point(x=1)
    assert repr(point) == "Point(x=1, y=2)"
    assert pickle.loads(pickle.dumps(point)) == copy.deepcopy(point) == point
