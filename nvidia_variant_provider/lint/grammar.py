"""NV2xx: labels, namespaces, features, values, requirements and markers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..errors import join, shown
from ..metadata.requirements import parse_marker
from ..metadata.versions import LATEST, SchemaVersion
from .collector import Collector
from .rules import Code
from .structure import labels_of, lists_of

__all__ = ["check_grammar"]

# PEP 825.
_NAME = re.compile(r"[a-z0-9_]+")
_VALUE = re.compile(r"[a-z0-9_.]+")
# PEP 817, "API endpoint": an import path, and perhaps an object path.
_REFERENCE = re.compile(r"[A-Za-z_][\w.]*(?: *: *[A-Za-z_][\w.]*)?", re.ASCII)
_LENGTHS = {(0, 0, 1): 8, (0, 0, 2): 16, (0, 0, 3): 16}


def check_grammar(
    document: Mapping[str, Any], version: SchemaVersion | None, found: Collector
) -> None:
    """Check every text that has a grammar."""
    limit = _LENGTHS.get((version or LATEST).number)
    for label, properties in labels_of(document).items():
        place = join("variants", label)
        if not _VALUE.fullmatch(label):
            message = f"{shown(label)} has other than a-z, 0-9, _ and ."
            found.add("NV201", "variants", message, "rename the label and its wheels")
        elif limit is not None and len(label) > limit:
            message = f"has {len(label)} characters, {limit} are allowed"
            found.add("NV202", place, message, "shorten it, or upgrade the file")
        _check_properties(properties, place, found)
    priorities = document.get("default-priorities")
    names = priorities.get("namespace") if isinstance(priorities, dict) else None
    if isinstance(names, list):
        _check_list(names, "default-priorities.namespace", _NAME, "NV203", found)
    providers = document.get("providers")
    for namespace, provider in providers.items() if isinstance(providers, dict) else ():
        _check_name(namespace, "providers", "NV203", found)
        if isinstance(provider, dict):
            _check_provider(provider, join("providers", namespace), found)


def _check_properties(
    properties: Mapping[str, Any], place: str, found: Collector
) -> None:
    for namespace, features in properties.items():
        _check_name(namespace, place, "NV203", found)
        for feature in features if isinstance(features, dict) else ():
            _check_name(feature, join(place, namespace), "NV204", found)
    for _, _, values, where in lists_of(properties, place):
        _check_values(values, where, found)
        texts = [value for value in values if isinstance(value, str)]
        # PEP 825: values are "converted to lists and sorted lexically".
        if texts != sorted(texts):
            message = "the values are not in lexical order"
            found.add("NV206", where, message, "sort them")


def _check_provider(provider: Mapping[str, Any], place: str, found: Collector) -> None:
    static = provider.get("static-properties")
    for feature, values in static.items() if isinstance(static, dict) else ():
        where = join(place, "static-properties")
        _check_name(feature, where, "NV204", found)
        if isinstance(values, list):
            _check_values(values, join(where, feature), found)
    endpoint = provider.get("plugin-api")
    if isinstance(endpoint, str) and not _REFERENCE.fullmatch(endpoint):
        message = f"{shown(endpoint)} is not of the form module:object"
        found.add("NV209", join(place, "plugin-api"), message, "correct it")
    requires = provider.get("requires")
    if isinstance(requires, list):
        _check_requirements(requires, join(place, "requires"), found)
    marker = provider.get("enable-if")
    if isinstance(marker, str) and parse_marker(marker) is None:
        message = f"{shown(marker)} is not an environment marker"
        found.add("NV211", join(place, "enable-if"), message, "correct it")


def _check_requirements(requires: list[Any], place: str, found: Collector) -> None:
    from packaging.requirements import InvalidRequirement, Requirement

    for index, text in enumerate(requires):
        if not isinstance(text, str):
            continue
        try:
            Requirement(text)
        except (InvalidRequirement, RecursionError) as error:
            message = f"{shown(text)}: {shown(str(error).partition(chr(10))[0])}"
            found.add("NV210", join(place, index), message, "correct it (PEP 508)")


def _check_values(values: list[Any], place: str, found: Collector) -> None:
    if not values:
        # A label with such a feature fits no machine.
        found.add("NV208", place, "no value is given", "give one, or drop the feature")
    _check_list(values, place, _VALUE, "NV205", found)


def _check_list(
    items: list[Any],
    place: str,
    grammar: re.Pattern[str],
    code: Code,
    found: Collector,
) -> None:
    allowed = "a-z, 0-9 and _" if grammar is _NAME else "a-z, 0-9, _ and ."
    seen = set()
    for index, item in enumerate(items):
        if not isinstance(item, str):
            continue
        if not grammar.fullmatch(item):
            message = f"{shown(item)} has other than {allowed}"
            found.add(code, join(place, index), message, "correct it")
        if item in seen:
            message = f"{shown(item)} is given twice"
            found.add("NV207", join(place, index), message, "keep one of them")
        seen.add(item)


def _check_name(name: str, place: str, code: Code, found: Collector) -> None:
    if not _NAME.fullmatch(name):
        message = f"{shown(name)} has other than a-z, 0-9 and _"
        found.add(code, place, message, "correct it")
