"""The light replacements of `dataclasses` and `json`."""

from __future__ import annotations

import copy
import json
import pickle

import pytest

from nvidia_variant_provider.light import EMPTY, Frozen, dumps, loads


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


@pytest.mark.parametrize(
    "value",
    [
        None,
        12,
        -1,
        "",
        "NVIDIA H100 80GB HBM3",
        'quote " backslash \\ newline \n \x7f',
        "\u00e9 \u65e5 \U0001f600 \ud800",
        [],
        {},
        {"a": [1, {"b": None}], "c": "d"},
    ],
)
def test_writing_and_reading_does_what_json_does(value: object) -> None:
    text = dumps(value)
    assert text.isascii()
    assert json.loads(text) == value
    assert loads(text) == value


@pytest.mark.parametrize("text", ["", "{", "[1,]", "1 2", "nul", '"\n"'])
def test_reading_refuses_what_json_does(text: str) -> None:
    with pytest.raises(ValueError, match=r"Expecting|Extra data|Invalid|Illegal"):
        loads(text)


def test_a_text_that_is_nested_too_deeply_is_refused() -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        loads("[" * 100_000)
