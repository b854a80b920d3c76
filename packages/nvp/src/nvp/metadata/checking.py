"""Checking and writing metadata documents, for publishers.

`check_document` returns all defects of a document, and the parts that could be read.
`find_unanswered` finds labels that fit no machine: their provider is never queried, and
the document does not list supported values. Versions 0.0.2 and 0.0.3 keep these values
apart from the provider, so publishers can forget them.

Documents are written in one version of the format, and equal metadata gives equal
bytes. The layout is that of variantlib: four spaces, sorted keys, ASCII, and a final
newline.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from nvidia_variant_provider.errors import InputError, join, shown
from nvidia_variant_provider.metadata import versions
from nvidia_variant_provider.metadata.document import UNDECLARED, read_document
from nvidia_variant_provider.metadata.fields import Kind, Reporter
from nvidia_variant_provider.metadata.model import (
    Features,
    Provider,
    VariantsMetadata,
)

from ..files import harmless
from .requirements import PARSING, explain_requirement

_ENDPOINT = re.compile(r"[A-Za-z_][\w.]*(?: *: *[A-Za-z_][\w.]*)?", re.ASCII)
"""PEP 817, "API endpoint": an import path, optionally with an object path."""

_MAX_SHOWN = 300
"""The maximum length in characters of the values in a hint."""


@dataclass(frozen=True, slots=True)
class Defect:
    """One defect of a document.

    :param place: the place in the document, such as ``variants.cu126.nvidia``.
    :param message: the defect, in words.
    :param hint: the next step.
    :param tolerated: whether readers accept a document with the defect.
    """

    kind: Kind
    place: str
    message: str
    hint: str
    tolerated: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckedDocument:
    """The contents of a parsed document, even an invalid one.

    :param metadata: the parts of the document that could be read.
    :param defects: every defect, in the order in which the document is read.
    """

    metadata: VariantsMetadata
    defects: tuple[Defect, ...]

    @property
    def is_readable(self) -> bool:
        """Whether `metadata_from_dict` accepts the document."""
        return all(defect.tolerated for defect in self.defects)


def check_document(document: object) -> CheckedDocument:
    """Return all defects of a parsed document, and the parts that could be read.

    Labels and providers that contain a value of the wrong type are left out. Labels and
    providers with other defects are returned.
    """
    report = _Collector()
    metadata = read_document(document, report)
    return CheckedDocument(metadata=metadata, defects=tuple(report.defects))


class _Collector(Reporter):
    """A reporter that collects all defects, instead of stopping at the first one."""

    thorough = True

    def __init__(self) -> None:
        self.defects: list[Defect] = []

    def refuse(self, kind: Kind, place: str, message: str, hint: str) -> None:
        self.defects.append(Defect(kind, place, message, hint, tolerated=False))

    def tolerate(self, kind: Kind, place: str, message: str, hint: str) -> None:
        self.defects.append(Defect(kind, place, message, hint, tolerated=True))

    def check_provider(self, provider: Provider, place: str) -> None:
        endpoint, marker = provider.plugin_api, provider.enable_if
        if endpoint is not None and not _ENDPOINT.fullmatch(endpoint):
            message = f"{shown(endpoint)} is not of the form module:object"
            where = join(place, "plugin-api")
            self.tolerate("endpoint", where, message, "correct the endpoint")
        for index, text in enumerate(provider.requires):
            reason = explain_requirement(text)
            if reason is not None:
                message = f"{shown(text)}: {shown(reason)}"
                where = join(join(place, "requires"), index)
                hint = "correct the requirement (PEP 508)"
                self.tolerate("requirement", where, message, hint)
        if marker is not None and not _is_marker(marker):
            message = f"{shown(marker)} is not an environment marker"
            where = join(place, "enable-if")
            self.tolerate("marker", where, message, "correct the marker")


def _is_marker(text: str) -> bool:
    from packaging.markers import Marker

    try:
        with PARSING:
            Marker(text)
    except (ValueError, RecursionError):
        return False
    return True


def count_values(metadata: VariantsMetadata) -> int:
    """Return the number of labels and of their values, for limits on work."""
    return len(metadata.variants) + sum(
        len(values)
        for properties in metadata.variants.values()
        for features in properties.values()
        for values in features.values()
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Unanswered:
    """A namespace without supported values, whose provider is never queried.

    :param labels: the labels that use the namespace and therefore fit no machine.
    :param answer: the supported values with which all of these labels would fit.
    :param key: the key for supported values in the version of the document.
    """

    namespace: str
    labels: tuple[str, ...]
    answer: Features
    key: str

    @property
    def place(self) -> str:
        """The place of the provider in the document."""
        return join("providers", self.namespace)

    @property
    def message(self) -> str:
        """The defect, in words."""
        count = len(self.labels)
        labels = "label that uses it fits" if count == 1 else "labels that use it fit"
        return (
            f"the provider is never queried, and {self.key} has no answer for it, so "
            f"the {count} {labels} no machine"
        )

    @property
    def hint(self) -> str:
        """The supported values to add to the document."""
        answer = json.dumps(
            {name: list(values) for name, values in self.answer.items()}
        )
        if len(answer) > _MAX_SHOWN:
            answer = "the values of its labels, best first"
        return f"add to {self.key}, in the right order: {self.namespace}: {answer}"


def find_unanswered(metadata: VariantsMetadata) -> Iterator[Unanswered]:
    """Yield the namespaces that labels use but no machine supports."""
    # In later versions, a provider without any source is a separate defect.
    if metadata.schema.one_source:
        return
    own = "static-properties" in metadata.schema.keys
    key = "static-properties" if own else "default-priorities.property"
    labels_of: dict[str, list[str]] = {}
    for label, properties in metadata.variants.items():
        for namespace in properties:
            labels_of.setdefault(namespace, []).append(label)
    for namespace, provider in metadata.providers.items():
        static, labels = provider.static_properties, labels_of.get(namespace)
        if labels and static is not None and not any(static.values()):
            yield Unanswered(
                namespace=namespace,
                labels=tuple(labels),
                answer=_needed(namespace, labels, metadata),
                key=key,
            )


def _needed(
    namespace: str, labels: Sequence[str], metadata: VariantsMetadata
) -> Features:
    """Return the values that labels use, those with a priority first."""
    values: dict[str, set[str]] = {}
    for label in labels:
        for feature, wanted in metadata.variants[label][namespace].items():
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


# variantlib 0.2.2 rejects any other text; uv 0.13.8 accepts more.
_REQUIREMENT = re.compile(r"[\S ]+")
_PLUGIN_API = re.compile(r"[\w.]+(\s*:\s*[\w.]+)?")

_REFUSED_BY_CLIENTS: frozenset[Kind] = frozenset(
    {
        "feature",
        "feature-order",
        "label",
        "misplaced-key",
        "missing-key",
        "namespace",
        "no-value",
        "not-one-source",
        "null-rules",
        "repeated",
        "undeclared-namespace",
        "value",
    }
)


def to_text(metadata: VariantsMetadata) -> str:
    """Return the JSON text of `to_dict`; equal metadata gives equal text."""
    return harmless(json.dumps(to_dict(metadata), indent=4, sort_keys=True)) + "\n"


def to_dict(metadata: VariantsMetadata) -> dict[str, Any]:
    """Return the document in the version that nvp writes.

    :raises InputError: that version cannot express all of the metadata; see
        `find_defects`.
    """
    for defect in find_defects(metadata):
        raise defect
    return _document(metadata)


def find_defects(metadata: VariantsMetadata) -> list[InputError]:
    """Return the defects that prevent writing the metadata.

    These are statements that the written version cannot express, and values that
    variantlib 0.2.2 or uv 0.13.8 reject.
    """
    written = versions.WRITTEN
    if metadata.schema.number != written.number:
        message = f"the metadata is of version {metadata.schema}, not {written}"
        return [InputError(message, place="$schema", hint="upgrade it first")]
    defects = list(_find_inexpressible(metadata))
    defects += _find_missing_providers(metadata)
    # Reading the new document checks the other rules of the format.
    defects += [
        InputError(defect.message, place=defect.place, hint=defect.hint)
        for defect in check_document(_document(metadata)).defects
        if defect.kind in _REFUSED_BY_CLIENTS
    ]
    for namespace, provider in metadata.providers.items():
        defects += _find_unwritable(provider, join("providers", namespace))
    return defects


def _find_inexpressible(metadata: VariantsMetadata) -> Iterator[InputError]:
    """Yield an error for each statement that has no key in the written version."""
    places = [
        place
        for place, statements in (
            ("default-priorities.feature", metadata.feature_priorities),
            ("default-priorities.property", metadata.property_priorities),
        )
        if statements
    ]
    for namespace, provider in metadata.providers.items():
        if provider.enable_if is not None:
            places.append(join(join("providers", namespace), "enable-if"))
    for place in places:
        message = f"version {versions.WRITTEN} has no such key"
        yield InputError(message, place=place, hint="upgrade the metadata first")


def _find_missing_providers(metadata: VariantsMetadata) -> Iterator[InputError]:
    for namespace in metadata.namespaces:
        if namespace not in metadata.providers:
            version = versions.WRITTEN
            message = f"the namespace has no provider; version {version} needs one"
            hint = "say where the answer comes from: requires or static-properties"
            yield InputError(message, place=join("providers", namespace), hint=hint)
    declared = frozenset(metadata.namespaces)
    for namespace in metadata.providers:
        if namespace not in declared:
            place = join("providers", namespace)
            yield InputError(UNDECLARED, place=place, hint="add the namespace there")


def _find_unwritable(provider: Provider, place: str) -> Iterator[InputError]:
    """Yield an error for each string that variantlib rejects."""
    for index, text in enumerate(provider.requires):
        if not _REQUIREMENT.fullmatch(text):
            where = join(join(place, "requires"), index)
            message = f"{shown(text)} is not a requirement"
            yield InputError(message, place=where, hint="correct the requirement")
    endpoint = provider.plugin_api
    if endpoint is not None and not _PLUGIN_API.fullmatch(endpoint):
        message = f"{shown(endpoint)} is not of the form module:object"
        where = join(place, "plugin-api")
        yield InputError(message, place=where, hint="correct the endpoint")


def _document(metadata: VariantsMetadata) -> dict[str, Any]:
    return {
        "$schema": versions.WRITTEN.url,
        "default-priorities": {"namespace": list(metadata.namespaces)},
        "providers": {
            namespace: _provider(provider)
            for namespace, provider in metadata.providers.items()
        },
        "variants": {
            label: {
                namespace: {
                    # PEP 825: "The third level values are sets of feature values,
                    # converted to lists and sorted lexically."
                    feature: sorted(values)
                    for feature, values in features.items()
                }
                for namespace, features in properties.items()
            }
            for label, properties in metadata.variants.items()
        },
    }


def _provider(provider: Provider) -> dict[str, Any]:
    """Return the JSON object of one provider."""
    fields: dict[str, Any] = {}
    if provider.requires:
        fields["requires"] = list(provider.requires)
    if provider.plugin_api is not None:
        fields["plugin-api"] = provider.plugin_api
    if provider.optional:
        fields["optional"] = True
    if provider.builtin is not None:
        fields["builtin"] = provider.builtin
    if provider.static_properties:
        static = provider.static_properties
        fields["static-properties"] = {name: list(v) for name, v in static.items()}
        # JSON objects have no order, so two features need an explicit list.
        if provider.feature_order or len(static) > 1:
            fields["feature-order"] = list(provider.feature_order or static)
    return fields
