"""On which machine other priorities give the labels another order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from ..machine.environment import ComputeCapability, CudaVersion, Environment, Gpu
from ..machine.supported import (
    LOWER_BOUND,
    NAMESPACE,
    NEWEST,
    OLDEST,
    SM_ARCH,
    UPPER_BOUND,
    catalog_capabilities,
    supported_features,
)
from ..metadata.model import Features, Provider, VariantsMetadata
from ..resolution.ordering import order

__all__ = ["Priorities", "first_difference"]

Priorities: TypeAlias = tuple[Sequence[str], Mapping[str, Sequence[str]]]
"""Features, and values by feature, that come before the provider's order."""

_MOST_COMPARISONS = 200_000
"""Labels times machines, beyond which the order is not compared."""


def first_difference(
    metadata: VariantsMetadata,
    providers: Mapping[str, Provider],
    before: Priorities,
    after: Priorities,
) -> str | None:
    """A sentence on a machine that orders labels in another way, if there is one.

    Every other namespace counts as supported: which labels fit beside two others
    does not change the order of those two.
    """
    others: dict[str, Features] = {}
    for namespace in metadata.namespaces:
        static = providers.get(namespace, Provider()).static_properties
        others[namespace] = static or _wanted(metadata, namespace)
    # Ties within one namespace are decided by the next, whose order is not known.
    unknown = any(
        space != NAMESPACE and not providers[space].static_properties
        for found in metadata.variants.values()
        if NAMESPACE in found
        for space in found.keys() & providers.keys()
    )
    machines = list(_machines(_wanted(metadata, NAMESPACE)))
    if len(machines) * len(metadata.variants) > _MOST_COMPARISONS:
        return "the order may change: there are too many labels to compare it"
    for machine, answer in machines:
        old, new = (
            order(
                metadata.variants,
                namespaces=metadata.namespaces,
                supported={**others, NAMESPACE: answer},
                feature_priorities={NAMESPACE: features},
                property_priorities={NAMESPACE: values},
            ).compatible
            for features, values in (before, after)
        )
        for was, now in zip(old, new, strict=True):
            if was != now:
                return f"with {machine} {now} now comes before {was}"
    return "the order may change where another plugin is asked" if unknown else None


def _wanted(metadata: VariantsMetadata, namespace: str) -> Features:
    """All values that labels want, by feature."""
    wanted: dict[str, dict[str, None]] = {}
    for properties in metadata.variants.values():
        for name, values in properties.get(namespace, {}).items():
            wanted.setdefault(name, {}).update(dict.fromkeys(values))
    return {name: tuple(values) for name, values in wanted.items()}


def _machines(wanted: Features) -> Iterator[tuple[str, Features]]:
    """One machine for each answer that tells the wanted values apart.

    What no label wants has no part in comparing labels.
    """
    capabilities = catalog_capabilities()
    for relaxed in (False, True):
        seen: set[tuple[object, ...]] = set()
        for cuda in (
            CudaVersion(major, minor)
            for major in range(OLDEST.major, NEWEST.major + 1)
            for minor in range(NEWEST.minor + 1)
        ):
            driver = _answer(cuda, capabilities[-1], wanted, relaxed=relaxed)
            key = driver[LOWER_BOUND], driver[UPPER_BOUND]
            if key in seen:
                continue
            seen.add(key)
            found: set[tuple[str, ...]] = set()
            for capability in capabilities:
                answer = _answer(cuda, capability, wanted, relaxed=relaxed)
                if answer[SM_ARCH] in found:
                    continue
                found.add(answer[SM_ARCH])
                machine = f"CUDA {cuda} and compute capability {capability}"
                extra = " under minor-version compatibility" if relaxed else ""
                yield machine + extra, answer


def _answer(
    cuda: CudaVersion,
    capability: ComputeCapability,
    wanted: Features,
    *,
    relaxed: bool,
) -> dict[str, tuple[str, ...]]:
    """What a machine supports of the wanted values, best first."""
    machine = Environment(
        cuda_driver_version=cuda, gpus=(Gpu(index=0, compute_capability=capability),)
    )
    features, _ = supported_features(machine, minor_version_compatibility=relaxed)
    answer: dict[str, tuple[str, ...]] = {LOWER_BOUND: (), UPPER_BOUND: (), SM_ARCH: ()}
    for feature in features:
        known = set(wanted.get(feature.name, ()))
        answer[feature.name] = tuple(v for v in feature.values if v in known)
    return answer
