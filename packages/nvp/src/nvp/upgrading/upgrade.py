"""Upgrading the metadata of one release to the current version.

A statement that the current version cannot express is a loss. A required statement that
the old metadata lacks is a problem: then there is no result, since a guess could select
a different build for users.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nvidia_variant_provider.errors import InputError, join
from nvidia_variant_provider.machine.supported import NAMESPACE
from nvidia_variant_provider.metadata import versions
from nvidia_variant_provider.metadata.document import UNDECLARED
from nvidia_variant_provider.metadata.model import (
    NULL_LABELS,
    PLUGIN_API,
    REQUIRES,
    Features,
    Properties,
    Provider,
    VariantsMetadata,
)
from nvidia_variant_provider.resolution.inputs import marker_holds

from ..metadata.checking import find_defects
from .remarks import (
    UNKNOWN_TO_UV,
    Remark,
    Upgrade,
    find_difference,
    find_unwritable,
    is_known_to_uv,
    without_reserved,
)

# The platforms that can have an NVIDIA driver.
_PLATFORMS = [
    {
        "os_name": os_name,
        "platform_machine": machine,
        "platform_system": system,
        "sys_platform": sys_platform,
    }
    for os_name, system, sys_platform, machines in (
        ("posix", "Linux", "linux", ("x86_64", "aarch64")),
        ("nt", "Windows", "win32", ("AMD64", "ARM64")),
    )
    for machine in machines
]
# Marker variables with one of these parts in their names do not describe a platform.
_NOT_OF_THE_PLATFORM = ("python", "implementation", "release", "version", "extra")

_NO_LABEL = "no label uses the namespace"


@dataclass(kw_only=True, slots=True)
class _Remarks:
    """The losses and notes of one upgrade."""

    losses: list[Remark] = field(default_factory=list)
    notes: list[Remark] = field(default_factory=list)

    def lose(self, place: str, message: str, hint: str, reorders: bool = False) -> None:
        remark = Remark(place=place, message=message, hint=hint, reorders=reorders)
        self.losses.append(remark)

    def note(self, place: str, message: str, hint: str) -> None:
        self.notes.append(Remark(place=place, message=message, hint=hint))


def upgrade(
    metadata: VariantsMetadata, document: Mapping[str, Any] | None = None
) -> Upgrade:
    """Return ``metadata`` in the current version.

    The labels keep their order on every machine, unless a loss states otherwise.

    :param document: the document that ``metadata`` was read from. Keys that the reader
        ignored are reported as losses.
    :raises InputError: the metadata has a newer version.
    """
    if metadata.schema.number > versions.WRITTEN.number:
        message = f"version {metadata.schema} is newer than {versions.WRITTEN}"
        hint = "a newer nvp may read it"
        raise InputError(message, place="$schema", hint=hint)
    remarks = _Remarks()
    if document is not None:
        remarks.losses += find_unread(document, metadata)
    problems = list(find_unwritable(metadata))
    # A place with a problem is not checked again.
    settled = {problem.place for problem in problems}
    metadata = without_reserved(metadata)
    used = {space for properties in metadata.variants.values() for space in properties}
    providers: dict[str, Provider] = {}
    for namespace in metadata.namespaces:
        old = metadata.providers.get(namespace, Provider())
        place = join("providers", namespace)
        if old.enable_if is not None:
            _report_marker(namespace, old, used, remarks)
        if place in settled:
            continue
        new = _provider(namespace, old, metadata, remarks)
        if new is not None:
            providers[namespace] = new
        elif namespace not in used:
            message = "it has no source for the answer: left out"
            remarks.lose(place, message, _NO_LABEL)
    declared = frozenset(metadata.namespaces)
    for namespace in metadata.providers:
        if namespace not in declared:
            message = f"{UNDECLARED}: left out"
            place = join("providers", namespace)
            remarks.lose(place, message, _NO_LABEL)
    _report_priorities(metadata, providers, used, remarks, settled)
    if metadata.schema.number < versions.FIRST_IN_WHEELS.number:
        # In a test, uv selected a wheel by the upgraded file on the index, and then
        # failed to install the wheel.
        message = f"uv 0.13.8 refuses wheels with a variant.json of {metadata.schema}"
        remarks.note("variant.json", message, "build the wheels again as well")
    upgraded = metadata.replace(
        schema=versions.WRITTEN,
        namespaces=tuple(
            name for name in metadata.namespaces if name in used or name in providers
        ),
        providers=providers,
        feature_priorities={},
        property_priorities={},
        variants=_variants(metadata, remarks),
    )
    defects = map(Remark.from_error, find_defects(upgraded))
    problems += [defect for defect in defects if defect.place not in settled]
    return Upgrade(
        metadata=None if problems else upgraded,
        losses=tuple(remarks.losses),
        notes=tuple(remarks.notes),
        problems=tuple(problems),
    )


def _provider(
    namespace: str, old: Provider, metadata: VariantsMetadata, remarks: _Remarks
) -> Provider | None:
    """Return the new provider, which has exactly one source.

    If the old provider has several sources, only the source that installers used is
    kept, and the others are reported. ``None`` is returned if there is no source.
    """
    if old.static_properties is not None:
        return _static_provider(namespace, old, metadata, remarks)
    if old.builtin is not None:
        _lose_other_sources(namespace, old, "builtin", remarks)
        return Provider(optional=old.optional, builtin=old.builtin)
    if old.requires or namespace == NAMESPACE:
        return _plugin_provider(namespace, old, remarks)
    return None


def _static_provider(
    namespace: str, old: Provider, metadata: VariantsMetadata, remarks: _Remarks
) -> Provider | None:
    """Return a provider with static properties; ``None`` if there are none."""
    answer = _folded(namespace, old, metadata, remarks)
    if not answer:
        return None
    _lose_other_sources(namespace, old, "static-properties", remarks)
    return Provider(
        optional=old.optional,
        static_properties=answer,
        feature_order=tuple(answer) if len(answer) > 1 or old.feature_order else (),
    )


def _plugin_provider(namespace: str, old: Provider, remarks: _Remarks) -> Provider:
    """Return a provider with a plugin; for ``nvidia``, a missing plugin is added."""
    place = join("providers", namespace)
    new = old.replace(enable_if=None)
    if not old.requires:
        if old.plugin_api not in (None, PLUGIN_API):
            message = f"{old.plugin_api} is replaced, since no package is named for it"
            hint = "add requires to keep that plugin"
            remarks.lose(join(place, "plugin-api"), message, hint)
        message = f"added: {REQUIRES}"
        remarks.note(place, message, "installers need it to query the provider")
        return new.replace(requires=(REQUIRES,), plugin_api=PLUGIN_API)
    if namespace == NAMESPACE and not is_known_to_uv(new):
        remarks.notes.append(UNKNOWN_TO_UV)
    return new


def _lose_other_sources(
    namespace: str, old: Provider, source: str, remarks: _Remarks
) -> None:
    """Report the dropped sources of the old provider: all except ``source``."""
    others = {
        "builtin": old.builtin,
        "requires": old.requires,
        "plugin-api": old.plugin_api,
    }
    for key, value in others.items():
        if value and key != source:
            place = join(join("providers", namespace), key)
            message = f"version {versions.WRITTEN} has no such key next to {source}"
            hint = f"installers queried no plugin: the answer is {source}"
            remarks.lose(place, message, hint)


def _folded(
    namespace: str, old: Provider, metadata: VariantsMetadata, remarks: _Remarks
) -> Features:
    """Return the static properties in the order of the priorities.

    PEP 817: priorities "override the default ordering from the provider output". Values
    without a priority come last. Priorities of other properties are reported as lost.
    """
    static = old.static_properties or {}
    known = {name: frozenset(items) for name, items in static.items()}
    features = metadata.feature_priorities.get(namespace, ())
    values = metadata.property_priorities.get(namespace, {})
    unknown = [name for name in features if name not in static]
    unknown += [
        f"{name} :: {value}"
        for name, items in values.items()
        for value in items
        if value not in known.get(name, ())
    ]
    if unknown:
        listed = ", ".join(unknown)
        message = f"{listed} of {namespace}: not static properties, left out"
        remarks.lose("default-priorities", message, "no machine supports them")
    names = _first(features, tuple(old.feature_order or static))
    answer = {name: _first(values.get(name, ()), static[name]) for name in names}
    # A feature without values is unsupported, which the current version expresses by
    # omitting the feature.
    return {name: items for name, items in answer.items() if items}


def _first(preferred: Sequence[str], items: Sequence[str]) -> tuple[str, ...]:
    known = frozenset(items)
    return tuple(dict.fromkeys([x for x in preferred if x in known] + list(items)))


def _variants(
    metadata: VariantsMetadata, remarks: _Remarks
) -> Mapping[str, Properties]:
    """Return the variants with sorted values; rename and report an old null label."""
    null, old_null = NULL_LABELS
    variants = {
        label: {
            namespace: {name: tuple(sorted(values)) for name, values in items.items()}
            for namespace, items in properties.items()
        }
        for label, properties in metadata.variants.items()
    }
    # Only old versions treat this label as the null variant. In later versions it is a
    # regular label, which must have properties.
    if metadata.schema.old_null and old_null in variants:
        del variants[old_null]
        variants[null] = {}
        message = f"the null variant is now spelled {null}"
        hint = f"rename the wheels that end in -{old_null}.whl, or installers skip them"
        remarks.lose(join("variants", old_null), message, hint)
    return variants


def find_unread(
    document: Mapping[str, Any], metadata: VariantsMetadata
) -> list[Remark]:
    """Return a loss for each key of ``document`` that readers ignore.

    :param metadata: the metadata read from the document.
    """
    remarks = _Remarks()
    hint = "installers ignored it"
    # The reader accepts the keys of all versions in any document.
    keys = frozenset().union(*(version.keys for version in versions.KNOWN))
    priority_keys = frozenset().union(*(v.priority_keys for v in versions.KNOWN))
    provider_keys = frozenset().union(*(v.provider_keys for v in versions.KNOWN))
    providers = document.get("providers", {})
    priorities = "default-priorities"
    sections: list[tuple[str, Mapping[str, Any], frozenset[str]]] = [
        ("", document, keys),
        (priorities, document[priorities], priority_keys),
    ]
    for name, fields in providers.items():
        sections.append((join("providers", name), fields, provider_keys))
    for place, fields, known in sections:
        for key in fields:
            if key not in known:
                message = f"version {metadata.schema} has no such key: left out"
                remarks.lose(join(place, key), message, hint)
    for name in document.get("static-properties", {}):
        if providers.get(name, {}).get("install-time", True):
            message = "not the answer, since install-time is not false: left out"
            remarks.lose(join("static-properties", name), message, hint)
    return remarks.losses


def _report_marker(
    namespace: str,
    old: Provider,
    used: set[str],
    remarks: _Remarks,
) -> None:
    """Report that ``enable-if`` is dropped, and whether that can change the order."""
    place = join(join("providers", namespace), "enable-if")
    marker = old.enable_if or ""
    message = f"version {versions.WRITTEN} has no such key: dropped ({marker})"
    hint, reorders = _NO_LABEL, False
    if namespace in used and old.static_properties is not None:
        hint = "its labels may now be selected if the marker does not hold"
        reorders = True
    elif (
        namespace == NAMESPACE in used
        and not any(word in marker for word in _NOT_OF_THE_PLATFORM)
        and all(marker_holds(marker, platform) for platform in _PLATFORMS)
    ):
        hint = "no build changes: the marker holds wherever an NVIDIA driver can be"
    elif namespace in used:
        hint = "its provider is now also queried if the marker does not hold"
        reorders = True
    remarks.lose(place, message, hint, reorders=reorders)


def _report_priorities(
    metadata: VariantsMetadata,
    providers: Mapping[str, Provider],
    used: set[str],
    remarks: _Remarks,
    settled: Collection[str],
) -> None:
    """Report the dropped priorities of namespaces whose provider is a plugin.

    The current version has no such priorities: the plugin determines the order.
    """
    features, values = metadata.feature_priorities, metadata.property_priorities
    for namespace in dict.fromkeys((*features, *values)):
        if join("providers", namespace) in settled:
            continue
        provider = providers.get(namespace)
        if provider is not None and provider.static_properties is not None:
            continue  # `_folded` applied these priorities to the properties.
        before = features.get(namespace, ()), values.get(namespace, {})
        for key, after in (("feature", ((), before[1])), ("property", ((), {}))):
            if not before[key == "property"]:
                continue
            reorders, hint = True, "check that the provider's own order is right"
            if provider is None or namespace not in used:
                reorders, hint = False, _NO_LABEL
            elif namespace == NAMESPACE:
                difference = find_difference(metadata, providers, before, after)
                reorders = difference is not None
                hint = difference or "the order stays the same on every machine"
            place = join(join("default-priorities", key), namespace)
            message = f"version {versions.WRITTEN} has no {key} priorities: dropped"
            remarks.lose(place, message, hint, reorders=reorders)
            before = after
