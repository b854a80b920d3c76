"""Finding a machine on which other priorities give the labels another order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from nvidia_variant_provider.machine.environment import (
    ComputeCapability,
    CudaVersion,
    Environment,
    Gpu,
)
from nvidia_variant_provider.machine.supported import (
    LOWER_BOUND,
    NAMESPACE,
    NEWEST,
    OLDEST,
    SM_ARCH,
    UPPER_BOUND,
    catalog_capabilities,
    supported_features,
)
from nvidia_variant_provider.metadata.model import Features, Provider, VariantsMetadata
from nvidia_variant_provider.resolution.ordering import order

__all__ = ["Priorities", "find_difference"]

Priorities: TypeAlias = tuple[Sequence[str], Mapping[str, Sequence[str]]]
"""Features, and values by feature, that come before the order of the provider."""

_MOST_COMPARISONS = 200_000
"""The product of labels and machines beyond which the order is not compared."""


def find_difference(
    metadata: VariantsMetadata,
    providers: Mapping[str, Provider],
    before: Priorities,
    after: Priorities,
) -> str | None:
    """Return a sentence about a machine that orders labels in another way, if any.

    All values of every other namespace count as supported, since whether a third label
    fits does not change the order of two labels.

    :param before: the priorities of the old metadata.
    :param after: the priorities of the upgraded metadata.
    """
    others: dict[str, Features] = {}
    for namespace in metadata.namespaces:
        static = providers.get(namespace, Provider()).static_properties
        others[namespace] = static or _wanted_values(metadata, namespace)
    machines = list(_machines(_wanted_values(metadata, NAMESPACE)))
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
    if _depends_on_plugins(metadata, providers):
        return "the order may change where another plugin is asked"
    return None


def _depends_on_plugins(
    metadata: VariantsMetadata, providers: Mapping[str, Provider]
) -> bool:
    """Return whether another plugin can decide between labels of this namespace.

    The next namespace decides between labels that are equal in this one, and the order
    of a plugin's answer is not known here.
    """
    return any(
        namespace != NAMESPACE and not providers[namespace].static_properties
        for properties in metadata.variants.values()
        if NAMESPACE in properties
        for namespace in properties.keys() & providers.keys()
    )


def _wanted_values(metadata: VariantsMetadata, namespace: str) -> Features:
    """Return all values of a namespace that labels want, by feature."""
    wanted: dict[str, dict[str, None]] = {}
    for properties in metadata.variants.values():
        for name, values in properties.get(namespace, {}).items():
            wanted.setdefault(name, {}).update(dict.fromkeys(values))
    return {name: tuple(values) for name, values in wanted.items()}


def _machines(wanted: Features) -> Iterator[tuple[str, Features]]:
    """Yield one machine for each answer that differs in the wanted values.

    Values that no label wants do not matter when labels are compared.
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
            bounds = driver[LOWER_BOUND], driver[UPPER_BOUND]
            if bounds in seen:
                continue
            seen.add(bounds)
            targets: set[tuple[str, ...]] = set()
            for capability in capabilities:
                answer = _answer(cuda, capability, wanted, relaxed=relaxed)
                if answer[SM_ARCH] in targets:
                    continue
                targets.add(answer[SM_ARCH])
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
    """Return what a machine supports of the wanted values, best first."""
    machine = Environment(
        cuda_driver_version=cuda, gpus=(Gpu(index=0, compute_capability=capability),)
    )
    features, _ = supported_features(machine, minor_version_compatibility=relaxed)
    answer: dict[str, tuple[str, ...]] = {LOWER_BOUND: (), UPPER_BOUND: (), SM_ARCH: ()}
    for feature in features:
        known = set(wanted.get(feature.name, ()))
        answer[feature.name] = tuple(v for v in feature.values if v in known)
    return answer
