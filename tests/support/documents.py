"""Metadata documents in the current schema, and forced machines to resolve them for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nvidia_variant_provider.machine.environment import CUDA_DRIVER_VERSION, SM_ARCH

__all__ = [
    "PROVIDER",
    "TORCH",
    "TORCH_LABELS",
    "document",
    "forced",
    "nvidia",
    "of_one",
]

SCHEMA = "https://variants-schema.wheelnext.dev/v0.2.0.json"

PROVIDER: Mapping[str, Any] = {
    "requires": ["nvidia-variant-provider>=0.0.1,<1.0.0"],
    "plugin-api": "nvidia_variant_provider.plugin:NvidiaVariantPlugin",
}
"""The entry of this provider in published metadata."""


def nvidia(
    lower: str | None = None, upper: str | None = None, sm: Sequence[str] = ()
) -> dict[str, dict[str, list[str]]]:
    """Return the properties of a label; ``sm`` are its ``sm_arch`` values."""
    features: dict[str, list[str]] = {}
    if lower is not None:
        features["cuda_version_lower_bound"] = [lower]
    if upper is not None:
        features["cuda_version_upper_bound"] = [upper]
    if sm:
        features["sm_arch"] = sorted(sm)
    return {"nvidia": features}


def document(
    variants: Mapping[str, Any],
    *,
    providers: Mapping[str, Any] | None = None,
    namespaces: Sequence[str] | None = None,
    schema: str = SCHEMA,
) -> dict[str, Any]:
    """Return an index-level document.

    :param providers: the providers, by default `PROVIDER` for ``nvidia``.
    :param namespaces: highest priority first; by default those of ``providers``.
    """
    known = {"nvidia": PROVIDER} if providers is None else providers
    return {
        "$schema": schema,
        "default-priorities": {"namespace": list(namespaces or known)},
        "providers": {name: dict(item) for name, item in known.items()},
        "variants": dict(variants),
    }


def _real(*numbers: int) -> list[str]:
    return [f"{number}_real" for number in numbers]


TORCH_LABELS: Mapping[str, Any] = {
    "cu126": nvidia("12.6", sm=_real(50, 60, 70, 75, 80, 86, 90)),
    "cu128": nvidia("12.8", sm=_real(70, 75, 80, 86, 90, 100, 120)),
    "cu130": nvidia("13.0", sm=[*_real(75, 80, 86, 90, 100, 120), "120_virtual"]),
}
"""The properties of the GPU builds of a release such as torch 2.9.1."""

TORCH = document({"null": {}, **TORCH_LABELS})


def of_one(label: str, **changes: Any) -> dict[str, Any]:
    """Return the ``variant.json`` of a wheel of `TORCH`, with some keys changed."""
    return {**TORCH, "variants": {label: TORCH["variants"][label]}, **changes}


def forced(cuda: str, sm: str) -> dict[str, str]:
    """Return the variables that force a machine; an empty text leaves one out."""
    values = {CUDA_DRIVER_VERSION: cuda, SM_ARCH: sm}
    return {name: value for name, value in values.items() if value}
