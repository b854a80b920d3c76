"""Older variant metadata in version 0.2.0, with a remark for whatever changes.

What an older version says and 0.2.0 has no word for is a loss. What 0.2.0 wants
and the publisher has not said is a problem: then there is no result, since a
guess could give users another build.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import InputError, join
from ..machine.supported import NAMESPACE
from ..metadata import versions
from ..metadata.model import (
    NULL_LABELS,
    PLUGIN_API,
    REQUIRES,
    Features,
    Properties,
    Provider,
    VariantsMetadata,
)
from ..metadata.requirements import marker_holds, parse_requirement
from ..metadata.writing import find_defects
from .reordering import first_difference

__all__ = ["Remark", "Upgrade", "find_unread", "upgrade"]

_FIRST_STRICT = (0, 1, 0)
"""The first version that uv 0.13.8 reads, in wheels too."""

# What reading takes from a document, whichever version it says it is of.
_KEYS = frozenset(
    {"$schema", "default-priorities", "providers", "static-properties", "variants"}
)
_PRIORITY_KEYS = frozenset({"feature", "namespace", "property"})
_PROVIDER_KEYS = frozenset(
    {"builtin", "enable-if", "feature-order", "install-time", "optional"}
    | {"plugin-api", "plugin-use", "requires", "static-properties"}
)

# Where there can be an NVIDIA driver.
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
_NOT_OF_THE_PLATFORM = ("python", "implementation", "release", "version", "extra")


@dataclass(frozen=True, kw_only=True, slots=True)
class Remark:
    """One thing that a publisher should know about.

    :param place: where in the document, or the file that it is about.
    :param reorders: a machine may get another order of the labels by it.
    """

    place: str
    message: str
    hint: str
    reorders: bool = False

    def __str__(self) -> str:
        return f"{self.place}: {self.message}; {self.hint}"

    @classmethod
    def from_error(cls, error: InputError) -> Remark:
        """The error as a remark."""
        place = ": ".join(part for part in (error.path, error.place) if part)
        hint = error.hint or "correct it"
        return cls(place=place or "top level", message=error.message, hint=hint)

    def to_dict(self) -> dict[str, object]:
        """Keys: ``place``, ``message``, ``hint``, ``reorders``."""
        return {
            "place": self.place,
            "message": self.message,
            "hint": self.hint,
            "reorders": self.reorders,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Upgrade:
    """The outcome of `upgrade`.

    :param metadata: in version 0.2.0; ``None`` when there are problems.
    :param losses: what could not be carried.
    :param notes: what was added, or will not work everywhere.
    :param problems: what the publisher has to say before there is a result.
    """

    metadata: VariantsMetadata | None
    losses: tuple[Remark, ...] = ()
    notes: tuple[Remark, ...] = ()
    problems: tuple[Remark, ...] = ()


@dataclass(kw_only=True, slots=True)
class _Remarks:
    losses: list[Remark] = field(default_factory=list)
    notes: list[Remark] = field(default_factory=list)

    def lose(
        self, place: str, message: str, hint: str, *, reorders: bool = False
    ) -> None:
        self.losses.append(
            Remark(place=place, message=message, hint=hint, reorders=reorders)
        )

    def note(self, place: str, message: str, hint: str) -> None:
        self.notes.append(Remark(place=place, message=message, hint=hint))


def upgrade(
    metadata: VariantsMetadata, document: Mapping[str, Any] | None = None
) -> Upgrade:
    """``metadata`` in version 0.2.0.

    Where no loss says otherwise, labels have the same order on every machine.

    :param document: what ``metadata`` was read from; keys in it that reading
        has ignored are reported as losses.
    :raises InputError: it is of a newer version.
    """
    if metadata.schema.number > versions.WRITTEN.number:
        message = f"version {metadata.schema} is newer than {versions.WRITTEN}"
        hint = "a newer nvidia-variant-provider may read it"
        raise InputError(message, place="$schema", hint=hint)
    remarks = _Remarks()
    if document is not None:
        remarks.losses += find_unread(document, metadata)
    used = {space for found in metadata.variants.values() for space in found}
    providers: dict[str, Provider] = {}
    for namespace in metadata.namespaces:
        old = metadata.providers.get(namespace, Provider())
        place = join("providers", namespace)
        if old.enable_if is not None:
            _report_marker(namespace, old, used, remarks)
        new = _provider(namespace, old, metadata, remarks)
        if new is not None:
            providers[namespace] = new
        elif namespace not in used:
            message = "nothing says where its answer comes from: left out"
            remarks.lose(place, message, "no label uses the namespace")
    for namespace in metadata.providers:
        if namespace not in metadata.namespaces:
            message = "the namespace is not in default-priorities.namespace: left out"
            place = join("providers", namespace)
            remarks.lose(place, message, "no label uses the namespace")
    _report_priorities(metadata, providers, used, remarks)
    if metadata.schema.number < _FIRST_STRICT:
        # Measured: the index's file is fine then, yet the install fails.
        message = f"uv 0.13.8 refuses wheels with a variant.json of {metadata.schema}"
        remarks.note("variant.json", message, "build the wheels anew as well")
    upgraded = replace(
        metadata,
        schema=versions.WRITTEN,
        namespaces=tuple(
            name for name in metadata.namespaces if name in used or name in providers
        ),
        providers=providers,
        feature_priorities={},
        property_priorities={},
        variants=_variants(metadata, remarks),
    )
    problems = tuple(map(Remark.from_error, find_defects(upgraded)))
    return Upgrade(
        metadata=None if problems else upgraded,
        losses=tuple(remarks.losses),
        notes=tuple(remarks.notes),
        problems=problems,
    )


def _provider(
    namespace: str, old: Provider, metadata: VariantsMetadata, remarks: _Remarks
) -> Provider | None:
    """The provider in 0.2.0, which wants exactly one source of the answer.

    Of several, it is the one that the answer was taken from so far.
    """
    place = join("providers", namespace)
    dropped = [("builtin", old.builtin), ("requires", old.requires)]
    dropped.append(("plugin-api", old.plugin_api))
    source = "static-properties"
    if old.static_properties is not None:
        answer = _folded(namespace, old, metadata, remarks)
        if not answer:
            return None
        new = Provider(
            optional=old.optional,
            static_properties=answer,
            feature_order=tuple(answer) if len(answer) > 1 or old.feature_order else (),
        )
    elif old.builtin is not None:
        source = "builtin"
        new = Provider(optional=old.optional, builtin=old.builtin)
        dropped = dropped[1:]
    elif old.requires or namespace == NAMESPACE:
        new = replace(old, enable_if=None)
        if not old.requires:
            new = replace(new, requires=(REQUIRES,), plugin_api=PLUGIN_API)
            if old.plugin_api not in (None, PLUGIN_API):
                message = f"{old.plugin_api}: replaced, no package is named for it"
                hint = "add requires for it to keep it"
                remarks.lose(join(place, "plugin-api"), message, hint)
            message = f"added: {REQUIRES}"
            remarks.note(place, message, "installers need it to ask for an answer")
        elif not _known_to_uv(new):
            message = "uv 0.13.8 does not know the provider by these names"
            hint = f"it knows requires [{REQUIRES!r}] and plugin-api {PLUGIN_API!r}"
            if namespace == NAMESPACE:
                remarks.note(place, message, hint)
        return new
    else:
        return None
    for key, value in dropped:
        if value:
            message = f"version {versions.WRITTEN} has no such key beside {source}"
            hint = f"no installer asked a plugin here: {source} is the answer"
            remarks.lose(join(place, key), message, hint)
    return new


def _known_to_uv(provider: Provider) -> bool:
    """Does uv 0.13.8 take its own NVIDIA provider for this one (measured)?"""
    if len(provider.requires) != 1:
        return False
    item = parse_requirement(provider.requires[0])
    return (
        item is not None
        and provider.plugin_api == PLUGIN_API
        and item.name == "nvidia-variant-provider"
        and not (item.marker or item.extras or item.url)
        and item.specifier.contains("0.0.1")
    )


def _folded(
    namespace: str, old: Provider, metadata: VariantsMetadata, remarks: _Remarks
) -> Features:
    """The static answer, in the order that the priorities give it.

    PEP 817: priorities "override the default ordering from the provider output";
    what they do not list comes after what they list.
    """
    static = old.static_properties or {}
    features = metadata.feature_priorities.get(namespace, ())
    values = metadata.property_priorities.get(namespace, {})
    unknown = [name for name in features if name not in static]
    unknown += [
        f"{name} :: {value}"
        for name, items in values.items()
        for value in items
        if value not in static.get(name, ())
    ]
    if unknown:
        message = f"{', '.join(unknown)} of {namespace}: no static property, left out"
        remarks.lose("default-priorities", message, "no machine supports them")
    names = _first(features, tuple(old.feature_order or static))
    answer = {name: _first(values.get(name, ()), static[name]) for name in names}
    # A feature without values is not supported; 0.2.0 says so by leaving it out.
    return {name: found for name, found in answer.items() if found}


def _first(preferred: Sequence[str], items: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys([x for x in preferred if x in items] + list(items)))


def _variants(
    metadata: VariantsMetadata, remarks: _Remarks
) -> Mapping[str, Properties]:
    null, old_null = NULL_LABELS
    variants = {
        label: {
            namespace: {name: tuple(sorted(values)) for name, values in found.items()}
            for namespace, found in properties.items()
        }
        for label, properties in metadata.variants.items()
    }
    # Only the old versions take it for the null variant, which has no properties.
    if metadata.schema.old_null and old_null in variants:
        del variants[old_null]
        variants[null] = {}
        message = f"the null variant is now spelled {null}"
        hint = f"rename the wheels that end in -{old_null}.whl, or nobody gets them"
        remarks.lose(join("variants", old_null), message, hint)
    return variants


def find_unread(
    document: Mapping[str, Any], metadata: VariantsMetadata
) -> list[Remark]:
    """The keys of ``document`` that mean nothing to a reader.

    :param metadata: what was read from it.
    """
    remarks = _Remarks()
    hint = "installers ignored it"
    sections: list[tuple[str, Mapping[str, Any], frozenset[str]]] = [
        ("", document, _KEYS),
        ("default-priorities", document["default-priorities"], _PRIORITY_KEYS),
    ]
    providers = document.get("providers", {})
    sections += [
        (join("providers", name), fields, _PROVIDER_KEYS)
        for name, fields in providers.items()
    ]
    for place, fields, known in sections:
        for key in fields:
            if key not in known:
                message = f"version {metadata.schema} has no such key: left out"
                remarks.lose(join(place, key), message, hint)
    for name in document.get("static-properties", {}):
        if providers.get(name, {}).get("install-time", True):
            message = "not the answer of its provider (install-time): left out"
            remarks.lose(join("static-properties", name), message, hint)
    return remarks.losses


def _report_marker(
    namespace: str,
    old: Provider,
    used: set[str],
    remarks: _Remarks,
) -> None:
    place = join(join("providers", namespace), "enable-if")
    marker = old.enable_if or ""
    message = f"version {versions.WRITTEN} has no such key: dropped ({marker})"
    if namespace not in used:
        remarks.lose(place, message, "no label uses the namespace")
    elif old.static_properties is not None:
        hint = "its labels may now be chosen where the marker does not hold"
        remarks.lose(place, message, hint, reorders=True)
    elif namespace == NAMESPACE and _holds_where_drivers_are(marker):
        hint = "the order stays: it holds on Linux and Windows, others have no driver"
        remarks.lose(place, message, hint)
    else:
        hint = "its provider is now asked where the marker does not hold as well"
        remarks.lose(place, message, hint, reorders=True)


def _holds_where_drivers_are(text: str) -> bool:
    if any(word in text for word in _NOT_OF_THE_PLATFORM):
        return False
    return all(marker_holds(text, platform) for platform in _PLATFORMS)


def _report_priorities(
    metadata: VariantsMetadata,
    providers: Mapping[str, Provider],
    used: set[str],
    remarks: _Remarks,
) -> None:
    """Priorities of answers that a plugin gives: 0.2.0 takes the plugin's order."""
    features, values = metadata.feature_priorities, metadata.property_priorities
    for namespace in dict.fromkeys((*features, *values)):
        provider = providers.get(namespace)
        if provider is not None and provider.static_properties is not None:
            continue  # They are folded into the answer.
        before = features.get(namespace, ()), values.get(namespace, {})
        for key, after in (("feature", ((), before[1])), ("property", ((), {}))):
            if not before[key == "property"]:
                continue
            reorders, hint = True, "check that the provider's own order is right"
            if provider is None or namespace not in used:
                reorders, hint = False, "no label uses the namespace"
            elif namespace == NAMESPACE:
                found = first_difference(metadata, providers, before, after)
                reorders = found is not None
                hint = found or "the order stays the same on every machine"
            place = join(join("default-priorities", key), namespace)
            message = f"version {versions.WRITTEN} has no {key} priorities: dropped"
            remarks.lose(place, message, hint, reorders=reorders)
            before = after
