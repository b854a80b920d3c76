"""The model of variant metadata, for every schema version."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from ..light import EMPTY, Frozen
from .versions import SchemaVersion

Features: TypeAlias = Mapping[str, tuple[str, ...]]
"""``{feature: (value, ...)}``."""

Properties: TypeAlias = Mapping[str, Features]
"""``{namespace: {feature: (value, ...)}}``: the properties of one label."""

NULL_LABELS = ("null", "00000000")
"""The label of the null variant, and its spelling in the oldest versions."""

REQUIRES = "nvidia-variant-provider>=0.0.1,<1.0.0"
PLUGIN_API = "nvidia_variant_provider.plugin:NvidiaVariantPlugin"
"""The requirement and the endpoint of the ``nvidia`` provider in published metadata;
uv 0.13.8 accepts no others."""


class Provider(Frozen):
    """The source of the supported properties in one namespace.

    :param requires: the requirements of the plugin package.
    :param plugin_api: the endpoint of the plugin, ``module:object``.
    :param optional: whether the namespace is unsupported unless the user enables it.
    :param enable_if: the environment marker of the machines to which the provider
        applies; old versions only.
    :param builtin: the name of a provider that is built into installers.
    :param static_properties: the supported properties, best values first; ``None`` if
        they come from another source.
    :param feature_order: the features of ``static_properties``, the best first.
    """

    requires: tuple[str, ...] = ()
    plugin_api: str | None = None
    optional: bool = False
    enable_if: str | None = None
    builtin: str | None = None
    static_properties: Features | None = None
    feature_order: tuple[str, ...] = ()


class VariantsMetadata(Frozen):
    """One metadata document.

    :param name: the project, as in the file name; ``None`` if unknown.
    :param version: the release, as in the file name; ``None`` if unknown.
    :param schema: the version of the format.
    :param namespaces: all namespaces, the most important first.
    :param providers: the provider of each namespace.
    :param feature_priorities: for each namespace, the features that precede the
        provider's order.
    :param property_priorities: for each namespace and feature, the values that precede
        the provider's order.
    :param variants: the properties of each label, in the order of the file.
    """

    name: str | None = None
    version: str | None = None
    schema: SchemaVersion
    namespaces: tuple[str, ...]
    providers: Mapping[str, Provider] = EMPTY
    feature_priorities: Features = EMPTY
    property_priorities: Mapping[str, Features] = EMPTY
    variants: Mapping[str, Properties]
