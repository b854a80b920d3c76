"""The algorithm of PEP 825, case by case.

The tests in ``tests/peers`` compare it with variantlib on generated input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvidia_variant_provider.resolution.ordering import Mismatch, Rejections, order

Labels = dict[str, dict[str, dict[str, tuple[str, ...]]]]


def label(**features: str) -> dict[str, dict[str, tuple[str, ...]]]:
    """Return properties from ``namespace__feature="value value"``."""
    properties: dict[str, dict[str, tuple[str, ...]]] = {}
    for name, values in features.items():
        namespace, feature = name.split("__")
        properties.setdefault(namespace, {})[feature] = tuple(values.split())
    return properties


SUPPORTED: Mapping[str, Mapping[str, Sequence[str]]] = {
    "a": {"x": ["3", "2", "1"], "y": ["on"]},
    "b": {"z": ["p", "q"]},
}


def compatible(variants: Labels, **options: Any) -> tuple[str, ...]:
    arguments = {"namespaces": ("a", "b"), "supported": SUPPORTED, **options}
    return order(variants, **arguments).compatible


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        pytest.param(label(a__x="3"), label(a__x="2"), id="better value"),
        pytest.param(label(a__x="1 3"), label(a__x="2"), id="best value counts"),
        pytest.param(label(a__x="1"), label(a__y="on"), id="better feature"),
        pytest.param(label(a__y="on"), label(b__z="p"), id="better namespace"),
        pytest.param(label(a__x="1"), label(b__z="p"), id="namespace before value"),
        pytest.param(label(a__x="3", b__z="q"), label(a__x="3"), id="longer list"),
        pytest.param(
            label(a__x="3"), label(a__x="2", a__y="on", b__z="p"), id="first key first"
        ),
        pytest.param(
            label(a__x="3", a__y="on"), label(a__x="3", b__z="p"), id="second key"
        ),
        pytest.param(label(b__z="q"), {}, id="null last"),
    ],
)
def test_the_better_label_comes_first(better: Any, worse: Any) -> None:
    # The properties decide the order, not the names of the labels.
    assert compatible({"m": better, "n": worse}) == ("m", "n")
    assert compatible({"n": better, "m": worse}) == ("n", "m")


def test_equal_properties_are_ordered_by_label() -> None:
    variants = {"b": label(a__x="3"), "a": label(a__x="3"), "B": label(a__x="3")}
    assert compatible(variants) == ("B", "a", "b")


@pytest.mark.parametrize(
    "properties",
    [
        label(a__x="4"),
        label(a__x="3", a__y="off"),
        label(a__w="1"),
        label(c__x="1"),
        label(a__x="3", c__x="1"),
    ],
)
def test_every_feature_needs_a_supported_value(properties: Any) -> None:
    assert compatible({"l": properties, "null": {}}) == ("null",)


def test_mismatches_name_all_features_of_a_label() -> None:
    variants = {"l": label(a__x="9 8", a__y="on", c__k="v")}
    ordering = order(variants, namespaces=("a", "b", "c"), supported=SUPPORTED)
    assert dict(ordering.rejected) == {
        "l": (
            Mismatch(
                namespace="a", feature="x", wanted=("9", "8"), offered=("3", "2", "1")
            ),
            Mismatch(namespace="c", feature="k", wanted=("v",), offered=()),
        )
    }
    with pytest.raises(KeyError):
        ordering.rejected["null"]


def test_priorities_go_before_the_order_of_the_provider() -> None:
    variants = {
        "x1": label(a__x="1"),
        "x3": label(a__x="3"),
        "y": label(a__y="on"),
        "z": label(b__z="p"),
    }
    assert compatible(variants) == ("x3", "x1", "y", "z")
    assert compatible(variants, namespaces=("b", "a")) == ("z", "x3", "x1", "y")
    features = {"a": ["y", "unknown"]}
    assert compatible(variants, feature_priorities=features) == ("y", "x3", "x1", "z")
    values = {"a": {"x": ["0", "1"]}}
    assert compatible(variants, property_priorities=values) == ("x1", "x3", "y", "z")


def test_repeated_namespaces_count_once() -> None:
    variants = {"x": label(a__x="3"), "z": label(b__z="p")}
    assert compatible(variants, namespaces=("b", "a", "b")) == ("z", "x")


values = st.lists(st.sampled_from("1234"), min_size=1, unique=True).map(tuple)
properties = st.dictionaries(
    st.sampled_from("abc"),
    st.dictionaries(st.sampled_from("xyz"), values, min_size=1),
)
answers = st.dictionaries(
    st.sampled_from("abc"),
    st.dictionaries(st.sampled_from("xyz"), values.map(list)),
)


def pep_825_key(
    item: Mapping[str, Mapping[str, Sequence[str]]],
    supported: Mapping[str, Mapping[str, Sequence[str]]],
) -> list[tuple[int, int, int]]:
    """Follow steps 4 to 6 literally; raise ValueError if a label does not fit."""
    keys = []
    for namespace, features in item.items():
        for feature, wanted in features.items():
            offered = list(supported.get(namespace, {}).get(feature, ()))
            best = min(offered.index(value) for value in wanted if value in offered)
            position = list(supported[namespace]).index(feature)
            keys.append(("abc".index(namespace), position, best))
    return sorted(keys)


@given(st.dictionaries(st.text("lmn", min_size=1), properties), answers)
def test_the_order_is_that_of_a_literal_implementation(
    variants: Any, supported: Any
) -> None:
    keys = {}
    for name, item in variants.items():
        with suppress(ValueError):
            keys[name] = pep_825_key(item, supported)
    end = (99, 99, 99)  # "the group with more keys is sorted earlier"
    expected = sorted(keys, key=lambda name: ([*keys[name], end], name))
    ordering = order(variants, namespaces="abc", supported=supported)
    assert list(ordering.compatible) == expected
    assert set(ordering.rejected) == set(variants) - set(expected)
    assert all(ordering.rejected[name] for name in ordering.rejected)


def test_unsupported_features_are_not_kept() -> None:
    """After the reasons of a release with 60,000 of them, 45 MB stayed."""
    features = {f"f{number}": ("a",) for number in range(9)}
    variants = {"x": {"nvidia": {**features, "sm_arch": ("90_real",)}}}
    rejections = Rejections(variants, ["x"], {"nvidia": {"sm_arch": ("80_real",)}})
    offered = {item.feature: item.offered for item in rejections["x"]}
    assert offered == {**dict.fromkeys(features, ()), "sm_arch": ("80_real",)}
    assert [*rejections._sets] == [("nvidia", "sm_arch")]
