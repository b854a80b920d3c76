"""What variant metadata says, whatever its schema version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from .versions import SchemaVersion

__all__ = [
    "NULL_LABELS",
    "PLUGIN_API",
    "REQUIRES",
    "Features",
    "Properties",
    "Provider",
    "VariantsMetadata",
]

Features: TypeAlias = Mapping[str, tuple[str, ...]]
"""``{feature: (value, ...)}``."""

Properties: TypeAlias = Mapping[str, Features]
"""``{namespace: {feature: (value, ...)}}``: the properties of one label."""

NULL_LABELS = ("null", "00000000")
"""The null variant's label, and its spelling before version 0.0.2."""

REQUIRES = "nvidia-variant-provider>=0.0.1,<1.0.0"
PLUGIN_API = "nvidia_variant_provider.plugin:NvidiaVariantPlugin"
"""How published metadata names the provider of ``nvidia``, and the only names by
which uv 0.13.8 knows it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Provider:
    """How the answer for one namespace is obtained.

    :param requires: requirements of the plugin package.
    :param plugin_api: its endpoint, ``module:object``.
    :param optional: unsupported unless the user enables it.
    :param enable_if: marker of the machines that it is for (0.0.x).
    :param builtin: name of a provider that installers bring (0.2.0).
    :param static_properties: the answer itself, values best first; ``None``
        where a plugin has to be asked.
    :param feature_order: the features of ``static_properties``, best first.
    """

    requires: tuple[str, ...] = ()
    plugin_api: str | None = None
    optional: bool = False
    enable_if: str | None = None
    builtin: str | None = None
    static_properties: Features | None = None
    feature_order: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class VariantsMetadata:
    """One document.

    :param name: the project, as in the file name; ``None`` when not known.
    :param version: the release, as in the file name.
    :param schema: the version of the format.
    :param namespaces: all namespaces, in decreasing priority.
    :param feature_priorities: features that come before the provider's order.
    :param property_priorities: values that come before the provider's order.
    :param variants: the properties of each label, in the order of the file.
    """

    name: str | None = None
    version: str | None = None
    schema: SchemaVersion
    namespaces: tuple[str, ...]
    providers: Mapping[str, Provider] = field(default_factory=dict)
    feature_priorities: Features = field(default_factory=dict)
    property_priorities: Mapping[str, Features] = field(default_factory=dict)
    variants: Mapping[str, Properties]
