"""Writing variant metadata: in one version of the format, always the same bytes.

The layout is that of variantlib: four spaces, sorted keys and ASCII. The text ends with
a line end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from nvidia_variant_provider.errors import InputError, join, shown
from nvidia_variant_provider.metadata import Provider, VariantsMetadata, versions
from nvidia_variant_provider.metadata.document import UNDECLARED
from nvidia_variant_provider.metadata.fields import Kind

from .checking import check_document

# variantlib 0.2.2 refuses any other text. uv 0.13.8 accepts more.
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
    return json.dumps(to_dict(metadata), indent=4, sort_keys=True) + "\n"


def to_dict(metadata: VariantsMetadata) -> dict[str, Any]:
    """Return the document in the version that is written.

    :raises InputError: that version cannot express all of the metadata; see
        `find_defects`.
    """
    for defect in find_defects(metadata):
        raise defect
    return _document(metadata)


def find_defects(metadata: VariantsMetadata) -> list[InputError]:
    """Return what keeps the metadata from being written.

    These are statements that the written version cannot express, and what variantlib
    0.2.2 or uv 0.13.8 refuse.
    """
    written = versions.WRITTEN
    if metadata.schema.number != written.number:
        message = f"the metadata is of version {metadata.schema}, not {written}"
        return [InputError(message, place="$schema", hint="upgrade it first")]
    defects = list(_find_inexpressible(metadata))
    defects += _find_missing_providers(metadata)
    # The reader knows the other rules of the format.
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
    for namespace in metadata.providers:
        if namespace not in metadata.namespaces:
            place = join("providers", namespace)
            yield InputError(UNDECLARED, place=place, hint="add the namespace there")


def _find_unwritable(provider: Provider, place: str) -> Iterator[InputError]:
    """Yield an error for each text that variantlib refuses."""
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
    """Return the keys of one provider."""
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
        # JSON objects have no order, so that two features need a list of their own.
        if provider.feature_order or len(static) > 1:
            fields["feature-order"] = list(provider.feature_order or static)
    return fields
