"""The order of labels is that of variantlib, also for generated metadata.

Each property is tested twice: on a few examples by default, and on many in slow test
runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from support.strategies import documents, machines, wild_machines
from support.variantlib_peer import order, validated

from nvidia_variant_provider.machine.environment import Environment
from nvidia_variant_provider.machine.supported import (
    OLDEST,
    all_features,
    supported_features,
)
from nvidia_variant_provider.resolution.inputs import Priorities
from nvidia_variant_provider.resolution.ordering import order as our_order
from nvp import api

Lists: TypeAlias = dict[str, list[str]]
Nested: TypeAlias = dict[str, Lists]

# Every run has the same examples, so only a change of the code can cause a failure.
FEW = settings(
    deadline=None,
    derandomize=True,
    max_examples=8,
    # Explaining a failure takes minutes with a peer this slow.
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow],
)
MANY = settings(FEW, max_examples=80)

# Some names are a prefix of another one; some values sort differently as numbers.
NAMESPACES = ("nvidia", "blas_lapack", "a")
FEATURES = ("f", "ff", "sm_arch")
VALUES = ("1", "1.0", "10", "2", "v3")


def _some(
    values: Sequence[str], least: int = 0, most: int | None = None
) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(values), min_size=least, max_size=most, unique=True)


def _nested(
    least: int, most: int, least_values: int, most_values: int
) -> st.SearchStrategy[Nested]:
    """Return values by feature and namespace, each level in any order."""
    values = _some(VALUES, least_values, most_values)
    features = st.dictionaries(
        st.sampled_from(FEATURES), values, min_size=least, max_size=most
    )
    return st.dictionaries(
        st.sampled_from(NAMESPACES), features, min_size=least, max_size=most
    )


# Machines support many values and labels need few, because the order of labels is only
# defined for labels that fit.
_SUPPORTED = _nested(2, 3, 3, 5)
_VARIANTS = st.dictionaries(
    st.from_regex(r"[0-9a-z_.]{1,4}", fullmatch=True),
    _nested(1, 2, 1, 3),
    min_size=2,
    max_size=8,
)
# The preferences of users may contain unknown names, and the same name twice.
_NAMES = st.sampled_from((*NAMESPACES, "other"))
_PREFERRED_NAMESPACES = st.lists(_NAMES, max_size=4)
_PREFERRED_FEATURES = st.dictionaries(
    _NAMES, st.lists(st.sampled_from((*FEATURES, "other")), max_size=4)
)
_PREFERRED_VALUES = st.dictionaries(
    _NAMES,
    st.dictionaries(
        st.sampled_from((*FEATURES, "other")),
        st.lists(st.sampled_from((*VALUES, "other")), max_size=4),
    ),
)


def _tuples(variants: Mapping[str, Nested]) -> dict[str, Any]:
    return {
        label: {
            namespace: {feature: tuple(values) for feature, values in features.items()}
            for namespace, features in properties.items()
        }
        for label, properties in variants.items()
    }


WITHOUT_PREFERENCES = given(
    variants=_VARIANTS,
    null=st.booleans(),
    supported=_SUPPORTED,
    namespaces=st.permutations(NAMESPACES),
)


@FEW
@WITHOUT_PREFERENCES
def test_order_without_preferences(**drawn: Any) -> None:
    check_without_preferences(**drawn)


@pytest.mark.slow
@MANY
@WITHOUT_PREFERENCES
def test_order_without_preferences_on_many_examples(**drawn: Any) -> None:
    check_without_preferences(**drawn)


def check_without_preferences(
    variants: dict[str, Nested], null: bool, supported: Nested, namespaces: list[str]
) -> None:
    if null:
        variants["null"] = {}
    else:
        variants.pop("null", None)
    ours = our_order(_tuples(variants), namespaces=namespaces, supported=supported)
    theirs = order(_tuples(variants), namespaces=[namespaces], supported=supported)
    assert [*ours.compatible, *([] if null else ["null"])] == theirs
    assert {*ours.compatible, *ours.rejected} == set(variants)


WITH_PREFERENCES = given(
    variants=_VARIANTS,
    supported=_SUPPORTED,
    namespaces=st.permutations(NAMESPACES),
    preferred_namespaces=_PREFERRED_NAMESPACES,
    preferred_features=_PREFERRED_FEATURES,
    preferred_values=_PREFERRED_VALUES,
    feature_priorities=_PREFERRED_FEATURES,
    property_priorities=_PREFERRED_VALUES,
)


@FEW
@WITH_PREFERENCES
def test_order_with_preferences(**drawn: Any) -> None:
    check_with_preferences(**drawn)


@pytest.mark.slow
@MANY
@WITH_PREFERENCES
def test_order_with_preferences_on_many_examples(**drawn: Any) -> None:
    check_with_preferences(**drawn)


def check_with_preferences(
    *,
    variants: dict[str, Nested],
    supported: Nested,
    namespaces: list[str],
    preferred_namespaces: list[str],
    preferred_features: Lists,
    preferred_values: Nested,
    feature_priorities: Lists,
    property_priorities: Nested,
) -> None:
    """Compare orders where the user's lists go before those of the metadata."""
    variants["null"] = {}
    theirs = order(
        _tuples(variants),
        namespaces=[preferred_namespaces, namespaces],
        supported=supported,
        feature_priorities=[preferred_features, feature_priorities],
        property_priorities=[preferred_values, property_priorities],
    )
    ours = our_order(
        _tuples(variants),
        namespaces=[*preferred_namespaces, *namespaces],
        supported=supported,
        feature_priorities={
            name: [*preferred_features.get(name, []), *feature_priorities.get(name, [])]
            for name in NAMESPACES
        },
        property_priorities={
            name: {
                feature: [
                    *preferred_values.get(name, {}).get(feature, []),
                    *property_priorities.get(name, {}).get(feature, []),
                ]
                for feature in FEATURES
            }
            for name in NAMESPACES
        },
    )
    assert list(ours.compatible) == theirs


DOCUMENTS = given(
    document=documents(),
    environment=machines,
    preferred_namespaces=st.lists(
        st.sampled_from(("nvidia", "blas_lapack", "other")), max_size=2
    ),
    preferred_features=st.dictionaries(
        st.just("nvidia"), _some(("sm_arch", "cuda_version_upper_bound", "other"))
    ),
    preferred_values=st.dictionaries(
        st.just("nvidia"),
        st.dictionaries(
            st.sampled_from(("cuda_version_lower_bound", "sm_arch")),
            _some(("12.4", "12.0", "90_virtual", "80_real", "80_virtual")),
        ),
    ),
)


@FEW
@DOCUMENTS
def test_resolution_of_documents(**drawn: Any) -> None:
    check_resolution(**drawn)


@pytest.mark.slow
@MANY
@DOCUMENTS
def test_resolution_of_many_documents(**drawn: Any) -> None:
    check_resolution(**drawn)


def check_resolution(
    document: dict[str, Any],
    environment: Environment,
    preferred_namespaces: list[str],
    preferred_features: Lists,
    preferred_values: Nested,
) -> None:
    """Compare `api.resolve` with variantlib, which is given our provider's answer."""
    priorities = Priorities(
        namespaces=tuple(preferred_namespaces),
        features=preferred_features,
        properties=preferred_values,
    )
    ours = api.resolve(
        document, environment=environment, priorities=priorities, environ={}
    )
    features, _ = supported_features(environment)
    supported: Nested = {"nvidia": {item.name: item.values for item in features}}
    feature_order: Lists = {}
    for namespace, provider in document["providers"].items():
        if "static-properties" in provider:
            supported[namespace] = provider["static-properties"]
            feature_order[namespace] = provider["feature-order"]
    theirs = order(
        document["variants"],
        namespaces=[preferred_namespaces, document["default-priorities"]["namespace"]],
        supported=supported,
        feature_priorities=[preferred_features, feature_order],
        property_priorities=[preferred_values],
    )
    null = [] if "null" in document["variants"] else ["null"]
    assert [*ours.compatible, *null] == theirs


@MANY
@given(environment=wild_machines, relaxed=st.booleans())
def test_answer_is_valid_and_a_subset_of_the_catalog(
    environment: Environment, relaxed: bool
) -> None:
    catalog = {
        name: (values, multi_value)
        for name, values, multi_value in validated(all_features())
    }
    features, _ = supported_features(environment, minor_version_compatibility=relaxed)
    driver = environment.cuda_driver_version
    assert bool(features) == (driver is not None and driver >= OLDEST)
    # PEP 817: "The value returned by get_supported_configs() MUST be a subset of
    # the feature names and values returned by get_all_configs()".
    for name, values, multi_value in validated(features):
        known, known_multi_value = catalog[name]
        assert set(values) <= set(known)
        assert multi_value == known_multi_value
