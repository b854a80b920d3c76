"""Small releases, and machines to resolve them for."""

from __future__ import annotations

from typing import Any

from nvidia_variant_provider.machine.environment import (
    ComputeCapability,
    CudaVersion,
    Environment,
    Gpu,
)

__all__ = ["TORCH", "gpu_build", "machine", "metadata"]


def machine(cuda: str | None, *capabilities: str) -> Environment:
    """Return a machine with a driver for ``cuda`` and these GPUs."""
    return Environment(
        cuda_driver_version=CudaVersion.parse(cuda) if cuda else None,
        reason=None if cuda else "no-device",
        gpus=tuple(
            Gpu(index=index, compute_capability=ComputeCapability.parse(text))
            for index, text in enumerate(capabilities)
        ),
    )


def metadata(
    variants: dict[str, Any], version: str = "v0.2.0", /, **changes: Any
) -> dict[str, Any]:
    """Return index-level metadata of these variants, with ``changes`` of its keys."""
    namespaces = list({space: None for item in variants.values() for space in item})
    document: dict[str, Any] = {
        "$schema": f"https://variants-schema.wheelnext.dev/{version}.json",
        "default-priorities": {"namespace": namespaces},
        "providers": {name: {"requires": [f"{name}-provider"]} for name in namespaces},
        "variants": variants,
    }
    document.update(changes)
    return document


def gpu_build(bound: str, *targets: str) -> dict[str, Any]:
    """Return the properties of a build with a lower bound and ``sm_arch`` values."""
    features = {"cuda_version_lower_bound": [bound]}
    return {"nvidia": {**features, **({"sm_arch": list(targets)} if targets else {})}}


TORCH = metadata(
    {
        "null": {},
        "cu126": gpu_build("12.6", "70_real", "80_real"),
        "cu130": gpu_build("13.0", "80_real", "120_real"),
        "plain": gpu_build("12.0"),
    }
)
