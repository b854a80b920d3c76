"""Which labels fit, and in which order: the algorithm of PEP 825.

Nothing here knows about NVIDIA or asks the machine. The numbers in the comments
are the steps of "Variant ordering" in PEP 825.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..metadata.model import Properties

__all__ = ["Mismatch", "Ordering", "Rejections", "order"]

_END = 1 << 62
"""Greater than every key: what a list that is a prefix of another ends with."""

_UNSUPPORTED = -1
"""Less than every key: of a feature that has no supported value."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A feature of which a label wants values, none of them supported.

    :param offered: the supported values, best first; empty when the feature, or
        its namespace, is not supported at all.
    """

    namespace: str
    feature: str
    wanted: tuple[str, ...]
    offered: tuple[str, ...]


class Rejections(Mapping[str, tuple[Mismatch, ...]]):
    """Each label that does not fit, with all its mismatches.

    Installers look at the labels only, so that the mismatches of a label are
    found when they are asked for.
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
        if (namespace, feature) not in self._sets:
            values = tuple(self._supported.get(namespace, {}).get(feature, ()))
            self._sets[namespace, feature] = values, frozenset(values)
        return self._sets[namespace, feature]

    def __getitem__(self, label: str) -> tuple[Mismatch, ...]:
        if label not in self._labels:
            raise KeyError(label)
        found = []
        for namespace, features in self._variants[label].items():
            for feature, wanted in features.items():
                offered, known = self._offered(namespace, feature)
                if known.isdisjoint(wanted):
                    found.append(Mismatch(namespace, feature, wanted, offered))
        return tuple(found)

    def __iter__(self) -> Iterator[str]:
        return iter(self._labels)

    def __len__(self) -> int:
        return len(self._labels)


@dataclass(frozen=True, slots=True)
class Ordering:
    """The labels that fit, best first, and those that do not."""

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
    """Filter and order labels.

    :param variants: ``{label: {namespace: {feature: (value, ...)}}}``.
    :param namespaces: in decreasing priority.
    :param supported: ``{namespace: {feature: [value, ...]}}``; features and
        values are ordered, best first. A namespace that is not there is
        unsupported.
    :param feature_priorities: features that come before the others of their
        namespace (PEP 817, and a user's ``variants.toml``).
    :param property_priorities: the same for values.

    Linear in the number of labels, but for sorting them.
    """
    ranks = _ranks(
        namespaces, supported, feature_priorities or {}, property_priorities or {}
    )
    groups: dict[tuple[int, ...], list[str]] = {}
    rejected: list[str] = []
    # Labels share their lists of values: the best of each list is found once.
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
    return Ordering(tuple(compatible), Rejections(variants, rejected, supported))


def _best(wanted: Sequence[str], ranks: Mapping[str, int] | None) -> int:
    """The key of the best supported value, or `_UNSUPPORTED`.

    4. "the one that has the lowest position in the ordered property value list"
    """
    known = [ranks[value] for value in wanted if value in ranks] if ranks else []
    return min(known, default=_UNSUPPORTED)


def _ranks(
    namespaces: Sequence[str],
    supported: Mapping[str, Mapping[str, Sequence[str]]],
    feature_priorities: Mapping[str, Sequence[str]],
    property_priorities: Mapping[str, Mapping[str, Sequence[str]]],
) -> dict[tuple[str, str], dict[str, int]]:
    """A number for each supported property, lowest is best.

    5. The sort key is "a 3-tuple consisting of its namespace, feature name and
    best feature value indices in the respective ordered lists". Counting the
    properties through in that order gives one number with the same order.
    """
    ranks: dict[tuple[str, str], dict[str, int]] = {}
    count = 0
    # 1. the namespaces, 2. their features, 3. the values of those
    for namespace in dict.fromkeys(namespaces):
        answer = supported.get(namespace, {})
        features = _first(feature_priorities.get(namespace, ()), answer)
        priorities = property_priorities.get(namespace, {})
        for feature in features:
            values = _first(priorities.get(feature, ()), answer[feature])
            ranks[namespace, feature] = {
                value: count + position for position, value in enumerate(values)
            }
            count += len(values)
    return ranks


def _first(
    preferred: Sequence[str], supported: Sequence[str] | Mapping[str, object]
) -> list[str]:
    """``supported`` without repetition, the ``preferred`` ones first."""
    known = dict.fromkeys(supported)
    head = {item: None for item in preferred if item in known}
    return [*head, *(item for item in known if item not in head)]
