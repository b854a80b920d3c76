"""Variant properties and features, as PEP 825 and the plugin API name them."""

from __future__ import annotations

from ..frozen import Frozen

__all__ = ["VariantFeatureConfig", "VariantProperty"]


class VariantFeatureConfig(Frozen):
    """A feature with its values, as provider plugins return them (PEP 817).

    :param name: the feature, such as ``sm_arch``.
    :param values: at least one value, the most preferred first.
    :param multi_value: whether one wheel may declare several values of the feature.
    """

    name: str
    values: list[str]
    multi_value: bool

    def __init__(self, name: str, values: list[str], multi_value: bool) -> None:
        super().__init__(name=name, values=values, multi_value=multi_value)

    __hash__ = None  # type: ignore[assignment]  # the list of values can change


class VariantProperty(Frozen):
    """A property such as ``nvidia :: sm_arch :: 90_real``."""

    namespace: str
    feature: str
    value: str

    def __init__(self, namespace: str, feature: str, value: str) -> None:
        super().__init__(namespace=namespace, feature=feature, value=value)

    def __str__(self) -> str:
        return f"{self.namespace} :: {self.feature} :: {self.value}"
