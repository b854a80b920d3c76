"""NV312, NV313, NV315: what the labels of a release give which machines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ..errors import join
from ..knowledge.tables import gpu_models, toolkits
from ..machine.environment import CudaVersion
from ..machine.supported import LOWER_BOUND, NAMESPACE, SM_ARCH, UPPER_BOUND
from ..matrix.cells import all_capabilities, all_drivers, every_value, machine
from ..metadata.model import Properties, VariantsMetadata
from ..resolution.ordering import order
from ..resolution.providers import own_answer
from .collector import Collector
from .meaning import Claim, claim_of

__all__ = ["check_selection", "find_shadowed"]

_MAX_TRIES = 64
"""Answers of other namespaces to try; more would cost more than they tell."""


def check_selection(metadata: VariantsMetadata, found: Collector) -> None:
    """Check a document that reads well: what its labels give which machines."""
    _check_generations(metadata, found)
    for label, winners in find_shadowed(metadata).items():
        if not winners:
            message = "no driver and GPU fit it"
            hint = "correct its properties, or remove the label"
        else:
            names = ", ".join(winners[:5])
            message = f"wherever it fits, another label is preferred: {names}"
            hint = "make it better than those on some machine, or remove it"
        found.add("NV315", join("variants", label), message, hint)


def _claims(metadata: VariantsMetadata) -> dict[str, Claim]:
    return {
        label: claim_of({f: list(v) for f, v in properties[NAMESPACE].items()})
        for label, properties in metadata.variants.items()
        if NAMESPACE in properties
    }


def _check_generations(metadata: VariantsMetadata, found: Collector) -> None:
    claims = [claim for claim in _claims(metadata).values() if claim.real]
    if not claims:
        return
    numbers = sorted({number for claim in claims for number in claim.real})
    covered = {number // 10 for number in numbers}
    builders = sorted({claim.lower for claim in claims if claim.lower is not None})
    ptx = [number for claim in claims for number in claim.virtual]
    for model in gpu_models().values():
        number = int(model.compute_capability.sm)
        major = model.compute_capability.major
        reached = any(target <= number for target in ptx)
        first_of_major = model.compute_capability.minor == 0
        if not first_of_major or model.tegra or major in covered or reached:
            continue
        emitter = _newest_emitter(builders, number)
        if numbers[0] < number and emitter is not None:
            message = (
                f"no label has code for compute capability {major}.x "
                f"({model.architecture}: {model.name})"
            )
            hint = f"add {number}_real: CUDA {emitter} emits it"
            found.add("NV312", "variants", message, hint)
    if not ptx:
        message = f"GPUs newer than {numbers[-1]} get the build for CPUs"
        hint = f"add PTX for the newest target: {numbers[-1]}_virtual"
        found.add("NV313", "variants", message, hint)


def _newest_emitter(builders: Sequence[CudaVersion], number: int) -> CudaVersion | None:
    """The newest of the toolkits in use that emits code for ``number``."""
    for version in reversed(builders):
        toolkit = toolkits().get(version)
        if toolkit is not None and str(number) in toolkit.targets:
            return version
    return None


def find_shadowed(metadata: VariantsMetadata) -> dict[str, tuple[str, ...]]:
    """Labels that no machine selects, with the labels that are preferred to them.

    Without any of those, it fits no machine at all. All drivers with all
    GPUs are tried, without a GPU and without a driver as well; first with every
    value of the other namespaces supported, then with those of each label that is
    left. Where those are too many to try, nothing is said of the rest.
    """
    variants = metadata.variants
    machines = list(_distinct_answers(metadata))
    winners: dict[str, dict[str, None]] = {}
    selected: set[str] = set()

    def select(other: Mapping[str, Mapping[str, Sequence[str]]]) -> None:
        for own in machines:
            labels = order(
                variants,
                namespaces=metadata.namespaces,
                supported={**other, NAMESPACE: own},
                feature_priorities=metadata.feature_priorities,
                property_priorities=metadata.property_priorities,
            ).compatible
            selected.update(labels[:1])
            for label in labels[1:]:
                winners.setdefault(label, {})[labels[0]] = None

    select(every_value(metadata))
    shadowed: list[str] = []
    tries = 0
    for label, properties in variants.items():
        own = {n: f for n, f in properties.items() if n != NAMESPACE}
        if label not in selected and (own or not properties) and tries < _MAX_TRIES:
            # Their providers are not here to say which values come together. With
            # just the label's own, no other label is better by accident.
            tries += 1
            select(own)
        if label not in selected and (not own or tries < _MAX_TRIES):
            shadowed.append(label)
    return {
        label: tuple(winners.get(label, ()))
        for label in shadowed
        if label not in selected
    }


def _distinct_answers(
    metadata: VariantsMetadata,
) -> Iterator[Mapping[str, tuple[str, ...]]]:
    """The answers of all machines, cut down to values that labels use; each once."""
    provider = metadata.providers.get(NAMESPACE)
    if provider is not None and provider.static_properties is not None:
        yield provider.static_properties
        return
    used = {
        feature: _values(metadata.variants, feature)
        for feature in (LOWER_BOUND, UPPER_BOUND, SM_ARCH)
    }
    seen = set()
    bounds: dict[tuple[tuple[str, ...], ...], CudaVersion] = {}
    for cuda in all_drivers():
        answer = own_answer(machine(cuda, None)).features
        bounds[
            tuple(
                tuple(v for v in answer.get(feature, ()) if v in used[feature])
                for feature in (LOWER_BOUND, UPPER_BOUND)
            )
        ] = cuda
    # Without a driver nothing of the namespace is supported.
    yield {}
    for cuda in bounds.values():
        for capability in (None, *all_capabilities()):
            answer = own_answer(machine(cuda, capability)).features
            cut = {
                feature: tuple(v for v in values if v in used.get(feature, ()))
                for feature, values in answer.items()
            }
            key = tuple(sorted(cut.items()))
            if key not in seen:
                seen.add(key)
                yield cut


def _values(variants: Mapping[str, Properties], feature: str) -> frozenset[str]:
    return frozenset(
        value
        for properties in variants.values()
        for value in properties.get(NAMESPACE, {}).get(feature, ())
    )
