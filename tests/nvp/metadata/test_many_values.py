"""The work for each label does not grow with the number of other labels and values."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from nvidia_variant_provider.metadata import versions
from nvidia_variant_provider.metadata.document import metadata_from_dict
from nvp import api
from nvp.lint.documents import check_document
from nvp.lint.findings import Collector
from nvp.metadata.checking import find_unanswered
from nvp.upgrading.upgrade import upgrade

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
