"""NV104 to NV118 and NV201 to NV211: the format of a document.

The reader of `metadata` walks over a document once and reports each defect with its
kind. Most rules here are one kind of defect; the others look at what could be read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from nvidia_variant_provider.errors import join, shown
from nvidia_variant_provider.metadata import versions
from nvidia_variant_provider.metadata.fields import Kind

from ..metadata.checking import CheckedDocument, check_document, find_unanswered
from .collector import Collector, Problem

__all__ = ["CODES", "check_structure", "labels_of"]

CODES: Mapping[Kind, str] = {
    "unknown-schema": "NV105",
    "missing-key": "NV107",
    "wrong-type": "NV108",
    "unknown-key": "NV109",
    "not-one-source": "NV110",
    "providers-differ": "NV111",
    "undeclared-namespace": "NV112",
    "null-rules": "NV113",
    "feature-order": "NV116",
    "misplaced-key": "NV117",
    "label": "NV201",
    "long-label": "NV202",
    "namespace": "NV203",
    "feature": "NV204",
    "value": "NV205",
    "unsorted": "NV206",
    "repeated": "NV207",
    "no-value": "NV208",
    "endpoint": "NV209",
    "requirement": "NV210",
    "marker": "NV211",
}
"""The rule for each kind of defect. A document that is not metadata lacks its keys,
which NV107 reports."""


def check_structure(document: object, collector: Collector) -> CheckedDocument:
    """Report the defects of a document, and return them with what could be read."""
    checked = check_document(document)
    for defect in checked.defects:
        code = CODES.get(defect.kind)
        if code is not None:
            collector.add(code, defect.place, defect.message, defect.hint)
    if isinstance(document, Mapping):
        in_wheel = collector.path.endswith(".whl")
        checks: tuple[tuple[str, Iterator[Problem]], ...] = (
            ("NV104", check_nv104(document)),
            ("NV106", check_nv106(document, checked, in_wheel=in_wheel)),
            ("NV115", check_nv115(checked)),
            ("NV118", check_nv118(checked)),
        )
        for code, problems in checks:
            for problem in problems:
                collector.add_problem(code, problem)
    return checked


def check_nv104(document: Mapping[str, Any]) -> Iterator[Problem]:
    """Report a document that does not say which version of the format it has."""
    if "$schema" not in document:
        hint = f"add {versions.WRITTEN.url}"
        yield Problem("top level", "$schema is missing", hint)


def check_nv106(
    document: Mapping[str, Any], checked: CheckedDocument, *, in_wheel: bool
) -> Iterator[Problem]:
    """Report a version that released clients do not read any more."""
    version = checked.metadata.schema
    if "$schema" in document and not versions.is_read_by_clients(version):
        hint = "rewrite it: nvidia-variant-provider upgrade FILE"
        if in_wheel:
            hint = "build the wheel again, with metadata of a newer version"
        message = f"version {version} is not read by {versions.CLIENTS}"
        yield Problem("$schema", message, hint)


def check_nv115(checked: CheckedDocument) -> Iterator[Problem]:
    """Report labels that have the same properties."""
    first: dict[object, str] = {}
    for label, properties in checked.metadata.variants.items():
        if not properties:
            continue
        key = frozenset(
            (namespace, feature, frozenset(values))
            for namespace, features in properties.items()
            for feature, values in features.items()
        )
        if key in first:
            message = f"has the same properties as {first[key]}"
            place = join("variants", label)
            yield Problem(place, message, "keep one of the two labels")
        else:
            first[key] = label


def check_nv118(checked: CheckedDocument) -> Iterator[Problem]:
    """Report labels that the answers in the metadata itself rule out."""
    metadata = checked.metadata
    for item in find_unanswered(metadata):
        yield Problem(item.place, item.message, item.hint)
    # Another rule says what is wrong with a document that cannot be read.
    if not checked.is_readable:
        return
    for label, properties in metadata.variants.items():
        for namespace, features in properties.items():
            provider = metadata.providers.get(namespace)
            static = None if provider is None else provider.static_properties
            if static is None or not any(static.values()):
                continue
            for feature, values in features.items():
                known = static.get(feature, ())
                if values and not set(values) & set(known):
                    listed = ", ".join(map(shown, known)) or "no value"
                    yield Problem(
                        join(join(join("variants", label), namespace), feature),
                        f"the static properties list {listed} of the feature, so that "
                        "the label fits no machine",
                        "correct the value, or add it to the static properties",
                    )


def labels_of(document: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the labels whose properties are an object.

    The properties of all other labels have been reported already.
    """
    variants = document.get("variants")
    if not isinstance(variants, dict):
        return {}
    return {label: item for label, item in variants.items() if isinstance(item, dict)}
