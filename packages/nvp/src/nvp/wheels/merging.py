"""What the wheels of a release say together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nvidia_variant_provider.errors import InputError, join
from nvidia_variant_provider.metadata import VariantsMetadata
from nvidia_variant_provider.metadata.model import Properties

__all__ = ["combine"]


def combine(
    parts: Iterable[tuple[str, VariantsMetadata]],
) -> tuple[VariantsMetadata, list[InputError]]:
    """Return the union of the metadata of wheels, and where they contradict each other.

    The order of the wheels does not change the union, only the names in the errors.
    When there are errors, the union must not be used.

    :param parts: the name of each wheel with its metadata; at least one. All have the
        same release and schema version.
    """
    (first_name, first), *others = sorted(parts, key=lambda part: part[0])
    merged = first
    # The wheel that said something first, for the messages.
    origins: dict[tuple[str, str], str] = {}
    longest = first_name
    errors: list[InputError] = []
    _note_origins(origins, first_name, first)
    for name, metadata in others:
        # PEP 825: "the lists MUST either be identical, or the longer MUST start with
        # the elements of the shorter one, in the same order. Combining them MUST yield
        # the longer list."
        short, long = sorted((merged.namespaces, metadata.namespaces), key=len)
        if long[: len(short)] != short:
            place = "default-priorities.namespace"
            errors.append(_contradiction(place, longest, name))
        errors += [
            _contradiction(
                join(section, key), origins.get((section, key), first_name), name
            )
            for section, key in _find_contradictions(merged, metadata)
        ]
        if len(metadata.namespaces) > len(merged.namespaces):
            longest = name
        _note_origins(origins, name, metadata)
        merged = _unite(merged, metadata, namespaces=long)
    return merged, errors


def _unite(
    one: VariantsMetadata, two: VariantsMetadata, *, namespaces: tuple[str, ...]
) -> VariantsMetadata:
    return one.replace(
        namespaces=namespaces,
        providers={**two.providers, **one.providers},
        feature_priorities={**two.feature_priorities, **one.feature_priorities},
        property_priorities={**two.property_priorities, **one.property_priorities},
        variants={**two.variants, **one.variants},
    )


def _find_contradictions(
    one: VariantsMetadata, two: VariantsMetadata
) -> list[tuple[str, str]]:
    """Return section and key of each statement in which two wheels differ."""
    contradictions: list[tuple[str, str]] = []
    shared = set(one.namespaces) & set(two.namespaces)
    for section, mine, theirs in _sections(one, two):
        # PEP 825: "the same variant label MUST always map to the same set of
        # properties."
        keys = [key for key in mine.keys() & theirs.keys() if mine[key] != theirs[key]]
        contradictions += [(section, key) for key in sorted(keys)]
        if section.startswith("default-priorities"):
            # Having no priorities also counts as a different order.
            only_one = (mine.keys() ^ theirs.keys()) & shared
            contradictions += [(section, key) for key in sorted(only_one)]
    return contradictions


def _sections(
    one: VariantsMetadata, two: VariantsMetadata
) -> list[tuple[str, Mapping[str, object], Mapping[str, object]]]:
    """Return the sections of two documents side by side, each with its place."""
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
    """Return the labels in a form that does not depend on the order of values."""
    return {
        label: {
            namespace: {name: frozenset(values) for name, values in features.items()}
            for namespace, features in properties.items()
        }
        for label, properties in variants.items()
    }


def _note_origins(
    origins: dict[tuple[str, str], str], name: str, metadata: VariantsMetadata
) -> None:
    for section, mine, _ in _sections(metadata, metadata):
        for key in mine:
            origins.setdefault((section, key), name)


def _contradiction(place: str, one: str, two: str) -> InputError:
    message = f"{one} and {two} say different things"
    return InputError(message, place=place, hint="build one of the wheels again")
