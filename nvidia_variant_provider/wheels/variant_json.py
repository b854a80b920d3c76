"""Variant metadata inside wheels, and what the wheels of a release say together."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import IO, Any

from ..errors import InputError, join, shown
from ..metadata import VariantsMetadata, read_metadata
from ..metadata.model import Properties
from ..strict_json import parse_json
from .archive import open_wheel, parse_requires, read_dist_info

__all__ = ["combine", "find_variant_markers", "read_wheel_metadata"]

# PEP 825, "Environment markers".
_MARKERS = (
    "variant_label",
    "variant_namespaces",
    "variant_features",
    "variant_properties",
)


def read_wheel_metadata(
    path: str | os.PathLike[str], label: str, file: IO[bytes] | None = None
) -> tuple[VariantsMetadata, Mapping[str, Any]]:
    """What ``*.dist-info/variant.json`` of a wheel says, and the document itself.

    :param label: the one in the wheel's file name.
    :param file: the open wheel; ``path`` is its name in messages then.
    :raises InputError: no archive, no such file in it, not valid, or for
        another label.
    """
    name = str(path)
    try:
        with open_wheel(name if file is None else file) as archive:
            data = read_dist_info(archive, "variant.json")
    except InputError as error:
        error.path = name
        raise
    if data is None:
        message = "no file *.dist-info/variant.json in a wheel with a label"
        raise InputError(message, path=name, hint="build the wheel anew")
    metadata = read_metadata(data, path=f"{name}/variant.json")
    # PEP 825: "it MUST contain exactly one entry, whose key is the variant label
    # present in that wheel's filename."
    if list(metadata.variants) != [label]:
        found = ", ".join(map(shown, list(metadata.variants)[:5])) or "no label"
        message = f"it is for {found}, the wheel's name for {shown(label)}"
        hint = "build the wheel anew, or rename it"
        raise InputError(message, path=name, place="variants", hint=hint)
    return metadata, parse_json(data, name)


def find_variant_markers(metadata: bytes) -> list[str]:
    """The requirements in METADATA that depend on the variant.

    No released installer reads such markers, nor does `packaging`.
    """
    return [
        text
        for text in parse_requires(metadata)
        if any(marker in text.partition(";")[2] for marker in _MARKERS)
    ]


def combine(
    parts: Iterable[tuple[str, VariantsMetadata]],
) -> tuple[VariantsMetadata, list[InputError]]:
    """The union of the metadata of wheels of one release and schema version.

    The result does not depend on the order of the wheels, but for the names in
    the errors. With errors it is not to be used.

    :param parts: the name of each wheel, and what it says; at least one.
    """
    (first_name, first), *others = sorted(parts, key=lambda part: part[0])
    merged = first
    # Which wheel said what, for the messages.
    origins: dict[tuple[str, str], str] = {}
    longest = first_name
    errors: list[InputError] = []
    _note_origins(origins, first_name, first)
    for name, metadata in others:
        # PEP 825: "the lists MUST either be identical, or the longer MUST start
        # with the elements of the shorter one, in the same order. Combining them
        # MUST yield the longer list."
        short, long = sorted((merged.namespaces, metadata.namespaces), key=len)
        if long[: len(short)] != short:
            place = "default-priorities.namespace"
            errors.append(_differ(place, longest, name))
        shared = set(merged.namespaces) & set(metadata.namespaces)
        for section, mine, theirs in _sections(merged, metadata):
            for key in sorted(mine.keys() & theirs.keys()):
                # PEP 825: "the same variant label MUST always map to the same set
                # of properties."
                if mine[key] != theirs[key]:
                    origin = origins.get((section, key), first_name)
                    errors.append(_differ(join(section, key), origin, name))
            if section.startswith("default-priorities"):
                # Not to give any is another order than to give some.
                for key in sorted((mine.keys() ^ theirs.keys()) & shared):
                    origin = origins.get((section, key), first_name)
                    errors.append(_differ(join(section, key), origin, name))
        if len(metadata.namespaces) > len(merged.namespaces):
            longest = name
        _note_origins(origins, name, metadata)
        merged = replace(
            merged,
            namespaces=long,
            providers={**metadata.providers, **merged.providers},
            feature_priorities={
                **metadata.feature_priorities,
                **merged.feature_priorities,
            },
            property_priorities={
                **metadata.property_priorities,
                **merged.property_priorities,
            },
            variants={**metadata.variants, **merged.variants},
        )
    return merged, errors


def _sections(
    one: VariantsMetadata, two: VariantsMetadata
) -> list[tuple[str, Mapping[str, object], Mapping[str, object]]]:
    return [
        (
            "default-priorities.feature",
            one.feature_priorities,
            two.feature_priorities,
        ),
        (
            "default-priorities.property",
            one.property_priorities,
            two.property_priorities,
        ),
        ("providers", one.providers, two.providers),
        ("variants", _as_sets(one.variants), _as_sets(two.variants)),
    ]


def _as_sets(variants: Mapping[str, Properties]) -> dict[str, object]:
    return {
        label: {
            namespace: {name: frozenset(values) for name, values in found.items()}
            for namespace, found in properties.items()
        }
        for label, properties in variants.items()
    }


def _note_origins(
    origins: dict[tuple[str, str], str], name: str, metadata: VariantsMetadata
) -> None:
    for section, mine, _ in _sections(metadata, metadata):
        for key in mine:
            origins.setdefault((section, key), name)


def _differ(place: str, one: str, two: str) -> InputError:
    message = f"{one} and {two} say different things"
    return InputError(message, place=place, hint="build one of them anew")
