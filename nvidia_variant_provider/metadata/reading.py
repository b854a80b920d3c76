"""Reading variant metadata of every schema version into one model.

One reader for all of them: it reads each key that any version knows, and the
version decides which keys are refused. An error carries its place, as
``variants.cu126.nvidia.sm_arch[2]``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from ..errors import InputError, join, shown
from ..strict_json import (
    as_boolean,
    as_list,
    as_object,
    as_string,
    as_strings,
    parse_json,
    read_bytes,
)
from .model import NULL_LABELS, Features, Properties, Provider, VariantsMetadata
from .versions import SchemaVersion, find_version

__all__ = ["FILE_NAME", "metadata_from_dict", "read_metadata"]

FILE_NAME = re.compile(r"(?P<name>[^-/]+)-(?P<version>[^-/]+)-variants\.json")
"""``{name}-{version}-variants.json``; both parts are without dashes (PEP 825)."""

# PEP 825: namespaces and features are ^[a-z0-9_]+$, values and labels may have
# dots as well.
_NAME = re.compile(r"[a-z0-9_]+")
_VALUE = re.compile(r"[a-z0-9_.]+")
_PLUGIN_USES = ("none", "build", "all")


def read_metadata(
    source: str | bytes | os.PathLike[str] | Mapping[str, Any],
    *,
    path: str | None = None,
) -> VariantsMetadata:
    """Metadata from a path, a JSON text, or an already parsed document.

    :param source: a string is a JSON text when it starts with ``{``, else a path.
    :param path: the name to use in messages for a text or a document.
    :raises InputError: it cannot be read, or is not valid.
    """
    if isinstance(source, Mapping):
        document: object = source
    elif isinstance(source, bytes) or (
        isinstance(source, str) and source.lstrip().startswith("{")
    ):
        document = parse_json(source, path)
    else:
        path = str(source)
        document = parse_json(read_bytes(source), path)
    match = FILE_NAME.fullmatch(os.path.basename(path)) if path else None
    name, version = match.group("name", "version") if match else (None, None)
    try:
        return metadata_from_dict(document, name=name, version=version)
    except InputError as error:
        error.path = error.path or path
        raise


def metadata_from_dict(
    document: object, *, name: str | None = None, version: str | None = None
) -> VariantsMetadata:
    """Metadata from a parsed document.

    :raises InputError: a defect, with its place.
    """
    fields = as_object(document, "")
    if "cuda_driver_version" in fields or "schema_version" in fields:
        hint = "a snapshot of a machine goes with --environment"
        raise InputError("this is not variant metadata", hint=hint)
    schema = find_version(fields)
    _refuse_unknown(fields, schema.keys, schema, "")
    priorities = as_object(
        _required(fields, "default-priorities", ""), "default-priorities"
    )
    _refuse_unknown(priorities, schema.priority_keys, schema, "default-priorities")
    namespaces = _names(
        _required(priorities, "namespace", "default-priorities"),
        "default-priorities.namespace",
    )
    features = {
        _name(namespace, "default-priorities.feature"): _names(
            names, join("default-priorities.feature", namespace)
        )
        for namespace, names in _section(priorities, "feature", "default-priorities")
    }
    values = {
        _name(namespace, "default-priorities.property"): _features(
            items, join("default-priorities.property", namespace), empty=True
        )
        for namespace, items in _section(priorities, "property", "default-priorities")
    }
    statics = {
        _name(namespace, "static-properties"): _features(
            items, join("static-properties", namespace), empty=True
        )
        for namespace, items in _section(fields, "static-properties", "")
    }
    providers = {
        _name(namespace, "providers"): _provider(
            item, schema, join("providers", namespace)
        )
        for namespace, item in _section(fields, "providers", "")
    }
    for namespace, provider in providers.items():
        providers[namespace] = _with_answer(
            provider,
            schema,
            fields["providers"][namespace],
            namespace=namespace,
            statics=statics,
            values=values,
        )
    variants = as_object(_required(fields, "variants", ""), "variants")
    declared = frozenset(namespaces)
    return VariantsMetadata(
        name=name,
        version=version,
        schema=schema,
        namespaces=namespaces,
        providers=providers,
        feature_priorities=features,
        property_priorities=values,
        variants={
            label: _variant(label, properties, schema, declared)
            for label, properties in variants.items()
        },
    )


def _provider(item: object, schema: SchemaVersion, place: str) -> Provider:
    fields = as_object(item, place)
    _refuse_unknown(fields, schema.provider_keys, schema, place)
    static = None
    if "static-properties" in fields:
        where = join(place, "static-properties")
        static = _features(fields["static-properties"], where, empty=True)
    order = _names(fields.get("feature-order", []), join(place, "feature-order"))
    if order and set(order) != set(static or ()):
        message = "does not list the features of static-properties"
        raise InputError(message, place=join(place, "feature-order"))
    use = fields.get("plugin-use", "all")
    if use not in _PLUGIN_USES:
        message = f"{shown(use)} is none of {', '.join(_PLUGIN_USES)}"
        raise InputError(message, place=join(place, "plugin-use"))
    as_boolean(fields.get("install-time", True), join(place, "install-time"))
    return Provider(
        requires=as_strings(fields.get("requires", []), join(place, "requires")),
        plugin_api=_text(fields, "plugin-api", place),
        optional=as_boolean(fields.get("optional", False), join(place, "optional")),
        enable_if=_text(fields, "enable-if", place),
        builtin=_text(fields, "builtin", place),
        static_properties=static,
        feature_order=order,
    )


def _with_answer(
    provider: Provider,
    schema: SchemaVersion,
    fields: Mapping[str, Any],
    *,
    namespace: str,
    statics: Mapping[str, Features],
    values: Mapping[str, Features],
) -> Provider:
    """The provider with the answer that versions 0.0.x keep elsewhere."""
    answer: Features | None = None
    known = schema.provider_keys
    if "plugin-use" in known and fields.get("plugin-use", "all") != "all":
        # 0.0.2: such a plugin is not asked when installing; the supported
        # values are those that default-priorities.property lists.
        answer = values.get(namespace, {})
    elif "install-time" in known and not fields.get("install-time", True):
        # PEP 817: "For ahead-of-time providers, they MUST use the static
        # metadata embedded in the wheel instead."
        answer = statics.get(namespace, {})
    if answer is None:
        return provider
    return Provider(
        requires=provider.requires,
        plugin_api=provider.plugin_api,
        optional=provider.optional,
        enable_if=provider.enable_if,
        static_properties=answer,
    )


def _variant(
    label: str, item: object, schema: SchemaVersion, namespaces: frozenset[str]
) -> Properties:
    place = f"variants.{label}"
    if not _VALUE.fullmatch(label):
        message = f"{shown(label)} is no label: a-z, 0-9, _ and . only"
        raise InputError(message, place="variants")
    properties = {
        namespace: _features(features, join(place, namespace))
        for namespace, features in as_object(item, place).items()
    }
    for namespace, features in properties.items():
        # PEP 825: "This list MUST contain all namespaces used in variant
        # properties".
        if namespace not in namespaces:
            message = "the namespace is not in default-priorities.namespace"
            raise InputError(message, place=join(place, namespace))
        if not features:
            raise InputError("no feature is given", place=join(place, namespace))
    # PEP 825: "The label null is reserved and always corresponds to the variant
    # with zero properties".
    null = label == NULL_LABELS[0] or (label == NULL_LABELS[1] and schema.old_null)
    if null and properties:
        raise InputError("the null variant has no properties", place=place)
    if not null and not properties:
        message = "only the label null may be without properties"
        raise InputError(message, place=place)
    return properties


def _features(item: object, place: str, *, empty: bool = False) -> Features:
    """``{feature: (value, ...)}``; without ``empty`` a feature has a value."""
    features = {}
    for feature, values in as_object(item, place).items():
        if not _NAME.fullmatch(feature):
            message = f"{shown(feature)} is no feature: a-z, 0-9 and _ only"
            raise InputError(message, place=place)
        found = _valid(values, _VALUE)
        if found is None:
            found = _unique(values, join(place, feature), _VALUE)
        if not found and not empty:
            raise InputError("no value is given", place=join(place, feature))
        features[feature] = found
    return features


def _valid(value: object, grammar: re.Pattern[str]) -> tuple[str, ...] | None:
    """What `_unique` gives, or ``None`` where it raises; it needs no place."""
    if type(value) is not list:
        return None
    for item in value:
        if type(item) is not str or not grammar.fullmatch(item):
            return None
    return tuple(value) if len(set(value)) == len(value) else None


def _unique(value: object, place: str, grammar: re.Pattern[str]) -> tuple[str, ...]:
    items = as_list(value, place)
    for index, item in enumerate(items):
        where = join(place, index)
        if not grammar.fullmatch(as_string(item, where)):
            allowed = "a-z, 0-9 and _" if grammar is _NAME else "a-z, 0-9, _ and ."
            raise InputError(f"{shown(item)} has other than {allowed}", place=where)
    found = tuple(items)
    seen: set[str] = set()
    for index, item in enumerate(found):
        if item in seen:
            message = f"{shown(item)} is given twice"
            raise InputError(message, place=join(place, index))
        seen.add(item)
    return found


def _names(value: object, place: str) -> tuple[str, ...]:
    return _unique(value, place, _NAME)


def _name(text: str, place: str) -> str:
    if not _NAME.fullmatch(text):
        message = f"{shown(text)} is no namespace: a-z, 0-9 and _ only"
        raise InputError(message, place=place)
    return text


def _section(fields: Mapping[str, Any], key: str, place: str) -> list[tuple[str, Any]]:
    where = join(place, key)
    return list(as_object(fields.get(key, {}), where).items())


def _text(fields: Mapping[str, Any], key: str, place: str) -> str | None:
    value = fields.get(key)
    return None if value is None else as_string(value, join(place, key))


def _required(fields: Mapping[str, Any], key: str, place: str) -> Any:
    if key not in fields:
        raise InputError(f"{key} is missing", place=place or "top level")
    return fields[key]


def _refuse_unknown(
    fields: Mapping[str, Any], known: frozenset[str], schema: SchemaVersion, place: str
) -> None:
    if not schema.strict:
        return
    for key in fields:
        if key not in known:
            message = f"version {schema} has no such key"
            raise InputError(message, place=join(place, key))
