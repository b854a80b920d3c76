"""The algorithm of PEP 825: which labels fit, and in which order.

This module depends neither on NVIDIA nor on the machine. The numbers in the comments
are the steps of "Variant ordering" in PEP 825.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ..light import Frozen
from ..metadata.model import Properties

_END = 1 << 62
"""A number above every key. It ends each list of keys, so the list sorts after longer
lists that start with the same keys."""

_UNSUPPORTED = -1
"""A number below every key: the feature has no supported value."""


class Mismatch(Frozen):
    """A feature that rules a label out: none of the label's values is supported.

    :param wanted: the values that the label lists.
    :param offered: the supported values, best first; empty if the machine does not
        support the feature or its namespace at all.
    """

    namespace: str
    feature: str
    wanted: tuple[str, ...]
    offered: tuple[str, ...]


class Rejections(Mapping[str, tuple[Mismatch, ...]]):
    """All mismatches of each label that does not fit, keyed by label.

    The mapping computes the mismatches of a label on access. Installers need only the
    labels that fit, and 10,000 labels must be ordered in a tenth of variantlib's time
    (``benchmarks/ordering.py``). Recording every mismatch while filtering would cost
    more than the ordering itself.
    """

    def __init__(
        self,
        variants: Mapping[str, Properties],
        labels: Sequence[str],
        supported: Mapping[str, Mapping[str, Sequence[str]]],
    ) -> None:
        self._variants = variants
        self._labels = dict.fromkeys(labels)
        self._supported = supported
        self._sets: dict[tuple[str, str], tuple[tuple[str, ...], frozenset[str]]] = {}

    def _offered(
        self, namespace: str, feature: str
    ) -> tuple[tuple[str, ...], frozenset[str]]:
        values = tuple(self._supported.get(namespace, {}).get(feature, ()))
        if not values:  # a release may have 100,000 features that nothing supports
            return (), frozenset()
        if (namespace, feature) not in self._sets:
            self._sets[namespace, feature] = values, frozenset(values)
        return self._sets[namespace, feature]

    def __getitem__(self, label: str) -> tuple[Mismatch, ...]:
        if label not in self._labels:
            raise KeyError(label)
        mismatches = []
        for namespace, features in self._variants[label].items():
            for feature, wanted in features.items():
                offered, known = self._offered(namespace, feature)
                if known.isdisjoint(wanted):
                    mismatches.append(
                        Mismatch(
                            namespace=namespace,
                            feature=feature,
                            wanted=wanted,
                            offered=offered,
                        )
                    )
        return tuple(mismatches)

    def __iter__(self) -> Iterator[str]:
        return iter(self._labels)

    def __len__(self) -> int:
        return len(self._labels)


class Ordering(Frozen):
    """The labels that fit, best first, and the labels that do not."""

    compatible: tuple[str, ...]
    rejected: Rejections


def order(
    variants: Mapping[str, Properties],
    *,
    namespaces: Sequence[str],
    supported: Mapping[str, Mapping[str, Sequence[str]]],
    feature_priorities: Mapping[str, Sequence[str]] | None = None,
    property_priorities: Mapping[str, Mapping[str, Sequence[str]]] | None = None,
) -> Ordering:
    """Filter and order labels, in linear time except for one sort.

    :param variants: ``{label: {namespace: {feature: (value, ...)}}}``.
    :param namespaces: the namespaces, highest priority first.
    :param supported: ``{namespace: {feature: [value, ...]}}``; features and values are
        ordered, best first. A missing namespace is unsupported.
    :param feature_priorities: for each namespace, the features that precede all
        others (from PEP 817's metadata or from the user's ``variants.toml``).
    :param property_priorities: for each namespace and feature, the values that precede
        all others.
    """
    ranks = _ranks(
        namespaces, supported, feature_priorities or {}, property_priorities or {}
    )
    groups: dict[tuple[int, ...], list[str]] = {}
    rejected: list[str] = []
    # Many labels list the same values, so compute the best value of each list once.
    best: dict[tuple[str, str, tuple[str, ...]], int] = {}
    for label, properties in variants.items():
        keys: list[int] = []
        for namespace, features in properties.items():
            for feature, wanted in features.items():
                item = (namespace, feature, wanted)
                key = best.get(item)
                if key is None:
                    key = best[item] = _best(wanted, ranks.get((namespace, feature)))
                keys.append(key)
        # 6. "sort the list constructed in step 4 using the sort keys"
        keys.sort()
        # 7. "the group with more keys is sorted earlier"
        keys.append(_END)
        if keys[0] == _UNSUPPORTED:
            rejected.append(label)
        else:
            groups.setdefault(tuple(keys), []).append(label)
    # 7. "they are ordered lexically by the variant label, ascending"
    compatible = [label for key in sorted(groups) for label in sorted(groups[key])]
    return Ordering(
        compatible=tuple(compatible),
        rejected=Rejections(variants, rejected, supported),
    )


def _best(wanted: Sequence[str], ranks: Mapping[str, int] | None) -> int:
    """Return the key of the best supported value, or `_UNSUPPORTED`.

    Step 4: "the one that has the lowest position in the ordered property value list"
    """
    known = [ranks[value] for value in wanted if value in ranks] if ranks else []
    return min(known, default=_UNSUPPORTED)


def _ranks(
    namespaces: Sequence[str],
    supported: Mapping[str, Mapping[str, Sequence[str]]],
    feature_priorities: Mapping[str, Sequence[str]],
    property_priorities: Mapping[str, Mapping[str, Sequence[str]]],
) -> dict[tuple[str, str], dict[str, int]]:
    """Assign a number to each supported property; the lowest is best.

    Step 5: the sort key is "a 3-tuple consisting of its namespace, feature name and
    best feature value indices in the respective ordered lists". Numbering the
    properties in the order of these tuples gives integers that sort like the tuples.
    """
    ranks: dict[tuple[str, str], dict[str, int]] = {}
    count = 0
    # Step 1 orders the namespaces, step 2 the features, and step 3 the values.
    for namespace in dict.fromkeys(namespaces):
        lists = supported.get(namespace, {})
        features = _first(feature_priorities.get(namespace, ()), lists)
        priorities = property_priorities.get(namespace, {})
        for feature in features:
            values = _first(priorities.get(feature, ()), lists[feature])
            ranks[namespace, feature] = {
                value: count + position for position, value in enumerate(values)
            }
            count += len(values)
    return ranks


def _first(
    preferred: Sequence[str], supported: Sequence[str] | Mapping[str, object]
) -> list[str]:
    """Return ``supported`` without repetition, ``preferred`` items first."""
    known = dict.fromkeys(supported)
    head = {item: None for item in preferred if item in known}
    return [*head, *(item for item in known if item not in head)]
