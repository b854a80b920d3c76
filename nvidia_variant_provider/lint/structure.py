"""NV1xx: the shape of a document. Works on what JSON gave, however wrong it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import InputError, join, shown
from ..metadata.model import NULL_LABELS
from ..metadata.versions import LATEST, SchemaVersion, find_version
from .collector import Collector

__all__ = ["check_structure", "labels_of", "lists_of"]

_TYPES = {dict: "an object", list: "a list", str: "a string", bool: "a boolean"}
_SOURCES = ("requires", "static-properties", "builtin")


def check_structure(document: object, found: Collector) -> SchemaVersion | None:
    """Check the shape; the schema version, or ``None`` when it cannot be told."""
    if not _is(document, dict, "", found) or not isinstance(document, dict):
        return None
    version = _check_schema(document, found)
    known = version or LATEST
    _refuse_unknown(document, known.keys, known, "", found)
    for key in ("default-priorities", "variants"):
        if key not in document:
            found.add("NV107", "top level", f"{key} is missing", f"add {key}")
    priorities = document.get("default-priorities", {})
    namespaces = None
    if not _is(priorities, dict, "default-priorities", found):
        pass
    elif "default-priorities" in document:
        _refuse_unknown(
            priorities, known.priority_keys, known, "default-priorities", found
        )
        namespaces = _check_namespaces(priorities, found)
    providers = document.get("providers", {})
    if _is(providers, dict, "providers", found):
        for namespace, provider in providers.items():
            _check_provider(provider, known, join("providers", namespace), found)
        if namespaces is not None and "providers" in known.keys:
            _compare_namespaces(namespaces, set(providers), known, document, found)
    variants = document.get("variants", {})
    if _is(variants, dict, "variants", found):
        _check_variants(variants, known, namespaces, found)
    return version


def labels_of(document: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The labels whose properties are an object; others have findings already."""
    variants = document.get("variants")
    if not isinstance(variants, dict):
        return {}
    return {label: item for label, item in variants.items() if isinstance(item, dict)}


def lists_of(
    properties: Mapping[str, Any], place: str
) -> Iterator[tuple[str, str, list[Any], str]]:
    """``(namespace, feature, values, place)`` of what has the right shape."""
    for namespace, features in properties.items():
        if isinstance(features, dict):
            for feature, values in features.items():
                if isinstance(values, list):
                    where = join(join(place, namespace), feature)
                    yield namespace, feature, values, where


def _check_schema(
    document: Mapping[str, Any], found: Collector
) -> SchemaVersion | None:
    latest = f"https://variants-schema.wheelnext.dev/v{LATEST}.json"
    if "$schema" not in document:
        found.add("NV104", "top level", "$schema is missing", f"add {latest}")
    elif not _is(document["$schema"], str, "$schema", found):
        return None
    try:
        version = find_version(document)
    except InputError as error:
        if "$schema" in document:  # else the shape is wrong, which has its findings
            found.add("NV105", "$schema", error.message, f"use {latest}")
        return None
    if version.number < LATEST.number and "$schema" in document:
        found.add(
            "NV106",
            "$schema",
            f"version {version} is not read by uv 0.13.8 and variantlib 0.2.2",
            "build the wheel again, with metadata of a newer version"
            if found.path.endswith(".whl")
            else "rewrite it: nvidia-variant-provider upgrade FILE",
        )
    return version


def _check_namespaces(
    priorities: Mapping[str, Any], found: Collector
) -> list[str] | None:
    if "namespace" not in priorities:
        found.add(
            "NV107",
            "default-priorities",
            "namespace is missing",
            "list all namespaces, the most important first",
        )
        return None
    place = "default-priorities.namespace"
    if not _is(priorities["namespace"], list, place, found):
        return None
    names = priorities["namespace"]
    if not names:
        # PEP 825: "it MUST NOT be empty".
        found.add("NV107", place, "no namespace is listed", "list all namespaces")
    return [
        name
        for index, name in enumerate(names)
        if _is(name, str, join(place, index), found)
    ]


def _compare_namespaces(
    namespaces: list[str],
    providers: set[str],
    version: SchemaVersion,
    document: Mapping[str, Any],
    found: Collector,
) -> None:
    if "providers" not in document:
        if version.number[:2] != (0, 1):
            hint = "say how each namespace is answered"
            found.add("NV107", "top level", "providers is missing", hint)
        return
    for name in sorted(providers - set(namespaces)):
        place = join("providers", name)
        message = "the namespace is not in default-priorities.namespace"
        found.add("NV111", place, message, "add it there, or remove the provider")
    for name in sorted(set(namespaces) - providers):
        message = f"{shown(name)} has no entry in providers"
        hint = "add its provider, or remove the namespace"
        found.add("NV111", "default-priorities.namespace", message, hint)


def _check_provider(
    provider: object, version: SchemaVersion, place: str, found: Collector
) -> None:
    if not _is(provider, dict, place, found) or not isinstance(provider, dict):
        return
    _refuse_unknown(provider, version.provider_keys, version, place, found)
    kinds: dict[str, type] = {
        "requires": list,
        "static-properties": dict,
        "feature-order": list,
        "optional": bool,
        "install-time": bool,
        "plugin-api": str,
        "enable-if": str,
        "plugin-use": str,
        "builtin": str,
    }
    for key, kind in kinds.items():
        if key in provider and _is(provider[key], kind, join(place, key), found):
            _check_items(provider[key], join(place, key), key, found)
    if version.number >= LATEST.number:
        _check_sources(provider, place, found)


def _check_items(value: object, place: str, key: str, found: Collector) -> None:
    if isinstance(value, list):
        for index, item in enumerate(value):
            _is(item, str, join(place, index), found)
    elif key == "static-properties" and isinstance(value, dict):
        for feature, values in value.items():
            if _is(values, list, join(place, feature), found):
                _check_items(values, join(place, feature), feature, found)


def _check_sources(provider: Mapping[str, Any], place: str, found: Collector) -> None:
    given = [key for key in _SOURCES if key in provider]
    if len(given) != 1 or not provider[given[0]]:
        what = " and ".join(given) if given else "none of them"
        if len(given) == 1:
            what = f"an empty {given[0]}"
        message = f"needs exactly one of {', '.join(_SOURCES)}; it has {what}"
        found.add("NV110", place, message, "keep the one that answers")
    if "plugin-api" in provider and not provider.get("requires"):
        message = "plugin-api needs requires: nothing installs the plugin"
        found.add("NV117", join(place, "plugin-api"), message, "remove it")
    static, order = provider.get("static-properties"), provider.get("feature-order")
    if order is not None and not static:
        message = "feature-order orders static-properties, and there are none"
        found.add("NV117", join(place, "feature-order"), message, "remove it")
    elif isinstance(static, dict) and (len(static) > 1 or order is not None):
        if order is not None and not isinstance(order, list):
            return  # NV108 says so
        listed = [x for x in order or [] if isinstance(x, str)]
        if sorted(listed) != sorted(static):
            message = "feature-order has to list each feature of static-properties once"
            hint = "list them, the most important first"
            found.add("NV116", join(place, "feature-order"), message, hint)


def _check_variants(
    variants: Mapping[str, Any],
    version: SchemaVersion,
    namespaces: list[str] | None,
    found: Collector,
) -> None:
    seen: dict[object, str] = {}
    nulls = [NULL_LABELS[0], *(NULL_LABELS[1:] if version.old_null else ())]
    for label, properties in variants.items():
        place = join("variants", label)
        if not _is(properties, dict, place, found):
            continue
        complete = _check_properties(properties, place, namespaces, found)
        if label in nulls and properties:
            message = f"the label {label} stands for no properties at all"
            found.add("NV113", place, message, "rename the label")
        elif label not in nulls and not properties:
            message = "only the null variant is without properties"
            found.add("NV113", place, message, f"rename the label to {nulls[0]}")
        if not complete or not properties:
            continue
        key = frozenset(
            (namespace, feature, frozenset(values))
            for namespace, feature, values, _ in lists_of(properties, place)
        )
        if key in seen:
            message = f"has the same properties as {seen[key]}"
            found.add("NV115", place, message, "keep one of the two labels")
        else:
            seen[key] = label


def _check_properties(
    properties: Mapping[str, Any],
    place: str,
    namespaces: list[str] | None,
    found: Collector,
) -> bool:
    complete = True
    for namespace, features in properties.items():
        where = join(place, namespace)
        if namespaces is not None and namespace not in namespaces:
            message = "the namespace is not in default-priorities.namespace"
            found.add("NV112", where, message, "add it there, with its provider")
        if not _is(features, dict, where, found):
            complete = False
            continue
        if not features:
            found.add("NV113", where, "no feature is given", "remove the namespace")
        for feature, values in features.items():
            at = join(where, feature)
            complete = _is(values, list, at, found) and complete
            for index, value in enumerate(values if isinstance(values, list) else ()):
                complete = _is(value, str, join(at, index), found) and complete
    return complete


def _refuse_unknown(
    fields: Mapping[str, Any],
    known: frozenset[str],
    version: SchemaVersion,
    place: str,
    found: Collector,
) -> None:
    for key in fields:
        if key not in known:
            message = f"version {version} has no such key"
            hint = f"remove it; known are {', '.join(sorted(known))}"
            found.add("NV109", join(place, key), message, hint)


def _is(value: object, kind: type, place: str, found: Collector) -> bool:
    if type(value) is kind or (kind is dict and isinstance(value, dict)):
        return True
    name = "null" if value is None else _TYPES.get(type(value), "a number")
    if isinstance(value, dict):
        name = _TYPES[dict]
    message = f"expected {_TYPES[kind]}, found {name}"
    found.add("NV108", place or "top level", message, "correct the type")
    return False
