"""Remarks to the publisher of upgraded metadata.

Remarks are about missing statements, statements that the new version cannot express,
providers that uv does not recognize, and machines on which the order of labels changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from nvidia_variant_provider.errors import InputError, join
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
from nvidia_variant_provider.metadata import versions
from nvidia_variant_provider.metadata.model import (
    PLUGIN_API,
    REQUIRES,
    Features,
    Provider,
    VariantsMetadata,
)
from nvidia_variant_provider.resolution.ordering import order

from ..findings import Reported
from ..metadata.checking import count_values, find_unanswered
from ..metadata.requirements import parse_requirement

Priorities: TypeAlias = tuple[Sequence[str], Mapping[str, Sequence[str]]]
"""The order of features and of their values, which overrides the provider's order."""

_MOST_COMPARISONS = 1_000_000
"""Maximum product of values and machines for which the order is compared."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Remark(Reported):
    """A remark to the publisher.

    :param place: the place in the document, or the file.
    :param message: the change or the defect.
    :param hint: the consequence or the next step.
    :param reorders: whether the order of the labels may change on some machine.
    """

    place: str
    message: str
    hint: str
    reorders: bool = False

    def __str__(self) -> str:
        return f"{self.place}: {self.message}; {self.hint}"

    @classmethod
    def from_error(cls, error: InputError) -> Remark:
        """Return the error as a remark."""
        place = ": ".join(part for part in (error.path, error.place) if part)
        hint = error.hint or "correct it"
        return cls(place=place or "top level", message=error.message, hint=hint)


@dataclass(frozen=True, kw_only=True, slots=True)
class Upgrade:
    """The outcome of upgrading the metadata of a release.

    :param metadata: the upgraded metadata; ``None`` if there are problems.
    :param losses: statements that the upgraded metadata does not contain.
    :param notes: additions to the metadata, and limits of the result.
    :param problems: defects that the publisher must fix before there is a result.
    """

    metadata: VariantsMetadata | None
    losses: tuple[Remark, ...] = ()
    notes: tuple[Remark, ...] = ()
    problems: tuple[Remark, ...] = ()


def without_repeats(*groups: Iterable[Remark]) -> tuple[Remark, ...]:
    """Return the remarks of all groups in order, without duplicates."""
    return tuple(dict.fromkeys(remark for group in groups for remark in group))


def find_unwritable(metadata: VariantsMetadata) -> Iterator[Remark]:
    """Yield problems of the metadata that only its publisher can solve."""
    for item in find_unanswered(metadata):
        hint = f"{item.hint}; then upgrade the file again"
        yield Remark(place=item.place, message=item.message, hint=hint)
    for namespace in sorted(metadata.schema.reserved):
        labels = _labels_of(namespace, metadata)
        if labels:
            message = f"version {versions.WRITTEN} has no namespace {namespace}"
            hint = f"remove the labels that use it, {', '.join(sorted(labels))}"
            yield Remark(place="variants", message=message, hint=hint)


def without_reserved(metadata: VariantsMetadata) -> VariantsMetadata:
    """Return the metadata without reserved namespaces or labels that use them."""
    reserved = metadata.schema.reserved
    dead = {label for name in reserved for label in _labels_of(name, metadata)}
    return metadata.replace(
        namespaces=tuple(n for n in metadata.namespaces if n not in reserved),
        variants={k: v for k, v in metadata.variants.items() if k not in dead},
    )


def _labels_of(namespace: str, metadata: VariantsMetadata) -> list[str]:
    return [label for label, item in metadata.variants.items() if namespace in item]


_PLACE = join("providers", NAMESPACE)

UNKNOWN_TO_UV = Remark(
    place=_PLACE,
    message="uv 0.13.8 does not recognize the provider by these names, so its users "
    "get the CPU build",
    hint="write the names that uv recognizes with --for-uv",
)
"""The note about a provider that uv ignores.

uv runs no plugins. It has an NVIDIA provider of its own, which it uses only if the
metadata names the plugin in one exact way; otherwise every machine gets the CPU build.
"""


def is_known_to_uv(provider: Provider) -> bool:
    """Return whether uv 0.13.8 uses its built-in provider in place of this one.

    According to tests with uv, there must be one requirement without a marker, extras
    or URL that allows version 0.0.1, and the exact ``plugin-api``.
    """
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


def rewrite_for_uv(outcome: Upgrade) -> Upgrade:
    """Return the outcome with the requirement and the plugin that uv recognizes.

    Static properties do not change, since uv needs no plugin for them.
    """
    metadata = outcome.metadata
    old = metadata.providers.get(NAMESPACE) if metadata is not None else None
    if metadata is None or old is None or not old.requires:
        return outcome
    notes = [note for note in outcome.notes if note != UNKNOWN_TO_UV]
    if old.optional:
        message = "an optional provider is off unless the user enables it"
        place = join(_PLACE, "optional")
        notes.append(Remark(place=place, message=message, hint="remove the key"))
    if is_known_to_uv(old):
        return replace(outcome, notes=tuple(notes))
    before = ", ".join(old.requires)
    after = REQUIRES
    if old.plugin_api != PLUGIN_API:
        before += f" with {old.plugin_api or 'no plugin-api'}"
        after += f" with {PLUGIN_API}"
    message = f"{before} is replaced by {after}, which uv 0.13.8 recognizes"
    hint = "build the wheels with it too"
    notes.append(Remark(place=_PLACE, message=message, hint=hint))
    new = old.replace(requires=(REQUIRES,), plugin_api=PLUGIN_API)
    providers = {**metadata.providers, NAMESPACE: new}
    return replace(
        outcome, metadata=metadata.replace(providers=providers), notes=tuple(notes)
    )


def find_difference(
    metadata: VariantsMetadata,
    providers: Mapping[str, Provider],
    before: Priorities,
    after: Priorities,
) -> str | None:
    """Return how the order of labels may change on some machine; ``None`` if not.

    All values of other namespaces count as supported, since the order of two labels
    does not depend on whether a third label fits.

    :param before: the priorities of the old metadata.
    :param after: the priorities of the upgraded metadata.
    """
    others: dict[str, Features] = {}
    for namespace in metadata.namespaces:
        static = providers.get(namespace, Provider()).static_properties
        others[namespace] = static or _wanted_values(metadata, namespace)
    wanted = _wanted_values(metadata, NAMESPACE)
    machines = list(_machines({name: {*values} for name, values in wanted.items()}))
    if len(machines) * count_values(metadata) > _MOST_COMPARISONS:
        return "the order may change: there are too many values to compare it"
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
        return "the order may change where another plugin decides"
    return None


def _depends_on_plugins(
    metadata: VariantsMetadata, providers: Mapping[str, Provider]
) -> bool:
    """Return whether the plugin of another namespace can order ``nvidia`` labels.

    Labels with equal ``nvidia`` properties are ordered by the next namespace. Its order
    is unknown if a plugin determines it.
    """
    return any(
        namespace != NAMESPACE and not providers[namespace].static_properties
        for properties in metadata.variants.values()
        if NAMESPACE in properties
        for namespace in properties.keys() & providers.keys()
    )


def _wanted_values(metadata: VariantsMetadata, namespace: str) -> Features:
    """Return, for each feature of a namespace, all values that labels require."""
    wanted: dict[str, dict[str, None]] = {}
    for properties in metadata.variants.values():
        for name, values in properties.get(namespace, {}).items():
            wanted.setdefault(name, {}).update(dict.fromkeys(values))
    return {name: tuple(values) for name, values in wanted.items()}


def _machines(wanted: Mapping[str, Set[str]]) -> Iterator[tuple[str, Features]]:
    """Yield ``(description, values)`` of one machine for each distinct set of values.

    Only values in ``wanted`` count: other values cannot change the order of labels.
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
    wanted: Mapping[str, Set[str]],
    *,
    relaxed: bool,
) -> dict[str, tuple[str, ...]]:
    """Return the ``wanted`` values that a machine supports, best first."""
    machine = Environment(
        cuda_driver_version=cuda, gpus=(Gpu(index=0, compute_capability=capability),)
    )
    features, _ = supported_features(machine, minor_version_compatibility=relaxed)
    answer: dict[str, tuple[str, ...]] = {LOWER_BOUND: (), UPPER_BOUND: (), SM_ARCH: ()}
    for feature in features:
        known = wanted.get(feature.name, frozenset())
        answer[feature.name] = tuple(v for v in feature.values if v in known)
    return answer


def find_overruled(
    old: dict[str, dict[str, Any]], new: dict[str, dict[str, Any]]
) -> list[Remark]:
    """Return the statements of the old file that the wheels lack or contradict."""
    remarks = []
    for section in ("default-priorities", "providers", "variants"):
        for key, value in old[section].items():
            if new[section].get(key) == value:
                continue
            gone = key not in new[section]
            remark = Remark(
                place=join(section, key),
                message="no wheel here has it" if gone else "the wheels say otherwise",
                hint="left out" if gone else "replaced by what the wheels say",
                # A longer list of namespaces, for example, may change the order.
                reorders=True,
            )
            remarks.append(remark)
    return remarks
