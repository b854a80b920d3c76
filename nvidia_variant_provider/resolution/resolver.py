"""The resolution of a release for a machine: which builds it can run, best first."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from ..light import EMPTY, Frozen
from ..machine.environment import Environment
from ..machine.supported import (
    NAMESPACE,
    SM_ARCH,
    VariantProperty,
    left_out,
    supported_sm_arch,
)
from ..metadata.model import VariantsMetadata
from .explain import Reason, explain
from .inputs import Answer, Priorities, find_answers, own_answer
from .ordering import Mismatch, Ordering, Rejections, order


class _Reasons(Mapping[str, tuple[Reason, ...]]):
    """A mapping from each label that does not fit to its reasons.

    The mapping is lazy, as `Rejections` is and for the same budget of 10,000 labels:
    reasons take many times longer to write than labels to order, and only
    ``--explain``, ``--json`` and `api` read them.
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
    """Which builds of a release a machine can run.

    :param compatible: the labels that fit, best first.
    :param rejected: the reasons against each label that does not fit.
    :param environment: the machine.
    :param metadata: the document that lists the builds.
    :param notes: sentences about what variant properties cannot say of the machine.
    :param supported: what each provider answered, by namespace and feature.
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

    :param supported: answers from the user, which replace those of plugins.
    :param every_gpu: keep only labels that have a supported ``sm_arch`` value for each
        GPU that could be read, and labels without nvidia properties.
    :param enable_optional: the namespaces whose optional providers are asked, or
        ``True`` for all of them.
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

    # Minor-version compatibility changes only the answer of this package.
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
        # The user's priorities go before those of the publisher.
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
    """Return the labels that do not cover every GPU, with a mismatch for each GPU."""
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
        missing = [offer for offer in offers if not set(wanted) & set(offer)]
        if missing:
            uncovered[label] = tuple(
                Mismatch(
                    namespace=NAMESPACE, feature=SM_ARCH, wanted=wanted, offered=offer
                )
                for offer in missing
            )
    return uncovered
