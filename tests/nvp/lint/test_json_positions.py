"""The line and the column of places in JSON texts."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvidia_variant_provider.errors import join
from nvp.lint.findings import find_positions

DOCUMENT = """\
{
  "variants": {
    "cu126": {"nvidia": {"sm_arch": ["80_real",
      "90_real"]}},
    "cu126": {"x.y": 1, "b c": [ ]}
  },
  "extra": NaN
}
"""


def find_position(
    text: str, place: str, *, of_key: bool = False
) -> tuple[int, int] | None:
    position = find_positions(text, [place]).get(place)
    if position is None:
        return None
    return position.key if of_key else position.value


@pytest.mark.parametrize(
    ("place", "key", "value"),
    [
        ("", (1, 1), (1, 1)),
        ("top level", (1, 1), (1, 1)),
        ("variants", (2, 3), (2, 15)),
        ("variants.cu126", (5, 5), (5, 14)),
        ("variants.cu126.nvidia.sm_arch[1]", (4, 7), (4, 7)),
        ("variants.cu126.x.y", (5, 15), (5, 22)),
        ("variants.cu126.'b c'", (5, 25), (5, 32)),
        ("extra", (7, 3), (7, 12)),
    ],
)
def test_position_of_key_and_value(
    place: str, key: tuple[int, int], value: tuple[int, int]
) -> None:
    assert find_position(DOCUMENT, place) == value
    assert find_position(DOCUMENT, place, of_key=True) == key


@pytest.mark.parametrize(
    ("place", "around"),
    [
        ("providers", ""),
        ("variants.null", "variants"),
        ("variants.cu126.nvidia.sm_arch[2]", "variants.cu126.nvidia.sm_arch"),
        ("variants.cu126.'b c'[0]", "variants.cu126.'b c'"),
        ("a.b.c[5].d", ""),
    ],
)
def test_missing_place_has_the_position_of_what_is_around_it(
    place: str, around: str
) -> None:
    assert find_position(DOCUMENT, place) == find_position(DOCUMENT, around)


def test_byte_order_mark_takes_no_column() -> None:
    assert find_position('\ufeff{"a": 1}', "a") == (1, 7)


@pytest.mark.parametrize(
    ("text", "position"),
    [('{"a": 1,\n  b}', (2, 3)), ("", (1, 1)), ('{"a": 1} x', (1, 10))],
)
def test_text_that_is_not_json_has_the_position_of_the_error(
    text: str, position: tuple[int, int]
) -> None:
    assert find_position(text, "a") == position


def test_text_that_is_nested_too_deeply_has_no_positions() -> None:
    assert find_position("[" * 200_000, "a") is None
    assert find_positions("[" * 200_000, ["a", "b"]) == {}


def test_number_that_python_does_not_convert_is_skipped() -> None:
    assert find_position('{"a": ' + "9" * 10_000 + ', "b": 1}', "b") == (1, 10_014)


def test_many_findings_in_one_long_text_take_linear_time() -> None:
    keys = [f"k{index}" for index in range(50_000)]
    text = json.dumps({key: [1] for key in keys}, indent=0)
    positions = find_positions(text, [f"{key}[0]" for key in keys])
    assert positions["k49999[0]"].value == (3 * 49_999 + 3, 1)


class Writer:
    """Writes a JSON text and records the position of each key and each value.

    An object is a list of pairs here, so it can have a key twice.
    """

    def __init__(self, draw: Callable[[st.SearchStrategy[Any]], Any]) -> None:
        self.text = ""
        self.positions: dict[str, tuple[tuple[int, int], tuple[int, int]]] = {}
        self._draw = draw

    def here(self) -> tuple[int, int]:
        before, _, line = self.text.rpartition("\n")
        breaks = self.text.count("\n")
        assert breaks == 0 or before.count("\n") == breaks - 1
        return breaks + 1, len(line) + 1

    def blank(self) -> None:
        self.text += self._draw(st.text(" \t\r\n", max_size=2))

    def write(self, value: Any, place: str, key: tuple[int, int] | None) -> None:
        here = self.here()
        self.positions[place] = key or here, here
        if isinstance(value, (dict, tuple)):
            pairs = value if isinstance(value, tuple) else tuple(value.items())
            self.text += "{"
            for index, (name, item) in enumerate(pairs):
                self.separate(index)
                at = self.here()
                self.text += json.dumps(name, ensure_ascii=self._draw(st.booleans()))
                self.blank()
                self.text += ":"
                self.blank()
                self.write(item, join(place, name), at)
            self.blank()
            self.text += "}"
        elif isinstance(value, list):
            self.text += "["
            for index, item in enumerate(value):
                self.separate(index)
                self.write(item, join(place, index), None)
            self.blank()
            self.text += "]"
        else:
            self.text += json.dumps(value)

    def separate(self, index: int) -> None:
        self.blank()
        if index:
            self.text += ","
            self.blank()


NAMES = st.text(max_size=4) | st.sampled_from(
    ["a", "b", "a.b", "a[0]", "'a'", "", "-", "\u00e9", '"', "\\", "x" * 61, "x" * 62]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(st.tuples(NAMES, inner), max_size=4).map(tuple)
    ),
    max_leaves=15,
)


def check_every_place(
    value: Any, draw: Callable[[st.SearchStrategy[Any]], Any]
) -> None:
    writer = Writer(draw)
    writer.write(value, "", None)
    positions = find_positions(writer.text, writer.positions)
    pairs = {place: (p.key, p.value) for place, p in positions.items()}
    assert pairs == writer.positions
    for place, (key, at) in writer.positions.items():
        assert find_position(writer.text, place) == at
        assert find_position(writer.text, place, of_key=True) == key


@given(VALUES, st.data())
@settings(deadline=None)
def test_every_place_of_any_document_is_found(value: Any, data: st.DataObject) -> None:
    check_every_place(value, data.draw)


def test_of_two_keys_with_one_place_the_later_one_counts() -> None:
    """A dot in a key and a key inside an object have the same place."""
    assert find_position('{"a": {"b": 1}, "a.b": 2}', "a.b") == (1, 24)
    assert find_position('{"a.b": 2, "a": {"b": 1}}', "a.b") == (1, 23)
