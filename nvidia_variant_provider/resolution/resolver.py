"""Resolve a release for a machine: the labels that fit, best first, and the others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from ..errors import listed
from ..light import EMPTY, Frozen
from ..machine import reasons
from ..machine.environment import (
    MINOR_VERSION_COMPATIBILITY,
    ComputeCapability,
    Environment,
)
from ..machine.environment import SM_ARCH as FORCED_SM_ARCH
from ..machine.supported import (
    LOWER_BOUND,
    NAMESPACE,
    OLDEST,
    SM_ARCH,
    UPPER_BOUND,
    VariantProperty,
    all_features,
    left_out,
    supported_sm_arch,
)
from ..metadata.model import VariantsMetadata
from .inputs import Answer, Priorities, find_answers, own_answer
from .ordering import Mismatch, Ordering, Rejections, order

_BOUNDS = frozenset(all_features()[0].values)

_THOR = {"11.0": "101", "10.1": "110"}
"""The GPU Thor is 10.1 under CUDA 12, and 11.0 under CUDA 13 and newer. Each key is the
capability that one kind of driver reports, and its value is the target in builds for
the other kind of driver."""

_THOR_NAMES = (
    "this GPU is Thor, which is 10.1 under CUDA 12 and 11.0 under CUDA 13 and newer: "
    "look for a build for the CUDA of this driver"
)


class Reason(Frozen):
    """One reason why a label does not fit.

    :param wanted: the values of the label; one supported value is enough.
    :param offered: the values of the feature that the machine supports, best first.
    :param cause: the cause, as a clause about this machine.
    :param outlook: the effect of minor-version compatibility, or an empty string.
    """

    namespace: str
    feature: str
    wanted: tuple[str, ...]
    offered: tuple[str, ...]
    cause: str
    outlook: str = ""

    @property
    def sentence(self) -> str:
        """Cause and outlook, as one sentence without a period."""
        return self.cause + self.outlook

    def to_dict(self) -> dict[str, object]:
        """Return the fields as JSON, with cause and outlook joined in ``sentence``."""
        return {
            "namespace": self.namespace,
            "feature": self.feature,
            "wanted": list(self.wanted),
            "offered": list(self.offered),
            "sentence": self.sentence,
        }


class _Reasons(Mapping[str, tuple[Reason, ...]]):
    """The reasons against each label that does not fit, keyed by label.

    The mapping is lazy for the same reason as `Rejections`: writing reasons takes many
    times longer than ordering labels, and only ``--explain``, ``--json`` and `api` read
    them.
    """

    def __init__(
        self,
        rejections: Rejections,
        *,
        labels: Collection[str],
        uncovered: Mapping[str, tuple[Mismatch, ...]],
        environment: Environment,
        answers: Mapping[str, Answer],
        relax: Callable[[], Rejections] | None,
    ) -> None:
        self._labels = labels
        self._rejections = rejections
        self._uncovered = uncovered
        self._environment = environment
        self._answers = answers
        self._relax = cache(relax) if relax else None

    def __getitem__(self, label: str) -> tuple[Reason, ...]:
        relaxed: Sequence[Mismatch] | None = None
        if label in self._uncovered:
            mismatches = self._uncovered[label]
        else:
            mismatches = self._rejections[label]
            if self._relax is not None:
                relaxed = self._relax().get(label, ())
        return tuple(
            explain(item, self._environment, self._answers, relaxed=relaxed)
            for item in mismatches
        )

    def __iter__(self) -> Iterator[str]:
        rejected = self._uncovered.keys() | set(self._rejections)
        yield from (label for label in self._labels if label in rejected)

    def __len__(self) -> int:
        return len(self._rejections) + len(self._uncovered)


class Resolution(Frozen):
    """The labels of a release that fit a machine, and the reasons against the others.

    :param compatible: the labels that fit, best first.
    :param rejected: the reasons against each label that does not fit.
    :param environment: the machine.
    :param metadata: the metadata of the release.
    :param notes: sentences about facts of the machine that properties cannot express.
    :param supported: the supported values: ``{namespace: {feature: (value, ...)}}``.
    :param options: the other arguments of `resolve_metadata`.
    """

    compatible: tuple[str, ...]
    rejected: Mapping[str, tuple[Reason, ...]]
    environment: Environment
    metadata: VariantsMetadata
    notes: tuple[str, ...] = ()
    supported: Mapping[str, Mapping[str, Sequence[str]]] = EMPTY
    options: Mapping[str, Any] = EMPTY

    def resolve_again(self, environment: Environment, **changes: Any) -> Resolution:
        """Resolve the same release for another machine, with the same options.

        :param changes: arguments of `resolve_metadata` that replace the options.
        """
        options = {**self.options, **changes}
        return resolve_metadata(self.metadata, environment, **options)

    @property
    def selected(self) -> str | None:
        """The best label, or ``None`` if no label fits."""
        return self.compatible[0] if self.compatible else None

    def properties(self, label: str) -> list[VariantProperty]:
        """Return the properties of a label, in lexical order."""
        return sorted(
            (
                VariantProperty(namespace, feature, value)
                for namespace, features in self.metadata.variants[label].items()
                for feature, values in features.items()
                for value in values
            ),
            key=str,
        )


def resolve_metadata(
    metadata: VariantsMetadata,
    environment: Environment,
    *,
    supported: Mapping[str, Mapping[str, Sequence[str]]] | None = None,
    every_gpu: bool = False,
    enable_optional: bool | Collection[str] = False,
    minor_version_compatibility: bool = False,
    priorities: Priorities | None = None,
) -> Resolution:
    """Filter and order the labels of ``metadata`` for ``environment``.

    :param supported: supported values from the user, which replace those of plugins.
    :param every_gpu: keep only labels that have a supported ``sm_arch`` value for each
        readable GPU, and labels without nvidia properties.
    :param enable_optional: the optional namespaces to enable, or ``True`` for all.
    """
    preferred = priorities or Priorities()
    answers = find_answers(
        metadata,
        environment,
        supported=supported,
        enable_optional=enable_optional,
        minor_version_compatibility=minor_version_compatibility,
    )
    ordering = _order(metadata, answers, preferred)
    uncovered = (
        _uncovered(ordering.compatible, metadata, environment, answers)
        if every_gpu
        else {}
    )

    def relax() -> Rejections:
        answer = own_answer(environment, minor_version_compatibility=True)
        return _order(metadata, {**answers, NAMESPACE: answer}, preferred).rejected

    # Minor-version compatibility affects only this package's answer.
    own = answers.get(NAMESPACE, Answer()).own
    return Resolution(
        compatible=tuple(x for x in ordering.compatible if x not in uncovered),
        rejected=_Reasons(
            ordering.rejected,
            labels=metadata.variants,
            uncovered=uncovered,
            environment=environment,
            answers=answers,
            relax=relax if own and not minor_version_compatibility else None,
        ),
        environment=environment,
        metadata=metadata,
        supported={name: answer.features for name, answer in answers.items()},
        options={
            "supported": supported,
            "every_gpu": every_gpu,
            "enable_optional": enable_optional,
            "minor_version_compatibility": minor_version_compatibility,
            "priorities": priorities,
        },
        notes=(
            *(note for answer in answers.values() for note in answer.notes),
            *(left_out(environment) if own and not every_gpu else ()),
        ),
    )


def _order(
    metadata: VariantsMetadata, answers: Mapping[str, Answer], preferred: Priorities
) -> Ordering:
    return order(
        metadata.variants,
        # The user's priorities precede those of the publisher.
        namespaces=(*preferred.namespaces, *metadata.namespaces),
        supported={name: answer.features for name, answer in answers.items()},
        feature_priorities={
            name: (
                *preferred.features.get(name, ()),
                *metadata.feature_priorities.get(name, ()),
            )
            for name in answers
        },
        property_priorities={
            name: _joined(
                preferred.properties.get(name, {}),
                metadata.property_priorities.get(name, {}),
            )
            for name in answers
        },
    )


def _joined(
    first: Mapping[str, Sequence[str]], second: Mapping[str, Sequence[str]]
) -> dict[str, tuple[str, ...]]:
    return {
        feature: (*first.get(feature, ()), *second.get(feature, ()))
        for feature in (*first, *second)
    }


def _uncovered(
    labels: Sequence[str],
    metadata: VariantsMetadata,
    environment: Environment,
    answers: Mapping[str, Answer],
) -> dict[str, tuple[Mismatch, ...]]:
    """Return labels that do not cover every GPU, with a mismatch per uncovered GPU."""
    ptx = any(
        value.endswith("_virtual")
        for value in answers.get(NAMESPACE, Answer()).features.get(SM_ARCH, ())
    )
    offers = [
        tuple(supported_sm_arch(capability, ptx=ptx))
        for capability in environment.compute_capabilities
    ]
    uncovered: dict[str, tuple[Mismatch, ...]] = {}
    for label in labels:
        features = metadata.variants[label].get(NAMESPACE)
        if features is None:
            continue
        wanted = features.get(SM_ARCH, ())
        values = set(wanted)
        missing = [offer for offer in offers if values.isdisjoint(offer)]
        if missing:
            uncovered[label] = tuple(
                Mismatch(
                    namespace=NAMESPACE, feature=SM_ARCH, wanted=wanted, offered=offer
                )
                for offer in missing
            )
    return uncovered


def explain(
    mismatch: Mismatch,
    environment: Environment,
    answers: Mapping[str, Answer],
    *,
    relaxed: Sequence[Mismatch] | None = None,
) -> Reason:
    """Explain, for this machine, why a mismatch rules a label out.

    :param relaxed: the mismatches that would remain under minor-version compatibility;
        ``None`` if this compatibility already applies.
    """
    answer = answers.get(mismatch.namespace, Answer())
    outlook = ""
    if answer.why_not:
        cause = f"{mismatch.namespace} is not supported: {answer.why_not}"
    elif mismatch.namespace == NAMESPACE and answer.own:
        cause = _nvidia(mismatch, environment)
        if mismatch.feature == LOWER_BOUND and relaxed is not None:
            outlook = _outlook(environment, relaxed)
    else:
        cause = _general(mismatch)
    return Reason(
        namespace=mismatch.namespace,
        feature=mismatch.feature,
        wanted=mismatch.wanted,
        offered=mismatch.offered,
        cause=cause,
        outlook=outlook,
    )


def _general(mismatch: Mismatch) -> str:
    name = f"{mismatch.namespace} :: {mismatch.feature}"
    wanted = _named(mismatch.wanted)
    if not mismatch.offered:
        return f"it needs {name} {wanted}, but this machine supports no value of that"
    offered = _named(mismatch.offered)
    return f"it needs {name} {wanted}, but this machine supports {offered}"


def _nvidia(mismatch: Mismatch, environment: Environment) -> str:
    driver = environment.cuda_driver_version
    if driver is None:
        sentence, _ = reasons.explain(environment.reason or reasons.NO_DEVICE)
        return f"it needs an NVIDIA driver: {sentence}"
    if driver < OLDEST:
        return f"it needs a newer driver: this driver is for CUDA {driver}"
    wanted = _named(mismatch.wanted)
    if mismatch.feature in (LOWER_BOUND, UPPER_BOUND) and _is_unknown(mismatch):
        return f"its bound is CUDA {wanted}, which no driver supports"
    if mismatch.feature == LOWER_BOUND:
        return (
            f"it needs a driver for CUDA {wanted} or newer, "
            f"but this driver is for CUDA {driver}"
        )
    if mismatch.feature == UPPER_BOUND:
        return (
            f"it needs a driver that is older than CUDA {wanted}, "
            f"but this driver is for CUDA {driver}"
        )
    if mismatch.feature == SM_ARCH:
        return _sm_arch(mismatch, environment)
    return _general(mismatch)


def _is_unknown(mismatch: Mismatch) -> bool:
    return all(value not in _BOUNDS for value in mismatch.wanted)


def _outlook(environment: Environment, relaxed: Sequence[Mismatch]) -> str:
    """Return a clause on the effect of minor-version compatibility; may be empty."""
    if not relaxed:
        return (
            "; its machine code would run under CUDA's minor-version compatibility "
            f"(set {MINOR_VERSION_COMPATIBILITY}=1)"
        )
    features = {item.feature for item in relaxed if item.namespace == NAMESPACE}
    has_ptx_only = SM_ARCH in features and environment.compute_capabilities
    if LOWER_BOUND in features or not has_ptx_only:
        return ""
    return (
        "; minor-version compatibility would not help: it covers only machine code, "
        f"and this build has none for {environment.compute_capabilities[0]}"
    )


def _sm_arch(mismatch: Mismatch, environment: Environment) -> str:
    wanted, capabilities = mismatch.wanted, environment.compute_capabilities
    if not wanted:
        return "it does not say which GPUs it has kernels for"
    if not capabilities:
        why = reasons.explain(environment.reason or reasons.NO_GPU)[0]
        if environment.source == "forced":
            why = f"the driver is forced, but no GPU is (set {FORCED_SM_ARCH})"
        return f"it has kernels for {_named(wanted)}, but no GPU is known: {why}"
    # The provider's values describe the highest compute capability. With --every-gpu,
    # any GPU may have the mismatch, whose first offered value identifies the GPU.
    gpu = next(
        (c for c in capabilities if f"{c.sm}_real" in mismatch.offered[:1]),
        capabilities[0],
    )
    sentence = f"it has no kernels for compute capability {gpu}, only {_named(wanted)}"
    other = _THOR.get(str(gpu))
    if other is not None and f"{other}_real" in wanted:
        return f"{sentence}; {_THOR_NAMES}"
    ptx = [value for value in wanted if _is_older_ptx(value, gpu)]
    if ptx:
        sentence += (
            f"; the driver could compile its PTX ({_named(ptx)}), but the only PTX "
            f"that variant properties match is that for {gpu.major}.0"
        )
    return sentence


def _is_older_ptx(value: str, capability: ComputeCapability) -> bool:
    number, _, kind = value.partition("_")
    is_number = number.isdecimal() and len(number) < 5
    if kind != "virtual" or not is_number or capability.minor > 9:
        return False
    return int(number) <= int(capability.sm)


def _named(values: Sequence[str]) -> str:
    texts = [value if len(value) <= 40 else f"{value[:37]}..." for value in values]
    return listed(texts, 8)
