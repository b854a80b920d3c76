"""The work for each label does not grow with the number of other labels and values."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from support.documents import document, nvidia
from support.loopback import H100

from nvidia_variant_provider.metadata import versions
from nvidia_variant_provider.metadata.document import metadata_from_dict
from nvidia_variant_provider.resolution.resolver import resolve_metadata
from nvp import api
from nvp.lint.documents import check_document
from nvp.lint.findings import Collector
from nvp.metadata.checking import find_unanswered
from nvp.metadata.requirements import SelectedVariant, explain_requirement
from nvp.upgrading.upgrade import upgrade
from nvp.wheels import variant_json

OLD = next(item for item in versions.KNOWN if str(item) == "0.0.3")


def test_a_label_that_fits_no_machine_names_a_few_of_the_values() -> None:
    """8,000 labels and 8,000 values made a report of 560 MB."""
    document = {
        "$schema": versions.WRITTEN.url,
        "default-priorities": {"namespace": ["x"]},
        "providers": {"x": {"static-properties": {"f": [f"v{n}" for n in range(99)]}}},
        "variants": {"a": {"x": {"f": ["z"]}}, "b": {"x": {"g": ["z"]}}, "null": {}},
    }
    collector = Collector("x-1.0-variants.json")
    check_document(document, collector)
    first, second = (
        problem.message for code, problem in collector.problems if code == "NV118"
    )
    assert "list 'v0', 'v1', 'v2'," in first
    assert "'v9' and 89 more of the feature" in first
    assert "list no value of the feature" in second


class Labels(dict[str, Any]):
    """Labels that count how often all of them are read."""

    reads = 0

    def items(self) -> Any:
        Labels.reads += 1
        return super().items()

    def values(self) -> Any:
        Labels.reads += 1
        return super().values()


def unanswered(count: int) -> dict[str, Any]:
    names = [f"n{number}" for number in range(count)]
    return {
        "$schema": OLD.url,
        "default-priorities": {"namespace": names},
        "providers": {name: {"requires": [], "install-time": False} for name in names},
        "static-properties": {},
        "variants": {f"l_{name}": {name: {"f": ["v"]}} for name in names},
    }


def test_labels_are_read_once_for_all_namespaces() -> None:
    """1 MB of metadata with 6,000 namespaces took 12 seconds."""
    metadata = metadata_from_dict(unanswered(9))
    metadata = metadata.replace(variants=Labels(metadata.variants))
    found = {item.namespace: item.labels for item in find_unanswered(metadata)}
    assert found == {f"n{number}": (f"l_n{number}",) for number in range(9)}
    assert Labels.reads == 1


class Value(str):
    """A value that counts how often it is compared with another one."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        Value.compared += 1
        return super().__eq__(other)

    __hash__ = str.__hash__


def values(count: int) -> Iterator[Value]:
    return (Value(f"v{number}") for number in range(count))


def test_values_with_priorities_are_not_compared_in_pairs() -> None:
    """Metadata of 4 MB took minutes."""
    given = unanswered(1)
    given["static-properties"] = {"n0": {"f": [*map(str, values(60))]}}
    given["default-priorities"]["property"] = {
        "n0": {"f": [*map(str, reversed([*values(60)]))]}
    }
    metadata = metadata_from_dict(given)
    static = metadata.providers["n0"].replace(static_properties={"f": (*values(60),)})
    upgraded = upgrade(metadata.replace(providers={"n0": static})).metadata
    assert upgraded is not None
    assert upgraded.providers["n0"].static_properties == {
        "f": tuple(f"v{number}" for number in reversed(range(60)))
    }
    assert Value.compared < 10 * 60
    text = api.upgrade(json.dumps(given)).text
    assert text is not None


def test_supported_values_are_not_compared_in_pairs() -> None:
    """A label with 170,000 values took two minutes."""
    given = unanswered(1)
    given["variants"] = {"a": {"n0": {"f": [*map(str, values(60))]}}}
    metadata = metadata_from_dict(given)
    static = metadata.providers["n0"].replace(static_properties={"f": (*values(60),)})
    metadata = metadata.replace(providers={"n0": static})
    resolution = resolve_metadata(metadata, H100)
    Value.compared = 0
    variant = SelectedVariant.of("a", resolution)
    assert {value for _, _, value in variant.properties} == {*map(str, values(60))}
    assert Value.compared < 10 * 60


def test_each_label_of_the_wheels_of_a_release_is_compared_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """5,000 wheels of a release took 22 seconds."""
    compared: list[object] = []
    monkeypatch.setattr(variant_json, "_as_sets", compared.append)
    parts = [
        (f"{n}.whl", metadata_from_dict(document({f"cu{n}": nvidia("12.8")})))
        for n in range(50)
    ]
    merged, errors = variant_json.combine(parts)
    assert errors == []
    assert len(merged.variants) == len(compared) == 50


def test_the_order_of_very_many_values_is_not_compared() -> None:
    """200 kB took more than a minute."""
    bounds = [f"{major}.{minor}" for major in range(11, 16) for minor in range(21)]
    values = {
        "cuda_version_lower_bound": bounds,
        "sm_arch": [f"v{n}" for n in range(9_999)],
    }
    old = {
        "$schema": OLD.url,
        "default-priorities": {
            "namespace": ["nvidia"],
            "feature": {"nvidia": ["sm_arch"]},
            "property": {},
        },
        "providers": {"nvidia": {"requires": ["nvidia-variant-provider"]}},
        "variants": {"a": {"nvidia": values}},
    }
    (loss,) = api.upgrade(json.dumps(old).encode(), name="x").losses
    assert loss.hint == "the order may change: there are too many values to compare it"


def test_a_very_long_requirement_is_not_parsed() -> None:
    """`packaging` took 5 seconds for 800 kB, and minutes for 4 MB."""
    assert (
        explain_requirement("a" + ",".join(["==1"] * 9_999))
        == "it has 39,996 characters"
    )
