"""NV312, NV313 and NV315: whether the labels of a release suit the machines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache

from nvidia_variant_provider.errors import join
from nvidia_variant_provider.machine.environment import ComputeCapability, CudaVersion
from nvidia_variant_provider.machine.supported import (
    LOWER_BOUND,
    NAMESPACE,
    SM_ARCH,
    UPPER_BOUND,
)
from nvidia_variant_provider.metadata.model import VariantsMetadata
from nvidia_variant_provider.resolution.inputs import own_answer
from nvidia_variant_provider.resolution.ordering import order

from ..knowledge.tables import driver_versions, gpu_models, toolkits
from ..matrix.cells import every_value, list_pairs, machine
from ..metadata.checking import count_values
from .findings import Checks, Problem
from .labels import Claim, claim_of
from .spelling import has_unknown

SELECTION_CHECKS: Checks[VariantsMetadata] = Checks()
"""The checks of readable metadata that describes a whole release."""

_MAX_TRIES = 64
"""Maximum number of labels that are tried with only their own properties of other
namespaces. Each try orders the labels for every machine; more tries rarely help."""

_MAX_COMPARED = 5_000_000
"""Maximum number of values that all tries compare; releases of torch need 80,000."""

_LABEL = 10
"""The number of values that take as much time as a label with few values."""

_MAX_NAMED = 5
"""Maximum number of preferred labels in a message."""


@SELECTION_CHECKS.rule("NV312")
def check_nv312(metadata: VariantsMetadata) -> Iterator[Problem]:
    """Report GPU generations without code that the release's toolkits could emit."""
    claims = _claims_with_machine_code(metadata)
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
        # Generations older than the oldest target are probably excluded on purpose.
        if numbers and numbers[0] < number and emitter is not None:
            yield Problem(
                "variants",
                f"no label has code for compute capability {major}.x "
                f"({model.architecture}, such as {model.name})",
                f"add {number}_real, which CUDA {emitter} emits",
            )


@SELECTION_CHECKS.rule("NV313")
def check_nv313(metadata: VariantsMetadata) -> Iterator[Problem]:
    """Report a release whose builds cannot run on future GPUs."""
    claims = _claims_with_machine_code(metadata)
    if claims and not any(claim.virtual for claim in claims):
        newest = max(number for claim in claims for number in claim.real)
        yield Problem(
            "variants",
            f"no label runs on GPUs newer than {newest}",
            f"add PTX for the newest target: {newest}_virtual",
        )


@SELECTION_CHECKS.rule("NV315")
def check_nv315(metadata: VariantsMetadata) -> Iterator[Problem]:
    """Report labels that no machine selects."""
    for label, winners in find_shadowed(metadata).items():
        # NV301, NV302 and NV311 report values that no machine supports.
        if has_unknown(metadata.variants[label].get(NAMESPACE, {})):
            continue
        place = join("variants", label)
        if winners:
            names = ", ".join(winners[:_MAX_NAMED])
            yield Problem(
                place,
                f"wherever the label fits, another label is preferred: {names}",
                "make it better than those on some machine, or remove it",
            )
        else:
            yield Problem(
                place,
                "the label fits no driver with a GPU that the driver supports",
                "correct its properties, or remove the label",
            )


def _claims_with_machine_code(metadata: VariantsMetadata) -> list[Claim]:
    claims = (
        claim_of({f: list(v) for f, v in properties[NAMESPACE].items()})
        for properties in metadata.variants.values()
        if NAMESPACE in properties
    )
    return [claim for claim in claims if claim.real]


def _newest_emitter(builders: Sequence[CudaVersion], number: int) -> CudaVersion | None:
    """Return the newest of the toolkits ``builders`` that emits code for ``number``."""
    for version in reversed(builders):
        toolkit = toolkits().get(version)
        if toolkit is not None and str(number) in toolkit.targets:
            return version
    return None


def find_shadowed(metadata: VariantsMetadata) -> dict[str, tuple[str, ...]]:
    """Return the labels that no machine selects, each with the labels preferred to it.

    A label with an empty tuple fits no machine. The selection is simulated for a
    machine without a driver, and for each known driver without a GPU and with each GPU
    that it supports. First, the machines support all values of other namespaces. Then,
    for each label not yet selected, they support only that label's values. This second
    step covers at most `_MAX_TRIES` labels, and fewer if the release has very many
    values; further labels are not reported.
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
            # The preferred labels matter only if no machine selects the label.
            for label in labels[1:]:
                if label not in selected:
                    winners.setdefault(label, {})[labels[0]] = None

    select(every_value(metadata))
    shadowed: list[str] = []
    tries = 0
    compared = (count_values(metadata) + _LABEL * len(variants)) * len(machines)
    most = min(_MAX_TRIES, _MAX_COMPARED // (1 + compared))
    for label, properties in variants.items():
        own = {n: f for n, f in properties.items() if n != NAMESPACE}
        if label not in selected and (own or not properties) and tries < most:
            # Support only the label's own values: another label might be preferred
            # because of values of other providers that never occur together.
            tries += 1
            select(own)
        if label not in selected and (not own or tries < most):
            shadowed.append(label)
    return {
        label: tuple(winners.get(label, ()))
        for label in shadowed
        if label not in selected
    }


def _distinct_answers(
    metadata: VariantsMetadata,
) -> Iterator[Mapping[str, tuple[str, ...]]]:
    """Yield each set of the labels' ``nvidia`` values that some machine supports."""
    provider = metadata.providers.get(NAMESPACE)
    if provider is not None and provider.static_properties is not None:
        yield provider.static_properties
        return
    used = {
        feature: {
            value
            for properties in metadata.variants.values()
            for value in properties.get(NAMESPACE, {}).get(feature, ())
        }
        for feature in (LOWER_BOUND, UPPER_BOUND, SM_ARCH)
    }
    seen = set()
    # Drivers with equal bounds may support different GPUs: keep a driver for each GPU.
    bounds: dict[
        tuple[tuple[str, ...], ...],
        dict[ComputeCapability | None, CudaVersion],
    ] = {}
    for cuda, capability in _places():
        answer = _answer(cuda, None)
        key = tuple(
            tuple(v for v in answer.get(feature, ()) if v in used[feature])
            for feature in (LOWER_BOUND, UPPER_BOUND)
        )
        bounds.setdefault(key, {})[capability] = cuda
    # A machine without a driver supports no property of the namespace.
    yield {}
    for gpus in bounds.values():
        for capability, cuda in gpus.items():
            answer = _answer(cuda, capability)
            cut = {
                feature: tuple(v for v in values if v in used.get(feature, ()))
                for feature, values in answer.items()
            }
            identity = tuple(sorted(cut.items()))
            if identity not in seen:
                seen.add(identity)
                yield cut


@cache
def _places() -> Sequence[tuple[CudaVersion, ComputeCapability | None]]:
    """Return each driver's CUDA version with ``None`` and with each supported GPU."""
    return [*((cuda, None) for cuda in driver_versions()), *list_pairs()]


@cache
def _answer(
    cuda: CudaVersion, capability: ComputeCapability | None
) -> Mapping[str, tuple[str, ...]]:
    """Return the supported values of a machine, cached for all metadata files."""
    return own_answer(machine(cuda, capability)).features
