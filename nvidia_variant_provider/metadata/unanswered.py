"""Providers that are never asked and have no answer in the metadata either.

Versions 0.0.2 and 0.0.3 keep such an answer away from the provider, and it is easily
forgotten. All labels that use the namespace are dead then.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from ..errors import join
from .model import Features, VariantsMetadata
from .versions import SchemaVersion

__all__ = ["Unanswered", "find_unanswered"]

_MAX_SHOWN = 300
"""The most characters of an answer that a hint shows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Unanswered:
    """A namespace whose provider is never asked and has no answer in the metadata.

    :param labels: the labels that use the namespace, and fit no machine.
    :param answer: the answer that would make these labels fit.
    :param key: where the version of the document keeps such answers.
    """

    namespace: str
    labels: tuple[str, ...]
    answer: Features
    key: str

    @property
    def place(self) -> str:
        """The place of the provider."""
        return join("providers", self.namespace)

    @property
    def message(self) -> str:
        """What is wrong."""
        count = len(self.labels)
        labels = "label that uses it fits" if count == 1 else "labels that use it fit"
        return (
            f"the provider is never asked, and {self.key} has no answer of it, so "
            f"that the {count} {labels} no machine"
        )

    @property
    def hint(self) -> str:
        """What to add to the document."""
        answer = json.dumps(
            {name: list(values) for name, values in self.answer.items()}
        )
        if len(answer) > _MAX_SHOWN:
            answer = "the values of its labels, best first"
        return f"add to {self.key}, in the right order: {self.namespace}: {answer}"


def find_unanswered(metadata: VariantsMetadata) -> Iterator[Unanswered]:
    """Yield the namespaces that labels use and that no machine can support."""
    # In later versions a provider without any source is a defect of its own.
    if metadata.schema.one_source:
        return
    for namespace, provider in metadata.providers.items():
        static = provider.static_properties
        labels = tuple(
            label
            for label, properties in metadata.variants.items()
            if namespace in properties
        )
        if labels and static is not None and not any(static.values()):
            yield Unanswered(
                namespace=namespace,
                labels=labels,
                answer=_needed(namespace, metadata),
                key=_key(metadata.schema),
            )


def _needed(namespace: str, metadata: VariantsMetadata) -> Features:
    """Return the values of all labels, those that have a priority first."""
    values: dict[str, set[str]] = {}
    for properties in metadata.variants.values():
        for feature, wanted in properties.get(namespace, {}).items():
            values.setdefault(feature, set()).update(wanted)
    priorities = metadata.property_priorities.get(namespace, {})
    features = metadata.feature_priorities.get(namespace, ())
    return {
        feature: tuple(
            dict.fromkeys(
                [v for v in priorities.get(feature, ()) if v in values[feature]]
                + sorted(values[feature])
            )
        )
        for feature in dict.fromkeys([*(f for f in features if f in values), *values])
    }


def _key(schema: SchemaVersion) -> str:
    if "static-properties" in schema.keys:
        return "static-properties"
    return "default-priorities.property"
